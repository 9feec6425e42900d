"""Costs of each phase: seconds in closed form from a profile, and bytes.

decode_costs     seconds of generation and weight transfer; update_costs and reward_costs of the other phases;
                 round_costs all of them for a plan's kinds of round
draft_costs, colocation   what drafts, and taking turns on the same GPUs, change
job_pools        the pools of engines and trainers, and the networks that weights cross between them
memory_table     who holds how many bytes, where, in which phase
"""
