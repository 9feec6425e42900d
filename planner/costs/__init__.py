"""What does each phase take: seconds in closed form from a profile, and bytes.

phase_costs      decode, update, weight transfer and reward seconds; round_costs those of a plan's kinds of round
draft_costs, reward_executions, colocation   what drafts, executions and taking turns on the same GPUs change
step_noise       how one step's seconds scatter about their mean
memory_table     who holds how many bytes, where, in which phase; its parts are memory_bars, device_memory, host_memory
"""
