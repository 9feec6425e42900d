"""Turns plans into the configurations of all actors and the settings of each run.

Everything that is built for a run is built from this, and nothing else reads a plan's decisions while the run goes on;
so a key that changes nothing here is a key that the executor does not read (a test walks all keys). What is started
once for several plans, `prepare.differences` requires the plans to agree on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..plans.schema.base import Mode
from ..plans.schema.cluster import Pool
from ..plans.schema.job import Job, JobPaths
from ..plans.schema.levers import EngineLayout, RewardJudge, RoundDrafts, UpdateLayout
from ..plans.schema.planned_job import LossPlan, PlannedJob, PooledReward, RewardPlan
from ..plans.schema.planned_rounds import LongRound, ShortRound
from ..rounds.balance import PrefixSharing
from ..rounds.balancing.balance_spec import BalanceSpec
from ..rounds.hand_over import HandOverSpec, TailSpec
from ..rounds.round_spec import RoundSpec
from ..rounds.timeouts import TimeoutSpec
from .engines.fleet import FleetConfig
from .engines.vllm_options import kv_bytes_per_token
from .rollout.reward_sum import PoolSize
from .trainer.step_checks import LOGPROB_LIMITS
from .trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """What a plan says for one kind of round (short or long)."""

    layout: EngineLayout
    """The engines that the round decodes on."""
    max_num_seqs: int
    """Samples that an engine decodes at a time."""
    sharing: PrefixSharing | None
    """How a prompt's samples are kept together on one engine; None: they are spread."""
    update: UpdateSettings
    """How the round's samples are trained."""
    balance: BalanceSpec | None = None
    """By what samples start longest expected first; None: they start in order, each on the least loaded engine."""
    hand_over: HandOverSpec | None = None
    """Engines that are handed over to training while others decode on; None: none."""
    tail: TailSpec | None = None
    """Engines that decode the tail in place of the round's; None: these decode it."""
    drafts: RoundDrafts | None = None
    """How its engines draft; None: they do not."""
    kv_tokens: int | None = None
    """KV tokens that one engine has room for; None: all that fit."""

    @property
    def layouts(self) -> tuple[EngineLayout, ...]:
        """All engines that the round needs."""
        return (self.layout,) if self.tail is None else (self.layout, EngineLayout(self.tail.tp, self.tail.engines))


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A plan as one run's machines take it."""

    mode: Mode
    spec: RoundSpec
    timeouts: Mapping[str, TimeoutSpec]
    """By part of the reward, those with reward workers."""
    rounds: dict[str, RoundSettings]
    """By kind of round; a plan without long rounds has short ones only."""
    checksum_every: int
    streams: bool = False
    """Whether trainers on a pool of their own train complete groups while others decode."""

    def of_round(self, round_kind: str) -> RoundSettings:
        """The settings of a kind of round; those of short rounds where the plan has no others."""
        return self.rounds.get(round_kind, self.rounds["short"])


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
    rounds = [settings for run in runs for settings in run.rounds.values()]
    return Configuration(
        fleet=fleet_config(
            sorted({layout for settings in rounds for layout in settings.layouts}),
            job,
            paths.model,
            pool,
            max(settings.max_num_seqs for settings in rounds),
            max(settings.drafts.tokens if settings.drafts else 0 for settings in rounds),
            kv_bytes(rounds, paths.model, job.model.dtype),
        ),
        rewards={
            name: PoolSize(pool.workers, max(worker_pools(other, job)[name].deadline_s for other in plans))
            for name, pool in worker_pools(plans[0], job).items()
        },
        judge=plans[0].reward.judge,
        trainers=tuple(planned_trainer(planned, job, paths.model, train_pool or pool) for planned in plans),
        runs=runs,
    )


def run_settings(planned: PlannedJob, job: Job) -> RunSettings:
    """A plan's decisions as `TrainingRun` takes them."""
    spec = RoundSpec(
        **planned.round_numbers(),
        max_tokens=job.rollout.max_response_tokens,
        dynamic_sampling=job.algorithm.dynamic_sampling,
    )
    norms = planned.loss.grad_norms
    rounds = {"short": _round_settings(planned.rounds.short, 1.0 if norms is None else norms.short)}
    if planned.rounds.long is not None:
        rounds["long"] = _round_settings(planned.rounds.long, 1.0 if norms is None else norms.long)
    timeouts = {name: TimeoutSpec(**pool.timeout_numbers()) for name, pool in worker_pools(planned, job).items()}
    sync = planned.sync
    return RunSettings(planned.bias.mode, spec, timeouts, rounds, sync.checksum_every, streams=planned.streams)


def worker_pools(planned: PlannedJob, job: Job) -> dict[str, RewardPlan | PooledReward]:
    """The plan's reward workers by part of the job's reward, in the order in which they are seated."""
    names = [part.label for part in job.reward.pooled]
    return {name: planned.reward if not place else planned.reward.further[name] for place, name in enumerate(names)}


def _round_settings(planned: ShortRound | LongRound, norm_share: float) -> RoundSettings:
    rollout, prefix, freed = planned.rollout, planned.rollout.prefix, planned.hand_over
    tail = planned.tail if isinstance(planned, LongRound) else None
    return RoundSettings(
        layout=rollout.layout,
        max_num_seqs=rollout.max_num_seqs,
        sharing=None if prefix is None else PrefixSharing(prefix.block_tokens, prefix.tokens_per_sample),
        update=update_settings(planned.train)._replace(norm_share=norm_share),
        balance=None if rollout.balance is None else BalanceSpec(**rollout.balance.numbers()),
        hand_over=None if freed is None else HandOverSpec(**freed.model_dump()),
        tail=None if tail is None else TailSpec(**tail.model_dump()),
        drafts=rollout.drafts,
        kv_tokens=rollout.kv_tokens,
    )


def kv_bytes(rounds: Sequence[RoundSettings], model: str, dtype: str) -> dict[int, int]:
    """By TP size, bytes of the KV cache of each of an engine's ranks: kinds of round and plans share engines, so these
    have what the round takes that needs the most. None of a size of which any round says nothing."""
    tokens: dict[int, list[int | None]] = {}
    for settings in rounds:
        for layout in settings.layouts:
            tokens.setdefault(layout.tp, []).append(settings.kv_tokens if layout == settings.layout else None)
    return {
        tp: max(said) * kv_bytes_per_token(model, dtype, tp)
        for tp, each in tokens.items()
        if len(said := [count for count in each if count is not None]) == len(each)
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
    draft at most `draft_tokens` a step and have KV caches as `kv` says by TP size (`kv_bytes`)."""
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
    )


def planned_trainer(planned: PlannedJob, job: Job, model: str, pool: Pool) -> TrainerConfig:
    """The trainer of a plan; rounds of all kinds share its ranks, which share the pool's cores."""
    train = planned.rounds.short.train
    config = trainer_config(job, model, train, pool.accelerators.kind, planned.loss)
    return replace(config, threads=max(pool.cores // config.ranks, 1))


def update_settings(train: UpdateLayout) -> UpdateSettings:
    """What may differ between kinds of round in how they are trained."""
    return UpdateSettings(train.micro_batch_tokens, recompute=train.recompute != "none", offload=train.offload)


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
        logprob_limits=LOGPROB_LIMITS[job.model.dtype],
        device=device,
        dtype=job.model.dtype,
        head_dtype=job.model.head_dtype,
        compile=job.model.compile,
    )
