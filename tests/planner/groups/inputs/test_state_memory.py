"""Footprints in host memory against the published table (RollMux, arXiv 2512.11306, Table 2)."""

import pytest

from rlplan.planner.groups.inputs.state_memory import WEIGHT_BYTES, pinned_weight_bytes, rollout_bytes, train_bytes
from rlplan.plans.facts.model_names import architecture_of
from rlplan.plans.facts.public_models import ARCHITECTURES

# What the module claims.
LARGEST_ERROR = 0.08


# model, GB and TP of its rollout on an 8-GPU node, GB and TP of its training, nodes of its training (paper's Table 3)
@pytest.mark.parametrize(
    ("model", "rollout_gb", "rollout_tp", "train_gb", "train_tp", "nodes"),
    [
        ("Qwen2.5-3B", 113.4, 1, 156.2, 1, 1),
        ("Qwen2.5-7B", 275.7, 1, 240.0, 2, 1),
        ("Qwen2.5-14B", 445.4, 1, 456.1, 2, 1),
        ("Qwen2.5-32B", 490.3, 2, 520.4, 4, 2),
    ],
)
def test_published_footprints_are_met(model, rollout_gb, rollout_tp, train_gb, train_tp, nodes):
    a = architecture_of(model)
    assert rollout_bytes(a, 8, rollout_tp) / 1e9 == pytest.approx(rollout_gb, rel=LARGEST_ERROR)
    assert train_bytes(a, 8, train_tp, nodes) / 1e9 == pytest.approx(train_gb, rel=LARGEST_ERROR)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("model", ARCHITECTURES, ids=lambda a: a.name)
def test_one_copy_fewer_nodes_and_fewer_accelerators_take_less(model, tp):
    for footprint in (rollout_bytes, lambda a, g, tp, copies: train_bytes(a, g, tp, 1, copies)):
        one, each = footprint(model, 8, tp, "one"), footprint(model, 8, tp, "per_replica")
        assert one == each if tp == 8 else one < each
    assert train_bytes(model, 8, tp, 2) < train_bytes(model, 8, tp, 1), "nodes share the optimizer"
    assert rollout_bytes(model, 4, min(tp, 4)) < rollout_bytes(model, 8, min(tp, 4))
    weights = WEIGHT_BYTES * model.parameters
    assert 0.97 * weights <= pinned_weight_bytes(model, tp) <= 2 * weights * 1.01, "rounded up to powers of two"
