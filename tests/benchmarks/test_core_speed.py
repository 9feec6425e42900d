"""Seconds alone are those on cores as fast as they were when the group ran."""

import os

import pytest

from rlplan.benchmarks.coexecution.core_speed import CoreSpeed, computed_s
from rlplan.benchmarks.coexecution.group_runs import read_alone
from rlplan.traces.run_log import TRACE
from rlplan.traces.trace import TraceWriter

from ..traces.events import step


def core(speeds, busy):
    """A core from second 100 on, one speed a second, that computes for a share of the time."""
    times_s = [100.0 + n for n in range(len(speeds))]
    return CoreSpeed(times_s, speeds, [busy * time_s for time_s in times_s])


def test_speed_and_computed_seconds_are_those_of_the_time_between():
    measured = core([1.0, 1.0, 3.0, 3.0, 3.0], busy=0.5)
    assert measured.speed(99.5, 101.5) == 1.0 and measured.speed(101.5, 200.0) == 3.0
    assert measured.computed_s(100.5, 104.5) == pytest.approx(2.0)


def test_a_time_without_two_measurements_has_the_speed_around_it():
    measured = core([1.0, 1.0, 3.0, 3.0, 3.0], busy=0.5)
    assert measured.speed(101.2, 101.7) == 2.0 and measured.computed_s(101.2, 101.7) == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"no speeds were measured in the 0\.5 s after 104\.2"):
        measured.speed(104.2, 104.7)


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    (tmp_path / "speed.txt").write_text("1.0 500.0 7.0\n2.0 600.0 7.5\n3.0 70")
    assert CoreSpeed.read(tmp_path / "speed.txt").speed(0.0, 9.0) == 550.0


def test_a_core_has_computed_since_the_machine_started():
    assert computed_s(min(os.sched_getaffinity(0))) > 0.0


def test_work_is_seconds_times_the_speed_of_the_core_of_the_phase(tmp_path):
    trace = TraceWriter(tmp_path / TRACE)
    for number in range(1, 5):
        seconds = {"total_s": 10.0, "sync_s": 0.0, "rollout_s": 6.0, "reward_exposed_s": 0.0, "train_s": 4.0}
        fields = step(number, **seconds)
        trace.write(fields.pop("event"), fields.pop("t_s") * 10.0 * number, **fields)
    trace.write("end", 40.0, step=4, finished=True)
    trace.close()
    os.utime(tmp_path / TRACE, (140.0, 140.0))  # the trace began at second 100
    cores = core([2.0] * 41, busy=0.7), core([4.0] * 41, busy=0.5)
    run = read_alone(tmp_path, cores, background=0.05)
    assert run.work == ((12.0, 16.0),) * 4
    assert run.seconds((1.0, 2.0)) == ((12.0, 8.0),) * 4
    assert run.besides == pytest.approx(0.15)  # 12 CPU seconds in 10 seconds of phases, 0.5 of them not the job's
