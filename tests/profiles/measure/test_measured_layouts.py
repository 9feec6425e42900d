"""Which engine sets are measured."""

import pytest

from rlplan.plans.schema.cluster import Pool
from rlplan.profiles.measure.measured_layouts import layouts_to_measure


def pool(per_node: int, nodes: int = 1) -> Pool:
    return Pool.model_validate(
        {
            "nodes": nodes,
            "accelerators": {"kind": "cuda", "name": "gpu", "per_node": per_node, "memory_bytes": 10**10},
            "cores": 16,
            "host_memory_bytes": 10**11,
            "usd_per_node_hour": 1.0,
        }
    )


def test_one_engine_and_as_many_as_fit_for_each_size() -> None:
    assert layouts_to_measure([1, 2, 4], pool(4), (8, 8)) == [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)]
    assert layouts_to_measure([8], pool(8, nodes=2), None) == [(8, 1), (8, 2)]


def test_sizes_that_do_not_divide_the_heads_or_do_not_fit_a_node_are_left_out() -> None:
    assert layouts_to_measure([1, 2, 3, 4, 8], pool(4), (12, 2)) == [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)]
    assert layouts_to_measure([1, 3], pool(4), (12, 2)) == [(1, 1), (1, 4)]


def test_nothing_that_fits_is_an_error_that_names_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"\[2\].*4 accelerators.*3 attention and 3 KV heads"):
        layouts_to_measure([2], pool(4), (3, 3))
