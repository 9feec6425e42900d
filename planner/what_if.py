"""The documents behind a plan, and changes to them by dotted path: `plan.job.rounds.short.cutoff_tokens=512`.

A path begins with `plan`, `job`, `cluster` or `profile`; list items go by number (`profile.rollout.0.step_s`). Values
are YAML. The changed documents pass the models that files pass, so what could not stand in a file cannot be simulated.

P and n stand in the job and in the plan, and a plan's rounds issue multiples of them: where one is set, the others
follow, unless they are set too, and the notes say so.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..plans.check import check_digests, input_path
from ..plans.checks.fit import misfits
from ..plans.cluster import Cluster, load_cluster
from ..plans.errors import InputError, joined
from ..plans.explain import explain_all
from ..plans.job import Job, load_job
from ..plans.plan import Plan, load_plan
from ..plans.yaml_doc import Document, Loc, parse
from ..plans.yaml_io import load
from ..profiles.lengths import LengthTrace, read_lengths
from ..profiles.schema import Profile

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Documents:
    """All that a plan is simulated from."""

    plan: Plan
    job: Job
    cluster: Cluster
    profile: Profile
    trace: LengthTrace


def load_documents(plan_path: Path, profile_path: Path | None = None, trace: LengthTrace | None = None) -> Documents:
    """A plan and the files it names; a profile or a length trace that is given takes the place of the plan's.

    A file that has changed since the plan was solved is a warning. Raises InputError for what cannot be read.
    """
    plan = load_plan(plan_path)
    try:
        check_digests(plan, plan_path)
    except InputError as error:
        for stale in error.each():
            if "no such file" not in stale.message:
                warnings.warn(f"{stale}; simulated as it is now", stacklevel=2)
    job = load_job(input_path(plan.inputs.job, plan_path))
    cluster = load_cluster(input_path(plan.inputs.cluster, plan_path))
    profile = load(profile_path or input_path(plan.inputs.profile, plan_path), Profile)
    if trace is None:
        cap_tokens = profile.lengths.cap_tokens if profile.lengths else None
        trace = read_lengths(input_path(plan.inputs.lengths, plan_path), cap_tokens=cap_tokens)
    return Documents(plan, job, cluster, profile, trace)


def change(documents: Documents, assignments: Sequence[str]) -> tuple[Documents, list[str]]:
    """(the documents with `path=value` assignments made, notes on what followed). Raises InputError.

    Assignments are made in order, a later one may build on an earlier one; the documents are checked when all are made.
    """
    models: dict[str, type[BaseModel]] = {"plan": Plan, "job": Job, "cluster": Cluster, "profile": Profile}
    values = {name: _whole(getattr(documents, name)) for name in models}
    touched: dict[Loc, str] = {}
    for text in assignments:
        path, value = _assignment(text)
        touched[_assign(values, path, value, text)] = text
    notes = _follow(values, documents, touched)
    changed: dict[str, Any] = {}
    for name, model in models.items():
        if any(loc[0] == name for loc in touched) or notes:
            changed[name] = _validated(values[name], model, name, touched)
    result = Documents(**{**vars(documents), **changed})
    # What the loss is divided by changes no second, and nobody trains by these documents.
    found = misfits(result.plan, result.cluster, result.job, None)
    fault = next((fault for fault in found if fault.rule != "loss-divisor"), None)
    if fault is not None:
        where = ".".join(map(str, fault.loc))
        raise InputError(f"{_named('plan', fault.loc, touched)}: plan.{where}: {fault.text}")
    return result, notes


def _whole(value: Any) -> Any:
    """A document as plain data with all keys that it may have, also those that its file leaves out while null."""
    if isinstance(value, BaseModel):
        return {name: _whole(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, (list, tuple)) else value


def _assignment(text: str) -> tuple[list[str], Any]:
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise InputError(f"--set {text}: write PATH=VALUE, as in plan.job.rounds.short.cutoff_tokens=512")
    # In a mapping, so that a bare scalar is read by the rules of our documents (1e-3 is a number, `no` is text).
    try:
        parsed = parse(f"value: {value}\n", "--set").value
    except InputError as error:
        raise InputError(f"--set {text}: {error.message}") from None
    if list(parsed) != ["value"]:
        raise InputError(f"--set {text}: the value must be one YAML value")
    return path.strip().split("."), parsed["value"]


def _assign(values: dict[str, Any], path: list[str], value: Any, text: str) -> Loc:
    """Set the value; returns the path with list items as numbers."""
    known = list(_paths(values))
    here: Any = values
    loc: list[str | int] = []
    for part in path:
        key: Any = part
        if isinstance(here, list) and part.isdecimal():
            key = int(part)
        found = key in here if isinstance(here, dict) else isinstance(here, list) and key in range(len(here))
        if not found:
            near = difflib.get_close_matches(".".join(path), known, 3, 0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else _keys_here(here, loc)
            raise InputError(f"--set {text}: there is no {'.'.join(path)}; {hint}")
        loc.append(key)
        parent, here = here, here[key]
    if len(loc) < 2:
        raise InputError(f"--set {text}: name a value inside the {path[0]}; {_keys_here(here, loc)}")
    parent[loc[-1]] = value
    return tuple(loc)


def _keys_here(here: Any, loc: list[str | int]) -> str:
    where = ".".join(str(part) for part in loc) or "a path"
    if isinstance(here, dict) and here:
        return f"{where} {'has' if loc else 'begins with'} {', '.join(str(key) for key in here)}"
    if isinstance(here, list):
        return f"{where} is a list of {len(here)}, items go by number from 0"
    return f"{where} is a single value"


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        path = f"{prefix}.{key}" if prefix else str(key)
        yield path
        yield from _paths(item, path)


_SIZES = (("prompts_per_step", "prompts"), ("samples_per_prompt", "samples"))


def _follow(values: dict[str, Any], documents: Documents, touched: dict[Loc, str]) -> list[str]:
    """Bring P and n of the job, of the plan's step and of its rounds in line with the one that was set."""
    notes = []
    for size, issued in _SIZES:
        in_job: Loc = ("job", "rollout", size)
        in_plan: Loc = ("plan", "job", "issue", size)
        set_there = next((loc for loc in (in_job, in_plan) if loc in touched), None)
        if set_there is None:
            continue
        new, old = _at(values, set_there), _at(vars(documents), in_plan)
        if not isinstance(new, int) or isinstance(new, bool) or new < 1:
            continue  # the models say what is wrong with it
        follows = [(loc, new) for loc in (in_job, in_plan) if loc not in touched]
        for kind in ("short", "long"):
            at: Loc = ("plan", "job", "rounds", kind, "issue", issued)
            if values["plan"]["job"]["rounds"][kind] is not None and at not in touched:
                follows.append((at, max(1, round(_at(values, at) * new / old))))
        for loc, value in follows:
            before = _at(values, loc)
            if before != value:
                _at(values, loc[:-1])[loc[-1]] = value
                notes.append(f"{'.'.join(map(str, loc))} follows: {before} -> {value}")
    return notes


def _at(value: Any, loc: Loc) -> Any:
    for part in loc:
        value = getattr(value, str(part)) if isinstance(value, BaseModel) else value[part]
    return value


def _validated(value: Any, model: type[M], name: str, touched: dict[Loc, str]) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = explain_all(error, Document(value, {(): 1}, 1, False), model)
        raise joined([InputError(f"{_named(name, fault.loc, touched)}: {fault.message}") for fault in found]) from None


def _named(name: str, loc: Loc, touched: dict[Loc, str]) -> str:
    """The assignment that a fault at `loc` of a document comes from, as far as can be told."""
    full = (name, *loc)

    def shared(other: Loc) -> int:
        return next(
            (i for i, (a, b) in enumerate(zip(full, other, strict=False)) if a != b), min(len(full), len(other))
        )

    if not touched:
        return "the plan does not fit its inputs"
    return f"--set {touched[max(touched, key=shared)]}"
