"""Reward 1 if the solution in a response passes the row's tests in a sandbox, else 0, or the share of tests it passes.

The response's code and the tests run in two processes of one sandbox per sample (`sandbox`): limits on CPU time,
memory, file size and open files; an empty environment; the standard library and the packages that the job states; a
temporary folder as the only place to write to; no network; nothing of the host's files but the interpreter, those
packages and the system's programs. What the kernel does not permit is left out and told; without files of its own and
without Landlock nothing runs, unless the job permits it (`probe`).
"""

from __future__ import annotations

import os
from typing import Any

from ....plans.answers import AnswerError
from ....plans.answers.code_tests import code_tests
from ....plans.answers.packages import unstated
from ....plans.yaml.errors import InputError
from ..sandbox.isolation import unconfined
from ..sandbox.verdict import MEMORY_BYTES, PolicyError, PolicyTimeout, RowError, Verdict
from ..sandbox.warm_sandbox import START_S as START_S
from ..sandbox.warm_sandbox import SandboxError as SandboxError
from ..sandbox.warm_sandbox import WarmSandbox
from .code_blocks import Block, solution_of

_warm: dict[tuple[int, int, tuple[str, ...]], WarmSandbox] = {}
"""Sandboxes by the process that has them (a fork must not use its parent's), their memory in bytes and packages."""


def sandbox_of(memory_bytes: int = MEMORY_BYTES, packages: tuple[str, ...] = ()) -> WarmSandbox:
    """The sandbox of this process whose programs may take so much memory; not started yet, or warm."""
    key = os.getpid(), memory_bytes, packages
    if key not in _warm:
        _warm[key] = WarmSandbox(memory_bytes, packages=packages)
    return _warm[key]


def probe(
    memory_bytes: int = MEMORY_BYTES, packages: tuple[str, ...] = (), needed: str = "required"
) -> tuple[str, ...]:
    """Start a sandbox and run next to nothing in it; return its notes on what this machine does not permit.

    Raises `SandboxError` if sandboxes do not work here at all, `InputError` for a package that is not installed, and
    for a machine that cannot hold a response, if that is `needed` (reward.sandbox: `required`).
    """
    sandbox = sandbox_of(memory_bytes, packages)
    sandbox.start()
    if needed == "required" and (fault := unconfined(sandbox.lacks, os.getuid() == 0)) is not None:
        raise InputError(f"reward.sandbox: {fault}")
    result = sandbox.run("def f(): return 1", "assert f() == 1", START_S)
    if not result.passed:
        raise SandboxError(f"a short program fails in the sandbox: {result.detail}")
    return sandbox.notes


class CodeReward:
    """The reward function of kind `code`, with its deadline.

    Args:
        deadline_s: seconds of wall time that all tests of a response may take.
        memory_bytes: address space that its processes may take.
        packages: distributions that responses and tests may import.
        partial: whether the reward is the share of the tests that pass, instead of 1 for all and 0 else.
    """

    def __init__(
        self,
        deadline_s: float,
        memory_bytes: int = MEMORY_BYTES,
        packages: tuple[str, ...] = (),
        partial: bool = False,
    ) -> None:
        self.deadline_s, self.memory_bytes = deadline_s, memory_bytes
        self.packages, self.partial = packages, partial

    def judge(self, prompt: str, response: str, answer: Any) -> Verdict:
        """What a response is worth by the tests in `answer` (`plans.answers.code_tests` has their forms), and why.

        Not the policy's fault are `RowError` (the row has no tests that can be run) and `SandboxError` (the sandbox
        fails).
        """
        try:
            tests = code_tests(answer)
        except AnswerError as error:
            raise RowError(str(error)) from None
        if fault := unstated(tests, self.packages):
            raise RowError(fault)
        steps: list[tuple[str, str]] = [("form", tests.form)]
        source = solution_of(response, tests.needs, tests.reads_stdin)
        if source is None:
            return Verdict(0.0, "the response has no block of Python code", (*steps, ("extracted", "nothing")))
        steps.append(("extracted", source))
        if tests.script is not None and (named := tests.script.records.keys() & Block(source).free):
            source = "\n\n".join([*(tests.script.records[name] for name in sorted(named)), source])
        sandbox = sandbox_of(self.memory_bytes, self.packages)
        ran = sandbox.run(source, tests, self.deadline_s, go_on=self.partial)
        steps += [("tests run", f"{ran.tests_passed} of {ran.tests} passed")]
        reward = ran.tests_passed / ran.tests if self.partial and ran.tests else float(ran.passed)
        if reward == 1.0 and not ran.passed:
            reward = 0.0  # something failed that is no test of its own
        return Verdict(reward, ran.detail, tuple(steps), ran.timed_out)

    def __call__(self, prompt: str, response: str, answer: Any) -> float:
        """The reward of a response. Raises `PolicyError` if it is 0, `PolicyTimeout` if that is for its time, and what
        `judge` raises."""
        verdict = self.judge(prompt, response, answer)
        if verdict.reward > 0.0:
            return verdict.reward
        raise (PolicyTimeout if verdict.timed_out else PolicyError)(verdict.why)
