"""The difference of two plans by meaning, for review.

change                        figures and trees of values that differ, and their text
difference_error              the uncertainty of a difference
input_diff                    changes in the files that the plans were solved from
job_diff, groups_diff         Plan, Plan -> PlanDiff; GroupsPlan, GroupsPlan -> GroupsDiff
job_report, groups_report     the `Report` on a difference, or on a plan that was added or removed
review                        `Report`: title, tables, remarks; what both kinds share; markdown for a pull request
auto_apply                    whether a re-plan of groups may be made without asking
"""
