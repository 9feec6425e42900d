"""Which rounds are worth simulating: within the job's limits and its data; and what is said where none are left."""

import dataclasses
import itertools
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from rlplan.planner.choose.candidates.candidate_rounds import accepted_share, cutoffs_between, over_issue
from rlplan.planner.choose.candidates.candidate_space import Space, enumerate_space
from rlplan.planner.choose.candidates.engine_layouts import node_counts
from rlplan.planner.choose.candidates.pool_choice import Unplannable
from rlplan.planner.choose.candidates.solve_options import SolveOptions
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.search_inputs import prepare
from rlplan.planner.simulate.whole_run import simulate_plan
from rlplan.plans.schema.algorithm import Algorithm
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.library import library_profile
from rlplan.rounds.round_spec import prompts_wanted

from ...golden import same_as_golden
from ..conftest import CAP, heavy_trace, laptop, rollout, small_job, small_profile
from ..gpu_run import gpu_cluster
from ..solutions import solve_afresh

P, N = 16, 8
CPU = {"kind": "cpu", "name": "cpu", "per_node": 2}


def job(sizes: dict[str, int] | None = None, tokens: int = 4096, **search: object) -> Job:
    """A job of 16 prompts x 8 samples, unless `sizes` say otherwise."""
    return small_job(sizes, search={"tp": [1], "micro_batch_tokens": [tokens], **search})


def space(of: Job | None = None, mode=None, trace=None, profile=None, cluster=None, prompts=None) -> Space:
    of = of or job()
    model = fit_lengths(trace or heavy_trace(), of.rollout.max_response_tokens)
    return enumerate_space(
        cluster or laptop(), of, profile or small_profile(), model, SolveOptions(mode=mode, prompts=prompts)
    )


def cutoffs(mode=None, **bounds: int) -> list[int]:
    short = space(job(max_over_issue=9.0, **({"cutoff_tokens": bounds} if bounds else {})), mode).short
    return sorted({key.cutoff_tokens for key in short if key.cutoff_tokens is not None})


# -- cutoffs -----------------------------------------------------------------------------------------------------------


def test_bounds_on_the_cutoff_are_tried_with_the_quantiles_between():
    free = cutoffs()
    low, high = free[1] + 1, free[-2] + 1
    assert cutoffs(min=low, max=high) == [low, *free[2:-1], high]
    assert cutoffs(min=low)[:2] == [low, free[2]] and cutoffs(max=high)[-1] == high
    assert cutoffs(min=low, max=low) == [low], "one that is fixed is not rounded"


def test_a_cutoff_out_of_reach_names_what_can_be_reached():
    with pytest.raises(Unplannable, match=r"cutoff_tokens: is 1, .* a cutoff of \d+ to \d+ tokens; write") as caught:
        cutoffs(min=1, max=1)
    assert (caught.value.document, caught.value.loc) == ("job", ("search", "cutoff_tokens"))
    lowest, highest = map(int, re.findall(r"of (\d+) to (\d+) tokens", str(caught.value))[0])
    assert cutoffs(min=lowest, max=lowest) == [lowest] and cutoffs(min=highest, max=highest) == [highest]
    for beyond in (lowest - 1, highest + 1):
        with pytest.raises(Unplannable):
            cutoffs(min=beyond, max=beyond)
    with pytest.raises(Unplannable, match=f"is {CAP} to {2 * CAP}, "):
        cutoffs(min=CAP, max=2 * CAP)
    assert cutoffs(mode="race", min=1, max=1) == [], "refused only where a mode has one"


