"""The decisions of a schedule: for each its key in the plan, its value in a cycle, its text for a reader, and its next
best alternative."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...plans.facts.plan_text import update_text
from ...plans.phrases.numbers import count
from ...plans.phrases.sentences import PHASE_NAMES, TIE_PERCENT, Alternative
from ...plans.schema.levers import UpdateLayout
from ...plans.schema.predicted import PredictedPhases
from ..choose.candidate_search import Search
from ..choose.candidates.round_kinds import LongKey, ShortKey
from ..choose.cycle_cost import Cycle, make_cycle
from ..costs.colocation import shares_gpus, sleep_and_wake_s, state_moves_s
from ..costs.decode_costs import DecodeCost

# What pools of their own for engines and trainers cost and save in a schedule.


def placement_text(search: Search, cycle: Cycle, phases: PredictedPhases) -> str | None:
    """Text on pools of their own for engines and trainers, beside taking turns; None where they take turns."""
    if search.space.train_pool is None:
        return None
    nodes, step_s = cycle.taken(search.limits), phases.rollout + phases.reward_exposed + phases.train + phases.sync
    text = (
        f"engines on {count(nodes.rollout, 'node')} of pool '{search.space.pool}', trainers on "
        f"{count(nodes.train, 'node')} of pool '{search.space.train_pool}'; in the mean step engines idle "
        f"{100 * (phases.train + phases.reward_exposed) / step_s:.0f}% and trainers "
        f"{100 * (phases.rollout + phases.reward_exposed) / step_s:.0f}% of the time"
    )
    if not shares_gpus(search.space.profile):
        return text
    kinds = _kinds(search, cycle)
    turns = max(sleep_and_wake_s(search.space.profile, cost.key.tp) for cost, _ in kinds)
    moves = max(state_moves_s(search.space.profile, layout) for _, layout in kinds)
    return f"{text}; on one pool, turns would take {turns + moves:.2g} s of each step (sleep, wake, optimizer states)"


def _kinds(search: Search, cycle: Cycle) -> list[tuple[DecodeCost, UpdateLayout]]:
    """Engines and trainers of the schedule's kinds of round, short first."""
    space = search.space
    kinds = [(space.decode[cycle.short.layout], space.train[cycle.train].layout)]
    if cycle.long is not None:
        kinds.append((space.decode[cycle.long.layout], space.train[cycle.long_train].layout))
    return kinds


class ScheduleDecision(NamedTuple):
    """A decision of a schedule: its key in the plan, and of a cycle its value and its text."""

    key: str
    value: Callable[[Cycle], Any]
    text: Callable[[Cycle], str]


def decisions(search: Search, mode: str, deferring: bool) -> list[ScheduleDecision]:
    """The decisions that schedules of `mode` make; `deferring`: whether the schedule has long rounds."""
    made, rewards = list(_of_short_rounds(search, mode)), search.space.rewards
    if deferring:
        made += _of_long_rounds(search, mode)
    if len(rewards) > 1:
        made.append(ScheduleDecision("reward", lambda c: c.short.reward, lambda c: rewards[c.short.reward].text()))
    return made


def _of_short_rounds(search: Search, mode: str) -> Iterator[ScheduleDecision]:
    def decision(key: str, read: Callable[[ShortKey], Any], text: Callable[[ShortKey], str]) -> ScheduleDecision:
        return ScheduleDecision(f"rounds.short.{key}", lambda c: read(c.short.key), lambda c: text(c.short.key))

    train = search.space.train
    if mode != "sync":
        yield decision("issue.prompts", lambda short: short.prompts, lambda short: f"{short.prompts} prompts issued")
    if mode == "race":
        yield decision("issue.samples", lambda short: short.samples, lambda short: f"{short.samples} samples a prompt")
    if mode == "exact":
        yield decision(
            "cutoff_tokens", lambda short: short.cutoff_tokens, lambda short: f"cutoff {short.cutoff_tokens} tokens"
        )
    if search.space.drafted:
        yield decision(
            "rollout.drafts",
            lambda short: short.draft_tokens,
            lambda short: f"short rounds {_drafts(short.draft_tokens)}",
        )
    if any(key.balanced for key in search.short):
        yield decision(
            "rollout.balance", lambda short: short.balanced, lambda short: f"short rounds {_balance(short.balanced)}"
        )
    if mode == "predict":
        yield decision(
            "long_share",
            lambda short: short.long_share,
            lambda short: f"the {100 * short.long_share:g}% of the prompts with the longest history in long rounds",
        )
    yield decision("rollout", lambda short: short.layout, lambda short: f"short rounds on {short.layout}")
    yield ScheduleDecision(
        "rounds.short.train",
        lambda c: c.train,
        lambda c: f"short rounds train by {update_text(train[c.train].layout)}",
    )


