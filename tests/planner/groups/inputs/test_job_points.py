"""Jobs of a workload that are planned on several numbers of nodes: their plans as points, and which are planned."""

from pathlib import Path

import pytest

from rlplan.api import plan_points
from rlplan.api.plan_points import plan_near_cheapest, plan_neighbours
from rlplan.planner.groups.choose.group_program import solve_groups
from rlplan.planner.groups.inputs.job_points import alone, points_there, tail_share
from rlplan.planner.groups.inputs.workload_jobs import problem_of
from rlplan.planner.groups.solve_workload import solve_workload
from rlplan.plans.facts.digest import job_decisions, job_predictions
from rlplan.plans.schema.groups_plan import GroupsInputs
from rlplan.plans.schema.plan import InputFile, Plan, load_plan
from rlplan.plans.schema.workload import Workload, load_workload
from rlplan.plans.yaml.errors import Infeasible, InputError
from rlplan.plans.yaml.yaml_io import dump, loads, sha256_file

from ....cli.command_line import rlplan

EXAMPLES = Path(__file__).parents[4] / "plans" / "examples"
POOL = (
    "{nodes: 3, accelerators: {kind: cuda, name: H100, per_node: 8, memory_bytes: 80000000000}, cores: 112, "
    "host_memory_bytes: 2000000000000, usd_per_node_hour: 20.4}"
)
WORKLOAD = """\
rlplan_workload: 1
cluster: cluster.yaml
jobs:
  a: {slo: 2.0, source: {job: a/job.yaml, lengths: a/lengths.jsonl}}
  b: {slo: 2.0, source: {job: a/job.yaml, lengths: a/lengths.jsonl}}
"""


def example() -> Plan:
    return load_plan(EXAMPLES / "math-32b.yaml")


@pytest.fixture
def workload(tmp_path):
    """A workload of two jobs that are to be planned on pools of three nodes each."""
    (tmp_path / "a").mkdir()
    for name in ("job.yaml", "profile.yaml", "lengths.jsonl"):
        text = (EXAMPLES / "math-32b" / name).read_text()
        placement = "placement: {train_pool: train, streams: false}\n" if name == "job.yaml" else ""
        (tmp_path / "a" / name).write_text(text + placement)
    (tmp_path / "cluster.yaml").write_text(f"rlplan_cluster: 1\nname: two\npools:\n  roll: {POOL}\n  train: {POOL}\n")
    (tmp_path / "workload.yaml").write_text(WORKLOAD)
    return tmp_path / "workload.yaml"


@pytest.fixture
def solves(monkeypatch):
    """In the place of solves of a minute, plans whose rollout takes 240 s over its nodes, a sync plan's 1.3 times as
    much, and whose training takes 60 s: (nodes, mode) of each that was asked for."""
    asked = []

    def solve(job_path, *, mode, nodes, out, cluster, **_):
        rollout_nodes, train_nodes = nodes.values()
        asked.append((rollout_nodes, train_nodes, mode))
        if (rollout_nodes, train_nodes) == (1, 1):
            raise Infeasible("no room")
        plan, file = example(), lambda path: InputFile(path=f"../../{path}", sha256=sha256_file(out.parents[2] / path))
        rollout_s = 240.0 / rollout_nodes * (1.3 if mode == "sync" else 1.0)
        step_s, predicted = rollout_s + 60.0, plan.predicted
        short = predicted.rounds.short.model_copy(
            update={
                "share": 1.0,
                "step_s": predicted.step_s.model_copy(update={"mean": step_s}),
                "rollout_s": predicted.step_s.model_copy(
                    update={"mean": rollout_s, "p50": rollout_s, "p95": rollout_s}
                ),
            }
        )
        long = None if mode == "sync" else predicted.rounds.long.model_copy(update={"share": 0.0})
        count = rollout_nodes + train_nodes
        job = plan.job.model_dump(mode="json") | {"placement": {"train_pool": "train", "streams": False}}
        job["bias"]["mode"] = mode or "exact"
        if mode == "sync":
            job["rounds"]["long"] = None
            job["rounds"]["short"] |= {"cutoff_tokens": None, "issue": {"prompts": 128, "samples": 8}}
        for kind in job["rounds"].values():
            if kind:
                kind["rollout"]["pool"] = "roll"
        made = plan.model_copy(
            update={
                "job": type(plan.job).model_validate(job),
                "inputs": plan.inputs.model_copy(
                    update={
                        "cluster": file("cluster.yaml"),
                        "job": file("a/job.yaml"),
                        "profile": plan.inputs.profile.model_copy(update=dict(file("a/profile.yaml"))),
                        "lengths": plan.inputs.lengths.model_copy(update={"path": "../../a/lengths.jsonl"}),
                        "solver_read": None,
                    }
                ),
                "predicted": predicted.model_copy(
                    update={
                        "rounds": predicted.rounds.model_copy(update={"short": short, "long": long}),
                        "nodes": count,
                        "train_nodes": train_nodes,
                        "seconds_per_sample": step_s / 1024,
                        "usd_per_1k_samples": count * 20.4 * step_s / 3686.4,
                    }
                ),
            }
        )
        made = loads(dump(made), Plan)
        digests = {"decisions_sha256": job_decisions(made.job), "predicted_sha256": job_predictions(made.predicted)}
        out.write_text(dump(made.model_copy(update=digests)))
        return loads(out.read_text(), Plan)

    monkeypatch.setattr(plan_points, "solve", solve)
    return asked


