"""Comparing plans, and changing documents by dotted path: what a point is, what follows a change, what is refused."""

from pathlib import Path

import pytest

from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.compare import Point, compare, points_of
from rlplan.planner.what_if import change
from rlplan.plans.facts.compared_plans import ComparedPoint, cheapest, fastest, short_name
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.library import library_profile

from ..golden import same_as_golden
from .conftest import heavy_trace, laptop, small_job, small_profile, some_inputs
from .solutions import QUICK, SMALL, few_prompt_sets, solution
from .synthetic_run import solved


def points(*vary: str, clusters: list[tuple[str, Cluster]] | None = None) -> list[Point]:
    """The points of some `--vary` on one laptop, or on the clusters given by name."""
    return points_of(clusters or [("laptop", laptop())], small_job(SMALL), small_profile(), vary)


def gpus(name: str = "H100") -> Cluster:
    accelerators = {"kind": "cuda", "name": name, "per_node": 8, "memory_bytes": 80 * 10**9}
    return laptop(accelerators=accelerators, cores=96, host_memory_bytes=10**12)


def gpu_points(*vary: str, clusters: list[tuple[str, Cluster]] | None = None) -> list[Point]:
    """The points of a job that trains Qwen2.5-7B on an H100, or on the clusters given by name."""
    model = {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"}
    job = small_job(SMALL, model=model, search={"tp": [2], "micro_batch_tokens": [2048]})
    return points_of(clusters or [("h100", gpus())], job, library_profile("H100", "Qwen2.5-7B"), vary)


def compared(asked: list[Point], mode: str = "sync", **options) -> list[ComparedPoint]:
    with few_prompt_sets():
        return list(compare(asked, heavy_trace(), some_inputs(), SolveOptions(mode=mode, passes=QUICK, **options)))


def test_every_choice_is_a_point_and_the_last_key_varies_fastest() -> None:
    found = points("cluster.pools.main.nodes=1, 2", "job.rollout.prompts_per_step=4,8,16")
    sizes = [(p.cluster.pools["main"].nodes, p.job.rollout.prompts_per_step) for p in found]
    assert sizes == [(nodes, prompts) for nodes in (1, 2) for prompts in (4, 8, 16)]
    assert found[1].values == {"cluster.pools.main.nodes": 1, "job.rollout.prompts_per_step": 8}
    assert ComparedPoint(found[1].values, None).label == "nodes 1, prompts_per_step 8"


def test_clusters_are_points_of_their_own_and_lists_are_values() -> None:
    found = points("job.search.tp=[1],[1, 2]", clusters=[("a", laptop()), ("b", laptop(nodes=2))])
    values = [(p.values["cluster"], p.job.search.tp) for p in found]
    assert values == [(cluster, tp) for cluster in ("a", "b") for tp in ((1,), (1, 2))]
    assert found[2].cluster.pools["main"].nodes == 2


def test_a_key_has_as_much_of_its_path_as_tells_it_apart() -> None:
    paths = ["cluster.pools.a.nodes", "cluster.pools.b.nodes", "job.search.tp"]
    assert [short_name(path, paths) for path in paths] == ["a.nodes", "b.nodes", "tp"]


def test_points_have_the_plan_that_solve_gives_or_a_reason() -> None:
    asked = points("job.rollout.prompts_per_step=8,64", "job.slo.step_p95_s=null,0.001")
    found = compared(asked, prompts=32)
    assert [point.plan is not None for point in found] == [True, False, False, False]
    assert "slo.step_p95_s" in found[1].reason
    assert found[2].reason == "the data has 32 prompts, and a step trains 64 different ones"
    assert fastest(found) == 0 == cheapest(found)
    plan = solution(small_job(SMALL), mode="sync", prompts=32).plan
    assert found[0].plan.predicted == plan.predicted and found[0].plan.job == plan.job
    first, second = found[0].data(), found[1].data()
    assert first["step_s"] == plan.predicted.step_s.mean and first["reason"] is None
    assert first["speedup"] == pytest.approx(1.0, rel=0.02) and "of the step" in first["binds"]
    nothing = {**dict.fromkeys(first), "notes": [], "assumed": []}
    assert second == {**nothing, "values": found[1].values, "reason": found[1].reason}


def test_points_are_solved_for_the_executor_unless_it_is_said_otherwise() -> None:
    asked = points("job.search.drafts=null,{tokens: [2], acceptance: 0.6}", "job.search.tp=[1]")
    (plain, here), (_, anywhere) = (compared(asked, "exact", for_any=for_any) for for_any in (False, True))
    assert plain.notes == here.notes == anywhere.notes == ()
    assert here.plan.predicted.seconds_per_sample < plain.plan.predicted.seconds_per_sample
    assert (here.plan.solver.for_any, anywhere.plan.solver.for_any) == (False, True)


def test_another_model_is_priced_by_its_own_profile_or_the_nearest() -> None:
    asked = gpu_points("job.model.path=Qwen/Qwen2.5-7B,Qwen/Qwen2.5-14B,Qwen/Qwen3-1.7B,Qwen/Qwen3-8B,my/own")
    own, larger, unshipped, like, unknown = compared(asked)
    assert own.plan and not any("profile" in note for note in own.notes)
    assert larger.plan and larger.plan.predicted.step_s.mean > 1.2 * own.plan.predicted.step_s.mean
    assert "costs of Qwen/Qwen2.5-14B on H100 by the profile that ships (h100.qwen2.5-14b)" in larger.notes
    assert "response lengths are one and the same trace, whatever the model" in larger.notes
    assert unshipped.plan and unshipped.plan.predicted.step_s.mean < own.plan.predicted.step_s.mean
    assert any(note.startswith("costs of Qwen2.5-7B scaled to Qwen/Qwen3-1.7B") for note in unshipped.notes)
    assert like.plan and any(n.startswith("costs of Qwen2.5-7B scaled to Qwen/Qwen3-8B (KV 147 kB") for n in like.notes)
    assert like.plan.predicted.limit.kv_bytes_per_token == 147456 > own.plan.predicted.limit.kv_bytes_per_token
    assert unknown.plan and any("cannot tell from its name whether my/own is Qwen2.5-7B" in n for n in unknown.notes)


def test_a_value_of_the_profile_is_not_lost_where_another_is_taken() -> None:
    (point,) = compared(gpu_points("job.model.path=Qwen/Qwen2.5-14B", "profile.reward.per_sample_s=0.5"))
    assert point.plan is None and "this point takes another profile" in point.reason


def test_a_measured_profile_prices_no_other_model_and_tells_other_sizes() -> None:
    (other,) = compared(points("job.model.path=other"))
    assert other.plan is None and "measured with model.path" in other.reason and "rlplan profile" in other.reason
    same, smaller = compared(points("job.rollout.prompts_per_step=8,4"))
    assert same.plan and not any("measured with" in note for note in same.notes)
    assert any("measured with another rollout.prompts_per_step" in note for note in smaller.notes)


def test_other_gpus_take_the_profile_that_ships_and_unknown_ones_none() -> None:
    clusters = [("h100", gpus()), ("a100", gpus("NVIDIA A100-SXM4-80GB")), ("tpu", gpus("TPU v5"))]
    first, second, third = compared(gpu_points("job.search.tp=[1]", clusters=clusters))
    assert first.plan and not any("ships" in note for note in first.notes)
    assert second.plan and "costs of A100 by the profile that ships (a100.qwen2.5-7b)" in second.notes
    assert first.plan.predicted.step_s.mean < second.plan.predicted.step_s.mean
    assert third.plan is None and "another machine" in third.reason and "TPU v5" in third.reason


# -- what if -----------------------------------------------------------------------------------------------------------

GOLDEN = Path(__file__).parent / "golden" / "refusals.txt"


@pytest.fixture(scope="module")
def documents():
    return solved(mode="exact")


def test_each_document_takes_values_at_any_depth(documents):
    assert change(documents, []) == (documents, [])
    changed, notes = change(
        documents,
        [
            "plan.job.rounds.short.cutoff_tokens=512",
            "profile.rollout.0.step_s=2e-3",
            "cluster.pools.main.nodes=2",
            "job.algorithm.dynamic_sampling=true",
            "job.search.tp=[1]",
        ],
    )
    assert changed.plan.job.rounds.short.cutoff_tokens == 512
    assert changed.profile.rollout[0].step_s == 0.002 and changed.profile.rollout[1] == documents.profile.rollout[1]
    assert changed.cluster.pools["main"].nodes == 2
    assert changed.job.algorithm.dynamic_sampling is True and changed.job.search.tp == (1,)
    assert notes == []
    assert documents.plan.job.rounds.short.cutoff_tokens != 512


@pytest.mark.parametrize("setter", ["job.rollout.samples_per_prompt=8", "plan.job.issue.samples_per_prompt=8"])
def test_p_and_n_follow_wherever_they_stand(setter, documents):
    changed, notes = change(documents, [setter])
    rounds = changed.plan.job.rounds
    assert changed.job.rollout.samples_per_prompt == changed.plan.job.issue.samples_per_prompt == 8
    assert rounds.short.issue.samples == rounds.long.issue.samples == 8
    assert len(notes) == 3 and all("follows: 4 -> 8" in note for note in notes)


def test_over_issue_keeps_its_share_when_p_changes(documents):
    before = documents.plan.job.rounds.short.issue.prompts
    changed, _ = change(documents, ["job.rollout.prompts_per_step=16"])
    assert changed.plan.job.rounds.short.issue.prompts == 2 * before
    own, _ = change(documents, ["job.rollout.prompts_per_step=16", "plan.job.rounds.short.issue.prompts=21"])
    assert own.plan.job.rounds.short.issue.prompts == 21


def test_what_cannot_be_is_refused_in_words_that_name_it(documents):
    """The file holds changes (`> --set` or `> --vary`, whose assignments are parted by spaces) and their refusals."""
    lines = []
    for block in GOLDEN.read_text().split("\n\n"):
        asked = block.splitlines()[0]
        option, _, text = asked.removeprefix("> ").partition(" ")
        with pytest.raises(InputError) as refused:
            if option == "--set":
                change(documents, [text.replace("\\n", "\n")])
            else:
                points_of([("laptop", laptop())], documents.job, documents.profile, text.split(" "))
        told = refused.value.lines()
        assert all(line.startswith(option) for line in told)
        lines += [*([""] if lines else []), asked, *told]
    same_as_golden(lines, GOLDEN)


def test_a_key_that_is_null_in_the_file_can_be_set(documents):
    changed, notes = change(documents, ["plan.job.reward.adaptive_timeout={min_s: 0.5, anchor_factor: 1.5}"])
    assert changed.plan.job.reward.timeout_spec().min_s == 0.5 and notes == []
    with pytest.raises(InputError, match=r"adaptive_timeout.*at least 1"):
        change(documents, ["plan.job.reward.adaptive_timeout={min_s: 0.5, anchor_factor: 0.5}"])
