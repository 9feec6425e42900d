"""Reward 1 if the whole response matches a regular expression, else 0.

A pattern that backtracks may take for ever on an unlucky response, so it is matched in the process that scores, which
is interrupted at the deadline: such a response gets 0.
"""

from __future__ import annotations

import re
from typing import Any

from ..sandbox.verdict import Verdict


class FormatReward:
    """The reward function of kind `format`, with its pattern. Raises re.error for what is no pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern, re.DOTALL)

    def __call__(self, prompt: str, response: str, answer: Any) -> float:
        """1.0 if the response matches from its first to its last character, else 0.0."""
        return self.judge(prompt, response, answer).reward

    def judge(self, prompt: str, response: str, answer: Any) -> Verdict:
        """The reward, and how far the response matches."""
        matches = self._pattern.fullmatch(response) is not None
        why = "" if matches else "the whole response does not match the pattern"
        return Verdict(float(matches), why, (("pattern", self._pattern.pattern),))
