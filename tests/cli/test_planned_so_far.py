"""`rlplan report` on a group: the slowdown that the plan has over the steps that were run."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rlplan.cli.report import report_command
from rlplan.executor.groups.live_permits import LivePermits
from rlplan.plans.yaml.yaml_io import dump
from rlplan.rounds.permits.permit_events import Seat
from rlplan.traces.groups.group_turns import GROUPS_COPY, TURNS

from ..group_documents import group, groups_plan, member

SECONDS = {"a": (60.0, 30.0), "b": (50.0, 40.0), "c": (70.0, 20.0)}


@pytest.fixture
def run(tmp_path):
    """A folder of three jobs, each of whose turns took what the plan says, eight steps each."""
    dump(groups_plan({"g1": group({job: member(slo=3.0) for job in SECONDS})}), tmp_path / GROUPS_COPY)
    now_s = [50.0]
    seats = [Seat(job, ((0,), (1,)), SECONDS[job], pace_s=200.0) for job in SECONDS]
    live = LivePermits("g1", "multi_rate", seats, tmp_path / TURNS, lambda: now_s[0])
    arrivals = {job: live.ready(job, job) for job in SECONDS}
    while live.held:
        ends = {job: turn.begun_s + SECONDS[job][turn.turn % 2] for job, turn in live.held.items()}
        job = min(ends, key=lambda name: ends[name])
        now_s[0] = 50.0 + ends[job]
        if live.held[job].turn == 15:
            live.done(job, arrivals[job], 15)
            break
        live.done(job, arrivals[job], live.held[job].turn)
    live.close()
    return tmp_path


def jobs_of(run):
    done = CliRunner().invoke(report_command, [str(run), "--json"])
    return json.loads(done.output)["groups"]["g1"]["jobs"]


def test_turns_as_long_as_planned_are_as_slow_as_planned_so_far(run):
    jobs = jobs_of(run)
    for row in jobs.values():
        assert row["slowdown_planned_so_far"] == pytest.approx(row["slowdown"])
        assert row["slowdown_predicted"] == 1.1
    text = CliRunner().invoke(report_command, [str(run)]).output
    assert "planned so far" in text and "long-run plan" in text


def test_a_job_that_came_later_leaves_no_plan_of_the_first_steps(run):
    dump(groups_plan({"g1": group({job: member(slo=3.0) for job in ("a", "b", "d")})}), run / GROUPS_COPY)
    lines = (run / TURNS).read_text().splitlines()
    last_s = json.loads(lines[-1])["t_s"]
    seat = json.loads(lines[0])["seats"][0] | {"job": "d"}
    more = [{"event": "unseat", "t_s": last_s, "job": "c"}, {"event": "seat", "t_s": last_s, "job": "d", "seat": seat}]
    (run / TURNS).write_text("\n".join([*lines, *map(json.dumps, more)]) + "\n")
    assert {row["slowdown_planned_so_far"] for row in jobs_of(run).values()} == {None}
