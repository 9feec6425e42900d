"""The documents behind a plan, and changes to them by dotted path: `plan.job.rounds.short.cutoff_tokens=512`.

A path begins with `plan`, `job`, `cluster` or `profile`; `assignment` has its grammar.

P and n stand in the job and in the plan, and a plan's rounds issue multiples of them: where one is set, the others
follow, unless they are set too, and the notes say so.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..plans.check.plan_check import check_digests, input_path, model_of_plan
from ..plans.check.plan_fit import misfits
from ..plans.facts.model_shape import ModelShape, shape_of
from ..plans.schema.base import whole
from ..plans.schema.cluster import Cluster, load_cluster
from ..plans.schema.job import Job, load_job, model_folder
from ..plans.schema.plan import Plan, load_plan
from ..plans.yaml.errors import InputError, joined
from ..plans.yaml.fault_lines import explain_all
from ..plans.yaml.yaml_doc import Document, Loc, parse
from ..plans.yaml.yaml_io import load
from ..profiles.length_trace import LengthTrace
from ..profiles.library.scaled_profile import priced_as, priced_as_model
from ..profiles.profile_schema import Profile
from ..profiles.reward_tables import with_reward_times
from ..rounds.round_spec import UNBIASED
from .lengths.table_lengths import changed_table, open_lengths

# Changes to documents by dotted path, `cluster.pools.main.nodes=4`: what `simulate --set`, `compare --vary` take.
#
# A path begins with the name of a document; list items go by number (`profile.rollout.0.step_s`). Values are YAML.
# The changed documents pass the models that files pass, so what could not stand in a file is refused.

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


OPTION, EXAMPLE = "--set", "plan.job.rounds.short.cutoff_tokens=512"


@dataclass(frozen=True)
class Documents:
    """All that a plan is simulated from."""

    plan: Plan
    job: Job
    cluster: Cluster
    profile: Profile
    trace: LengthTrace
    model: ModelShape | None
    """The shape of the job's model; None: unknown."""


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
    profile = priced_as(profile, job, model_folder(job, input_path(plan.inputs.job, plan_path)))
    profile, _ = with_reward_times(profile, job.reward.kind)
    if trace is None:
        of_profile = profile.lengths is not None and profile.lengths.sha256 == plan.inputs.lengths.sha256
        cap_tokens = profile.lengths.cap_tokens if of_profile and profile.lengths else None
        trace = open_lengths(plan.inputs.lengths, plan_path, cap_tokens)
        if changed := changed_table(plan.inputs.lengths):
            warnings.warn(f"{changed}; simulated as it is now", stacklevel=2)
    return Documents(plan, job, cluster, profile, trace, model_of_plan(plan, plan_path))


def change(documents: Documents, assignments: Sequence[str]) -> tuple[Documents, list[str]]:
    """(the documents with `path=value` assignments made, notes on what followed). Raises InputError.

    Assignments are made in order, a later one may build on an earlier one; the documents are checked when all are made.
    """
    models: dict[str, type[BaseModel]] = {"plan": Plan, "job": Job, "cluster": Cluster, "profile": Profile}
    values = {name: whole(getattr(documents, name)) for name in models}
    touched: dict[Loc, str] = {}
    for text in assignments:
        path, value = assignment(text, OPTION, EXAMPLE)
        touched[assign(values, path, value, text, OPTION)] = text
    notes = _follow(values, documents, touched)
    changed: dict[str, Any] = {}
    for name, model in models.items():
        if any(loc[0] == name for loc in touched) or notes:
            changed[name] = validated(values[name], model, name, touched, OPTION)
    if "job" in changed and changed["job"].model != documents.job.model:
        shape = shape_of(changed["job"].model.path)
        changed["model"] = shape and replace(shape, lora=changed["job"].model.lora)
        profile = changed["profile"] = priced_as_model(changed.get("profile", documents.profile), changed["job"], None)
        notes += [profile.scaled] if profile.scaled else []
    result = Documents(**{**vars(documents), **changed})
    # The divisors of the loss change no seconds, and these documents train no run.
    faults = misfits(result.plan, result.cluster, result.job, result.model)
    fault = next((fault for fault in faults if fault.rule != "loss-divisor"), None)
    if fault is not None:
        where = ".".join(map(str, fault.location))
        raise InputError(f"{named('plan', fault.location, touched, OPTION)}: plan.{where}: {fault.text}")
    return result, notes


SCATTER = 0.03
"""A simulated figure that is as near to the plan's counts as the plan's: so far do runs of one plan scatter."""

ENOUGH_STEPS = 100
"""With fewer steps their p95 is that of a handful, which one long round more or less moves."""


def as_simulated(plan: Plan, figures: Mapping[str, Any]) -> Plan:
    """A changed plan with what its simulation gave in place of what it predicts, for rules that judge it: p95 of a
    step, prices, nodes, bias, samples that the cap cuts. `figures`: as of run_summary.summarize."""
    predicted = plan.predicted

    def of(simulated: float, planned: float) -> float:
        return planned if math.isclose(simulated, planned, rel_tol=SCATTER) else simulated

    every, cut = figures["all"], predicted.cut
    p95 = of(every["step_s"]["p95"], predicted.step_s.p95) if every["steps"] >= ENOUGH_STEPS else predicted.step_s.p95
    unbiased = plan.job.bias.mode in UNBIASED
    changes = {
        "step_s": predicted.step_s.model_copy(update={"p95": p95}),
        "usd_per_1k_samples": of(figures["usd_per_1k_samples"], predicted.usd_per_1k_samples),
        **{key: figures[key] for key in ("usd_per_hour", "nodes", "train_nodes")},
        "length_ratio": 1.0 if unbiased else of(figures["length_ratio"], predicted.length_ratio),
        "cut": cut and cut.model_copy(update={"share": of(figures["cut_share"], cut.share)}),
    }
    return plan.model_copy(update={"predicted": predicted.model_copy(update=changes)})


_SIZES = (("prompts_per_step", "prompts"), ("samples_per_prompt", "samples"))


def _follow(values: dict[str, Any], documents: Documents, touched: dict[Loc, str]) -> list[str]:
    """Bring P and n of the job, of the plan's step and of its rounds in line with the one that was set."""
    notes = []
    for size, issued in _SIZES:
        in_job: Loc = ("job", "rollout", size)
        in_plan: Loc = ("plan", "job", "issue", size)
        set_there = next((location for location in (in_job, in_plan) if location in touched), None)
        if set_there is None:
            continue
        new, old = _at(values, set_there), _at(vars(documents), in_plan)
        if not isinstance(new, int) or isinstance(new, bool) or new < 1:
            continue  # the document's model reports the fault
        follows = [(location, new) for location in (in_job, in_plan) if location not in touched]
        for kind in ("short", "long"):
            location: Loc = ("plan", "job", "rounds", kind, "issue", issued)
            if values["plan"]["job"]["rounds"][kind] is not None and location not in touched:
                follows.append((location, max(1, round(_at(values, location) * new / old))))
        for location, value in follows:
            before = _at(values, location)
            if before != value:
                _at(values, location[:-1])[location[-1]] = value
                notes.append(f"{'.'.join(map(str, location))} follows: {before} -> {value}")
    return notes


def _at(value: Any, location: Loc) -> Any:
    for part in location:
        value = getattr(value, str(part)) if isinstance(value, BaseModel) else value[part]
    return value
