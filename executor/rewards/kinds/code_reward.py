"""Reward 1 if the solution in a response passes the row's tests in a sandbox, else 0, or the share of tests it passes.

The response's code and the tests run in two processes of one sandbox per sample (`sandbox`): limits on CPU time,
memory, file size and open files; an empty environment; the standard library and the packages that the job states; a
temporary folder as the only place to write to; no network; nothing of the host's files but the interpreter, those
packages and the system's programs. What the kernel does not permit is left out and told (`probe`).
"""

from __future__ import annotations

import ast
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ....plans.answers import AnswerError
from ....plans.answers.code_tests import code_tests
from ....plans.answers.packages import unstated
from ..sandbox.verdict import MEMORY_BYTES, PolicyError, PolicyTimeout, RowError, Verdict
from ..sandbox.warm_sandbox import START_S as START_S
from ..sandbox.warm_sandbox import SandboxError as SandboxError
from ..sandbox.warm_sandbox import WarmSandbox
from .python_block import Block

# The code of a response: which of its blocks are the solution that a row's tests want.
#
# A block is what stands between two fences (three or more backticks or tildes, any language tag, attributes,
# indented, quoted), or an indented block of Markdown, or a text that is Python as a whole. The solution is the last
# block that defines the names that the tests use; for tests on standard input, the last program that reads it.
# Examples of use, output and shell commands define nothing, so they never replace it. Where a block needs names that
# only earlier blocks define (a helper, the imports), those come before it.

_FENCE = re.compile(r"(?P<before>.*?)(?<![`~])(?P<fence>`{3,}(?!`)|~{3,}(?!~))(?P<info>[^`]*)$")
_MARKS = re.compile(r"(?:[ \t>]|[-*+] |\d{1,3}[.)] )*")
"""What may stand before a fence: spaces, the marks of quotes and of list items."""
_ONE_LINE = re.compile(r"(?<!`)(`{3,})(?:python3?|py)?([^`\n]+)\1(?!`)[ \t]*$", re.IGNORECASE)
_PYTHON_TAG = re.compile(r"(?:py|python)[\d.]*", re.IGNORECASE)
_THOUGHT_ENDS = re.compile(
    r"</(?:think(?:ing)?|thought|reasoning)>|\[/THINK\]|<\|end_of_thought\|>|◁/think▷", re.IGNORECASE
)
_ANSWERS = tuple(
    re.compile(rf"{begin}((?:(?!{begin}).)*?){end}", re.DOTALL | re.IGNORECASE)
    for begin, end in (
        ("<answer>", "</answer>"),
        ("<solution>", "</solution>"),
        ("<code>", "</code>"),
        (r"<\|begin_of_solution\|>", r"<\|end_of_solution\|>"),
        (r"\[PYTHON\]", r"\[/PYTHON\]"),
        (r"\[BEGIN\]", r"\[DONE\]"),
    )
)
_MOST_BLOCKS = 100
"""Blocks of a text that are looked at, from its end: a response must not hold up scoring by thousands of them."""
_MOST_CLOSERS = 64
"""Lines with fences that may close a block: more than these in one docstring is no solution."""


def solution_of(response: str, needs: frozenset[str], reads_stdin: bool) -> str | None:
    """The source of the response's solution, or None if it holds no code.

    Args:
        response: the whole text of the response. Thoughts (`<think>`) count only if no code follows them; code in
            `<answer>` tags goes before code outside. A fence that is not closed begins no block.
        needs: the names that the tests use of it. Where no block defines all of them, the blocks that do so together
            are joined; where these do not either, the block that defines most counts, and the tests fail.
        reads_stdin: whether it is tested as a program on standard input; `needs` plays no part then.
    """
    fallback: str | None = None
    for scope in _scopes(response.replace("\r\n", "\n").replace("\ufeff", "")):
        blocks = list(_blocks(scope))[-_MOST_BLOCKS:]
        solution = _program(blocks) if reads_stdin else _definer(blocks, needs)
        if solution is not None:
            return solution
        code = [block for block in blocks if block.is_python]
        if code and fallback is None:
            fallback = next((block for block in reversed(code) if block.acts), code[-1]).text
    return fallback


