"""Solving again from a running plan: who moves, for how much, and who stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlplan.benchmarks.first_hour.sample_folder import LAB
from rlplan.planner.groups.inputs.workload_jobs import problem_of
from rlplan.planner.groups.solve_workload import solve_workload
from rlplan.plans.schema.groups_plan import GroupsInputs, GroupsPlan
from rlplan.plans.schema.sections.origin import InputFile
from rlplan.plans.schema.workload import load_workload
from rlplan.plans.yaml.errors import Infeasible
from rlplan.plans.yaml.yaml_io import dump

ANY = InputFile(path="x.yaml", sha256="a" * 64)
INPUTS = GroupsInputs(workload=ANY, cluster=ANY, sources={}, previous=ANY)
HEAD = "rlplan_workload: 1\ncluster: cluster.yaml\njobs:\n"


def job(name: str, rollout_s: float, train_s: float, slo: float = 1.5) -> str:
    return f"""\
  {name}:
    slo: {slo}
    model: Qwen2.5-7B
    phases:
      rollout: {{pool: roll, mean_s: {rollout_s}}}
      train: {{pool: train, tp: 2, mean_s: {train_s}}}
"""


JOBS = {"a": job("a", 200.0, 60.0), "b": job("b", 190.0, 70.0), "c": job("c", 100.0, 110.0)}


class Site:
    """A folder with a cluster, in which workloads are solved one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "cluster.yaml").write_text(LAB.replace("nodes: 3", "nodes: 6").replace("nodes: 2", "nodes: 6"))

    def solve(self, jobs: dict[str, str], previous: GroupsPlan | None = None, moving: bool = True) -> GroupsPlan:
        path = self.folder / "workload.yaml"
        path.write_text(HEAD + "".join(jobs[name] for name in sorted(jobs)))
        workload, cluster = load_workload(path)
        running = None
        if previous is not None:
            running = (previous, self.folder / "groups.yaml")
            dump(*running)
        return solve_workload(workload, problem_of(workload, path, cluster), INPUTS, running, moving)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def places(plan: GroupsPlan) -> dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return {
        name: (key, member.rollout.units, member.train.units)
        for key, group in plan.groups.items()
        for name, member in group.jobs.items()
    }


def keeps_all(plan: GroupsPlan) -> bool:
    return all(member.slowdown.keeps for group in plan.groups.values() for member in group.jobs.values())


def test_an_unchanged_workload_stays_where_it_is(site):
    before = site.solve(JOBS)
    after = site.solve(JOBS, before)
    assert after.moves == () and places(after) == places(before)
    assert after.predicted == before.predicted


def test_a_job_that_left_takes_its_nodes_with_it_and_the_others_keep_their_bounds(site):
    before = site.solve(JOBS)
    after = site.solve({name: JOBS[name] for name in "ab"}, before)
    assert set(places(after)) == {"a", "b"} and keeps_all(after)
    assert after.predicted.plan.usd_per_hour <= before.predicted.plan.usd_per_hour


def test_a_new_job_is_placed_and_every_move_names_where_from_where_to_and_its_price(site):
    before = site.solve({name: JOBS[name] for name in "ab"})
    after = site.solve(JOBS, before)
    stays = site.solve(JOBS, before, moving=False)
    assert set(places(after)) == set(places(stays)) == {"a", "b", "c"} and keeps_all(after) and keeps_all(stays)
    assert stays.moves == () and stays.solver.status == "placed" and stays.solver.gap is None
    assert after.predicted.plan.usd_per_hour <= stays.predicted.plan.usd_per_hour
    for move in after.moves:
        assert move.job in places(before)
        assert move.from_group == places(before)[move.job][0] and move.to_group == places(after)[move.job][0]
        assert move.price_usd > 0 and move.price_s > 0


def test_without_moves_running_jobs_share_units_with_whom_they_did(site):
    before = site.solve({name: JOBS[name] for name in "ab"})
    after = site.solve(JOBS, before, moving=False)
    for name in "ab":
        assert places(after)[name][0] == places(before)[name][0]


def test_jobs_that_drifted_until_a_bound_breaks_are_moved_whatever_it_costs(site):
    before = site.solve(JOBS)
    drifted = {**JOBS, "a": job("a", 200.0, 190.0, 1.05), "b": job("b", 190.0, 180.0, 1.05)}
    stays = site.solve(drifted, before, moving=False)
    after = site.solve(drifted, before)
    assert keeps_all(after)
    if not keeps_all(stays):
        assert after.moves
    assert after.predicted.plan.slo_attained == 1.0


def test_a_job_moves_for_money_only_if_it_is_far_enough_ahead_of_its_bound(site):
    four = {**JOBS, "d": job("d", 90.0, 120.0)}
    before = site.solve(four)
    left = {name: four[name] for name in "ad"}
    free = site.solve(left, before)
    late = {name: text + "    ahead_s: 0.0\n" for name, text in left.items()}
    held = site.solve(late, before)
    assert held.moves == ()
    assert free.predicted.plan.usd_per_hour <= held.predicted.plan.usd_per_hour
    assert bool(free.moves) == (free.predicted.plan.usd_per_hour < held.predicted.plan.usd_per_hour)


def test_new_jobs_that_do_not_fit_beside_running_ones_say_so_and_that_moves_may_help(site):
    (site.folder / "cluster.yaml").write_text(LAB.replace("nodes: 3", "nodes: 2"))
    before = site.solve({name: JOBS[name] for name in "ab"})
    tight = {**JOBS, "c": job("c", 100.0, 110.0, 1.01), "d": job("d", 100.0, 110.0, 1.01)}
    with pytest.raises(Infeasible, match=r"--no-moves|pool 'roll'"):
        site.solve(tight, before, moving=False)
