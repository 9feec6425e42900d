"""Candidate long rounds: by queue or by waves, on which engines, with which levers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple

from ....plans.schema.job import Job
from ....plans.schema.levers import EngineLayout
from ....rounds.round_spec import QueueRule
from ...lengths.length_model import LengthModel
from .round_kinds import DeferralRule, LongKey

COPIES = (1, 2)
"""Draws at once of a prompt that is drawn in waves."""

QUEUE_SPARE = 0.6
"""What a queue's round issues beyond the prompts of which P are long in the mean, in square roots of P: 99 % of P are
trained then. From 0 to 1.2 seconds for each trained prompt differ by less than 0.5 %, and likewise for one copy more
every 1 to 4 rounds."""

LEAST_EPOCH = 10
"""Times what a queue's round issues that the data must hold: what waits at an epoch's end is drawn in waves."""


def long_keys(
    job: Job,
    model: LengthModel,
    rules: Sequence[DeferralRule],
    layouts: Iterable[EngineLayout],
    drafted: Iterable[tuple[EngineLayout, int]],
    hands_over: frozenset[EngineLayout],
    hand_over: Sequence[float],
    prompts: int | None,
) -> list[LongKey]:
    """The long rounds of the deferral rules on each of the layouts; `hands_over`: those of which half may train early,
    at the shares `hand_over`; `prompts`: of the data, None for as many as any round wants."""
    layouts, drafted = list(layouts), list(drafted)
    keys = [
        LongKey(rule, copies, layout, tokens, share, queue=queue)
        for rule in rules
        for copies, queue in _issues(job, model, rule, prompts)
        for layout in layouts
        for tokens in (0, *(g for key, g in drafted if key == layout))
        for share in (0.0, *(hand_over if layout in hands_over else ()))
    ]
    return keys + [
        tailed
        for key in keys
        if not key.hand_over
        for share in job.search.tail
        for tp in sorted(
            {other.tp for other in layouts if key.layout.tp < other.tp <= key.layout.engines * key.layout.tp}
        )
        if (tailed := key._replace(tail=share, tail_tp=tp)).tail_layout in layouts
    ]


def _issues(job: Job, model: LengthModel, rule: DeferralRule, prompts: int | None) -> list[tuple[int, tuple[int, ...]]]:
    """(copies, queue) of the long rounds of a rule."""
    if rule.mode != "exact":
        return [(1, ())]
    waves: list[tuple[int, tuple[int, ...]]] = [(c, ()) for c in COPIES if c <= job.search.max_over_issue]
    target = job.rollout.prompts_per_step
    most = math.inf if prompts is None else prompts / LEAST_EPOCH
    queue = queue_rule(model, rule, job.rollout.samples_per_prompt, target)
    return waves + [(1, astuple(queue))] * (queue.prompts <= most)


def queue_rule(model: LengthModel, rule: DeferralRule, group_size: int, target: int) -> QueueRule:
    """How long rounds by queue issue what such short rounds defer.

    In the steady state a round trains as many prompts as come in, so by Little's law the queue holds `target` times the
    mean number of rounds that draw a prompt until one of its draws is long; that number of long draws scatters, so some
    more are issued.
    """
    assert rule.cutoff_tokens is not None, "mode exact has one"
    short = (1.0 - model.share_beyond(rule.cutoff_tokens)) ** group_size
    waiting, rounds, ages = 1.0 - short, 0.0, QueueRule(target)
    for age in range(ages.until_long_after + 1):
        rounds += float(waiting.sum())
        waiting = waiting * short ** ages.copies(age)
    rounds /= max(float((1.0 - short).sum()), 1e-12)
    return QueueRule(math.ceil(rounds * (target + QUEUE_SPARE * math.sqrt(target))))
