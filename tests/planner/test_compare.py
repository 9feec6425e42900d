"""Comparing plans: which points a command line means, and what a point without a plan says."""

from __future__ import annotations

from typing import Any

import pytest

from rlplan.planner.compare import MAX_POINTS, Point, compare, points_of
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.facts.compared_plans import ComparedPoint, cheapest, fastest, short_name
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.library import library_profile

SMALL = {"prompts_per_step": 8, "samples_per_prompt": 4}


@pytest.fixture
def points(make_cluster, make_job, make_profile):
    """The points of some `--vary` on one laptop, or on the clusters given by name."""

    def points(*vary: str, clusters: list[tuple[str, Cluster]] | None = None) -> list[Point]:
        return points_of(clusters or [("laptop", make_cluster())], make_job(SMALL), make_profile(), vary)

    return points


def test_every_choice_of_the_values_is_a_point_and_the_last_key_varies_fastest(points) -> None:
    found = points("cluster.pools.main.nodes=1, 2", "job.rollout.prompts_per_step=4,8,16")
    sizes = [(p.cluster.pools["main"].nodes, p.job.rollout.prompts_per_step) for p in found]
    assert sizes == [(nodes, prompts) for nodes in (1, 2) for prompts in (4, 8, 16)]
    assert found[1].values == {"cluster.pools.main.nodes": 1, "job.rollout.prompts_per_step": 8}
    assert ComparedPoint(found[1].values, None).label == "nodes 1, prompts_per_step 8"


def test_clusters_are_points_of_their_own_and_lists_are_values(points, make_cluster) -> None:
    found = points("job.search.tp=[1],[1, 2]", clusters=[("a", make_cluster()), ("b", make_cluster(nodes=2))])
    assert [(p.values["cluster"], p.job.search.tp) for p in found] == [
        ("a", (1,)), ("a", (1, 2)), ("b", (1,)), ("b", (1, 2)),
    ]  # fmt: skip
    assert found[2].cluster.pools["main"].nodes == 2


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        (["cluster.pools.main.nodes"], "write PATH=VALUE, as in cluster.pools.main.nodes=1,2,4"),
        (["cluster.pools.main.nodes="], "write the values after the '='"),
        (["cluster.pools.man.nodes=1,2"], "did you mean cluster.pools.main.nodes"),
        (["cluster.pools.main.nodes=0,1"], "--vary cluster.pools.main.nodes=0: pools.main.nodes: must be at least 1"),
        (["plan.job.name=a,b"], "there is no plan.job.name"),
        (["cluster.pools.main.nodes=1,1"], "a value is named twice"),
        (["cluster.pools.main.nodes=1,2", "cluster.pools.main.nodes=3"], "varied twice"),
        ([f"cluster.pools.main.nodes={','.join(map(str, range(1, MAX_POINTS + 2)))}"], f"at most {MAX_POINTS}"),
    ],
)
def test_what_cannot_be_varied_is_refused_with_the_option(vary: list[str], words: str, points) -> None:
    with pytest.raises(InputError) as caught:
        points(*vary)
    assert words in str(caught.value) and str(caught.value).startswith("--vary")


def test_every_value_that_cannot_stand_is_told_once_with_all_others(points) -> None:
    with pytest.raises(InputError) as caught:
        points("cluster.pools.main.nodes=0,-1,two,3.5", "job.rollout.prompts_per_step=8,0,16")
    lines = caught.value.lines()
    nodes = [f"--vary cluster.pools.main.nodes={value}" for value in ("0", "-1", "two", "3.5")]
    assert sorted(line.split(": ")[0] for line in lines) == sorted([*nodes, "--vary job.rollout.prompts_per_step=0"])
    with pytest.raises(InputError) as caught:
        points("cluster.pools.main.nodes=", "cluster.pools.man.nodes", "job.name=[")
    assert len(caught.value.lines()) == 3


def test_a_key_is_called_by_as_much_of_its_path_as_tells_it_from_the_others() -> None:
    paths = ["cluster.pools.a.nodes", "cluster.pools.b.nodes", "job.search.tp"]
    assert [short_name(path, paths) for path in paths] == ["a.nodes", "b.nodes", "tp"]


def test_points_without_a_plan_carry_the_reason_and_the_others_are_ranked(points, make_trace, inputs) -> None:
    asked = points("job.rollout.prompts_per_step=8,64", "job.slo.step_p95_s=null,0.001")
    found = list(compare(asked, make_trace(), inputs, SolveOptions(mode="sync", prompts=32)))
    assert [point.plan is not None for point in found] == [True, False, False, False]
    assert "0.001" in found[1].reason or "p95" in found[1].reason
    assert found[2].reason == "the data has 32 prompts, and a step trains 64 different ones"
    assert fastest(found) == 0 == cheapest(found)
    data: list[dict[str, Any]] = [point.data() for point in found]
    plan = found[0].plan
    assert plan is not None and data[0]["step_s"] == plan.predicted.step_s.mean and data[0]["reason"] is None
    assert data[0]["speedup"] == pytest.approx(1.0, rel=0.02) and "of the step" in data[0]["binds"]
    assert data[1]["step_s"] is None and data[1]["reason"] == found[1].reason
    assert set(data[0]) == set(data[1])