def planned(path, text=WORKLOAD):
    path.write_text(text)
    document, cluster = load_workload(path)
    plan_near_cheapest(path, document, cluster, lambda text: None)
    return document, cluster


def test_points_near_the_cheapest_are_planned_once(workload, solves) -> None:
    planned(workload)
    names = [point.name for point in points_there(workload, "a")]
    # 1+1 has no plan, so its neighbours are tried; a sample of 1+2 costs 1.7 times that of 2+1.
    assert {"2+1-exact", "2+1-sync", "3+1-exact"} <= set(names)
    assert "1+3-exact" not in names
    before = len(solves)
    planned(workload)
    assert {asked[:2] for asked in solves[before:]} == {(1, 1)}, "what is planned is read, what failed is tried again"


def test_a_changed_job_makes_its_points_stale(workload, solves) -> None:
    planned(workload)
    assert points_there(workload, "a")
    job = workload.parent / "a" / "job.yaml"
    job.write_text(job.read_text().replace("learning_rate: 1.0e-06", "learning_rate: 2.0e-06"))
    assert points_there(workload, "a") == []


def test_a_point_that_was_edited_and_not_refreshed_is_none(workload, solves) -> None:
    planned(workload)
    point = points_there(workload, "a")[0]
    point.path.write_text(point.path.read_text().replace("cutoff_tokens: 4096", "cutoff_tokens: 2048"))
    assert point.name not in [other.name for other in points_there(workload, "a")]


def test_the_reference_is_the_cheapest_point_or_the_stated_nodes(workload, solves) -> None:
    planned(workload)
    points = points_there(workload, "a")
    assert alone(points, None).usd_per_1k_samples == min(point.usd_per_1k_samples for point in points)
    assert alone(points, (2, 1)).name == "2+1-exact"
    document, cluster = planned(workload, WORKLOAD.replace("lengths.jsonl}", "lengths.jsonl, nodes: [2, 2]}"))
    job = problem_of(document, workload, cluster).jobs["a"]
    assert job.points[0].name == "2+2-exact"
    assert job.solo_s == pytest.approx(180.0)


