"""How a user's own reward function is called, by its parameters: rlplan's way, TRL's or verl's; or it is refused.

`way_of` judges parameters, of whatever source. `source_fault` reads them from the module's text beside job.yaml:
nothing is imported, so that `rlplan check` runs no code of the user's. What the text does not show (an
installed package, a decorator, `functools.partial`) is judged when the function is imported, before any engine starts.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ..schema.job import Job
from ..yaml.yaml_doc import Loc
from ..yaml.yaml_io import error_at

WANTED = "write score(prompt, response, answer) -> float"

ANSWERS = (
    "answer", "answers", "ground_truth", "ground_truths", "solution", "solutions", "label", "labels", "target",
    "targets", "gold", "reference", "references", "expected", "expected_answer", "correct_answer", "final_answer",
)  # fmt: skip
"""Names of data set columns that TRL's users give the row's answer."""

ParameterKind = Literal["positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"]
Style = Literal["own", "named", "trl", "verl", "verl-batch"]

_OWN = ("prompt", "response", "answer")
_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
_KNOWN: dict[Style, tuple[str, ...]] = {
    "named": _OWN,
    "trl": ("prompts", "completions", *ANSWERS, "log_extra", "log_metric"),
    "verl": _VERL,
    "verl-batch": tuple(f"{name}s" for name in _VERL),
}
"""By style: the parameters that it may require."""


_PLACES = {
    **dict.fromkeys(("prompt", "question", "query", "problem", "instruction"), 0),
    **dict.fromkeys(("response", "completion", "prediction", "predict_str", "model_output", "output"), 1),
    **dict.fromkeys(("ground_truth", "gold", "label", "target", "reference", "expected"), 2),
}
"""Names that mean one of the three arguments, whoever writes them."""


class Parameter(NamedTuple):
    """A parameter of a function; `kind` is that of `inspect.Parameter`, in lower case."""

    name: str
    kind: ParameterKind
    required: bool


class Way(NamedTuple):
    """How a function is called: `own` with prompt, response and answer in order, else by keyword: with those of `names`
    that there are, or, if it is `open` (`**kwargs`), with all that there is."""

    style: Style
    names: frozenset[str] = frozenset()
    open: bool = False


class UnfitFunction(ValueError):
    """The function cannot be called as a reward; the message completes "reward.function 'm:f': "."""


def way_of(parameters: Sequence[Parameter]) -> Way:
    """How a function with such parameters is called. Raises UnfitFunction where it cannot be, or could be misread.

    The names of TRL's (`completions`) and of verl's function (`solution_str`) decide before the number of parameters:
    called with prompt, response and answer in order, either would take one for another.
    """
    names = {parameter.name for parameter in parameters}
    shown = f"takes ({', '.join(_shown(parameter) for parameter in parameters)})"
    if "completions" in names:
        return _by_name("trl", parameters, shown)
    if "solution_str" in names:
        return _by_name("verl", parameters, shown)
    if "solution_strs" in names:
        return _by_name("verl-batch", parameters, shown)
    if "queries" in names:
        raise UnfitFunction(f"{shown}, as OpenRLHF calls it; {WANTED}")
    needed = [parameter.name for parameter in parameters if parameter.required]
    in_order = _takes_three(parameters)
    if "response" in needed and set(needed) <= set(_OWN) and not (in_order and needed == [*_OWN]):
        return _by_name("named", parameters, shown)
    if not in_order:
        known = "; slime's (args, sample) is not known here" if "sample" in names or "samples" in names else ""
        raise UnfitFunction(f"{shown}, and is called with prompt, response and answer{known}; {WANTED}")
    for place, each in enumerate(each for each in parameters[:3] if each.kind.startswith("positional")):
        if place < 2 and each.name.removesuffix("s") in (*_OWN, *_PLACES) and each.name.endswith("s"):
            raise UnfitFunction(f"{shown}, lists of many, and is called with one response at a time; {WANTED}")
        # A third one with a default may well be an option.
        if _PLACES.get(each.name, place) != place or not (each.required or each.name in (*ANSWERS, *_OWN)):
            raise UnfitFunction(f"{shown}, and would get the {_OWN[place]} as {each.name}; {WANTED}")
    return Way("own")


def _shown(parameter: Parameter) -> str:
    stars = {"var_positional": "*", "var_keyword": "**"}.get(parameter.kind, "")
    return f"{stars}{parameter.name}{'' if parameter.required or stars else '=…'}"


def _takes_three(parameters: Sequence[Parameter]) -> bool:
    places = [each for each in parameters if each.kind in ("positional_only", "positional_or_keyword")]
    more = any(each.kind == "var_positional" for each in parameters)
    alone = any(each.kind == "keyword_only" and each.required for each in parameters)
    return not alone and sum(each.required for each in places) <= 3 and (more or len(places) >= 3)


def _by_name(style: Style, parameters: Sequence[Parameter], shown: str) -> Way:
    known = _KNOWN[style]
    for each in parameters:
        if each.required and (each.name not in known or each.kind == "positional_only"):
            whose = {"trl": "as TRL calls it, ", "verl": "as verl calls it, ", "verl-batch": "as verl calls it, "}
            why = f"there is nothing to give it as {each.name}"
            raise UnfitFunction(f"{shown}, {whose.get(style, '')}and {why}; give that a default, or {WANTED}")
    named = frozenset(each.name for each in parameters if each.kind in ("positional_or_keyword", "keyword_only"))
    return Way(style, named, any(each.kind == "var_keyword" for each in parameters))


# ---- what the module's text shows ----


def function_faults(job: Job, job_path: str | Path) -> Iterator[tuple[Loc, str]]:
    """Yield (key, what is wrong and what to do) for each reward function of a job whose text shows that it cannot be
    called as a reward."""
    for part in job.reward.parts:
        if part.function is not None:
            fault = source_fault(Path(job_path).resolve().parent, part.function)
            if fault is not None:
                yield (*job.reward.key_of(part), "function"), f"'{part.function}' {fault}"


def must_be_callable(job: Job, job_path: str | Path) -> None:
    """Raise InputError, with the line, for the first of `function_faults`."""
    for loc, fault in function_faults(job, job_path):
        raise error_at(job_path, loc, f"{'.'.join(map(str, loc))}: {fault}")


def module_file(folder: Path, path: str) -> Path | None:
    """The file below `folder` that the module of `path` (`pkg.mod:name`) is imported from; None if none is there."""
    place = folder.joinpath(*path.partition(":")[0].split("."))
    files = place / "__init__.py", *place.parent.glob(f"{place.name}.*.so"), place.with_suffix(".py")
    return next((each for each in (*files, place.with_suffix(".pyc")) if each.is_file()), None)  # in Python's order


_Function = ast.FunctionDef | ast.AsyncFunctionDef
_BINDERS = (b"import *", b"__getattr__", b"globals", b"exec", b"setattr", b"sys.modules", b"__dict__")
"""What may bind a name that a module's text does not show."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def source_fault(folder: Path, path: str) -> str | None:
    """Why the reward function `path` (`pkg.mod:name`), whose module stands below `folder`, cannot be called; None if it
    can be, or if its text does not show it."""
    name, file = path.partition(":")[2], module_file(folder, path)
    if file is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the module's text
            tree = ast.parse(text := file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the import says more of it
    bound = [node for node in tree.body if name in _bound(node)]
    if not bound and "." not in name and not any(word in text for word in _BINDERS):
        return f"does not exist: {file.name} has no {name}; name a function of that module"
    if len(bound) != 1 or not isinstance(bound[0], _Function) or bound[0].decorator_list:
        return None
    try:
        way_of(_parameters(bound[0]))
        must_return(bound[0])
    except UnfitFunction as unfit:
        return str(unfit)
    return None


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement of a module may bind."""
    if isinstance(node, _DEFINITIONS):
        return {node.name}
    stored = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    defined = {each.name for each in ast.walk(node) if isinstance(each, _DEFINITIONS)}
    imported = {
        alias.asname or alias.name
        for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom) for alias in each.names
    }  # fmt: skip
    return stored | defined | imported


def _parameters(node: _Function) -> list[Parameter]:
    given = node.args
    places = [*given.posonlyargs, *given.args]
    first_default = len(places) - len(given.defaults)
    found = [
        Parameter(
            each.arg,
            "positional_only" if number < len(given.posonlyargs) else "positional_or_keyword",
            number < first_default,
        )
        for number, each in enumerate(places)
    ]
    found += [Parameter(given.vararg.arg, "var_positional", False)] if given.vararg else []
    found += [
        Parameter(each.arg, "keyword_only", default is None)
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return found + ([Parameter(given.kwarg.arg, "var_keyword", False)] if given.kwarg else [])


def must_return(function: ast.AST) -> None:
    """Raise UnfitFunction for a function whose text shows that it never returns a number."""
    own = list(_own_nodes(function))
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own):
        raise UnfitFunction("is a generator (it has a yield); return a number")
    values = [node.value for node in own if isinstance(node, ast.Return)]
    given = [
        value for value in values if value is not None and not (isinstance(value, ast.Constant) and value.value is None)
    ]
    if not given and not any(isinstance(node, ast.Raise) for node in own):
        raise UnfitFunction("returns nothing (no return with a value); return a number")
    keys = [_keys(value) for value in given]
    if keys and all(each is not None and not each & set(SCORE_KEYS) for each in keys):
        named = ", ".join(sorted({key for each in keys for key in each or ()})) or "none"
        raise UnfitFunction(f"returns a dict with the keys {named}; return a number, or a dict with the key score")


SCORE_KEYS = ("score", "reward")
"""Keys of a dict that a reward function returns: the first that is there is the reward."""


def _keys(value: ast.expr | None) -> set[str] | None:
    """The keys of a dict that is written out; None for any other expression."""
    if not isinstance(value, ast.Dict) or not all(isinstance(key, ast.Constant) for key in value.keys):
        return None
    return {str(key.value) for key in value.keys if isinstance(key, ast.Constant)}


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions and classes inside it."""
    inner = (*_DEFINITIONS, ast.Lambda)
    waiting = [node for node in getattr(function, "body", []) if isinstance(node, ast.AST)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, inner):
            waiting += ast.iter_child_nodes(node)
