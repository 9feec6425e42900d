"""What does the plan say of itself: predictions, their error, and reasons.

predictions      the block `predicted`; cycle_parts, holdout_rounds, round_picture what it is read from
cost_error, length_error, length_basis, assumed_effects   how far it may be off, and for what
pareto_front     speed against bias; why, waste, assumed_why the plan's words
"""
