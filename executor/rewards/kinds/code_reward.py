"""Reward 1 if the response's last Python block passes the row's tests in a sandbox, else 0.

The response's code and the tests run in two processes of one sandbox per sample (`sandbox`): limits on CPU time,
memory, file size and open files; an empty environment; no site-packages, so standard library only; a temporary folder
as the only place to write to; no network; nothing of the host's files but the interpreter and the system's programs.
What the kernel does not permit is left out and told (`probe`).
"""

from __future__ import annotations

import os
import re
from typing import Any

from ..sandbox.warm_sandbox import START_S as START_S
from ..sandbox.warm_sandbox import SandboxError as SandboxError
from ..sandbox.warm_sandbox import SandboxRun, WarmSandbox
from ..verdict import MEMORY_BYTES, PolicyError, PolicyTimeout, RowError

_BLOCK = re.compile(r"^```(?:python3?|py)[ \t]*\r?\n(.*?)^```", re.DOTALL | re.MULTILINE | re.IGNORECASE)
_warm: dict[tuple[int, int], WarmSandbox] = {}
"""Sandboxes by the process that has them (a fork must not use its parent's) and their memory in bytes."""


def sandbox_of(memory_bytes: int) -> WarmSandbox:
    """The sandbox of this process whose programs may take so much memory; not started yet, or warm."""
    return _warm.setdefault((os.getpid(), memory_bytes), WarmSandbox(memory_bytes))


def last_block(response: str) -> str | None:
    """The text of the response's last closed ```python block, or None if it has none."""
    blocks = _BLOCK.findall(response)
    return blocks[-1] if blocks else None


def run_sandboxed(source: str, tests: str, deadline_s: float, memory_bytes: int = MEMORY_BYTES) -> SandboxRun:
    """Run `source`, then `tests` against it, in a fresh sandbox.

    The deadline (wall time) counts from the moment the sandbox is up, so that a busy machine's slow start is not the
    response's. Raises `SandboxError` if the sandbox does not come up within `START_S`.
    """
    return sandbox_of(memory_bytes).run(source, tests, deadline_s)


def probe(memory_bytes: int = MEMORY_BYTES) -> tuple[str, ...]:
    """Start a sandbox and run nothing in it; return its notes on what this machine does not permit.

    Raises `SandboxError` if sandboxes do not work here at all.
    """
    result = run_sandboxed("", "", START_S, memory_bytes)
    if not result.passed:
        raise SandboxError(f"an empty program fails in the sandbox: {result.detail}")
    return result.notes


class CodeReward:
    """The reward function of kind `code`, with its deadline."""

    def __init__(self, deadline_s: float, memory_bytes: int = MEMORY_BYTES) -> None:
        self.deadline_s, self.memory_bytes = deadline_s, memory_bytes

    def __call__(self, prompt: str, response: str, answer: Any) -> float:
        """1.0 if the response's last Python block passes the tests in `answer` (Python source, or a list of it).

        Raises `PolicyError` if it does not and `PolicyTimeout` if it takes too long. Not the policy's fault are
        `RowError` (the row holds no tests) and `SandboxError` (the sandbox fails).
        """
        if isinstance(answer, list) and answer and all(isinstance(part, str) for part in answer):
            answer = "\n".join(answer)
        if not isinstance(answer, str) or not answer.strip():
            raise RowError("the row's answer must be its tests: Python source or a list of it")
        source = last_block(response)
        if source is None:
            raise PolicyError("the response has no closed ```python block")
        result = run_sandboxed(source, answer, self.deadline_s, self.memory_bytes)
        if result.passed:
            return 1.0
        raise (PolicyTimeout if result.timed_out else PolicyError)(result.detail)
