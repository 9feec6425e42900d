"""What is no candidate since this executor cannot run it, and which of the schedules that cost the same is planned."""

import dataclasses
import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from rlplan.planner.choose import ties
from rlplan.planner.choose.candidates import update_layouts
from rlplan.planner.choose.candidates.pool_choice import Unplannable
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.choose.candidates.update_layouts import feasible_train, sharding_of
from rlplan.planner.choose.cycle_cost import all_cycles
from rlplan.planner.costs.job_pools import JobPools
from rlplan.planner.costs.update_costs import TrainCost, law_dtype_fault, least_peak, train_cost_in
from rlplan.planner.solve import Solved
from rlplan.plans.facts.device_shares import PLANNED_SHARE
from rlplan.plans.facts.executable import SAME_IN_BOTH_KINDS, UPDATE_VALUES, is_for_any, not_executable, update_faults
from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.facts.model_shape import ModelShape, shape_from_architecture, shape_of_public
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.levers import EngineLayout, UpdateLayout
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.laws.train_layouts import fitted_memory, physics_of, train_layouts
from rlplan.profiles.library import library_profile
from rlplan.profiles.phase_schema import Train
from rlplan.profiles.profile_schema import RoundCheck

from ..conftest import laptop, rollout, small_job, small_profile
from ..gpu_run import gpu_cluster, solved_on_gpus
from ..solutions import QUICK, SMALL, eight_by_four, solution, solve_afresh


def update(seconds_per_token: float, **layout: Any) -> Train:
    fields = {"dp": 1, "micro_batch_tokens": 4096, "step_s": 0.05, "step_s_per_token_squared": 0.0, "error": 0.03}
    return Train(**{**fields, **layout}, step_s_per_token=seconds_per_token)


def planned(
    *train: Train, tokens: tuple[int, ...] = (4096,), slo_s: float | None = None, for_any: bool = False
) -> Solved:
    """A small job in mode exact, solved with these updates."""
    job = eight_by_four((1,), tokens, slo={"step_p95_s": slo_s})
    return solution(job, profile=small_profile(train=train), mode="exact", for_any=for_any)


def pools(cluster: Cluster | None = None) -> JobPools:
    return JobPools((cluster or gpu_cluster()).pools["main"])


def proven(found: Solved) -> None:
    """The gap is 0, and no schedule of the search costs less than the bound."""
    assert found.plan.solver.gap <= 1e-6 and found.plan.solver.status == "optimal"
    limits = found.search.limits
    full = [c for c in found.search.cycles() if c.short.rounds >= QUICK[-1].short_rounds and not c.violations(limits)]
    assert min(c.cost(limits) for c in full if c.short.deferral.mode == "exact") >= found.solution.bound * (1 - 1e-6)


OURS, FASTER = update(4e-4), update(4e-5, dp=2, recompute="selective")


def test_an_update_that_only_others_run_is_planned_on_request_only():
    here, anywhere = planned(OURS, FASTER), planned(OURS, FASTER, for_any=True)
    assert here.plan.job.rounds.short.train.recompute == "none" and not_executable(here.plan, None) == []
    assert [cost.layout.recompute for cost in here.search.space.train] == ["none"]
    assert not any("selective" in text for text in here.plan.job.why.values()), "it is no next best choice either"
    assert anywhere.plan.job.rounds.short.train.recompute == "selective"
    assert here.plan.predicted.seconds_per_sample > anywhere.plan.predicted.seconds_per_sample
    for found, for_any in ((here, False), (anywhere, True)):
        proven(found)
        assert found.plan.solver.for_any == for_any == is_for_any(found.plan, None)
    unsaid = anywhere.plan.solver.model_copy(update={"for_any": False})
    assert is_for_any(anywhere.plan.model_copy(update={"solver": unsaid}), None), "an earlier version solved it"


def test_without_a_plan_for_here_the_error_names_other_frameworks():
    other = update(4e-4, pp=2)
    with pytest.raises(Infeasible) as caught:
        planned(other)
    assert "none of its measured updates can be run by rlplan execute (pp is 2, and" in str(caught.value)
    assert str(caught.value).endswith("; other frameworks could run a plan: rlplan solve --for any")
    assert planned(other, for_any=True).plan.job.rounds.short.train.pp == 2