def _scopes(response: str) -> Iterator[str]:
    """The parts of the response to look for code in, the most telling first."""
    ends = [match.end() for match in _THOUGHT_ENDS.finditer(response)]
    for text in [response[end:] for end in ends[-1:]] + [response]:
        answers = sorted((match.start(), match[1]) for tags in _ANSWERS for match in tags.finditer(text))
        yield from (inner for _, inner in reversed(answers))
        yield text


def _program(blocks: Sequence[Block]) -> str | None:
    """The last block that is a program on standard input, else with what it takes of others; else what prints."""
    sources = [_with_helpers(blocks, {at}) for at in range(len(blocks))]
    wholes = [Block(source) if source != block.text else block for source, block in zip(sources, blocks, strict=True)]
    pairs = list(zip(blocks, wholes, strict=True))
    for found in (
        [whole for block, whole in pairs if block.reads and block.prints and block.acts],
        [whole for _, whole in pairs if whole.reads and whole.prints and whole.acts],
        [whole for _, whole in pairs if whole.reads],
        [whole for _, whole in pairs if whole.prints and whole.acts],
    ):
        if found:
            return found[-1].text
    return _definer(blocks, frozenset())


def _definer(blocks: Sequence[Block], needs: frozenset[str]) -> str | None:
    """The last block that defines all that is needed, or the blocks that do so together, or the one with most of it."""
    counts = [len(needs & block.defined) for block in blocks]
    most = max(counts, default=0)
    if most == 0:
        found = [at for at, block in enumerate(blocks) if block.defines_code]
        if not needs and not found:
            found = [at for at, block in enumerate(blocks) if block.defined]
        return _with_helpers(blocks, {found[-1]}) if found else None
    chosen = {max(at for at, count in enumerate(counts) if count == most)}
    if most < len(needs) and needs <= frozenset().union(*(block.defined for block in blocks)):
        chosen = {max(at for at, block in enumerate(blocks) if name in block.defined) for name in needs}
    return _with_helpers(blocks, chosen)


def _with_helpers(blocks: Sequence[Block], chosen: set[int]) -> str:
    """The chosen blocks, and before them the earlier ones that define names which they use and do not define."""
    joined: list[str] = []
    missing: frozenset[str] = frozenset()
    for at in range(max(chosen), -1, -1):
        block = blocks[at]
        if at in chosen or (missing and (missing & block.bound or "*" in block.bound)):
            joined.insert(0, block.text)
            missing = (missing - block.bound) | block.free
    return "\n\n".join(joined)


def _blocks(text: str) -> Iterator[Block]:
    """The complete blocks of a text, in their order."""
    if _is_code(whole := Block(textwrap.dedent(text))):
        yield whole
        return
    lines = text.split("\n")
    fenced = [at for at, line in enumerate(lines) if "```" in line or "~~~" in line]
    outside: int | None = 0
    closed_at = -1
    for order, at in enumerate(fenced):
        if at <= closed_at:
            continue
        fence = _opening(lines[at])
        if fence is None:
            if one := _ONE_LINE.search(lines[at]):
                yield Block(one[2].strip() + "\n")
            continue
        if outside is not None:
            yield from _indented(lines[outside:at])
        # A prompt may end with the opening fence; the response then begins with code, and closes it.
        prefilled = Block("\n".join(lines[:at]) + "\n") if order == 0 and not fence.info else None
        if prefilled and prefilled.tree and (prefilled.defines_code or prefilled.reads or prefilled.prints):
            yield prefilled
            closed_at = at
        elif closed := _closed(lines, at, fence, fenced[order + 1 : order + 1 + _MOST_CLOSERS]):
            block, closed_at = closed
            yield block
        outside = closed_at + 1 if closed_at >= at else None
    if outside is not None:
        yield from _indented(lines[outside:])


@dataclass(frozen=True)
class _Fence:
    """An opening fence: its marks, the column it begins in, and what stands after it."""

    marks: str
    column: int
    info: str

    @property
    def tag(self) -> str:
        """The language: `python` of `python title="x"`, of `{python}` and of `{.python .numbered}`."""
        word = re.match(r"[{.\s]*([\w+#-]*)", self.info)
        return word[1].lower() if word else ""


