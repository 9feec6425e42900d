"""Reward seconds that differ: their laws, and what deadlines that adapt are worth in simulated rounds and runs."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.reward_costs import NO_TIMEOUT, ExecutionTimes, RewardCost, crowding, slower_of, slowest_of
from rlplan.planner.costs.round_costs import RoundCosts
from rlplan.planner.costs.update_costs import train_cost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.whole_run import simulate_run
from rlplan.plans.schema.levers import EngineLayout
from rlplan.profiles.phase_schema import Reward, Spread
from rlplan.profiles.profile_schema import Machine
from rlplan.rounds.round_spec import RoundSpec
from rlplan.rounds.timeouts import TimeoutSpec

from ..conftest import heavy_trace, small_profile

PUBLISHED = TimeoutSpec(30.0, 2.0, 1.5)
SANDBOX = ExecutionTimes(correct_s=(0.03, 0.05, 4.0), wrong_s=(0.03,) * 9 + (30.0,), correct=0.5, unsolved=0.2)

sample_draws = st.floats(0, 1, exclude_max=True)
shares = st.sampled_from([0.0, 0.4, 1.0]) | st.floats(0, 1)
seconds = st.lists(st.floats(0, 40), min_size=1, max_size=5).map(lambda values: tuple(sorted(values)))
laws = st.builds(ExecutionTimes, seconds, seconds, shares, shares)
specs = st.sampled_from([NO_TIMEOUT, TimeoutSpec(30.0), PUBLISHED, TimeoutSpec(7.0, 0.1, 1.0)])


@settings(max_examples=60)
@given(laws, specs, st.lists(st.tuples(sample_draws, sample_draws), min_size=1))
def test_many_samples_at_once_cost_the_same_as_one_by_one(law, spec, drawn) -> None:
    prompt_draw, sample_draw = np.array(drawn).T
    one_by_one = [law.steady_s(spec, *pair) for pair in drawn]
    assert law.steady_many_s(spec, prompt_draw, sample_draw).tolist() == one_by_one


@settings(max_examples=60)
@given(laws, specs, sample_draws, sample_draws, st.floats(0.01, 50))
def test_an_execution_is_right_in_time_alone(law, spec, prompt_draw, sample_draw, deadline_s) -> None:
    free, held = (law.execute("p", prompt_draw, sample_draw, most_s) for most_s in (1e9, deadline_s))
    assert held.seconds == min(free.seconds, deadline_s)
    assert held.correct == (free.correct and free.seconds <= deadline_s)
    assert not (held.correct and held.timed_out)
    assert free.correct is False or free.seconds == law.anchor_s(prompt_draw)
    # A prompt's right answers take the same, so that a deadline that adapts stops none: real runs count what they lose.
    adaptive = law.execute("p", prompt_draw, sample_draw, spec.deadline_s(law.anchor_s(prompt_draw)))
    longest = law.execute("p", prompt_draw, sample_draw, spec.max_s)
    assert adaptive.correct == longest.correct and adaptive.seconds <= longest.seconds


def test_the_mean_is_the_mean_of_many_draws() -> None:
    grid = (np.arange(400) + 0.5) / 400
    drawn = SANDBOX.steady_many_s(PUBLISHED, grid[:, None], np.broadcast_to(grid, (400, 400)))
    assert SANDBOX.mean_s(PUBLISHED) == pytest.approx(drawn.mean(), rel=0.02)
    assert SANDBOX.mean_s(PUBLISHED) < 0.6 * SANDBOX.mean_s(TimeoutSpec(30.0))
    assert SANDBOX.median_s() == 0.03
    assert dataclasses.replace(SANDBOX, correct_s=(4.0,), unsolved=0.0, correct=0.9).median_s() == 4.0


def test_a_constant_is_what_it_was() -> None:
    cost = RewardCost(4, 0.25, 0.0, timeout=PUBLISHED)
    assert cost.mean_s() == cost.sample_s(0.1, 0.9, 7) == 0.25
    assert dataclasses.replace(cost, executions=SANDBOX).sample_s(0.1, 0.99, 7) == 30.0
    assert dataclasses.replace(cost, per_token_s=0.5).sample_s(0.1, 0.9, 7) == 3.75


def test_of_several_pools_the_slowest_decides() -> None:
    workers, judge = RewardCost(4, 0.4, 0.0), RewardCost(2, 0.1, 0.0, per_token_s=1e-4)
    assert slower_of(workers, judge) == dataclasses.replace(judge, all_workers=4), "both take 0.1 s a sample"
    assert slower_of(dataclasses.replace(workers, workers=3), judge).workers == 3
    further = [RewardCost(1, 0.05, 0.0), RewardCost(2, 0.9, 0.0)]
    assert slowest_of(workers, []) is workers
    assert slowest_of(workers, further) == dataclasses.replace(further[1], of_further=True, all_workers=7)
    assert slowest_of(workers, further[:1]) == dataclasses.replace(workers, all_workers=5)


def test_a_run_learns_its_deadlines_from_the_first_epoch() -> None:
    profile = small_profile()
    kind = RoundCosts(decode_cost(profile, profile.rollout[0]), 64, train_cost(profile.train[2]))
    spec = RoundSpec("sync", 4, 4, 1024, short_prompts=4, short_samples=4)
    draws = Draws(fit_lengths(heavy_trace()), 0, 4)

    def exposed_s(timeout: TimeoutSpec) -> list[float]:
        solved = ExecutionTimes((0.03, 0.05), (0.03, 30.0), correct=0.6, unsolved=0.0)
        run = simulate_run(spec, kind, kind, RewardCost(64, 0.0, 0.0, solved, timeout), draws, 0, 32, epochs=2)
        return [sum(s.reward_exposed_s for s in run.steps if s.epoch == epoch) for epoch in (0, 1)]

    fixed, adaptive = exposed_s(TimeoutSpec(30.0)), exposed_s(PUBLISHED)
    assert adaptive[0] == fixed[0] > 0, "nothing is learnt within the first visit"
    assert adaptive[1] < 0.5 * fixed[1]


def test_workers_slow_engines_on_the_same_cores_by_their_load() -> None:
    cores = Machine(accelerator="cpu", kind="cpu", accelerators=4, cores=4, host_memory_bytes=10**10)
    reward = Reward(workers=1, latency=Spread(p50=1, p95=1, repeats=1), per_sample_s=1.0, load=2.5)
    profile, engines = small_profile(machine=cores, reward=reward), EngineLayout(1, 3)
    assert crowding(profile, engines, 1) == 1.0, "as it was measured"
    assert crowding(profile, engines, 2) == pytest.approx((3 + 2) / 4)
    assert crowding(profile, engines, 3) == crowding(profile, engines, 4) == pytest.approx((3 + 2.5) / 4)
    assert crowding(profile, EngineLayout(1, 1), 3) == 1.0, "a core for each"
    # A further pool had a worker when it was measured, and is as much busier as its samples take longer.
    further = [RewardCost(1, 2.0, 0.0)]
    assert crowding(profile, engines, 2, further) == 1.0
    assert crowding(profile, engines, 8, further) == pytest.approx((3 + 7.5) / (3 + 2))
    unknown = reward.model_copy(update={"load": None})
    gpus = Machine(accelerator="H800", kind="cuda", accelerators=8, cores=8, host_memory_bytes=10**12)
    assert crowding(small_profile(machine=cores, reward=unknown), engines, 2) == 1.0
    assert crowding(small_profile(reward=reward, machine=gpus), engines, 2) == 1.0
