"""One step of synchronous training: the algorithm.

Sync weights (engines wake), evaluate where that is due, roll out, train (engines sleep), alarm, record; then begin a
checkpoint where one is due.
Invariants:
- weights reach the engines before a round and do not change in it; every trained sample carries their version;
- the schedule, the timeouts, the trainer and the trace agree at each step's end; a checkpoint holds all of them;
- in a co-execution group each of the two halves runs as a phase that the group permits;
- while the trainer has not begun to change, a round can be left: the state of the last step's end is still there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..plans.schema.planned_rounds import RoundRollout
from ..plans.yaml.errors import RunFailed
from ..traces.trace_events import Step
from .engines.engine_handle import EngineHandle
from .groups.member_phases import begin_phase, end_phase, switched_in, units_of_round
from .memory.device_turns import TurnsTook
from .processes.faults import MemoryRanOut
from .records.run_record import StepSeconds, step_record
from .rollout.evaluation import Evaluator
from .rollout.round_runner import RoundOptions
from .rollout.round_samples import reward_executions, train_groups
from .rollout.round_scoring import unscored
from .run import TrainingRun
from .trainer.trainer_group import TrainerDied, while_trainer_lives
from .weights.transfer import Sent


async def step(run: TrainingRun) -> Step | None:
    """Take one step. None if the trainer died in it: the run is back at its last checkpoint then."""
    try:
        return await _step(run)
    except TrainerDied as death:
        await run.recover(death)
        return None
    except MemoryRanOut as lack:
        raise RunFailed(run.with_memory(str(lack), "kv")) from lack


async def _step(run: TrainingRun) -> Step:
    """The record of one step. Raises TrainerDied if the trainer died in it, RunFailed if training cannot go on."""
    run.begin_step()
    await begin_phase(run, "rollout")
    began = time.perf_counter()
    round_kind = run.schedule.next_kind()
    planned, version = run.settings.of_round(round_kind), f"{run.name}:{run.step_number}"

    # Sync weights.
    engines = run.fleet.engines(planned.rollout.layout)
    units = await units_of_round(run, engines)
    engines = engines if units is None else units.here
    later = [engine for layout in planned.layouts[1:] for engine in run.fleet.engines(layout)]
    sent, sending, decoding = await _send_weights(run, engines, later, version)
    began += switched_in(run, sending.engines_s + decoding.engines_s)
    synced = time.perf_counter()

    # Evaluate: its seconds are in no phase of the step.
    if run.evaluator is not None and run.evaluator.due(run.step_number):
        await _evaluate(run, run.evaluator, planned.rollout, version)
        evaluated_s = time.perf_counter() - synced
        began, synced = began + evaluated_s, synced + evaluated_s

    # Roll out.
    machine = run.schedule.begin()
    tag = f"{run.name}/{run.step_number}/{run.trainer_restarts}"
    how = planned.rollout
    options = RoundOptions(run.seeds(machine), run.timeouts.deadlines_s, how.max_num_seqs, how.prefix)
    levers = run.levers(machine, round_kind, engines, units)
    rollout = run.runner.run(machine, how.layout, version, run.weights.join, tag, options, levers)
    result = await while_trainer_lives(run.trainer, rollout)
    outcome = run.schedule.end(machine)
    run.timeouts.end_round(reward_executions(machine, result.samples))
    paused_s = 0.0 if units is None else units.paused_s
    rolled_out = time.perf_counter() - paused_s
    apart_s = paused_s + await end_phase(run)  # seconds of the group: they are in no phase, and told by themselves
    for prompt, reason in sorted(outcome.failures.items()):
        run.event("failed", step=run.step_number + 1, prompt=prompt, reason=reason)
    for reason, samples in sorted(result.lost.items()):
        run.event("lost", step=run.step_number + 1, reason=reason, samples=samples)
    for name, failed in sorted(unscored(result.samples.values()).items()):
        run.event("unscored", step=run.step_number + 1, outcome=name, samples=failed.samples, reason=failed.reason)

    # Train.
    trained_samples = [result.samples[key] for group in outcome.trained for key in group.keys]
    violations = sum((sample.version_start, sample.version_end) != (version, version) for sample in trained_samples)
    assert violations == 0, f"{violations} samples of step {run.step_number} were not decoded by {version}"
    taken = [draw for lever in levers for draw in await while_trainer_lives(run.trainer, lever.trained())]
    for lever in levers:
        lever.report(run, result.moved)
    groups = train_groups(outcome, result.samples, taken)
    run.weights.retire()
    apart_s += await begin_phase(run, "train") if outcome.trained else 0.0
    training = TurnsTook()
    if outcome.trained:
        training = await while_trainer_lives(run.trainer, run.turns.to_training(run))
        apart_s += switched_in(run, training.trainers_s)
    update = run.settings.update_of(round_kind)
    if outcome.trained:
        metrics = await run.trainer.step(groups, update, streamed=bool(taken), begins=run.begin_update)
    else:
        run.begin_update()
        metrics = {}
    trained = time.perf_counter() - apart_s
    await end_phase(run)

    # Alarm.
    run.count_skipped(metrics, len(outcome.trained))

    # Record. As predictions have it, engines that sleep are part of the sync, and states that move part of the update.
    turns_s = training.engines_s - sending.trainers_s - decoding.trainers_s
    run.step_number += 1
    record = step_record(
        run.step_number, round_kind, run.schedule, run.timeouts, outcome, result, metrics,
        StepSeconds(
            sync_s=synced - began + turns_s,
            rollout_s=result.rollout_s,
            reward_exposed_s=result.reward_exposed_s,
            train_s=trained - rolled_out - turns_s,
            other_s=rolled_out - synced - result.rollout_s - result.reward_exposed_s,
            total_s=trained - began,
        ),
        on_policy_violations=violations, sent=sent, engines=len(engines),
    )  # fmt: skip
    run.end_step(record, machine, result)
    return record


async def _send_weights(
    run: TrainingRun, engines: Sequence[EngineHandle], later: Sequence[EngineHandle], version: str
) -> tuple[Sent, TurnsTook, TurnsTook]:
    """Give `engines` the run's weights and let them decode; `later`: others that the round needs. What was sent, and
    what the turns before and after it took. Raises TrainerDied, RunFailed."""
    checked = run.step_number % run.settings.checksum_every == 0
    sending = await while_trainer_lives(run.trainer, run.turns.to_sending(run, engines, later))
    sent = await run.weights.sync(engines, version, checked, lambda: run.turns.to_sending(run, engines))
    run.tell_way(sent)
    for death in run.fleet.take_missed():
        run.event("restart", whom=death.engine.name, reason=death.reason)
    if sent.mismatches:
        raise RunFailed(f"{sent.mismatches} engines received other weights than the trainer sent at step {version}")
    return sent, sending, await while_trainer_lives(run.trainer, run.turns.to_decoding(run, engines))


async def _evaluate(run: TrainingRun, evaluator: Evaluator, how: RoundRollout, version: str) -> None:
    """Evaluate the weights that engines hold as `version`. Raises TrainerDied, RunFailed."""
    tag = f"{run.name}/evaluation-{run.step_number}/{run.trainer_restarts}"
    evaluation = evaluator.evaluate(run.step_number, how.layout, version, run.weights.join, tag, how.max_num_seqs)
    await run.evaluated(await while_trainer_lives(run.trainer, evaluation))


async def evaluate_last(run: TrainingRun) -> None:
    """Evaluate the weights that the run ends with, unless that was done. If the trainer dies in it, the run is back at
    its last checkpoint. Raises RunFailed."""
    if run.evaluator is None or not run.evaluator.due(run.step_number, at_end=True):
        return
    how, version = run.settings.of_round("short").rollout, f"{run.name}:{run.step_number}"
    engines = run.fleet.engines(how.layout)
    try:
        await begin_phase(run, "rollout")
        await _send_weights(run, engines, [], version)
        await _evaluate(run, run.evaluator, how, version)
        run.weights.retire()
        await end_phase(run)
    except TrainerDied as death:
        await run.recover(death)


async def checkpoint_if_due(run: TrainingRun, every_steps: int) -> None:
    """Begin a checkpoint if one is due or the last one could not be written; the next step may go on meanwhile."""
    evaluated = run.evaluator is not None and run.evaluator.due(run.step_number)  # so that its weights are there
    if evaluated or run.checkpoint_due(every_steps) or run.checkpoint_fault is not None:
        await run.begin_checkpoint()
