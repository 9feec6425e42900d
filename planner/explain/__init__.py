"""The statements of a plan on itself: predictions, their errors, and reasons.

predictions      the block `predicted`, with the front of speed against bias
watched_rounds   what only watched rounds tell of it
length_error, assumed_effects   how far it may be off, and for what
why, decisions   the reasons, by decision
"""
