"""The compiled twin of the reference simulator: whole rounds, machines included, in one numba kernel.

`simulator.simulate_round` drives the real machines of rounds/ and is the reference; the twin repeats it event by event
and operation by operation, so that its floats are the reference's floats, bit for bit (tests/planner/simulate/test_twin.py). It
knows rounds in which nothing fails and nothing is lost, which is what columns are made of.

Importing a module of this package imports numba (a second or so), so the planner does it where it simulates.
"""
