"""`rlplan profile JOB`"""

from __future__ import annotations

import json
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.yaml.errors import InputError, RunFailed
from .screens.profile_text import profile_text
from .shared.options import Finite, force_option

if TYPE_CHECKING:
    from ..plans.schema.cluster import Pool
    from ..plans.schema.job import Job, JobPaths
    from ..plans.schema.reward_spec import RewardAudit
    from ..profiles.measure.measure_job import Measurements
    from ..profiles.profile_schema import Profile


@click.command("profile")
@click.argument("job_path", metavar="JOB", type=click.Path(path_type=Path))
@click.option("--cluster", "cluster_path", type=click.Path(path_type=Path), help="Default: cluster.yaml beside JOB.")
@click.option("--pool", help="Pool of the cluster to profile as. Default: the first by name.")
@click.option("--out", type=click.Path(path_type=Path), help="Default: profile.yaml beside JOB; -: standard output.")
@click.option(
    "--shipped",
    metavar="MODEL",
    help="Measure nothing: take the profile of MODEL (its usual name) on the pool's GPU that ships (derived, not "
    "measured).",
)
@click.option("--trace-rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Wide rounds to sample.")
@click.option(
    "--minutes",
    type=Finite(min=0, min_open=True),
    default=15.0,
    show_default=True,
    help="What refines the profile is measured only so long; the least that a plan needs is measured in any case.",
)
@click.option(
    "--unsafe-versions",
    is_flag=True,
    help="Measure with versions of vLLM, Ray, torch or transformers that rlplan was never run with.",
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON line.")
def profile_command(
    job_path: Path,
    cluster_path: Path | None,
    pool: str | None,
    out: Path | None,
    shipped: str | None,
    trace_rounds: int,
    minutes: float,
    unsafe_versions: bool,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Measure what each phase of JOB costs on this machine; write profile.yaml and the length trace beside it.

    JOB is a job.yaml or the folder that holds it. With RAY_ADDRESS it is measured on nodes of that Ray cluster. With
    --shipped nothing is measured, for a first plan without GPUs; solve then needs a --trace of response lengths.
    """
    from ..api.input_paths import accelerators_must_be_known, check_target, job_file, job_inputs, need_cluster, need_job
    from ..executor.processes.host import cluster_address, installed, must_be_tested
    from ..plans.facts.model_shape import model_of_job
    from ..plans.files.prompt_rows import data_file, read_prompts
    from ..plans.schema.cluster import load_cluster
    from ..plans.schema.job import job_paths, load_job
    from ..plans.yaml.yaml_io import WRITTEN_DIGITS, error_at, write_document
    from ..profiles.library.fitness import subject_digest
    from ..profiles.measure.measured_layouts import layouts_to_measure
    from .shared.output import check_stdout, must_be_file, share, steps

    job_path = job_file(job_path)
    cluster_path = cluster_path or job_path.with_name("cluster.yaml")
    out = out or job_path.with_name("profile.yaml")
    need_job(job_path)
    need_cluster(cluster_path)
    job, cluster = load_job(job_path), load_cluster(cluster_path)
    accelerators_must_be_known(cluster, cluster_path, measures=True)
    paths = job_paths(job, job_path)
    model = model_of_job(job, job_path).shape
    name = pool or sorted(cluster.pools)[0]
    if name not in cluster.pools:
        raise InputError(f"has no pool {name!r}; it has {', '.join(sorted(cluster.pools))}", str(cluster_path))

    check_stdout(out, "--out", as_json)
    lengths_path = out.with_name(f"{out.stem}.lengths.jsonl")
    inputs = (job_path, cluster_path, *job_inputs(job, job_path))
    check_target(out, *inputs, kind="profile", force=overwrite)  # now, and not after minutes of measuring
    if shipped is None:
        must_be_file(out, "the length trace is written beside a measured profile")
        check_target(lengths_path, *inputs, kind="lengths", force=overwrite)
    if shipped is not None:
        return _take_shipped(job, job_path, paths, cluster.pools[name], shipped, out, as_json)
    if not unsafe_versions:
        must_be_tested(installed())
    with share("profile") as update:  # decoding is measured on the job's own prompts, and rewards on its answers
        read_prompts(data_file(job, job_path), job.reward, progress=update)
    try:
        layouts_to_measure(job.search.tp, cluster.pools[name], model)  # now, and not after minutes of starting
    except ValueError as error:
        raise error_at(job_path, ("search", "tp"), f"search.tp: {error}") from None

    cluster_address()  # now, and not after a tokenizer was loaded
    audited = _audited(job, job_path)
    from ..profiles.measure.measure_job import measure
    from ..profiles.measure.measure_rounds import Effort

    with steps("profile") as notify:
        effort = Effort(minutes=minutes, trace_rounds=trace_rounds)
        measured = measure(job, paths, name, cluster.pools[name], out, effort, notify)
    profile = _profile(job.name, subject_digest(job, paths), measured, lengths_path, audited)
    write_document(profile, out, WRITTEN_DIGITS)
    summary = _summary(profile, measured)
    click.echo(json.dumps(summary) if as_json else profile_text(profile, summary, out, lengths_path))
    return 0


def _take_shipped(job: Job, job_path: Path, paths: JobPaths, pool: Pool, model: str, out: Path, as_json: bool) -> int:
    """Write the shipped profile of a model on the pool's accelerator, and say whether its costs will be scaled to the
    job's. Raises InputError if it does not fit the job."""
    from ..plans.facts.model_shape import model_of_job
    from ..plans.yaml.yaml_io import WRITTEN_DIGITS, error_at, write_document
    from ..profiles.hardware import gpu_of, hint_of
    from ..profiles.library import GPU_NAMES, library_profile, shipped_model
    from ..profiles.library.fitness import unfit
    from ..profiles.library.scaled_profile import priced_as
    from .shared.output import tell

    gpu = gpu_of(pool.accelerators.name)
    if gpu is None or pool.accelerators.kind != "cuda":
        hint = hint_of(pool.accelerators.name) if pool.accelerators.kind == "cuda" else ""
        hint = f"{hint} There" if hint.endswith("?") else f"{hint}; there" if hint else "there"
        raise InputError(
            f"no profile of accelerator {pool.accelerators.name!r} ships; {hint} are profiles of {', '.join(GPU_NAMES)}"
        )
    profile = library_profile(gpu.name, model)
    shipped_for, job_model = shipped_model(model), shipped_model(model_of_job(job, job_path).architecture)
    if job_model is not None and job_model != shipped_for:
        raise error_at(
            job_path,
            ("model", "path"),
            f"model.path: the job trains {job.model.path}, and --shipped {model} is a profile of "
            f"{shipped_for}; write --shipped {job_model}, or correct model.path",
        )
    for fault in unfit(profile, job, paths, [pool]):
        raise error_at(job_path, ("model", "path"), f"model.path: the profile {fault.message}; {fault.remedy}")
    write_document(profile, out, WRITTEN_DIGITS)
    scaled = priced_as(profile, job, paths.model_folder).scaled
    if as_json:
        facts = {"profile": str(out), "job": profile.job, "provenance": profile.provenance, "scaled": scaled or None}
        click.echo(json.dumps(facts))
    else:
        lines = [f"{profile.job} -> {out}", profile.note, *([f"note: {scaled}"] if scaled else [])]
        shares = "rlplan solve says which share of the hardware's peak a plan reaches: it depends on layout and lengths"
        tell("\n".join([*lines, shares]), out)
    return 0


AUDITED_ROWS, FIRST_ROWS, AUDIT_S = 200, 8, 300.0
"""Rows that are audited, and in about so many seconds at most, by those that the first rows take: a function may ask a
service for each of its rewards."""


def _audited(job: Job, job_path: Path) -> RewardAudit | None:
    """Whether the job's reward pays its rows' own answers, and no wrong ones; None where that cannot be asked.

    Called before anything is started: a reward function that cannot be used is refused here."""
    from ..executor.rewards.reward_audit import AUDITED, audit_job
    from .shared.output import share

    if not any(part.kind in AUDITED for part in job.reward.parts):
        return None
    try:
        began = time.monotonic()
        found = audit_job(job, job_path, FIRST_ROWS).audit
        rows = min(AUDITED_ROWS, int(FIRST_ROWS * AUDIT_S / (time.monotonic() - began)))
        if rows > FIRST_ROWS:
            with share("audit of the reward") as update:
                found = audit_job(job, job_path, rows, update).audit
    except RunFailed as error:  # this machine need not be one of those that score
        warnings.warn(f"the reward is not audited: {error}", stacklevel=2)
        return None
    return found if found.references + found.wrong + found.refused else None


def _profile(
    job: str, subject: str, measured: Measurements, lengths_path: Path, audited: RewardAudit | None
) -> Profile:
    """Write the length trace, and assemble the profile that names it by its digest."""
    from ..planner.simulate.calibrate import check_rounds
    from ..profiles.length_trace import write_profile_lengths
    from ..profiles.measure.measure_machine import versions
    from ..profiles.phase_schema import Rollout
    from ..profiles.profile_schema import Profile, ProfileVolatile

    outliers = [
        f"decode {c.layout.engines} x tp {c.layout.tp}: {p.sequences} sequences, {p.kv_tokens:.0f} KV tokens"
        for c in measured.rollout
        for p in c.decode.points
        if p.outlier
    ]
    profile = Profile(
        rlplan_profile=1,
        job=job,
        measured=subject,
        provenance="measured",
        machine=measured.machine,
        model_parameters=measured.parameters,
        shape=measured.shape,
        adapters=measured.adapters,
        rollout=tuple(
            Rollout(
                tp=c.layout.tp,
                engines=c.layout.engines,
                step_s=c.decode.a,
                step_s_per_sequence=c.decode.b,
                step_s_per_kv_token=c.decode.c,
                prefill_s=c.prefill_s,
                prefill_s_per_token=c.prefill_s_per_token,
                kv_capacity_tokens=c.kv_capacity_tokens,
                kv_block_tokens=c.kv_block_tokens,
                kv_bytes_per_token=measured.kv_bytes_per_token,
                start=c.start,
                sync=measured.sync[c.layout],
                error=c.decode.error,
                points=c.decode.points,
                sleep_s=turns.sleep_s if (turns := measured.turns.get(c.layout)) else None,
                wake_s=turns.wake_s if turns else None,
            )
            for c in measured.rollout
        ),
        train=measured.train,
        reward=measured.reward,
        reward_audit=audited,
        judge=measured.judge,
        drafts=measured.drafts,
        lengths=write_profile_lengths(lengths_path, measured.trace),
        checks=(),
        outliers=tuple(outliers),
        volatile=ProfileVolatile(
            measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            measuring_s=measured.seconds,
            versions=versions(),
        ),
    )
    return profile.model_copy(update={"checks": tuple(check_rounds(profile, measured.rounds, measured.prompt_tokens))})


def _summary(profile: Profile, measured: Measurements) -> dict[str, Any]:
    from ..plans.facts.plan_text import update_text
    from ..profiles.laws.hardware_peaks import best_read, dtype_of, peaks_of, work_of
    from ..profiles.laws.suspicions import suspicions

    lengths, tokens = measured.trace.summary(), measured.trace.tokens_by_token
    work, peaks = work_of(profile), peaks_of(profile.machine, dtype_of(profile))
    return {
        "measuring_s": measured.seconds,
        "left_out": measured.left_out,
        "peak_flops": None if peaks is None else peaks.flops,
        "peak_bytes_per_s": None if peaks is None else peaks.bytes_per_s,
        "reward_audit": None if profile.reward_audit is None else profile.reward_audit.model_dump(),
        "suspicious": [fault.noted for fault in suspicions(profile, tokens)],
        "decode": [
            {"tp": r.tp, "engines": r.engines, "a_s": r.step_s, "b_s": r.step_s_per_sequence,
             "c_s": r.step_s_per_kv_token, "error": r.error, "sync_s": r.sync.p50, "sleep_s": r.sleep_s,
             "wake_s": r.wake_s, "of_bandwidth": None if peaks is None else best_read(work, r, peaks)}
            for r in profile.rollout
        ],
        "train": [
            {"layout": update_text(t.layout), "micro_batch_tokens": t.micro_batch_tokens,
             "s_per_1k_tokens": 1000 * t.step_s_per_token, "error": t.error, "peak_bytes": t.peak_bytes,
             "moves_s": t.moves_s, "mfu": None if peaks is None else work.mfu(t, peaks, tokens)}
            for t in profile.train
        ],
        "judge": None if profile.judge is None else profile.judge.model_dump(mode="json", exclude={"evidence"}),
        "drafts": None if profile.drafts is None else profile.drafts.model_dump(mode="json"),
        "checks": [{"tp": c.tp, "engines": c.engines, "overhead_s": c.overhead_s,
                    "overhead_s_per_sample": c.overhead_s_per_sample, "factor": c.factor, "error": c.error}
                   for c in profile.checks],
        "lengths": {
            "p50": lengths.p50_tokens, "p95": lengths.p95_tokens, "max": lengths.max_tokens,
            "mean": lengths.mean_tokens, "at_cap": lengths.truncated_share, "icc": lengths.icc,
            "reward": lengths.mean_reward, "samples": lengths.samples,
        },
    }  # fmt: skip
