"""What this executor refuses to run, before anything starts."""

import pytest

from rlplan.plans.facts.executable import (
    NOT_HERE,
    SAME_IN_BOTH_KINDS,
    UPDATE_VALUES,
    left_out,
    not_executable,
    unsupported,
)
from rlplan.plans.schema.job import Search
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
    assert list(unsupported(planned({}, {key: value}))) == []


@pytest.mark.parametrize(("key", "value"), [("pp", 2), ("cp", 4), ("ep", 2), ("recompute", "selective")])
def test_layouts_that_no_trainer_here_has_are_named(key: str, value: object) -> None:
    ((loc, fault, remedy),) = unsupported(planned({}, {key: value}))
    assert loc == ("job", "rounds", "long", "train", key) and str(value).lower() in fault
    assert remedy == NOT_HERE and "write" not in fault, "another layout may not fit memory"


def test_a_note_names_each_reason_once_with_all_keys_that_have_it() -> None:
    assert not_executable(planned({}, {})) == []
    assert not_executable(planned({"recompute": "selective"}, {"recompute": "selective", "pp": 2})) == [
        "job.rounds.short.train.recompute is selective, and the executor has only none or full (so is "
        "job.rounds.long.train.recompute)",
        "job.rounds.long.train.pp is 2, and the executor's trainers have no pipeline",
    ]


@pytest.mark.parametrize("key", ["dp", "tp", "sp"])
def test_trainers_are_laid_out_alike_in_both_kinds_of_round(key: str) -> None:
    assert list(unsupported(planned({key: 2}, {key: 2}))) == []
    ((loc, _, remedy),) = unsupported(planned({key: 2}, {key: 1}))
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
    plan = planned(sizes, sizes)
    assert list(unsupported(plan)) == [], "without the model nothing is known of its heads"
    found = [(loc[2], loc[-1]) for loc, _, _ in unsupported(plan, (32, 4))]
    assert found == ([] if key is None else [("short", key), ("long", key)])


def test_levers_of_a_job_that_are_left_out_are_named_with_the_reason_and_the_option() -> None:
    sizes = {"tp": (1,), "micro_batch_tokens": (64,)}
    assert left_out(Search(**sizes)) == []
    drafts = {"drafts": {"tokens": (2,), "acceptance": 0.5}}
    lines = left_out(Search.model_validate({**sizes, **drafts, "hand_over": (0.5,)}))
    assert [line.split(" ")[0] for line in lines] == ["search.drafts", "search.hand_over"]
    assert all("is left out: the executor" in line and line.endswith("; --for any plans it") for line in lines)


@pytest.mark.parametrize("kind", ["short", "long"])
def test_levers_that_are_only_simulated_yet_are_named(kind: str) -> None:
    plan = planned({}, {})
    assert plan.rounds.long is not None
    round_ = plan.rounds.short if kind == "short" else plan.rounds.long
    rollout = ROLLOUT.model_copy(update={"engines": 2, "drafts": RoundDrafts(tokens=2, up_to_sequences=8)})
    levers = {"rollout": rollout, "hand_over": RoundHandOver(engines=1, at_finished=0.5)}
    rounds = plan.rounds.model_copy(update={kind: round_.model_copy(update=levers)})
    faults = list(unsupported(plan.model_copy(update={"rounds": rounds})))
    assert [loc[3:] for loc, _, _ in faults] == [("rollout", "drafts"), ("hand_over",)]
    assert all(loc[2] == kind and "write null" in remedy for loc, _, remedy in faults)


def test_a_judge_and_synchronous_rewards_are_only_simulated_and_a_timeout_that_adapts_is_run() -> None:
    plan = planned({}, {})
    levers = {"judge": RewardJudge(place="own", instances=1), "synchronous": True}
    faults = list(unsupported(plan.model_copy(update={"reward": plan.reward.model_copy(update=levers)})))
    assert [loc for loc, _, _ in faults] == [("job", "reward", "judge"), ("job", "reward", "synchronous")]
    assert "remove the key" in faults[0][2] and "write false" in faults[1][2]
    adaptive = plan.reward.model_copy(update={"adaptive_timeout": AdaptiveTimeout(min_s=0.5, anchor_factor=1.5)})
    assert list(unsupported(plan.model_copy(update={"reward": adaptive}))) == []