def _opening(line: str) -> _Fence | None:
    """The fence that the line opens. Words may stand before it if it is tagged as Python ("Solution: ```python")."""
    match = _FENCE.match(line)
    if match is None:
        return None
    marks, info = match["fence"], match["info"].strip()
    if _MARKS.fullmatch(match["before"]):
        return _Fence(marks, 0 if ">" in match["before"] else len(match["before"]), info)
    return _Fence(marks, 0, info) if _PYTHON_TAG.fullmatch(info) else None


def _closed(lines: list[str], opened: int, fence: _Fence, fenced: list[int]) -> tuple[Block, int] | None:
    """The block that the fence at line `opened` begins, and the line that closes it; None if nothing does.

    Of the later lines with fences (`fenced`), the first that may close it does, unless a string with three quotes is
    open there: then the first with which the text is Python. A fence at the end of a line of code closes the block
    where no other makes it Python.
    """
    own_line = re.compile(rf"[ \t>]*{fence.marks}{fence.marks[0]}*[ \t]*(?:<[^>]*>[ \t]*)*")
    closers = [at for at in fenced if own_line.fullmatch(lines[at])]
    first: Block | None = None
    for at in closers:
        block = _cut(lines[opened + 1 : at], fence)
        first = first or block
        if block.tree is not None:
            return block, at
        if not block.leaves_string_open:
            break
    before = [at for at in fenced if not closers or at < closers[0]]
    for at in before:
        code = lines[at].rstrip().removesuffix(fence.marks)
        if code != lines[at].rstrip() and _is_code(block := _cut([*lines[opened + 1 : at], code], fence)):
            return block, at
    # A fence with a tag inside opens a block of its own: the one before it was cut off, or holds Markdown.
    if first is None or any((inner := _opening(lines[at])) is not None and inner.info for at in before):
        return None
    return first, closers[0]


def _cut(body: list[str], fence: _Fence) -> Block:
    """The lines without the marks of a quote and without the fence's own indentation."""
    if not fence.tag and body and _PYTHON_TAG.fullmatch(body[0].strip()):
        body = body[1:]  # the tag came a line late
    quoted = [line.lstrip() for line in body]
    if body and all(line.startswith(">") and not line.startswith(">>>") for line in quoted):
        body = [re.sub(r"^> ?", "", line) for line in quoted]
    near = [re.sub(rf"^[ \t]{{0,{fence.column}}}", "", line) for line in body]
    block = Block("\n".join(near) + "\n", fence.tag)
    if block.tree is None:
        dedented = Block(textwrap.dedent("\n".join(body)) + "\n", fence.tag)
        return dedented if dedented.tree is not None else block
    return block


def _indented(lines: list[str]) -> Iterator[Block]:
    """The blocks of Python that Markdown marks by four spaces after a blank line."""
    at = 0
    while at < len(lines):
        end = at + 1
        if lines[at].startswith(("    ", "\t")) and (at == 0 or not lines[at - 1].strip()):
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith(("    ", "\t"))):
                end += 1
            block = Block(textwrap.dedent("\n".join(lines[at:end])).rstrip() + "\n")
            if _is_code(block):
                yield block
        at = end


def _is_code(block: Block) -> bool:
    """Whether a text without fences is Python that defines or does something; no word, number, or `Note: x`."""
    if block.tree is None or all(isinstance(statement, ast.AnnAssign) for statement in block.tree.body):
        return False
    return bool(block.bound or block.acts)


_warm: dict[tuple[int, int, tuple[str, ...]], WarmSandbox] = {}
"""Sandboxes by the process that has them (a fork must not use its parent's), their memory in bytes and packages."""


def sandbox_of(memory_bytes: int = MEMORY_BYTES, packages: tuple[str, ...] = ()) -> WarmSandbox:
    """The sandbox of this process whose programs may take so much memory; not started yet, or warm."""
    key = os.getpid(), memory_bytes, packages
    if key not in _warm:
        _warm[key] = WarmSandbox(memory_bytes, packages=packages)
    return _warm[key]


def probe(memory_bytes: int = MEMORY_BYTES, packages: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Start a sandbox and run next to nothing in it; return its notes on what this machine does not permit.

    Raises `SandboxError` if sandboxes do not work here at all, `InputError` for a package that is not installed.
    """
    result = sandbox_of(memory_bytes, packages).run("def f(): return 1", "assert f() == 1", START_S)
    if not result.passed:
        raise SandboxError(f"a short program fails in the sandbox: {result.detail}")
    return result.notes


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
