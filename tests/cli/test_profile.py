"""`rlplan profile`: what is written of measurements, and what is said of them. Nothing is measured here."""

from pathlib import Path

import pytest

from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.judge_schema import Judge
from rlplan.profiles.laws.measured_fit import DecodeFit, MeasuredRound
from rlplan.profiles.length_trace import LengthTrace, read_lengths
from rlplan.profiles.measure.measure_job import Measurements
from rlplan.profiles.measure.measure_rollout import RolloutCosts
from rlplan.profiles.measure.time_budget import EngineTurns
from rlplan.profiles.phase_schema import DecodePoint, Spread
from rlplan.profiles.profile_schema import PolicyShape, Profile

from ..golden import flat, same_as_golden
from .command_line import data, printed, rlplan
from .solved_folder import sha

PEAKS = {"peak_flops": 1e9, "peak_bytes_per_s": 1e9}
SHAPE = PolicyShape(active_parameters=1234, attention_width=8, dtype="float32")


def seconds(p50):
    return Spread(p50=p50, p95=2 * p50, repeats=3)


@pytest.fixture
def measured(solved, monkeypatch):
    """A folder in which profiling measures at once; what it was asked for is in the list."""
    old = load(solved / "profile.yaml", Profile)
    rows = read_lengths(solved / "lengths.jsonl", cap_tokens=64).rows
    pair, single = EngineLayout(engines=2, tp=1), EngineLayout(engines=1, tp=2)
    points = [DecodePoint(sequences=n, kv_tokens=50.0 * n, step_s=0.002, spread=0.01, outlier=n == 8) for n in (4, 8)]
    fit = DecodeFit(0.002, 0.00003, 4e-9, 0.02, tuple(points))
    costs = [RolloutCosts(layout, fit, 0.0004, 0.00001, 100_000, 16, seconds(9.0)) for layout in (pair, single)]
    lengths = {(0, 0): ("p0", 5, False), (0, 1): ("p0", 9, False), (1, 0): ("p1", 30, False), (1, 1): ("p1", 8, False)}
    found = Measurements(
        machine=old.machine.model_copy(update=PEAKS), rollout=tuple(costs), train=old.train, reward=old.reward,
        judge=Judge(per_sample_s=0.1, per_token_s=0.0002, beside_factor=1.25, rollout_factor=1.5), drafts=None,
        sync={pair: seconds(0.03), single: seconds(0.04)}, turns={single: EngineTurns(0.5, 0.25)},
        trace=LengthTrace(rows, 64), rounds=(MeasuredRound(pair, 64, lengths, 0.2),),
        prompt_tokens={"p0": 5, "p1": 6}, parameters=1234, shape=SHAPE, adapters=None,
        kv_bytes_per_token=512, seconds=71.0,
        left_out="left out for lack of time: tp 4",
    )  # fmt: skip
    asked = []

    def measure(job, paths, name, pool, out, effort, notify):
        asked.append((job.name, name, out, effort.minutes, effort.trace_rounds))
        notify("engines start")
        notify("engines start")
        return found

    monkeypatch.setattr("rlplan.profiles.measure.measure_job.measure", measure)
    return solved, asked


def test_a_profile_holds_what_was_measured(measured):
    folder, asked = measured
    out = folder / "new.yaml"
    result = rlplan("profile", folder, "--out", out, "--minutes", "2", "--trace-rounds", "5")
    assert result.returncode == 0 and result.stderr == "profile: engines start\n", "told once"
    assert asked == [("toy", "main", out, 2.0, 5)]
    new, old = load(out, Profile), load(folder / "profile.yaml", Profile)
    assert (new.job, new.measured, new.provenance, new.model_parameters) == ("toy", old.measured, "measured", 1234)
    first, second = new.rollout
    assert (first.tp, first.engines, first.sync.p50, first.sleep_s, first.wake_s) == (1, 2, 0.03, None, None)
    assert (second.tp, second.engines, second.sync.p50, second.sleep_s, second.wake_s) == (2, 1, 0.04, 0.5, 0.25)
    assert (first.step_s, first.step_s_per_sequence, first.step_s_per_kv_token) == (0.002, 0.00003, 4e-9)
    assert (first.prefill_s, first.prefill_s_per_token, first.kv_block_tokens) == (0.0004, 0.00001, 16)
    assert (first.kv_capacity_tokens, first.kv_bytes_per_token, first.start.p50) == (100_000, 512, 9.0)
    assert new.shape == SHAPE
    assert (new.train, new.reward) == (old.train, old.reward) and new.judge.beside_factor == 1.25
    trace = folder / "new.lengths.jsonl"
    trace = trace if trace.is_file() else folder / new.lengths.path
    assert new.lengths.sha256 == sha(trace) and (new.lengths.prompts, new.lengths.samples) == (24, 96)
    assert new.outliers == tuple(f"decode {e} x tp {t}: 8 sequences, 400 KV tokens" for e, t in ((2, 1), (1, 2)))
    [check] = new.checks
    assert (check.tp, check.engines, check.rounds) == (1, 2, 1)
    assert new.volatile.measuring_s == 71.0 and new.volatile.measured_at.endswith("Z")


def test_what_was_measured_is_told(measured):
    folder, _ = measured
    text = printed("profile", folder, "--force").replace(str(folder), "{at}")
    summary = flat(data("profile", folder, "--force"))
    same_as_golden([*text.splitlines(), "", *summary], Path(__file__).with_name("golden") / "profile.txt")
