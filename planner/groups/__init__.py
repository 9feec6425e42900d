"""Co-execution groups: many jobs on shared rollout and training pools (refs/rollmux.md; design.md, group program).

    model.py      jobs, node kinds, groups: what is placed where
    twin.py       the compiled long-run simulation of one group under a permit policy

The planner of one job chooses what its rounds look like; this package takes the phases as they come and chooses which
jobs share which nodes, so that every job keeps its bound on slowdown and the nodes cost as little as possible.
"""
