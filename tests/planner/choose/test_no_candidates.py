"""Where nothing is left to plan with, the message says what lacks, and how much of it."""

import dataclasses

import pytest

from rlplan.planner.choose.candidates.candidate_space import enumerate_space
from rlplan.planner.choose.round_program import solve_program
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.plans.yaml.errors import Infeasible
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.library import library_profile

from ..conftest import CAP, heavy_trace, laptop, small_job, small_profile
from ..costs.test_memory_table import gpu_job, gpu_pool
from .test_round_program import NEEDS_LONG, SYNC, A, P, ShortKey, column, limits


def said(profile, job, trace=None, cluster=None, modes=("sync",)):
    """Why there is no candidate."""
    model = fit_lengths(trace or heavy_trace(), job.rollout.max_response_tokens)
    with pytest.raises(Infeasible) as error:
        enumerate_space(cluster or laptop(), job, profile, model, modes)
    return str(error.value)


def test_a_model_too_large_for_the_nodes_is_told_the_memory_that_lacks():
    job = gpu_job().model_copy(update={"search": gpu_job().search.model_copy(update={"tp": (4, 8)})})
    text = said(library_profile("H100", "Qwen2.5-72B"), job, cluster=gpu_pool(1))
    assert "the one that takes least memory needs 92.91 GB" in text and "76 GB of its 80 GB may be planned" in text
    assert "more nodes" in text and "micro-batch" not in text


def test_a_pool_of_one_accelerator_is_told_so_in_the_singular():
    accelerators = {"kind": "cuda", "name": "H100", "per_node": 1, "memory_bytes": 80 * 10**9}
    cluster = laptop(accelerators=accelerators, host_memory_bytes=2 * 10**12)
    text = said(
        library_profile("H100", "Qwen2.5-14B"),
        small_job(search={"tp": [1], "micro_batch_tokens": [4096]}),
        cluster=cluster,
    )
    assert "of the ways to train on 1 accelerator, the one that takes least memory needs" in text


def test_a_tensor_parallelism_that_nobody_measured_is_named_once_beside_those_that_are_there():
    text = said(small_profile(), small_job(search={"tp": [16], "micro_batch_tokens": [4096]}))
    assert text.count("search.tp") == 2 and "search.tp [16] has none of the profile's 1, 2; add" in text


def test_micro_batches_that_were_not_measured_are_named():
    text = said(small_profile(), small_job(search={"tp": [1], "micro_batch_tokens": [9999]}))
    assert "measured with micro-batches of [" in text and "search.micro_batch_tokens [9999]" in text


def test_a_forced_exact_mode_without_a_cutoff_says_why_and_blames_no_dynamic_sampling():
    trace, job = heavy_trace(), small_job()
    full = [dataclasses.replace(row, tokens=CAP, truncated=True) for row in trace.rows]
    text = said(small_profile(), job, LengthTrace(full), modes=("sync", "exact"))
    assert f"none of the groups end below the cap of {CAP} tokens; raise rollout.max_response_tokens" in text
    even = [dataclasses.replace(row, tokens=30, truncated=False) for row in trace.rows]
    text = said(small_profile(), job, LengthTrace(even), modes=("sync", "exact"))
    assert "all about equally long" in text and "dynamic" not in text


@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic_sampling_is_blamed_for_rounds_that_train_nothing_only_where_it_is_on(dynamic):
    empty = column(ShortKey("sync", SYNC.prompts, SYNC.samples, None, A), [1.0], groups=0.0)
    with pytest.raises(Infeasible) as error:
        solve_program([empty], [], NEEDS_LONG, limits(), P, dynamic_sampling=dynamic)
    assert ("algorithm.dynamic_sampling" in str(error.value)) is dynamic