def test_cutoffs_between_neighbours_are_rounded_and_new():
    assert cutoffs_between([1000, 2000, 2400], 4) == [1248, 1504, 1752, 2096, 2200, 2304]
    assert cutoffs_between([1000, 1008], 4) == cutoffs_between([1000], 2) == []


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_every_number_of_nodes_has_engines_and_updates_for_dollars():
    pool, model = gpu_cluster(nodes=7), {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"}
    of = small_job(
        {"prompts_per_step": 16, "samples_per_prompt": 8}, model=model, search={"tp": [2], "micro_batch_tokens": [4096]}
    )
    profile, lengths = library_profile("H800", "Qwen2.5-7B"), fit_lengths(heavy_trace(), CAP)
    for objective, counts in (("usd", set(range(1, 8))), ("seconds", {7})):
        found = enumerate_space(pool, of, profile, lengths, SolveOptions(mode="sync", objective=objective))
        assert {layout.engines // 4 for layout in found.decode} == counts
        assert {update.layout.accelerators // 8 for update in found.train} == counts
    many = node_counts(gpu_cluster(nodes=100).pools["main"], True)
    assert many[:16] == list(range(1, 17)) and many[-1] == 100
    assert all(b / a <= 17 / 16 for a, b in itertools.pairwise(many[15:]))


# -- over-issue --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1.0, 1.3, 2.0, 3.0])
def test_no_candidate_issues_more_than_the_job_allows(most):
    found, free = space(job(max_over_issue=most)), space(job(max_over_issue=99.0))
    assert found.short == tuple(key for key in free.short if over_issue(key.prompts, key.samples, P, N) <= most)
    assert all(key.copies <= most for key in found.long)
    if most == 2.0:  # room for RollPacker's quarter more of both
        assert any((key.mode, key.prompts, key.samples) == ("race", 20, 10) for key in found.short)


def test_modes_that_the_limit_on_over_issue_leaves_out_are_named():
    found = space(job(max_over_issue=1.0))
    assert {key.mode for key in found.short} == {"sync", "predict"}
    (refusal,) = [text for text in found.refused if "max_over_issue" in text]
    assert all(mode in refusal for mode in ("race", "defer", "exact"))
    with pytest.raises(Infeasible, match=r"search.max_over_issue is 1.*exact 1\..*raise it"):
        space(job(max_over_issue=1.0), "exact")


# -- few prompts -------------------------------------------------------------------------------------------------------

SMALL = job({"prompts_per_step": 8, "samples_per_prompt": 4})


def test_rounds_that_want_more_prompts_than_there_are_are_no_candidates():
    everything = space(SMALL)
    wanted = {k: prompts_wanted(k.mode, 8, k.prompts, k.long_share) for k in everything.short}
    for prompts in (8, 16, 24, 40, 10_000):
        found = space(SMALL, prompts=prompts)
        assert found.short == tuple(key for key in everything.short if wanted[key] <= prompts)
        assert {key.deferral for key in found.long} <= {key.deferral for key in found.short}
    assert found.short == everything.short and not any("prompts" in text for text in found.refused)


def test_with_one_steps_prompts_nothing_can_wait():
    found = space(SMALL, prompts=8)
    assert {(key.mode, key.prompts) for key in found.short} == {("sync", 8), ("race", 8)} and not found.long
    [why] = [text for text in found.refused if "prompts" in text]
    assert "8 prompts" in why
    for mode in ("defer", "exact", "predict"):
        assert f"{mode} " in why
        with pytest.raises(Infeasible, match=f"the data has 9 prompts; .*{mode} .*plan mode sync"):
            space(SMALL, mode, prompts=9)


def filtered_job() -> tuple[Job, LengthTrace]:
    """A job with dynamic sampling, and a trace whose odd prompts are always answered right."""
    algorithm = {"name": "grpo", "learning_rate": 1e-3, "dynamic_sampling": True}
    rows = heavy_trace().rows
    rows = [dataclasses.replace(r, reward=1.0) if int(r.prompt[1:]) % 2 else r for r in rows]
    return small_job({"prompts_per_step": P, "samples_per_prompt": N}, algorithm=algorithm), LengthTrace(rows, CAP)


def test_data_is_warned_of_that_is_too_small_for_refills():
    filtered, trace = filtered_job()

    def planned(prompts: int) -> tuple[float, list[str]]:
        """(share of the steps that train whole groups, what was warned of)."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan = solve_afresh(filtered, trace=trace, mode="sync", prompts=prompts).plan
        run = simulate_plan(plan, filtered, small_profile(), trace, steps=100, prompts=prompts)
        said = [str(w.message) for w in caught if "further prompts" in str(w.message)]
        return sum(step.groups == P for step in run.steps) / 100, said

    whole, [said] = planned(24)
    assert "the data has 24 prompts" in said and f"fewer than {P} groups" in said and "they train 48%" in said
    assert whole < 0.5
    whole, silence = planned(int(said.partition("want up to ")[2].partition(":")[0]))
    assert silence == [] and whole >= 0.99


def test_the_share_that_is_accepted_is_that_of_drawn_groups():
    filtered, trace = filtered_job()
    model, rng = fit_lengths(trace), np.random.default_rng(0)
    key = next(k for k in space(filtered, trace=trace).short if k.mode == "exact")
    indices = np.repeat(np.arange(len(model.prompt_ids)), 200)
    short = (model.draw_many(indices, (N,), rng) <= key.cutoff_tokens).all(axis=1)
    mixed = np.array([len(set(rng.choice(model.rewards[k], N))) > 1 for k in indices])
    assert accepted_share(model, key.cutoff_tokens, N, False) == pytest.approx(short.mean(), abs=0.02)
    assert accepted_share(model, key.cutoff_tokens, N, True) == pytest.approx((short & mixed).mean(), abs=0.02)
    assert accepted_share(model, None, N, False) == 1.0


@pytest.mark.parametrize("filters", [False, True])
def test_rows_issue_beyond_their_need_by_how_much_it_scatters(filters):
    filtered, trace = filtered_job() if filters else (job(), heavy_trace())
    free = filtered.model_copy(update={"search": filtered.search.model_copy(update={"max_over_issue": 99.0})})
    model, keys = fit_lengths(trace), [k for k in space(free, trace=trace).short if k.mode == "exact"]
    beyond = []
    for key in keys:
        accepted = accepted_share(model, key.cutoff_tokens, N, filters)
        rows, scatter = key.prompts - P / accepted, math.sqrt(P * (1.0 - accepted)) / accepted
        assert rows <= 2.5 * scatter + 1
        beyond.append(rows / scatter)
    assert sum(each >= 2.5 for each in beyond) >= len({key.cutoff_tokens for key in keys})
    # With filters also rows that are issued as if there were none, which the limit on over-issue may ask for.
    assert min(beyond) < 0 if filters else min(beyond) >= 0.5


# -- nothing left ------------------------------------------------------------------------------------------------------


def without(**changes: object) -> LengthTrace:
    """The trace with the same lengths of all responses."""
    return LengthTrace([dataclasses.replace(row, **changes) for row in heavy_trace().rows])


def of_gpus(per_node: int, model: str) -> dict[str, object]:
    accelerators = {"kind": "cuda", "name": "H100", "per_node": per_node, "memory_bytes": 80 * 10**9}
    return {"profile": library_profile("H100", model), "cluster": gpu_cluster(accelerators=accelerators)}


NOTHING_LEFT = {
    "a model too large for a node": {"of": job(tp=[1, 4, 8]), **of_gpus(8, "Qwen2.5-72B")},
    "a model too large for an accelerator": {**of_gpus(1, "Qwen2.5-14B")},
    "no GPUs in the profile": {"cluster": gpu_cluster()},
    "tensor parallelism that nobody measured": {"of": job(tp=[16])},
    "micro-batches that nobody measured": {"of": job(tokens=9999)},
    "an engine too small": {"profile": small_profile(rollout=(rollout(1, 2, 7e-3, 6e-5, kv_capacity_tokens=500),))},
    "host memory too small": {"cluster": laptop(host_memory_bytes=10**9)},
    "accelerators too small": {"cluster": laptop(accelerators={**CPU, "memory_bytes": 10**8})},
    "all at the cap": {"mode": "exact", "trace": without(tokens=CAP, truncated=True)},
    "all equally long": {"mode": "exact", "trace": without(tokens=30, truncated=False)},
}


def test_why_nothing_is_left_is_told():
    told = []
    for name, given in NOTHING_LEFT.items():
        with pytest.raises(Infeasible) as error:
            space(**{"mode": "sync", **given})
        told.append(f"{name}: {error.value}")
    same_as_golden(told, Path(__file__).with_name("golden") / "nothing_left.txt")


@pytest.mark.parametrize("keys", [{"loss_aggregation": "step-token-mean"}, {"name": "reinforce_plus_plus_baseline"}])
def test_a_loss_by_the_steps_own_counts_leaves_mode_sync_alone(keys) -> None:
    plain = job()
    algorithm = Algorithm.model_validate({"name": "grpo", "learning_rate": 1e-6, **keys})
    own, documents = plain.model_copy(update={"algorithm": algorithm}), (small_profile(), heavy_trace())
    free, sync = (prepare(laptop(), each, *documents, SolveOptions()) for each in (plain, own))
    assert {key.mode for key in sync.space.short} == {"sync"} < {key.mode for key in free.space.short}
    with pytest.raises(Unplannable, match=r"^algorithm\.\w+: is .*mode exact; write --mode sync") as caught:
        prepare(laptop(), own, *documents, SolveOptions(mode="exact"))
    assert (caught.value.document, caught.value.loc) == ("job", ("algorithm", *keys))
