"""How many samples a short round issues for each that it trains, and what the job's limit on that leaves of the modes.

Over-issue makes a round fast, because it need not wait for its slowest groups, and it wastes what the others decode.
Time per trained sample does not show the waste as long as decoding is bound by memory, so the job limits it
(`search.max_over_issue`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...plans.base import Mode

Rule = tuple[Mode, int, int, int]
"""(mode, prompts, samples, cutoff in tokens or 0) of a short round."""


def over_issue(prompts: int, samples: int, target: int, group_size: int) -> float:
    """Samples that a round of `prompts` x `samples` issues at its start for each of the `target` x `group_size` that it
    trains."""
    return prompts * samples / (target * group_size)


def too_wasteful(
    rules: Iterable[Rule], allowed: Iterable[Rule], target: int, group_size: int, most: float
) -> str | None:
    """What to say of modes that `search.max_over_issue` (`most`) leaves no short round; None if it leaves one to all.

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