def test_a_limit_that_only_other_frameworks_keep_is_told_so():
    ours = update(4e-2)
    fast, slow = planned(ours, FASTER, for_any=True).plan, planned(ours, FASTER).plan
    limit = 1.5 * fast.predicted.step_s.p95
    assert limit < slow.predicted.step_s.p50
    with pytest.raises(Infeasible, match=r"slo\.step_p95_s.*other frameworks could run a plan"):
        planned(ours, FASTER, slo_s=limit)
    assert planned(ours, FASTER, slo_s=limit, for_any=True).plan.predicted.step_s.p95 <= limit
    with pytest.raises(Infeasible) as caught:
        planned(ours, FASTER, slo_s=1e-3)
    assert "slo.step_p95_s" in str(caught.value) and "other frameworks" not in str(caught.value)


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_family_that_the_executor_does_not_train_is_planned_on_request(in_folder):
    """By the shape that a caller read from the model's folder, else by the model's name."""
    job = eight_by_four(model={"path": "model" if in_folder else "mistralai/Mixtral-8x7B", "dtype": "bfloat16"})
    options = {"mode": "sync", "model": shape_of_public("mistralai/Mixtral-8x7B") if in_folder else None}
    with pytest.raises(Unplannable, match=r"model\.path: .*family mixtral, .*qwen3_moe; .*--for any") as caught:
        solve_afresh(job, **options)
    assert (caught.value.document, caught.value.loc) == ("job", ("model", "path"))
    assert solve_afresh(job, **options, for_any=True).plan.solver.for_any


@pytest.mark.parametrize("objective", ["seconds", "usd"])
def test_on_gpus_both_kinds_of_round_share_one_layout(objective):
    plan = solved_on_gpus("exact", objective=objective).plan
    short, long = plan.job.rounds.short.train, plan.job.rounds.long.train
    assert not_executable(plan, None) == []
    assert [getattr(short, key) for key in SAME_IN_BOTH_KINDS] == [getattr(long, key) for key in SAME_IN_BOTH_KINDS]


def test_every_schedule_of_a_search_for_the_executor_can_run_here():
    both = update(4e-4), update(3e-4, dp=2), update(2e-4, dp=2, micro_batch_tokens=8192)
    found = planned(*both, tokens=(4096, 8192))
    search, limits = found.search, found.search.limits
    allowed = [c for c in search.cycles() if not c.violations(limits)]
    assert len({(c.train, c.long_train) for c in allowed}) > 1
    assert all(ties.executable(c, [search.space.train[m] for m in (c.train, c.long_train)]) for c in allowed)
    choices = all_cycles(*search.columns(), search.needs_long, limits, every_train=True)
    counted = [c for c in choices if "sharding" not in c.violations(limits)]
    assert found.plan.solver.candidates == len(counted) < len(choices)


def best_pair(costs: Iterable[TrainCost], short: tuple[float, float], long: tuple[float, float]) -> float:
    """Seconds of the best updates of both kinds of round, of one sharding; (tokens, their squares) of each."""
    of_sharding: dict[Any, list[tuple[float, float]]] = {}
    for cost in costs:
        of_sharding.setdefault(sharding_of(cost.layout), []).append((cost.update_s(*short), cost.update_s(*long)))
    return min(min(s for s, _ in alike) + min(t for _, t in alike) for alike in of_sharding.values())


@pytest.mark.parametrize("seed", range(8))
def test_no_update_is_left_out_that_is_part_of_a_best_pair(seed):
    draw = random.Random(seed)
    sizes = [(8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 4, 1), (2, 2, 2)]
    every = [
        TrainCost(
            UpdateLayout(dp=dp, tp=tp, sp=sp, micro_batch_tokens=tokens),
            step_s=draw.choice((1.0, 2.0, 3.0)),
            per_token_s=draw.choice((1.0, 2.0, 3.0)),
            per_token_squared_s=draw.choice((1.0, 2.0)),
        )
        for dp, tp, sp in sizes
        for tokens in (1024, 2048, 4096)
    ]
    kept = update_layouts._unbeaten_shardings(every, False, {})
    assert len(kept) < len(every)
    for _ in range(50):
        short, long = ((draw.choice((0.0, 0.3, 1.0, 5.0)), draw.choice((0.0, 0.5, 4.0))) for _ in range(2))
        assert best_pair(kept, short, long) == pytest.approx(best_pair(every, short, long))


