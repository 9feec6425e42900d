"""`rlplan profile`: measures a job's phases on this machine with the executor's own workers.

The same actors, calls and files as in a training run are timed, and real plain rounds are run with the real policy:
they give the length trace, and they show what the sum of the phase costs misses.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..executor.execute import trainer_arguments
from ..executor.fleet import Fleet, Layout, start_ray
from ..executor.prompts import load_prompts, load_tokenizer
from ..executor.rewards.pool import RewardPool
from ..executor.rollout import RolloutResult, RoundRunner
from ..executor.samples import TrainSample
from ..executor.trainers import TrainerGroup
from ..plans.cluster import Pool
from ..plans.job import Job, JobPaths
from ..rounds.events import SampleKey
from ..rounds.race import RaceRound
from .fit import TrainPoint, fit_train
from .lengths import LengthRow, LengthTrace
from .measure_rollout import RolloutCosts, measure_layout, spread
from .schema import Reward, Train

WARM_TRAIN_STEPS = 1
REWARD_SINGLES = 20
REWARD_BURST = 200

# Trace rounds are so many times as wide as the job's: one tail then pays for more samples.
WIDE = 4


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """A real plain round: its layout, what was decoded, in order of issue, and how long it took."""

    layout: Layout
    samples: int  # per prompt
    lengths: dict[tuple[int, int], tuple[str, int, bool]]  # (draw, sample) -> (prompt, tokens, truncated)
    rollout_s: float
    reward_exposed_s: float


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything that was measured, before fits of whole rounds."""

    rollout: tuple[RolloutCosts, ...]
    train: tuple[Train, ...]
    reward: Reward
    trace: LengthTrace
    rounds: tuple[MeasuredRound, ...]
    parameters: int
    kv_bytes_per_token: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured, in plain rounds: of the job's shape to check costs, `WIDE` times as wide for lengths."""

    check_rounds: int = 8
    other_layout_rounds: int = 3
    trace_rounds: int = 7
    second_epoch_rounds: int = 1


Notify = Callable[[str], None]


def layouts_to_measure(tp_sizes: Sequence[int], pool: Pool, heads: tuple[int, int] | None) -> list[Layout]:
    """One engine and as many as fit, for each TP size that divides the heads; at least one, else ValueError."""
    found: list[Layout] = []
    for tp in tp_sizes:
        if pool.engines_of(tp) < 1 or (heads is not None and heads[0] % tp):
            continue
        found.extend(Layout(tp, count) for count in sorted({1, pool.engines_of(tp)}))
    if not found:
        raise ValueError(f"no TP size of {list(tp_sizes)} fits the pool and the model's heads")
    return found


def measure(
    job: Job, paths: JobPaths, pool: Pool, heads: tuple[int, int] | None, effort: Effort, notify: Notify
) -> Measurements:
    """Measure everything on this machine. Raises InputError, RunFailed."""
    return asyncio.run(_measure(job, paths, pool, heads, effort, notify))


