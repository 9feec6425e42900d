"""The decisions of a schedule: for each its key in the plan, its value in a cycle, and its text for a reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ...plans.facts.plan_text import update_text
from ...plans.phrases.numbers import count
from ...plans.schema.levers import UpdateLayout
from ...plans.schema.predicted import PredictedPhases
from ..choose.candidate_search import Search
from ..choose.candidates.round_kinds import LongKey, ShortKey
from ..choose.cycle_cost import Cycle
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


Value = Callable[[Cycle], Any]
Text = Callable[[Cycle], str]


def decisions(search: Search, mode: str, deferring: bool) -> list[tuple[str, Value, Text]]:
    """(plan key, its value in a cycle, its text) of each decision that schedules of `mode` make.

    `deferring`: whether the schedule has long rounds.
    """
    trains, drafted = search.space.train, bool(search.space.drafted)
    hands_over = any(key.hand_over for key in search.space.long)
    balances = [any(key.balanced for key in keys) for keys in (search.short, search.long)]
    has_tail = any(key.tail for key in search.space.long)

    def short(c: Cycle) -> ShortKey:
        return cast(ShortKey, c.short.key)

    def of_long(read: Callable[[LongKey], Any], text: Callable[[LongKey], str]) -> tuple[Value, Text]:
        # A race over samples only has no long rounds; it is an alternative to a race over prompts.
        def key(c: Cycle) -> LongKey | None:
            return cast(LongKey, c.long.key) if c.long else None

        return (
            lambda c: None if (long := key(c)) is None else read(long),
            lambda c: "no long rounds" if (long := key(c)) is None else text(long),
        )

    table: list[tuple[bool, str, tuple[Value, Text]]] = [
        (
            mode != "sync",
            "rounds.short.issue.prompts",
            (lambda c: short(c).prompts, lambda c: f"{short(c).prompts} prompts issued"),
        ),
        (
            mode == "race",
            "rounds.short.issue.samples",
            (lambda c: short(c).samples, lambda c: f"{short(c).samples} samples a prompt"),
        ),
        (
            mode == "exact",
            "rounds.short.cutoff_tokens",
            (lambda c: short(c).cutoff_tokens, lambda c: f"cutoff {short(c).cutoff_tokens} tokens"),
        ),
        (
            drafted,
            "rounds.short.rollout.drafts",
            (lambda c: short(c).draft_tokens, lambda c: f"short rounds {_drafts(short(c).draft_tokens)}"),
        ),
        (
            balances[0],
            "rounds.short.rollout.balance",
            (lambda c: short(c).balanced, lambda c: f"short rounds {_balance(short(c).balanced)}"),
        ),
        (
            mode == "predict",
            "rounds.short.long_share",
            (
                lambda c: short(c).long_share,
                lambda c: f"the {100 * short(c).long_share:g}% of the prompts with the longest history in long rounds",
            ),
        ),
        (True, "rounds.short.rollout", (lambda c: c.short.layout, lambda c: f"short rounds on {c.short.layout}")),
        (
            True,
            "rounds.short.train",
            (
                lambda c: c.train,
                lambda c: f"short rounds train by {update_text(trains[c.train].layout)}",
            ),
        ),
        (deferring, "rounds.long.rollout", of_long(lambda key: key.layout, lambda key: f"long rounds on {key.layout}")),
        (
            deferring,
            "rounds.long.train",
            (lambda c: c.long_train, lambda c: f"long rounds train by {update_text(trains[c.long_train].layout)}"),
        ),
        (
            deferring and drafted,
            "rounds.long.rollout.drafts",
            of_long(lambda key: key.draft_tokens, lambda key: f"long rounds {_drafts(key.draft_tokens)}"),
        ),
        (
            deferring and balances[1],
            "rounds.long.rollout.balance",
            of_long(lambda key: key.balanced, lambda key: f"long rounds {_balance(key.balanced)}"),
        ),
        (
            deferring and hands_over,
            "rounds.long.hand_over",
            of_long(lambda key: key.hand_over, lambda key: f"long rounds {_hand_over(key)}"),
        ),
        (
            deferring and has_tail,
            "rounds.long.tail",
            of_long(lambda key: (key.tail, key.tail_tp), lambda key: f"long rounds {_tail(key)}"),
        ),
        (
            deferring and mode == "exact",
            "rounds.long.issue",
            of_long(lambda key: (key.copies, key.queue), _long_issue),
        ),
        (
            len(search.space.rewards) > 1,
            "reward",
            (lambda c: c.short.reward, lambda c: search.space.rewards[c.short.reward].text()),
        ),
    ]
    return [(key, value, text) for applies, key, (value, text) in table if applies]


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