def test_the_jobs_own_model_decides_what_divides_it():
    seven = ModelShape("qwen2", heads=7, kv_heads=7, vocab=151936, intermediate=4864, experts=0)
    law, job, cpus = library_profile("H800", "Qwen2.5-14B"), small_job(SMALL), pools(laptop())
    assert {t.layout.tp for t in feasible_train(pools(), job, law)} != {1}
    kept = feasible_train(pools(), job, law, SolveOptions(model=seven))
    assert kept and {(t.layout.tp, t.layout.sp) for t in kept} == {(1, 1)}
    halves = update(5e-5, tp=2)
    measured = small_profile(train=(update(1e-4), halves))
    assert {t.layout.tp for t in feasible_train(cpus, job, measured)} == {1, 2}
    assert {t.layout.tp for t in feasible_train(cpus, job, measured, SolveOptions(model=seven))} == {1}
    with pytest.raises(Infeasible, match="tp is 2, which does not divide 7 attention and 7 key-value heads"):
        feasible_train(cpus, job, small_profile(train=(halves,)), SolveOptions(model=seven))


def shared_evenly(layout: UpdateLayout) -> bool:
    """Whether the executor shares a Qwen2.5-14B evenly among the ranks."""
    return not any(update_faults(layout, shape_from_architecture(architecture_of("Qwen2.5-14B"))))


@pytest.mark.parametrize(("allowed", "runs"), [({}, lambda _: True), (UPDATE_VALUES, shared_evenly)])
def test_the_least_memory_of_any_layout_is_that_of_the_candidates(allowed, runs):
    law = library_profile("H800", "Qwen2.5-14B").train_law
    least = least_peak(law, 8, [4096], allowed, runs)
    every = [t for t in train_layouts(law, 8, [4096], **allowed) if runs(t)]
    assert least == min(fitted_memory(law, t).peak_bytes for t in every)
    assert least_peak(law, 8, [4096], {}, lambda _: True) <= least
    assert least_peak(law, 8, [4096], allowed, lambda layout: layout.tp == 8 and runs(layout)) > least
    assert least_peak(law, 8, [4096], allowed, lambda _: False) is None


@pytest.mark.parametrize(
    ("gpu", "model", "nodes", "budget"),
    [("A100", "Llama-3.1-8B", 1, 8192), ("H100", "Qwen2.5-32B", 4, 16896), ("H100", "Qwen3-30B-A3B", 2, 8192)],
)
def test_no_layout_that_fits_beats_the_candidates(gpu, model, nodes, budget):
    """By brute force: all sizes, recomputation, offloading, and both kinds of round in one sharding."""
    profile, ranks, budgets = library_profile(gpu, model), 8 * nodes, [budget, 2 * budget]
    law, physics = profile.train_law, physics_of(profile.train_law)
    shape, limit = shape_from_architecture(physics.architecture), PLANNED_SHARE * physics.gpu.memory_bytes
    accelerators = {"kind": "cuda", "name": gpu, "per_node": 8, "memory_bytes": physics.gpu.memory_bytes}
    sizes = {**SMALL, "max_prompt_tokens": 512, "max_response_tokens": 2048}
    job = small_job(sizes, search={"tp": [1], "micro_batch_tokens": budgets})
    every = []
    for tp, sp, copies, tokens, recompute, offload in itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8), {1, nodes}, budgets, ("none", "full"), (False, True)
    ):
        if ranks % (tp * sp) or ranks // tp % copies:
            continue
        layout = UpdateLayout(
            dp=ranks // tp // sp, tp=tp, sp=sp, state_copies=copies, micro_batch_tokens=tokens, recompute=recompute,
            offload=offload,
        )  # fmt: skip
        if not any(update_faults(layout, shape)) and fitted_memory(law, layout).peak_bytes <= limit:
            every.append(train_cost_in(profile, layout))
    kept = feasible_train(pools(gpu_cluster(nodes=nodes, accelerators=accelerators)), job, profile)
    assert {cost.layout for cost in kept} < {cost.layout for cost in every}
    for tokens, long_tokens in itertools.product((1e3, 1e5, 3e5, 1e6, 1e7), repeat=2):
        short, long = (tokens, tokens * 500), (long_tokens, long_tokens * 4000)
        assert best_pair(kept, short, long) == pytest.approx(best_pair(every, short, long), rel=1e-9)


