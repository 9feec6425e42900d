"""Checkpoints of a run: the trainer's state and the schedule's, together or not at all.

Invariant: a folder `checkpoints/step-NNNNNN` exists only if it is whole. It is written under a temporary name and
renamed, so a crash at any instant leaves the previous checkpoint as the latest.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ..plans.errors import InputError
from .trainers import TrainerGroup

KEEP = 2  # the latest, and the one before it in case the disk lied


async def save_checkpoint(run_dir: Path, step: int, state: dict[str, Any], trainer: TrainerGroup) -> Path:
    """Write the checkpoint of `step` and drop all but the last `KEEP`. Returns its folder."""
    folder = run_dir / "checkpoints"
    final = folder / f"step-{step:06d}"
    partial = folder / f".partial-{step:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    await trainer.save(partial / "trainer")
    with (partial / "state.json").open("w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    for old in checkpoints(run_dir)[:-KEEP]:
        shutil.rmtree(old)
    return final


def checkpoints(run_dir: Path) -> list[Path]:
    """Whole checkpoints of a run, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step-*"))


async def load_checkpoint(run_dir: Path, trainer: TrainerGroup) -> dict[str, Any]:
    """Load the latest checkpoint into `trainer` and return the rest of the state.

    Raises InputError if there is none.
    """
    found = checkpoints(run_dir)
    if not found:
        raise InputError("there is no checkpoint to resume from; run without --resume", str(run_dir))
    state: dict[str, Any] = json.loads((found[-1] / "state.json").read_text(encoding="utf-8"))
    await trainer.load(found[-1] / "trainer")
    return state
