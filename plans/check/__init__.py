"""The rules of `rlplan check`: they check what the schema of a document cannot check.

    finding           Fault (location and message, in a document in memory), Finding (with file and line; as SARIF)
    rules             the catalogue: the name of every rule, and what the rule finds
    any_document      read a document of any kind; faults of its schema as findings
    plan_fit          whether a plan fits its inputs: its cluster, and its job or its workload; host cores, limits
    prediction_rules  whether the predictions of a plan, of a job or of groups, agree with each other
    solved_rules      whether decisions, predictions or input files were changed since the plan was solved
    site_breaches     whether a plan keeps the site rules (plans/schema/site_rules.py)
    plan_check        the checks before a plan is run, as an error

Invariants: a rule yields all its faults and never raises because of a document's content; it opens no file unless its
docstring says so. Rules that need a profile are in planner/check.
"""
