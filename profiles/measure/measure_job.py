"""`rlplan profile`: measures a job's phases with the executor's own workers, on the devices that a run would have.

The same actors, calls and files as in a training run are timed, and real plain rounds are run with the real policy:
they give the length trace, and they show what the sum of the phase costs misses.

Each engine is started once; engines of several TP sizes come one after another (measure_engines.py). Of each size the
least that a plan needs is measured first, for every number of engines, then what refines it, while there is time
(time_budget.py).
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...executor.engines.engine_bench import EngineBench
from ...executor.engines.engine_handle import EngineHandle
from ...executor.engines.vllm_options import kv_bytes_per_token
from ...executor.placement.live_checks import check_shared
from ...executor.processes.actors import start_ray
from ...executor.rollout.prompts import load_prompts, load_tokenizer
from ...executor.rollout.round_runner import RoundRunner
from ...plans.facts.model_shape import named_model
from ...plans.schema.cluster import Pool
from ...plans.schema.job import Job, JobPaths
from ...plans.schema.levers import EngineLayout, UpdateLayout
from ...plans.yaml.errors import InputError, RunFailed
from ..drafts.draft_schema import ProfiledDrafts
from ..judge_schema import Judge
from ..laws.measured_fit import TrainPoint, fit_train
from ..length_trace import LengthTrace
from ..limits.hardware_peaks import shape_of_policy
from ..phase_schema import Reward, Spread, Train
from ..profile_schema import Machine, PolicyShape
from .decoding.measure_drafts import drafts_or_why_not
from .decoding.measure_rollout import RolloutCosts, spread
from .measure_engines import measure_engines
from .measure_rounds import Effort, MeasuredRound, RoundSampler, wide_prompts
from .measure_site import Subject, profiled_workers, site_of, weight_bytes
from .measure_updates import Bench, measure_updates, step_groups
from .measured_layouts import first_update, layouts_to_measure, share_of_step, updates_to_measure
from .scoring.measure_judge import measure_judge
from .scoring.measure_reward import measure_reward
from .time_budget import Notify, TimeBudget
from .turn_seconds import EngineTurns


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
    kv_bytes_per_token: int
    seconds: float
    left_out: str | None


def measure(
    job: Job, paths: JobPaths, pool_name: str, pool: Pool, out: Path, effort: Effort, notify: Notify
) -> Measurements:
    """Measure everything on nodes of a pool: those of the cluster in RAY_ADDRESS, else this machine.

    `out` is where the profile will be; what all nodes must share is beside it meanwhile. Raises InputError.
    """
    return asyncio.run(_measure(job, paths, pool_name, pool, out, effort, notify))


async def _measure(
    job: Job, paths: JobPaths, pool_name: str, pool: Pool, out: Path, effort: Effort, notify: Notify
) -> Measurements:
    began = time.perf_counter()
    budget, on_gpu = TimeBudget(effort.minutes, notify), pool.accelerators.kind == "cuda"
    tokenizer = load_tokenizer(paths.model)
    assert paths.data is not None, "rlplan profile has looked for it"
    prompts = load_prompts(paths.data, tokenizer, job.rollout.max_prompt_tokens, job.reward)
    subject = Subject(job, paths, pool_name, pool, parameter_count(paths.model))
    model = named_model(paths.model)
    shape, known = model.shape, model.architecture
    architecture = None if known is None or known.guessed else known
    try:
        layouts = layouts_to_measure(job.search.tp, pool, shape, weight_bytes(subject))
    except ValueError as error:
        raise InputError(f"search.tp: {error}") from None
    budgets = sorted(b for b in job.search.micro_batch_tokens if b >= job.rollout.longest_tokens)
    if not budgets:
        needed = job.rollout.longest_tokens
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
    updates = [first, *(each for each in others if _sizes(each) != _sizes(first))]
    shares = {layout: share_of_step(layout, layouts, pool) for layout in layouts}
    most_samples = max(2 * job.rollout.samples_per_step, wide_prompts(job) * job.rollout.samples_per_prompt)
    # Of one engine: on GPUs a layout of fewer engines has so much less to decode.
    most_samples = math.ceil(most_samples * max(share / layout.engines for layout, share in shares.items()))
    budget.tell("starting Ray")
    own_machine = start_ray()
    site = site_of(subject, layouts, updates, most_samples)
    runner = RoundRunner(
        site.fleet,
        site.rewards,
        prompts,
        lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
        temperature=job.rollout.temperature,
    )
    with tempfile.TemporaryDirectory(prefix=".rlplan-profile-", dir=None if own_machine else out.parent) as folder:
        weights = Path(folder) / "weights.safetensors"
        sampler = RoundSampler(job, site, runner, weights, list(prompts), budgets, effort, budget, shares)
        try:
            budget.tell("reserving devices")
            await site.seats.open(own_machine)
            await check_shared(Path(folder), site.seats.nodes, "since weights may travel as a file")
            machine = await site.machine(pool)
            found: list[Judge] = []

            async def beside(engine: EngineHandle, bench: EngineBench) -> None:
                tokenizers = tokenizer, load_tokenizer(paths.judge)
                groups = sampler.sampled.groups
                try:
                    found.append(await measure_judge(subject, engine, bench, prompts, groups, tokenizers, budget))
                except RunFailed as error:
                    budget.leave_out(f"the judge ({error})")

            judged = job.reward.judge is not None and not on_gpu
            if job.reward.judge is not None and on_gpu:
                budget.leave_out("the judge, which is not measured on GPUs: write its seconds under judge by hand")
            rollout = await measure_engines(
                subject, site, sampler, budget, layouts, len(tokenizer), beside if judged else None
            )
            sampled = sampler.sampled
            budget.begin(2)  # before other layouts of the trainer
            drafts = await drafts_or_why_not(subject, site, sampler, prompts, rollout, budget)
            budget.tell("reward workers")
            reward = await measure_reward(site.rewards, prompts, tokenizer, sampled, job, profiled_workers(job, pool))
            budget.begin(1)
            steps = step_groups(sampled.groups, job.rollout.prompts_per_step)
            bench = Bench(site, steps, job.model.dtype, on_gpu, budget)
            train = await measure_updates(bench, _train(sampled.updates, first))
        finally:
            budget.tell("stopping")
            await site.rewards.close()
            await site.turns.end(site.fleet.all_engines(), list(site.trainers))
            site.seats.close()
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
        kv_bytes_per_token=kv_bytes_per_token(paths.model, job.model.dtype),
        seconds=time.perf_counter() - began,
        left_out=budget.outcome,
    )


def _sizes(layout: UpdateLayout) -> tuple[int, int, int, int]:
    return layout.dp, layout.tp, layout.sp, layout.state_copies


def _train(points: Mapping[int, Sequence[TrainPoint]], layout: UpdateLayout) -> tuple[Train, ...]:
    """The entries of the first trainer, one for each micro-batch."""
    sizes = {key: getattr(layout, key) for key in UpdateLayout.model_fields}
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


def parameter_count(model_path: str) -> int:
    """Number of parameters of the policy, read from its configuration without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_path))
    return sum(parameter.numel() for parameter in model.parameters())
