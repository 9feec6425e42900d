"""Layouts of trainers in tables and sentences: every size above 1 by its name, sizes of 1 left out."""

from __future__ import annotations

import pytest

from rlplan.cli.screens.rounds_table import trainers_text
from rlplan.planner.explain.decisions import _update
from rlplan.plans.page.decision_tables import value_text
from rlplan.plans.schema.sections.layouts import UpdateLayout
from rlplan.plans.yaml.yaml_io import dump, loads

SIZES = [name for name in UpdateLayout.model_fields if len(name) == 2]


@pytest.mark.parametrize("size", SIZES)
def test_each_size_above_one_is_named_and_no_other(size: str) -> None:
    layout = UpdateLayout(**{"dp": 1, "micro_batch_tokens": 512, size: 4})
    for text in (trainers_text(layout), _update(layout), value_text(layout).lower()):
        shown = [name for name in SIZES if f"{name} " in text]
        assert [name for name in shown if f"{name} 1" not in text] == [size] and f"{size} 4" in text
        assert set(shown) <= {"dp", size}, "how many replicas there are may always be told"


def test_a_plan_without_sequence_parallelism_has_the_bytes_that_it_had_before_there_was_any() -> None:
    plain, shared = (UpdateLayout(dp=1, sp=sp, micro_batch_tokens=512) for sp in (1, 2))
    assert "sp" not in dump(plain) and "sp: 2" in dump(shared)
    assert loads(dump(plain), UpdateLayout) == plain and loads(dump(shared), UpdateLayout) == shared
