"""What may be wrong with single values of a job's reward: a pattern, a judge's prompt, a judge's scale."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping

PLACEHOLDERS = ("prompt", "response", "answer")
"""What may stand in braces in a judge's prompt."""

MOST_VERDICTS = 101
"""Most verdicts of a judge: the percentages."""


def pattern_fault(pattern: str | None) -> str | None:
    """What is wrong with a regular expression; None if nothing, or if there is none."""
    try:
        re.compile(pattern or "")
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}; mend it (and write it in single quotes, in which \\ stays)"
    return None


def prompt_fault(prompt: str | None) -> str | None:
    """What is wrong with a judge's prompt; None if nothing, or if there is none."""
    if prompt is None:
        return None
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    try:
        fields = [part for part in string.Formatter().parse(prompt) if part[1] is not None]
    except ValueError as error:
        return f"has braces that do not fit ({error}); write {{{{ and }}}} for braces that are meant"
    for _, name, form, conversion in fields:
        if name not in PLACEHOLDERS or form or conversion:
            return f"has {{{name}}}, and only {known} are known; write {{{{ and }}}} for braces that are meant"
    if "response" not in [name for _, name, _, _ in fields]:
        return "does not hold {response}, so that the judge would not see what it is to judge; add it"
    return None


def scale_fault(scale: tuple[int, int] | None) -> str | None:
    """What is wrong with a judge's scale; None if nothing, or if there is none."""
    if scale is not None and not 1 <= scale[1] - scale[0] < MOST_VERDICTS:
        return f"is {list(scale)}; write the lower number first, then a higher one, {MOST_VERDICTS - 1} apart at most"
    return None


def verdicts_fault(verdicts: Mapping[str, float] | None) -> str | None:
    """What is wrong with a judge's verdicts; None if nothing, or if there are none."""
    if verdicts and len(set(verdicts.values())) == 1:
        worth = next(iter(verdicts.values()))
        return f"are all worth {worth:g}, so that no response is better than another; write different numbers"
    return None


def weights_fault(weights: list[float]) -> str | None:
    """What is wrong with the weights of the parts of a reward; None if nothing."""
    if any(weights):
        return None
    whose = "is 0" if len(weights) == 1 else "is 0, as those of all other parts"
    return f"{whose}, so that every reward is 0 and nothing would be learnt; write another weight"
