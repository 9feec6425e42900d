"""A run's trace as a log: what a resume went back over is gone, and damage is told."""

import json

import pytest

from rlplan.traces.run_log import read_run
from rlplan.traces.trace import TraceError


def step(number, **changes):
    names = (
        "total_s", "sync_s", "rollout_s", "reward_exposed_s", "train_s", "trained_samples", "trained_tokens",
        "reward_mean", "max_tokens", "median_tokens", "decoded_tokens", "deferred", "on_policy_violations",
        "checksum_mismatches", "exhausted",
    )  # fmt: skip
    fixed = {"event": "step", "t_s": 1.0, "step": number, "kind": "short", "restarts": [], "metrics": {}}
    return {**fixed, "conservation_violations": [], **dict.fromkeys(names, 1), **changes}


def sample(number, **changes):
    fields = {"event": "sample", "t_s": 1.0, "step": number, "prompt": "p", "epoch": 0, "draw": 0, "sample": 0}
    return {**fields, "tokens": 3, "prompt_tokens": 2, "truncated": False, "fate": "trained", **changes}


def write(path, *events):
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_steps_and_samples_that_a_resume_went_back_over_are_not_in_the_log(tmp_path):
    log = read_run(
        write(
            tmp_path / "trace.jsonl",
            {"event": "run", "t_s": 0, "plan": "../plan.yaml"},
            sample(1), step(1), sample(2), step(2), sample(3), step(3),
            {"event": "resume", "t_s": 5, "step": 1},
            sample(2, tokens=9), step(2, restarts=["engine 1"]),
        )
    )  # fmt: skip
    assert [s["step"] for s in log.steps] == [1, 2]
    assert [r["tokens"] for r in log.samples[2]] == [9] and 3 not in log.samples
    assert log.started["plan"] == "../plan.yaml"
    assert log.first_steps == {1, 2}
    assert (log.restarts, log.resumes) == (1, 1)
    assert [e["event"] for e in log.events] == ["run", "resume"] and log.last_t_s == 1.0


@pytest.mark.parametrize(
    ("event", "word"),
    [
        ({k: v for k, v in step(1).items() if k != "train_s"}, "train_s"),
        (step(1, total_s="long"), "total_s"),
        (step(1, kind=3), "kind"),
        (step(1, total_s=float("nan")), "total_s"),
        (step(1, train_s=-1.0), "train_s"),
        (step(1, rollout_s=1e300), "rollout_s"),
        (step(1, deferred=-1), "deferred"),
        (step(1, max_tokens=10**400), "max_tokens"),
        (step(1, reward_mean=None), "reward_mean"),
        (step(1, metrics={"loss": "x"}), "loss"),
        (step(1, samples={"trained": "x"}), "samples"),
        (step(1, timeouts=[1]), "timeouts"),
        (step(1, t_s="x"), "t_s"),
        ({"event": "end", "t_s": None}, "t_s"),
        ({"event": "resume", "t_s": 1.0, "step": "x"}, "step"),
        ({"t_s": 1.0}, "event"),
        (sample(1, tokens=-1), "tokens"),
        (sample(1, tokens=1.5), "tokens"),
        (sample(1, prompt=7), "prompt"),
        (sample(1, fate=7), "fate"),
        ({k: v for k, v in sample(1).items() if k != "draw"}, "draw"),
    ],
)
def test_an_event_that_is_not_what_it_should_be_is_told(event, word, tmp_path):
    with pytest.raises(TraceError, match=word) as caught:
        read_run(write(tmp_path / "trace.jsonl", event))
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 400


def test_the_rewards_and_metrics_of_a_run_that_diverged_are_no_damage(tmp_path):
    diverged = step(1, reward_mean=float("nan"), metrics={"loss": float("inf")}, other_s=-1e-12)
    assert read_run(write(tmp_path / "trace.jsonl", diverged)).steps[0]["metrics"] == {"loss": float("inf")}
