"""Benchmarks of groups: the production replay and its bound, alarms, shares by permit rule; nothing is timed."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.benchmarks import rollmux_workloads
from rlplan.benchmarks.rollmux.published_jobs import (
    NODE_TYPES,
    TRAIN,
    WORKLOADS,
    Arrival,
    Drift,
    Stay,
    arrivals,
    fluid_bound,
    footprint_bytes,
    job_of,
    read_curve,
    response_tokens,
    spread,
    stays,
    without_spill,
)
from rlplan.benchmarks.rollmux.replay import Account, Colocated, replay
from rlplan.planner.groups.choose.placers import Algorithm1, SoloD
from rlplan.planner.groups.inputs.group_model import GroupsState, Rules
from rlplan.plans.yaml.errors import InputError

RULES = Rules(permit_rule="first_come")
JOB = job_of("x", WORKLOADS[0], 1.0, 1, 1.0)


def json_of(command, *arguments):
    """The one line of JSON that a command prints."""
    done = CliRunner().invoke(command, [*arguments, "--json"])
    assert done.exit_code == 0 and len(done.output.splitlines()) == 1, done.output
    return json.loads(done.output)


def curve_file(folder, points):
    path = folder / "curve.json"
    path.write_text(json.dumps({"series": {"H800_SoloD": points}}))
    return path


def at(job, start, end):
    return Arrival(job, Stay(start, end, 1))


def test_gpu_counts_may_be_one_off(tmp_path):
    assert read_curve(curve_file(tmp_path, [[0, 9], [1.5, 15], [2, 0]])) == [(0.0, 1), (1.5, 2), (2.0, 0)]


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([], "no list of points"), ("x", "no list of points"), ([[0, 12]], "no multiple of 8"),
        ([[1, 8], [0, 0]], "before the point"), ([[0, 1e15], [1, 0]], "at most 100000 are replayed"),
        ([[0, "8"]], r"must be \[hour, GPUs\]"), ([[0, float("nan")]], r"must be \[hour, GPUs\]"),
        ([[0, 0], [1, 0]], "no job"),
    ],
)  # fmt: skip
def test_a_bad_curve_is_one_line_that_names_the_file(tmp_path, points, says):
    path = curve_file(tmp_path, points)
    with pytest.raises(InputError, match=says) as error:
        read_curve(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_a_curve_file_that_is_absent_or_no_json_is_one_line(tmp_path):
    for text, says in ((None, "cannot be read"), ("{\n!", "not JSON"), ("[]", "no list of points")):
        if text is not None:
            (tmp_path / "curve.json").write_text(text)
        with pytest.raises(InputError, match=says):
            read_curve(tmp_path / "curve.json")


@settings(max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(0, 5))
def test_the_jobs_nodes_add_up_to_the_curve_at_all_times(heights, seed):
    curve = [(float(hour), nodes) for hour, nodes in enumerate(heights)]
    found = stays(curve, np.random.default_rng(seed))
    for hour, nodes in curve[:-1]:
        assert sum(s.nodes for s in found if s.start_h <= hour < s.end_h) == nodes
    assert all(s.start_h < s.end_h for s in found)


def test_one_job_in_25_is_wide_where_steps_allow():
    curve = [(0.0, 0)]
    for at_ in range(104):
        curve += [(3.0 * at_ + 1, 2), (3.0 * at_ + 2, 0)]
    found = stays(curve, np.random.default_rng(0))
    assert sum(s.nodes == 2 for s in found) == 8 and len(found) == 200


def test_footprints_between_published_sizes_are_interpolated():
    assert footprint_bytes("7B") == (275.7e9, 240.0e9)
    assert footprint_bytes("3B")[0] < footprint_bytes("4B")[0] < footprint_bytes("7B")[0]
    assert footprint_bytes("7B")[1] < footprint_bytes("8B")[1] < footprint_bytes("14B")[1]


def test_arrivals_are_the_same_for_a_seed():
    where = [Stay(float(i), i + 1.0, 1 + (i % 5 == 0)) for i in range(50)]
    first, again = (arrivals(where, np.random.default_rng(4)) for _ in range(2))
    assert first == again
    assert all(1 <= a.job.slo <= 2 and a.job.train[0].nodes == a.stay.nodes for a in first)
    assert all(way.pool != TRAIN for a in first for way in without_spill(a.job).rollout)


def test_solo_d_costs_its_nodes_and_one_dollar_a_unit():
    jobs = [at(JOB, 0, 10), at(job_of("y", WORKLOADS[1], 1.5, 1, 1.0), 5, 20)]
    outcome = replay(jobs, SoloD(NODE_TYPES), NODE_TYPES, RULES)
    assert outcome.usd == pytest.approx(57.04 * 25) and outcome.hours == 20
    assert outcome.usd_per_unit(NODE_TYPES) == pytest.approx(1.0)
    assert outcome.slo_attained == outcome.slo_attained_by_hours == 1.0
    assert outcome.accounts["x"].iterations == pytest.approx(10 * 3600 / 247)
    colocated = replay(jobs[:1], Colocated(NODE_TYPES), NODE_TYPES, RULES)
    assert colocated.usd_per_hour == pytest.approx(42.24), "it pays for training nodes alone"
    assert colocated.usd_per_unit(NODE_TYPES) == pytest.approx(42.24 / 57.04)


def test_a_move_takes_lost_work_and_cold_start_from_the_job():
    account = Account()
    account.advance(1.0, 2470.0, JOB)
    account.move(0.5, 1.0, JOB)
    account.advance(1.0, 2470.0, JOB)
    assert account.lost_s == pytest.approx(82.0 + 0.5 * 247) and account.kept_s == 2470.0
    assert account.iterations == pytest.approx(20 - account.lost_s / 247)
    # A job that leaves before it has done lost work again has not done it.
    account = Account()
    account.advance(1.0, 2470.0, JOB)
    account.move(1.0, 1.0, JOB)
    account.leave()
    assert account.solo_s == pytest.approx(2470 - 247)


class Shuffler(SoloD):
    """Moves everybody at each arrival."""

    def arrive(self, state, job):
        after = super().arrive(state, job)
        old = {f"g{int(key[1:]) + 500:06d}": group for key, group in after.groups.items()}
        return GroupsState(after.jobs, old)


def test_every_move_of_a_placer_is_charged():
    jobs = [at(job_of(n, WORKLOADS[0], 1.2, 1, 1.0), float(i), 10.0) for i, n in enumerate("xyz")]
    calm, restless = (replay(jobs, placer, NODE_TYPES, RULES) for placer in (SoloD(NODE_TYPES), Shuffler(NODE_TYPES)))
    assert restless.moved == 3 and restless.moves_share_of_gpu_hours > 3 * 82 / (27 * 3600)
    assert restless.usd == pytest.approx(calm.usd)
    assert restless.usd_per_unit(NODE_TYPES) > calm.usd_per_unit(NODE_TYPES)


def test_random_phases_have_mean_one_and_long_responses_lengthen_both():
    draws = np.array(spread(2000, np.random.default_rng(1)))
    assert draws.mean(axis=0) == pytest.approx([1.0, 1.0]) and np.corrcoef(draws.T)[0, 1] > 0.3
    assert (np.diff(response_tokens(np.linspace(-4, 4, 50))) >= 0).all()


def test_drift_ends_within_its_limit_and_starts_at_nothing():
    for direction, low, high in (("up", 1.0, 1.3), ("down", 0.7, 1.0), ("mixed", 0.7, 1.3)):
        drift = Drift(direction, 0.3, np.random.default_rng(0))
        assert drift.drifted(JOB, 0.0) == JOB
        assert low <= drift.drifted(JOB, 1.0).train[0].mean_s / JOB.train[0].mean_s <= high
    with pytest.raises(ValueError, match="no such direction"):
        Drift("sideways", 0.3, np.random.default_rng(0))


def test_no_placer_is_below_the_fluid_bound():
    jobs = arrivals([Stay(0.0, 5.0 + i, 1) for i in range(4)], np.random.default_rng(0))
    bound = fluid_bound(jobs, NODE_TYPES)
    for placer in (SoloD(NODE_TYPES), Algorithm1(NODE_TYPES, RULES)):
        assert replay(jobs, placer, NODE_TYPES, RULES).usd_per_hour > bound
    one = [at(job_of("x", WORKLOADS[0], 2.0, 1, 1.0), 0.0, 1.0)]
    assert fluid_bound(one, NODE_TYPES) == pytest.approx((134 * 14.80 + 113 * 42.24) / (2 * 247))


def test_synthetic_workloads_lie_in_the_published_ranges():
    jobs = rollmux_workloads.draw_jobs(("RH",), 50, None, np.random.default_rng(0))
    assert all(100 <= job.rollout[0].mean_s <= 600 and 25 <= job.train[0].mean_s <= 200 for job in jobs)
    assert all(1 <= job.slo <= 2 for job in jobs)
    assert set(rollmux_workloads.CASES) == set(rollmux_workloads.PUBLISHED)


def test_the_program_is_no_dearer_than_any_placer_that_keeps_its_bounds():
    jobs = rollmux_workloads.draw_jobs(rollmux_workloads.MIXED, 4, None, np.random.default_rng(3))
    paid = rollmux_workloads.snapshot(jobs, 3, 0)
    assert paid["proven"] == 1.0 and paid["ours"] == paid["optimum"] <= paid["ours_no_moves"]
