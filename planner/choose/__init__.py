"""Which candidates, which program, which choice.

candidates/      which kinds of round are worth simulating
candidate_search which of them get more rounds
prefix_placement whether a prompt's samples are kept on engines that hold it
cycle_cost       what a schedule of short and long rounds costs, and all schedules; plan_limits what it has to keep
round_program    the integer program; highs solves it
ties             which of the schedules that are as good is the simplest
schedule_choice  from simulated columns to the plan's schedule, and the plain rounds that it is compared with
balance_choice   whether the rounds of that are balanced by history
holdout_rounds   rounds of other responses, from which predictions and reasons are read
cost_error       how far the costs of these may be off
"""
