"""`rlplan check`: the rules of plans/checks, and beside them those that need a profile or a workload's jobs.

memory        what a job's plan asks of its profile: layouts that were measured, memory that holds
groups_state  what a plan of groups asks of its workload's jobs as they are now
run           which rules hold for a file, and the findings of all of them
"""
