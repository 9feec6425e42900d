"""Turn pydantic's list of errors into messages, one for each fault, that tell the user what to write instead.

Order: unknown keys first (a misspelt key also makes the right key missing), then wrong values, then missing keys; each
kind by line. For wrong units (`deadline_ms: 2000`, `deadline: 2`, `deadline_s: 2 min`) the message gives the right key
and the converted number.
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

from .odd_text import foreign, meant_number
from .yaml_doc import Document, Loc

_UNITS: dict[str, tuple[str, float]] = {
    # unit -> (suffix of our keys, factor from the unit to that of the suffix)
    **{u: ("s", 1e-9) for u in ("ns", "nanoseconds")},
    **{u: ("s", 1e-6) for u in ("us", "microseconds")},
    **{u: ("s", 1e-3) for u in ("ms", "msec", "millis", "milliseconds")},
    **{u: ("s", 1.0) for u in ("s", "sec", "secs", "second", "seconds")},
    **{u: ("s", 60.0) for u in ("m", "min", "mins", "minute", "minutes")},
    **{u: ("s", 3600.0) for u in ("h", "hr", "hrs", "hour", "hours")},
    **{u: ("bytes", 1.0) for u in ("b", "byte", "bytes")},
    **{f"{p}b": ("bytes", 1000.0 ** (i + 1)) for i, p in enumerate("kmgt")},
    **{f"{p}ib": ("bytes", 1024.0 ** (i + 1)) for i, p in enumerate("kmgt")},
    **{u: ("tokens", 1.0) for u in ("tok", "toks", "token", "tokens")},
    **{u: ("tokens", 1000.0) for u in ("k", "ktok", "ktokens")},
    **{
        u: ("usd_per_node_hour", 1.0) for u in ("usd_per_node_hour", "usd_per_hour", "usd_per_h", "usd", "dollars", "$")
    },
}


UNIT_NAMES = {
    "s": "seconds",
    "bytes": "bytes",
    "bytes_per_s": "bytes per second",
    "tokens": "tokens",
    "usd_per_hour": "USD per hour",
    "usd_per_node_hour": "USD per node and hour",
    "usd_per_gpu_hour": "USD per GPU and hour",
}


def unit_factor(name: str, candidate: str) -> float | None:
    """Factor from the unit of `name` to that of `candidate`; None unless both are the same key in two units."""
    suffix = unit_of_key(candidate)
    if suffix is None:
        return None
    stem = candidate.removesuffix(suffix).rstrip("_")
    if name == stem:
        return 1.0
    head, _, unit = name.rpartition("_") if not name.startswith(stem + "_") else (stem, "_", name[len(stem) + 1 :])
    if head != stem or unit.lower() not in _UNITS:
        return None
    family, factor = _UNITS[unit.lower()]
    return factor if family == suffix else None


def unit_of_key(key: str) -> str | None:
    """Return the unit that a key ends with, as in `deadline_s`; None without one."""
    for suffix in sorted(UNIT_NAMES, key=len, reverse=True):
        if key == suffix or key.endswith("_" + suffix):
            return suffix
    return None


def in_unit(key: str) -> str:
    """Return the unit of a key as text to follow a number, with a space before it; empty without a unit."""
    suffix = unit_of_key(key)
    return f" {UNIT_NAMES[suffix]}" if suffix else ""


def not_a_number(key: str, value: Any, whole: bool, shown: str, quoted: bool) -> str:
    """Return the message for a value that is not a number, with the number to write where that can be told. `shown`: as
    it is written; `quoted`: whether in quotes."""
    kind = "a whole number" if whole else "a number"
    suffix = unit_of_key(key)
    of = f" of {UNIT_NAMES[suffix]}" if suffix else ""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([-+]?[0-9][0-9_]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z_$]*)\s*", value)
        if match and match[2] and suffix and _UNITS.get(match[2].lower(), ("", 0))[0] == suffix:
            converted = rounded(float(match[1]) * _UNITS[match[2].lower()][1])
            return f"wrong unit: must be {kind}{of} and no unit, not {shown}; write {converted}"
        if match and not match[2] and quoted:
            return f"must be {kind}{of}, not {shown} in quotes; write {match[1]}"
    text, meant = str(value) if isinstance(value, str) else shown, list[str]()
    if isinstance(value, str) or whole:
        meant = [number for number in meant_number(text, suffix == "s") if not whole or float(number) % 1 == 0]
    if not meant and whole and isinstance(value, float) and value == value // 1:
        meant = [str(int(value))]
    if whole:
        meant = [str(int(float(number))) for number in meant]
    return f"must be {kind}{of}, not {shown}" + (f"; write {' or '.join(meant)}" if meant else "")


def is_number(value: Any) -> bool:
    """Return whether a value is a number that can be converted."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e280


