"""The long run of benchmarks.headlines: rounds whose seconds can be counted by hand."""

import math

import numpy as np
import pytest

from benchmarks.headlines.pairs import PROMPT_TOKENS, World, rollout_s
from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.costs.update_costs import TrainCost
from rlplan.plans.schema.levers import EngineLayout, UpdateLayout
from rlplan.rounds.round_spec import RoundSpec

CAP = 64
UPDATE = TrainCost(UpdateLayout(dp=1, micro_batch_tokens=4096), 0.0, 0.0, 0.0)


def seconds(lengths, log_factor=0.0, engines=1, max_num_seqs=8, prompts=1, prefill_s=0.0, issued=None):
    """Seconds of a plain round in which prompt k has samples of these lengths; a step takes 1 s, 0.1 s a sequence and
    0.001 s a KV token."""
    decode = DecodeCost(
        EngineLayout(1, engines), 1.0, 0.1, 0.001, prefill_s, 0.0, 10**6, max_num_seqs, sync_s=0.0, host_bytes=0
    )
    world = World(np.full((4, 12), log_factor), {1: 0.0}, 0.0, lambda prompt, times: np.array(lengths[prompt]), CAP)
    size = len(lengths[0])
    mode = "sync" if issued is None else "defer"
    spec = RoundSpec(mode, prompts, size, CAP, issued or prompts, size)
    machine = spec.short().machine([f"p{k}" for k in range(issued or prompts)])
    return rollout_s(machine, world, RoundCosts(decode, max_num_seqs, UPDATE), {})


def steps(count, sequences, kv):
    return sum(1.0 + 0.1 * sequences + 0.001 * (kv + step * sequences) for step in range(count))


def test_a_round_takes_the_seconds_of_its_decode_steps():
    alone = steps(10, 1, PROMPT_TOKENS)
    assert seconds([[10]]) == pytest.approx(alone)
    assert seconds([[10]], prefill_s=0.5) == pytest.approx(alone + 0.5)
    assert seconds([[10]], log_factor=math.log(2)) == pytest.approx(2 * alone), "the world is twice as slow"
    assert seconds([[1000]]) == pytest.approx(steps(CAP, 1, PROMPT_TOKENS)), "the cap cuts"
    both = steps(4, 2, 2 * PROMPT_TOKENS) + steps(6, 1, PROMPT_TOKENS + 4)
    assert seconds([[4, 10]]) == pytest.approx(both)
    assert seconds([[4, 10]], engines=2) == pytest.approx(alone), "an engine for each"
    queued = steps(4, 1, PROMPT_TOKENS) + alone
    assert seconds([[4, 10]], max_num_seqs=1) == pytest.approx(queued), "one after the other"


def test_a_round_that_issues_more_ends_with_the_first_groups():
    assert seconds([[10], [4]], engines=2, issued=2) == pytest.approx(steps(4, 1, PROMPT_TOKENS))
