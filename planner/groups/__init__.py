"""Co-execution groups: many jobs on shared rollout and training pools (RollMux, arXiv 2512.11306).

inputs/      jobs, node types and rules from a workload, its plans and runs; node capacity; the running groups
simulate/    slowdowns of a group's jobs by the permit machine (compiled, or phase by phase), and its steady state
choose/      which groups, at the least price: columns, pricing, the master program and its proof, placers
moves.py, replanner.py   which running jobs move, at what price and for what saving
write_groups.py, group_why.py   from groups to the plan document, its reasons and its timelines

solve_workload.py is the entry, and reads as the method; propose_replan.py calls it for running groups with the measured
seconds of their jobs. The planner of one job chooses its rounds; this package takes the phases as given and chooses
which jobs share which nodes, so that every job keeps its bound on slowdown and the nodes cost as little as possible.
"""
