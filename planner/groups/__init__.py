"""Co-execution groups: many jobs on shared rollout and training pools (RollMux, arXiv 2512.11306).

inputs/      jobs, node types and rules from a workload, its plans and runs; node capacity; the running groups
simulate/    what a group gives its jobs: slowdowns by the permit machine (compiled, or turn by turn), steady state
choose/      which groups, at the least price: columns, pricing, the master program and its proof, remedies
place/       where one arriving job goes among running groups, and the published placers that a plan compares with
replan/      which running jobs move, at what price and for what saving
write/       from groups to the plan document, its reasons and its timelines

solve_workload.py is the entry, and reads as the method; propose_replan.py calls it for groups that run, with what their
jobs were measured at. The planner of one job chooses what its rounds look like; this
package takes the phases as they come and chooses which jobs share which nodes, so that every job keeps its bound on
slowdown and the nodes cost as little as possible.
"""