async def _measure(
    job: Job, paths: JobPaths, pool: Pool, heads: tuple[int, int] | None, effort: Effort, notify: Notify
) -> Measurements:
    began = time.perf_counter()
    layouts = layouts_to_measure(job.search.tp, pool, heads)
    tokenizer = load_tokenizer(paths.model)
    prompts = load_prompts(paths.data, tokenizer, job.rollout.max_prompt_tokens)
    samples = job.rollout.samples_per_step
    start_ray()
    notify("starting reward workers")
    rewards = RewardPool(job.reward.model_dump(), job.reward.workers, search_path=str(paths.data.parent))
    fleet = Fleet(
        layouts,
        model_path=paths.model,
        dtype=job.model.dtype,
        kind=pool.accelerators.kind,
        max_model_len=job.rollout.longest_tokens,
        max_num_seqs=WIDE * samples,
        kv_memory_bytes_per_accelerator=pool.accelerators.memory_bytes,
        seed=job.algorithm.seed,
    )
    runner = RoundRunner(
        fleet,
        rewards,
        prompts,
        lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
        temperature=job.rollout.temperature,
    )
    trainers: list[TrainerGroup] = []

    async def trainer(micro_batch_tokens: int) -> TrainerGroup:
        arguments = trainer_arguments(job, paths.model, micro_batch_tokens, pool.accelerators.kind)
        group = TrainerGroup(f"profile-{micro_batch_tokens}", dp=1, threads=pool.cores, arguments=arguments)
        trainers.append(group)
        await group.start()
        return group

    with tempfile.TemporaryDirectory(prefix="rlplan-profile-") as folder:
        weights = Path(folder) / "weights.safetensors"
        try:
            await rewards.start()
            notify("starting engines: " + ", ".join(engine.name for engine in fleet.all_engines()))
            await fleet.start()
            budgets = [b for b in job.search.micro_batch_tokens if b >= job.rollout.longest_tokens]
            notify("starting the trainer")
            exporter = await trainer(budgets[0])
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
                        export=lambda: exporter.export(weights),
                        weights_path=str(weights),
                        notify=partial(_prefixed, notify, prefix),
                    )
                )
            sampler = _Sampler(job, fleet, runner, exporter, weights, list(prompts))
            rounds, rows, groups = await sampler.sample(layouts, effort, notify)
            notify("reward workers")
            reward = await _measure_reward(rewards, prompts, tokenizer, groups, job)
            train: list[Train] = []
            for budget in budgets:
                notify(f"training: micro-batches of {budget} tokens")
                group = exporter if budget == budgets[0] else await trainer(budget)
                train.append(await _measure_train(group, budget, groups, job.rollout.prompts_per_step))
                await group.close()
            parameters = parameter_count(paths.model)
        finally:
            notify("stopping")
            for group in trainers:
                await group.close()
            await rewards.close()
            await fleet.close()
    return Measurements(
        rollout=tuple(costs),
        train=tuple(train),
        reward=reward,
        trace=LengthTrace(rows, cap_tokens=job.rollout.max_response_tokens),
        rounds=tuple(rounds),
        parameters=parameters,
        kv_bytes_per_token=kv_bytes_per_token(paths.model, job.model.dtype),
        seconds=time.perf_counter() - began,
    )


def _prefixed(notify: Notify, prefix: str, text: str) -> None:
    notify(prefix + text)


class _Sampler:
    """Runs real plain rounds: some of the job's shape in each layout, then wide ones for lengths."""

    def __init__(
        self, job: Job, fleet: Fleet, runner: RoundRunner, exporter: TrainerGroup, weights: Path, prompts: list[str]
    ) -> None:
        self._job, self._fleet, self._runner = job, fleet, runner
        self._exporter, self._weights = exporter, weights
        self._prompts = sorted(prompts)
        # Not the job's order: the prompts that are profiled should not be just the first that are trained.
        random.Random(f"profile:{job.data.seed}").shuffle(self._prompts)
        self._next = 0
        self._serial = 0

    async def sample(
        self, layouts: Sequence[Layout], effort: Effort, notify: Notify
    ) -> tuple[list[MeasuredRound], list[LengthRow], list[list[TrainSample]]]:
        """(rounds, length rows, groups) of all rounds."""
        width = self._job.rollout.prompts_per_step
        rounds: list[MeasuredRound] = []
        rows: list[LengthRow] = []
        groups: list[list[TrainSample]] = []
        plan = [(layouts[0], width, 0)] * effort.check_rounds
        for layout in layouts[1:]:
            plan += [(layout, width, 0)] * effort.other_layout_rounds
        plan += [(layouts[0], WIDE * width, 0)] * effort.trace_rounds
        first_wide = (effort.check_rounds + effort.other_layout_rounds * (len(layouts) - 1)) * width
        plan += [(layouts[0], WIDE * width, 1)] * effort.second_epoch_rounds
        for number, (layout, count, epoch) in enumerate(plan, start=1):
            notify(f"sampling lengths: round {number} of {len(plan)}")
            if epoch and self._next != first_wide and number == len(plan) - effort.second_epoch_rounds + 1:
                self._next = first_wide  # the same prompts once more
            prompts = [self._prompts[(self._next + i) % len(self._prompts)] for i in range(count)]
            self._next += count
            measured, result, round_ = await self._round(layout, prompts)
            rounds.append(measured)
            for draw in round_.draws:
                members: list[TrainSample] = []
                for index in round_.trained_samples(draw):
                    sample = result.samples[SampleKey(draw.number, index)]
                    rows.append(
                        LengthRow(
                            prompt=draw.prompt,
                            epoch=epoch,
                            sample=index,
                            tokens=len(sample.tokens),
                            truncated=sample.truncated,
                            reward=float(sample.reward or 0.0),
                            prompt_tokens=len(sample.prompt_tokens),
                        )
                    )
                    members.append(
                        TrainSample(
                            prompt_id=draw.prompt,
                            sample=index,
                            prompt_tokens=list(sample.prompt_tokens),
                            response_tokens=sample.tokens,
                            logprobs=sample.logprobs,
                            reward=float(sample.reward or 0.0),
                            truncated=sample.truncated,
                        )
                    )
                groups.append(members)
        return rounds, rows, groups

    async def _round(self, layout: Layout, prompts: list[str]) -> tuple[MeasuredRound, RolloutResult, RaceRound]:
        self._serial += 1
        version = f"profile-round:{self._serial}"
        await self._exporter.export(self._weights)
        for engine in self._fleet.engines(layout):
            await engine.load(str(self._weights), version, False)
        size = self._job.rollout.samples_per_prompt
        round_ = RaceRound(prompts, len(prompts), size, size, self._job.rollout.max_response_tokens)
        result = await self._runner.run(round_, layout, version, str(self._weights), version)
        measured = MeasuredRound(
            layout=layout,
            samples=size,
            lengths={
                (key.draw, key.sample): (sample.prompt, len(sample.tokens), sample.truncated)
                for key, sample in sorted(result.samples.items())
            },
            rollout_s=result.rollout_s,
            reward_exposed_s=result.reward_exposed_s,
        )
        return measured, result, round_


