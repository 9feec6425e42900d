"""Co-execution groups: many jobs on shared rollout and training pools (refs/rollmux.md; design.md, group program).

    group_model.py      jobs, node kinds, groups: what is placed where
    permit_seats.py      groups as the permit machine of rounds/permit.py and its twin take them
    twin.py       the compiled long-run simulation of groups; its machine in twin_{state,policies,machine}.py
    permit_simulator.py  the machine itself on a virtual clock: the twin's reference, turn by turn
    slowdowns.py      slowdowns of a group's jobs, and whether all keep their bounds
    group_columns.py    which groups there are to choose from; pricing.py finds those worth their price, compiled in
                  pricing_{kernel,words}.py
    group_program.py    the choice, with its proof, of least USD per hour; unit_price.py of least USD per unit of training
    one_arrival.py      one arrival, nobody moves; moves.py which running jobs move, and for what
    steady_state.py     one period of a group as a timeline, and what limits it; cycle_ratio.py finds that

From documents and back (solve_workload.py is the whole of it):

    workload_jobs.py    workload -> jobs with ways; phase_seconds.py their seconds, state_memory.py host memory, switch_seconds.py switches
    running_plan.py       the running plan -> the state that re-planning begins from; move_savings.py what its moves save
    capacity.py        clusters that are too small: which pool, by how much, what would do
    plan_writer.py         groups -> the plan; shown_timeline.py what is shown of a steady state, group_why.py the reasons
    group_events.py      the plan's timelines as Chrome trace events

The planner of one job chooses what its rounds look like; this package takes the phases as they come and chooses which
jobs share which nodes, so that every job keeps its bound on slowdown and the nodes cost as little as possible.
"""
