"""One training run: sync, rollout, train, step after step. `TrainingRun.step` is the algorithm.

Invariants (design.md, "What must always hold"):
- weights reach the engines before a round and do not change in it; every trained sample carries their version;
- the schedule, the timeouts, the trainer and the trace agree at each step's end; a checkpoint holds all of them;
- a step whose loss, log-probs or gradient are not finite changes no weight, and counts as a step all the same: what it
  sampled is settled, since drawing it again would condition on what it was; the trace says so (event `skipped`);
- a trainer that dies takes the run back to its last checkpoint, never to a state in between;
- while the trainer has not begun to change, a round can be left: the state of the last step's end is still there;
- a trainer that was started again is not saved before it has loaded a checkpoint: it holds the weights of its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ..plans.schema.job import Job
from ..plans.schema.plan import PlannedJob
from ..plans.yaml.errors import InputError, RunFailed
from ..rounds.machines.outcome import Outcome
from ..rounds.schedule import Schedule
from ..rounds.seeds import RoundSeeds
from ..rounds.timeouts import Timeouts
from .configuration import run_settings
from .engines.engine_handle import EngineHandle
from .engines.fleet import Fleet
from .faults import ActorFailed
from .records.checkpoint_cadence import Cadence
from .records.run_record import Recorder, StepRecord, counts, describe_lengths
from .records.run_state import CheckpointFailed, load_checkpoint, save_checkpoint
from .rollout import RolloutResult, RoundRunner, executions, train_groups
from .scoring_health import unscored
from .supervision import again_while_it_passes
from .trainer.samples import TrainSample
from .trainer.step_checks import LOGPROB_LIMITS, MAX_SKIPPED_IN_A_ROW, refusal
from .trainer.trainer_group import TrainerDied, TrainerGroup

T = TypeVar("T")
Result = TypeVar("Result")


class TrainingRun:
    """A job executed by one plan, in one folder. `start()`, then `step()` until done, then `close()`."""

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
    ) -> None:
        self.name = name
        self.settings = run_settings(planned, job)
        self.run_dir = run_dir
        self.step_number = 0
        self.schedule = Schedule(self.settings.rounds, prompt_ids, job.data.seed)
        self.timeouts = Timeouts(self.settings.timeouts)
        self._job = job
        self._fleet = fleet
        self._runner = runner
        self._trainer = trainer
        self._weights = run_dir / "weights" / "current.safetensors"
        self._recorder: Recorder | None = None
        self._began = time.perf_counter()
        self._elapsed_before_s = 0.0
        self._trainer_restarts = 0
        self._skipped_in_a_row = 0
        self._cadence = Cadence()
        self.saved_step = -1
        self._last_state: dict[str, Any] | None = None  # of the last step's end, while a step goes on
        self._updating = False  # the trainer has begun to change, and the step is not written down yet
        self._recovering = False  # it died, and what was started in its place has loaded no checkpoint yet
        self.checkpoint_fault: str | None = None
        """Why the latest checkpoint could not be written; None if it was."""
        self.damaged_checkpoints: list[str] = []
        """What was found damaged when a checkpoint was loaded, until somebody has told it."""

    async def start(self, resume: bool, facts: dict[str, Any]) -> None:
        """Load the last checkpoint if `resume`, else write the first one. The trainer must be started before."""
        self._weights.parent.mkdir(parents=True, exist_ok=True)
        self._recorder = Recorder(self.run_dir)
        began = time.monotonic()
        if resume:
            self._elapsed_before_s = float((await self._despite_deaths(self._load))["elapsed_s"])
            self._cadence.saved(time.monotonic() - began)  # reading one costs about what writing it does
            self.event("resume", step=self.step_number, **facts)
        else:
            self.event("run", name=self.name, mode=self.settings.mode, **facts)
            # A trainer that is started again here is what it was: nothing was trained yet.
            await self._despite_deaths(self._checkpoint)

    # -- the algorithm -------------------------------------------------------------------------------------------------

    async def step(self) -> StepRecord | None:
        """One synchronous step. None if the trainer died: the run is back at its last checkpoint then."""
        try:
            return await self._step()
        except TrainerDied as death:
            await self._recover(death)
            return None

    async def _step(self) -> StepRecord:
        began = time.perf_counter()
        self._last_state = self._state()
        kind = self.schedule.next_kind()
        layout = self._for(kind, self.settings.layouts)
        version = f"{self.name}:{self.step_number}"
        checked = self.step_number == 0 or self.step_number % self.settings.checksum_every == 0

        mismatches = await self._sync(self._fleet.engines(layout), version, checked)
        synced = time.perf_counter()

        round_ = self.schedule.begin()
        tag = f"{self.name}/{self.step_number}/{self._trainer_restarts}"
        result = await self._with_trainer(
            self._runner.run(
                round_,
                layout,
                version,
                str(self._weights),
                tag,
                self._seeds(kind),
                self.timeouts.deadline_s,
                self._for(kind, self.settings.at_once),
                self._for(kind, self.settings.sharing),
            )
        )
        outcome = self.schedule.end(round_)
        self.timeouts.end_round(executions(round_, result.samples))
        rolled_out = time.perf_counter()

        for prompt, reason in sorted(outcome.failures.items()):
            self.event("failed", step=self.step_number + 1, prompt=prompt, reason=reason)
        for what, found in sorted(unscored(result.samples.values()).items()):
            self.event("unscored", step=self.step_number + 1, outcome=what, samples=found.samples, reason=found.reason)
        groups, violations = self._groups(outcome, result, version)
        self._updating = True
        metrics = await self._trainer.step(groups, self._for(kind, self.settings.micro_batch_tokens)) if groups else {}
        trained = time.perf_counter()
        self._judge(metrics, len(groups))

        self.step_number += 1
        record = self._record(
            kind, outcome, result, metrics, mismatches=mismatches, violations=violations,
            sync_s=synced - began, train_s=trained - rolled_out,
            other_s=rolled_out - synced - result.rollout_s - result.reward_exposed_s, total_s=trained - began,
        )  # fmt: skip
        assert self._recorder is not None
        self._recorder.samples(self._t(), record.step, self.schedule.epoch_of, round_, result)
        self._recorder.step(self._t(), record)
        self._last_state, self._updating = None, False
        self._stop_if_lost(metrics)
        return record

    def _for(self, kind: str, values: Mapping[str, Result]) -> Result:
        """What the plan says for a kind of round; a plan without long rounds says it for short ones alone."""
        return values.get(kind, values["short"])

    async def _sync(self, engines: list[EngineHandle], version: str, checked: bool) -> int:
        """Bring the trainer's weights to the engines. Raises RunFailed if one received other bytes; returns 0."""
        expected = await again_while_it_passes(lambda: self._trainer.export(self._weights, version))
        mismatches = loaded = 0
        while not loaded:
            # One that is being replaced joins the round when it is up: it is waited for only if there is no other.
            for engine in await self._with_trainer(self._fleet.some_ready(engines)):
                try:
                    received = await engine.load(str(self._weights), version, checked)
                except ActorFailed:  # its replacement has begun; the fleet tells of it
                    continue
                loaded += 1
                mismatches += checked and received != expected
        for death in self._fleet.take_missed():
            self.event("restart", whom=death.engine.name, reason=death.reason)
        if mismatches:
            raise RunFailed(f"{mismatches} engines received other weights than the trainer sent at step {version}")
        return mismatches

    async def _with_trainer(self, wait: Coroutine[Any, Any, Result]) -> Result:
        """What `wait` returns. It is left when the trainer dies, which is what it is for. Raises TrainerDied then."""
        task = asyncio.ensure_future(wait)
        lost = asyncio.ensure_future(self._trainer.lost())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                lost.result()
            return await task
        finally:
            for one in (task, lost):
                one.cancel()
            await asyncio.gather(task, lost, return_exceptions=True)

    def _seeds(self, kind: str) -> RoundSeeds | None:
        if not self._job.rollout.seed_per_sample:
            return None
        whole = kind == "long" or self.settings.mode in ("sync", "predict")
        schedule = self.schedule
        return RoundSeeds(self._job.algorithm.seed, schedule.epoch_of, None if whole else schedule.round_number)

    def _groups(self, outcome: Outcome, result: RolloutResult, version: str) -> tuple[list[list[TrainSample]], int]:
        """The groups to train, sorted, and how many of their samples are off-policy (must be 0)."""
        trained = [result.samples[key] for group in outcome.trained for key in group.keys]
        violations = sum((sample.version_start, sample.version_end) != (version, version) for sample in trained)
        assert violations == 0, f"{violations} samples of step {self.step_number} were not decoded by {version}"
        return train_groups(outcome, result.samples), violations

    def _judge(self, metrics: dict[str, float], groups: int) -> None:
        """Count and tell a step that the trainer skipped. Raises RunFailed where training cannot go on."""
        if not metrics.get("skipped"):
            self._skipped_in_a_row = 0 if metrics else self._skipped_in_a_row
            return
        refused = refusal(metrics, LOGPROB_LIMITS[self._job.model.dtype])
        assert refused is not None, "the trainer skips by the same rule"
        step = self.step_number + 1
        if refused.kind == "log-probs":
            self._updating = False  # the trainer has changed nothing: it is at the last step's end
            raise RunFailed(f"step {step}: {refused.text}")
        self._skipped_in_a_row += 1
        self.event("skipped", step=step, reason=refused.text, groups=groups)

    def _stop_if_lost(self, metrics: dict[str, float]) -> None:
        """Raise RunFailed after so many skipped steps, or if the update itself left weights that are not finite."""
        step, skipped = self.step_number, self._skipped_in_a_row
        if skipped >= MAX_SKIPPED_IN_A_ROW:
            raise RunFailed(
                f"{skipped} steps in a row were skipped, because losses or gradients are not finite; the weights are "
                f"those of step {step - skipped}, and no checkpoint holds others; the trace says of each what was seen"
            )
        if not math.isfinite(metrics.get("parameter_norm", 0.0)):
            raise RunFailed(
                f"the update of step {step} left weights that are not finite; the checkpoint of step {self.saved_step} "
                "is kept, resume from there with a lower learning rate"
            )

    def _record(
        self, kind: str, outcome: Outcome, result: RolloutResult, metrics: dict[str, float], *,
        mismatches: int, violations: int, sync_s: float, train_s: float, other_s: float, total_s: float,
    ) -> StepRecord:  # fmt: skip
        lengths = [len(s.tokens) for s in result.samples.values() if s.finished_s is not None]
        longest, median = describe_lengths(lengths)
        rewards = [reward for group in outcome.trained for reward in group.rewards]
        prompts, samples = counts(outcome)
        return StepRecord(
            step=self.step_number,
            kind=kind,
            epochs=sorted({self.schedule.epoch_of(prompt) for prompt in outcome.taken}),
            sync_s=sync_s,
            rollout_s=result.rollout_s,
            reward_exposed_s=result.reward_exposed_s,
            train_s=train_s,
            other_s=other_s,
            total_s=total_s,
            trained_samples=len(rewards),
            trained_tokens=sum(sum(group.tokens) for group in outcome.trained),
            reward_mean=sum(rewards) / len(rewards) if rewards else 0.0,
            max_tokens=longest,
            median_tokens=median,
            decoded_tokens=sum(lengths),
            deferred=len(self.schedule.deferred),
            prompts=prompts,
            samples=samples,
            conservation_violations=outcome.check(),
            on_policy_violations=violations,
            checksum_mismatches=mismatches,
            exhausted=len(outcome.exhausted),
            restarts=result.restarts,
            reward_failures={what: of.samples for what, of in sorted(unscored(result.samples.values()).items())},
            timeouts=asdict(self.timeouts.counts),
            metrics=metrics,
        )

    # -- state ---------------------------------------------------------------------------------------------------------

    def _t(self) -> float:
        return self._elapsed_before_s + time.perf_counter() - self._began

    def event(self, event: str, /, **fields: Any) -> None:
        """Write an event to the run's trace."""
        assert self._recorder is not None
        self._recorder.event(event, self._t(), **fields)

    @property
    def round_can_be_left(self) -> bool:
        """Whether nothing is lost but what the round has sampled if the step at hand is cancelled now.

        So it is while a dead trainer is replaced: what it held is lost already, and its checkpoints are on the disk.
        """
        return not self._updating

    async def checkpoint(self) -> None:
        """Write a checkpoint of this step, unless it has one. A trainer that died is back at its last one then.

        If it cannot be written, `checkpoint_fault` says why, and so does the trace.
        """
        try:
            await self._checkpoint()
        except TrainerDied as death:
            await self._recover(death)
        except CheckpointFailed as failure:
            self._note_fault(failure)

    def checkpoint_due(self, every: int) -> bool:
        """Whether a checkpoint should be written now: after `every` steps, or sooner if the next death would cost more
        than it is worth (`cadence`)."""
        return self.step_number % every == 0 or self._cadence.due(self._trainer.mean_s_between_failures())

    async def rescue(self) -> None:
        """Checkpoint the last step's end before the run ends early, if the trainer still has it.

        Nothing is recovered or raised; `checkpoint_fault` says what went wrong.
        """
        if self._updating:
            self.checkpoint_fault = "the trainer was in the middle of a step"
            return
        if self._recovering and self.saved_step != self.step_number:
            self.checkpoint_fault = "the trainer died, and what was started in its place has loaded no checkpoint"
            return
        try:
            await self._checkpoint()
        except RunFailed as failure:
            if self.saved_step != self.step_number:  # else it is there, and only the trace could not say so
                self._note_fault(failure)

    def _note_fault(self, failure: Exception) -> None:
        self.checkpoint_fault = str(failure).splitlines()[0]
        with contextlib.suppress(RunFailed):  # the trace may be on the same full disk
            self.event("checkpoint_failed", step=self.step_number, reason=self.checkpoint_fault)

    def _state(self) -> dict[str, Any]:
        """All of the driver's state, between two steps."""
        assert self._recorder is not None
        return {
            "step": self.step_number,
            "elapsed_s": self._t(),
            "trace_bytes": self._recorder.trace_bytes(),
            "schedule": self.schedule.state(),
            "timeouts": self.timeouts.state(),
            "skipped_in_a_row": self._skipped_in_a_row,
        }

    async def _checkpoint(self) -> None:
        self.checkpoint_fault = None
        if self.saved_step == self.step_number:
            return
        began = time.monotonic()
        await save_checkpoint(self.run_dir, self.step_number, self._last_state or self._state(), self._trainer)
        self.saved_step = self.step_number
        self._cadence.saved(time.monotonic() - began)
        self.event("checkpoint", step=self.step_number)

    async def _load(self) -> dict[str, Any]:
        loaded = await load_checkpoint(self.run_dir, self._trainer)
        for name, fault in loaded.damaged.items():
            self.event("checkpoint_damaged", checkpoint=name, reason=fault)
            self.damaged_checkpoints.append(f"{name}: {fault}")
        state = loaded.state
        try:
            self.schedule.restore(state["schedule"])
        except ValueError as error:
            raise InputError(
                f"{error}; put back what it was written with, or start a new run", str(self.run_dir)
            ) from None
        if "timeouts" in state:  # older checkpoints have fixed deadlines only
            self.timeouts.restore(state["timeouts"])
        self._skipped_in_a_row = int(state["skipped_in_a_row"])
        self.step_number = self.saved_step = int(state["step"])
        self._last_state, self._updating, self._recovering = None, False, False
        return state

    async def _recover(self, death: TrainerDied) -> None:
        """Start the trainer again, from the last checkpoint."""
        self._updating, self._recovering = False, True
        await self._despite_deaths(self._load, death)
        self.event("resume", step=self.step_number)

    async def _despite_deaths(self, body: Callable[[], Awaitable[Result]], death: TrainerDied | None = None) -> Result:
        """What `body` returns; the trainer is started again whenever it dies in it, and first if it is dead already."""
        while True:
            try:
                if death is not None:
                    self._trainer_restarts += 1
                    self.event("restart", whom=death.whom, reason=death.reason)
                    await self._trainer.restart(death.reason)
                return await body()
            except TrainerDied as again:
                death = again

    async def close(self) -> None:
        """Close files and end the trainer."""
        if self._recorder is not None:
            self._recorder.close()
        await self._trainer.close()
