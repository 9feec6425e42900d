"""A run's trace as a log: what a resume went back over is gone, and damage is told."""

from pathlib import Path

import pytest

from rlplan.traces.run_log import read_run
from rlplan.traces.trace import TraceError

from ..golden import cases_in, compact, same_as_golden
from .events import BALANCED, BATCH, DRAFTS, STREAMED, TAIL, sample, step, write

EVENTS = {event["event"]: event for event in (step(1), sample(1), STREAMED, TAIL, BALANCED, DRAFTS)}
EVENTS |= {name: {"event": name, "t_s": 1.0} for name in ("resume", "end")}


def test_the_log_lacks_steps_and_samples_that_a_resume_redid(tmp_path):
    log = read_run(
        write(
            tmp_path / "trace.jsonl",
            {"event": "run", "t_s": 0, "plan": "../plan.yaml", "process_s": 3.0},
            sample(1), step(1), sample(2), step(2), sample(3), step(3), {"event": "restart", "t_s": 4},
            {"event": "resume", "t_s": 5, "step": 1, "process_s": 6.0},
            sample(2, tokens=9), step(2, restarts=["engine 1", "engine 2"]),
        )
    )  # fmt: skip
    assert [s.step for s in log.steps] == [1, 2]
    assert [r.tokens for r in log.samples[2]] == [9] and 3 not in log.samples
    assert log.started["plan"] == "../plan.yaml" and log.cold_s == 4.5
    assert (log.first_steps, log.restarts, log.resumes) == ({1, 2}, 3, 1)
    assert [e["event"] for e in log.events] == ["run", "restart", "resume"] and log.last_t_s == 1.0


def test_an_event_that_is_not_what_it_should_be_is_told(tmp_path):
    """golden/damage.txt has pairs of an event and its damage; below each what is told."""
    file, lines = Path(__file__).parent / "golden" / "damage.txt", []
    for name, changes in cases_in(file):
        damaged = {key: value for key, value in {**EVENTS[name], **changes}.items() if value != "gone"}
        with pytest.raises(TraceError) as caught:
            read_run(write(tmp_path / "trace.jsonl", damaged))
        text = str(caught.value).removeprefix(f"{tmp_path / 'trace.jsonl'}: ")
        assert len(text) < 250 and text.endswith("; the trace is damaged or of another version")
        lines += [compact([name, changes]), f"  {text.partition(';')[0]}"]
    same_as_golden(lines, file)


def test_values_at_their_limits_and_those_that_may_lack_are_no_damage(tmp_path):
    most = 10**15
    events = [
        {"event": "run", "t_s": 0},
        sample(1, tokens=10_000_000, prompt_tokens=10_000_000, draw=100_000_000, fate=None, reward=None, epoch=0),
        step(1, t_s=1e9, total_s=1e9, sync_s=0, other_s=-1e9, deferred=most, trained_tokens=most, samples={"a": most}),
        # So are the rewards and metrics of a run that diverged.
        step(0, other_s=None, reward_mean=float("nan"), metrics={"loss": float("inf")}, timeouts=None),
        {**STREAMED, "begun_s": None, "groups": 0, "freed": [], "portions": []},
        {**TAIL, "at_s": None, "seconds": None},
        {**TAIL, "at_s": 1e9, "seconds": 0},
        BALANCED,
        {**DRAFTS, "drafted_at": [most, 0], "batches": {"3": {**BATCH, "saved_s": -most}}},
        {key: value for key, value in DRAFTS.items() if key != "ahead"},
    ]
    log = read_run(write(tmp_path / "trace.jsonl", *events))
    others = ["run", "streamed", "tail", "tail", "balanced", "drafts", "drafts"]
    assert len(log.steps) == 2 and len(log.samples[1]) == 1 and [e["event"] for e in log.events] == others
    assert log.cold_s is None
