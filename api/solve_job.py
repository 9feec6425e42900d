"""`solve`: documents of a job in, its plan out; `rlplan solve JOB` calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from ..planner.choose.candidate_search import Progress
from ..planner.choose.candidates.solve_options import MAX_NODES, Pass, SolveOptions
from ..planner.nodes_front import NodesPoint, nodes_front
from ..planner.solve import solve as solve_documents
from ..plans.facts.device_shares import engine_fault
from ..plans.facts.model_shape import shape_of_job
from ..plans.files.prompt_rows import evaluated_prompts, prompts_to_plan
from ..plans.schema.base import Mode
from ..plans.schema.cluster import Cluster
from ..plans.schema.job import Job, job_paths, model_folder, objective_of
from ..plans.schema.plan import Inputs, Plan
from ..plans.yaml.errors import InputError, joined
from ..plans.yaml.yaml_io import STDOUT, WRITTEN_DIGITS, dump, error_at, load, loads, write_document
from ..profiles.hardware import gpu_of
from ..profiles.length_trace import LengthTrace
from ..profiles.library import library_profile
from ..profiles.library.fitness import differences, machine_of, unfit
from ..profiles.library.scaled_profile import priced_as
from ..profiles.profile_schema import Profile
from .given_documents import (
    MOST_SEED,
    File,
    given_lengths,
    inputs_of,
    must_be_one_of,
    must_be_within,
    must_know_model,
    path_of,
    read_documents,
    standing_in,
)
from .input_paths import (
    accelerators_must_be_known,
    at_its_line,
    check_target,
    job_file,
    job_inputs,
    need_job,
    trace_inputs,
)


def solve(
    job: File | Job,
    *,
    cluster: File | Cluster | None = None,
    profile: File | Profile | None = None,
    trace: File | LengthTrace | None = None,
    lengths: str | None = None,
    mode: Mode | None = None,
    plain: bool = False,
    bias_budget: float | None = None,
    objective: str | None = None,
    for_any: bool = False,
    max_nodes: int | None = None,
    seed: int = 0,
    nodes: Mapping[str, int] | None = None,
    passes: Sequence[Pass] | None = None,
    force: bool = False,
    out: File | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Simulate candidate rounds of a job, choose by integer program, and return the plan, as `rlplan solve` does.

    Prints nothing. What a user should know is a Python warning. The same inputs give the same plan but for its
    `volatile` block.

    Args:
        job: job.yaml, the folder that holds it, or a Job.
        cluster, profile: default: cluster.yaml and profile.yaml beside the job.
        trace: length trace; default: the profile's.
        lengths: in its place, the name of a table that ships (`math-16k`), or quantiles (`p50=800,p95=4000,max=16384`).
        mode: to force one; default: the best.
        plain: plan rounds of mode sync without levers (drafts, streaming, balance), as a baseline to measure.
        bias_budget: allowed |1 - trained / unconditioned mean length|, in [0, 1); default: 0, or no bound with `mode`.
        objective: `seconds`, `usd` or `usd-within SECONDS`: what a trained sample shall cost least of; default: the
            job's, else `seconds`.
        for_any: also consider layouts and levers that only other frameworks can run.
        max_nodes: limit of the integer program's search; default: 200,000.
        seed: of the simulation.
        nodes: by pool, how many nodes the plan may take at most; default: those of the cluster.
        passes: how many rounds are simulated of which candidates; default: those of `rlplan solve`.
        force: take a profile of another machine or job; overwrite a file at `out` that rlplan did not write.
        out: write the plan here. The plan names its inputs relative to this file's folder, without it relative to the
            current folder.
        progress: called with a text and the share of the work that is done.

    Raises InputError for bad input (every fault is in it, with file and line), Infeasible where no plan keeps the
    limits. An object in place of a file is `<job-DIGEST>` in the plan's inputs and in errors, and only this process can
    read it; its relative paths begin in the folder that it was loaded from, else in the current one.
    """
    read = _read(
        job, cluster, profile, trace, lengths, mode, bias_budget, objective, for_any, max_nodes, seed, force, out,
        nodes or {}, passes, plain,
    )  # fmt: skip
    with at_its_line(read.job_path, read.cluster_path):
        tell = progress or (lambda text, share: None)
        documents = read.cluster, read.job, read.profile, read.lengths, read.inputs, read.options, tell
        plan = solve_documents(*documents, read.priced).plan
    pool = plan.job.rounds.short.rollout.pool
    if pool in read.others:
        path, of_pool = read.others[pool]
        if out is None:
            path = path_of(of_pool)
        elif not path.exists():
            write_document(of_pool, path)
        named = inputs_of(read.target, read.cluster_path, read.job_path, path, of_pool, plan.inputs.lengths)
        plan = plan.model_copy(update={"inputs": named.model_copy(update={"rewards": plan.inputs.rewards})})
    if out is not None:
        write_document(plan, read.target, WRITTEN_DIGITS)
    return standing_in(read.target.parent, loads(dump(plan, digits=WRITTEN_DIGITS), Plan))


def front_of_nodes(job: File | Job, progress: Progress, **options: Any) -> list[NodesPoint]:
    """The fastest schedule of a job on each number of nodes, the fewest first, as `rlplan solve --frontier nodes` draws
    it. Options and errors are those of `solve`; a number of nodes without a schedule is a point with the reason."""
    read = _read(job, **options)
    with at_its_line(read.job_path, read.cluster_path):
        documents = read.cluster, read.job, read.profile, read.lengths, read.options, progress
        return list(nodes_front(*documents, read.priced))