def test_a_copy_on_each_node_is_a_candidate_where_it_pays():
    """A slow network gives to copies what a fast one and the bytes that leave the GPU take from them."""
    fast = library_profile("H100", "Qwen2.5-7B")
    slow = fast.model_copy(update={"train_law": fast.train_law.model_copy(update={"fabric_bytes_per_s": 1e9})})
    job = small_job(SMALL, search={"tp": [1], "micro_batch_tokens": [4096]})
    two = pools(gpu_cluster(nodes=2))
    kept = {t.layout.state_copies: t for t in feasible_train(two, job, slow) if t.layout.tp == t.layout.sp == 1}
    assert set(kept) == {1, 2} and kept[2].update_s(1e6, 1e9) < 0.8 * kept[1].update_s(1e6, 1e9)
    assert {t.layout.state_copies for t in feasible_train(pools(gpu_cluster(nodes=1)), job, slow)} == {1}
    best = min(feasible_train(two, job, fast), key=lambda cost: cost.update_s(1e6, 1e9))
    assert best.layout.state_copies == 1


def test_of_equal_updates_the_one_that_saves_no_memory_stays():
    def cost(offload: bool, recompute: str = "none") -> TrainCost:
        layout = UpdateLayout(dp=8, micro_batch_tokens=4096, offload=offload, recompute=recompute)
        return TrainCost(layout, 1.0, 2.0, 3.0)

    unbeaten = update_layouts._unbeaten_shardings
    plain, offloaded, again = cost(False), cost(True), cost(False, "full")
    assert unbeaten([offloaded, again, plain], False, {}) == [plain]
    less = {plain: (12.0,), offloaded: (8.0,), again: (12.0,)}
    assert unbeaten([offloaded, again, plain], False, less) == [offloaded], "but for host memory"
    slower = dataclasses.replace(offloaded, step_s=1.1)
    assert unbeaten([slower, plain], False, {plain: (12.0,), slower: (8.0,)}) == [slower, plain]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "float32"}, "the job's model.dtype is float32.*write model.dtype bfloat16"),
        ({"head_dtype": "float32"}, "the job's model.head_dtype is float32; leave it out, or measure updates"),
    ],
)
def test_a_law_of_bfloat16_prices_no_other_dtype(changes, said):
    documents = solved_on_gpus()
    job = documents.job.model_copy(update={"model": documents.job.model.model_copy(update=changes)})
    with pytest.raises(Infeasible, match=f"the profile's training law is of bfloat16 and {said}"):
        feasible_train(pools(), job, documents.profile)
    assert law_dtype_fault(small_profile(), "float32") is None, "updates that were measured are of the job's dtype"


# -- ties --------------------------------------------------------------------------------------------------------------


def check(layout: EngineLayout, error: float) -> RoundCheck:
    return RoundCheck(
        tp=layout.tp, engines=layout.engines, rounds=5, overhead_s=0.0, overhead_s_per_sample=0.0, factor=1.0,
        error=error,
    )  # fmt: skip


def erring(one_engine_s: float, error: float, recompute_s: float = 4e-4) -> Solved:
    """A job on two engines of tp 1, or on one of tp 2 whose decode steps take `one_engine_s` (they take 7 ms), with an
    update on two ranks that computes some activations again, as no executor of ours does, in `recompute_s` a token
    beside one that computes none again in 4e-4. Solved for any framework."""
    profile = small_profile(
        rollout=(rollout(1, 2, 7e-3, 3e-5), rollout(2, 1, one_engine_s, 3e-5)),
        checks=tuple(check(layout, error) for layout in (EngineLayout(1, 2), EngineLayout(2, 1))),
        train=(update(4e-4, error=error), update(recompute_s, dp=2, recompute="selective", error=error)),
    )
    return solution(eight_by_four(tokens=(4096,)), profile=profile, mode="exact", for_any=True)


