"""`rlplan profile`: measures a job's phases with the executor's own workers, on the devices that a run would have.

The same actors, calls and files as in a training run are timed, and real plain rounds are run with the real policy:
they give the length trace, and they show what the sum of the phase costs misses.

Each engine is started once; engines of several TP sizes come one after another. Of each size the
least that a plan needs is measured first, for every number of engines, then what refines it, while there is time
(time_budget.py).
"""

from __future__ import annotations

import asyncio
import itertools
import math
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ...executor.configuration import sampling_rules
from ...executor.engines.engine_bench import EngineBench
from ...executor.engines.engine_handle import EngineHandle
from ...executor.engines.vllm_options import kv_bytes_per_token
from ...executor.placement.live_checks import check_shared
from ...executor.processes.actors import start_ray
from ...executor.processes.supervision import together
from ...executor.records.warm_start import starting_weights
from ...executor.rollout.prompts import load_prompts, load_tokenizer, response_text, stops_must_be_written
from ...executor.rollout.reward_sum import RewardSum
from ...executor.rollout.round_runner import RoundRunner
from ...executor.trainer.step_checks import logprob_limits
from ...plans.facts.model_shape import named_model
from ...plans.facts.public_models import Architecture
from ...plans.files.prompt_rows import held_out_ids
from ...plans.schema.cluster import Pool
from ...plans.schema.job import Job, JobPaths, pretrained
from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...plans.yaml.errors import InputError, RunFailed
from ..draft_schema import ProfiledDrafts
from ..judge_schema import Judge
from ..laws.hardware_peaks import shape_of_policy
from ..laws.measured_fit import MeasuredRound, TrainPoint, fit_train
from ..laws.reward_fit import fit_executions
from ..length_trace import LengthTrace
from ..phase_schema import Reward, Spread, Train, TrainedAdapters
from ..profile_schema import Machine, PolicyShape
from .measure_drafts import measure_drafts, wanted_tokens
from .measure_judge import measure_judge
from .measure_rollout import Decoded, RolloutCosts, measure_layout, spread
from .measure_rounds import Effort, RoundSampler, Sampled, wide_prompts
from .measure_site import FIRST, Site, Subject, profiled_workers, site_of, weight_bytes
from .measure_updates import Bench, measure_updates, step_groups
from .measured_layouts import first_update, layout_name, layouts_to_measure, share_of_step, updates_to_measure
from .time_budget import EngineTurns, Notify, TimeBudget

REWARD_BURST = 200

SLOW_S, ALONE = 0.02, 9
"""Seconds of a sample from which on so many are scored alone."""


async def measure_reward(
    rewards: RewardSum, prompts: dict[str, Any], tokenizer: Any, sampled: Sampled, job: Job, workers: int
) -> Reward:
    """What a worker of the first pool, of so many, needs per sample when many wait; how much of that there is beside
    decoding; and the latency of a call: from the real rounds, in which workers have been idle and engines are busy.
    Where samples take long the last one waits for others there, so that some are scored alone."""
    if not job.reward.pooled:  # no worker scores anything: lengths are looked at by the driver
        return Reward(workers=1, latency=Spread(p50=0.0, p95=0.0, repeats=0), per_sample_s=0.0)
    part = job.reward.pooled[0]
    pool = rewards.scorer(part.label)
    samples = [s for group in sampled.groups for s in group if part.scores(prompts[s.prompt_id].sources)]
    if not samples:  # none of the rows that were drawn is one that it scores
        return Reward(workers=1, latency=Spread(p50=0.0, p95=0.0, repeats=0), per_sample_s=0.0)
    texts = [response_text(tokenizer, s.response_tokens.tolist()) for s in samples[:REWARD_BURST]]

    def submit(index: int, tag: str) -> Any:
        sample = samples[index % len(texts)]
        prompt = prompts[sample.prompt_id]
        return pool.score(f"profile/{tag}/{index}", prompt.text, texts[index % len(texts)], prompt.answer)

    began = time.perf_counter()
    await asyncio.gather(*(submit(index, "burst") for index in range(len(texts))))
    per_sample = (time.perf_counter() - began) * workers / len(texts)
    alone_s = sampled.reward_exposed_s
    if per_sample >= SLOW_S:
        alone_s = []
        for index in range(ALONE):
            began = time.perf_counter()
            await submit(index, "alone")
            alone_s.append(time.perf_counter() - began)
    load = sum(sample.seconds for sample in sampled.scored) / sampled.scored_rollout_s
    return Reward(
        workers=workers,
        latency=spread(alone_s),
        per_sample_s=per_sample,
        load=load,
        # Only what runs a response's code takes as long as the response likes.
        executions=fit_executions(sampled.scored) if job.reward.kind == "code" else None,
    )


