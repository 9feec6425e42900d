"""Why a search has no candidates of some kind, in words: what lacks, how much of it, and what to do.

Over-issue makes a round fast, because it need not wait for its slowest groups, and it wastes what the others decode.
Time per trained sample does not show the waste as long as decoding is bound by memory, so the job limits it
(`search.max_over_issue`), and that leaves some modes no candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...plans.phrases.numbers import bytes_text
from ...plans.schema.base import Mode
from ...plans.schema.cluster import Pool
from ...plans.schema.job import Job
from ...profiles.laws.train_layouts import MEMORY_SHARE, least_peak_bytes, physics_of
from ...profiles.profile_schema import Profile
from ..lengths.length_model import LengthModel

Rule = tuple[Mode, int, int, int | None]
"""(mode, prompts, samples, cutoff_tokens) of a short round; no cutoff but in `exact`."""

LEAST_SHORT = 0.2
"""Least share of the groups that end within a cutoff, for its short rounds to train enough of what they issue."""


def no_cutoff(model: LengthModel, group_size: int, cap_tokens: int) -> str:
    """Why mode exact has no cutoff to try."""
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


def no_update(job: Job, profile: Profile, pool: Pool, budgets: Sequence[int]) -> str:
    """Why no update fits.

    Args:
        budgets: micro-batches of the job that hold its longest sequence.
    """
    longest, asked = job.rollout.longest_tokens, sorted(job.search.micro_batch_tokens)
    total, law = pool.accelerators_total, profile.train_law
    if not budgets:
        return (
            f"the longest sequence has {longest} tokens, prompt and response, and search.micro_batch_tokens {asked} "
            f"has no micro-batch that holds it; add one of at least {longest}"
            + (" (and profile again)" if law is None else "")
        )
    if law is not None:
        sheet = physics_of(law).gpu.memory_bytes
        memory = min(sheet, pool.accelerators.memory_bytes)
        needed = least_peak_bytes(law, total, budgets)
        if needed is None:
            return f"no layout of tp, cp, pp and ep divides the model over {total} accelerators; change their number"
        return (
            f"of the ways to train on {total} accelerators, the one that takes least memory needs {bytes_text(needed)} "
            f"on each, and {bytes_text(round(MEMORY_SHARE * memory))} of its {bytes_text(memory)} may be planned; "
            "give the pool more nodes, or accelerators with more memory"
        )
    measured = sorted({entry.micro_batch_tokens for entry in profile.train})
    if not set(measured) & set(budgets):
        return (
            f"it was measured with micro-batches of {measured} tokens, and of the job's search.micro_batch_tokens "
            f"{sorted(budgets)} hold the longest sequence of {longest}; profile again, or add a measured one that does"
        )
    least = min(e.layout.accelerators for e in profile.train if e.micro_batch_tokens in budgets)
    return (
        f"the smallest needs {least} accelerators, the pool has {total}; add accelerators, or profile on this cluster"
    )


def no_tp(job: Job, profile: Profile) -> str | None:
    """What to say if the profile has none of the job's search.tp; None if it has one."""
    asked, there = sorted(job.search.tp), sorted({entry.tp for entry in profile.rollout})
    if set(asked) & set(there):
        return None
    return (
        f"search.tp {asked} has none of the profile's {', '.join(map(str, there))}; add one of them to search.tp, or "
        "profile again with yours"
    )


def over_issue(prompts: int, samples: int, target: int, group_size: int) -> float:
    """Samples that a round of `prompts` x `samples` issues at its start for each of the `target` x `group_size` that it
    trains."""
    return prompts * samples / (target * group_size)


def too_wasteful(
    rules: Iterable[Rule], allowed: Iterable[Rule], target: int, group_size: int, most: float
) -> str | None:
    """Why `search.max_over_issue` (`most`) leaves some modes without a short round; None if every mode keeps one.

    `rules`: of all short rounds; `allowed`: of those within the limit.
    """
    kept = {rule[0] for rule in allowed}
    least: dict[Mode, float] = {}
    for mode, prompts, samples, _ in rules:
        if mode not in kept:
            issued = over_issue(prompts, samples, target, group_size)
            least[mode] = min(issued, least.get(mode, issued))
    if not least:
        return None
    needs = ", ".join(f"{mode} {value:.3g}" for mode, value in sorted(least.items()))
    return f"search.max_over_issue is {most:g}, and these modes issue at least so many times what they train: {needs}"