def _of_long_rounds(search: Search, mode: str) -> Iterator[ScheduleDecision]:
    def decision(key: str, read: Callable[[LongKey], Any], text: Callable[[LongKey], str]) -> ScheduleDecision:
        # A race over samples only has no long rounds; it is an alternative to a race over prompts.
        return ScheduleDecision(
            f"rounds.long.{key}",
            lambda c: read(c.long.key) if c.long else None,
            lambda c: text(c.long.key) if c.long else "no long rounds",
        )

    space = search.space
    yield decision("rollout", lambda long: long.layout, lambda long: f"long rounds on {long.layout}")
    yield ScheduleDecision(
        "rounds.long.train",
        lambda c: c.long_train,
        lambda c: f"long rounds train by {update_text(space.train[c.long_train].layout)}",
    )
    if space.drafted:
        yield decision(
            "rollout.drafts", lambda long: long.draft_tokens, lambda long: f"long rounds {_drafts(long.draft_tokens)}"
        )
    if any(key.balanced for key in search.long):
        yield decision(
            "rollout.balance", lambda long: long.balanced, lambda long: f"long rounds {_balance(long.balanced)}"
        )
    if any(key.hand_over for key in space.long):
        yield decision("hand_over", lambda long: long.hand_over, lambda long: f"long rounds {_hand_over(long)}")
    if any(key.tail for key in space.long):
        yield decision("tail", lambda long: (long.tail, long.tail_tp), lambda long: f"long rounds {_tail(long)}")
    if mode == "exact":
        yield decision("issue", lambda long: (long.copies, long.queue), _long_issue)


def _long_issue(key: LongKey) -> str:
    if key.queue_rule is not None:
        return f"long rounds by queue of {key.queue_rule.prompts} prompts"
    return f"long rounds by waves, {key.copies} cop{'y' if key.copies == 1 else 'ies'} at once"


def _drafts(tokens: int) -> str:
    return f"with drafts of {tokens} tokens" if tokens else "without drafts"


def _balance(balanced: bool) -> str:
    return "start the longest expected samples first" if balanced else "start samples in order, by count"


def _hand_over(key: LongKey) -> str:
    if not key.hand_over:
        return "keep all engines to their end"
    return f"free {key.freed_engines} of {key.layout.engines} engines at {100 * key.hand_over:g}% of the samples"


def _tail(key: LongKey) -> str:
    if key.tail_layout is None:
        return "decode their tail on the same engines"
    return f"decode their tail, from {100 * key.tail:g}% of the samples on, on {key.tail_layout}"


# What the best schedule costs that decides otherwise.


def alternatives(search: Search, cycle: Cycle) -> dict[str, str]:
    """By decision of the schedule, what the best schedule that decides otherwise would cost."""
    why, mode = {}, cycle.short.deferral.mode
    cycles = [*search.cycles(), *_other_updates(search, cycle)]
    same_mode = [c for c in cycles if c.short.deferral.mode == mode and not c.violations(search.limits)]
    made = decisions(search, mode, cycle.long is not None)
    for decision in made:
        alternative = _alternative(search, same_mode, cycle, decision)
        if alternative is not None:
            kept = all(other.value(alternative) == other.value(cycle) for other in made if other is not decision)
            rest = "kept" if kept else "chosen anew"
            why[decision.key] = _compare(search, cycle, alternative, decision, rest)
        elif len({decision.value(c) for c in cycles if c.short.deferral.mode == mode}) > 1:
            why[decision.key] = f"{decision.text(cycle)}: every other choice breaks a limit of the plan"
    return why


def _other_updates(search: Search, cycle: Cycle) -> list[Cycle]:
    """The chosen schedule with each other update of either kind of round; the search lists only the best updates."""
    trains = range(len(search.space.train))
    pairs = [(m, cycle.long_train if cycle.long else m) for m in trains]
    pairs += [(cycle.train, w) for w in trains if cycle.long]
    return [make_cycle(cycle.short, cycle.long, m, w, search.limits) for m, w in pairs]


def _alternative(search: Search, cycles: list[Cycle], chosen: Cycle, decision: ScheduleDecision) -> Cycle | None:
    differing = [c for c in cycles if decision.value(c) != decision.value(chosen)]
    # Schedules with few rounds are used only if there are no others: few rounds flatter a schedule.
    solid = [c for c in differing if c.short.rounds >= search.passes[-1].short_rounds]
    return min(solid or differing, key=lambda c: (c.cost(search.limits), c.name), default=None)


def _compare(search: Search, chosen: Cycle, other: Cycle, decision: ScheduleDecision, rest: str) -> str:
    # On as many rounds as both have, which are on the same draws.
    short = min(chosen.short.rounds, other.short.rounds)
    long = min(c.long.rounds if c.long else 1 for c in (chosen, other))
    ours = search.phase_seconds(chosen, short, long)
    theirs = search.phase_seconds(other, short, long)
    total = sum(ours.values())
    price = other.cost(search.limits) / other.seconds_per_sample(search.limits.group_size)
    price /= chosen.cost(search.limits) / chosen.seconds_per_sample(search.limits.group_size)
    change = 100 * (price * sum(theirs.values()) / total - 1)
    moved = max(ours, key=lambda phase: abs(theirs[phase] - ours[phase]))
    where = f"{PHASE_NAMES[moved]} {100 * (theirs[moved] - ours[moved]) / total:+.1f}%"
    nodes, instead = other.nodes(search.limits), chosen.nodes(search.limits)
    if search.limits.objective == "usd" and nodes != instead:
        # A schedule that is as fast costs more for the nodes that it takes, which no phase tells.
        where = f"takes {nodes} node{'s' * (nodes != 1)} instead of {instead}"
    tie = abs(change) < TIE_PERCENT
    alternative = Alternative(
        chosen=decision.text(chosen),
        next_best=decision.text(other),
        percent=None if tie else change,
        rough=short < search.passes[-1].short_rounds,
        unit="cost" if search.limits.objective == "usd" else "time",
        where=where,
        rest="" if tie else rest,
    )
    return alternative.text()
