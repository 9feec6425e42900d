"""Checkpoints that are written while a run goes on, trainers that die, and runs that end meanwhile."""

import asyncio
import json
import shutil
import zlib

import pytest

from rlplan.executor.drafts.history_store import HISTORY
from rlplan.executor.loop import checkpoint_if_due, step
from rlplan.executor.processes.faults import SAME_DEATHS, ActorFailed, MemoryRanOut
from rlplan.executor.rollout.round_samples import RolloutResult, RolloutSample
from rlplan.executor.trainer.trainer_group import TrainerDied
from rlplan.plans.schema.planned_job import PlannedJob
from rlplan.plans.schema.predicted import MemoryBar, Predicted, PredictedRounds
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.rounds.machines.events import Finished, Issue, Score, Scored
from rlplan.rounds.round_spec import QueueRule, RoundSpec

from ..documents import expected_round
from .run_stage import NumberRounds, NumberTrainer, in_a_run, names, new_run
from .virtual_loop import played

NO_SPACE = RunFailed("trainer toy could not do write_staged: No space left on device")


def saved_weights(folder, number):
    return float((folder / "checkpoints" / f"step-{number:06d}" / "trainer" / "weights").read_text())


def test_a_checkpoint_holds_its_own_step_though_the_next_ones_end_first(tmp_path):
    weights = {}

    async def body(run, trainer):
        trainer.gate.clear()
        weights[1] = trainer.weights
        await run.begin_checkpoint()
        for _ in range(2):
            assert await step(run) is not None
        weights[3] = trainer.weights
        assert names(tmp_path) == ["step-000000"] and run.checkpoints.saved_step == 0
        trainer.gate.set()
        await run.checkpoints.written()
        assert names(tmp_path) == ["step-000000", "step-000001"] and run.checkpoints.saved_step == 1
        # The driver's state is that of step 1 too: a run that is resumed there draws what this one drew.
        drawn = run.schedule.state()
        await run.recover(TrainerDied("trainer toy", "it was killed"))
        assert run.step_number == 1 and trainer.weights == weights[1] and run.trainer_restarts == 1
        for _ in range(2):
            await step(run)
        assert run.schedule.state() == drawn and trainer.weights == weights[3]

    events = in_a_run(tmp_path, body)
    assert weights[1] != weights[3] and saved_weights(tmp_path, 1) == weights[1]
    second = [event for event in events if event["event"] == "checkpoint"][1]
    folder = tmp_path / "checkpoints" / "step-000001"
    assert second["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert (second["stage_s"], second["write_s"]) == (0.0, 19.0), "two steps of 9.5 s"
    assert [(e["whom"], e["reason"]) for e in events if e["event"] == "restart"] == [("trainer toy", "it was killed")]
    assert [event["step"] for event in events if event["event"] == "resume"] == [1]


def test_a_checkpoint_waits_for_the_one_that_is_being_written(tmp_path):
    async def body(run, trainer):
        trainer.gate.clear()
        await run.begin_checkpoint()
        await step(run)
        second = asyncio.create_task(run.begin_checkpoint())
        await asyncio.sleep(60)
        assert not second.done() and trainer.writes == 2, "the second is not staged over the first"
        trainer.gate.set()
        await second
        await run.checkpoints.written()
        assert names(tmp_path) == ["step-000001", "step-000002"] and run.checkpoint_fault is None
        assert saved_weights(tmp_path, 2) == trainer.weights

    in_a_run(tmp_path, body)


@pytest.mark.parametrize("ending", ["checkpoint", "rescue"])
def test_the_end_of_a_run_waits_for_its_last_checkpoint(tmp_path, ending):
    async def body(run, trainer):
        trainer.gate.clear()
        await run.begin_checkpoint()
        end = asyncio.create_task(getattr(run, ending)())
        await asyncio.sleep(60)
        assert not end.done()
        trainer.gate.set()
        await end
        assert names(tmp_path) == ["step-000000", "step-000001"] and trainer.writes == 2, "it is written once"

    in_a_run(tmp_path, body)


class QueueRounds(NumberRounds):
    """Rounds of mode `exact` whose lengths depend on the weights' version, the prompt and the draw."""

    async def run(self, machine, layout, version, *_):
        samples, todo, number = {}, list(machine.start()), int(version.split(":")[1])
        while not machine.done:
            action = todo.pop(0)
            key = action.key
            if isinstance(action, Issue):
                tokens = 12 if zlib.crc32(f"{version} {action.prompt} {key.draw}".encode()) % 3 == 0 else 4
                samples[key] = RolloutSample(
                    action.prompt, key.sample, (1, 2), [number] * tokens, [0.0] * tokens, 1.0, draw=key.draw,
                    version_start=version, version_end=version, finished_s=3.0, reward_outcome="ok",
                )  # fmt: skip
                todo += machine.handle(Finished(key, min(tokens, action.max_tokens), tokens > action.max_tokens))
            elif isinstance(action, Score):
                todo += machine.handle(Scored(key, 1.0))
        return RolloutResult(3.0, 1.0, samples, [])


def test_a_run_with_a_queue_resumes_inside_a_cycle(tmp_path, monkeypatch):
    """From a checkpoint in the midst of it the same prompts come in the same rounds, at the same ages."""
    queue = QueueRule(4, more_copies_every=1, until_long_after=3)
    monkeypatch.setattr(
        PlannedJob,
        "round_spec",
        lambda self, cap, dynamic: RoundSpec("exact", 2, 3, cap, 3, 3, 8, 1, dynamic, queue=queue),
    )

    async def whole(run, trainer):
        for _ in range(24):
            await checkpoint_if_due(run, 1)
            await run.checkpoints.written()
            drawn[run.step_number] = run.schedule.state()
            if run.step_number in (5, 12):
                shutil.copytree(tmp_path / "whole", tmp_path / f"{run.step_number}")
            await step(run)

    drawn = {}
    events = in_a_run(tmp_path / "whole", whole, steps=0, rounds=QueueRounds())
    steps = [event for event in events if event["event"] == "step"]
    ages = [tuple(event["ages"]) for event in steps if event["ages"]]
    waits = [wait for event in steps for wait in event["waits"]]
    assert {len(of_round) for of_round in ages} == {4} and max(map(max, ages)) >= 1 and max(waits) >= 2
    assert {event["kind"] for event in steps if event["waits"]} == {"long"}
    assert any(event["kind"] == "long" and not event["ages"] for event in steps), "waves at an epoch's end"
    assert all(event["conservation_violations"] == [] for event in steps)
    for after in (5, 12):

        async def again(run, trainer, after=after):
            assert run.step_number == after and run.schedule.state() == drawn[after]
            while run.step_number < 20:
                await step(run)
            assert run.schedule.state() == drawn[20]

        in_a_run(tmp_path / f"{after}", again, resume=True, steps=0, rounds=QueueRounds())


def test_a_failed_write_is_told_and_tried_after_the_next_step(tmp_path):
    async def body(run, trainer):
        trainer.gate.clear()
        trainer.fate = NO_SPACE
        await run.begin_checkpoint()
        assert run.checkpoint_fault is None
        trainer.gate.set()
        assert await step(run) is not None, "training goes on"
        await run.checkpoints.settle()
        (note,) = run.checkpoints.notes
        assert note.startswith("no checkpoint of step 1: ") and "No space left" in note
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000000"]
        trainer.fate = None
        await checkpoint_if_due(run, 1000)
        await run.checkpoints.written()
        assert names(tmp_path) == ["step-000000", "step-000002"] and run.checkpoint_fault is None
        await checkpoint_if_due(run, 1000)
        assert trainer.writes == 3, "none is due"

    events = in_a_run(tmp_path, body)
    (failed,) = [event for event in events if event["event"] == "checkpoint_failed"]
    assert failed["step"] == 1 and "No space left" in failed["reason"]


def test_a_run_whose_first_checkpoint_cannot_be_written_does_not_begin(tmp_path):
    async def whole():
        trainer = NumberTrainer()
        trainer.fate = OSError(28, "No space left on device")
        with pytest.raises(RunFailed, match=r"step 0 .*No space left"):
            await new_run(tmp_path, trainer).start(False)

    played(whole())
    assert names(tmp_path) == []


@pytest.mark.parametrize("dies_in", ["round", "update", "write", "checkpoint"])
def test_a_trainer_that_dies_takes_the_run_back_to_its_checkpoint(tmp_path, dies_in):
    async def body(run, trainer):
        if dies_in == "write":
            trainer.gate.clear()
            trainer.fate = TrainerDied("trainer toy", "it was killed while it wrote")
            await run.begin_checkpoint()
        if dies_in == "checkpoint":
            trainer.fate = TrainerDied("trainer toy", "it was killed while it wrote")
            saving = asyncio.create_task(run.checkpoint())
        else:
            trainer.dies_in_update = dies_in == "update"
            saving = asyncio.create_task(step(run))
            asyncio.get_running_loop().call_later(2.0, trainer.death.set if dies_in != "update" else lambda: None)
        asyncio.get_running_loop().call_later(60.0, trainer.gate.set)
        while not trainer.restarts:
            await asyncio.sleep(0.5)
            trainer.fate = None if trainer.restarts else trainer.fate
        trainer.fate = None
        assert await saving is None and run.step_number == 0, "step 1 was on no disk yet"
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000000"]
        assert await step(run) is not None
        await run.checkpoint()
        assert names(tmp_path) == ["step-000000", "step-000001"] and run.checkpoint_fault is None

    in_a_run(tmp_path, body)


def predicted():
    """Of a plan with short rounds, whose updates take 20 min."""
    short = expected_round(1.0, train_s=1200.0)
    holds = {"weights": 26.6e9, "activations": 40e9}
    short["memory"]["train"] = {"needed_bytes": 66.6e9, "capacity_bytes": 73.6e9, "holds_bytes": holds}
    rounds = PredictedRounds.model_validate({"short": short, "long": None})
    host = MemoryBar(needed_bytes=1.0, capacity_bytes=2.0)
    return Predicted.model_construct(rounds=rounds, checkpoint=None, host_memory=host)


@pytest.mark.parametrize(
    ("dies_of", "words"),
    [
        ("step: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
         r"step 2: trainer toy: step: .*2\.00 GiB, for the second time; by the plan trainers need 66\.6 GB of 73\.6 GB "
         r"in short rounds \(activations 40 GB, weights 26\.6 GB\); lower search\.micro_batch_tokens, or "),
        ("no answer to step within 6000 s",
         "step 2: .*within 6000 s, for the second time; 5 times what the plan predicts is waited for, 1,200 s"),
        ("it was killed", None),
    ],
)  # fmt: skip
def test_a_step_dies_twice_by_memory_or_deadline_at_most(tmp_path, dies_of, words):
    async def body(run, trainer):
        assert trainer.predicted.update_s == 1200.0
        trainer.dies_of = dies_of
        for times in (1, 2):
            run.trainer.dies_in_update = True
            if times == 2 and words is not None:
                with pytest.raises(RunFailed, match=words):
                    await step(run)
                assert trainer.restarts == 1
                return
            assert await step(run) is None and run.step_number == 0, "back at its checkpoint"
            if words is not None:
                assert await step(run) is not None

    in_a_run(tmp_path, body, predicted=predicted())


def test_a_step_that_dies_of_anything_again_and_again_ends_the_run(tmp_path):
    async def body(run, trainer):
        trainer.dies_of = "step: RuntimeError: CUDA error: device-side assert triggered"
        for times in range(1, SAME_DEATHS + 1):
            trainer.dies_in_update = True
            if times == SAME_DEATHS:
                with pytest.raises(RunFailed, match=f"step 1: .*device-side assert.*, for the {SAME_DEATHS}th time$"):
                    await step(run)
            else:
                assert await step(run) is None

    in_a_run(tmp_path, body, steps=0, predicted=predicted())


def test_an_engine_that_runs_out_of_memory_says_what_the_plan_has(tmp_path):
    class Full(NumberRounds):
        async def run(self, *_):
            raise MemoryRanOut("rollout-tp1-0: CUDA out of memory, for the second time with the weights toy:0")

    words = r"rollout-tp1-0: .*toy:0; by the plan the KV cache of engines needs 1 MB of 1 GB in short rounds; lower "

    async def body(run, trainer):
        with pytest.raises(RunFailed, match=words):
            await step(run)

    in_a_run(tmp_path, body, steps=0, rounds=Full(), predicted=predicted())


def test_a_recovery_loads_the_checkpoint_whose_write_ends_meanwhile(tmp_path):
    async def body(run, trainer):
        trainer.gate.clear()
        weights = trainer.weights
        await run.begin_checkpoint()
        await step(run)
        trainer.death.set()  # the ranks have written all that they had to; the driver has yet to name the folder
        asyncio.get_running_loop().call_later(60.0, trainer.gate.set)
        assert await step(run) is None and run.step_number == 1 and trainer.weights == weights

    in_a_run(tmp_path, body)


def test_deaths_bring_no_checkpoint_forward_while_one_is_being_written(tmp_path):
    async def body(run, trainer):
        trainer.mean_s_between_failures = lambda: 0.0
        assert run.checkpoint_due(1000)
        trainer.gate.clear()
        await run.begin_checkpoint()
        assert not run.checkpoint_due(1000) and run.checkpoint_due(1), "every step still means every step"
        trainer.gate.set()
        await run.checkpoints.written()
        assert run.checkpoint_due(1000)

    in_a_run(tmp_path, body)


def test_a_run_that_is_closed_while_it_writes_leaves_no_checkpoint(tmp_path):
    async def closed(run, trainer):
        trainer.gate.clear()
        await run.begin_checkpoint()
        await asyncio.sleep(1)
        assert trainer.writes == 2

    async def resumed(run, trainer):
        assert run.step_number == 0
        await step(run)
        await run.checkpoint()

    in_a_run(tmp_path, closed)
    assert names(tmp_path) == ["step-000000"]
    events = in_a_run(tmp_path, resumed, resume=True, steps=0)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000000", "step-000001"]
    assert [event["event"] for event in events].count("resume") == 1


async def two_steps(run):
    """A run with checkpoints of steps 0 and 1, after step 2."""
    await run.checkpoint()
    await step(run)


@pytest.mark.parametrize("dies_in", ["round", "update"])
def test_a_step_left_in_its_trainers_recovery_saves_nothing(tmp_path, dies_in):
    async def body(run, trainer):
        await two_steps(run)
        loading = asyncio.Event()

        async def hang():
            loading.set()
            await asyncio.Event().wait()

        trainer.before_load = hang
        if dies_in == "round":
            trainer.death.set()
        trainer.dies_in_update = dies_in == "update"
        taken = asyncio.create_task(step(run))
        await loading.wait()
        assert run.round_can_be_left, "nothing is there that could be lost"
        taken.cancel()
        await asyncio.wait({taken})
        await run.rescue()
        assert names(tmp_path) == ["step-000000", "step-000001"] and "no checkpoint" in run.checkpoint_fault

    in_a_run(tmp_path, body)


@pytest.mark.parametrize("sound", [True, False])
def test_where_no_checkpoint_can_be_read_nothing_newer_is_saved(tmp_path, sound):
    async def body(run, trainer):
        await two_steps(run)

        async def fail():
            raise RunFailed("trainer toy could not do load: [Errno 5] Input/output error")

        trainer.before_load = fail
        if not sound:
            for name in names(tmp_path):
                (tmp_path / "checkpoints" / name / "state.json").write_text("{}")
        trainer.death.set()
        kind, why = (RunFailed, "Input/output") if sound else (InputError, "no checkpoint is sound")
        with pytest.raises(kind, match=why):
            await step(run)
        await run.rescue()
        assert "step-000002" not in names(tmp_path) and run.checkpoint_fault is not None

    in_a_run(tmp_path, body)


def test_a_run_that_ends_early_after_a_recovery_saves_where_it_is(tmp_path):
    async def body(run, trainer):
        await two_steps(run)
        trainer.death.set()
        assert await step(run) is None and run.step_number == 1
        await run.rescue()
        assert run.checkpoint_fault is None and names(tmp_path) == ["step-000000", "step-000001"]
        await step(run)
        await run.rescue()
        assert run.checkpoint_fault is None and names(tmp_path) == ["step-000001", "step-000002"]
        assert saved_weights(tmp_path, 2) == trainer.weights

    in_a_run(tmp_path, body)


@pytest.mark.parametrize("where", ["round", "update"])
def test_a_run_left_in_a_step_saves_the_last_steps_end(tmp_path, where):
    async def body(run, trainer):
        before = run.schedule.state()
        taken = asyncio.create_task(step(run))
        await asyncio.sleep(2 if where == "round" else 6)
        assert run.round_can_be_left == (where == "round")
        taken.cancel()
        await asyncio.wait({taken})
        await run.rescue()
        if where == "update":
            assert names(tmp_path) == ["step-000000"] and "in the middle of a step" in run.checkpoint_fault
            return
        state = json.loads((tmp_path / "checkpoints" / "step-000001" / "state.json").read_text())
        assert (state["step"], state["elapsed_s"]) == (1, 9.5) and state["schedule"] == before

    assert "checkpoint_failed" not in {event["event"] for event in in_a_run(tmp_path, body)}


def test_what_a_recovery_finds_damaged_or_lost_is_told(tmp_path):
    async def body(run, trainer):
        await run.checkpoint()
        (tmp_path / "checkpoints" / "step-000001" / "state.json").write_text("{}")
        (tmp_path / "checkpoints" / "step-000000" / HISTORY).write_bytes(b"damaged")
        run.drafts.load = lambda folder, prompts: "it is damaged"
        trainer.death.set()
        assert await step(run) is None and run.step_number == 0
        (note,) = run.checkpoints.notes
        assert note.startswith("checkpoint set aside, step-000001: state.json") and note.endswith("; back at step 0")
        with pytest.raises(ActorFailed, match="the round of toy:1 was over"):
            await run.weights.join(run.fleet, "toy:1")

    told = {event["event"]: event for event in in_a_run(tmp_path, body)}
    assert told["checkpoint_damaged"]["checkpoint"] == "step-000001" and told["resume"]["step"] == 0
    assert (told["history_lost"]["checkpoint"], told["history_lost"]["reason"]) == ("step-000000", "it is damaged")
