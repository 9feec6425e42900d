"""Plans of one job take their steps in turns, round by round, until all are done or a signal ends the runs; between two
steps nodes are left that are to be taken away (a preemption notice, a shrinking cluster).

A run that ends at `--steps` would lose the prompts that wait for a long round, which have the longest responses: it
would have trained on shorter ones than the model gives. So from then on nothing fresh is issued, and long rounds train
what waits. That a queue is drained is no state: a run that is resumed drains if it has its steps, and goes on where it
is asked for more; every prompt keeps its place in its epoch.

Ray tells of a node that drains; nothing new can be started there. What is done depends on what runs there:

    any actor         the trace says so at once (event `node_draining`)
    trainer ranks     a checkpoint is written before the next step, however lately there was one: the death of the node
                      then costs no step that has ended
    and if another node has room, engines and ranks move there now; without one they stay until the node is gone, and
    what happens then is what happens at any node's death (`actor_placer`)

A node on which actors fail again and again (`ActorPlacer.failing`), and on which a trainer lives, is left like that,
too, and excluded; one without a trainer is left as soon as an actor is to start there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from ..plans.phrases.numbers import count
from ..plans.schema.plan import Plan
from ..plans.yaml.errors import RunFailed
from ..traces.trace_events import Step
from .engines.engine_handle import EngineHandle
from .engines.fleet import Fleet
from .loop import checkpoint_if_due, evaluate_last, step
from .placement.actor_placer import ActorPlacer
from .prepare import Options, PlanSwitch
from .processes.stopping import StopRequests, stop_requests
from .records.plan_changes import PlanRefusal
from .rollout.round_samples import Progress
from .run import TrainingRun
from .speed_check import SpeedCheck
from .trainer.trainer_group import TrainerDied

Result = TypeVar("Result")


class Leaving:
    """Looks after the nodes of `placer`; `between_steps` is called when no round and no update goes on.

    `judges`: the copies of a judge, which are engines beside the fleet.
    """

    def __init__(
        self, placer: ActorPlacer, fleet: Fleet, runs: Sequence[TrainingRun], judges: Sequence[EngineHandle] = ()
    ) -> None:
        self._placer, self._fleet, self._runs, self._judges = placer, fleet, runs, judges

    async def between_steps(self, note: Callable[[str], None]) -> None:
        """Leave nodes that Ray drains, or on which actors fail; `note` takes a line for the person who watches. Raises
        RunFailed."""
        for number, why in self._placer.failing().items():
            trained = [run for run in self._runs if self._placer.trains_on(run.name, number)]
            for run in trained:
                await run.checkpoint()
            if all(run.checkpoint_fault is None for run in trained) and number in self._placer.failing():
                self._placer.exclude(number, why)  # which ends its engines
                left = f"its node {self._placer.address(number)} is excluded"  # `why` may tell of another's memory
                for run in trained:
                    await run.recover(TrainerDied(run.trainer.name, left))
        for number, left_s in self._placer.newly_draining().items():
            address = self._placer.address(number)
            note(f"node {address} is to be taken away" + ("" if left_s is None else f" in {left_s:.0f} s"))
            for run in self._runs:
                run.event("node_draining", step=run.step_number, node=number, address=address, left_s=left_s)
            trained = [run for run in self._runs if self._placer.trains_on(run.name, number)]
            for run in trained:
                await run.checkpoint()
            if faults := [run.checkpoint_fault for run in trained if run.checkpoint_fault is not None]:
                note(f"node {address} is used until it is gone, since no checkpoint could be written: {faults[0]}")
                continue
            if not self._placer.leave(number):
                note(f"no other node has room for what runs on node {address}; it stays until the node is gone")
                continue
            why = f"its node {address} is to be taken away"
            for engine in (*self._fleet.all_engines(), *self._judges):
                if self._placer.runs_on(engine.name, number):
                    engine.leave_node(why)
            for run in trained:
                await run.recover(TrainerDied(run.trainer.name, why))


class Plans(Protocol):
    """What gives a run another plan while it goes on."""

    async def between_steps(self, run: TrainingRun) -> PlanSwitch | None:
        """Take a plan that was asked for, if one was; returns one that needs other engines, trainers or workers."""

    def refuse(self, run: TrainingRun, refusal: PlanRefusal) -> None:
        """Tell that a run does not go on by a plan that was asked for."""


class Watcher(Protocol):
    """What the live view implements; all calls come on the event loop."""

    def phase(self, text: str) -> None:
        """Something slow begins."""

    def round_begins(self, name: str, round_kind: str, step: int, progress: Callable[[], Progress]) -> None:
        """A round begins; `progress()` gives its counts."""

    def step_done(self, name: str, record: Step) -> None:
        """A step ended with this `Step`."""

    def note(self, text: str) -> None:
        """A line for the person who watches."""

    def plan_changed(self, name: str, plan: Plan) -> None:
        """A run goes on by another plan."""


async def take_turns(
    runs: Sequence[TrainingRun],
    options: Options,
    watcher: Watcher,
    leaving: Leaving | None = None,
    speed: SpeedCheck | None = None,
    plans: Plans | None = None,
) -> bool | PlanSwitch:
    """Take the steps of all runs. True if all are done, False if a signal ended the runs before; a plan by which the
    run is to go on with other engines or trainers, if one was asked for: its checkpoint is written.

    After each step `leaving` is asked whether nodes are to be left, and `plans` for another plan; `speed` before each.
    Each run's trace says how it ended. Whatever ends it, what was trained is saved. Raises RunFailed if it is not.
    """
    with stop_requests(options.grace_s) as stop:
        try:
            while True:
                switch = await _until(runs, options, watcher, stop, leaving, speed, plans)
                if switch is not None and plans is not None:
                    (run,) = runs
                    await run.checkpoint()
                    await run.checkpoints.model_written()
                    tell_faults(run, watcher)
                    if run.checkpoint_fault is None and not stop.at_round_end.is_set():
                        return switch
                    reason = "the run was stopped"
                    if run.checkpoint_fault is not None:
                        reason = f"no checkpoint could be written: {run.checkpoint_fault}"
                    plans.refuse(run, PlanRefusal(switch.request_id, str(switch.execution.plan_path), reason))
                    continue
                for run in runs:
                    if _done(run, options) and not stop.at_round_end.is_set():
                        await _unless_left(run, evaluate_last(run), stop)
                for run in runs:
                    await (run.rescue() if stop.at_round_end.is_set() else run.checkpoint())
                    tell_faults(run, watcher)
                # A trainer that died while it wrote the last checkpoint took its run back: then there is more to do.
                if stop.at_round_end.is_set() or all(_done(run, options) for run in runs):
                    break
            for run in runs:
                if not stop.at_round_end.is_set():  # a run that is interrupted goes on, and its checkpoint is there
                    await run.checkpoints.last_model()
                    tell_faults(run, watcher)
                if run.checkpoint_fault is not None:
                    raise RunFailed(f"{run.name}: {run.checkpoint_fault}; what was trained since is not saved")
        except Exception as failure:
            reason = str(failure) or type(failure).__name__
            for run in runs:  # so that a report can tell a run that failed from one that was killed
                await run.rescue()
                tell_faults(run, watcher)
                with contextlib.suppress(RunFailed):  # a disk that is full takes no events; the failure is told anyway
                    run.event("end", step=run.step_number, finished=False, reason=reason)
            raise
        for run in runs:
            run.event("end", step=run.step_number, finished=_done(run, options))
        return all(_done(run, options) for run in runs)


async def _until(
    runs: Sequence[TrainingRun],
    options: Options,
    watcher: Watcher,
    stop: StopRequests,
    leaving: Leaving | None,
    speed: SpeedCheck | None,
    plans: Plans | None,
) -> PlanSwitch | None:
    """Take steps in turns until all are done, a signal came, or a run is to go on by the plan that is returned."""
    begun: set[str] = set()
    while not all(_done(run, options) for run in runs) and not stop.at_round_end.is_set():
        for run in runs:
            if _done(run, options) or stop.at_round_end.is_set():
                continue
            if speed is not None and (told := await speed.before_step(run, run.name in begun)) is not None:
                watcher.note(told)
            begun.add(run.name)
            if run.step_number >= options.steps and not run.schedule.draining:
                _drain(run, watcher)
            watcher.round_begins(run.name, run.schedule.next_kind(), run.step_number + 1, run.progress)
            abandoned, record = await _unless_left(run, step(run), stop)
            if abandoned:
                watcher.note(f"{run.name}: left the round of step {run.step_number + 1}")
            elif record is None:
                watcher.note(f"{run.name}: trainer died; back at step {run.step_number}")
            else:
                watcher.step_done(run.name, record)
                if record.metrics.get("skipped"):
                    watcher.note(f"{run.name}: step {record.step} was skipped; its weights are those before it")
                await checkpoint_if_due(run, options.checkpoint_every)
            if leaving is not None and not stop.at_round_end.is_set():
                await leaving.between_steps(watcher.note)
            switch = None
            if plans is not None and not stop.at_round_end.is_set() and not _done(run, options):
                switch = await plans.between_steps(run)
            tell_faults(run, watcher)
            if switch is not None:
                return switch
    return None


def _done(run: TrainingRun, options: Options) -> bool:
    return run.step_number >= options.steps and not (options.drain_queue and run.schedule.deferred)


def _drain(run: TrainingRun, watcher: Watcher) -> None:
    """From now on the run's queue is trained, and nothing else."""
    run.schedule.drain()
    prompts, rounds = len(run.schedule.deferred), run.schedule.rounds_owed
    run.event("drain", step=run.step_number, prompts=prompts, rounds=rounds)
    watcher.note(
        f"{run.name}: has its {count(run.step_number, 'step')}; about {count(rounds, 'more long round')} will train "
        f"{count(prompts, 'prompt')} that it has deferred (--no-drain leaves them)"
    )


async def _unless_left(
    run: TrainingRun, doing: Coroutine[Any, Any, Result], stop: StopRequests
) -> tuple[bool, Result | None]:
    """(whether a signal made the run leave its round, what `doing` returned)."""
    taken = asyncio.ensure_future(doing)
    leave = asyncio.ensure_future(stop.immediately.wait())
    try:
        await asyncio.wait({taken, leave}, return_when=asyncio.FIRST_COMPLETED)
        if taken.done() or not run.round_can_be_left:
            return False, await taken  # an update that has begun is seconds from its end
        taken.cancel()
        await asyncio.wait({taken})
        if taken.cancelled():
            return True, None
        return False, taken.result()
    finally:
        leave.cancel()


def tell_faults(run: TrainingRun, watcher: Watcher) -> None:
    """Tell the watcher, once, about checkpoints that could not be written or read, and lengths that have drifted."""
    for note in run.checkpoints.notes:
        watcher.note(f"{run.name}: {note}")
    run.checkpoints.notes.clear()
