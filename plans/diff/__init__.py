"""The difference of two plans by meaning, for review.

change          figures and trees of values that differ          error     how uncertain a difference is
inputs          what changed in the files that plans come from   matching  which group is which
jobs, groups    Plan, Plan -> PlanDiff; GroupsPlan, GroupsPlan -> GroupsDiff
job_report, groups_report, alone        what is said about it, as a `Report`
markdown, text  a `Report` for a pull request, for a terminal
"""