def test_a_group_plan_names_the_plan_of_each_chosen_point(workload, solves, tmp_path) -> None:
    document, cluster = planned(workload)
    problem = problem_of(document, workload, cluster)
    file = InputFile(path="workload.yaml", sha256="a" * 64)
    sources = {name: InputFile(path=f"workload.points/{name}/x.yaml", sha256="a" * 64) for name in ("a", "b")}
    plan = solve_workload(document, problem, GroupsInputs(workload=file, cluster=file, sources=sources, previous=None))
    for group in plan.groups.values():
        for name, member in group.jobs.items():
            path = tmp_path / plan.inputs.sources[name].path
            assert path.stem == member.point.name
            assert member.rollout.way == member.train.way, "the ways of one plan go together"
            assert (len(member.rollout.units), len(member.train.units)) == member.point.nodes
            assert sha256_file(path) == plan.inputs.sources[name].sha256
    assert all("alone" in group.why["points"] for group in plan.groups.values() if len(group.jobs) > 1)
    shared = any(len(group.jobs) > 1 for group in plan.groups.values())
    assert plan_neighbours(workload, document, cluster, plan, lambda text: None) <= shared


def test_jobs_that_fit_only_as_one_group_are_not_refused(workload, solves) -> None:
    document, cluster = planned(
        workload, WORKLOAD + "  c: {slo: 2.0, source: {job: a/job.yaml, lengths: a/lengths.jsonl}}\n"
    )
    problem = problem_of(document, workload, cluster)
    (group,) = solve_groups(list(problem.jobs.values()), problem.node_types, problem.rules).groups
    assert len(group.pins) == 3 and group.nodes.count("roll") == 3


def test_a_job_that_no_nodes_can_run_is_refused_with_the_reason(workload, monkeypatch) -> None:
    def refuse(*_: object, nodes: dict[str, int], **__: object) -> None:
        raise Infeasible(f"no room on {nodes['roll']} nodes")

    monkeypatch.setattr(plan_points, "solve", refuse)
    with pytest.raises(Infeasible, match=r"job a has no plan .* on the most: no room on 3 nodes"):
        planned(workload)


def test_the_tail_is_what_runs_after_most_samples_have_ended() -> None:
    plan = example()
    curve = tuple(1.0 - n / 20 for n in range(21))
    rounds = plan.predicted.rounds
    kinds = {name: getattr(rounds, name).model_copy(update={"running": curve}) for name in ("short", "long")}
    even = plan.model_copy(
        update={"predicted": plan.predicted.model_copy(update={"rounds": rounds.model_copy(update=kinds)})}
    )
    waits = sum(kind.share * kind.reward_exposed_s.mean for kind in kinds.values())
    decodes = sum(kind.share * kind.rollout_s.mean for kind in kinds.values())
    assert tail_share(even, 0.8) == pytest.approx((0.2 * decodes + waits) / (decodes + waits))
    assert tail_share(plan, 0.7) >= tail_share(plan, 0.8) >= tail_share(plan, 0.95)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{job: a/job.yaml, plan: p.yaml}", "write one of the three"),
        ("{plan: p.yaml, nodes: [1, 1]}", "is of a job that is planned here"),
        ("{run: r}", "write the pool of each"),
    ],
)
def test_a_source_that_cannot_be_is_refused(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        loads(WORKLOAD.replace("{job: a/job.yaml, lengths: a/lengths.jsonl}", source), Workload)


def test_a_job_without_nodes_of_its_own_to_train_is_refused(workload) -> None:
    job = workload.parent / "a" / "job.yaml"
    job.write_text(job.read_text().replace("placement: {train_pool: train, streams: false}\n", ""))
    with pytest.raises(InputError, match="streams: false"):
        planned(workload)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ("a/job.yaml", "source.lengths: missing, and the profile holds none"),
        ("a/job.yaml, lengths: math-61k", "no such file: 'math-61k'.*math-16k"),
        ("a/job.yaml, lengths: math-16k, nodes: [4, 1]", "4 nodes of pool 'roll', which has 3"),
    ],
)
def test_faults_of_any_source_are_told_before_a_job_is_planned(workload, solves, now: str, message: str) -> None:
    first, second = WORKLOAD.rsplit("a/job.yaml, lengths: a/lengths.jsonl", 1)
    with pytest.raises(InputError, match=message):
        planned(workload, first + now + second)
    assert solves == []


def test_a_workload_that_is_not_planned_yet_passes_check(workload) -> None:
    assert rlplan("check", workload).returncode == 0
    document, cluster = load_workload(workload)
    with pytest.raises(InputError, match="is not planned yet"):
        problem_of(document, workload, cluster)