TRAINERS_PART = DRAFTS_PART = 0.5
"""Time that is kept for other layouts of the trainer, and for drafts, over that of one TP size of engines."""


async def measure_engines(
    subject: Subject,
    site: Site,
    sampler: RoundSampler,
    budget: TimeBudget,
    layouts: Sequence[EngineLayout],
    vocabulary: int,
    beside: Callable[[EngineHandle, EngineBench], Awaitable[None]] | None = None,
) -> tuple[RolloutCosts, ...]:
    """Costs of the layouts, those of one TP size after those of another; `sampler` has what their rounds gave.

    Each engine is started once: on GPUs those of a size when those before have ended, on CPUs, where no device's memory
    runs out, all of them at once, which takes less time. A size that fails, or for which no time is left, is left out,
    as long as there is another. Starts reward workers and the first trainer, too. `vocabulary`: tokens that prompts are
    made of. `beside` measures what is to run beside an engine, once there are samples. Raises RunFailed.
    """
    costs: list[RolloutCosts] = []
    on_gpu = subject.pool.accelerators.kind == "cuda"
    sizes = [list(alike) for _, alike in itertools.groupby(layouts, key=lambda each: each.tp)]
    later = TRAINERS_PART + (DRAFTS_PART if wanted_tokens(subject) and not on_gpu else 0.0)
    least_s = 0.0  # of one size: the start of its engines, and the least of its layouts
    for number, alike in enumerate(sizes):
        names, left = " and ".join(layout_name(layout) for layout in alike), len(sizes) - number
        if costs and budget.left_s < least_s:
            budget.leave_out(names)
            budget.lacks(least_s * left)
            continue
        budget.begin(left + later)
        before_s = budget.elapsed_s
        widest = max(alike, key=lambda each: each.engines)
        engines = site.fleet.engines(widest)
        starting = engines if on_gpu else site.fleet.all_engines() if not number else []
        try:
            if starting:
                budget.tell("starting " + ", ".join(engine.name for engine in starting))
            if number:
                await site.turns.start(starting, [])
            else:
                await together(site.rewards.start(), site.turns.start(starting, [FIRST]))
            if not on_gpu:  # those of other sizes have started, too
                before_s = budget.elapsed_s
                budget.begin(left + later)
            for layout in alike:
                costs.append(await _least(subject, site, sampler, budget, layout, layouts, vocabulary))
            if not number:
                await sampler.lengths(widest)
                if beside is not None:
                    bench = _bench(subject.job, site, vocabulary, seed=0)
                    await sampler.ready(widest, "beside")  # after their updates the engines sleep
                    await beside(engines[0], bench)
            least_s = max(least_s, budget.elapsed_s - before_s)
            if budget.left_s < 0:
                budget.lacks(least_s * (left - 1))
            for layout in alike:
                await sampler.more(layout, first=layout == layouts[0])
            if not number:
                await sampler.more_lengths(widest)
        except RunFailed as error:
            if not sampler.sampled.groups:  # lengths come with the first size
                raise
            budget.tell(f"the rest of {names} is left out: {error}")
        finally:
            await site.turns.end(engines)
    return tuple(costs)


def _bench(job: Job, site: Site, vocabulary: int, seed: int) -> EngineBench:
    """Batches that are drawn as the job's samples."""
    return EngineBench(site.fleet, vocabulary, seed, job.rollout.seed_per_sample, sampling_rules(job))