async def _measure_reward(
    rewards: RewardPool, prompts: dict[str, Any], tokenizer: Any, groups: Sequence[Sequence[TrainSample]], job: Job
) -> Reward:
    """Latency of single calls, then a burst: what a worker needs per sample when many wait."""
    samples = [sample for group in groups for sample in group]
    texts = [str(tokenizer.decode(s.response_tokens, skip_special_tokens=True)) for s in samples[:REWARD_BURST]]

    def submit(index: int, tag: str) -> Any:
        sample = samples[index % len(texts)]
        prompt = prompts[sample.prompt_id]
        return rewards.score(f"profile/{tag}/{index}", prompt.text, texts[index % len(texts)], prompt.answer)

    singles: list[float] = []
    for index in range(REWARD_SINGLES):
        began = time.perf_counter()
        await submit(index, "single")
        singles.append(time.perf_counter() - began)
    began = time.perf_counter()
    await asyncio.gather(*(submit(index, "burst") for index in range(len(texts))))
    per_sample = (time.perf_counter() - began) * job.reward.workers / len(texts)
    return Reward(workers=job.reward.workers, latency=spread(singles), per_sample_s=per_sample)


async def _measure_train(
    group: TrainerGroup, budget: int, groups: Sequence[list[TrainSample]], prompts_per_step: int
) -> Train:
    """Updates on real groups of several sizes; the weights that they make are thrown away."""
    sizes = [max(1, prompts_per_step // 4), max(1, prompts_per_step // 2), prompts_per_step]
    batches: list[list[list[TrainSample]]] = []
    start = 0
    for size in sizes * 2:
        batches.append([list(groups[(start + i) % len(groups)]) for i in range(size)])
        start += size
    for batch in [batches[-1]] * WARM_TRAIN_STEPS:
        await group.step(_unique(batch))
    points: list[TrainPoint] = []
    for batch in batches:
        began = time.perf_counter()
        await group.step(_unique(batch))
        seconds = time.perf_counter() - began
        tokens = [len(s.prompt_tokens) + len(s.response_tokens) for members in batch for s in members]
        points.append(TrainPoint(sum(tokens), sum(t * t for t in tokens), seconds))
    base, linear, quadratic, error = fit_train(points)
    return Train(
        dp=1,
        micro_batch_tokens=budget,
        step_s=base,
        step_s_per_token=max(linear, 1e-12),
        step_s_per_token_squared=quadratic,
        error=error,
    )


def _unique(batch: list[list[TrainSample]]) -> list[list[TrainSample]]:
    """A prompt of a second epoch may meet itself in one batch; name its groups apart."""
    return [
        [replace(sample, prompt_id=f"{number:04d}:{sample.prompt_id}") for sample in members]
        for number, members in enumerate(batch)
    ]


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
