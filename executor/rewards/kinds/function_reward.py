"""A reward function of the user's own: imported, judged before it is called, and called the way that it is written.

| its parameters | it is called with |
|---|---|
| `prompt, response, answer`, or any three | these, in order; some of the three by name |
| with `completions` (TRL) | lists of one: `prompts`, `completions`, and the row's answer under the name of its column |
| with `solution_str` or `solution_strs` (verl) | `solution_str`, `ground_truth` (the row's answer), `data_source`, `extra_info` |

Where a row's answer is a JSON object, its keys go before: `{"ground_truth": "42", "data_source": "gsm8k"}`. A function
may be async. It returns a number, a dict with `score` (or `reward`), a tuple whose first item is one, or a list of one.
"""  # noqa: E501 - a table

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Awaitable, Mapping
from types import CodeType
from typing import Any, get_args

from ....plans.files.reward_function import (
    ANSWERS,
    SCORE_KEYS,
    WANTED,
    Parameter,
    ParameterKind,
    UnfitFunction,
    Way,
    must_return,
    way_of,
)
from ....plans.yaml.errors import InputError
from ..sandbox.verdict import Verdict


class WrongReturn(TypeError):
    """The function returned what is no reward: it is at fault, whatever the response."""


def own_function(path: str | None, search_path: str | None) -> OwnFunction:
    """The function at `pkg.mod:name`, to be called with prompt, response and answer.

    Raises InputError where it cannot be imported, or its parameters are of no kind that is known.
    """
    target = _imported(path, search_path)
    try:
        way = _way(target)
    except UnfitFunction as unfit:
        raise InputError(f"reward.function {path!r}: {unfit}") from None
    return OwnFunction(target, way)


def _imported(path: str | None, search_path: str | None) -> Any:
    module_name, _, name = (path or "").partition(":")
    if not module_name or not name:
        raise InputError(f"reward.function is {path!r}; write it as pkg.mod:name")
    if search_path is not None and search_path not in sys.path:
        sys.path.insert(0, search_path)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # The user's module may raise anything while it is imported.
        todo = "install it, or put the module beside job.yaml" if isinstance(error, ImportError) else "mend the module"
        raise InputError(
            f"reward.function {path!r}: cannot import {module_name!r} ({type(error).__name__}: {error}); {todo}"
        ) from error
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        why = "is not callable" if target is not None else "does not exist"
        raise InputError(f"reward.function {path!r}: {name!r} {why} in {module_name!r}; name a function of that module")
    return target


def _way(target: Any) -> Way:
    if inspect.isclass(target):
        raise UnfitFunction(f"is a class; name a function, or an object of it that can be called ({WANTED})")
    try:
        given = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        raise UnfitFunction(f"does not tell its parameters; {WANTED} around it") from None
    way = way_of([Parameter(each.name, _KINDS[each.kind], _required(each)) for each in given])
    code = inspect.unwrap(target) if inspect.isfunction(target) else target
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise UnfitFunction("is a generator (it has a yield); return a number")
    if inspect.isfunction(target) and not hasattr(target, "__wrapped__"):
        with contextlib.suppress(OSError, SyntaxError):  # no text to read, or a lambda's, cut out of its line
            node = ast.parse(textwrap.dedent(inspect.getsource(target))).body[0]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                must_return(node)
    return way


_KINDS = {getattr(inspect.Parameter, kind.upper()): kind for kind in get_args(ParameterKind)}


def _required(parameter: inspect.Parameter) -> bool:
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in stars


