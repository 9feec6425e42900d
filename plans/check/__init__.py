"""Rules that documents are held to, beyond what their models refuse; `rlplan check` runs all of them.

    finding       Fault (where and what, of a document in memory), Finding (the same with file and line)
    rules         the catalogue: every rule by name, and what it finds
    documents     read any document; faults of its schema as findings
    inputs        whether the files that a plan was solved from are there and the same
    fit           whether a plan fits its cluster and its job: what nothing can be started without
    resources     whether it is wise beside that: cores, updates that the model can be split for, prices, limits
    predictions   whether a plan's predictions agree with each other
    solved        whether its decisions are those that were solved, and by which rlplan
    groups        whether a plan of groups fits its cluster and its workload, and agrees with itself
    policy_rules  whether a plan keeps a policy (plans/schema/policy.py)

Invariants: a rule yields all its faults and raises nothing for what a document may hold; it opens no file unless its
docstring says so. What needs a profile is in planner/checks.
"""
