"""Weight sync: the trainer's weights go to the engines of a round, through one file that names their version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..engines.engine_handle import EngineHandle
from ..engines.fleet import Fleet
from ..faults import ActorFailed
from ..supervision import again_while_it_passes
from ..trainer.trainer_group import TrainerGroup, while_trainer_lives


async def sync_weights(
    trainer: TrainerGroup, fleet: Fleet, engines: Sequence[EngineHandle], path: Path, version: str, checked: bool
) -> int:
    """Write the trainer's weights to `path` and load them into every engine that is up, at least one.

    Returns how many engines received other bytes than the trainer wrote, which is compared if `checked`. An engine
    that is being replaced is waited for only if there is no other; it joins the round when it is up.
    """
    expected = await again_while_it_passes(lambda: trainer.export(path, version))
    mismatches = loaded = 0
    while not loaded:
        for engine in await while_trainer_lives(trainer, fleet.some_ready(engines)):
            try:
                received = await engine.load(str(path), version, checked)
            except ActorFailed:  # its replacement has begun; the fleet tells of it
                continue
            loaded += 1
            mismatches += checked and received != expected
    return mismatches
