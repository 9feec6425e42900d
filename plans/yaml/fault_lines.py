"""From pydantic's list of errors to the lines that tell the user what to write instead, one for each fault.

Order of precedence: unknown keys (a misspelt key also makes the right one missing), then wrong values, then missing
keys; within each, by line. Units get most care: `deadline_ms: 2000`, `deadline: 2` and `deadline_s: 2 min` each get the
right key and number.
"""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from ..schema.base import GROUP_ID_PATTERN, NAME_PATTERN
from .key_units import UNIT_NAMES, in_unit, is_number, not_a_number, rounded, unit_factor, unit_of_key
from .yaml_doc import Document, Loc

# Prices that take each other's place: which one is meant cannot be told from a misspelt key.
_OR = dict.fromkeys(("usd_per_node_hour", "usd_per_gpu_hour"), "usd_per_node_hour' or 'usd_per_gpu_hour")
_RANK = {"extra_forbidden": 0, "missing": 2}


@dataclass(frozen=True, slots=True)
class Explained:
    """One fault that pydantic found; `rule`: the error's type, or the rule that a `cross_error` names."""

    rule: str
    loc: Loc
    line: int
    message: str


def explain_all(error: ValidationError, document: Document, model: type[BaseModel]) -> list[Explained]:
    """All faults, the one to be mended first in front."""
    ranked: list[tuple[int, int, int, Loc, Any]] = []
    for item in error.errors(include_url=False):
        loc: Loc = tuple(item["loc"])
        ctx = item.get("ctx", {})
        if item["type"] == "cross_field" and ctx["field"]:
            for part in ctx["field"].split("."):
                listed = part.isdigit() and (*loc, int(part)) in document.lines
                loc = (*loc, int(part) if listed else part)
        line = document.line_of(loc)
        if item["type"] == "missing" and document.line_of(loc[:-1]) == 1 and len(loc) == 1:
            line = document.last_line  # missing at the top: the place to add it is the end
        ranked.append((_RANK.get(item["type"], 1), line, len(ranked), loc, item))
    ranked.sort(key=lambda entry: entry[:3])
    # A misspelt key is one fault, though it also makes the right key missing.
    meant = {(*loc[:-1], _meant(loc, model)) for *_, loc, item in ranked if item["type"] == "extra_forbidden"}
    return [
        Explained(
            item["ctx"]["rule"] if item["type"] == "cross_field" else item["type"],
            loc,
            line,
            _message(loc, item, document, model),
        )
        for _, line, _, loc, item in ranked
        if item["type"] != "missing" or loc not in meant
    ]


def _message(loc: Loc, item: Any, document: Document, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in loc if part != "[key]")
    kind, ctx, value = item["type"], item.get("ctx", {}), item["input"]
    field = _field_at(model, loc)
    about = _about(field)
    if kind == "extra_forbidden":
        return _unknown_key(loc, value, model)
    if kind == "missing":
        cut = "; the file may be truncated" if document.torn or len(loc) == 1 else ""
        return f"missing key '{key}'{about}; add it{cut}"
    if kind == "cross_field":
        return f"{key}: {ctx['text']}"
    shown = _show(value)
    if kind == "string_pattern_mismatch" and ctx["pattern"] == GROUP_ID_PATTERN:
        return f"{key}: {shown} is no id of a group; write g and a number, such as g1"
    if "[key]" in loc or (kind == "string_pattern_mismatch" and ctx["pattern"] == NAME_PATTERN):
        return (
            f"{key}: {shown} is no name; write letters, digits, '_', '.' and '-', beginning with a letter or digit, "
            "at most 64"
        )
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'|(-?\d+)", ctx["expected"])
        meant = _meant_choice(str(value), [a or b for a, b in choices])
        hint = f"; did you mean '{meant}'?" if meant else about
        return f"{key}: must be {ctx['expected']}, not {shown}{hint}"
    if kind in ("float_type", "int_type", "int_from_float", "float_parsing", "int_parsing"):
        whole = kind.startswith("int")
        return f"{key}: {not_a_number(str(loc[-1]), value, whole, shown)}{about}"
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        return f"{key}: must be {word} {rounded(ctx[name])}{in_unit(str(loc[-1]))}, not {shown}{about}"
    if kind == "finite_number":
        return f"{key}: must be a finite number, not {shown}{about}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"{key}: must be a mapping of keys to values, not {shown}{about}"
    if kind in ("tuple_type", "list_type"):
        return f"{key}: must be a list, not {shown}; write [{value if value is not None else '...'}]{about}"
    if kind in ("too_short", "too_long"):
        word, bound = ("at least", ctx.get("min_length")) if kind == "too_short" else ("at most", ctx.get("max_length"))
        return f"{key}: must have {word} {bound} item(s), not {ctx['actual_length']}{about}"
    if kind == "string_too_short":
        return f"{key}: must not be empty{about}"
    if kind == "bool_type":
        return f"{key}: must be true or false, not {shown}{about}"
    if kind == "string_type":
        return f"{key}: must be text, not {shown}; put it in quotes{about}"
    if kind == "string_pattern_mismatch":
        return f"{key}: {shown} does not have the form needed{about or ': ' + ctx['pattern']}"
    return f"{key}: {item['msg'][:1].lower()}{item['msg'][1:]}, not {shown}{about}"


