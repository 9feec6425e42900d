"""Pure parts of a step: which samples it takes, what its metrics are, which rows a rank holds, when it is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlplan.executor.trainer.losses import StepTotals
from rlplan.executor.trainer.optimizer import learning_rate
from rlplan.executor.trainer.policy.packed_rows import packed_row
from rlplan.executor.trainer.policy.rank_mesh import RankMesh
from rlplan.executor.trainer.step_checks import LogprobLimits, refusal
from rlplan.executor.trainer.train_samples import TrainSample, shares, sorted_groups
from rlplan.executor.trainer.trainer_config import Divisors, TrainerConfig, UpdateSettings
from rlplan.plans.schema.algorithm import Algorithm

CPU = torch.device("cpu")
GROUPS = [
    [TrainSample(f"p{prompt}", sample, [1, 2], [3, 4, 5], [-1.0] * 3, 0.5, False) for sample in (1, 0)]
    for prompt in (1, 0)
]


def test_groups_are_sorted_by_prompt_and_samples_by_number():
    (first, second) = sorted_groups(GROUPS, 2)
    assert [(s.prompt_id, s.sample) for s in first + second] == [("p0", 0), ("p0", 1), ("p1", 0), ("p1", 1)]
    assert first[0].tokens == 5


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ([GROUPS[0], GROUPS[1][:1]], r"the group of p0 has samples \[1\], not 2 different"),
        ([[GROUPS[0][0], GROUPS[0][0]]], "p1 has samples"),
        ([GROUPS[0], GROUPS[0]], "comes twice"),
        ([[GROUPS[0][0], GROUPS[1][1]]], "samples of other prompts"),
        ([[GROUPS[0][0], replace(GROUPS[0][1], prompt_tokens=[])]], "p1/0 has no prompt"),
        ([[GROUPS[0][0], replace(GROUPS[0][1], logprobs=[-1.0])]], "p1/0: 3 tokens, 1 log-probabilities"),
        ([[GROUPS[0][0], replace(GROUPS[0][1], reward=math.nan)]], "reward nan"),
    ],
)
def test_groups_that_are_not_whole_are_never_trained(groups, fault):
    with pytest.raises(AssertionError, match=fault):
        sorted_groups(groups, 2)


def test_each_sample_is_in_one_replicas_share_with_its_own_values():
    algorithm = Algorithm(name="dr_grpo", learning_rate=0.1, mask_truncated=True)
    config = TrainerConfig("", algorithm, UpdateSettings(9), 2, 1.0, Divisors(4.0, 1.0, 5), ranks=3)
    groups = [
        [
            TrainSample(prompt, n, [10, 11][: 1 + n], [n] * (2 + place), [-1.0 - n] * (2 + place), reward * n, cut)
            for n, cut in ((1, False), (0, place == 1))
        ]
        for place, (prompt, reward) in enumerate([("c", 0.5), ("a", 1.0), ("b", 0.0)])
    ]
    found = shares(groups, config, 9, 0.0, replicas=(2, 0))
    whole = {("".join(share.prompts), *share[3:8], tuple(share.all_rewards)) for share in found}
    assert whole == {("abc", 6, 27, 1.5, 0.625, 15, (0.0, 1.0, 0.0, 0.0, 0.0, 0.5))}
    assert {(len(share.watched), len(share.learning)) for share in found} == {(1, 1)}, "as many on every replica"
    assert all(not len(batch.tokens) and batch.sequences() == [] for batch in found[1].watched + found[1].learning)
    seen = {}
    for share in found:
        for kind, batches in (("watched", share.watched), ("learning", share.learning)):
            for batch in batches:
                assert batch.tokens.dtype == np.int32 and batch.logprobs.dtype == np.float32
                logprobs = np.split(batch.logprobs, batch.response_lengths.cumsum())
                values = zip(batch.sequences(), logprobs, batch.advantages, batch.weights, strict=False)
                for (prompt, response), said, advantage, weight in values:
                    key = len(response), len(prompt)
                    assert key not in seen
                    assert said.tolist() == [-1.0 - response[0]] * len(response)
                    seen[key] = kind, float(advantage), float(weight)
    in_loss = 1 / (4.0 * 5)
    assert {key: (kind, advantage) for key, (kind, advantage, _) in seen.items()} == {
        (2, 1): ("learning", -0.25), (2, 2): ("learning", 0.25), (3, 1): ("watched", -0.5), (3, 2): ("learning", 0.5),
        (4, 1): ("watched", 0.0), (4, 2): ("watched", 0.0),
    }  # fmt: skip
    assert [seen[key][2] for key in sorted(seen)] == pytest.approx([in_loss, in_loss, 0.0, in_loss, in_loss, in_loss])


def test_totals_are_of_all_tokens_and_of_those_in_the_loss():
    totals = StepTotals(CPU, bound=0.5, cap=2.0)
    assert totals.metrics(None)["logprob_p99_abs_diff"] == 0.0, "without a token"
    ratios = torch.tensor([0.0, 0.5, -0.6, math.log(3.0)])
    totals.add_tokens(torch.tensor([True, True, True, False]), ratios, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    totals.add_tokens(torch.tensor([True]), torch.tensor([math.log(3.0)]), torch.tensor([5.0]))
    totals.add_tokens(torch.zeros(0, dtype=torch.bool), torch.zeros(0), torch.zeros(0))
    for loss, clipped in ((0.25, 1), (0.5, 2)):
        totals.add_loss(torch.tensor(loss), torch.tensor(clipped))
    metrics = totals.metrics(None)
    assert metrics.pop("logprob_p99_abs_diff") == pytest.approx(math.log(3.0), rel=0.08)
    assert metrics == pytest.approx(
        {
            "loss": 0.75, "ratio_clipped_share": 3 / 4, "logprob_max_abs_diff": math.log(3.0),
            "logprob_mean_abs_diff": (1.1 + 2 * math.log(3.0)) / 5, "logprob_beyond_share": 3 / 5,
            "importance_ratio_mean": (1.0 + math.exp(0.5) + math.exp(-0.6) + 3.0) / 4, "importance_beyond_share": 1 / 4,
            "entropy": 3.0, "response_tokens": 5, "kl_reference": 0.0, "kl_loss": 0.0,
        }
    )  # fmt: skip


@pytest.mark.parametrize(("large", "found"), [(2, 1.0), (1, 1e-3), (0, 1e-3)])
def test_the_99th_percentile_is_no_less_than_99_of_100_tokens(large, found):
    totals = StepTotals(CPU, math.inf, math.inf)
    differences = torch.tensor([1e-3] * (101 - large) + [-1.0] * large)
    totals.add_tokens(torch.ones(101, dtype=torch.bool), differences, torch.zeros(101))
    assert found * 0.999 <= totals.metrics(None)["logprob_p99_abs_diff"] <= found * 1.08


GOOD = {"loss": 0.0, "grad_norm": 1.0, "logprob_mean_abs_diff": 0.1, "logprob_p99_abs_diff": 1.0}
LIMITS = LogprobLimits(mean=0.1, p99=1.0, bound=1.0)


@pytest.mark.parametrize(
    ("metrics", "limits", "reason", "text"),
    [
        ({}, LIMITS, None, ""),
        ({"logprob_mean_abs_diff": 0.11}, LIMITS, "log-probs", "differ by 0.11 in the mean (limit 0.1)"),
        ({"logprob_p99_abs_diff": 1.1}, LIMITS, "log-probs", "differ by 1.1 on 1 % of the tokens (limit 1)"),
        ({"logprob_p99_abs_diff": 1.1}, None, None, ""),
        ({"loss": math.nan, "grad_norm": math.inf}, None, "not finite", "the loss is nan; the gradient norm is inf"),
        ({"logprob_mean_abs_diff": math.inf}, LIMITS, "not finite", "engine and trainer is inf"),
    ],
)
def test_a_step_is_refused_beyond_the_limits(metrics, limits, reason, text):
    found = refusal(GOOD | metrics, limits)
    assert (found and found.reason) == reason and text in (found.text if found else "")


def test_parts_of_a_row_predict_each_response_token_once():
    sequences = [([1, 2], [3, 4, 5]), ([6], [7]), ([8, 9], [])]
    whole = packed_row(sequences, CPU)
    assert whole.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9]]
    assert whole.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1, 0, 1]]
    assert (whole.predictors.tolist(), whole.targets.tolist()) == ([1, 2, 3, 5], [3, 4, 5, 7])
    assert (whole.packed.lengths, whole.held) == ((5, 2, 2), slice(0, 4))
    parts = [packed_row(sequences, CPU, RankMesh(rank=rank, sp=4)) for rank in range(4)]
    assert {part.packed.lengths for part in parts} == {(5, 2, 2, 3)}, "the row is padded to equal parts"
    assert torch.cat([part.input_ids for part in parts], 1)[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0]
    assert [part.predictors.tolist() for part in parts] == [[1, 2], [0, 2], [], []]
    assert [part.targets.tolist() for part in parts] == [[3, 4], [5, 7], [], []]
    assert [part.held for part in parts] == [slice(0, 2), slice(2, 4), slice(4, 4), slice(4, 4)]
    nothing = packed_row([], CPU)
    assert (nothing.input_ids.tolist(), nothing.targets.tolist(), nothing.packed.lengths) == ([[0, 0]], [], (2,))


def test_the_place_of_a_rank_follows_from_its_number():
    places = [RankMesh(rank, dp=2, sp=3, tp=2) for rank in range(12)]
    assert {mesh.ranks for mesh in places} == {12}
    assert [mesh.dp_rank for mesh in places] == [0] * 6 + [1] * 6
    assert [mesh.sp_rank for mesh in places] == [0, 0, 1, 1, 2, 2] * 2


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("constant", [0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3]),
        ("linear", [0.1, 0.2, 0.3, 0.24, 0.18, 0.12, 0.12]),
        ("cosine", [0.1, 0.2, 0.3, 0.255, 0.165, 0.12, 0.12]),
    ],
)
def test_the_learning_rate_rises_to_its_peak_and_falls_to_its_share(kind, rates):
    falls = {} if kind == "constant" else {"decay_steps": 3, "final_share": 0.4}
    schedule = {"kind": kind, "warmup_steps": 2} | falls
    algorithm = Algorithm.model_validate({"name": "grpo", "learning_rate": 0.3, "schedule": schedule})
    assert [learning_rate(algorithm, update) for update in range(7)] == pytest.approx(rates)
