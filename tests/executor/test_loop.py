"""One step, as loop.py has it: what is done in which order, what its seconds are, and what its record says."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlplan.executor import run as runs
from rlplan.executor.loop import step
from rlplan.executor.memory.device_turns import TurnsTook, no_turns
from rlplan.executor.records.run_record import DriftWatch
from rlplan.executor.rollout.round_samples import Progress
from rlplan.executor.weights.transfer import WayClosed
from rlplan.plans.yaml.errors import RunFailed
from rlplan.rounds.machines.events import SampleKey
from rlplan.traces.report_state import incidents
from rlplan.traces.run_log import read_run
from tests.rounds.driver import round_balance

from .run_stage import NumberRounds, in_a_run
from .virtual_loop import now_s


class Levers:
    """Devices, a group and levers of a round that take their seconds; `log` has what was done in which second."""

    def __init__(self, folder):
        self.log, self.folder, self.began = [], folder, None

    def note(self, what):
        self.log.append((what, round(now_s() - self.began, 6)))

    async def take(self, what, seconds=0.0, gives=None):
        self.note(what)
        await asyncio.sleep(seconds)
        return gives

    def devices(self):
        took = {"to_sending": (0.5, 0.25), "to_decoding": (0.125, 0.0625), "to_training": (2.0, 0.75)}

        def turn(name):
            return lambda *_: self.take(name, sum(took[name]), TurnsTook(*took[name]))

        return SimpleNamespace(ledger=no_turns().ledger, **{name: turn(name) for name in took})

    def group(self):
        """A job's side of its group, which gives each turn at once and takes 0.4 s to free its devices."""

        async def round_units(run, engines):
            await asyncio.sleep(0.03)
            return self.lever("units", here=engines, samples=0, paused_s=1.5)

        return SimpleNamespace(
            begin=lambda run, phase: self.take(f"begin {phase}", 7.0, 7.0), end=lambda: self.take("end", 0.4, 0.4),
            switched_in=lambda seconds: self.note(f"switched {seconds}"), round_units=round_units,
        )  # fmt: skip

    def lever(self, name, trained=None, **attributes):
        trained = trained or (lambda: asyncio.sleep(0, []))
        report = lambda run, result: run.event(name, samples=len(result.samples))  # noqa: E731
        return SimpleNamespace(trained=trained, report=report, **attributes)

    def stream(self):
        return self.lever("streaming", lambda: self.take("close", 0.2, [0]))


class NotedRounds(NumberRounds):
    async def run(self, machine, layout, version, give, tag, options, levers):
        self.given = (version, tag, layout.engines, options, levers)
        levers[-1].begin(SimpleNamespace(machine=machine))
        result = await super().run(machine, layout, version)
        result.samples[SampleKey(0, 0)].reward_outcome = "policy_crash"
        result.samples[SampleKey(0, 0)].reward_detail = "it crashed"
        return result


