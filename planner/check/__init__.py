"""`rlplan check`: the rules of plans/check, and beside them those that need a profile or a workload's jobs.

checker          the findings of all rules on a file, without those that an edit or a changed input explains
check_options    site rules and ages that a file is checked against, and the documents that it names
plan_rules, group_rules, job_rules, profile_rules   rules by kind of document
accelerator_rules, memory_rules, reward_rules       rules by subject
"""
