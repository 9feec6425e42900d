"""Turns plans into the configurations of all actors and the settings of each run.

Everything that is built for a run is built from this, and nothing else reads a plan's decisions while the run goes on;
so a key that changes nothing here is a key that the executor does not read (a test walks all keys). What is started
once for several plans, `prepare.differences` requires the plans to agree on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..plans.facts.device_shares import engine_fault, engine_share
from ..plans.schema.cluster import Pool
from ..plans.schema.job import EngineSpec, EvaluateSpec, Job, JobPaths, RolloutSpec
from ..plans.schema.levers import EngineLayout, RewardJudge, UpdateLayout
from ..plans.schema.planned_job import KindNorms, LossPlan, PlannedJob, PooledReward, RewardPlan
from ..plans.schema.planned_rounds import LongRound, ShortRound
from ..plans.yaml.errors import InputError
from ..rounds.round_spec import Mode, RoundSpec
from ..rounds.timeouts import TimeoutSpec
from .engines.fleet import FleetConfig
from .engines.messages import SamplingRules
from .engines.vllm_options import kv_bytes_per_token
from .rollout.reward_sum import PoolSize
from .trainer.step_checks import logprob_limits
from .trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A plan as one run's machines take it."""

    mode: Mode
    spec: RoundSpec
    timeouts: Mapping[str, TimeoutSpec]
    """By part of the reward, those with reward workers."""
    rounds: dict[str, ShortRound | LongRound]
    """By kind of round, as the plan has them; a plan without long rounds has short ones only."""
    updates: dict[str, UpdateSettings]
    """How the samples of each of these are trained."""
    checksum_every: int
    streams: bool = False
    """Whether trainers on a pool of their own train complete groups while others decode."""

    def of_round(self, round_kind: str) -> ShortRound | LongRound:
        """What the plan says of a kind of round; of short rounds where it has no others."""
        return self.rounds.get(round_kind, self.rounds["short"])

    def update_of(self, round_kind: str) -> UpdateSettings:
        """How the samples of a kind of round are trained; those of short rounds where the plan has no others."""
        return self.updates.get(round_kind, self.updates["short"])


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is started for plans that take turns, and how each of them runs."""

    fleet: FleetConfig
    rewards: Mapping[str, PoolSize]
    """By part of the reward: its workers, and the longest deadline of any plan; each sample has its own plan's."""
    judge: RewardJudge | None
    """Where the judge of the job's reward is; None without one."""
    trainers: tuple[TrainerConfig, ...]
    """One for each plan."""
    runs: tuple[RunSettings, ...]
    """One for each plan."""


def configuration(
    plans: Sequence[PlannedJob], job: Job, paths: JobPaths, pool: Pool, train_pool: Pool | None = None
) -> Configuration:
    """The configuration of plans of one job that take turns on one pool.

    `train_pool`: the pool of their trainers; None: that of the engines.
    """
    runs = tuple(run_settings(planned, job) for planned in plans)
    rounds = [each for run in runs for each in run.rounds.values()]
    return Configuration(
        fleet=fleet_config(
            sorted({layout for each in rounds for layout in each.layouts}),
            job,
            paths.model,
            pool,
            max(each.rollout.max_num_seqs for each in rounds),
            max(each.rollout.drafts.tokens if each.rollout.drafts else 0 for each in rounds),
            kv_bytes(rounds, paths.model, job.kv_dtype),
        ),
        rewards={
            name: PoolSize(pool.workers, max(worker_pools(other, job)[name].deadline_s for other in plans))
            for name, pool in worker_pools(plans[0], job).items()
        },
        judge=plans[0].reward.judge,
        trainers=tuple(
            planned_trainer(planned, job, paths.weights or paths.model, train_pool or pool) for planned in plans
        ),
        runs=runs,
    )


def run_settings(planned: PlannedJob, job: Job) -> RunSettings:
    """A plan's decisions as `TrainingRun` takes them."""
    rounds: dict[str, ShortRound | LongRound] = {"short": planned.rounds.short}
    if planned.rounds.long is not None:
        rounds["long"] = planned.rounds.long
    norms = planned.loss.grad_norms or KindNorms(short=1.0, long=1.0)
    return RunSettings(
        planned.bias.mode,
        planned.round_spec(job.rollout.max_response_tokens, job.algorithm.dynamic_sampling),
        {name: pool.timeout_spec() for name, pool in worker_pools(planned, job).items()},
        rounds,
        {
            name: update_settings(each.train)._replace(norm_share=norms.short if name == "short" else norms.long)
            for name, each in rounds.items()
        },
        planned.sync.checksum_every,
        streams=planned.streams,
    )


