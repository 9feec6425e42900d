"""The state of one training run in one folder: how it starts, resumes, is checkpointed, recovers and ends.

`loop.step` takes its steps. Invariants:
- a checkpoint holds the state of a step's end, never a state in between;
- a trainer that dies takes the run back to its last checkpoint;
- a trainer that was started again is not saved before it has loaded a checkpoint: it holds the weights of its start;
- a step whose loss, log-probs or gradient are not finite changes no weight, and counts as a step all the same: what it
  sampled is settled, since drawing it again would condition on what it was; the trace says so (event `skipped`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import structs

from ..plans.facts.device_shares import LESS_MEMORY, memory_said
from ..plans.phrases.numbers import seconds
from ..plans.schema.job import Job
from ..plans.schema.planned_job import PlannedJob
from ..plans.schema.predicted import Predicted
from ..plans.yaml.errors import InputError, RunFailed
from ..rounds.balancing.longest_first import Balance
from ..rounds.hand_over import HandOver
from ..rounds.machines.round import Round
from ..rounds.schedule import Schedule
from ..rounds.seeds import RoundSeeds
from ..rounds.timeouts import PoolTimeouts
from ..traces.report_state import drift_text, evaluation_text, plan_text
from ..traces.trace_events import Evaluation, Step
from .configuration import run_settings
from .drafts.history_store import HISTORY
from .engines.engine_handle import EngineHandle
from .engines.fleet import Fleet
from .groups.member_phases import MemberPhases, before_restart
from .memory.device_turns import DeviceTurns, no_turns
from .processes.faults import Recurrences, out_of_memory
from .records.checkpoints import load_checkpoint
from .records.plan_changes import PlanChange, put_in_force, stage_plan
from .records.run_checkpoints import RunCheckpoints, Saving
from .records.run_record import DriftWatch, Recorder
from .records.sample_keeper import SampleKeeper, ended_samples
from .records.trackers import TrackerName, Trackers
from .rollout.engine_change import round_tail
from .rollout.evaluation import Evaluator
from .rollout.round_drafts import RunDrafts
from .rollout.round_lever import BalancedRound, RoundLever
from .rollout.round_runner import RoundRunner
from .rollout.round_samples import Progress, RolloutResult
from .rollout.round_streaming import RoundStreaming, round_streaming
from .rollout.unit_change import RoundUnits
from .trainer.step_checks import SkippedSteps, beyond, logprob_limits, refusal
from .trainer.trainer_group import PREDICTED_FACTOR, PredictedCalls, TrainerDied, TrainerGroup
from .weight_sync import WeightSync
from .weights.transfer import Sent

Result = TypeVar("Result")


class TrainingRun:
    """A job that is executed by one plan. `start()`, then `loop.step` until done, then `close()`."""

    def __init__(
        self,
        name: str,
        planned: PlannedJob,
        job: Job,
        run_dir: Path,
        *,
        fleet: Fleet,
        runner: RoundRunner,
        trainer: TrainerGroup,
        prompt_ids: list[str],
        turns: DeviceTurns | None = None,
        permits: MemberPhases | None = None,
        planned_short_share: float | None = None,
        predicted: Predicted | None = None,
        saving: Saving | None = None,
        keeper: SampleKeeper | None = None,
        evaluator: Evaluator | None = None,
        trackers: Sequence[TrackerName] = (),
    ) -> None:
        self.name, self.permits, self.evaluator = name, permits, evaluator
        self.settings = run_settings(planned, job)
        self.fleet, self.runner, self.trainer = fleet, runner, trainer
        self.turns = turns or no_turns()
        self.schedule = Schedule(self.settings.spec, prompt_ids, job.data.seed)
        self.timeouts = PoolTimeouts(self.settings.timeouts)
        self.weights_path = run_dir / "weights" / "current.safetensors"
        self.weights = WeightSync(trainer, fleet, self.weights_path, from_host=self.turns.ledger.shared)
        self.drafts = RunDrafts([each.rollout.drafts for each in self.settings.rounds.values()], fleet, self.schedule)
        self.step_number = self.trainer_restarts = 0
        self.checkpoints = RunCheckpoints(run_dir, trainer, self.event, saving)
        self.updating = False
        """The trainer has begun to change, and the step is not written down yet."""
        self._job, self._prompt_ids, self._run_dir, self._tracker_names = job, prompt_ids, run_dir, tuple(trackers)
        self._recorder: Recorder | None = None
        self._keeper = keeper  # of responses for people to read
        self._began = time.perf_counter()
        self._elapsed_before_s = 0.0
        self._skipped, self._drift = SkippedSteps(), DriftWatch(planned_short_share)
        self._way_reason: str | None = None
        self._warned = False  # of log-probs beyond their limits
        self._predict(predicted)
        self._deaths = Recurrences()  # of the trainer, by the last step taken
        self._last_state: dict[str, Any] | None = None  # of the last step's end, while a step goes on
        self._recovering = False  # the trainer died, and its successor has loaded no checkpoint yet

    # -- start, resume, end --------------------------------------------------------------------------------------------

    async def start(self, resume: bool, **facts: Any) -> None:
        """Load the last checkpoint if `resume`, else write the first one; `facts` go to the trace.

        The trainer must be started before.
        """
        self.weights_path.parent.mkdir(parents=True, exist_ok=True)
        self._recorder = Recorder(
            self._run_dir, Trackers(self._tracker_names, self._run_dir, self.name, self.checkpoints.notes.append)
        )
        began = time.monotonic()
        if resume:
            self._elapsed_before_s = float((await self._despite_deaths(self._load))["elapsed_s"])
            self.checkpoints.loaded(self.step_number, time.monotonic() - began)
            self.event("resume", step=self.step_number, owed=self.schedule.owed, **facts)
        else:
            self.event("run", name=self.name, mode=self.settings.mode, **facts)
            # A trainer that is started again here is what it was: nothing was trained yet.
            await self._despite_deaths(self._checkpoint)
            if self.checkpoint_fault is not None:
                raise RunFailed(self.checkpoint_fault)

    async def close(self) -> None:
        """Close files and end the trainer; a checkpoint that is still being written is given up."""
        self.checkpoints.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._recorder is not None:
            self._recorder.close()
        await self.trainer.close()

    def event(self, event: str, /, **fields: Any) -> None:
        """Write an event to the run's trace."""
        assert self._recorder is not None
        self._recorder.event(event, self._elapsed_s(), **fields)

    def _elapsed_s(self) -> float:
        return self._elapsed_before_s + time.perf_counter() - self._began

    # -- another plan --------------------------------------------------------------------------------------------------

    def tell_change(self, change: PlanChange, plan: str) -> None:
        """From the step at hand on the run goes by another plan: write that down, and keep both in the run's folder.
        `plan`: its path, relative to the folder. Raises RunFailed if the disk does not take it."""
        changes = [{"key": key, "old": old, "new": new} for key, (old, new) in change.changes.items()]
        step, owed = self.step_number, self.schedule.owed
        stage_plan(self._run_dir, change, step)
        self.event("plan", step=step, plan=plan, sha256=change.sha256, owed=owed, changes=changes)
        put_in_force(self._run_dir)
        self.checkpoints.notes.append(plan_text({"step": step, "plan": plan, "owed": owed, "changes": changes}))

    def take_plan(
        self, planned: PlannedJob, planned_short_share: float | None, predicted: Predicted | None = None
    ) -> None:
        """Go on by another plan that needs no other engine or trainer (session._fits_in_place); between steps."""
        state, timeouts, store = self.schedule.state(), self.timeouts.state(), self.drafts.store
        self.settings = run_settings(planned, self._job)
        self.schedule = Schedule(self.settings.spec, self._prompt_ids, self._job.data.seed)
        self.schedule.restore(state)
        self.timeouts = PoolTimeouts(self.settings.timeouts)
        self.timeouts.restore(timeouts)
        drafts = [each.rollout.drafts for each in self.settings.rounds.values()]
        self.drafts = RunDrafts(drafts, self.fleet, self.schedule, store)
        self._drift = DriftWatch(planned_short_share)
        self._predict(predicted)

    def _predict(self, predicted: Predicted | None) -> None:
        self._predicted = predicted
        if predicted is not None:
            self.trainer.predicted = PredictedCalls.of(predicted)

    # -- a step, as loop.step takes it ---------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Keep the state of the last step's end while a step goes on."""
        self._last_state = self._state()

    def begin_update(self) -> None:
        """The trainer begins to change: from now on until the step is written down the run cannot be left."""
        self.updating = True

    def seeds(self, machine: Round) -> RoundSeeds | None:
        """The seeds of the samples of the round at hand; None if the job leaves them to the engines."""
        if not self._job.rollout.seed_per_sample:
            return None
        schedule = self.schedule
        return RoundSeeds(self._job.algorithm.seed, schedule.epoch_of, schedule.round_number if machine.cuts else None)

    def levers(
        self, machine: Round, round_kind: str, engines: Sequence[EngineHandle], units: RoundUnits | None
    ) -> list[RoundLever]:
        """The levers of a round that begins on `engines`, in the order in which they hook in; `units`: those of its
        job's co-execution group."""
        planned, fleet = self.settings.of_round(round_kind), self.fleet
        rollout = planned.rollout
        samples = machine.samples_to_train(self.settings.spec.prompts_per_step)
        streaming: RoundStreaming | None = None
        if planned.hand_over is not None or self.settings.streams:
            whole, update = fleet.engines(rollout.layout), self.settings.update_of(round_kind)
            decision = None if planned.hand_over is None else HandOver(planned.hand_over, samples, len(whole))
            streaming = round_streaming(self, whole, decision, update, self.trainer, self.turns)
        if units is not None:
            units.samples = samples
        tail = round_tail(self, planned.tail, samples, engines, fleet, self.turns, self.weights.join_all)
        drafts = self.drafts.next_round(rollout.drafts, round_kind)
        balance = None
        if rollout.balance is not None:
            balance = BalancedRound(Balance(rollout.balance, self.schedule.recorded()), rollout.max_num_seqs)
        return [lever for lever in (streaming, tail, units, drafts, balance) if lever is not None]

    def tell_way(self, sent: Sent) -> None:
        """Write into the trace why weights went on another way than was wanted, or not through memory of GPUs, whenever
        the reason changes."""
        if sent.reason is not None and sent.reason != self._way_reason:
            self.event("weights", way=sent.way, slots=sent.slots, reason=sent.reason)
        self._way_reason = sent.reason

    def count_skipped(self, metrics: dict[str, float], groups: int) -> None:
        """Count and record an update that the trainer skipped. Raises RunFailed if log-probs forbid to go on.

        `metrics` are those of the update, {} if nothing was there to train.
        """
        if not metrics:
            return
        step, refused, limits = self.step_number + 1, None, logprob_limits(self._job)
        if metrics.get("skipped"):
            refused = refusal(metrics, limits)
            assert refused is not None, "the trainer skips by the same rule"
            if refused.reason == "log-probs":
                self.updating = False  # the trainer has changed nothing: it is at the last step's end
                raise RunFailed(f"step {step}: {refused.text}")
            self.event("skipped", step=step, reason=refused.text, groups=groups)
        elif not limits.stops and (text := beyond(metrics, limits)) is not None:
            self.event("logprobs", step=step, reason=text)
            if not self._warned:
                self.checkpoints.notes.append(f"step {step}: {text}; the run goes on, and the trace names such steps")
            self._warned = True
        self._skipped.count(skipped=refused is not None)

    def end_step(self, record: Step, machine: Round, result: RolloutResult) -> None:
        """Write a step down. Raises RunFailed if its update shows that training is lost."""
        assert self._recorder is not None
        ended = ended_samples(machine, result.samples)
        self._recorder.samples(self._elapsed_s(), record.step, self.schedule.epoch_of, ended)
        if self._keeper is not None:
            self._tell_keeping(self._keeper.keep(record.step, record.kind, self.schedule.epoch_of, ended))
        self._recorder.step(self._elapsed_s(), record)
        self._last_state, self.updating = None, False
        if (drift := self._drift.step(record)) is not None:
            planned, measured, rounds = drift
            self.event("drift", step=record.step, planned=planned, measured=measured, rounds=rounds)
            self.checkpoints.notes.append(drift_text(*drift))
        self._skipped.stop_if_lost(record.metrics, record.step, self.checkpoints.saved_step)

    async def evaluated(self, evaluation: Evaluation) -> None:
        """Write an evaluation down, and keep the checkpoint of the best one."""
        assert self._recorder is not None
        self._recorder.evaluation(self._elapsed_s(), evaluation)
        self.checkpoints.notes.append(evaluation_text(structs.asdict(evaluation)))
        if not math.isnan(evaluation.reward[0]):
            await self.checkpoints.evaluated(evaluation.step, evaluation.reward[0])

    def progress(self) -> Progress:
        """Counts of the round in progress; not of an evaluation."""
        return self.runner.progress

    @property
    def round_can_be_left(self) -> bool:
        """Whether only samples of the round are lost if the step in progress is cancelled now.

        So it is while a dead trainer is replaced: its state is lost already, and its checkpoints are on the disk.
        """
        return not self.updating

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    @property
    def checkpoint_fault(self) -> str | None:
        """Why the latest checkpoint could not be written; None if it was, or still may be."""
        return self.checkpoints.fault

    async def checkpoint(self) -> None:
        """Write a checkpoint of this step, unless it has one, and wait until it is on the disk.

        A trainer that died is back at its last checkpoint then. If the checkpoint cannot be written, `checkpoint_fault`
        says why, and so does the trace.
        """
        try:
            await self._checkpoint()
        except TrainerDied as death:
            await self.recover(death)

    async def begin_checkpoint(self) -> None:
        """As `checkpoint`, but the next step may be taken while it is written."""
        try:
            await self._begin_checkpoint()
        except TrainerDied as death:
            await self.recover(death)

    def checkpoint_due(self, every_steps: int) -> bool:
        """Whether to begin a checkpoint now."""
        return self.checkpoints.due(self.step_number, every_steps)

    async def rescue(self) -> None:
        """Checkpoint the last step's end before the run ends early, if the trainer still has it.

        Nothing is recovered or raised; `checkpoint_fault` says what went wrong.
        """
        await self.checkpoints.settle()
        if self.updating:
            self.checkpoints.failed(self.step_number, "the trainer was in the middle of a step", traced=False)
            return
        if self._recovering and self.checkpoints.saved_step != self.step_number:
            why = "the trainer died, and what was started in its place has loaded no checkpoint"
            self.checkpoints.failed(self.step_number, why, traced=False)
            return
        try:
            await self._checkpoint()
        except RunFailed as failure:
            if self.checkpoints.saved_step != self.step_number:  # else it is there, and only the trace could not say so
                self.checkpoints.failed(self.step_number, failure)

    def _state(self) -> dict[str, Any]:
        """All of the driver's state, between two steps."""
        assert self._recorder is not None
        return {
            "step": self.step_number,
            "elapsed_s": self._elapsed_s(),
            "trace_bytes": self._recorder.trace_bytes(),
            "schedule": self.schedule.state(),
            "timeouts": self.timeouts.state(),
            "skipped_in_a_row": self._skipped.in_a_row,
            "remembers": self.drafts.store is not None,
        }

    def _tell_keeping(self, fault: str | None) -> None:
        if fault is not None:
            self.checkpoints.notes.append(fault)

    async def _begin_checkpoint(self) -> None:
        if self._keeper is not None:
            self._tell_keeping(self._keeper.settle())
        await self.checkpoints.begin(self.step_number, self._last_state or self._state(), self.drafts.files())

    async def _checkpoint(self) -> None:
        await self._begin_checkpoint()
        await self.checkpoints.written()

    async def _load(self) -> dict[str, Any]:
        loaded = await load_checkpoint(self._run_dir, self.trainer)
        for name, fault in loaded.damaged.items():
            self.event("checkpoint_damaged", checkpoint=name, reason=fault)
            self.checkpoints.notes.append(f"checkpoint set aside, {name}: {fault}; back at step {loaded.state['step']}")
        state = loaded.state
        try:
            self.schedule.restore(state["schedule"])
        except ValueError as error:
            raise InputError(
                f"{error}; put back what it was written with, or start a new run", str(self._run_dir)
            ) from None
        if "timeouts" in state:  # older checkpoints have fixed deadlines only
            self.timeouts.restore(state["timeouts"])
        # A plan that drafts may follow one that did not, and that remembered nothing.
        remembered = state.get("remembers", True) or (loaded.folder / HISTORY).exists()
        if (lost := self.drafts.load(loaded.folder, self._prompt_ids)) is not None and remembered:
            self.event("history_lost", checkpoint=loaded.folder.name, reason=lost)
        self._skipped.in_a_row = int(state["skipped_in_a_row"])
        self.step_number = int(state["step"])
        if self._keeper is not None:
            self._keeper.back_to(self.step_number)
        self.checkpoints.loaded(self.step_number)
        self._last_state, self.updating, self._recovering = None, False, False
        return state

    # -- a trainer that dies -------------------------------------------------------------------------------------------

    async def recover(self, death: TrainerDied) -> None:
        """Start the trainer again, from the last checkpoint."""
        self.weights.retire()  # what is started in the trainer's place holds other weights
        self.updating, self._recovering = False, True
        await self._despite_deaths(self._load, death)
        self.event("resume", step=self.step_number, owed=self.schedule.owed)

    async def _despite_deaths(self, body: Callable[[], Awaitable[Result]], death: TrainerDied | None = None) -> Result:
        """What `body` returns; the trainer is started again whenever it dies in it, and first if it is dead already."""
        while True:
            try:
                if death is not None:
                    self._must_not_recur(death)
                    await self.checkpoints.settle()  # its calls to the ranks must end before there are new ones
                    self.trainer_restarts += 1
                    self.event("restart", whom=death.process, reason=death.reason)
                    await before_restart(self)
                    await self.trainer.restart(death.reason)
                return await body()
            except TrainerDied as again:
                death = again

    def _must_not_recur(self, death: TrainerDied) -> None:
        """Raise RunFailed if the trainer died of the same cause in the same step before, and would again."""
        call = death.reason.partition(" within ")[0]
        cause = "memory" if out_of_memory(death.reason) else call if death.late else ""
        if (often := self._deaths.again(cause, self.step_number)) is None:
            return
        text = f"step {self.step_number + 1}: {death}, {often}"
        if cause == "memory":
            raise RunFailed(self.with_memory(text, "train"))
        if death.late:
            predicted_s = self.trainer.predicted.update_s
            waits = f"; {PREDICTED_FACTOR:g} times what the plan predicts is waited for"
            waits += f", {seconds(predicted_s)} for an update" if predicted_s and call.endswith(" step") else ""
            text += f"{waits}: a rank hangs, or this machine is far slower than its profile; "
            text += "look at the ranks' stacks (py-spy dump), or profile this machine and solve again"
        raise RunFailed(text)

    def with_memory(self, text: str, place: Literal["kv", "train"]) -> str:
        """`text` with what the plan says of the memory that ran out, and with what takes less of it."""
        said = "" if self._predicted is None else memory_said(self._predicted, place)
        return "; ".join(part for part in (text, said, LESS_MEMORY[place]) if part)
