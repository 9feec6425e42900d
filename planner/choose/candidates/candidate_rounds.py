"""Candidate rounds: how many prompts and samples short and long rounds issue, where mode exact cuts short ones, and the
limits of over-issue and of the data.

Over-issue makes a round fast, because it need not wait for its slowest groups, and it wastes what the others decode.
Time per trained sample does not show the waste as long as decoding is bound by memory, so the job limits it
(`search.max_over_issue`), and that leaves some modes no candidate.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import astuple

import numpy as np

from ....plans.schema.job import Job
from ....plans.schema.levers import EngineLayout, SearchCutoff
from ....plans.yaml.errors import Infeasible
from ....rounds.round_spec import Mode, QueueRule, prompts_wanted
from ...lengths.length_model import LengthModel
from .pool_choice import Unplannable
from .round_kinds import DeferralRule, LongKey, ShortKey

# Candidate cutoffs of mode exact: lengths that some groups of samples end within and others do not.

# Quantiles of the longest sample of a group to cut at.
CUTOFF_LEVELS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97)

# Cutoffs are rounded to this many tokens: a plan should not change with the last token of a trace.
CUTOFF_GRAIN_TOKENS = 8

LEAST_SHORT = 0.2
"""Least share of the groups that end within a cutoff, for its short rounds to train enough of what they issue."""


def cutoffs(
    model: LengthModel, group_size: int, cap_tokens: int, bounds: SearchCutoff | None = None
) -> tuple[int, ...]:
    """Cutoffs to try: rounded quantiles of a group's longest sample, below the cap, with short groups to train.

    `bounds`: of the job; only quantiles within them are tried, and the bounds themselves. Raises Unplannable if no
    cutoff within them can be planned.
    """
    raw = model.group_max_quantiles(group_size, CUTOFF_LEVELS)
    grain = CUTOFF_GRAIN_TOKENS
    tried = {max(1, min(round(c / grain) * grain, cap_tokens - 1)) for c in raw if c < cap_tokens}
    if bounds is not None:
        tried = {c for c in tried | {bounds.min, bounds.max or cap_tokens - 1} if bounds.holds(c) and c < cap_tokens}
    plannable = tuple(c for c in sorted(tried) if LEAST_SHORT <= model.short_groups(c, group_size) < 1.0)
    if bounds is not None and not plannable:
        raise Unplannable("job", ("search", "cutoff_tokens"), _out_of_reach(model, group_size, cap_tokens, bounds))
    return plannable


def cutoffs_between(tried: Sequence[int], parts: int) -> list[int]:
    """Rounded cutoffs that divide the tokens between each two neighbours of `tried` into `parts`; none of `tried`."""
    grain, between = CUTOFF_GRAIN_TOKENS, set()
    for low, high in itertools.pairwise(tried):
        between |= {round((low + (high - low) * part / parts) / grain) * grain for part in range(1, parts)}
    return sorted(cutoff for cutoff in between if tried[0] < cutoff < tried[-1] and cutoff not in tried)


def _out_of_reach(model: LengthModel, group_size: int, cap_tokens: int, bounds: SearchCutoff) -> str:
    """Text on why no cutoff within the job's bounds can be planned, and which cutoffs can."""
    lengths = range(1, cap_tokens)
    least = bisect_left(lengths, LEAST_SHORT, key=lambda c: model.short_groups(c, group_size))
    most = bisect_left(lengths, 1.0, key=lambda c: model.short_groups(c, group_size))
    stated = f"{bounds.min} to {cap_tokens - 1 if bounds.max is None else bounds.max}"
    if bounds.min == bounds.max:
        stated = str(bounds.min)
    if least >= most:
        return f"is {stated}, and {no_cutoff(model, group_size, cap_tokens)}"
    return (
        f"is {stated}, and by the length trace at least {LEAST_SHORT:.0%} of the groups, but not all, end within a "
        f"cutoff of {lengths[least]} to {lengths[most - 1]} tokens; write bounds that hold some of these"
    )


def no_cutoff(model: LengthModel, group_size: int, cap_tokens: int) -> str:
    """Text on why mode exact has no cutoff to try."""
    ended = model.short_groups(cap_tokens - 1, group_size)
    if ended < LEAST_SHORT:
        why = f"{f'only {ended:.0%}' if ended else 'none'} of the groups end below the cap of {cap_tokens} tokens"
        remedy = "raise rollout.max_response_tokens"
    else:
        why = "the groups of the length trace are all about equally long"
        remedy = "give a length trace of more prompts"
    return (
        f"mode exact finds no cutoff that some groups end within and others do not: {why}; {remedy}, or plan mode sync"
    )


