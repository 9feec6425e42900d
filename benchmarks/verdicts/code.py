"""Cases of rewards of kind code, judged in real sandboxes.

A line of the table (`tests/verdicts/code.jsonl`): `case`, its name; `source`; `row`, with the keys that data have;
`response`; `expect`, a reward or "refused". Where they matter: `packages` that the job states, `partial` rewards,
`deadline_s`.
"""

from __future__ import annotations

from typing import Any

from rlplan.executor.rewards.kinds.code_reward import CodeReward
from rlplan.executor.rewards.sandbox.verdict import RowError
from rlplan.plans.answers.code_tests import answer_of_row

from . import read_cases

DEADLINE_S = 20.0
"""Far above what any case takes that is to end, also on a busy machine."""


def judged(case: dict[str, Any]) -> tuple[float | str, str]:
    """What the reward says of a case: its value or "refused", and why."""
    reward = CodeReward(
        case.get("deadline_s", DEADLINE_S),
        packages=tuple(case.get("packages", ())),
        partial=case.get("partial", False),
    )
    try:
        verdict = reward.judge("", case["response"], answer_of_row(case["row"]))
    except RowError as error:
        return "refused", str(error)
    return verdict.reward, verdict.why


def wrong_cases() -> tuple[int, list[str]]:
    """The number of cases, and a line for each that is judged otherwise than it must be."""
    cases = read_cases("code")
    wrong = []
    for case in cases:
        value, why = judged(case)
        if value != case["expect"]:
            wrong.append(f"{case['case']}: {value} where {case['expect']} is right ({why or 'no reason given'})")
    return len(cases), wrong
