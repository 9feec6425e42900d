"""Co-execution groups: many jobs on shared rollout and training pools (refs/rollmux.md; design.md, group program).

inputs/      jobs, node kinds and rules from a workload, its plans and runs, and the running plan
simulate/    what a group gives its jobs: slowdowns by the permit machine (compiled, or turn by turn), steady state
choose/      which groups, at the least price: columns, pricing, the master program and its proof
place/       one arrival into running groups, and the published policies that are compared with
replan/      which running jobs move, for what, and what would help a workload that does not fit
write/       from groups to the plan document, its reasons and its timelines

solve_workload.py is the whole of it. The planner of one job chooses what its rounds look like; this package takes the
phases as they come and chooses which jobs share which nodes, so that every job keeps its bound on slowdown and the
nodes cost as little as possible.
"""
