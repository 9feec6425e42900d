"""Two jobs with two engines each run as one, by the command line: the tail of one moves together, the other begins."""

import json

import pytest

from rlplan.traces.groups.group_turns import TURNS
from rlplan.traces.trace import read_trace

from ..tiny_job import APART, make_plan, write_job, write_plan
from .group_runs import all_steps, check_turns, executed, solved, trained, write_member, write_workload

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]  # four engines start, minutes each on a slow machine

# Two samples at once on each engine: while a quarter of a round ends on one engine, the other job decodes three
# quarters of its own on the other, three times as long. So it is given the first engine while it can still use it.
STEPS, JOBS = 3, ("one", "two")
SIZES = {"prompts": 8, "samples": 4}
ROUNDS = {"cutoff": None, "at_once": 2}
TWO_NODES = APART.replace("nodes: 1", "nodes: 2", 1)
MEMBER = {"slo": 2.5, "tail_share": 0.5, "tail_finished": 0.75, "rollout": ", nodes: 2"}


@pytest.fixture
def groups(tiny_model, tmp_path):
    """A plan of one group of two jobs on the same two nodes, whose tails keep one of them."""
    for seed, name in enumerate(JOBS):
        write_member(
            tmp_path, tiny_model, name, cluster=TWO_NODES, nodes=3, seed=seed, longest=240, engines=2, **SIZES, **ROUNDS
        )
    return solved(
        write_workload(tmp_path / "workload.yaml", dict.fromkeys(JOBS, MEMBER), "{tail_keep: 0.5}", cluster=TWO_NODES)
    )


def test_tails_move_to_one_node_while_the_other_job_begins(groups, tiny_model, tmp_path, execute):
    out = tmp_path / "runs"
    done = executed(groups, STEPS, out, "--group", "g1")
    result = json.loads(done.stdout)
    ended = {"finished": True, "left": False, "reason": "", "restarts": 0}
    assert result["finished"] and result["jobs"] == dict.fromkeys(JOBS, ended)
    words = [event["event"] for event in read_trace(out / TURNS)]
    assert words.count("tail") >= 2 and words.count("cleared") >= 1
    check_turns(out / TURNS)
    moved = grown = 0
    for name in JOBS:
        log = all_steps(out / name, STEPS)
        for event in (event for event in log.events if event["event"] == "units"):
            moved += event["moved"]
            grown += any(len(names) == 2 for _, names in event["changes"])
    assert moved > 0 and grown > 0
    for seed, name in enumerate(JOBS):  # alone, on one engine
        home = tmp_path / f"{name} alone"
        home.mkdir()
        write_job(home, tiny_model, name, longest=240, seed=seed, **SIZES)
        plan = write_plan(make_plan(home, name, **SIZES, **ROUNDS), home / "plan.yaml")
        assert execute(plan, "--out", home / "run", "--steps", 1) == 0
        assert trained(out / name) == trained(home / "run")