def test_a_point_is_what_solve_gives_for_its_documents(points, make_trace, inputs) -> None:
    from rlplan.planner.solve import solve

    asked = points("job.rollout.prompts_per_step=8")[0]
    plan = solve(
        asked.cluster, asked.job, asked.profile, make_trace(), inputs, SolveOptions(mode="sync", prompts=100)
    ).plan
    found = next(iter(compare([asked], make_trace(), inputs, SolveOptions(mode="sync", prompts=100)))).plan
    assert found is not None and found.predicted == plan.predicted and found.job == plan.job


def test_points_are_solved_for_the_executor_unless_it_is_said_otherwise(points, make_trace, inputs) -> None:
    asked = points("job.search.drafts=null,{tokens: [2], acceptance: 0.6}")
    (plain, here), (_, anywhere) = (
        compare(asked, make_trace(), inputs, SolveOptions(mode="exact", for_any=for_any)) for for_any in (False, True)
    )
    assert plain.notes == here.notes == anywhere.notes == ()
    assert plain.plan is not None and here.plan is not None and anywhere.plan is not None
    assert here.plan.predicted.seconds_per_sample < plain.plan.predicted.seconds_per_sample
    assert (here.plan.solver.for_any, anywhere.plan.solver.for_any) == (False, True)


@pytest.fixture
def models(make_cluster, make_job):
    """`models(paths)`: the points of an H100 whose job trains Qwen2.5-7B, with other models in its place."""
    accelerators = {"kind": "cuda", "name": "H100", "per_node": 8, "memory_bytes": 80 * 10**9}
    cluster = make_cluster(accelerators=accelerators, cores=96, host_memory_bytes=10**12)
    model = {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"}
    job = make_job(SMALL, model=model, search={"tp": [2, 4], "micro_batch_tokens": [2048]})

    def models(*vary: str) -> list[Point]:
        return points_of([("h100", cluster)], job, library_profile("H100", "Qwen2.5-7B"), vary)

    return models


def test_another_model_is_priced_by_the_profile_of_that_model_or_not_at_all(models, make_trace, inputs) -> None:
    asked = models("job.model.path=Qwen/Qwen2.5-7B,Qwen/Qwen2.5-14B,mistralai/Mixtral-8x7B,Qwen/Qwen3-8B,my/own")
    own, larger, unshipped, like, unknown = compare(asked, make_trace(), inputs, SolveOptions(mode="sync"))
    assert own.plan and not any("profile" in note for note in own.notes)
    assert larger.plan and larger.plan.predicted.step_s.mean > 1.2 * own.plan.predicted.step_s.mean
    assert "costs of Qwen/Qwen2.5-14B on H100 by the profile that ships (h100.qwen2.5-14b)" in larger.notes
    assert "response lengths are one and the same trace, whatever the model" in larger.notes
    assert unshipped.plan is None and "no profile of mistralai/Mixtral-8x7B on H100 ships" in unshipped.reason
    assert like.plan and "Qwen/Qwen3-8B is priced as Qwen2.5-7B, whose profile this is" in like.notes
    assert unknown.plan and any("cannot tell from its name whether my/own is Qwen2.5-7B" in n for n in unknown.notes)


def test_a_value_of_the_profile_is_not_lost_where_another_profile_is_taken(models, make_trace, inputs) -> None:
    asked = models("job.model.path=Qwen/Qwen2.5-14B", "profile.reward.per_sample_s=0.5")
    (point,) = compare(asked, make_trace(), inputs, SolveOptions(mode="sync"))
    assert point.plan is None and "this point takes another profile" in point.reason


def test_a_measured_profile_prices_no_other_model_and_says_what_else_is_not_as_it_was(
    points, make_trace, inputs
) -> None:
    asked = points("job.model.path=model,other", "job.rollout.prompts_per_step=8,4")
    found = list(compare(asked, make_trace(), inputs, SolveOptions(mode="sync", prompts=100)))
    of_base = [point for point in found if point.values["job.model.path"] == asked[0].base.model.path]
    assert [p.plan is not None for p in of_base] == [True] * len(of_base)
    reasons = [point.reason for point in found if point not in of_base]
    assert reasons and all("measured with model.path" in reason and "rlplan profile" in reason for reason in reasons)
    same, smaller = compare(points("job.rollout.prompts_per_step=8,4"), make_trace(), inputs, SolveOptions(mode="sync"))
    assert not any("measured with" in note for note in same.notes)
    assert any("measured with another rollout.prompts_per_step" in note for note in smaller.notes)


def test_a_cluster_of_other_gpus_takes_the_profile_that_ships_and_one_of_unknown_gpus_none(
    make_cluster, make_job, make_trace, inputs
) -> None:
    def gpus(name: str) -> Cluster:
        accelerators = {"kind": "cuda", "name": name, "per_node": 8, "memory_bytes": 80 * 10**9}
        return make_cluster(accelerators=accelerators, cores=96, host_memory_bytes=10**12)

    model = {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"}
    job = make_job(SMALL, model=model, search={"tp": [1], "micro_batch_tokens": [2048]})
    clusters = [("h100", gpus("H100")), ("a100", gpus("NVIDIA A100-SXM4-80GB")), ("tpu", gpus("TPU v5"))]
    asked = points_of(clusters, job, library_profile("H100", "Qwen2.5-7B"), [])
    found = list(compare(asked, make_trace(), inputs, SolveOptions(mode="sync")))
    first, second, third = found
    assert first.plan and not any("ships" in note for note in first.notes)
    assert second.plan and "costs of A100 by the profile that ships (a100.qwen2.5-7b)" in second.notes
    assert first.plan.predicted.step_s.mean < second.plan.predicted.step_s.mean
    assert third.plan is None and "another machine" in third.reason and "TPU v5" in third.reason
