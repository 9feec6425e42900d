"""Footprints in host memory against the published table (RollMux, arXiv 2512.11306, Table 2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.groups.inputs.state_memory import WEIGHT_BYTES, pinned_weight_bytes, rollout_bytes, train_bytes
from rlplan.profiles.architecture import ARCHITECTURES, architecture_of

# model, GB and TP of its rollout on an 8-GPU node, GB and TP of its training, nodes of its training (paper's Table 3)
PUBLISHED = [
    ("Qwen2.5-3B", 113.4, 1, 156.2, 1, 1),
    ("Qwen2.5-7B", 275.7, 1, 240.0, 2, 1),
    ("Qwen2.5-14B", 445.4, 1, 456.1, 2, 1),
    ("Qwen2.5-32B", 490.3, 2, 520.4, 4, 2),
]
# What the module claims.
LARGEST_ERROR = 0.08


@pytest.mark.parametrize(("model", "rollout_gb", "rollout_tp", "train_gb", "train_tp", "nodes"), PUBLISHED)
def test_published_footprints_are_met_within_the_claimed_error(
    model, rollout_gb, rollout_tp, train_gb, train_tp, nodes
):
    a = architecture_of(model)
    assert rollout_bytes(a, 8, rollout_tp) / 1e9 == pytest.approx(rollout_gb, rel=LARGEST_ERROR)
    assert train_bytes(a, 8, train_tp, nodes) / 1e9 == pytest.approx(train_gb, rel=LARGEST_ERROR)


models = st.sampled_from(ARCHITECTURES)
sizes = st.sampled_from([1, 2, 4, 8])


@given(models, sizes, sizes)
def test_one_copy_never_takes_more_and_the_same_where_a_node_holds_one_replica(a, accelerators, tp):
    tp = min(tp, accelerators)
    for footprint in (rollout_bytes, lambda a, g, tp, copies: train_bytes(a, g, tp, 1, copies)):
        one, each = footprint(a, accelerators, tp, "one"), footprint(a, accelerators, tp, "per_replica")
        assert one == each if tp == accelerators else one < each


@given(models, sizes)
def test_pinned_weights_take_between_their_own_bytes_and_twice_as_many(a, tp):
    weights = WEIGHT_BYTES * a.parameters
    assert 0.97 * weights <= pinned_weight_bytes(a, tp) <= 2 * weights * 1.01


@given(models, sizes)
def test_more_nodes_share_the_optimizer_and_fewer_accelerators_need_less(a, tp):
    assert train_bytes(a, 8, tp, 2) < train_bytes(a, 8, tp, 1)
    assert rollout_bytes(a, 4, min(tp, 4)) < rollout_bytes(a, 8, min(tp, 4))
