"""`rlplan check`: the rules of plans/checks, and beside them those that need a profile or a workload's jobs.

run           Checker: every rule that holds for a file, and the findings of all of them
of_plan, of_groups, of_rest   which rules these are, by kind of document
asked         policy and ages that a file is held against, and the files that it names
rewards       seconds of scoring that nobody measured
memory        what a job's plan asks of its profile: layouts that were measured, memory that holds
groups_state  what a plan of groups asks of its workload's jobs as they are now
"""