# The supply of prompts: whether the data has enough for rounds that take others in place of groups they do not train.
#
# Rounds are simulated on prompts without end. A data set is finite: a round that has put off or filtered every prompt
# that was free ends with fewer than P groups, which a plan's predictions do not know of.

# Below this share no caution is given: its figure would be a guess, and the data is far too small anyway.
_LEAST_ACCEPTED = 1e-3


def accepted_share(model: LengthModel, cutoff_tokens: int | None, group_size: int, dynamic_sampling: bool) -> float:
    """Share of the groups issued by short rounds that these may train, in (0, 1], over the traced prompts."""
    share = np.ones(len(model.prompt_ids))
    if cutoff_tokens is not None:
        share = model.groups_within(cutoff_tokens, group_size)
    if dynamic_sampling:
        share = share * model.mixed_groups(group_size)
    return max(_LEAST_ACCEPTED, float(share.mean()))


def few_for_refills(
    model: LengthModel,
    key: ShortKey,
    target: int,
    group_size: int,
    dynamic_sampling: bool,
    prompts: int,
    queue: int | None = None,
) -> str | None:
    """A caution where the `prompts` of the data are too few for every step to train `target` groups; None if all but a
    few in a thousand do. `queue`: Q, where long rounds are by queue."""
    accepted = accepted_share(model, key.cutoff_tokens, group_size, dynamic_sampling)
    wanted = prompts_wanted(key.mode, target, key.prompts, key.long_share, accepted, queue)
    if prompts >= wanted:
        return None
    return (
        f"the data has {prompts} prompts, and short rounds want up to {wanted}: they train {accepted:.0%} of the "
        f"groups and take further prompts in the place of the others; some steps may train fewer than {target} groups, "
        "and the predictions do not include this; add prompts, or lower rollout.prompts_per_step"
    )