class OwnFunction:
    """A reward function of the user's, called with prompt, response and answer the way that it is written."""

    def __init__(self, target: Any, way: Way) -> None:
        self._target, self._way = target, way
        self._messages = way.style == "trl" and _reads_messages(target)

    def __call__(self, prompt: str, response: str, answer: Any) -> float:
        """The reward. Raises WrongReturn, and what the function raises."""
        return reward_of(self._returned(prompt, response, answer))

    def judge(self, prompt: str, response: str, answer: Any) -> Verdict:
        """The reward, with how the function was called and what it returned."""
        returned = self._returned(prompt, response, answer)
        reward = reward_of(returned)
        named = "prompt, response, answer"
        if self._way.style != "own":
            given = self._named(prompt, response, answer)
            shown = [f"{key}={value!r:.100}" for key, value in given.items() if key in self._way.names]
            named = ", ".join([*shown, *["**further"] * self._way.open])
        steps = (("called", f"({named})"), ("returned", f"{returned!r:.500}"))
        return Verdict(reward, "" if reward > 0 else f"the function gives {reward:g}", steps)

    def _returned(self, prompt: str, response: str, answer: Any) -> Any:
        if self._way.style == "own":
            returned = self._target(prompt, response, answer)
        else:
            returned = self._target(**self._named(prompt, response, answer))
        if isinstance(returned, float | int) or not inspect.isawaitable(returned):
            return returned
        return _loop.run(returned)

    def _named(self, prompt: str, response: str, answer: Any) -> dict[str, Any]:
        """The arguments by keyword; lists of one where the function scores many at once."""
        way = self._way
        values = _values(way.style, self._messages, prompt, response, answer)
        if way.style != "named" and isinstance(answer, Mapping):
            columns = {key: value for key, value in answer.items() if key not in _SCORED}
            values |= {key: value for key, value in columns.items() if way.style == "trl" or key in values}
        lists = way.style in ("trl", "verl-batch")
        given = {key: [value] if lists else value for key, value in values.items() if way.open or key in way.names}
        if way.style == "trl":  # it would write to the trainer's tables
            given |= {key: _ignore for key in ("log_extra", "log_metric") if way.open or key in way.names}
        return given


_SCORED = ("prompts", "completions", "solution_str", "solution_strs")
"""What is scored, and no column of a data set."""


def _values(style: str, messages: bool, prompt: str, response: str, answer: Any) -> dict[str, Any]:
    """By name of the parameter: what it gets."""
    if style == "named":
        return {"prompt": prompt, "response": response, "answer": answer}
    if style == "trl":
        asked = [{"role": "user", "content": prompt}] if messages else prompt
        given = [{"role": "assistant", "content": response}] if messages else response
        return {"prompts": asked, "completions": given} | dict.fromkeys(ANSWERS, answer)
    values = {"data_source": "", "solution_str": response, "ground_truth": answer, "extra_info": {}}
    return values if style == "verl" else {f"{name}s": value for name, value in values.items()}


def _ignore(*given: Any, **named: Any) -> None:
    pass


def _reads_messages(target: Any) -> bool:
    """Whether a function of TRL's wants completions as lists of messages, as TRL gives them where prompts are messages:
    its code, or that of a function beside it which it calls, looks up `content`."""
    target = getattr(target, "func", target)  # of functools.partial
    function = inspect.unwrap(target if inspect.isroutine(target) else type(target).__call__)
    code, beside = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None:
        return False
    called = [getattr(beside.get(name), "__code__", None) for each in _codes(code) for name in each.co_names]
    every = [each for outer in [code, *called] if outer is not None for each in _codes(outer)]
    return any("content" in each.co_consts for each in every)


def _codes(code: CodeType) -> list[CodeType]:
    """A function's code and that of the functions and comprehensions inside it."""
    return [code, *(inner for each in code.co_consts if isinstance(each, CodeType) for inner in _codes(each))]


# ---- what it returns ----


def reward_of(returned: Any) -> float:
    """The number that a reward function returned. Raises WrongReturn for none."""
    kind = type(returned)
    if kind is float or kind is int or kind is bool:
        return float(returned)
    if returned is None:
        raise WrongReturn("the reward function returned None; return a number on every path")
    if isinstance(returned, Mapping):
        key = next((key for key in SCORE_KEYS if key in returned), None)
        if key is None:
            named = ", ".join(sorted(map(str, returned))) or "none"
            raise WrongReturn(
                f"the reward function returned a dict with the keys {named}; return a number, or score in it"
            )
        return reward_of(returned[key])
    if isinstance(returned, tuple) and returned:
        return reward_of(returned[0])
    if getattr(returned, "ndim", 1) and hasattr(returned, "__len__") and not isinstance(returned, str | bytes | tuple):
        if len(returned) != 1:
            raise WrongReturn(
                f"the reward function returned {len(returned)} values for one response; return one number"
            )
        return reward_of(next(iter(returned)))
    try:
        if isinstance(returned, str | bytes):  # what `float` reads of them is a guess
            raise TypeError
        return float(returned)
    except (TypeError, ValueError):
        raise WrongReturn(f"the reward function returned {returned!r:.100}; return a number") from None


class _Loop:
    """The event loop of async reward functions: one for all calls, since clients of services belong to theirs."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, awaitable: Awaitable[Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(lambda loop, context: None)
        loop, task = self._loop, asyncio.ensure_future(awaitable, loop=self._loop)
        try:
            return loop.run_until_complete(task)
        finally:
            if not task.done():  # interrupted at the deadline: what still waits must not run beside the next call
                self._loop = None
                loop.close()


_loop = _Loop()
