"""The mechanisms of a round as pure state machines, and the events they exchange.

Nothing here imports anything else of rlplan, does I/O, or reads a clock: the simulator drives these machines on a
virtual clock and the executor on the real one, so a plan's prediction is of the code that will run.

machines         one round, event by event; round_spec the kinds of round, schedule which round comes next
seeds, timeouts, hand_over, predict   which seed and deadline a sample gets; engines that are freed;
                 prompts that are expected to be long
balancing        which engine a sample starts on: by load, or longest expected first, by history
round_shape      how many sequences run while a round goes on
device_ledger    who holds how much of a device that engines and trainers share; step_order in which order they take
                 turns
permits          who holds a shared pool; compiled the numba translation of all machines
"""