# Candidate long rounds: by queue or by waves, on which engines, with which levers.

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
    prompts: int | None,
) -> list[LongKey]:
    """The long rounds of the deferral rules on each of the layouts; `hands_over`: those of which half may train early;
    `prompts`: of the data, None for as many as any round wants."""
    layouts, drafted = list(layouts), list(drafted)
    keys = [
        LongKey(rule, copies, layout, tokens, share, queue=queue)
        for rule in rules
        for copies, queue in _long_issues(job, model, rule, prompts)
        for layout in layouts
        for tokens in (0, *(g for key, g in drafted if key == layout))
        for share in (0.0, *(job.search.hand_over if layout in hands_over else ()))
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


def _long_issues(
    job: Job, model: LengthModel, rule: DeferralRule, prompts: int | None
) -> list[tuple[int, tuple[int, ...]]]:
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
    short = model.groups_within(rule.cutoff_tokens, group_size)
    waiting, rounds, ages = 1.0 - short, 0.0, QueueRule(target)
    for age in range(ages.until_long_after + 1):
        rounds += float(waiting.sum())
        waiting = waiting * short ** ages.copies(age)
    rounds /= max(float((1.0 - short).sum()), 1e-12)
    return QueueRule(math.ceil(rounds * (target + QUEUE_SPARE * math.sqrt(target))))


# Over-issue of prompts and of samples. RollPacker's sweep (arXiv 2509.21009) has 1, 1.125, 1.25, 1.5 for both.
PROMPT_FACTORS = (1.0, 1.0625, 1.125, 1.25, 1.5)
SAMPLE_FACTORS = (1.0, 1.125, 1.25, 1.5)
# Prompts issued in `exact` beyond the P / P(accepted) that are needed on average, in standard deviations of that count
# (negative binomial). Fewer mean refills, each of which lasts as long as a row, more mean waste: steps of 16, 128 and
# 512 prompts are fastest with 1.5 to 3, and with the best of these at most 1 % slower.
ROW_DEVIATIONS = (0.5, 1.5, 2.5)
# Share of the prompts, those with the longest history, that get long rounds in `predict`.
LONG_SHARES = (0.1, 0.2, 0.3, 0.5)


def short_keys(
    job: Job, model: LengthModel, modes: Sequence[Mode], layouts: Iterable[EngineLayout], prompts: int | None
) -> tuple[list[ShortKey], list[str]]:
    """(candidate short rounds of `modes` on each of `layouts`, sorted; why modes have none).

    `prompts`: how many the data set holds, None for as many as any round wants. Raises Infeasible if a forced mode has
    no candidate; then `modes` are sync and that mode.
    """
    target, size = job.rollout.prompts_per_step, job.rollout.samples_per_prompt
    most, forced, layouts, refused = job.search.max_over_issue, len(modes) == 2, list(layouts), []
    issues = _short_issues(job, model, modes, layouts[0])
    allowed = {key for key in issues if over_issue(key.prompts, key.samples, target, size) <= most}
    keys = [key._replace(layout=layout) for key in allowed for layout in layouts]
    wasteful = too_wasteful(issues, allowed, target, size, most)
    if wasteful is not None:
        if forced and not any(key.mode == modes[-1] for key in keys):
            raise Infeasible(f"{wasteful}; raise it, or plan mode sync")
        refused.append(wasteful)
    if prompts is not None:
        keys, too_few = _with_prompts(keys, target, prompts)
        if too_few is not None:
            if forced:
                raise Infeasible(f"{too_few}; add prompts, or plan mode sync")
            refused.append(too_few)
    return sorted(keys), refused


def _short_issues(job: Job, model: LengthModel, modes: Sequence[Mode], layout: EngineLayout) -> set[ShortKey]:
    """The short rounds of `modes` on one layout, without the limit on waste."""
    target, size = job.rollout.prompts_per_step, job.rollout.samples_per_prompt
    issued = sorted({round(target * f) for f in PROMPT_FACTORS} | {target + 1})
    samples = sorted({round(size * f) for f in SAMPLE_FACTORS} | {size + 1})
    issues: set[ShortKey] = set()
    if "sync" in modes:
        issues.add(ShortKey("sync", target, size, None, layout))
    if "predict" in modes:
        issues |= {ShortKey("predict", target, size, None, layout, share) for share in LONG_SHARES}
    if "race" in modes:
        issues |= {ShortKey("race", p, n, None, layout) for p in issued for n in samples if n > size}
    if "defer" in modes:
        issues |= {ShortKey("defer", p, size, None, layout) for p in issued if p > target}
    if "exact" in modes:
        tried = cutoffs(model, size, job.rollout.max_response_tokens, job.search.cutoff_tokens)
        if not tried and len(modes) == 2:
            raise Infeasible(no_cutoff(model, size, job.rollout.max_response_tokens))
        for cutoff_tokens in tried:
            # By all that a filter leaves of the short groups, and, where that is too many to issue, by these alone.
            for filters in {False, job.algorithm.dynamic_sampling}:
                accepted = accepted_share(model, cutoff_tokens, size, filters)
                scatter = math.sqrt(target * (1.0 - accepted))
                rows = {math.ceil((target + k * scatter) / accepted) for k in ROW_DEVIATIONS}
                issues |= {ShortKey("exact", prompts, size, cutoff_tokens, layout) for prompts in rows}
    return issues


def _with_prompts(keys: Sequence[ShortKey], target: int, prompts: int) -> tuple[list[ShortKey], str | None]:
    """(rounds that a data set of `prompts` prompts is enough for, why some modes have none; None if all have one)."""
    wanted = {key: prompts_wanted(key.mode, target, key.prompts, key.long_share) for key in keys}
    supplied = [key for key in keys if wanted[key] <= prompts]
    gone = {key.mode for key in keys} - {key.mode for key in supplied}
    if not gone:
        return supplied, None
    least = {mode: min(count for key, count in wanted.items() if key.mode == mode) for mode in sorted(gone)}
    needs = ", ".join(f"{mode} {count}" for mode, count in least.items())
    return supplied, f"the data has {prompts} prompts; a round's and those that wait for another are at least: {needs}"


def over_issue(prompts: int, samples: int, target: int, group_size: int) -> float:
    """Samples that a round of `prompts` x `samples` issues at its start for each of the `target` x `group_size` that it
    trains."""
    return prompts * samples / (target * group_size)


def too_wasteful(
    issues: Iterable[ShortKey], allowed: Iterable[ShortKey], target: int, group_size: int, most: float
) -> str | None:
    """Why `search.max_over_issue` (`most`) leaves some modes without a short round; None if every mode keeps one.

    `issues`: of all short rounds; `allowed`: of those within the limit.
    """
    kept = {key.mode for key in allowed}
    least: dict[Mode, float] = {}
    for key in issues:
        if key.mode not in kept:
            issued = over_issue(key.prompts, key.samples, target, group_size)
            least[key.mode] = min(issued, least.get(key.mode, issued))
    if not least:
        return None
    needs = ", ".join(f"{mode} {value:.3g}" for mode, value in sorted(least.items()))
    return f"search.max_over_issue is {most:g}, and these modes issue at least so many times what they train: {needs}"
