"""Changes to documents by dotted path, `cluster.pools.main.nodes=4`: what `simulate --set`, `compare --vary` take.

A path begins with the name of a document; list items go by number (`profile.rollout.0.step_s`). Values are YAML. The
changed documents pass the models that files pass, so what could not stand in a file is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..plans.yaml.errors import InputError, joined
from ..plans.yaml.fault_lines import explain_all
from ..plans.yaml.yaml_doc import Document, Loc, parse

M = TypeVar("M", bound=BaseModel)


def assignment(text: str, option: str, example: str) -> tuple[list[str], Any]:
    """(parts of the path, value) of `path=value`.

    `option`: the option that the text was given to, and `example` a text that it takes; both for messages. Raises
    InputError.
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise InputError(f"{option} {text}: write PATH=VALUE, as in {example}")
    # In a mapping, so that a bare scalar is read by the rules of our documents (1e-3 is a number, `no` is text).
    try:
        parsed = parse(f"value: {value}\n", option).value
    except InputError as error:
        raise InputError(f"{option} {text}: {error.message}") from None
    if list(parsed) != ["value"]:
        raise InputError(f"{option} {text}: the value must be one YAML value")
    return path.strip().split("."), parsed["value"]


def assign(values: dict[str, Any], path: list[str], value: Any, text: str, option: str) -> Loc:
    """Set the value in `values`, the documents as plain data by name; returns the path with list items as numbers.

    `text`: the assignment as it was written to `option`, for messages. Raises InputError where there is no such path.
    """
    known_paths = list(_paths(values))
    here: Any = values
    location: list[str | int] = []
    for part in path:
        key: Any = part
        if isinstance(here, list) and part.isdecimal():
            key = int(part)
        present = key in here if isinstance(here, dict) else isinstance(here, list) and key in range(len(here))
        if not present:
            near = difflib.get_close_matches(".".join(path), known_paths, 3, 0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else _keys_here(here, location)
            raise InputError(f"{option} {text}: there is no {'.'.join(path)}; {hint}")
        location.append(key)
        parent, here = here, here[key]
    if len(location) < 2:
        raise InputError(f"{option} {text}: name a value inside the {path[0]}; {_keys_here(here, location)}")
    parent[location[-1]] = value
    return tuple(location)


def _keys_here(here: Any, location: list[str | int]) -> str:
    where = ".".join(str(part) for part in location) or "a path"
    if isinstance(here, dict) and here:
        return f"{where} {'has' if location else 'begins with'} {', '.join(str(key) for key in here)}"
    if isinstance(here, list):
        return f"{where} is a list of {len(here)}, items go by number from 0"
    return f"{where} is a single value"


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        path = f"{prefix}.{key}" if prefix else str(key)
        yield path
        yield from _paths(item, path)


def validated(value: Any, model: type[M], name: str, touched: dict[Loc, str], option: str) -> M:
    """The changed document `name` as its model. `touched`: assignments by the path that they set. Raises InputError
    with all that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        explained = explain_all(error, Document(value, {(): 1}, 1, False), model)
        faults = [InputError(f"{named(name, fault.location, touched, option)}: {fault.message}") for fault in explained]
        raise joined(faults) from None


def named(name: str, loc: Loc, touched: dict[Loc, str], option: str) -> str:
    """The assignment that a fault at `loc` of a document comes from, as far as can be told."""
    full = (name, *loc)

    def shared(other: Loc) -> int:
        return next(
            (i for i, (a, b) in enumerate(zip(full, other, strict=False)) if a != b), min(len(full), len(other))
        )

    if not touched:
        return "the plan does not fit its inputs"
    return f"{option} {touched[max(touched, key=shared)]}"
