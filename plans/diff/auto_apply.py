"""Whether a re-plan of running groups may be made without asking a person: only as far as the policy allows it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..check.site_breaches import group_breaches
from ..phrases.numbers import count, seconds, usd
from ..phrases.sentences import listed
from ..schema.site_rules import AutoApply, SiteRulesFile
from .groups_diff import GroupsDiff

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Permission:
    """Whether a re-plan may be made without asking.

    Attributes:
        given: whether it may.
        reason: the limits that it keeps, or everything that stands against it, in one line.
    """

    given: bool
    reason: str


def may_apply(
    policy: SiteRulesFile | None, diff: GroupsDiff, hours_since: float | None, ended: Collection[str] = ()
) -> Permission:
    """Return whether the policy allows to make the new plan of a difference without asking a person.

    Args:
        policy: the site rules; None: there are none, and nothing is allowed.
        diff: from the plan that runs to the new plan, made with the digest of the running plan.
        hours_since: hours since the last re-plan that was made without asking; None: there was none.
        ended: jobs of the running plan that do not run any more, which a re-plan leaves out.
    """
    if policy is None:
        return Permission(False, "no rlplan.policy.yaml allows it")
    limits = policy.rules.auto_apply
    if limits is None:
        return Permission(False, f"{policy.path} has no auto_apply")
    if against := [*_not_a_replan(diff, ended), *_beyond(limits, policy, diff, hours_since), *_breaches(policy, diff)]:
        return Permission(False, "; ".join(against))
    moves = diff.new.moves
    return Permission(
        True,
        f"{policy.place('auto_apply')} allows {count(len(moves), 'move')} of "
        f"{seconds(sum(move.price_s for move in moves))}",
    )


def _not_a_replan(diff: GroupsDiff, ended: Collection[str]) -> Iterator[str]:
    """Differences that no re-plan makes, and plans that cannot be trusted."""
    if not diff.new.moves:
        yield "it moves no job"
    if diff.moves_from_old is not True:
        yield "it was not solved from the plan that runs"
    if "new" in diff.edited or "new" in diff.figures_edited:
        yield "it was edited after it was solved"
    for name in ("workload", "cluster"):
        if getattr(diff.old.inputs, name).sha256 != getattr(diff.new.inputs, name).sha256:
            yield f"its {name} was edited since the running plan was solved"
    if diff.rules:
        yield f"it changes rules: {listed(change.key for change in diff.rules)}"
    for status, what in (("arrived", "come with it"), ("left", "go with it")):
        if names := [job.name for job in diff.jobs if job.status == status and job.name not in ended]:
            yield f"{listed(names)} {what}"
    if silent := [job.name for job in diff.jobs if job.status in ("moved", "other nodes") and job.move is None]:
        yield f"{listed(silent)} would change nodes without a move"
    if broken := [job.name for job in diff.jobs if job.breaks_bound]:
        yield f"{listed(broken)} would break bounds"


def _beyond(limits: AutoApply, policy: SiteRulesFile, diff: GroupsDiff, hours_since: float | None) -> Iterator[str]:
    """Limits of `auto_apply` that the re-plan exceeds."""
    moves = diff.new.moves

    def line(key: str, text: str) -> str:
        place = f"{policy.path}:{policy.document.line_of(('auto_apply', key))}"
        value = getattr(limits, key)
        return f"{text}; {place} has {key}: {'null' if value is None else f'{value:.6g}'}"

    if len(moves) > limits.most_moves:
        yield line("most_moves", f"it moves {count(len(moves), 'job')}")
    price_s = sum(move.price_s for move in moves)
    if price_s > limits.most_price_s * (1 + _TOLERANCE):
        yield line("most_price_s", f"its moves cost {seconds(price_s)}")
    more = diff.new.predicted.plan.usd_per_hour - diff.old.predicted.plan.usd_per_hour
    if more > limits.most_usd_per_hour_more + _TOLERANCE:
        yield line("most_usd_per_hour_more", f"it costs {usd(more)} USD an hour more")
    if moves and not any(move.needed for move in moves):
        least = limits.least_gain_usd_per_hour
        if least is None or -more < least * (1 - _TOLERANCE):
            yield line("least_gain_usd_per_hour", f"no bound needs it, and it saves {usd(max(0.0, -more))} USD an hour")
    if hours_since is not None and hours_since < limits.least_hours_between:
        yield line("least_hours_between", f"the last was made {hours_since:.2f} hours ago")


def _breaches(policy: SiteRulesFile, diff: GroupsDiff) -> Iterator[str]:
    """Other keys of the policy that the new plan breaks."""
    for fault in group_breaches(diff.new, policy):
        yield f"{fault.key} {fault.message}"
