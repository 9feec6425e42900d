"""All parts of runs that take turns, engines, trainers and reward workers: how they are made, started and ended.

Imported only when a run is to start: it imports Ray and torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plans.files.prompt_rows import evaluated_ids, held_out_ids
from ..plans.phrases.numbers import count
from ..plans.schema.job import EvaluateSpec, JobPaths, RolloutSpec
from ..plans.schema.planned_job import PlannedJob
from ..plans.yaml.errors import InputError, RunFailed
from .configuration import Configuration, configuration, sampling_rules
from .engines.engine_handle import EngineDied, EngineGivenUp, EngineHandle, spare_each_other
from .engines.fleet import Fleet
from .groups.group_change import MoveRequest, take_request
from .groups.job_process import left_by
from .groups.member_phases import MemberPhases
from .groups.permit_actor import membership
from .memory.device_holds import device_ledger
from .memory.device_turns import DeviceTurns
from .memory.free_memory import beside_others, held_by_others, held_text
from .placement.actor_placer import ActorPlacer, NodeNews
from .placement.live_checks import check_shared, same_models
from .placement.live_nodes import LeasedNode
from .prepare import Execution, Options, PlanSwitch, placement_of, prepare
from .processes.actors import start_ray, store_lack
from .processes.faults import out_of_memory
from .processes.host import must_be_tested
from .processes.supervision import Patience, Supervisor, together
from .records.execution_folder import begin_folder
from .records.plan_changes import PlanChange, PlanRefusal, keep_facts, plan_change
from .records.run_checkpoints import Saving
from .records.run_record import excluded_nodes
from .records.sample_keeper import SampleKeeper
from .records.warm_start import starting_weights
from .rewards.judge_pool import JudgePool, judge_config
from .rewards.local_scoring import try_functions
from .rollout.evaluation import Evaluator
from .rollout.prompts import PromptText, load_prompts, load_tokenizer, response_text, stops_must_be_written
from .rollout.reward_sum import RewardSum
from .rollout.round_runner import RoundRunner
from .run import TrainingRun
from .speed_check import SpeedCheck
from .trainer.trainer_group import TrainerGroup
from .turns import Leaving, Watcher, take_turns, tell_faults

if TYPE_CHECKING:
    from .groups.member_task import MemberTask


class NotStarted(Exception):
    """What executes plans could not be started, for this reason."""

    def __init__(self, reason: InputError | RunFailed) -> None:
        super().__init__(str(reason))
        self.reason = reason


async def run_session(
    executions: Sequence[Execution],
    options: Options,
    watcher: Watcher,
    member: MemberTask | None,
    process_began_s: float,
    refusal: PlanRefusal | None = None,
) -> bool | PlanSwitch:
    """As `execute.execute`, whose folders are locked by now. `process_began_s`: when this process began, in seconds
    since the epoch. `refusal`: why the run does not go on by a plan with which it could not be started. Returns another
    plan by which the run is to go on with other engines or trainers, if one was asked for. Raises NotStarted, or
    RunFailed once it has started."""
    try:
        session = Session(executions, options, watcher, member, process_began_s)
    except (InputError, RunFailed) as failure:
        raise NotStarted(failure) from failure
    try:
        try:
            await session.start()
        except (InputError, RunFailed) as failure:
            raise NotStarted(session.explained(failure)) from failure
        if refusal is not None:
            session.tell_refusal(refusal)
        ended = await session.take_turns()
    finally:
        await session.close()
    if not isinstance(ended, bool):
        await left_by(os.getpid())  # what dies still holds devices, and would be taken for another's
    return ended


class Session:
    """Executions that run on the same engines and reward workers, each with a trainer of its own; made on the event
    loop. `member`: their place in a co-execution group. Raises InputError for files that do not fit the job."""

    def __init__(
        self,
        executions: Sequence[Execution],
        options: Options,
        watcher: Watcher,
        member: MemberTask | None,
        process_began_s: float,
    ) -> None:
        self._process_began_s = process_began_s
        self._executions, self._options, self._watcher, self._member = executions, options, watcher, member
        first = executions[0]
        job, paths, self._pool = first.checked.job, first.checked.paths, first.pool
        paths = replace(paths, weights=starting_weights(paths, first.run_dir, options.resume))
        assert paths.data is not None, "prepare has looked for it"
        tokenizer = self._tokenizer = load_tokenizer(paths.model)
        stops_must_be_written(job.rollout, tokenizer)
        read = partial(
            load_prompts, tokenizer=tokenizer, max_prompt_tokens=job.rollout.max_prompt_tokens,
            template=job.data.chat_template_kwargs,
        )  # fmt: skip
        every = read(paths.data, reward=job.reward)
        held_out = held_out_ids(job.data, every)
        prompts = {name: prompt for name, prompt in every.items() if name not in held_out}
        if held_out:
            watcher.note(f"data.held_out: {len(held_out)} of {count(len(every), 'prompt')} are not trained on")
        settings = _configuration(executions, paths)
        asked, judge_tokenizer = None, None
        if settings.judge is not None:
            judge_tokenizer = load_tokenizer(paths.judge)
            asked = judge_config(job, paths.judge, settings.judge, self._pool, judge_tokenizer)
        try_functions(job, paths, [(row.text, row.answer, row.sources) for row in prompts.values()])
        watcher.phase("starting Ray")
        self._own_machine = start_ray(job.rollout.most_tokens_per_step)
        if not self._own_machine and (lack := store_lack(job.rollout.most_tokens_per_step)) is not None:
            watcher.note(lack)

        supervisor = Supervisor(Patience(options.stall_s, options.restarts_per_hour))
        placement = placement_of(executions)
        self._early: list[tuple[str, dict[str, Any]]] | None = []  # events before the runs have begun
        excluded: dict[str, str] = {}
        for execution in executions if options.resume else ():
            excluded |= excluded_nodes(execution.run_dir)
        if options.readmit:
            for address in excluded:
                self.event("node_readmitted", address=address)
            excluded = {}
        self._placer = ActorPlacer(
            placement, self._pool.accelerators.kind, tell=self._hear_node, excluded=excluded,
            given=() if member is None else member.leased, fits=self._fit,
        )  # fmt: skip
        self._fleet = Fleet(settings.fleet, supervisor, placer=self._placer)
        self._fleet.spare(self._hear_given_up)
        self._judge = None if asked is None else JudgePool(asked, judge_tokenizer, supervisor, self._placer)
        spare_each_other([] if self._judge is None else self._judge.engines)
        self._models = sorted({path for path in (paths.model, paths.weights, paths.judge) if path})
        self._rewards = RewardSum.of_job(
            job, paths, settings.rewards, supervisor, placer=self._placer, judge=self._judge
        )
        trainers = {
            execution.name: TrainerGroup(execution.name, trainer, supervisor, self._placer, options.node_patience_s)
            for execution, trainer in zip(executions, settings.trainers, strict=True)
        }
        self._plans, self._fleet_config = {e.name: e.plan for e in executions}, settings.fleet
        self._ledger_of = partial(
            device_ledger, settings.fleet, self._plans, self._pool,
            None if first.train_pool is self._pool else first.train_pool,
            placement.device_names(self._pool.accelerators.kind), shared=member is not None,
        )  # fmt: skip
        speeds = {name: plan.predicted.speed for name, plan in self._plans.items()}
        self._profiled = {name: speed for name, speed in speeds.items() if speed is not None}
        self._turns = DeviceTurns(self._ledger_of(), self._fleet, trainers)
        self._in_group = contextlib.AsyncExitStack()
        self._phases: MemberPhases | None = None
        if member is not None:
            self._phases = MemberPhases(member.permits, self._turns, member.engine_units(placement))

        def runner(prompts: Mapping[str, PromptText], of: RolloutSpec | EvaluateSpec) -> RoundRunner:
            decode = partial(response_text, tokenizer)
            rewards = self._rewards.only(of.rewards) if isinstance(of, EvaluateSpec) else self._rewards
            return RoundRunner(
                self._fleet, rewards, prompts, decode, temperature=of.temperature, rules=sampling_rules(job, of),
                stall_s=options.stall_s,
            )  # fmt: skip

        self._evaluated: tuple[list[str], RoundRunner] | None = None
        if job.evaluate is not None and member is not None:
            watcher.note("evaluate: a job of a co-execution group, whose engines others use in turns, is not evaluated")
        elif job.evaluate is not None:
            own = {name: every[name] for name in evaluated_ids(job.data, every)}
            asked_for = own if paths.evaluation is None else read(paths.evaluation, reward=job.evaluated_reward)
            self._evaluated = list(asked_for), runner(asked_for, job.evaluate)
            trained = {prompt.tokens for prompt in prompts.values()}
            if both := sum(prompt.tokens in trained for prompt in asked_for.values()):
                key = "data.held_out" if paths.evaluation is None else "evaluate.data"
                watcher.note(f"{key}: {both} of its {count(len(asked_for), 'prompt')} are trained on, too")
        rounds = runner(prompts, job.rollout)
        self._runs = [self._run(execution, rounds, trainers[execution.name], prompts) for execution in executions]

    def _run(
        self, execution: Execution, runner: RoundRunner, trainer: TrainerGroup, prompts: Mapping[str, PromptText]
    ) -> TrainingRun:
        job, evaluator = execution.checked.job, None
        if job.evaluate is not None and self._evaluated is not None:
            seed = job.algorithm.seed if job.rollout.seed_per_sample else None
            evaluator = Evaluator(job.evaluate, *self._evaluated, job.rollout.max_response_tokens, seed)
        keeper = SampleKeeper(
            execution.run_dir, self._options.samples, job.algorithm.seed, job.algorithm.name, prompts,
            partial(response_text, self._tokenizer),
        )  # fmt: skip
        run = TrainingRun(
            execution.name,
            execution.plan.job,
            job,
            execution.run_dir,
            fleet=self._fleet,
            runner=runner,
            trainer=trainer,
            prompt_ids=list(prompts),
            turns=self._turns,
            permits=self._phases,
            planned_short_share=execution.planned_short_share,
            predicted=execution.plan.predicted,
            saving=Saving(self._options.keep_every, self._options.save_model_every),
            keeper=keeper,
            evaluator=evaluator,
            trackers=self._options.trackers,
        )
        if self._options.history is not None:
            run.drafts.inherit(self._options.history, prompts)
        return run

    async def start(self) -> None:
        """Start all parts and begin the runs. Raises InputError, RunFailed."""
        await self._reserve()
        names = ", ".join(engine.name for engine in self._fleet.all_engines())
        self._watcher.phase(f"starting reward workers, trainers and engines {names}")
        began = time.monotonic()
        if self._phases is not None and self._turns.bounded:  # a start needs room where other jobs are
            await self._join_group()
            await together(self._rewards.start(), self._phases.start())
        else:
            await together(self._rewards.start(), self._turns.start())
        start_s = round(time.monotonic() - began, 3)
        for execution, run in zip(self._executions, self._runs, strict=True):
            await self._begin(execution, run, start_s)
        early, self._early = self._early or (), None
        for event, fields in early:
            self.event(event, **fields)
        for note in self._rewards.notes():
            self._watcher.note(note)
            self.event("sandbox_lacks", reason=note)
        if self._judge is not None:
            self._judge.tell = self._hear_death
        if not self._turns.bounded:
            await self._join_group()

    def explained(self, failure: InputError | RunFailed) -> InputError | RunFailed:
        """Why a start failed, with what the plan says of the memory that ran out, if one did."""
        text = str(failure)
        if not out_of_memory(text):
            return failure
        return RunFailed(self._runs[0].with_memory(text, "train" if text.startswith("trainer ") else "kv"))

    async def _join_group(self) -> None:
        permits = None if self._member is None else self._member.permits
        await self._in_group.enter_async_context(membership(permits))

    async def _reserve(self) -> None:
        """Take the nodes, and see that the runs fit beside what others hold there."""
        self._watcher.phase("reserving devices")
        for address, why in self._placer.excluded.items():
            self._watcher.note(f"node {address} stays excluded, --readmit takes it again: {why}")
        await self._placer.open(self._own_machine)
        await self._fit(self._placer.nodes)
        # Of a group the others are there by right, and sleep in turns.
        on_gpus = self._pool.accelerators.kind == "cuda" and self._member is None
        if on_gpus and (held := await held_by_others(self._placer.numbered)):
            self._turns.ledger = beside_others(self._ledger_of, self._fleet_config, self._plans, held)
            self._watcher.note(f"{held_text(held)}; the plan fits beside them")
        for execution in self._executions:
            await check_shared(execution.run_dir, self._placer.nodes)

    async def _fit(self, nodes: Sequence[LeasedNode]) -> None:
        """Raises InputError if nodes have versions that are not tested, or different copies of a model."""
        if not self._options.unsafe_versions:
            for node in nodes:
                must_be_tested(node.facts.versions, f" on node {node.facts.address}")
        for model in self._models:
            await same_models(model, nodes)

    async def _begin(self, execution: Execution, run: TrainingRun, start_s: float) -> None:
        options, home = self._options, execution.run_dir
        change = plan_change(home, execution.text, execution.plan) if options.resume else None
        begin_folder(home, execution.text, options.resume)
        keep_facts(home, execution.checked)
        process_s = round(time.time() - self._process_began_s, 3)
        plan = _beside(execution.plan_path, home)
        await run.start(
            options.resume,
            start_s=start_s,
            process_s=process_s,
            steps=options.steps,
            drains=options.drain_queue,
            plan=plan,
        )
        if change is not None:
            run.tell_change(change, plan)
        if options.history is not None and (known := run.drafts.store) is not None:
            source = _beside(options.history, home)
            run.event("history", checkpoint=source, prompts=len(known), bytes=known.nbytes)
        tell_faults(run, self._watcher)

    def event(self, event: str, **fields: Any) -> None:
        """Write an event to the trace of each run, or once they have begun."""
        if self._early is not None:
            self._early.append((event, fields))
            return
        for run in self._runs:
            run.event(event, **fields)

    def _hear_node(self, news: NodeNews) -> None:
        if news.event == "node_lost":
            self._watcher.note(f"node {news.address}: {news.reason or 'lost'}")
            self.event("node_lost", node=news.node, address=news.address)
        elif news.event == "node_excluded":
            self._watcher.note(f"node {news.address}: excluded, the run goes on without it: {news.reason}")
            self.event("node_excluded", node=news.node, address=news.address, reason=news.reason)
            for engine in (*self._fleet.all_engines(), *(() if self._judge is None else self._judge.engines)):
                if self._placer.runs_on(engine.name, news.node):
                    engine.leave_node(f"its node {news.address} is excluded")
        else:
            self._watcher.note(f"node {news.address}: in its place, or back")
            self.event("node_back", node=news.node, address=news.address)

    def _hear_given_up(self, news: EngineGivenUp) -> None:
        self._watcher.note(f"{news.engine.name} is given up, the others go on: {news.error}")
        self.event("engine_given_up", whom=news.engine.name, reason=str(news.error))

    def _hear_death(self, death: EngineDied) -> None:
        self._watcher.note(f"{death.engine.name} is being replaced: {death.reason}")
        self.event("restart", whom=death.engine.name, reason=death.reason)

    async def between_steps(self, run: TrainingRun) -> PlanSwitch | None:
        """Take a plan that the run was asked to go on by: in place where it has all that the plan needs, else it is
        returned. One that the run cannot go on by is refused, and the run goes on as before."""
        execution = next(each for each in self._executions if each.name == run.name)
        if (request := take_request(execution.run_dir)) is None:
            return None
        refused = None
        if len(self._executions) > 1:
            refused = (
                "the run takes turns with others on shared engines; stop them all, then resume it alone by the plan"
            )
        elif self._member is not None:
            refused = "the run belongs to a co-execution group; apply a plan of groups to the group"
        else:
            try:
                asked, change = await asyncio.to_thread(_requested, execution, request)
                refused = "it is the plan in force" if change is None else None
            except InputError as reason:
                refused = str(reason)
        if refused is not None:
            self.refuse(run, PlanRefusal(request.id, request.plan, refused))
            return None
        assert change is not None
        if not _fits_in_place(execution, asked):
            self._watcher.note(f"{run.name}: goes on by {asked.plan_path} with engines and trainers of that plan")
            return PlanSwitch(asked, execution, request.id)
        run.take_plan(asked.plan.job, asked.planned_short_share, asked.plan.predicted)
        run.tell_change(change, _beside(asked.plan_path, asked.run_dir))
        self._executions, self._plans[run.name] = [asked], asked.plan
        if asked.plan.predicted.speed is not None:
            self._profiled[run.name] = asked.plan.predicted.speed
        self._watcher.plan_changed(run.name, asked.plan)
        return None

    def tell_refusal(self, refusal: PlanRefusal) -> None:
        """Tell that the only run does not go on by a plan that was asked for."""
        self.refuse(self._runs[0], refusal)

    def refuse(self, run: TrainingRun, refusal: PlanRefusal) -> None:
        """As `turns.Plans` has it."""
        self._watcher.note(f"{refusal.plan} is not applied: {refusal.reason}")
        run.event("plan_refused", id=refusal.request_id, plan=refusal.plan, reason=refusal.reason)

    async def take_turns(self) -> bool | PlanSwitch:
        """Take the steps of all runs, as `turns.take_turns`."""
        options, speed = self._options, None
        profiled = self._profiled
        if profiled and options.speed_check and self._member is None:  # in a group the machine is others', too
            job = self._executions[0].checked.job
            speed = SpeedCheck(
                self._fleet, profiled, len(self._tokenizer), job.rollout.seed_per_sample, options.speed_check_every,
                sampling_rules(job),
            )  # fmt: skip
        judges: Sequence[EngineHandle] = () if self._judge is None else self._judge.engines
        leaving = Leaving(self._placer, self._fleet, self._runs, judges)
        return await take_turns(self._runs, options, self._watcher, leaving, speed, self)

    async def close(self) -> None:
        """End all parts; what is left of the group's devices is free then."""
        self._watcher.phase("stopping")
        try:
            for run in self._runs:
                await run.close()
            await self._rewards.close()
            await self._fleet.close()
            self._placer.close()
        finally:
            await self._in_group.aclose()


