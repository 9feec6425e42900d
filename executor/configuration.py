"""What the keys of plans become, as plain data: the arguments of all actors, and the numbers of each run's machines.

Whatever is built for a run is built from this, and nothing else reads a plan's decisions while it runs; so a key that
changes nothing here is one that the executor does not read (a test walks them all). What several plans share because
they take turns on it, `supported.differences` requires them to agree on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..plans.schema.base import Mode
from ..plans.schema.cluster import Pool
from ..plans.schema.job import Job, JobPaths
from ..plans.schema.plan import LongRound, LossPlan, PlannedJob, ShortRound
from ..plans.schema.sections.layouts import EngineLayout
from ..plans.schema.sections.levers import RoundPrefix
from ..rounds.balance import PrefixSharing
from ..rounds.round_spec import RoundSpec
from ..rounds.timeouts import TimeoutSpec


@dataclass(frozen=True)
class RunSettings:
    """A plan as one run's machines take it."""

    mode: Mode
    rounds: RoundSpec
    timeouts: TimeoutSpec
    layouts: dict[str, EngineLayout]
    """The engine set of each kind of round."""
    at_once: dict[str, int]
    """Samples that an engine decodes at a time, by kind of round."""
    sharing: dict[str, PrefixSharing | None]
    """How a prompt's samples are kept together, by kind of round; None: they are spread."""
    micro_batch_tokens: dict[str, int]
    """By kind of round."""
    checksum_every: int


@dataclass(frozen=True)
class Configuration:
    """What is started for plans that take turns, and how each runs."""

    fleet: dict[str, Any]
    """Keyword arguments of `Fleet`."""
    reward_workers: int
    reward_deadline_s: float
    """Each sample has its own plan's deadline; this is the longest that any may have."""
    trainers: tuple[dict[str, Any], ...]
    """For each plan, keyword arguments of `TrainerGroup`."""
    runs: tuple[RunSettings, ...]
    """For each plan."""


def round_spec(planned: PlannedJob, job: Job) -> RoundSpec:
    """The plan's rounds as the state machines take them."""
    return RoundSpec(
        **planned.round_numbers(),
        max_tokens=job.rollout.max_response_tokens,
        dynamic_sampling=job.algorithm.dynamic_sampling,
    )


def layouts(planned: PlannedJob) -> dict[str, EngineLayout]:
    """The engine set of each kind of round."""
    short, long = planned.rounds.short.rollout, planned.rounds.long
    result = {"short": short.layout}
    if long is not None:
        result["long"] = long.rollout.layout
    return result


def run_settings(planned: PlannedJob, job: Job) -> RunSettings:
    """A plan as `TrainingRun` takes it."""
    short, long = planned.rounds.short, planned.rounds.long
    kinds: dict[str, ShortRound | LongRound] = {"short": short}
    if long is not None:
        kinds["long"] = long
    return RunSettings(
        mode=planned.bias.mode,
        rounds=round_spec(planned, job),
        timeouts=TimeoutSpec(**planned.reward.timeout_numbers()),
        layouts=layouts(planned),
        at_once={kind: of.rollout.max_num_seqs for kind, of in kinds.items()},
        sharing={kind: sharing_of(of.rollout.prefix) for kind, of in kinds.items()},
        micro_batch_tokens={kind: of.train.micro_batch_tokens for kind, of in kinds.items()},
        checksum_every=planned.sync.checksum_every,
    )


def sharing_of(prefix: RoundPrefix | None) -> PrefixSharing | None:
    """A plan's `rollout.prefix` as the balancer takes it."""
    return None if prefix is None else PrefixSharing(prefix.block_tokens, prefix.tokens_per_sample)


def configuration(plans: Sequence[PlannedJob], job: Job, paths: JobPaths, pool: Pool) -> Configuration:
    """The configuration of plans of one job that take turns on one pool."""
    rounds = [kind for planned in plans for kind in (planned.rounds.short, planned.rounds.long) if kind is not None]
    fleet = {
        "layouts": sorted({layout for planned in plans for layout in layouts(planned).values()}),
        "model_path": paths.model,
        "dtype": job.model.dtype,
        "kind": pool.accelerators.kind,
        "max_model_len": job.rollout.longest_tokens,
        "max_num_seqs": max(kind.rollout.max_num_seqs for kind in rounds),
        "kv_memory_bytes_per_accelerator": pool.accelerators.memory_bytes,
        "seed": job.algorithm.seed,
    }
    return Configuration(
        fleet=fleet,
        reward_workers=plans[0].reward.workers,
        reward_deadline_s=max(planned.reward.deadline_s for planned in plans),
        trainers=tuple(trainer_settings(planned, job, paths.model, pool) for planned in plans),
        runs=tuple(run_settings(planned, job) for planned in plans),
    )


def trainer_settings(planned: PlannedJob, job: Job, model: str, pool: Pool) -> dict[str, Any]:
    """Keyword arguments of `TrainerGroup` but for its name; all kinds of round share the ranks."""
    train = planned.rounds.short.train
    return {
        "dp": train.dp,
        "threads": max(pool.cores // train.dp, 1),
        "arguments": trainer_arguments(job, model, train.micro_batch_tokens, pool.accelerators.kind, planned.loss),
    }


def trainer_arguments(job: Job, model: str, micro_batch_tokens: int, kind: str, loss: LossPlan) -> dict[str, Any]:
    """Arguments of `Trainer` that do not depend on its rank."""
    from .trainer.losses import Divisors
    from .trainer.step_checks import LOGPROB_LIMITS

    return {
        "model_path": model,
        "algorithm": job.algorithm.model_dump(),
        "micro_batch_tokens": micro_batch_tokens,
        "samples_per_prompt": job.rollout.samples_per_prompt,
        "temperature": job.rollout.temperature,
        "divisors": Divisors(loss.samples, loss.tokens, job.rollout.max_response_tokens),
        "logprob_limits": LOGPROB_LIMITS[job.model.dtype],
        "device": kind,
        "dtype": job.model.dtype,
    }
