"""Candidate short rounds: how many prompts and samples they issue, and the limits of over-issue and of the data.

Over-issue makes a round fast, because it need not wait for its slowest groups, and it wastes what the others decode.
Time per trained sample does not show the waste as long as decoding is bound by memory, so the job limits it
(`search.max_over_issue`), and that leaves some modes no candidate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ....plans.schema.base import Mode
from ....plans.schema.job import Job
from ....plans.schema.levers import EngineLayout
from ....plans.yaml.errors import Infeasible
from ....rounds.round_spec import prompts_wanted
from ...lengths.length_model import LengthModel
from .cutoffs import cutoffs, no_cutoff
from .prompt_supply import accepted_share
from .round_kinds import ShortKey

# Over-issue of prompts and of samples. RollPacker's sweep (arXiv 2509.21009) has 1, 1.125, 1.25, 1.5 for both.
PROMPT_FACTORS = (1.0, 1.0625, 1.125, 1.25, 1.5)
SAMPLE_FACTORS = (1.0, 1.125, 1.25, 1.5)
# Prompts issued in `exact` beyond the P / P(accepted) that are needed on average, in standard deviations of that count
# (negative binomial). Fewer mean refills, each of which lasts as long as a row, more mean waste: steps of 16, 128 and
# 512 prompts are fastest with 1.5 to 3, and with the best of these at most 1 % slower.
ROW_DEVIATIONS = (0.5, 1.5, 2.5)
# Share of the prompts, those with the longest history, that get long rounds in `predict`.
LONG_SHARES = (0.1, 0.2, 0.3, 0.5)

Issue = tuple[Mode, int, int, int | None]
"""(mode, prompts, samples, cutoff_tokens) of a short round; no cutoff but in `exact`."""


def short_keys(
    job: Job, model: LengthModel, modes: Sequence[Mode], layouts: Iterable[EngineLayout], prompts: int | None
) -> tuple[list[ShortKey], list[str]]:
    """(candidate short rounds of `modes` on each of `layouts`, sorted; why modes have none).

    `prompts`: how many the data set holds, None for as many as any round wants. Raises Infeasible if a forced mode has
    no candidate; then `modes` are sync and that mode.
    """
    target, size = job.rollout.prompts_per_step, job.rollout.samples_per_prompt
    issues, most, forced = _issues(job, model, modes), job.search.max_over_issue, len(modes) == 2
    layouts, refused = list(layouts), []
    allowed = {issue for issue in issues if over_issue(issue[1], issue[2], target, size) <= most}
    keys = [ShortKey(*issue, layout) for issue in sorted(allowed) for layout in layouts]
    if "predict" in modes:
        keys += [ShortKey("predict", target, size, None, layout, share) for share in LONG_SHARES for layout in layouts]
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


def _issues(job: Job, model: LengthModel, modes: Sequence[Mode]) -> set[Issue]:
    """The issues of short rounds of `modes`, without the limit on waste, and without mode predict, which issues as
    sync."""
    target, size = job.rollout.prompts_per_step, job.rollout.samples_per_prompt
    issued = sorted({round(target * f) for f in PROMPT_FACTORS} | {target + 1})
    samples = sorted({round(size * f) for f in SAMPLE_FACTORS} | {size + 1})
    issues: set[Issue] = set()
    if "sync" in modes:
        issues.add(("sync", target, size, None))
    if "race" in modes:
        issues |= {("race", p, n, None) for p in issued for n in samples if n > size}
    if "defer" in modes:
        issues |= {("defer", p, size, None) for p in issued if p > target}
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
                issues |= {("exact", prompts, size, cutoff_tokens) for prompts in rows}
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
    issues: Iterable[Issue], allowed: Iterable[Issue], target: int, group_size: int, most: float
) -> str | None:
    """Why `search.max_over_issue` (`most`) leaves some modes without a short round; None if every mode keeps one.

    `issues`: of all short rounds; `allowed`: of those within the limit.
    """
    kept = {issue[0] for issue in allowed}
    least: dict[Mode, float] = {}
    for mode, prompts, samples, _ in issues:
        if mode not in kept:
            issued = over_issue(prompts, samples, target, group_size)
            least[mode] = min(issued, least.get(mode, issued))
    if not least:
        return None
    needs = ", ".join(f"{mode} {value:.3g}" for mode, value in sorted(least.items()))
    return f"search.max_over_issue is {most:g}, and these modes issue at least so many times what they train: {needs}"
