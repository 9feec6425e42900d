"""Whether a prompt's samples are kept together: what solve says of it, and that all who simulate the plan obey it."""

import dataclasses
import math

import pytest

from rlplan.planner.choose.candidate_search import Pass
from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.round_costs import round_costs
from rlplan.planner.search_inputs import prepare
from rlplan.planner.simulate.calibrate import RealRound, check_rounds, simulated_s
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.planner.solve import solve
from rlplan.planner.solve_options import SolveOptions
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.profiles.length_trace import LengthTrace
from rlplan.rounds.balance import BLOCK_TOKENS, PrefixSharing

LONG_PROMPT = 3000
QUICK = (Pass(5, 2, math.inf), Pass(20, 8, 0.1))
SIZES = {"prompts_per_step": 8, "samples_per_prompt": 8, "max_prompt_tokens": LONG_PROMPT}


def with_prompts(trace: LengthTrace, tokens: int) -> LengthTrace:
    return LengthTrace([dataclasses.replace(row, prompt_tokens=tokens) for row in trace.rows], trace.cap_tokens)


@pytest.fixture
def given(make_cluster, make_job, make_profile, make_rollout, make_trace):
    """(cluster, job, profile, trace) of a job with such prompts, on two engines or one; a prefill of 0.1 ms a token."""

    def make(prompt_tokens: int, icc: float = 0.2):
        layouts = (make_rollout(1, 2, 7e-3, 3e-5), make_rollout(2, 1, 5.5e-3, 3e-5))
        slow = tuple(r.model_copy(update={"prefill_s_per_token": 1e-4, "kv_block_tokens": 16}) for r in layouts)
        job = make_job(SIZES, search={"tp": [1], "micro_batch_tokens": [8192]})
        return make_cluster(), job, make_profile(rollout=slow), with_prompts(make_trace(icc=icc), prompt_tokens)

    return make


def test_samples_of_long_prompts_are_kept_together_and_those_of_short_ones_spread(given) -> None:
    [cost] = prepare(*given(LONG_PROMPT)).space.decode.values()
    assert cost.sharing is not None and cost.sharing.block_tokens == 16
    assert cost.sharing.lead(LONG_PROMPT) >= 1
    for tokens in (16, 40):  # without a whole block, and with less than there is to gain
        search = prepare(*given(tokens))
        assert search.space.kept_together == {}
        assert all(cost.sharing is None for cost in search.space.decode.values())


def test_a_plan_that_keeps_samples_together_says_why_and_is_simulated_so(given, inputs) -> None:
    cluster, job, profile, trace = given(LONG_PROMPT)
    plan = solve(cluster, job, profile, trace, inputs, SolveOptions(passes=QUICK, mode="sync")).plan
    prefix = plan.job.rounds.short.rollout.prefix
    assert prefix is not None
    assert "saves" in plan.job.why["rounds.short.rollout.prefix"]
    short, _ = round_costs(plan.job, profile)
    assert short.decode.sharing == PrefixSharing(prefix.block_tokens, prefix.tokens_per_sample)

    def mean_s(**changes) -> float:
        text = plan.model_dump(mode="json")
        text["job"]["rounds"]["short"]["rollout"].update(changes)
        return simulate_plan(type(plan).model_validate(text), job, profile, trace, steps=40).seconds_per_sample()

    together, spread = mean_s(), mean_s(prefix=None)
    assert together < spread
    assert together == pytest.approx(plan.predicted.seconds_per_sample, rel=0.1)


def test_blocks_are_as_large_as_the_profile_says_and_else_as_engines_are_built(make_profile, make_rollout) -> None:
    plain = make_rollout(1, 2, 7e-3, 3e-5)
    profile = make_profile(rollout=(plain, plain.model_copy(update={"tp": 2, "engines": 1, "kv_block_tokens": 64})))
    sizes = [decode_cost(profile, entry).block_tokens for entry in profile.rollout]
    assert sizes == [BLOCK_TOKENS["cpu"], 64]


def test_hits_of_the_profiles_real_rounds_are_not_taken_for_quick_steps(given) -> None:
    _, _, profile, _ = given(LONG_PROMPT)
    bare = profile.model_copy(update={"checks": ()})
    prompt_tokens = {f"p{d}": LONG_PROMPT for d in range(16)}
    real = []
    for nth, size in enumerate((8, 16, 8, 16, 12)):
        lengths = {
            (d, s): (f"p{d}", 1 + (37 * d + 11 * s + 5 * nth) % 90, False) for d in range(size) for s in range(8)
        }
        asked = RealRound(EngineLayout(1, 2), 90, lengths, 0.0)
        seconds = simulated_s(asked, decode_cost(bare, bare.rollout[0]), bare, prompt_tokens)
        real.append(dataclasses.replace(asked, rollout_s=seconds))
    [found] = check_rounds(bare, real, prompt_tokens)
    assert found.factor == pytest.approx(1.0, rel=1e-6)
    # As if every sample had prefilled its prompt.
    entries = tuple(entry.model_copy(update={"kv_block_tokens": 10**6}) for entry in bare.rollout)
    [missed] = check_rounds(bare.model_copy(update={"rollout": entries}), real, prompt_tokens)
    assert missed.factor < 0.6
