"""`rlplan solve JOB --profile P`"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .shared.given_lengths import given_lengths, lengths_option, trace_option
from .shared.options import OVERWRITE, Finite, for_option

if TYPE_CHECKING:
    from ..plans.schema.cluster import Cluster
    from ..plans.schema.job import Job
    from ..profiles.profile_schema import Profile

_OF_JOBS = ("seconds", "usd")
_OF_GROUPS = ("usd_per_hour", "usd_per_unit")


@click.command("solve")
@click.argument("job_path", metavar="JOB", type=click.Path(path_type=Path))
@click.option("--profile", "profile_path", type=click.Path(path_type=Path), help="Default: profile.yaml beside JOB.")
@trace_option
@lengths_option
@click.option("--cluster", "cluster_path", type=click.Path(path_type=Path), help="Default: cluster.yaml beside JOB.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Default: plan.yaml beside JOB; -: standard output.")
@click.option(
    "--mode",
    type=click.Choice(["sync", "race", "defer", "exact", "predict"]),
    help="Force a mode. Default: the best.",
)
@click.option(
    "--bias-budget",
    type=Finite(0, 1, max_open=True),
    help="Allowed |1 - trained/unconditioned mean length|. Default: 0, or no bound if --mode is given.",
)
@click.option(
    "--objective",
    type=click.Choice([*_OF_JOBS, *_OF_GROUPS]),
    help="What a trained sample shall cost least of: seconds (default) or usd, for which a plan may take fewer nodes. "
    "For a workload: usd_per_hour, or usd_per_unit of training. Default: as in its rules.",
)
@for_option
@click.option(
    "--max-nodes",
    type=click.IntRange(0, 2**31 - 1),
    help="Limit of the integer program's search; not seconds, so that it cuts alike everywhere. Default: 200000.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulation.")
@click.option("--force", is_flag=True, help=f"Use a profile of another machine or job; {OVERWRITE}.")
@click.option(
    "--from",
    "previous_path",
    type=click.Path(path_type=Path),
    help="For a workload: the running plan; its jobs move only where that pays.",
)
@click.option("--no-moves", is_flag=True, help="With --from: running jobs stay where they are.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON line.")
def solve_command(
    job_path: Path,
    profile_path: Path | None,
    trace_path: Path | None,
    lengths_word: str | None,
    cluster_path: Path | None,
    out: Path | None,
    mode: Any,
    bias_budget: float | None,
    objective: Any,
    made_for: str,
    max_nodes: int | None,
    seed: int,
    force: bool,
    previous_path: Path | None,
    no_moves: bool,
    as_json: bool,
) -> int:
    """Simulate candidate rounds of JOB, choose by integer program, and write the plan.

    JOB is a job.yaml or the folder that holds it; or a workload.yaml, many jobs that share a cluster: then the plan
    says which of them form groups on which nodes (default: groups.yaml beside it), and of the options only --out,
    --objective, --from, --no-moves and --json apply.

    The same inputs give the same plan, byte for byte, but for its `volatile` block.
    """
    from ..plans.schema.groups_plan import document_kind
    from ..plans.yaml.errors import InputError, joined
    from .many_jobs.solve_groups import solve_groups_command
    from .shared.options import refuse_options_but
    from .shared.paths import job_file, need_job

    job_path = job_file(job_path)
    need_job(job_path)
    if document_kind(job_path) == "rlplan_workload":
        refuse_options_but("a workload", "out", "objective", "previous_path", "no_moves", "force", "as_json")
        if no_moves and previous_path is None:
            raise InputError("--no-moves needs --from: without a running plan nothing can move")
        if objective in _OF_JOBS:
            raise InputError(
                f"--objective {objective} is for a job; for a workload it is one of {', '.join(_OF_GROUPS)}"
            )
        return solve_groups_command(job_path, out, previous_path, not no_moves, as_json, objective, force)
    if objective in _OF_GROUPS:
        raise InputError(f"--objective {objective} is for a workload; for a job it is one of {', '.join(_OF_JOBS)}")
    if previous_path is not None or no_moves:
        raise InputError("--from and --no-moves are for a workload; a job is solved anew, see rlplan tune for a run's")

    from ..planner.check.plan_rules import suspicions_of
    from ..planner.highs import MAX_NODES
    from ..planner.solve import solve
    from ..planner.solve_options import SolveOptions
    from ..plans.facts.model_shape import shape_of_job
    from ..plans.facts.solver_read import solver_read
    from ..plans.files.prompt_rows import prompts_to_plan
    from ..plans.schema.job import job_paths, model_folder
    from ..plans.schema.sections.origin import InputFile, Inputs, ProfileFile
    from ..plans.yaml.editor_schemas import write_document
    from ..plans.yaml.yaml_io import WRITTEN_DIGITS, sha256_file
    from ..profiles.fitness import unfit
    from ..profiles.scaled_profile import priced_as
    from .screens.solved import plan_summary, plan_text
    from .shared.paths import (
        accelerators_must_be_known,
        at_its_line,
        check_stdout,
        check_target,
        job_inputs,
        tell,
        trace_inputs,
    )
    from .shared.progress import share

    profile_path = profile_path or job_path.with_name("profile.yaml")
    cluster_path = cluster_path or job_path.with_name("cluster.yaml")
    out = out or job_path.with_name("plan.yaml")
    job, cluster, profile = _documents(job_path, cluster_path, profile_path)
    read = [*job_inputs(job, job_path), *trace_inputs(profile, profile_path, trace_path)]
    check_stdout(out, "--out", as_json)
    check_target(out, job_path, cluster_path, profile_path, *read, kind="plan", force=force)
    accelerators_must_be_known(cluster, cluster_path, profile)
    prompts = prompts_to_plan(job, job_path, job_paths(job, job_path))
    pools = [pool for _, pool in sorted(cluster.pools.items())]
    faults = [fault for fault in unfit(profile, job, job_paths(job, job_path), pools) if not (force and fault.forcible)]
    if faults:
        remedies = [f"{fault.remedy}, or use --force" if fault.forcible else fault.remedy for fault in faults]
        raise joined(
            [
                InputError(f"{fault.message}; {remedy}", str(profile_path))
                for fault, remedy in zip(faults, remedies, strict=True)
            ]
        )
    _must_know_model(job, job_path, profile, force)
    profile = priced_as(profile, job, model_folder(job, job_path))

    def named(path: Path) -> dict[str, str]:
        relative = os.path.relpath(path.resolve(), out.resolve().parent)
        return {"path": Path(relative).as_posix(), "sha256": sha256_file(path)}

    lengths, trace = given_lengths(profile, profile_path, trace_path, lengths_word, job_path, named)
    inputs = Inputs(
        cluster=InputFile(**named(cluster_path)),
        job=InputFile(**named(job_path)),
        profile=ProfileFile(**named(profile_path), provenance=profile.provenance, reward_audit=profile.reward_audit),
        lengths=lengths,
        solver_read=solver_read(cluster_path, job_path, profile_path),
    )
    options = SolveOptions(
        mode=mode,
        bias_budget=bias_budget,
        objective=objective or "seconds",
        seed=seed,
        max_nodes=MAX_NODES if max_nodes is None else max_nodes,
        prompts=prompts,
        for_any=made_for == "any",
        model=shape_of_job(job, job_path),
    )
    with at_its_line(job_path, cluster_path), share("solve") as update:
        plan = solve(cluster, job, profile, trace, inputs, options, update).plan
    write_document(plan, out, WRITTEN_DIGITS)
    suspicious = [fault.noted for fault in suspicions_of(plan, profile) if fault.rule != "profile-scaled"]
    text = "\n".join([plan_text(plan, out), *(f"note: the profile: {noted}" for noted in suspicious)])
    tell(json.dumps({**plan_summary(plan, out), "suspicious": suspicious}) if as_json else text, out)
    return 0


def _documents(job_path: Path, cluster_path: Path, profile_path: Path) -> tuple[Job, Cluster, Profile]:
    """Read the three documents. Raises one InputError with the faults of all of them."""
    from ..plans.schema.cluster import load_cluster
    from ..plans.schema.job import load_job
    from ..plans.yaml.errors import ErrorCollector
    from ..plans.yaml.yaml_io import load
    from ..profiles.profile_schema import Profile
    from .shared.paths import need_cluster, need_profile

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


def _must_know_model(job: Job, job_path: Path, profile: Profile, force: bool) -> None:
    """Say what is guessed of the job's model, where the profile did not measure it. Raises InputError where nothing
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
