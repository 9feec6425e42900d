"""Executes one or several plans of one job: starts engines, reward workers and trainers, takes the steps, ends cleanly.

Several plans take their steps in turns on the same engines, so that all of them see the same machine; each has its own
trainer, folder, trace and checkpoints. The caller shows progress through a `Watcher`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from .prepare import Execution, Options, placement_of
from .processes.host import cluster_address
from .records.execution_folder import begin_folder, check_folder, run_lock

if TYPE_CHECKING:
    from .groups.member_task import Member
    from .turns import Watcher


def execute(executions: Sequence[Execution], options: Options, watcher: Watcher, member: Member | None = None) -> bool:
    """Run all plans for `options.steps` steps each, in turns; `member`: their place in a co-execution group.

    Returns True when all steps are done, False when a signal ended the run before, with checkpoints.
    Raises InputError for data that does not fit the job, a folder that another process runs in or a RAY_ADDRESS that is
    no address, RunFailed when the infrastructure failed for good.
    """
    cluster_address()  # refused now, and not after folders were made
    with contextlib.ExitStack() as locks:
        for execution in executions:
            locks.enter_context(run_lock(execution.run_dir))
            # Once more: another driver may have begun or ended here since `prepare`.
            check_folder(execution.run_dir, execution.plan_path, options.resume)
        return asyncio.run(_execute(executions, options, watcher, member))


async def _execute(executions: Sequence[Execution], options: Options, watcher: Watcher, member: Member | None) -> bool:
    # Here, since these import Ray and torch.
    from .configuration import configuration
    from .engines.engine_handle import EngineDied
    from .engines.fleet import Fleet
    from .groups.member_turns import MemberTurns
    from .groups.permit_actor import membership
    from .memory.device_holds import device_ledger
    from .memory.device_turns import DeviceTurns
    from .memory.free_memory import beside_others, held_by_others, held_text
    from .placement.live_checks import check_shared
    from .placement.seat_keeper import NodeNews, SeatKeeper
    from .processes.actors import start_ray
    from .processes.supervision import Patience, Supervisor, together
    from .rewards.judge_pool import JudgePool, judge_config
    from .rewards.local_scoring import try_functions
    from .rollout.prompts import load_prompts, load_tokenizer
    from .rollout.reward_sum import RewardSum
    from .rollout.round_runner import RoundRunner
    from .run import TrainingRun
    from .speed_check import SpeedCheck
    from .trainer.trainer_group import TrainerGroup
    from .turns import Leaving, take_turns, tell_faults

    first = executions[0]
    job, pool, paths = first.checked.job, first.pool, first.checked.paths
    tokenizer = load_tokenizer(paths.model)
    assert paths.data is not None, "prepare has looked for it"
    prompts = load_prompts(paths.data, tokenizer, job.rollout.max_prompt_tokens, job.reward)
    settings = configuration([e.plan.job for e in executions], job, paths, pool, first.train_pool)
    asked, judge_tokenizer = None, None
    if settings.judge is not None:
        judge_tokenizer = load_tokenizer(paths.judge)
        asked = judge_config(job, paths.judge, settings.judge, pool, judge_tokenizer)

    row = next(iter(prompts.values()))
    try_functions(job, paths, row.text, row.answer)
    watcher.phase("starting Ray")
    own_machine = start_ray()
    supervisor = Supervisor(Patience(options.stall_s, options.restarts_per_hour))
    placement = placement_of(executions)
    seats = SeatKeeper(placement, pool.accelerators.kind, given=() if member is None else member.nodes)
    fleet = Fleet(settings.fleet, supervisor, seats=seats)
    judge = None
    if asked is not None:
        judge = JudgePool(asked, judge_tokenizer, supervisor, seats)
    rewards = RewardSum.of_job(job, paths, settings.rewards, supervisor, seats=seats, judge=judge)
    runner = RoundRunner(
        fleet,
        rewards,
        prompts,
        lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True)),
        temperature=job.rollout.temperature,
        stall_s=options.stall_s,
    )
    trainers = [
        TrainerGroup(execution.name, trainer, supervisor, seats, options.node_patience_s)
        for execution, trainer in zip(executions, settings.trainers, strict=True)
    ]
    train_pool = None if first.train_pool is pool else first.train_pool
    where = placement.device_names(pool.accelerators.kind)
    plans = {e.name: e.plan for e in executions}
    ledger_of = partial(device_ledger, settings.fleet, plans, pool, train_pool, where, shared=member is not None)
    turns = DeviceTurns(ledger_of(), fleet, {e.name: trainer for e, trainer in zip(executions, trainers, strict=True)})
    in_group, permits = contextlib.AsyncExitStack(), None if member is None else member.permits
    group_turns = None if member is None else MemberTurns(member.permits, turns, member.engine_units(placement))
    runs = [
        TrainingRun(
            execution.name,
            execution.plan.job,
            job,
            execution.run_dir,
            fleet=fleet,
            runner=runner,
            trainer=trainer,
            prompt_ids=list(prompts),
            turns=turns,
            permits=group_turns,
            planned_short_share=execution.planned_short_share,
        )
        for execution, trainer in zip(executions, trainers, strict=True)
    ]
    for run in runs:
        if options.history is not None:
            run.drafts.inherit(options.history, prompts)
    try:
        watcher.phase("reserving devices")
        await seats.open(own_machine)
        # Of a group the others are there by right, and sleep in turns.
        on_gpus = pool.accelerators.kind == "cuda" and member is None
        if on_gpus and (held := await held_by_others(seats.numbered)):
            turns.ledger = beside_others(ledger_of, settings.fleet, plans, held)
            watcher.note(f"{held_text(held)}; the plan fits beside them")
        for execution in executions:
            await check_shared(execution.run_dir, seats.nodes)
        names = ", ".join(engine.name for engine in fleet.all_engines())
        watcher.phase(f"starting reward workers, trainers and engines {names}")
        began = time.monotonic()
        if group_turns is not None and turns.bounded:  # a start needs room where other jobs are
            await in_group.enter_async_context(membership(permits))
            await together(rewards.start(), group_turns.start())
        else:
            await together(rewards.start(), turns.start())
        start_s = time.monotonic() - began
        for execution, run in zip(executions, runs, strict=True):
            begin_folder(execution.run_dir, execution.plan_path, options.resume)
            # Relative, so that a folder that is moved as a whole still finds its plan.
            plan = Path(os.path.relpath(execution.plan_path, execution.run_dir)).as_posix()
            process_s = round(time.time() - psutil.Process().create_time(), 3)
            start_s = round(start_s, 3)
            await run.start(options.resume, start_s=start_s, process_s=process_s, steps=options.steps, plan=plan)
            if options.history is not None and run.drafts.store is not None:
                known = run.drafts.store
                source = Path(os.path.relpath(options.history, execution.run_dir)).as_posix()
                run.event("history", checkpoint=source, prompts=len(known), bytes=known.nbytes)
            tell_faults(run, watcher)
        for note in rewards.notes():
            watcher.note(note)
            for run in runs:
                run.event("sandbox_lacks", reason=note)

        def hear(news: NodeNews) -> None:
            watcher.note(f"node {news.address}: {'lost' if news.event == 'node_lost' else 'in its place, or back'}")
            for run in runs:
                if news.event == "node_lost":
                    run.event("node_lost", node=news.node, address=news.address)
                else:
                    run.event("node_back", node=news.node, address=news.address)

        def hear_death(death: EngineDied) -> None:
            watcher.note(f"{death.engine.name} is being replaced: {death.reason}")
            for run in runs:
                run.event("restart", whom=death.engine.name, reason=death.reason)

        seats.tell = hear
        if judge is not None:
            judge.tell = hear_death
        if not turns.bounded:
            await in_group.enter_async_context(membership(permits))
        speed = None
        profiled = {e.name: speeds for e in executions if (speeds := e.plan.predicted.speed) is not None}
        if profiled and options.speed_check and member is None:  # in a group the machine is others', too
            speed = SpeedCheck(fleet, profiled, len(tokenizer), job.rollout.seed_per_sample, options.speed_check_every)
        return await take_turns(
            runs, options, watcher, Leaving(seats, fleet, runs, [] if judge is None else judge.engines), speed
        )
    finally:
        watcher.phase("stopping")
        try:
            for run in runs:
                await run.close()
            await rewards.close()
            await fleet.close()
            seats.close()
        finally:
            await in_group.aclose()  # what it leaves to the others is free by now