def worker_pools(planned: PlannedJob, job: Job) -> dict[str, RewardPlan | PooledReward]:
    """The plan's reward workers by part of the job's reward, in the order in which they are placed."""
    names = [part.label for part in job.reward.pooled]
    return {name: planned.reward if not place else planned.reward.further[name] for place, name in enumerate(names)}


def kv_bytes(rounds: Sequence[ShortRound | LongRound], model: str, dtype: str) -> dict[int, int]:
    """By TP size, bytes of the KV cache of each of an engine's ranks: kinds of round and plans share engines, so these
    have what the round takes that needs the most. None of a size of which any round says nothing."""
    tokens: dict[int, list[int | None]] = {}
    for each in rounds:
        for layout in each.layouts:
            tokens.setdefault(layout.tp, []).append(each.rollout.kv_tokens if layout == each.rollout.layout else None)
    return {
        tp: max(said) * kv_bytes_per_token(model, dtype, tp)
        for tp, counts in tokens.items()
        if len(said := [count for count in counts if count is not None]) == len(counts)
    }


def fleet_config(
    layouts: Sequence[EngineLayout],
    job: Job,
    model: str,
    pool: Pool,
    max_num_seqs: int,
    draft_tokens: int = 0,
    kv: Mapping[int, int] | None = None,
) -> FleetConfig:
    """The engines of `layouts` for a job's policy on a pool, each of `max_num_seqs` sequences at a time at most, which
    draft at most `draft_tokens` a step and have KV caches as `kv` says by TP size (`kv_bytes`). Raises InputError for a
    section `engine` that the pool's engines cannot have."""
    if fault := engine_fault(job, pool.accelerators.kind):
        raise InputError(fault)
    engine = job.engine or EngineSpec()
    return FleetConfig(
        layouts=tuple(layouts),
        model_path=model,
        dtype=job.model.dtype,
        device=pool.accelerators.kind,
        max_model_len=job.rollout.longest_tokens,
        max_num_seqs=max_num_seqs,
        kv_memory_bytes_per_accelerator=pool.accelerators.memory_bytes,
        seed=job.algorithm.seed,
        draft_tokens=draft_tokens,
        head_dtype=job.model.head_dtype,
        kv_bytes=kv or {},
        kv_dtype=engine.kv_cache_dtype,
        batched_tokens=engine.max_num_batched_tokens,
        share=engine_share(job),
        restricts=sampling_rules(job).restrict
        or (job.evaluate is not None and sampling_rules(job, job.evaluate).restrict),
    )


def sampling_rules(job: Job, of: RolloutSpec | EvaluateSpec | None = None) -> SamplingRules:
    """By which rules the job's samples are drawn, or those of its evaluations."""
    limits = of or job.rollout
    return SamplingRules(limits.top_p, limits.top_k, limits.min_p, job.rollout.stop, job.rollout.stop_token_ids)


def planned_trainer(planned: PlannedJob, job: Job, model: str, pool: Pool) -> TrainerConfig:
    """The trainer of a plan; rounds of all kinds share its ranks, which share the pool's cores."""
    train = planned.rounds.short.train
    config = trainer_config(job, model, train, pool.accelerators.kind, planned.loss)
    return replace(config, threads=max(pool.cores // config.ranks, 1))


def update_settings(train: UpdateLayout) -> UpdateSettings:
    """What may differ between kinds of round in how they are trained."""
    return UpdateSettings(
        train.micro_batch_tokens,
        recompute=train.recompute != "none",
        offload=train.offload,
        reference=train.reference,
    )


def trainer_config(job: Job, model: str, train: UpdateLayout, device: str, loss: LossPlan) -> TrainerConfig:
    """The trainer of a job's policy, whose losses are divided by the numbers of `loss`."""
    return TrainerConfig(
        model_path=model,
        algorithm=job.algorithm,
        update=update_settings(train),
        ranks=train.accelerators,
        tp=train.tp,
        sp=train.sp,
        state_copies=train.state_copies,
        samples_per_prompt=job.rollout.samples_per_prompt,
        temperature=job.rollout.temperature,
        divisors=Divisors(loss.samples, loss.tokens, job.rollout.max_response_tokens),
        logprob_limits=logprob_limits(job),
        device=device,
        dtype=job.model.dtype,
        head_dtype=job.model.head_dtype,
        compile=job.model.compile,
        lora=job.model.lora,
    )
