"""`rlplan check`: the rules of plans/checks, and beside them those that need a profile or a workload's jobs.

checker          every rule that holds for a file, and the findings of all of them
plan_rules, group_rules, document_rules   which rules these are, by kind of document
check_options    policy and ages that a file is held against, and the files that it names
reward_rules     seconds of scoring that nobody measured
memory_rules     what a job's plan asks of its profile: layouts that were measured, memory that holds
accelerator_rules accelerators of a kind, or with more memory, that none of their name has
stale_figures    findings that are left out, since an edit or a change that is found makes their figures of others
state_rules      what a plan of groups asks of its workload's jobs as they are now
"""
