"""What a caller gives: documents as paths or as objects, response lengths, and numbers and words in their ranges."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..plans.yaml.errors import ErrorCollector, InputError
from ..plans.yaml.input_files import in_memory
from .input_paths import need_cluster, need_profile, need_trace

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ..plans.schema.cluster import Cluster
    from ..plans.schema.job import Job
    from ..plans.schema.plan import Inputs, LengthsInput
    from ..profiles.length_trace import LengthTrace
    from ..profiles.profile_schema import Profile


M = TypeVar("M", bound="BaseModel")

File = str | os.PathLike[str]
"""A path; relative to the current folder."""

MOST_SEED = 2**63 - 1


_FOLDER = "_folder"


def load(path: File, model: type[M]) -> M:
    """Read a document, such as `load("job.yaml", Job)`. Raises InputError with the file and line of each fault.

    The object remembers the folder of its file, and so does a changed copy (`model_copy`): what it names is there.
    """
    from ..plans.yaml.yaml_io import load as load_file

    return standing_in(Path(path).parent, load_file(Path(path), model))


def standing_in(folder: Path, document: M) -> M:
    """The document, which remembers the folder that its relative paths begin in. Equality and files do without it."""
    vars(document)[_FOLDER] = folder.resolve()
    return document


def path_of(given: File | BaseModel | LengthTrace) -> Path:
    """The path of what is given. An object is read as a file of the folder that it remembers, or of the current one."""
    from pydantic import BaseModel

    from ..plans.yaml.yaml_io import document_name, dump
    from ..profiles.length_trace import LengthTrace

    if isinstance(given, str | os.PathLike):
        return Path(given)
    if isinstance(given, LengthTrace):
        return in_memory("lengths", given.text())
    kind = document_name(type(given)) if isinstance(given, BaseModel) else None
    if kind is None:
        raise InputError(f"a {type(given).__name__} is no document; give a path or a Job, Cluster, Profile or Plan")
    return Path(os.path.relpath(vars(given).get(_FOLDER, "."))) / in_memory(kind, dump(given))


def name_of(given: File | BaseModel) -> str:
    """What is given as the caller wrote it, or the path of an object."""
    return os.fspath(given) if isinstance(given, str | os.PathLike) else str(path_of(given))


def must_be_one_of(name: str, value: str | None, choices: Sequence[str]) -> None:
    """Raise InputError unless an option is None or one of the words."""
    if value is not None and value not in choices:
        raise InputError(f"{name}: '{value}' is none of {', '.join(choices)}")


def must_be_within(
    name: str, value: float | None, least: float, most: float, *, open_end: bool = False, whole: bool = False
) -> None:
    """Raise InputError unless an option is None or a number (`whole`: an integer) of the range; `open_end`: smaller
    than `most`."""
    if value is None:
        return
    number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not number or not least <= value <= most or (open_end and value == most):
        kind, end = "whole number" if whole else "number", "below" if open_end else "at most"
        raise InputError(f"{name}: {value!r} is no {kind} of at least {least} and {end} {most}")


def read_documents(job_path: Path, cluster_path: Path, profile_path: Path) -> tuple[Job, Cluster, Profile]:
    """Read the three documents. Raises one InputError with the faults of all of them."""
    from ..plans.schema.cluster import load_cluster
    from ..plans.schema.job import load_job
    from ..plans.yaml.yaml_io import load
    from ..profiles.profile_schema import Profile

    faults = ErrorCollector()
    job = faults.try_read(lambda: load_job(job_path))

    def read_cluster() -> Cluster:
        need_cluster(cluster_path)
        return load_cluster(cluster_path)

    def read_profile() -> Profile:
        need_profile(profile_path, job_path, job)
        return load(profile_path, Profile)

    cluster, profile = faults.try_read(read_cluster), faults.try_read(read_profile)
    faults.raise_any()
    assert job is not None and cluster is not None and profile is not None, "none of them has a fault"
    return job, cluster, profile


def must_know_model(job: Job, job_path: Path, profile: Profile, force: bool) -> None:
    """Warn of what is guessed of the job's model, where the profile did not measure it. Raises InputError where nothing
    shows whether a derived profile is of it, unless `force`."""
    from ..plans.facts.model_shape import model_of_job
    from ..plans.yaml.yaml_io import error_at

    model = model_of_job(job, job_path)
    if profile.provenance == "measured" or not model.unsure:
        return
    if model.architecture is None and profile.train_law is not None and not force:
        text = f"model.path: {model.unsure}, or use --force to plan it as {profile.train_law.model}"
        raise error_at(job_path, ("model", "path"), text)
    warnings.warn(model.unsure, stacklevel=2)


def given_lengths(
    profile: Profile,
    profile_path: Path,
    trace: File | LengthTrace | None,
    word: str | None,
    job_path: Path,
    plan_path: Path,
) -> tuple[LengthsInput, LengthTrace]:
    """Lengths by a trace, by `word` (a table that ships, or quantiles), or by the profile's own trace, and the entry
    for them of the plan at `plan_path`."""
    from ..plans.yaml.yaml_io import sha256_file
    from ..profiles.length_tables import table_names
    from ..profiles.length_trace import LengthTrace, read_lengths

    if word is not None:
        return _named_lengths(word, trace)
    if trace is not None:
        path = path_of(trace)
        need_trace(path, job_path)
        return lengths_input(path, plan_path), trace if isinstance(trace, LengthTrace) else read_lengths(path)
    if profile.lengths is None:
        raise InputError(
            "holds no length trace; give one with --trace FILE, or lengths that ship with --lengths NAME "
            f"({', '.join(table_names())}; see rlplan lengths list)",
            str(profile_path),
        )
    path = profile_path.with_name(profile.lengths.path)
    need_trace(path, job_path)
    if sha256_file(path) != profile.lengths.sha256:
        raise InputError("is not the length trace that the profile names (digest differs); profile again", str(path))
    return lengths_input(path, plan_path), read_lengths(path, cap_tokens=profile.lengths.cap_tokens)


def lengths_input(path: Path, plan_path: Path) -> LengthsInput:
    """The entry of a length trace among the inputs of the plan at `plan_path`."""
    from ..plans.schema.plan import LengthsInput

    return LengthsInput.model_validate(_named(path, plan_path))


def inputs_of(
    plan_path: Path, cluster_path: Path, job_path: Path, profile_path: Path, profile: Profile, lengths: LengthsInput
) -> Inputs:
    """The inputs of the plan at `plan_path`: paths relative to its folder, and digests of the files as they are now."""
    from ..plans.facts.digest import solver_read
    from ..plans.schema.plan import InputFile, Inputs, ProfileFile

    facts = {"provenance": profile.provenance, "reward_audit": profile.reward_audit}
    return Inputs(
        cluster=InputFile(**_named(cluster_path, plan_path)),
        job=InputFile(**_named(job_path, plan_path)),
        profile=ProfileFile.model_validate({**_named(profile_path, plan_path), **facts}),
        lengths=lengths,
        solver_read=solver_read(cluster_path, job_path, profile_path),
    )


def _named(path: Path, plan_path: Path) -> dict[str, str]:
    from ..plans.yaml.yaml_io import sha256_file

    relative = os.path.relpath(path.resolve(), plan_path.resolve().parent)
    return {"path": Path(relative).as_posix(), "sha256": sha256_file(path)}


def lengths_in_place(trace: File | LengthTrace | None, word: str | None) -> LengthTrace | None:
    """Lengths from a trace, from the folder of a run, or from the tables that ship (`word`); None without either."""
    from ..planner.tune.executed_run import load_executed
    from ..planner.tune.run_lengths import run_lengths
    from ..profiles.length_trace import LengthTrace, read_lengths

    if word is not None:
        return _named_lengths(word, trace)[1]
    if trace is None or isinstance(trace, LengthTrace):
        return trace
    folder = os.path.isdir(trace)  # noqa: PTH112 (pathlib raises for what can be no path)
    return run_lengths(load_executed(Path(trace))) if folder else read_lengths(Path(trace))


def _named_lengths(word: str, trace: File | LengthTrace | None) -> tuple[LengthsInput, LengthTrace]:
    from ..planner.lengths.table_lengths import named_lengths

    if trace is not None:
        raise InputError("--trace and --lengths both say how long responses are; give one of them")
    if not isinstance(word, str):
        raise InputError(f"lengths: {word!r} is no text; name a table that ships, or give trace=")
    table, lengths = named_lengths(word)
    return lengths, table