def test_a_step_has_its_phases_in_order_with_their_seconds(tmp_path, monkeypatch):
    levers, rounds, record = Levers(tmp_path), NotedRounds(), []

    async def body(run, trainer):
        run.fleet.load_s = 2.0
        run.fleet.missed = [SimpleNamespace(engine=run.fleet, reason="it died between rounds")]
        run.permits, levers.began = levers.group(), now_s()
        run.settings = replace(run.settings, streams=True)
        monkeypatch.setattr(runs, "round_streaming", lambda *_: levers.stream())
        short = run.settings.of_round("short")
        rollout = short.rollout.model_copy(update={"balance": round_balance(0.5, 0.1, 0.0, 1000)})
        run.settings.rounds["short"] = short.model_copy(update={"rollout": rollout})

        async def closed(*_, **__):
            raise WayClosed("there is no network")

        run.weights._broadcast.send = closed
        run.drafts.next_round = lambda drafts, kind: levers.lever("drafts", kind=kind)
        tail = levers.lever("tail")
        monkeypatch.setattr(runs, "round_tail", lambda run, spec, samples, *_: levers.note(f"of {samples}") or tail)
        record.append(await step(run))
        levers.note("over")

    events = in_a_run(tmp_path, body, steps=0, turns=levers.devices(), rounds=rounds)
    assert levers.log == [
        ("begin rollout", 0.0), ("to_sending", 7.03), ("to_decoding", 9.78), ("switched 0.625", 9.9675),
        ("of 6", 9.9675), ("end", 14.4675), ("close", 14.8675), ("begin train", 15.0675), ("to_training", 22.0675),
        ("switched 0.75", 24.8175), ("end", 29.8175), ("over", 30.2175),
    ]  # fmt: skip
    (one,) = record
    # Engines' turns are in the sync, the trainer's in the update, and both in neither where they are the group's.
    turns_s = 2.0 - 0.25 - 0.0625
    assert one.sync_s == pytest.approx(9.9675 - 7.0 - 0.625 + turns_s)
    assert one.rollout_s == 3.0 and one.reward_exposed_s == 1.0
    assert one.other_s == pytest.approx(4.5 - 1.5 - 4.0)
    assert one.train_s == pytest.approx(29.8175 - 14.4675 + 1.5 - (1.5 + 0.4 + 7.0 + 0.75) - turns_s)
    assert one.total_s == pytest.approx(29.8175 - 7.0 - 0.625 - (1.5 + 0.4 + 7.0 + 0.75))
    assert (one.step, one.kind, one.epochs, one.engines, one.engines_missing) == (1, "short", [0], 1, 0)
    assert (one.trained_samples, one.trained_tokens, one.decoded_tokens, one.max_tokens) == (6, 18, 18, 3)
    assert (one.reward_mean, one.median_tokens, one.deferred) == (pytest.approx(1 / 3), 3, 0)
    assert (one.weights_way, one.on_policy_violations, one.checksum_mismatches, one.restarts) == (
        "file", 0, 0, ["one engine"],
    )  # fmt: skip
    assert one.reward_failures == {"policy_crash": 1} and one.conservation_violations == []
    told = {event["event"]: event for event in events}
    assert [told[name]["samples"] for name in ("tail", "units", "streaming", "drafts")] == [6] * 4
    assert (told["restart"]["whom"], told["restart"]["reason"]) == ("made-up", "it died between rounds")
    unscored = {"step": 1, "outcome": "policy_crash", "samples": 1, "reason": "it crashed"}
    assert told["unscored"] | unscored == told["unscored"]
    balanced = {"step": 1, "prompts": 2, "known": 0}
    assert told["balanced"] | balanced == told["balanced"]
    assert (told["weights"]["way"], told["weights"]["reason"]) == ("file", "there is no network")
    version, tag, engines, options, (_, _, units, drafts, balance) = rounds.given
    assert (version, tag, engines, options.max_num_seqs) == ("toy:0", "toy/0/0", 1, 8)
    assert (units.samples, drafts.kind, balance.placement(2) is not None) == (6, "short", True)


def test_groups_that_were_trained_beside_the_rollout_are_not_trained_again(tmp_path, monkeypatch):
    async def body(run, trainer):
        levers = Levers(tmp_path)
        levers.began = 0.0
        await step(run)
        run.settings = replace(run.settings, streams=True)
        monkeypatch.setattr(runs, "round_streaming", lambda *_: levers.stream())
        await step(run)
        first, second = trainer.trained
        assert [count for _, count in first] == [3, 3] and [count for _, count in second] == [3]

    in_a_run(tmp_path, body, steps=0)


def test_weights_that_arrive_as_others_end_the_run(tmp_path):
    async def body(run, trainer):
        run.fleet.load = lambda path, version, checked: asyncio.sleep(0, {"w": "another"})
        with pytest.raises(RunFailed, match="1 engines received other weights than the trainer sent at step toy:1"):
            await step(run)

    in_a_run(tmp_path, body)


