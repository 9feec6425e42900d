"""Which engine gets a sample, and when: kept together for a prompt's prefix, or balanced by history."""

import dataclasses

import pytest
import yaml

from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.round_costs import round_costs
from rlplan.planner.search_inputs import prepare
from rlplan.planner.simulate.calibrate import RealRound, check_rounds, simulated_s
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.plans.phrases.sentences import levers_of
from rlplan.plans.schema.levers import EngineLayout, RoundPrefix
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import dump, loads
from rlplan.profiles.length_trace import LengthTrace
from rlplan.rounds.balancing.placement import BLOCK_TOKENS

from ..conftest import heavy_trace, laptop, rollout, small_job, small_profile
from ..solutions import solution

# -- kept together -----------------------------------------------------------------------------------------------------

LONG_PROMPT = 3000


def given(prompt_tokens: int):
    """(cluster, job, profile, trace) of a job with such prompts, on two engines or one; a prefill of 0.1 ms a token."""
    layouts = (rollout(1, 2, 7e-3, 3e-5), rollout(2, 1, 5.5e-3, 3e-5))
    slow = tuple(r.model_copy(update={"prefill_s_per_token": 1e-4, "kv_block_tokens": 16}) for r in layouts)
    sizes = {"prompts_per_step": 8, "samples_per_prompt": 8, "max_prompt_tokens": LONG_PROMPT}
    job = small_job(sizes, search={"tp": [1], "micro_batch_tokens": [8192]})
    rows = [dataclasses.replace(row, prompt_tokens=prompt_tokens) for row in heavy_trace(icc=0.2).rows]
    return laptop(), job, small_profile(rollout=slow), LengthTrace(rows)


def test_samples_of_long_prompts_are_kept_together_and_others_spread() -> None:
    [cost] = prepare(*given(LONG_PROMPT)).space.decode.values()
    assert cost.sharing is not None and cost.sharing.block_tokens == 16
    assert cost.sharing.lead(LONG_PROMPT) >= 1
    layouts = small_profile().rollout
    assert [decode_cost(small_profile(), each).block_tokens for each in layouts] == [BLOCK_TOKENS["cpu"]] * 2
    for tokens in (16, 40):  # without a whole block, and with less than there is to gain
        search = prepare(*given(tokens))
        assert search.space.kept_together == {}
        assert all(cost.sharing is None for cost in search.space.decode.values())


def test_a_plan_that_keeps_samples_together_is_simulated_so() -> None:
    cluster, job, profile, trace = given(LONG_PROMPT)
    plan = solution(job, cluster=cluster, profile=profile, trace=trace, mode="sync").plan
    prefix = plan.job.rounds.short.rollout.prefix
    assert prefix is not None
    assert "saves" in plan.job.why["rounds.short.rollout.prefix"]
    short, _ = round_costs(plan.job, profile)
    assert short.decode.sharing == RoundPrefix(
        block_tokens=prefix.block_tokens, tokens_per_sample=prefix.tokens_per_sample
    )

    def mean_s(**changes) -> float:
        text = plan.model_dump(mode="json")
        text["job"]["rounds"]["short"]["rollout"].update(changes)
        return simulate_plan(Plan.model_validate(text), job, profile, trace, steps=40).seconds_per_sample()

    together, spread = mean_s(), mean_s(prefix=None)
    assert together < spread
    assert together == pytest.approx(plan.predicted.seconds_per_sample, rel=0.1)


def test_hits_of_the_profiles_real_rounds_are_not_taken_for_quick_steps() -> None:
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


# -- balanced ----------------------------------------------------------------------------------------------------------


def balancing(mode: str, allowed: bool = True, kv_capacity_tokens: int = 1500):
    """(plan, job, profile) of a job whose samples wait for memory, so that a long one may start late."""
    profile = small_profile(rollout=[rollout(1, 2, 0.004, 3e-3, kv_capacity_tokens)])
    search = {"tp": [1], "micro_batch_tokens": [2048], **({"balance": True} if allowed else {})}
    job = small_job(search=search)
    return solution(job, profile=profile, mode=mode, prompt_sets=2).plan, job, profile


@pytest.mark.parametrize("mode", ["sync", "exact"])
def test_rounds_are_balanced_where_a_job_allows_it_and_it_saves_time(mode) -> None:
    plain, *_ = balancing(mode, allowed=False)
    plan, job, profile = balancing(mode)
    assert "balance" not in dump(plain), "a job that does not name the lever gets plans without it"
    rounds = plan.job.rounds
    balances = [kind.rollout.balance for kind in (rounds.short, rounds.long) if kind is not None]
    assert any(balances)
    assert all(balance.step_s > 0 for balance in balances if balance)
    assert plan.predicted.seconds_per_sample < plain.predicted.seconds_per_sample
    assert plan.predicted.length_ratio == pytest.approx(1.0, abs=0.05)
    said = [text for key, text in plan.job.why.items() if "balance" in key]
    assert any("longest expected samples first; next best" in text for text in said)
    assert levers_of(plan.job.why["levers"])["balance"] > 0
    run = simulate_plan(plan, job, profile, heavy_trace(), steps=40, prompts=480)
    seconds = sum(step.rollout_s for step in run.steps) / len(run.steps)
    assert seconds == pytest.approx(plan.predicted.phases_s.rollout, rel=0.15)


@pytest.mark.parametrize("mode", ["race", "defer"])
def test_modes_that_train_whoever_ends_first_are_never_balanced(mode) -> None:
    plan = balancing(mode)[0].model_dump(mode="json")
    engines = plan["job"]["rounds"]["short"]["rollout"]
    assert engines.get("balance") is None
    nothing, *_ = balancing("sync", kv_capacity_tokens=200_000)
    assert nothing.job.rounds.short.rollout.balance is None, "by count is as fast"
    engines["balance"] = balancing("sync")[0].job.rounds.short.rollout.balance.model_dump()
    engines.pop("prefix", None)
    refusal = f"balance belongs to modes sync, exact and predict; write null for mode {mode}"
    with pytest.raises(InputError, match=refusal):
        loads(yaml.safe_dump(plan), Plan)
