"""Reward 1 if the response's final answer equals the row's answer as mathematics, else 0.

The row's answer is read by type (`plans.answers.gold_math`), the response's is found (`math_answers`), read by the
same rules, and compared by type (`math_compare`). Numbers, choices and text never touch SymPy.
"""

from __future__ import annotations

from typing import Any

import math_verify  # noqa: F401 - a run without it must be refused at its start, and not at the first expression

from ....plans.answers import AnswerError
from ....plans.answers.gold_math import Gold, gold_of, typed, value
from ..verdict import PolicyError, RowError, Verdict
from .math_answers import answer_of_response, shown
from .math_compare import same


def judge(prompt: str, response: str, answer: Any) -> Verdict:
    """What the reward says of a response, and how it came to it.

    Raises `RowError` if the row's answer cannot be read: that is the data's fault, not the policy's; `PolicyError` if
    comparing the response's answer fails.
    """
    try:
        gold = gold_of(answer)
    except AnswerError as error:
        raise RowError(str(error)) from error
    try:
        return _judged(gold, response)
    except MemoryError:
        raise
    except Exception as error:
        # Nothing but the response has changed since the last call that went well.
        raise PolicyError(f"its answer cannot be compared: {type(error).__name__}: {error}"[:500]) from error


def _judged(gold: Gold, response: str) -> Verdict:
    place, text = answer_of_response(response, gold)
    steps = [("extracted", f"{shown(text)!r} from {place}" if text else f"nothing ({place})")]
    if not text:
        return Verdict(0.0, f"the response gives no answer of type {gold.kind}", tuple(steps))
    steps.append(("parsed", _told(typed(text))))
    steps.append(("gold", _told(gold)))
    is_same, rule = same(gold, text)
    steps.append(("compared", rule))
    why = "" if is_same else f"the response says {shown(text)!r}, the row {gold.text!r} ({rule})"
    return Verdict(1.0 if is_same else 0.0, why, tuple(steps))


def _told(gold: Gold | None) -> str:
    if gold is None:
        return "nothing that is an answer"
    exact = value(gold.node) if gold.node is not None else None
    short = exact is not None and max(exact.numerator.bit_length(), exact.denominator.bit_length()) < 300
    said = str(exact) if short else gold.letter or gold.words or gold.text
    return f"{gold.kind} {said[:200]}" + (f" {gold.unit}" if gold.unit else "")


def score(prompt: str, response: str, answer: Any) -> float:
    """1.0 if `response` gives an answer equal to `answer`, else 0.0; raises as `judge` does."""
    return judge(prompt, response, answer).reward
