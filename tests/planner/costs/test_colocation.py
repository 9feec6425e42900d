"""Engines and trainers that share GPUs pay for their turns in every step, whichever layouts follow each other."""

import dataclasses
from types import SimpleNamespace

import pytest

from rlplan.planner.costs.colocation import (
    HOST_COPY_BYTES_PER_S,
    LINK_ERROR,
    MAP_BYTES_PER_S,
    host_bytes_per_s,
    sleep_and_wake_s,
    staging_s,
    trained_parameters,
    turns_text,
)
from rlplan.planner.costs.decode_costs import decode_cost, engines_of
from rlplan.planner.costs.host_memory import trainers_on_host
from rlplan.planner.costs.job_pools import JobPools, NodesTaken
from rlplan.planner.costs.memory_table import memory_table
from rlplan.planner.costs.update_costs import train_cost, train_cost_in
from rlplan.planner.explain import cost_error, predictions
from rlplan.plans.schema.sections.layouts import EngineLayout
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.laws.train_layouts import physics_of
from rlplan.profiles.library import library_profile

from ...profiles.public_laws import update_layout
from ..conftest import small_profile
from ..gpu_run import solved_on_gpus
from .test_memory_table import gpu_pool


@pytest.mark.parametrize(("gb", "measured_s"), [(61, 2.8), (61, 2.9), (59, 5.9), (59, 5.4)])
def test_the_law_is_within_a_factor_of_one_point_six_of_what_sleep_mode_took(gb, measured_s):
    priced_s = gb * 1e9 / host_bytes_per_s(GPUS["A100"])
    assert 1 / 1.6 < priced_s / measured_s < 1.6


def test_a_weight_transfer_on_shared_gpus_holds_the_sleep_and_wake_of_the_engines():
    profile = library_profile("H100", "Qwen2.5-32B")
    for entry in profile.rollout:
        cost, turns_s = decode_cost(profile, entry), sleep_and_wake_s(profile, entry.tp)
        assert cost.sync_s == pytest.approx(entry.sync.p50 + turns_s) and turns_s > 0.1


def test_sleep_of_level_2_frees_an_engines_share_of_a_gpu_and_takes_it_again_and_moves_nothing_to_the_host():
    profile = library_profile("H100", "Qwen2.5-32B")
    for tp in (2, 4, 8):
        assert sleep_and_wake_s(profile, tp) == pytest.approx(2 * 0.9 * 80e9 / MAP_BYTES_PER_S)
    pool = gpu_pool().pools["main"]
    bars = memory_table(
        profile, JobPools(pool), 2, NodesTaken(8), [(engines_of(profile, EngineLayout(4, 16)), update_layout(64))]
    )
    assert not any("engine_weights" in bar.holds_bytes for bar in bars if bar.place == "host")


@pytest.mark.parametrize(("gib", "measured_s"), [(32.13, 0.12), (47.40, 0.31)])
def test_the_rate_of_sleep_is_within_a_factor_of_one_point_four_of_what_level_2_took(gib, measured_s):
    assert 1 / 1.4 < gib * 2**30 / MAP_BYTES_PER_S / measured_s < 1.4


def test_what_was_measured_and_what_does_not_sleep_is_not_charged():
    profile = small_profile()
    assert sleep_and_wake_s(profile, 1) == 0.0
    assert decode_cost(profile, profile.rollout[0]).sync_s == profile.rollout[0].sync.p50
    measured = library_profile("H100", "Qwen2.5-32B").model_copy(update={"provenance": "measured"})
    assert sleep_and_wake_s(measured, 8) == 0.0


def test_turns_that_were_measured_are_charged_as_they_were():
    shipped = library_profile("H100", "Qwen2.5-32B")
    update = update_layout(64)
    entry = small_profile().train[0].model_copy(update={"moves_s": 0.7, **update.model_dump()})
    rollout = tuple(each.model_copy(update={"sleep_s": 0.25, "wake_s": 0.5}) for each in shipped.rollout)
    measured = shipped.model_copy(update={"provenance": "measured", "rollout": rollout, "train": (entry,)})
    assert sleep_and_wake_s(measured, 8) == 0.75
    of_eight = next(each for each in measured.rollout if each.tp == 8)
    assert decode_cost(measured, of_eight).sync_s == pytest.approx(of_eight.sync.p50 + 0.75)
    assert train_cost(entry).step_s == pytest.approx(entry.step_s + 0.7)
    assert turns_text(measured, [(8, update)]) == (
        "engines sleep and wake in 0.75 s of each step, optimizer states leave the GPUs and come back in 0.7 s"
    )
    assert turns_text(measured.model_copy(update={"rollout": shipped.rollout}), [(8, update)]) is None


