"""The file with the names of nodes: every mistake in one line with its place."""

from __future__ import annotations

import pytest

from rlplan.plans.export.node_names import load_node_names
from rlplan.plans.yaml.errors import InputError

NEEDED = {"roll": 2, "train": 1}


def test_names_come_by_pool_more_than_needed_are_no_fault_and_a_pool_may_be_left_out(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text("roll: [gpu-1, gpu-2.zone-b.example, spare]\n")
    assert load_node_names(path, NEEDED) == {"roll": ("gpu-1", "gpu-2.zone-b.example", "spare")}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("- gpu-1\n", 1, "a mapping of pools"),
        ("roll: [a, b]\nlab: [c]\n", 2, "the plan uses no pool 'lab'; its pools are roll, train"),
        ("roll: [a]\n", 1, "has 1 name, and the plan takes 2 nodes"),
        ("roll: gpu-1\n", 1, "must be a list"),
        ("roll: null\n", 1, "must be a list"),
        ("roll:\n  - a\n  - GPU_2\n", 3, "'GPU_2' cannot be the name"),
        ("roll:\n  - a\n  - 'b; rm x'\n", 3, "cannot be the name"),
        ("roll:\n  - a\n  - 7\n", 3, "'7' cannot be the name"),
        (f"roll: [a, {'b' * 254}]\n", 1, "cannot be the name"),
        ("roll: [a, b]\ntrain: [a]\n", 2, "'a' is already in pool 'roll'"),
    ],
)
def test_a_mistake_is_named_at_its_line(text, line, words, tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"nodes\.yaml") as refused:
        load_node_names(path, NEEDED)
    assert refused.value.line == line and words in str(refused.value)


def test_all_mistakes_are_named_at_once(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text("roll: [A, a, a]\nlab: [c]\n")
    with pytest.raises(InputError) as refused:
        load_node_names(path, NEEDED)
    assert len(refused.value.lines()) == 3
