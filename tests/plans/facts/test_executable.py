"""What this executor refuses to run, before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.plans.facts.executable import (
    SAME_IN_BOTH_KINDS,
    UPDATE_VALUES,
    is_for_any,
    not_executable,
    unsupported,
    unsupported_in_groups,
)
from rlplan.plans.facts.model_shape import ModelShape
from rlplan.plans.schema.levers import LoraSpec, UpdateLayout
from rlplan.plans.schema.plan import Plan

from ...golden import cases_in, compact, same_as_golden
from ...group_documents import group, groups_plan, member, pinned
from ..conftest import PLAN_TEXT, plain, with_values

SHAPES = {
    "dense": ModelShape("qwen2", heads=28, kv_heads=4, vocab=152_064, intermediate=18_944, experts=0),
    "sparse": ModelShape("qwen3_moe", heads=32, kv_heads=4, vocab=151_936, intermediate=768, experts=128),
    "adapted": ModelShape("qwen2", 28, 4, 152_064, 18_944, 0, LoraSpec(rank=8, alpha=16)),
    "adapted experts": ModelShape(
        "qwen3_moe", 32, 4, 151_936, 768, 128, LoraSpec(rank=8, alpha=16, target_modules=("q_proj", "up_proj"))
    ),
    "unknown": None,
}
ONE_RANK = {f"job.rounds.{kind}.train.{key}": 1 for kind in ("short", "long") for key in ("dp", "tp")}


def planned(of):
    """The plan with a case's values: of both kinds of round, of long ones, at dotted paths."""
    values = {"short": of.get("both", {}), "long": of.get("both", {}) | of.get("long", {})}
    trains = {f"job.rounds.{kind}.train.{k}": v for kind, own in values.items() for k, v in own.items()}
    return Plan.model_validate(with_values(plain(PLAN_TEXT), ONE_RANK | trains | of.get("plan", {})))


def test_what_cannot_be_run_is_told_with_its_remedy():
    """golden/executable.txt has layouts of trainers, levers and judges for shapes of models; below each what is told.

    Experts are cut as FSDP does: each rank takes the same number, rounded up, and the last ones what is left."""
    file, lines = Path(__file__).parent / "golden" / "executable.txt", []
    for case in cases_in(file):
        shape, plan = SHAPES[case["model"]], planned(case)
        shape = replace(shape, **case["shape"]) if "shape" in case else shape
        lines += [compact(case), f"  for any: {is_for_any(plan, shape)}"]
        found = unsupported(plan, shape, case.get("accelerators"))
        lines += [f"  {'.'.join(map(str, loc))}: {fault}; {remedy}" for loc, fault, remedy in found]
        lines += [f"  note: {note}" for note in not_executable(plan, shape)] if "note" in case else []
    same_as_golden(lines, file)
    assert {*UPDATE_VALUES, *SAME_IN_BOTH_KINDS, "micro_batch_tokens"} == set(UpdateLayout.model_fields)


@pytest.mark.parametrize(
    ("slots", "changes", "why"),
    [(1, {}, None), (2, {}, "a part of one"), (1, {"tail_finished": None}, "older than tail_finished")],
)
def test_only_a_tail_that_keeps_whole_nodes_can_be_moved(slots, changes, why):
    fields = member() | {"tail_from": 0.7, "tail_units": 1, "tail_finished": 0.8} | changes
    fields["rollout"] = pinned("roll", 0) | {"units": [0, 1]}
    made = group({"a": fields}, roll_nodes=2 // slots)
    made["nodes"][0]["slots"] = slots
    made["jobs"]["a"]["train"]["units"] = [2]
    found = [text for loc, text, _ in unsupported_in_groups(groups_plan({"g1": made})) if loc[-1] == "tail_units"]
    assert [why in text for text in found] == [True] * (why is not None)


def test_rollouts_may_be_paused_and_training_may_not():
    made = group({"a": member()})
    for phase in ("rollout", "train"):
        made["jobs"]["a"][phase]["resume_s"] = 2.0
    found = [(where[-2], why) for where, why, _ in unsupported_in_groups(groups_plan({"g1": made}))]
    assert found == [
        ("jobs", "has no plan of its own to execute"),
        ("train", "the executor pauses rollouts, and no training"),
    ]


def test_a_job_runs_by_the_plan_of_any_of_its_points() -> None:
    made = group({"a": member()})
    ways = {phase: made["jobs"]["a"][phase] | {"way": 1} for phase in ("rollout", "train")}
    point = {"name": "1+1-sync", "nodes": [1, 1], "reward_cores": 8, "step_s": 90.0, "usd_per_hour": 50.0}
    made["jobs"]["a"] |= ways

    def ways_refused() -> int:
        found = unsupported_in_groups(groups_plan({"g1": made}))
        return sum(location[-1] == "way" for location, _, _ in found)

    assert ways_refused() == 2
    made["jobs"]["a"]["point"] = point | {"alone": "2+1-exact", "alone_usd_per_hour": 60.0}
    assert ways_refused() == 0
