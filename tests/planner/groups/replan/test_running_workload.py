"""Solving again from a running plan, by its documents: who moves, for how much, and who stays."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from rlplan.planner.check.check_options import CheckOptions
from rlplan.planner.check.group_rules import groups_faults
from rlplan.planner.groups.propose_replan import propose_replan
from rlplan.plans.diff.groups_diff import diff_groups
from rlplan.plans.schema.groups_plan import GroupsPlan, load_groups_plan
from rlplan.plans.yaml.errors import Infeasible, InputError
from rlplan.plans.yaml.yaml_io import dump, sha256_file

from ....replanned import Running
from ....workloads import LAB
from ..made import solved


def text(name: str, rollout_s: float, train_s: float, slo: float = 1.5) -> str:
    return f"""\
  {name}:
    slo: {slo}
    model: Qwen2.5-7B
    phases:
      rollout: {{pool: roll, mean_s: {rollout_s}}}
      train: {{pool: train, tp: 2, mean_s: {train_s}}}
"""


JOBS = {"a": text("a", 200, 60), "b": text("b", 190, 70), "c": text("c", 100, 110), "d": text("d", 90, 120)}
ROOMY = LAB.replace("nodes: 3", "nodes: 6").replace("nodes: 2", "nodes: 6")


@pytest.fixture(scope="module")
def solve(tmp_path_factory):
    """Solves workloads of these jobs, from the plan of others if told so."""
    folder = tmp_path_factory.mktemp("site")

    @cache
    def plan_of(jobs: tuple[str, ...], before: tuple[str, ...] = (), moving: bool = True, cluster: str = ROOMY):
        running = None
        if before:
            running = (plan_of(before, cluster=cluster), folder / "groups.yaml")
            dump(*running)
        (folder / "cluster.yaml").write_text(cluster)
        path = folder / "workload.yaml"
        path.write_text("rlplan_workload: 1\ncluster: cluster.yaml\njobs:\n" + "".join(jobs))
        return solved(path, running, moving)

    return plan_of


def of(names: str, **changes: str) -> tuple[str, ...]:
    return tuple((JOBS | changes)[name] for name in names)


def places(plan: GroupsPlan) -> dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return {
        name: (key, member.rollout.units, member.train.units)
        for key, group in plan.groups.items()
        for name, member in group.jobs.items()
    }


def keeps_all(plan: GroupsPlan) -> bool:
    return all(member.slowdown.keeps for group in plan.groups.values() for member in group.jobs.values())


def usd(plan: GroupsPlan) -> float:
    return plan.predicted.plan.usd_per_hour


def test_jobs_stay_where_they_are_when_others_leave_or_nothing_changes(solve):
    before, same, after = solve(of("abc")), solve(of("abc"), of("abc")), solve(of("ab"), of("abc"))
    assert same.moves == () and places(same) == places(before) and same.predicted == before.predicted
    assert set(places(after)) == {"a", "b"} and keeps_all(after) and usd(after) <= usd(before)


def test_a_new_job_is_placed_and_each_move_is_priced(solve):
    before, after, stays = solve(of("ab")), solve(of("abc"), of("ab")), solve(of("abc"), of("ab"), moving=False)
    assert set(places(after)) == set(places(stays)) == {"a", "b", "c"} and keeps_all(after) and keeps_all(stays)
    assert stays.moves == () and stays.solver.status == "placed" and stays.solver.gap is None
    assert usd(after) <= usd(stays)
    for move in after.moves:
        assert move.from_group == places(before)[move.job][0] and move.to_group == places(after)[move.job][0]
        assert move.price_usd > 0 and move.price_s > 0
    for name in "ab":
        assert places(stays)[name][0] == places(before)[name][0], "they share units with whom they did"


def test_jobs_that_drifted_out_of_bounds_are_moved_whatever_it_costs(solve):
    drifted = of("abc", a=text("a", 200, 190, 1.05), b=text("b", 190, 180, 1.05))
    stays, after = solve(drifted, of("abc"), moving=False), solve(drifted, of("abc"))
    assert not keeps_all(stays) and keeps_all(after)
    assert after.moves and after.predicted.plan.slo_attained == 1.0 > stays.predicted.plan.slo_attained


def test_a_job_moves_for_money_only_if_ahead_of_its_bound(solve):
    free = solve(of("ad"), of("abcd"))
    held = solve(tuple(job + "    ahead_s: 0.0\n" for job in of("ad")), of("abcd"))
    assert held.moves == ()
    assert usd(free) <= usd(held) and bool(free.moves) == (usd(free) < usd(held))


def test_new_jobs_that_do_not_fit_beside_running_ones_say_so(solve):
    tight = of("abcd", c=text("c", 100, 110, 1.01), d=text("d", 100, 110, 1.01))
    with pytest.raises(Infeasible, match=r"--no-moves|pool 'roll'"):
        solve(tight, of("ab"), moving=False, cluster=LAB.replace("nodes: 3", "nodes: 2"))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Two jobs on the same nodes; their re-plans are proposed from what the jobs were measured at."""
    made = Running(tmp_path_factory.mktemp("running"))
    assert len(made.plan.groups) == 1, "both jobs share their nodes"
    return made


GREW = {"b": (1.6, 1.6)}


def test_jobs_that_are_as_planned_stay(running):
    proposal = running.propose({})
    assert proposal.moves == () and all(job.keeps for job in proposal.staying.values())
    assert proposal.measured["a"].rollout_s == pytest.approx(100.0, rel=0.01)
    assert proposal.measured["a"].iterations > 10
    blank = propose_replan(running.workload, running.plan_path, running.out, {}, {})
    assert blank.measured == {} and blank.moves == (), "without journals"
    assert "measured" not in Path(running.plan_path).read_text()


def test_a_job_that_grew_is_given_nodes_of_its_own(running):
    proposal = running.propose(GREW)
    assert not proposal.staying["a"].keeps and proposal.staying["a"].slowdown.mean > 1.15
    assert proposal.measured["b"].train_s > 1.5 * 90
    [move] = proposal.moves
    assert move.needed and move.price_s > 0 and move.price_usd > 0
    assert keeps_all(proposal.plan)
    diff = diff_groups(proposal.running, proposal.plan, old_sha256=sha256_file(running.plan_path))
    assert diff.moves_from_old and diff.count("moved") == 1 and diff.effect("bounds_broken").new == 0
    behind = running.propose(GREW, ahead_s={"a": -50.0, "b": 0.0})
    assert [each.needed for each in behind.moves] == [True], "a bound needs it, however late the job is"


def test_the_plan_says_what_was_measured_and_passes_the_checks(running):
    dump(running.propose(GREW).plan, running.out, 6)
    plan = load_groups_plan(running.out)
    assert set(plan.inputs.measured) == {"a", "b"}

    def rules(checked: GroupsPlan) -> set[str]:
        faults, _ = groups_faults(checked, str(running.out), CheckOptions(datetime.now(UTC), None, None))
        return {fault.rule for fault in faults}

    assert rules(plan) == set()
    blank = plan.model_copy(update={"inputs": plan.inputs.model_copy(update={"measured": {}})})
    assert rules(blank) == {"way-changed"}, "without them its seconds are not the workload's"


def test_jobs_that_ended_are_left_out(running):
    proposal = running.propose(GREW, ended=["b"])
    assert set(proposal.staying) == {"a"} and [*proposal.plan.groups] == [*proposal.running.groups]
    assert [name for group in proposal.plan.groups.values() for name in group.jobs] == ["a"]
    with pytest.raises(InputError, match="none of its jobs runs"):
        running.propose({}, ended=["a", "b"])
