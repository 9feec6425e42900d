"""`rlplan profile`: measures a job's phases on this machine with the executor's own workers.

The same actors, calls and files as in a training run are timed, and real plain rounds are run with the real policy:
they give the length trace, and they show what the sum of the phase costs misses.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...executor.actors import start_ray
from ...executor.configuration import fleet_config, trainer_config
from ...executor.engines.fleet import Fleet
from ...executor.rewards.pool import RewardPool
from ...executor.rollout.prompts import load_prompts, load_tokenizer
from ...executor.rollout.round_runner import RoundRunner
from ...executor.supervision import Supervisor
from ...executor.trainer.trainer_group import TrainerGroup
from ...plans.facts.model_shape import shape_of
from ...plans.schema.cluster import Pool
from ...plans.schema.job import Job, JobPaths
from ...plans.schema.sections.layouts import EngineLayout, UpdateLayout
from ...plans.schema.sections.planned_job import LossPlan
from ..laws.measured_fit import TrainPoint, fit_train
from ..laws.reward_fit import fit_executions
from ..length_trace import LengthTrace
from ..phase_schema import Reward, Spread, Train
from .measure_rollout import RolloutCosts, measure_layout, spread
from .measure_rounds import Effort, MeasuredRound, RoundSampler, Sampled, wide_prompts
from .measure_updates import Bench, measure_updates, step_groups
from .measured_layouts import updates_to_measure

REWARD_BURST = 200


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything that was measured, before fits of whole rounds."""

    rollout: tuple[RolloutCosts, ...]
    train: tuple[Train, ...]
    reward: Reward
    sync: dict[EngineLayout, Spread]
    trace: LengthTrace
    rounds: tuple[MeasuredRound, ...]
    prompt_tokens: dict[str, int]
    parameters: int
    kv_bytes_per_token: int
    seconds: float


Notify = Callable[[str], None]


def measure(
    job: Job, paths: JobPaths, pool: Pool, layouts: Sequence[EngineLayout], effort: Effort, notify: Notify
) -> Measurements:
    """Measure everything on this machine, in these layouts. Raises InputError, RunFailed."""
    return asyncio.run(_measure(job, paths, pool, layouts, effort, notify))


