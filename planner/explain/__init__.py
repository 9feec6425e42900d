"""The statements of a plan on itself: predictions, their errors, and reasons.

predictions      the block `predicted`; watched_rounds what only watched rounds tell of it
scheduled_rounds, holdout_rounds   the simulated rounds that predictions and reasons are read from
cost_error, length_error, length_basis, assumed_effects   how far it may be off, and for what
pareto_front     speed against bias; nodes_front seconds and USD by number of nodes
why, decisions   the reasons, by decision
"""