def _configuration(executions: Sequence[Execution], paths: JobPaths | None = None) -> Configuration:
    first = executions[0]
    jobs = [execution.plan.job for execution in executions]
    return configuration(jobs, first.checked.job, paths or first.checked.paths, first.pool, first.train_pool)


def _requested(running: Execution, request: MoveRequest) -> tuple[Execution, PlanChange | None]:
    """The plan of a request, checked as for a start, and what it changes. Raises InputError."""
    path = Path(request.plan)
    (asked,) = prepare([path], running.run_dir, resume=True)
    placement_of([asked])
    change = plan_change(running.run_dir, asked.text, asked.plan)
    if change is not None and change.sha256 != request.sha256:
        raise InputError("changed after it was applied; apply it again", str(path))
    return asked, change


def _fits_in_place(running: Execution, asked: Execution) -> bool:
    """Whether a run can go on by another plan with the engines, trainers and reward workers that it has: only what
    rounds issue, cut, defer and draft differs."""

    def started(plan: PlannedJob) -> set[tuple[Any, ...]]:
        rounds = [each for each in (plan.rounds.short, plan.rounds.long) if each is not None]
        return {(each.rollout.pool, each.layouts, each.train, each.hand_over, each.tail) for each in rounds}

    before, after = _configuration([running]), _configuration([asked])
    parts = [(each.fleet, each.rewards, each.judge, each.trainers) for each in (before, after)]
    documents = [
        (each.checked.job, each.checked.paths, each.checked.cluster, each.plan.job.placement)
        for each in (running, asked)
    ]
    same = parts[0] == parts[1] and documents[0] == documents[1]
    return same and started(asked.plan.job) <= started(running.plan.job)


def _beside(path: Path, folder: Path) -> str:
    """`path` relative to `folder`, so that a folder that is moved as a whole still finds it."""
    return Path(os.path.relpath(path, folder)).as_posix()
