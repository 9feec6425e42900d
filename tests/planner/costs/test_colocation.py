"""Engines and trainers that share GPUs pay for their turns in every step, whichever layouts follow each other."""

import pytest

from rlplan.planner.costs.colocation import (
    HOST_COPY_BYTES_PER_S,
    host_bytes_per_s,
    sleep_and_wake_s,
    staging_s,
)
from rlplan.planner.costs.decode_costs import decode_cost
from rlplan.planner.costs.update_costs import train_cost_in
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.laws.train_layouts import physics_of
from rlplan.profiles.library import library_profile

from ...profiles.public_laws import update_layout
from ..conftest import small_profile
from ..gpu_run import solved_on_gpus


@pytest.mark.parametrize(("gb", "measured_s"), [(61, 2.8), (61, 2.9), (59, 5.9), (59, 5.4)])
def test_the_law_is_within_a_factor_of_one_point_six_of_what_sleep_mode_took(gb, measured_s):
    priced_s = gb * 1e9 / host_bytes_per_s(GPUS["A100"])
    assert 1 / 1.6 < priced_s / measured_s < 1.6


def test_a_weight_transfer_on_shared_gpus_holds_the_sleep_and_wake_of_the_engines():
    profile = library_profile("H100", "Qwen2.5-32B")
    for entry in profile.rollout:
        cost, turns_s = decode_cost(profile, entry), sleep_and_wake_s(profile, entry.tp)
        assert cost.sync_s == pytest.approx(entry.sync.p50 + turns_s) and turns_s > 0.1
    seconds = [sleep_and_wake_s(profile, tp) for tp in (2, 4, 8)]
    assert seconds == pytest.approx([seconds[0], seconds[0] / 2, seconds[0] / 4])


def test_what_was_measured_and_what_does_not_sleep_is_not_charged():
    profile = small_profile()
    assert sleep_and_wake_s(profile, 1) == 0.0
    assert decode_cost(profile, profile.rollout[0]).sync_s == profile.rollout[0].sync.p50
    measured = library_profile("H100", "Qwen2.5-32B").model_copy(update={"provenance": "measured"})
    assert sleep_and_wake_s(measured, 8) == 0.0


def test_an_update_pays_for_the_way_of_weights_and_moments_once_offloaded_or_not():
    law = library_profile("H100", "Qwen2.5-7B").train_law
    physics = physics_of(law)
    seconds = []
    for offload in (False, True):
        layout = update_layout(16, recompute="full", offload=offload)
        moved_s = train_cost_in(law, layout).step_s - physics.update(layout).step_s
        # float32 weights and two moments of 7.6e9 parameters over 16 ranks, both ways over 47 % of PCIe 5
        share_bytes = 4 if offload else 12
        assert moved_s == pytest.approx(2 * share_bytes * 7.6e9 / 16 / (0.47 * 64e9), rel=0.01)
        seconds.append(train_cost_in(law, layout).step_s)
    # Offloaded moments move while the optimizer steps: what is saved is memory.
    assert seconds[1] == pytest.approx(seconds[0])


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
    assert staging_s(profile, 32e9, 64, offload=False) == pytest.approx(12 * 0.5e9 / link)
    # Offloaded moments are in host memory already, and are copied there: the update would change them.
    assert staging_s(profile, 32e9, 64, offload=True) == pytest.approx(0.5e9 * (4 / link + 8 / HOST_COPY_BYTES_PER_S))
    assert staging_s(small_profile(), 1e9, 2, offload=False) == pytest.approx(6e9 / HOST_COPY_BYTES_PER_S)


def test_a_plan_says_what_a_checkpoint_takes():
    documents = solved_on_gpus()
    planned, taken = documents.plan.job, documents.plan.predicted.checkpoint
    layout, parameters = planned.rounds.short.train, documents.profile.model_parameters
    assert taken.bytes == pytest.approx(12 * parameters) and taken.rank_bytes == taken.bytes / layout.accelerators
    assert taken.stood_s == pytest.approx(
        staging_s(documents.profile, parameters, layout.accelerators, layout.offload), rel=1e-4
    )
