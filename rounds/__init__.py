"""The mechanisms of a round as pure state machines, and the events they exchange.

Nothing here imports anything else of rlplan, does I/O, or reads a clock: the simulator drives these machines on a
virtual clock and the executor on the real one, so a plan's prediction is of the code that will run.
"""
