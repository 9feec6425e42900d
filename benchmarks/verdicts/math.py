"""The mathematics reward against a table of answers, responses and right verdicts: `tests/verdicts/math.jsonl`."""

from __future__ import annotations

from rlplan.executor.rewards.kinds.math_reward import judge
from rlplan.executor.rewards.sandbox.verdict import PolicyError, RowError

from . import read_cases


def wrong_cases() -> tuple[int, list[str]]:
    """The number of cases, and a line for each whose verdict is wrong: the case, what is right, what came out."""
    lines = read_cases("math")
    wrong = []
    for line in lines:
        expected, got = line["expect"], _verdict(line["response"], line["answer"])
        if got != expected:
            wrong.append(
                f"{line['case']}: answer {line['answer']!r}, response {line['response']!r}: {got}, not {expected}"
            )
    return len(lines), wrong


def _verdict(response: str, answer: object) -> float | str:
    try:
        return judge("", response, answer).reward
    except RowError:
        return "refused"
    except PolicyError as error:
        return f"an error ({error})"