async def _measure(
    job: Job, paths: JobPaths, pool: Pool, layouts: Sequence[EngineLayout], effort: Effort, notify: Notify
) -> Measurements:
    began = time.perf_counter()
    tokenizer = load_tokenizer(paths.model)
    assert paths.data is not None, "rlplan profile has looked for it"
    prompts = load_prompts(paths.data, tokenizer, job.rollout.max_prompt_tokens)
    samples = job.rollout.samples_per_step
    start_ray()
    notify("starting reward workers")
    supervisor = Supervisor()
    rewards = RewardPool.of_job(job, paths, job.reward.workers, job.reward.deadline_s, supervisor)
    most_samples = max(2 * samples, wide_prompts(job) * job.rollout.samples_per_prompt)
    fleet = Fleet(fleet_config(layouts, job, paths.model, pool, most_samples), supervisor)
    runner = RoundRunner(
        fleet,
        rewards,
        prompts,
        lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
        temperature=job.rollout.temperature,
    )
    budgets = [b for b in job.search.micro_batch_tokens if b >= job.rollout.longest_tokens]
    # By what a loss is divided costs nothing; these are a synchronous step's at most.
    most = LossPlan(samples=samples, tokens=samples * job.rollout.max_response_tokens)
    # Updates cost what they cost at any learning rate; at 0 they leave the policy as it is.
    frozen = job.model_copy(update={"algorithm": job.algorithm.model_copy(update={"learning_rate": 0.0})})

    def trainer_of(update: UpdateLayout) -> TrainerGroup:
        config = trainer_config(frozen, paths.model, update, pool.accelerators.kind, most)
        return TrainerGroup("profile", replace(config, threads=max(1, pool.cores // config.ranks)), supervisor)

    trainer = trainer_of(UpdateLayout(dp=1, micro_batch_tokens=budgets[0]))

    with tempfile.TemporaryDirectory(prefix="rlplan-profile-") as folder:
        weights = Path(folder) / "weights.safetensors"
        try:
            await rewards.start()
            notify("starting engines: " + ", ".join(engine.name for engine in fleet.all_engines()))
            await fleet.start()
            notify("starting the trainer")
            await trainer.start()
            costs: list[RolloutCosts] = []
            for layout in layouts:
                prefix = f"{layout.engines} engine{'s' * (layout.engines > 1)}, TP {layout.tp}: "
                costs.append(
                    await measure_layout(
                        fleet,
                        layout,
                        samples=samples,
                        prompt_tokens=job.rollout.max_prompt_tokens,
                        max_len=job.rollout.longest_tokens,
                        vocabulary=len(tokenizer),
                        seeded=job.rollout.seed_per_sample,
                        export=partial(trainer.export, weights),
                        weights_path=str(weights),
                        notify=partial(_prefixed, notify, prefix),
                    )
                )
            sampler = RoundSampler(job, fleet, runner, trainer, weights, list(prompts), budgets)
            sampled = await sampler.sample(layouts, effort, notify)
            notify("reward workers")
            reward = await _measure_reward(rewards, prompts, tokenizer, sampled, job)
            parameters = parameter_count(paths.model)
            train = _train(sampled.updates)
            if further := updates_to_measure(pool, shape_of(paths.model), budgets[-1]):
                steps = step_groups(sampled.groups, job.rollout.prompts_per_step)
                bench = Bench(steps, job.model.dtype, trainer_of)
                train += await measure_updates(bench, trainer, train, further, notify)
        finally:
            notify("stopping")
            await trainer.close()
            await rewards.close()
            await fleet.close()
    return Measurements(
        rollout=tuple(costs),
        train=train,
        reward=reward,
        sync={layout: spread(times) for layout, times in sampled.sync_s.items()},
        trace=LengthTrace(sampled.rows, cap_tokens=job.rollout.max_response_tokens),
        rounds=tuple(sampled.rounds),
        prompt_tokens=sampled.prompt_tokens,
        parameters=parameters,
        kv_bytes_per_token=kv_bytes_per_token(paths.model, job.model.dtype),
        seconds=time.perf_counter() - began,
    )


def _prefixed(notify: Notify, prefix: str, text: str) -> None:
    notify(prefix + text)


async def _measure_reward(
    rewards: RewardPool, prompts: dict[str, Any], tokenizer: Any, sampled: Sampled, job: Job
) -> Reward:
    """What a worker needs per sample when many wait; and the latency of a call, from the real rounds, in which workers
    have been idle and engines are busy."""
    samples = [sample for group in sampled.groups for sample in group]
    texts = [str(tokenizer.decode(s.response_tokens, skip_special_tokens=True)) for s in samples[:REWARD_BURST]]

    def submit(index: int, tag: str) -> Any:
        sample = samples[index % len(texts)]
        prompt = prompts[sample.prompt_id]
        return rewards.score(f"profile/{tag}/{index}", prompt.text, texts[index % len(texts)], prompt.answer)

    began = time.perf_counter()
    await asyncio.gather(*(submit(index, "burst") for index in range(len(texts))))
    per_sample = (time.perf_counter() - began) * job.reward.workers / len(texts)
    return Reward(
        workers=job.reward.workers,
        latency=spread(sampled.reward_exposed_s),
        per_sample_s=per_sample,
        # Only what runs a response's code takes as long as the response likes.
        executions=fit_executions(sampled.scored) if job.reward.kind == "code" else None,
    )


def _train(points: Mapping[int, Sequence[TrainPoint]]) -> tuple[Train, ...]:
    return tuple(
        Train(
            dp=1,
            micro_batch_tokens=budget,
            step_s=fit.base,
            step_s_per_token=max(fit.per_token, 1e-12),
            step_s_per_token_squared=fit.per_squared_token,
            error=fit.error,
            noise=fit.noise,
        )
        for budget, fit in fit_train(points).items()
    )


def parameter_count(model_path: str) -> int:
    """Number of parameters of the policy, read from its configuration without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_path))
    return sum(parameter.numel() for parameter in model.parameters())


def kv_bytes_per_token(model_path: str, dtype: str) -> int:
    """KV bytes of one token: 2 (K and V) x layers x KV heads x head size x bytes per value."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_path)
    config = getattr(config, "text_config", config)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * {"float32": 4}.get(dtype, 2))