def whole(found: Solved) -> list:
    """The schedules of mode exact whose rounds were all simulated."""
    short, long = found.search.passes[-1].short_rounds, found.search.passes[-1].long_rounds
    cycles = [c for c in found.search.cycles() if c.short.deferral.mode == "exact" and c.short.rounds >= short]
    return [c for c in cycles if c.long is None or c.long.rounds >= long]


def test_a_difference_beyond_the_error_alone_is_taken():
    rounds = erring(6.8e-3, 0.1).plan.job.rounds
    assert rounds.short.rollout.layout == rounds.long.rollout.layout and rounds.short.train == rounds.long.train
    slow_pair = erring(3.5e-3, 0.1)
    assert slow_pair.plan.job.rounds.long.rollout.tp == 2, "one engine of tp 2 decodes a tail in half the time"
    sure = erring(6.8e-3, 1e-4)
    assert sure.cycle.cost(sure.search.limits) <= (1 + 2e-4) * sure.solution.cycle.cost(sure.search.limits)


@pytest.mark.parametrize("error", [0.0, 0.02, 0.05, 0.4])
def test_no_schedule_within_the_tolerance_is_simpler(error):
    found = erring(6.8e-3, 0.1)
    search, best, limits = found.search, found.solution.cycle, found.search.limits
    chosen = ties.simplest(search, best, min(ties.MOST, error))
    bar = best.cost(limits) * (1 + min(ties.MOST, error))
    assert chosen.cost(limits) <= bar * (1 + 1e-9) and chosen.violations(limits) == []
    tied = [c for c in whole(found) if not c.violations(limits) and c.cost(limits) <= bar]
    assert ties.simplicity(search, chosen) <= min(ties.simplicity(search, c) for c in tied)
    assert ties.simplest(search, best, min(ties.MOST, error)).name == chosen.name, "asked again it is the same"


def test_what_is_given_up_is_bounded_by_the_error_and_five_percent():
    unsure, sure = erring(6.8e-3, 0.1), erring(6.8e-3, 1e-4)
    assert ties.tolerance_of(unsure.search, unsure.solution.cycle) == ties.MOST
    for found in (unsure, sure):
        given_up, limits = found.plan.solver.given_up or 0.0, found.search.limits
        assert found.cycle.cost(limits) == pytest.approx((1 + given_up) * found.solution.cycle.cost(limits))
        assert given_up <= ties.MOST and found.plan.solver.gap <= 1e-6, "the proof is of the best, not of the simplest"


def test_an_update_that_the_executor_runs_goes_before_another():
    tied, apart = erring(9e-3, 0.1, recompute_s=3.95e-4), erring(9e-3, 0.1, recompute_s=1e-5)
    assert tied.plan.job.rounds.short.train.recompute == "none"
    assert apart.plan.job.rounds.short.train.recompute == "selective", "40 times as fast is no tie"
    for found in (tied, apart):
        trains = [found.search.space.train[found.cycle.train], found.search.space.train[found.cycle.long_train]]
        assert ties.executable(found.cycle, trains) == (found is tied)
    said = tied.plan.job.why["ties"]
    assert "recompute selective" in said
    assert f"would be {100 * tied.plan.solver.given_up:.1f}% faster, within the costs' error" in said
    untied = erring(6.8e-3, 1e-4).plan
    assert untied.solver.given_up is None and "ties" not in untied.job.why


def test_of_the_same_layouts_one_of_the_fastest_issues_least():
    found = erring(9e-3, 0.1)
    search, best = found.search, found.solution.cycle
    alike = [c for c in whole(found) if c.long and ties.simplicity(search, c) == ties.simplicity(search, found.cycle)]
    above = [ties.cost_above(search, best, c) for c in alike]
    bar = (1 + ties.ALIKE) * (1 + min(above)) - 1
    assert ties.cost_above(search, best, found.cycle) <= bar + 1e-9
    issued = [ties.issued_per_trained(c, 8, 4) for c, cost in zip(alike, above, strict=True) if cost <= bar]
    assert len(issued) < len(alike), "slower ones that may issue less were looked at, too"
    assert ties.issued_per_trained(found.cycle, 8, 4) <= min(issued) + 1e-9