class _Read(NamedTuple):
    """What `solve` reads: documents, options, and the paths that errors name."""

    cluster: Cluster
    job: Job
    profile: Profile
    lengths: LengthTrace
    inputs: Inputs
    options: SolveOptions
    job_path: Path
    cluster_path: Path
    target: Path
    others: dict[str, tuple[Path, Profile]]

    @property
    def priced(self) -> dict[str, Profile]:
        """Profiles of other pools, as they price the job's model."""
        folder = model_folder(self.job, self.job_path)
        return {pool: priced_as(profile, self.job, folder) for pool, (_, profile) in self.others.items()}


def _profiles_of_others(
    cluster: Cluster, job: Job, profile: Profile, profile_path: Path
) -> dict[str, tuple[Path, Profile]]:
    """Profiles of pools that the job's own does not price, by pool, each with its path: `profile.POOL.yaml` beside the
    job's, else, where that was not measured, the one that ships of the pool's GPUs and the same model."""
    others: dict[str, tuple[Path, Profile]] = {}
    unlike = {
        name: pool
        for name, pool in sorted(cluster.pools.items())
        if pool.accelerators.kind == profile.machine.kind and differences(profile, machine_of(pool))
    }
    if job.placement is not None or len(unlike) == len(cluster.pools):
        return others
    for name, pool in unlike.items():
        path, gpu = profile_path.with_name(f"profile.{name}.yaml"), gpu_of(pool.accelerators.name)
        if path.is_file():
            others[name] = path, load(path, Profile)
        elif profile.provenance != "measured" and profile.train_law is not None and gpu is not None:
            with suppress(InputError):  # none ships
                others[name] = path, library_profile(gpu.name, profile.train_law.model)
    return {name: found for name, found in others.items() if not differences(found[1], machine_of(cluster.pools[name]))}


def _read(
    job: File | Job,
    cluster: File | Cluster | None = None,
    profile: File | Profile | None = None,
    trace: File | LengthTrace | None = None,
    lengths: str | None = None,
    mode: Mode | None = None,
    bias_budget: float | None = None,
    objective: str | None = None,
    for_any: bool = False,
    max_nodes: int | None = None,
    seed: int = 0,
    force: bool = False,
    out: File | None = None,
    nodes: Mapping[str, int] = MappingProxyType({}),
    passes: Sequence[Pass] | None = None,
    plain: bool = False,
) -> _Read:
    """Read and check the arguments of `solve`."""
    must_be_one_of("mode", mode, get_args(Mode))
    if plain and mode not in (None, "sync"):
        raise InputError(f"mode {mode}: plain rounds are of mode sync; leave out one of the two")
    minimised = None if objective is None else objective_of(objective)
    must_be_within("bias_budget", bias_budget, 0, 1, open_end=True)
    must_be_within("max_nodes", max_nodes, 0, 2**31 - 1, whole=True)
    must_be_within("seed", seed, 0, MOST_SEED, whole=True)
    job_path = job_file(path_of(job))
    need_job(job_path)
    cluster_path = path_of(cluster or job_path.with_name("cluster.yaml"))
    profile_path = path_of(profile or job_path.with_name("profile.yaml"))
    job, cluster, profile = read_documents(job_path, cluster_path, profile_path)
    target = STDOUT if out is None else Path(out)
    trace_path = None if trace is None else path_of(trace)
    files = [*job_inputs(job, job_path), *trace_inputs(profile, profile_path, trace_path)]
    check_target(target, job_path, cluster_path, profile_path, *files, kind="plan", force=force)
    accelerators_must_be_known(cluster, cluster_path, profile)
    fewer = {name: cluster.pools[name].model_copy(update={"nodes": most}) for name, most in nodes.items()}
    cluster = cluster.model_copy(update={"pools": {**cluster.pools, **fewer}})
    paths = job_paths(job, job_path)
    prompts = prompts_to_plan(job, job_path, paths)
    evaluated = evaluated_prompts(job, paths)
    pools = [pool for _, pool in sorted(cluster.pools.items())]
    if faults := [fault for fault in unfit(profile, job, paths, pools) if not (force and fault.forcible)]:
        told = (f"{each.message}; {each.remedy}{', or use --force' if each.forcible else ''}" for each in faults)
        raise joined([InputError(text, str(profile_path)) for text in told])
    if all(pool.accelerators.kind == "cpu" for pool in pools) and (fault := engine_fault(job, "cpu")):
        raise error_at(job_path, ("engine",), fault)
    must_know_model(job, job_path, profile, force)
    others = _profiles_of_others(cluster, job, profile, profile_path)
    profile = priced_as(profile, job, model_folder(job, job_path))
    source, response_lengths = given_lengths(profile, profile_path, trace, lengths, job_path, target)
    inputs = inputs_of(target, cluster_path, job_path, profile_path, profile, source)
    minimised = minimised or objective_of(job.objective or "seconds")
    options = SolveOptions(
        mode="sync" if plain else mode,
        plain=plain,
        bias_budget=bias_budget,
        objective=minimised[0],
        within_s=minimised[1],
        seed=seed,
        max_nodes=MAX_NODES if max_nodes is None else max_nodes,
        prompts=prompts,
        evaluated=evaluated,
        for_any=for_any,
        model=shape_of_job(job, job_path),
    )
    options = options if passes is None else replace(options, passes=passes)
    return _Read(cluster, job, profile, response_lengths, inputs, options, job_path, cluster_path, target, others)
