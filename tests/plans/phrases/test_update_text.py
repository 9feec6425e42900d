"""The text on an update layout, which tables, reasons, pages and messages share."""

from __future__ import annotations

import itertools

import pytest

from rlplan.plans.page.decision_tables import value_text
from rlplan.plans.phrases.update_text import trainers_text, update_text
from rlplan.plans.schema.sections.layouts import UpdateLayout
from rlplan.plans.yaml.yaml_io import dump, loads

SIZES = [name for name in UpdateLayout.model_fields if len(name) == 2]


def test_sizes_above_1_and_options_that_are_on_are_named() -> None:
    plain = UpdateLayout(dp=1, micro_batch_tokens=4096)
    assert (trainers_text(plain), update_text(plain)) == ("dp 1", "dp 1, micro-batches of 4096 tokens")
    sharded = plain.model_copy(update={"tp": 2, "sp": 4, "recompute": "full", "offload": True})
    assert update_text(sharded) == "tp 2, sp 4, recompute full, offload, micro-batches of 4096 tokens"


def test_layouts_that_differ_in_any_key_have_different_texts() -> None:
    """So that a message that compares a plan's layout with measured ones never shows the same on both sides."""
    values = {key: (1, 2) for key in ("dp", "tp", "pp", "cp", "sp", "ep", "micro_batch_tokens")}
    values |= {"recompute": ("none", "full", "selective"), "offload": (False, True)}
    assert set(values) == set(UpdateLayout.model_fields)
    layouts = [UpdateLayout(**dict(zip(values, each, strict=True))) for each in itertools.product(*values.values())]
    assert len({update_text(layout) for layout in layouts}) == len(layouts)


@pytest.mark.parametrize("size", SIZES)
def test_each_size_above_one_is_named_and_no_other(size: str) -> None:
    layout = UpdateLayout(**{"dp": 1, "micro_batch_tokens": 512, size: 4})
    assert trainers_text(layout) == f"{size} 4"
    assert value_text(layout) == update_text(layout), "a page has the same text"


def test_a_plan_without_sequence_parallelism_has_the_bytes_that_it_had_before_there_was_any() -> None:
    plain, shared = (UpdateLayout(dp=1, sp=sp, micro_batch_tokens=512) for sp in (1, 2))
    assert "sp" not in dump(plain) and "sp: 2" in dump(shared)
    assert loads(dump(plain), UpdateLayout) == plain and loads(dump(shared), UpdateLayout) == shared
