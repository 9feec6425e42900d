"""Re-plans of groups that run, for their driver: solved from what was measured, and allowed by the policy or not."""

from __future__ import annotations

from pathlib import Path

from ...executor.groups.bound_driver import Proposed, ReplanInputs


def write_replan(given: ReplanInputs, path: Path) -> Proposed:
    """Write a re-plan to a path. Raises InputError, Infeasible."""
    from ...planner.groups.propose_replan import propose_replan
    from ...plans.check.plan_check import input_path
    from ...plans.diff.groups_diff import diff_groups
    from ...plans.diff.input_diff import InputFiles
    from ...plans.facts.auto_apply import may_apply
    from ...plans.schema.groups_plan import load_groups_plan
    from ...plans.schema.site_rules import find_site_rules, load_site_rules
    from ...plans.yaml.yaml_io import dump, sha256_file

    running = load_groups_plan(given.running)
    workload = input_path(running.inputs.workload, given.plan)
    proposal = propose_replan(workload, given.running, path, given.turns, given.ahead_s, given.ended)
    dump(proposal.plan, path)
    rules = find_site_rules(given.plan)
    policy = None if rules is None else load_site_rules(rules)
    files = InputFiles(given.plan.parent), InputFiles(path.parent)
    diff = diff_groups(running, proposal.plan, *files, old_sha256=sha256_file(given.running))
    permission = may_apply(policy, diff, given.hours_since, given.ended)
    moves = proposal.moves
    return Proposed(path, len(moves), sum(move.price_s for move in moves), permission.given, permission.reason)