def rounded(value: float) -> str:
    """Return a number as text for a message: as an integer, or with six digits."""
    return str(int(value)) if abs(value) < 1e300 and value == int(value) else f"{value:.6g}"


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
GROUP_ID_PATTERN = r"^g[0-9]{1,9}$"

# Two keys for the price of a node: a misspelt key may mean either, so the message names both.
_OR = dict.fromkeys(("usd_per_node_hour", "usd_per_gpu_hour"), "usd_per_node_hour' or 'usd_per_gpu_hour")
_RANK = {"extra_forbidden": 0, "missing": 2}


@dataclass(frozen=True, slots=True)
class ExplainedFault:
    """A fault that pydantic found, with its message. `rule`: pydantic's error type, or the rule of a `cross_error`."""

    rule: str
    location: Loc
    line: int
    message: str


def explain_all(error: ValidationError, document: Document, model: type[BaseModel]) -> list[ExplainedFault]:
    """All faults in the order in which the user should fix them."""
    ranked: list[tuple[int, int, int, Loc, Any]] = []
    for item in error.errors(include_url=False):
        location: Loc = tuple(item["loc"])
        ctx = item.get("ctx", {})
        if item["type"] == "cross_field" and ctx["field"]:
            for part in ctx["field"].split("."):
                listed = part.isdigit() and (*location, int(part)) in document.lines
                location = (*location, int(part) if listed else part)
        line = document.line_of(location)
        if item["type"] == "missing" and document.line_of(location[:-1]) == 1 and len(location) == 1:
            line = document.last_line  # missing at the top: the place to add it is the end
        ranked.append((_RANK.get(item["type"], 1), line, len(ranked), location, item))
    ranked.sort(key=lambda entry: entry[:3])
    # A misspelt key is one fault, though it also makes the right key missing.
    meant = {
        (*location[:-1], _meant(location, model)) for *_, location, item in ranked if item["type"] == "extra_forbidden"
    }
    return [
        ExplainedFault(
            item["ctx"]["rule"] if item["type"] == "cross_field" else item["type"],
            location,
            line,
            _message(location, item, document, model),
        )
        for _, line, _, location, item in ranked
        if (item["type"] != "missing" or location not in meant)
        and not (item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"])  # some are no items
    ]


def _message(location: Loc, item: Any, document: Document, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in location if part != "[key]")
    kind, ctx, value = item["type"], item.get("ctx", {}), item["input"]
    field = _field_at(model, location)
    about = _about(field)
    if kind == "extra_forbidden":
        return _unknown_key(location, value, model)
    unquoted = document.plain.get(location)
    odd = foreign(value) if isinstance(value, str) and kind not in ("string_type", "string_too_short") else None
    if odd is not None:
        about = f"; it holds {odd}"
    if kind == "missing":
        cut = "; the file may be truncated" if document.torn or len(location) == 1 else ""
        return f"missing key '{key}'{about}; add it{cut}"
    if kind == "cross_field":
        return f"{key}: {ctx['text']}"
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    shown = unquoted if unquoted is not None and numeric and len(unquoted) <= 80 else _show(value)
    if kind == "string_pattern_mismatch" and ctx["pattern"] == GROUP_ID_PATTERN:
        return f"{key}: {shown} is no id of a group; write g and a number, such as g1"
    if "[key]" in location or (kind == "string_pattern_mismatch" and ctx["pattern"] == NAME_PATTERN):
        return (
            f"{key}: {shown} is no name; write letters, digits, '_', '.' and '-', beginning with a letter or digit, "
            "at most 64"
        )
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'|(-?\d+)", ctx["expected"])
        meant = _meant_choice(str(value), [a or b for a, b in choices])
        hint = f"; did you mean '{meant}'?" if meant and odd is None else about
        return f"{key}: must be {ctx['expected']}, not {shown}{hint}"
    if kind in ("float_type", "int_type", "int_from_float", "float_parsing", "int_parsing"):
        whole = kind.startswith("int")
        return f"{key}: {not_a_number(str(location[-1]), value, whole, shown, unquoted is None)}{about}"
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        return f"{key}: must be {word} {rounded(ctx[name])}{in_unit(str(location[-1]))}, not {shown}{about}"
    if kind == "finite_number":
        return f"{key}: must be a finite number, not {shown}{about}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"{key}: must be a mapping of keys to values, not {shown}{about}"
    if kind in ("tuple_type", "list_type"):
        write = "" if odd is not None else f"; write [{value if value is not None else '...'}]"
        return f"{key}: must be a list, not {shown}{write}{about}"
    if kind in ("too_short", "too_long"):
        word, bound = ("at least", ctx.get("min_length")) if kind == "too_short" else ("at most", ctx.get("max_length"))
        return f"{key}: must have {word} {bound} item{'s' * (bound != 1)}, not {ctx['actual_length']}{about}"
    if kind == "string_too_short":
        return f"{key}: must not be empty{about}"
    if kind == "bool_type":
        word = str(value).lower()
        write = "; write true" if word in _YES else "; write false" if word in _NO else ""
        return f"{key}: must be true or false, not {shown}{write}{about}"
    if kind == "string_type":
        quotes = "" if value is None or isinstance(value, (dict, list, tuple)) else "; put it in quotes"
        return f"{key}: must be text, not {shown}{quotes}{about}"
    if kind == "string_pattern_mismatch":
        return f"{key}: {shown} does not have the form needed{about or ': ' + ctx['pattern']}"
    return f"{key}: {item['msg'][:1].lower()}{item['msg'][1:]}, not {shown}{about}"


_YES, _NO = ("yes", "y", "on", "true", "t", "1"), ("no", "n", "off", "false", "f", "0")
_SYNONYMS = {"gpu": "cuda", "gpus": "cuda", "nvidia": "cuda", "core": "cpu", "cores": "cpu"}
"""Other words for one of our choices whose spelling is nearer to another choice."""


def _meant_choice(value: str, choices: list[str]) -> str | None:
    """The choice that the user probably meant by `value`: a synonym or a similar spelling; None if there is none."""
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


def _declared_keys(location: Loc, model: type[BaseModel]) -> list[str]:
    parent = _model_at(model, location[:-1])
    return list(parent.model_fields) if parent else []


def _meant(location: Loc, model: type[BaseModel]) -> str | None:
    """The declared key that the user probably meant by the unknown key at `location`: the same key in another unit, or
    a similar spelling; None if there is none."""
    name, declared = str(location[-1]), _declared_keys(location, model)
    same = [candidate for candidate in declared if unit_factor(name, candidate) is not None]
    near = [key for key in difflib.get_close_matches(name, declared, 3, 0.6) if _alike(name, key)]
    return next(iter(same or near), None)


def _alike(name: str, near: str) -> bool:
    """Whether `name` may be a misspelling of `near`: the keys are also similar without the words that both share."""
    shared = set(name.lower().split("_")) & set(near.lower().split("_"))
    rests = ["_".join(word for word in key.lower().split("_") if word not in shared) for key in (name, near)]
    return not all(rests) or difflib.SequenceMatcher(None, rests[0], rests[1]).ratio() >= 0.5


def _unknown_key(location: Loc, value: Any, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in location)
    meant, odd = _meant(location, model), foreign(str(location[-1]))
    if odd is not None:
        return f"unknown key '{key}': it holds {odd}"
    if meant is None:
        declared = _declared_keys(location, model)
        return f"unknown key '{key}'; remove it" + (f", the keys here are {', '.join(declared)}" if declared else "")
    conversion = unit_factor(str(location[-1]), meant)
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
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
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


def _field_at(model: type[BaseModel], location: Loc) -> Any:
    """The FieldInfo of the key at `location`, or of the list or mapping with the item at it; None if unknown."""
    for end in range(len(location), 0, -1):
        parent = _model_at(model, location[: end - 1])
        if parent is not None:
            return parent.model_fields.get(str(location[end - 1]))
    return None


def _model_at(model: type[BaseModel], location: Loc) -> type[BaseModel] | None:
    """The model class of the mapping at `location`; None if there is none."""
    current: Any = model
    for part in location:
        if isinstance(current, type) and issubclass(current, BaseModel):
            if isinstance(part, int):  # an item of a list that may also be written as one section
                continue
            field = current.model_fields.get(str(part))
            current = _strip(field.annotation) if field else None
        else:
            arguments = typing.get_args(current)
            current = (
                _strip(arguments[-1] if typing.get_origin(current) is dict else arguments[0]) if arguments else None
            )
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _strip(annotation: Any) -> Any:
    """The annotation without Annotated and without `| None`."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin in (typing.Union, types.UnionType):
            annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
        else:
            return annotation
