"""What becomes a run's folder: kinds of rounds, phases that overlap, steps that are left out."""

from pathlib import Path

import pytest

from rlplan.frameworks.logs.imported_run import ImportedRun, read_run_sources, write_imported_run
from rlplan.frameworks.logs.metric_log import LoggedStep, MetricLog
from rlplan.frameworks.logs.sample_dump import DumpedSample, SampleDump
from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import InputError
from rlplan.traces.run_log import load_run
from tests.plans.conftest import PLAN


@pytest.fixture
def plan_path(tmp_path):
    text = PLAN
    for name in ("CLUSTER_SHA", "JOB_SHA", "PROFILE_SHA", "LENGTHS_SHA", "DECISIONS"):
        text = text.replace(name, "a" * 64)
    (tmp_path / "plan.yaml").write_text(text)
    return tmp_path / "plan.yaml"


@pytest.fixture
def written(tmp_path, plan_path):
    """written(steps, samples=(), framework="slime") -> the run's log and the cautions."""

    def write(steps, samples=(), framework="slime"):
        dumps = (SampleDump(Path("d"), framework, 1, tuple(samples)),) if samples else ()
        run = ImportedRun((MetricLog(Path("log"), framework, "console log", tuple(steps)),), dumps, ())
        cautions = write_imported_run(tmp_path / "run", load_plan(plan_path), plan_path, run)
        return load_run(tmp_path / "run").log, cautions

    return write


def step(number, **facts):
    return LoggedStep(number, **{"total_s": 4.0, "rollout_s": 2.5, "train_s": 1.0, "mean_tokens": 50.0} | facts)


def test_rounds_of_a_plan_keep_their_kind_and_what_they_defer(written):
    log, _ = written([step(0, long_round=0.0, deferred=3.0), step(1, long_round=1.0, deferred=0.0)])
    assert [(s.step, s.kind, s.deferred) for s in log.steps] == [(1, "short", 3), (2, "long", 0)]
    assert [s.other_s for s in log.steps] == [0.5, 0.5] and log.steps[1].t_s == 8.0


def test_lengths_of_samples_go_before_those_of_the_log(written):
    tokens = (10, 20, 90, 100)
    samples = [DumpedSample(0, "p", "7", n, 5, n == 100, float(n > 50)) for n in tokens]
    log, cautions = written([step(0, median_tokens=1.0), step(1)], samples)
    first, second = log.steps
    assert (first.trained_samples, first.trained_tokens, first.max_tokens, first.median_tokens) == (4, 220, 100, 55)
    assert first.reward_mean == 0.5 and list(log.samples[1]["tokens"]) == list(tokens)
    assert second.trained_samples == 128 and second.trained_tokens == 6400 and second.median_tokens is None
    assert any("trained 4 samples, and one of the plan 128" in text for text in cautions)


def test_steps_that_lack_a_phase_are_left_out_and_overlap_is_told(written):
    log, cautions = written([step(1, train_s=None), step(2), step(3, rollout_s=4.5)], framework="verl")
    assert [s.step for s in log.steps] == [2, 3]
    assert any("1 step left out" in text for text in cautions) and any("they overlap" in text for text in cautions)


def test_without_phases_there_is_no_run(written):
    with pytest.raises(InputError, match=r"no seconds of training; add a log"):
        written([step(1, train_s=None), step(2, train_s=None)], framework="verl")


def test_sources_of_two_frameworks_are_two_runs(tmp_path):
    (tmp_path / "a.log").write_text("step:1 - timing_s/gen:1.0\n")
    (tmp_path / "b.log").write_text("perf 1: {'perf/rollout_time': 1.0}\n")
    with pytest.raises(InputError, match="of one run"):
        read_run_sources([tmp_path / "a.log", tmp_path / "b.log"])