@pytest.mark.parametrize(("ranks", "stays", "stays_offloaded"), [(64, 12, 4), (16, 4, 4), (4, 0, 0)])
def test_states_that_do_not_fit_beside_engines_and_offloaded_moments_cost_their_way_over_the_host_link(
    ranks, stays, stays_offloaded
):
    """Of 12 bytes of a parameter's states, those that fit into the 4 GB that engines leave of a GPU stay."""
    profile = library_profile("H100", "Qwen2.5-7B")
    physics, link, share = physics_of(profile.train_law), 0.47 * 64e9, 7.615617e9 / ranks  # of PCIe 5
    seconds = []
    for offload, on_device, kept in ((False, 12, stays), (True, 4, stays_offloaded)):
        layout = update_layout(ranks, recompute="full", offload=offload)
        cost = train_cost_in(profile, layout)
        assert kept * share <= 0.05 * physics.gpu.memory_bytes
        moved_s = cost.step_s - physics.update(layout).step_s
        assert moved_s == pytest.approx(2 * (on_device - kept) * share / link, rel=1e-3)
        assert cost.host_link_s == pytest.approx(moved_s + (2 * 8 * share / link if offload else 0.0), rel=1e-3)
        seconds.append(cost.step_s)
    # Moments that do not stay move once there and back, in the step or between steps.
    more_s = 2 * 8 * share / link if stays == 12 else 0.0
    assert seconds[1] - seconds[0] == pytest.approx(more_s, rel=1e-3, abs=1e-9)


def test_states_that_move_over_the_host_link_have_an_error_of_their_own():
    documents = solved_on_gpus()
    profile = documents.profile
    cost = train_cost_in(profile, update_layout(8, offload=True))
    stays = dataclasses.replace(cost, host_link_s=0.0)
    law_off_s = cost_error._train_off_s(profile, stays, cost.step_s)
    assert law_off_s == pytest.approx(cost.step_s * cost_error.update_error(profile, cost))
    only_moves = cost_error._train_off_s(profile, cost, cost.host_link_s)
    assert only_moves == pytest.approx(LINK_ERROR * cost.host_link_s) and cost.host_link_s > 0


def test_a_plan_on_gpus_pays_for_turns_with_one_layout_and_says_so():
    documents = solved_on_gpus()
    planned, predicted = documents.plan.job, documents.plan.predicted
    tp = planned.rounds.short.rollout.tp
    (entry,) = [e for e in documents.profile.rollout if e.tp == tp]
    turns_s = sleep_and_wake_s(documents.profile, tp)
    assert predicted.rounds.short.sync_s == pytest.approx(entry.sync.p50 + turns_s)
    assert f"engines sleep and wake in {turns_s:.2g} s of each step" in planned.why["colocation"]


def test_a_checkpoint_stops_training_for_the_way_of_a_ranks_states_to_host_memory():
    profile = library_profile("H100", "Qwen2.5-32B")
    link = host_bytes_per_s(GPUS["H100"])
    share = 32.76e9 / 64
    assert staging_s(profile, update_layout(64)) == pytest.approx(12 * share / link, rel=1e-3)
    # Offloaded moments are in host memory already, and are copied there: the update would change them.
    offloaded_s = staging_s(profile, update_layout(64, offload=True))
    assert offloaded_s == pytest.approx(share * (4 / link + 8 / HOST_COPY_BYTES_PER_S), rel=1e-3)
    on_cpu = small_profile(model_parameters=10**9)
    assert staging_s(on_cpu, update_layout(2)) == pytest.approx(6e9 / HOST_COPY_BYTES_PER_S)


def test_a_plan_says_what_a_checkpoint_takes():
    documents = solved_on_gpus()
    planned, taken = documents.plan.job, documents.plan.predicted.checkpoint
    layout, parameters = planned.rounds.short.train, documents.profile.model_parameters
    assert taken.bytes == pytest.approx(12 * parameters)
    assert taken.rank_bytes == pytest.approx(12 * trained_parameters(documents.profile, layout), rel=1e-4)
    assert taken.stood_s == pytest.approx(staging_s(documents.profile, layout), rel=1e-4)


def test_ranks_copy_for_a_checkpoint_what_the_host_table_holds_embeddings_of_tensor_ranks_included():
    profile, layout = library_profile("H100", "Qwen2.5-32B"), update_layout(8, tp=8)
    held = trainers_on_host(profile, gpu_pool().pools["main"], 2, layout, 8, "train")["checkpoint_copy"]
    cost = train_cost_in(profile, layout)
    taken = predictions._checkpoint(profile, [SimpleNamespace(train=cost)])
    assert 8 * taken.rank_bytes == pytest.approx(held)
    assert taken.rank_bytes > 1.1 * taken.bytes / 64
    assert taken.stood_s == pytest.approx(taken.rank_bytes / host_bytes_per_s(GPUS["H100"]))
