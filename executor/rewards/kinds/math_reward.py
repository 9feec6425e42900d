"""Reward 1 if the response's final answer equals the row's answer as mathematics, else 0 (math-verify).

math-verify's own timeouts are switched off: they use SIGALRM as the worker's deadline does, and the two would disarm
each other.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from math_verify import parse, verify

from ..verdict import PolicyError, RowError

# It warns once in every process that its timeouts are off, which is what the worker wants.
logging.getLogger("math_verify").setLevel(logging.ERROR)


@functools.lru_cache(maxsize=4096)
def _gold(answer: str) -> tuple[Any, ...]:
    """The row's answer, parsed; cached because the samples of one group share it."""
    bare = answer.strip()
    # Data sets write answers without the dollar signs that LaTeX extraction looks for.
    parsed = parse(f"${bare}$", parsing_timeout=None) or parse(bare, parsing_timeout=None)
    if not parsed:
        raise RowError(f"the row's answer {answer!r} is not mathematics that math-verify can read")
    return tuple(parsed)


def score(prompt: str, response: str, answer: Any) -> float:
    """1.0 if `response` ends in an expression equal to `answer` (a number or LaTeX), else 0.0.

    A response without any expression scores 0. Raises `RowError` if the row's answer cannot be read: that is the
    data's fault, not the policy's; `PolicyError` if the response's cannot.
    """
    gold = list(_gold(str(answer)))
    try:
        given = parse(response, parsing_timeout=None)
        if not given:
            return 0.0
        return 1.0 if verify(gold, given, timeout_seconds=None) else 0.0
    except MemoryError:
        raise
    except Exception as error:
        # Nothing but the response has changed since the last call that went well.
        raise PolicyError(f"math-verify gives up on the response: {type(error).__name__}: {error}"[:500]) from error