_SYNONYMS = {"gpu": "cuda", "gpus": "cuda", "nvidia": "cuda", "core": "cpu", "cores": "cpu"}
"""Words that people write for one of our choices and that are spelt like another one."""


def _meant_choice(value: str, choices: list[str]) -> str | None:
    """The choice that `value` stands for: another word for it, or nearly spelt so."""
    synonym = _SYNONYMS.get(value.lower())
    if synonym in choices:
        return synonym
    return next(iter(difflib.get_close_matches(value, choices, 1, 0.6)), None)


_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _known(loc: Loc, model: type[BaseModel]) -> list[str]:
    parent = _model_at(model, loc[:-1])
    return list(parent.model_fields) if parent else []


def _meant(loc: Loc, model: type[BaseModel]) -> str | None:
    """The declared key that the unknown one at `loc` stands for: the same but for its unit, or nearly spelt so."""
    name, known = str(loc[-1]), _known(loc, model)
    same = [candidate for candidate in known if unit_factor(name, candidate) is not None]
    near = [key for key in difflib.get_close_matches(name, known, 3, 0.6) if _alike(name, key)]
    return next(iter(same or near), None)


def _alike(name: str, near: str) -> bool:
    """Whether one may be a slip for the other: not only a word that many keys begin or end with is the same."""
    shared = set(name.lower().split("_")) & set(near.lower().split("_"))
    one, other = ("_".join(w for w in text.lower().split("_") if w not in shared) for text in (name, near))
    return not one or not other or difflib.SequenceMatcher(None, one, other).ratio() >= 0.5


def _unknown_key(loc: Loc, value: Any, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in loc)
    meant = _meant(loc, model)
    if meant is None:
        known = _known(loc, model)
        return f"unknown key '{key}'; remove it" + (f", the keys here are {', '.join(known)}" if known else "")
    conversion = unit_factor(str(loc[-1]), meant)
    if conversion is None:
        return f"unknown key '{key}'; did you mean '{_OR.get(meant, meant)}'?"
    suffix = unit_of_key(meant)
    assert suffix is not None
    write = f"'{meant}: {rounded(value * conversion)}'" if is_number(value) else f"'{meant}'"
    return f"unknown key '{key}': wrong unit; it is '{meant}', in {UNIT_NAMES[suffix]}: write {write}"


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite, or too large for one"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _about(field: Any) -> str:
    if field is None or not field.description:
        return ""
    first = re.split(r"(?<=\w)\. |;", " ".join(field.description.split()), maxsplit=1)[0]
    return f" ({first.rstrip('.')})"


def _field_at(model: type[BaseModel], loc: Loc) -> Any:
    """The FieldInfo that `loc` leads to (for an item of a list or mapping, that of the whole), or None."""
    for end in range(len(loc), 0, -1):
        parent = _model_at(model, loc[: end - 1])
        if parent is not None:
            return parent.model_fields.get(str(loc[end - 1]))
    return None


def _model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The model class of the mapping at `loc`, or None where there is none."""
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = _strip(field.annotation) if field else None
        else:
            arguments = typing.get_args(current)
            current = (
                _strip(arguments[-1] if typing.get_origin(current) is dict else arguments[0]) if arguments else None
            )
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _strip(annotation: Any) -> Any:
    """The annotation without Annotated, and of a union the part that is no None."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin in (typing.Union, types.UnionType):
            annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
        else:
            return annotation
