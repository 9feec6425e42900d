"""The rules of `rlplan check`: they check what the schema of a document cannot check.

    finding           Fault (location and message, for a document in memory), Finding (a fault with file and line)
    rules             the catalogue: the name of every rule, and what the rule finds
    any_document      read a document of any kind; faults of its schema as findings
    input_rules       the files that a plan was solved from: missing or changed
    plan_fit          whether a plan fits its cluster and its job, so that a run can start
    resource_rules    host cores, model splits, limits of the search and the job's SLO
    prediction_rules  whether a plan's predictions agree with each other
    solved_rules      whether the decisions and predictions were edited, and which version of rlplan solved the plan
    groups_fit        whether a plan of groups fits its cluster and its workload, and agrees with itself
    site_breaches     whether a plan keeps the site rules (plans/schema/site_rules.py)
    plan_check        the checks before a plan is run, as an error
    annotations       findings for GitHub and as SARIF

Invariants: a rule yields all its faults and never raises because of a document's content; it opens no file unless its
docstring says so. Rules that need a profile are in planner/check.
"""
