"""Co-execution groups: many jobs on shared rollout and training pools (refs/rollmux.md; design.md, group program).

    model.py      jobs, node kinds, groups: what is placed where
    seats.py      groups as the permit machine of rounds/permit.py and its twin take them
    twin.py       the compiled long-run simulation of groups; its machine in twin_{state,policies,machine}.py
    reference.py  the machine itself on a virtual clock: the twin's reference, turn by turn
    rates.py      slowdowns of a group's jobs, and whether all keep their bounds
    columns.py    which groups there are to choose from; pricing.py finds those worth their price, compiled in
                  pricing_{kernel,words}.py
    program.py    the choice, with its proof, of least USD per hour; per_unit.py of least USD per unit of training
    place.py      one arrival, nobody moves; moves.py which running jobs move, and for what
    steady.py     one period of a group as a timeline, and what limits it; cycle_ratio.py finds that

From documents and back (solve_workload.py is the whole of it):

    from_plans.py    workload -> jobs with ways; phases.py their seconds, memory.py host memory, switch.py switches
    running.py       the running plan -> the state that re-planning begins from; attribute.py what its moves save
    limits.py        clusters that are too small: which pool, by how much, what would do
    write.py         groups -> the plan; timeline.py what is shown of a steady state, why.py the reasons
    perfetto.py      the plan's timelines as Chrome trace events

The planner of one job chooses what its rounds look like; this package takes the phases as they come and chooses which
jobs share which nodes, so that every job keeps its bound on slowdown and the nodes cost as little as possible.
"""