async def _least(
    subject: Subject,
    site: Site,
    sampler: RoundSampler,
    budget: TimeBudget,
    layout: EngineLayout,
    layouts: Sequence[EngineLayout],
    vocabulary: int,
) -> RolloutCosts:
    """The least of one of `layouts`: its costs, and some real rounds."""
    name, rollout = layout_name(layout), subject.job.rollout
    budget.tell(f"{name}: first weights")  # as in a run: the first load builds what decoding then reads
    await sampler.ready(layout, "profile")
    samples = math.ceil(share_of_step(layout, layouts, subject.pool) * rollout.samples_per_step)
    decoded = Decoded(samples, rollout.max_prompt_tokens, rollout.longest_tokens)
    bench = _bench(subject.job, site, vocabulary, seed=layout.tp)
    costs = await measure_layout(bench, site.fleet.engines(layout), layout, decoded, budget, name)
    await sampler.least(layout, first=layout == layouts[0])
    return costs


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything that was measured, before fits of whole rounds.

    Attributes:
        turns: of engines on GPUs; others have nothing that sleeps.
        left_out: one line on what was left out for lack of time; None: nothing.
    """

    machine: Machine
    rollout: tuple[RolloutCosts, ...]
    train: tuple[Train, ...]
    reward: Reward
    judge: Judge | None
    drafts: ProfiledDrafts | None
    sync: dict[EngineLayout, Spread]
    turns: dict[EngineLayout, EngineTurns]
    trace: LengthTrace
    rounds: tuple[MeasuredRound, ...]
    prompt_tokens: dict[str, int]
    parameters: int
    shape: PolicyShape
    adapters: TrainedAdapters | None
    kv_bytes_per_token: int
    seconds: float
    left_out: str | None


def measure(
    job: Job, paths: JobPaths, pool_name: str, pool: Pool, out: Path, effort: Effort, notify: Notify
) -> Measurements:
    """Measure everything on nodes of a pool: those of the cluster in RAY_ADDRESS, else this machine.

    `out` is where the profile will be; what all nodes must share is beside it meanwhile. Raises InputError.
    """
    with tempfile.TemporaryDirectory(prefix=".rlplan-warm-", dir=out.parent) as folder:
        begun = replace(paths, weights=starting_weights(paths, Path(folder), resume=False))
        return asyncio.run(_measure(job, begun, pool_name, pool, out, effort, notify))


async def _measure(
    job: Job, paths: JobPaths, pool_name: str, pool: Pool, out: Path, effort: Effort, notify: Notify
) -> Measurements:
    began = time.perf_counter()
    budget, on_gpu = TimeBudget(effort.minutes, notify), pool.accelerators.kind == "cuda"
    tokenizer = load_tokenizer(paths.model)
    assert paths.data is not None, "rlplan profile has looked for it"
    stops_must_be_written(job.rollout, tokenizer)
    prompts = load_prompts(
        paths.data, tokenizer, job.rollout.max_prompt_tokens, job.reward, job.data.chat_template_kwargs
    )
    for held_out in held_out_ids(job.data, prompts):
        del prompts[held_out]
    subject = Subject(job, paths, pool_name, pool, parameter_count(paths.model))
    known = named_model(pretrained(paths.model)[0]).architecture
    architecture = None if known is None or known.guessed else known
    layouts, budgets, updates = _what_is_measured(subject, architecture, budget)
    shares = {layout: share_of_step(layout, layouts, pool) for layout in layouts}
    most_samples = max(2 * job.rollout.samples_per_step, wide_prompts(job) * job.rollout.samples_per_prompt)
    # Of one engine: on GPUs a layout of fewer engines has so much less to decode.
    most_samples = math.ceil(most_samples * max(share / layout.engines for layout, share in shares.items()))
    budget.tell("starting Ray")
    own_machine = start_ray(job.rollout.most_tokens_per_step)
    site = site_of(subject, layouts, updates, most_samples)
    runner = RoundRunner(
        site.fleet,
        site.rewards,
        prompts,
        partial(response_text, tokenizer),
        temperature=job.rollout.temperature,
        rules=sampling_rules(job),
    )
    with tempfile.TemporaryDirectory(prefix=".rlplan-profile-", dir=None if own_machine else out.parent) as folder:
        weights = Path(folder) / "weights.safetensors"
        sampler = RoundSampler(job, site, runner, weights, list(prompts), budgets, effort, budget, shares)
        try:
            budget.tell("reserving devices")
            await site.placer.open(own_machine)
            await check_shared(Path(folder), site.placer.nodes, "since weights may travel as a file")
            machine = await site.machine(pool)
            found: list[Judge] = []

            async def beside(engine: EngineHandle, bench: EngineBench) -> None:
                tokenizers = tokenizer, load_tokenizer(paths.judge)
                groups = sampler.sampled.groups
                try:
                    found.append(await measure_judge(subject, engine, bench, prompts, groups, tokenizers, budget))
                except RunFailed as error:
                    budget.leave_out(f"the judge ({error})")

            if (judged := job.reward.judge is not None) and on_gpu:
                budget.leave_out("the judge, which is not measured on GPUs: write its seconds under judge by hand")
            judge = beside if judged and not on_gpu else None
            rollout = await measure_engines(subject, site, sampler, budget, layouts, len(tokenizer), judge)
            sampled = sampler.sampled
            budget.begin(2)  # before other layouts of the trainer
            drafts = await measure_drafts(subject, site, sampler, prompts, rollout, budget)
            budget.tell("reward workers")
            reward = await measure_reward(site.rewards, prompts, tokenizer, sampled, job, profiled_workers(job, pool))
            budget.begin(1)
            steps = step_groups(sampled.groups, job.rollout.prompts_per_step)
            bench = Bench(site, steps, logprob_limits(job), on_gpu, budget)
            train = await measure_updates(bench, _train(sampled.updates, updates[0]))
            trained = site.trainers[FIRST].trained_parameters
        finally:
            budget.tell("stopping")
            await site.rewards.close()
            await site.turns.end(site.fleet.all_engines(), list(site.trainers))
            site.placer.close()
    return Measurements(
        machine=machine,
        rollout=rollout,
        train=train,
        reward=reward,
        judge=found[0] if found else None,
        drafts=drafts,
        sync={layout: spread(times) for layout, times in sampled.sync_s.items()},
        turns=sampler.turns if on_gpu else {},
        trace=LengthTrace(sampled.rows, cap_tokens=job.rollout.max_response_tokens),
        rounds=tuple(sampled.rounds),
        prompt_tokens=sampled.prompt_tokens,
        parameters=subject.parameters,
        shape=shape_of_policy(architecture, subject.parameters, job.model.dtype),
        adapters=_adapters(job, trained),
        kv_bytes_per_token=kv_bytes_per_token(paths.model, job.kv_dtype),
        seconds=time.perf_counter() - began,
        left_out=budget.outcome,
    )


def _what_is_measured(
    subject: Subject, architecture: Architecture | None, budget: TimeBudget
) -> tuple[list[EngineLayout], list[int], list[UpdateLayout]]:
    """Layouts of engines, token budgets of micro-batches, layouts of trainers of which the first takes turns with
    engines. Raises InputError for a pool or a search that leaves nothing to measure."""
    job, pool, shape = subject.job, subject.pool, named_model(pretrained(subject.paths.model)[0]).shape
    shape = shape and replace(shape, lora=job.model.lora)
    try:
        layouts = layouts_to_measure(job.search.tp, pool, shape, weight_bytes(subject))
    except ValueError as error:
        raise InputError(f"search.tp: {error}") from None
    needed = job.rollout.longest_tokens
    budgets = sorted(tokens for tokens in job.search.micro_batch_tokens if tokens >= needed)
    if not budgets:
        raise InputError(
            f"search.micro_batch_tokens: none of {sorted(job.search.micro_batch_tokens)} holds the longest sequence of "
            f"{needed} tokens, prompt and response; add one of at least {needed}"
        )
    first = first_update(pool, shape, architecture, job.model.dtype, budgets, job.model.head_dtype)
    if first is None:
        raise InputError(
            f"no number of ranks up to the pool's {pool.accelerators_total} holds the trainer of "
            f"{subject.parameters / 1e9:.3g} billion parameters; give the pool more nodes, or smaller "
            "search.micro_batch_tokens"
        )
    longest = first.micro_batch_tokens
    if longest < budgets[-1]:
        budget.tell(f"micro-batches of more than {longest} tokens are left out: the trainer has no memory for them")
        budgets = [tokens for tokens in budgets if tokens <= longest]
    others = updates_to_measure(pool, shape, longest, architecture, job.model.dtype, job.model.head_dtype)
    return layouts, budgets, [first, *(each for each in others if _sizes(each) != _sizes(first))]


def _sizes(layout: UpdateLayout) -> tuple[int, int, int, int]:
    return layout.dp, layout.tp, layout.sp, layout.state_copies


def _train(points: Mapping[int, Sequence[TrainPoint]], layout: UpdateLayout) -> tuple[Train, ...]:
    """The entries of the first trainer, one for each micro-batch."""
    sizes = {key: getattr(layout, key) for key in UpdateLayout.model_fields if key in Train.model_fields}
    return tuple(
        Train(
            **{**sizes, "micro_batch_tokens": budget},
            step_s=fit.base,
            step_s_per_token=max(fit.per_token, 1e-12),
            step_s_per_token_squared=fit.per_squared_token,
            error=fit.error,
            noise=fit.noise,
        )
        for budget, fit in fit_train(points).items()
    )


def _adapters(job: Job, trained: int) -> TrainedAdapters | None:
    """What updates train in place of the weights, of so many parameters; None where they train the weights."""
    lora = job.model.lora
    if lora is None:
        return None
    frozen: Literal[2, 4] = 2 if job.model.dtype == "bfloat16" else 4
    return TrainedAdapters(
        rank=lora.rank, modules=lora.target_modules, sent=lora.sent, parameters=trained, frozen_bytes=frozen
    )


def parameter_count(model_path: str) -> int:
    """Number of parameters of the policy, read from its configuration without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        name, revision = pretrained(model_path)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(name, trust_remote_code=False, **revision))
    return sum(parameter.numel() for parameter in model.parameters())
