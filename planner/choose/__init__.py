"""Which candidates, which program, which choice.

candidates/      which kinds of round are worth simulating
candidate_search which of them get more rounds
cycle_cost       what a schedule of short and long rounds costs; plan_limits what it has to keep, schedules all of them
round_program    the integer program; program_model its variables and constraints
ties             which of the schedules that are as good is the simplest
plain_baseline   what the plan is compared with
ways_between     what pools of their own cost and save
schedule_choice  all of it: from simulated columns to the plan's schedule
prefix_placement whether a prompt's samples are kept on engines that hold it
balance_choice   whether the rounds of that are balanced by history
"""
