"""The demo's job and a plan with two engines and two trainer ranks, so that one of each can die while the other runs.
In long rounds one engine is handed over to training while the other decodes.

The plan is solved from the profile that ships with the examples; then its layout is changed. Its predictions do not
hold for this machine, and nothing here reads them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import rlplan.plans
from rlplan.executor.example.write import write_example
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.solve import solve
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, job_paths, load_job
from rlplan.plans.schema.plan import InputFile, Inputs, LengthsInput, Plan, ProfileFile
from rlplan.plans.yaml.errors import RunFailed
from rlplan.plans.yaml.yaml_io import dump, load, sha256_file
from rlplan.profiles.length_trace import read_lengths, write_lengths
from rlplan.profiles.library.fitness import subject_digest
from rlplan.profiles.profile_schema import Profile
from rlplan.rounds.round_spec import Mode

SHIPPED = Path(rlplan.plans.__file__).parent / "examples" / "cpu-demo"
ENGINES, RANKS = 2, 2


def write_plan(folder: Path) -> Path:
    """Write the demo's example and its plan into `folder`, which must be new; returns the plan's path."""
    write_example(folder)
    dump(with_layout(shipped_plan(folder, "exact")), folder / "plan.yaml")
    return folder / "plan.yaml"


def shipped_plan(folder: Path, mode: Mode) -> Plan:
    """A plan of the example in `folder` from the shipped profile and lengths, which are copied there as if measured of
    its job: lengths beyond the job's cap are cut to it."""
    job = load_job(folder / "job.yaml")
    lengths, cap = folder / "profile.lengths.jsonl", job.rollout.max_response_tokens
    rows = read_lengths(SHIPPED / lengths.name).rows
    write_lengths(
        lengths,
        [replace(row, tokens=min(row.tokens, cap), truncated=row.truncated or row.tokens > cap) for row in rows],
    )
    profile = load(SHIPPED / "profile.yaml", Profile).model_copy(
        update={"measured": subject_digest(job, job_paths(job, folder / "job.yaml")), "judge": None}
    )
    dump(profile, folder / "profile.yaml")

    def named(name: str) -> InputFile:
        return InputFile(path=name, sha256=sha256_file(folder / name))

    inputs = Inputs(
        cluster=named("cluster.yaml"),
        job=named("job.yaml"),
        profile=ProfileFile(path="profile.yaml", sha256=sha256_file(folder / "profile.yaml"), provenance="measured"),
        lengths=LengthsInput(path=lengths.name, sha256=sha256_file(lengths)),
    )
    trace = read_lengths(lengths, cap_tokens=cap)
    return solve(load_cluster(folder / "cluster.yaml"), job, profile, trace, inputs, SolveOptions(mode=mode)).plan


def change_job(folder: Path, **keys: Any) -> None:
    """Write the job in `folder` with these keys; a mapping's keys are added to those that are there."""
    job = load_job(folder / "job.yaml").model_dump(mode="json")
    for name, value in keys.items():
        job[name] = job[name] | value if isinstance(value, Mapping) else value
    dump(Job.model_validate(job), folder / "job.yaml")


def change_pool(folder: Path, cores: int, engines: int, train_pool: bool = False) -> None:
    """Write the cluster in `folder` with one node of so many cores, of which `engines` are accelerators; with
    `train_pool` another pool `train` is the same."""
    cluster = load_cluster(folder / "cluster.yaml").model_dump(mode="json")
    pool = cluster["pools"]["main"] | {"nodes": 1, "cores": cores}
    pool["accelerators"]["per_node"] = engines
    cluster["pools"] = {"main": pool} | ({"train": pool} if train_pool else {})
    dump(Cluster.model_validate(cluster), folder / "cluster.yaml")


def cores_of(folder: Path) -> int:
    """Cores of a node in `folder`, 2 at least."""
    return max(2, load_cluster(folder / "cluster.yaml").pools["main"].cores)


def write_document(folder: Path, name: str, document: dict[str, Any]) -> Path:
    """Write a plan that was changed into `folder`, with the digests of its cluster and profile; returns its path."""
    for part in ("cluster", "profile"):
        document["inputs"][part]["sha256"] = sha256_file(folder / f"{part}.yaml")
    dump(Plan.model_validate(document), folder / f"{name}.yaml")
    return folder / f"{name}.yaml"


def with_layout(plan: Plan) -> Plan:
    """The plan with two engines of TP 1 and two trainer ranks in all kinds of round, and a hand-over in long ones."""
    document = plan.model_dump(mode="json")
    for round_kind in ("short", "long"):
        planned = document["job"]["rounds"][round_kind]
        if planned is not None:
            planned["rollout"] |= {"engines": ENGINES, "tp": 1}
            planned["train"] |= {"dp": RANKS}
    if document["job"]["rounds"]["long"] is not None:
        document["job"]["rounds"]["long"]["hand_over"] = {"engines": 1, "at_finished": 0.5}
    return Plan.model_validate(document)


RUN_S = 2400.0


def call(log: Path, *arguments: object) -> None:
    """Run `rlplan` in a process of its own, which prints into a file. Raises RunFailed."""
    command = [sys.executable, "-m", "rlplan.cli.main", *map(str, arguments)]
    with log.open("a") as file:
        done = subprocess.run(command, stdout=file, stderr=file, timeout=RUN_S, check=False)
    if done.returncode:
        end = "\n".join(log.read_text().splitlines()[-15:])
        raise RunFailed(f"rlplan {arguments[0]} ended with exit code {done.returncode}:\n{end}")
