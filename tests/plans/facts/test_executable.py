"""What this executor refuses to run, before anything starts."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

import rlplan
from rlplan.plans.facts.executable import (
    FAMILIES,
    SAME_IN_BOTH_KINDS,
    UPDATE_VALUES,
    family_fault,
    is_for_any,
    judge_fault,
    not_executable,
    unsupported,
    update_faults,
)
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.schema.sections.layouts import UpdateLayout
from rlplan.plans.schema.sections.levers import AdaptiveTimeout, RewardJudge, RoundDrafts, RoundHandOver
from rlplan.plans.schema.sections.planned_job import PlannedJob
from rlplan.plans.schema.sections.planned_rounds import (
    LongIssue,
    LongRound,
    RoundIssue,
    RoundRollout,
    Rounds,
    ShortRound,
)

ROLLOUT = RoundRollout(pool="main", engines=1, tp=1, max_num_seqs=8)


EXAMPLE = load_plan(Path(rlplan.__file__).parent / "plans" / "examples" / "cpu-demo.yaml")

DENSE = ModelShape("qwen2", heads=28, kv_heads=4, vocab=152_064, intermediate=18_944, experts=0)
SPARSE = ModelShape("qwen3_moe", heads=32, kv_heads=4, vocab=151_936, intermediate=768, experts=128)


def plan_of(job: PlannedJob, for_any: bool = False) -> Plan:
    solver = EXAMPLE.solver.model_copy(update={"for_any": for_any})
    return EXAMPLE.model_copy(update={"job": job, "solver": solver})


def faults_of(model: ModelShape | None, **sizes: int) -> dict[str, str]:
    return dict(update_faults(UpdateLayout(**{"dp": 1, "micro_batch_tokens": 64, **sizes}), model))


def remedies_of(model: ModelShape | None, for_any: bool = False, **layout: object) -> dict[str, str]:
    plan = plan_of(planned(layout, layout), for_any)
    return {loc[-1]: remedy for loc, _, remedy in unsupported(plan, model) if loc[2] == "short"}


def planned(short: dict, long: dict) -> PlannedJob:
    def train(changes: dict) -> UpdateLayout:
        return UpdateLayout(**{"dp": 1, "micro_batch_tokens": 64, **changes})

    rounds = Rounds(
        short=ShortRound(issue=RoundIssue(prompts=5, samples=2), cutoff_tokens=9, rollout=ROLLOUT, train=train(short)),
        long=LongRound(issue=LongIssue(prompts=4, samples=2), rollout=ROLLOUT, train=train(long)),
    )
    fields = {"name": "toy", "bias": {"mode": "exact", "budget": 0.0}, "why": {}, "sync": {"checksum_every": 1}}
    fields["loss"] = {"samples": 8.0, "tokens": 80}
    issue = {"prompts_per_step": 4, "samples_per_prompt": 2}
    return PlannedJob.model_validate(
        {**fields, "issue": issue, "rounds": rounds, "reward": {"workers": 1, "deadline_s": 1.0}}
    )


@pytest.mark.parametrize(("key", "value"), [("micro_batch_tokens", 128), ("recompute", "full"), ("offload", True)])
def test_micro_batches_recomputation_and_offload_may_differ_by_kind_of_round(key: str, value: object) -> None:
    assert list(unsupported(plan_of(planned({}, {key: value})), DENSE)) == []


@pytest.mark.parametrize(("key", "value"), [("pp", 2), ("cp", 4), ("ep", 2), ("recompute", "selective")])
def test_layouts_that_no_trainer_here_has_are_named(key: str, value: object) -> None:
    ((loc, fault, remedy),) = unsupported(plan_of(planned({}, {key: value}), for_any=True), SPARSE)
    assert loc == ("job", "rounds", "long", "train", key) and str(value).lower() in fault
    assert "write" not in remedy and "without --for any" in remedy, "another layout may not fit memory"
    ((_, _, remedy),) = unsupported(plan_of(planned({}, {key: value})), SPARSE)
    value_there = "none or full" if key == "recompute" else "1"
    assert remedy == f"write {value_there}, or solve again", "it was edited by hand"


def test_a_note_names_each_reason_once_with_all_keys_that_have_it() -> None:
    assert not_executable(plan_of(planned({}, {})), DENSE) == []
    edited = planned({"recompute": "selective"}, {"recompute": "selective", "pp": 2})
    assert not_executable(plan_of(edited), DENSE) == [
        "job.rounds.short.train.recompute is selective, and the executor has only none or full (likewise "
        "job.rounds.long.train.recompute)",
        "job.rounds.long.train.pp is 2, and the executor's trainers have no pipeline",
    ]


@pytest.mark.parametrize("key", ["dp", "tp", "sp"])
def test_trainers_are_laid_out_alike_in_both_kinds_of_round(key: str) -> None:
    assert list(unsupported(plan_of(planned({key: 2}, {key: 2})), DENSE)) == []
    ((loc, _, remedy),) = unsupported(plan_of(planned({key: 2}, {key: 1})), DENSE)
    assert loc == ("job", "rounds", "long", "train", key) and "write 2" in remedy


def test_each_key_of_a_layout_is_limited_or_alike_in_both_kinds_or_free_in_each() -> None:
    named = {*UPDATE_VALUES, *SAME_IN_BOTH_KINDS, "micro_batch_tokens"}
    assert named == set(UpdateLayout.model_fields)


@pytest.mark.parametrize(
    ("sizes", "key"),
    [({"tp": 4}, None), ({"tp": 2, "sp": 2}, None), ({"tp": 8}, "tp"), ({"sp": 8}, "sp"), ({"tp": 4, "sp": 2}, "sp")],
)
def test_tensor_and_sequence_ranks_share_attention_and_key_value_heads_evenly(
    sizes: dict[str, int], key: str | None
) -> None:
    plan = plan_of(planned(sizes, sizes))
    assert list(unsupported(plan, None)) == [], "without the model nothing is known of its heads"
    found = [(loc[2], loc[-1]) for loc, _, _ in unsupported(plan, DENSE)]
    assert found == ([] if key is None else [("short", key), ("long", key)])


def test_tensor_ranks_share_vocabulary_and_feed_forward_layers_evenly() -> None:
    assert faults_of(DENSE, tp=4) == {}
    odd = replace(DENSE, vocab=151_937)
    assert faults_of(odd, tp=2) == {"tp": "is 2, which does not divide a vocabulary of 151937"}
    assert faults_of(odd, sp=2) == {}
    narrow = replace(DENSE, intermediate=18_945)
    assert faults_of(narrow, tp=2) == {"tp": "is 2, which does not divide an intermediate width of 18945"}
    assert faults_of(replace(DENSE, vocab=None, intermediate=None), tp=4) == {}, "unknown"


def test_a_mixture_of_experts_is_sharded_by_dp_and_sp_and_not_by_tp() -> None:
    assert faults_of(SPARSE, dp=16, sp=4) == {}
    assert list(faults_of(SPARSE, tp=2)) == ["tp"] and "distributed checkpoints" in faults_of(SPARSE, tp=2)["tp"]
    assert remedies_of(SPARSE, tp=2) == {"tp": "write 1, or solve again"}


@pytest.mark.parametrize(
    ("sizes", "shards"),
    [({"dp": 96}, 96), ({"dp": 24, "sp": 4}, 96), ({"dp": 128}, None), ({"dp": 43}, None), ({"dp": 129}, 129)],
)
def test_each_rank_holds_some_of_the_experts(sizes: dict[str, int], shards: int | None) -> None:
    """As FSDP cuts 128 experts: each rank takes the same number, rounded up, and the last ones what is left."""
    each = math.ceil(128 / math.prod(sizes.values()))
    without = [rank for rank in range(math.prod(sizes.values())) if rank * each >= 128]
    assert bool(without) == (shards is not None)
    faults = faults_of(SPARSE, **sizes)
    assert list(faults) == ([] if shards is None else ["dp"])
    nearest = {96: 64 // sizes.get("sp", 1), 129: 128}
    assert shards is None or remedies_of(SPARSE, **sizes)["dp"] == f"write {nearest[shards]}, or solve again"
    assert shards is None or f"dp x sp {shards} leaves ranks without any of 128 experts" in faults["dp"]


def test_a_dense_model_has_no_experts_to_share_out() -> None:
    assert faults_of(DENSE, ep=2) == {"ep": "is 2, and the model has no experts"}
    assert "shares experts out" in faults_of(SPARSE, ep=2)["ep"]
    assert "shares experts out" in faults_of(None, ep=2)["ep"]


@pytest.mark.parametrize(
    ("layout", "remedy"),
    [({"sp": 3}, "write 1, 2 or 4"), ({"tp": 16}, "write 1, 2 or 4"), ({"tp": 2, "sp": 4}, "write 1 or 2")],
)
def test_an_edited_size_is_answered_with_the_sizes_that_divide_the_model(layout: dict, remedy: str) -> None:
    ((_, found),) = remedies_of(DENSE, **layout).items()
    assert found == f"{remedy}, or solve again"
    ((_, found),) = remedies_of(DENSE, for_any=True, **layout).items()
    assert found.startswith("solve again without --for any")


def test_a_model_of_another_family_is_refused_with_the_families_that_are_trained() -> None:
    assert [family_fault(replace(DENSE, family=family)) for family in (*FAMILIES, None)] == [None] * (1 + len(FAMILIES))
    other = replace(SPARSE, family="mixtral")
    plan = plan_of(planned({}, {}))
    ((loc, fault, _),) = unsupported(plan, other)
    assert loc == ("inputs", "job") and fault == family_fault(other)
    assert fault.startswith("the model is of the family mixtral, and ") and all(name in fault for name in FAMILIES)
    assert (is_for_any(plan, other), is_for_any(plan, SPARSE)) == (True, False), "it was planned for others"


@pytest.mark.parametrize("kind", ["short", "long"])
def test_drafts_and_a_hand_over_run(kind: str) -> None:
    plan = planned({}, {})
    assert plan.rounds.long is not None
    round_ = plan.rounds.short if kind == "short" else plan.rounds.long
    rollout = ROLLOUT.model_copy(update={"engines": 2, "drafts": RoundDrafts(tokens=2, up_to_sequences=8)})
    levers = {"rollout": rollout, "hand_over": RoundHandOver(engines=1, at_finished=0.5)}
    rounds = plan.rounds.model_copy(update={kind: round_.model_copy(update=levers)})
    assert list(unsupported(plan_of(plan.model_copy(update={"rounds": rounds})), None)) == []


def test_synchronous_rewards_are_only_simulated_and_a_judge_and_a_timeout_that_adapts_are_run() -> None:
    plan = planned({}, {})
    levers = {"judge": RewardJudge(place="own", instances=1), "synchronous": True}
    faults = list(unsupported(plan_of(plan.model_copy(update={"reward": plan.reward.model_copy(update=levers)})), None))
    assert [loc for loc, _, _ in faults] == [("job", "reward", "synchronous")]
    assert "write false" in faults[0][2]
    adaptive = plan.reward.model_copy(update={"adaptive_timeout": AdaptiveTimeout(min_s=0.5, anchor_factor=1.5)})
    assert list(unsupported(plan_of(plan.model_copy(update={"reward": adaptive})), None)) == []


@pytest.mark.parametrize(
    ("place", "kind", "apart", "runs"),
    [
        ("own", "cpu", False, True), ("beside", "cpu", False, True), ("own", "cuda", True, True),
        ("own", "cuda", False, False), ("beside", "cuda", True, False),
    ],
)  # fmt: skip
def test_a_judge_on_gpus_runs_where_nobody_else_has_its_memory(place: str, kind: str, apart: bool, runs: bool) -> None:
    judge = RewardJudge.model_validate({"place": place, "instances": 1})
    assert (judge_fault(judge, kind, apart) is None) == runs
