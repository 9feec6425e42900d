"""The machines of rounds/ compiled by numba, with the simulated engines and reward workers that they drive.

`planner/simulate/reference_round.py` drives the real machines of rounds/ and is the reference of whole rounds;
`planner/groups/simulate/permit_simulator.py` drives the real permit machine and is the reference of groups. What is
compiled here repeats them event by event and operation by operation, so that its floats are the reference's floats, bit
for bit (tests/planner/simulate/test_twin.py, tests/planner/groups/simulate/test_twin.py). It knows rounds in which
nothing fails and nothing is lost, which is what columns are made of.

round_kernel     one round from its first issue to its end; permit_kernel groups of jobs in the long run
compiled_machines, compiled_actions   the machines of a round, and what they ask for; permit_machine, permit_rules
compiled_engines, compiled_rewards    engines and reward workers in closed form between events
kernel_state, permit_state, tournaments   records that kernels keep; numba_options how functions are compiled

Importing a module of this package imports numba (a second or so), so the planner does it where it simulates.
"""