def test_samples_of_other_weights_are_never_trained(tmp_path):
    class Stale(NumberRounds):
        async def run(self, machine, layout, version, *_):
            return await super().run(machine, layout, "toy:7")

    async def body(run, trainer):
        with pytest.raises(AssertionError, match="6 samples of step 0 were not decoded by toy:0"):
            await step(run)
        assert trainer.trained == []

    in_a_run(tmp_path, body, steps=0, rounds=Stale())


def test_a_round_that_trains_nothing_counts_as_a_step(tmp_path):
    class Filtered(NumberRounds):
        async def run(self, machine, layout, version, *_):
            result = await super().run(machine, layout, version)
            outcome = machine.outcome()
            object.__setattr__(outcome, "trained", [])
            object.__setattr__(outcome, "failures", {"q2": "its row is bad", "q1": "so is this"})
            machine.outcome = lambda: outcome
            return result

    async def body(run, trainer):
        record = await step(run)
        assert record.metrics == {} and trainer.trained == [] and run.step_number == 1
        assert (record.trained_samples, record.reward_mean) == (0, 0.0) and record.train_s == 0.0

    events = in_a_run(tmp_path, body, steps=0, rounds=Filtered())
    failed = [(event["prompt"], event["reason"], event["step"]) for event in events if event["event"] == "failed"]
    assert failed == [("q1", "so is this", 1), ("q2", "its row is bad", 1)]


def test_why_weights_go_another_way_is_told_whenever_the_reason_changes(tmp_path):
    async def body(run, trainer):
        for reason in ("no GPUs", "no GPUs", None, "no GPUs", "no room"):
            run.tell_way(SimpleNamespace(way="file", slots="", reason=reason))

    events = in_a_run(tmp_path, body, steps=0)
    reasons = [event["reason"] for event in events if event["event"] == "weights"]
    assert reasons == ["no GPUs", "no GPUs", "no room"]


def test_a_runs_trace_and_progress_are_what_its_rounds_say(tmp_path):
    async def body(run, trainer):
        assert isinstance(run.progress(), Progress) and run.progress() is run.runner.progress
        assert run.seeds(run.schedule.begin()) is None

    in_a_run(tmp_path, body, steps=2)
    log = read_run(tmp_path / "trace.jsonl")
    assert [len(rows) for rows in log.samples.values()] == [6, 6] and len(log.steps) == 2
    row = next(iter(log.samples[2]))
    assert (row.tokens, row.reward, row.fate, row.version) == (3, 1.0, "trained", ("toy:1", "toy:1"))


def test_a_run_tells_once_that_lengths_have_left_the_plan(tmp_path):
    async def body(run, trainer):
        assert [note for note in run.checkpoints.notes if "planned to be 40% of the steps, and are 100%" in note]

    # Its rounds of two prompts defer none; after two of them that might still be chance.
    events = in_a_run(tmp_path, body, steps=12, planned_short_share=0.4)
    (told,) = (event for event in events if event["event"] == "drift")
    assert 2 < told["step"] == told["rounds"] and (told["planned"], told["measured"]) == (0.4, 1.0)
    log = read_run(tmp_path / "trace.jsonl")
    assert [row["step"] for row in incidents(log.events, log.steps) if row["kind"] == "drift"] == [told["step"]]


@pytest.mark.parametrize(
    ("planned", "shorts", "expected"),
    [(0.7, (70, 50, 70, 85), [(1, True), (3, False)]), (0.95, (95, 96, 99), [(2, False)])],
)
def test_lengths_that_leave_the_plan_again_are_told_again(planned, shorts, expected):
    watch, told = DriftWatch(planned), []
    for number, short in enumerate(short for short in shorts for _ in range(30)):
        record = SimpleNamespace(kind="short", prompts={"trained": short, "deferred": 100 - short})
        if (drift := watch.step(record)) is not None:
            told.append((number // 30, drift.measured < planned))
    assert told == expected
