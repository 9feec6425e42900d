"""An update layout in a few words: the same in tables, reasons, pages and messages."""

from __future__ import annotations

from ..schema.levers import UpdateLayout

SIZES = ("dp", "tp", "pp", "cp", "sp", "ep")


def trainers_text(train: UpdateLayout) -> str:
    """How the trainers share an update: the sizes above 1 (`dp 1` if there is none), recomputation and offload."""
    sizes = [f"{name} {size}" for name in SIZES if (size := getattr(train, name)) > 1] or ["dp 1"]
    sizes += [f"{train.state_copies} copies of the states"] * (train.state_copies > 1)
    options = [f"recompute {train.recompute}"] * (train.recompute != "none") + ["offload"] * train.offload
    return ", ".join([*sizes, *options])


def update_text(train: UpdateLayout) -> str:
    """`trainers_text` and the token budget of a micro-batch: all that an update is decided by."""
    return f"{trainers_text(train)}, micro-batches of {train.micro_batch_tokens} tokens"
