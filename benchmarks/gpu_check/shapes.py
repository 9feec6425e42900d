"""The shapes of models that the GPU check tries, and which of them the minutes last for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlplan.plans.facts.public_models import Architecture, public_model
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.laws.rank_memory import GRADIENT_BYTES, MASTER_BYTES, STATE_BYTES

WORK_BYTES = 8 * 2**30
"""Room on a GPU beside what a trainer holds all the time: a guess."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape to try.

    Attributes:
        name: as in --shapes.
        architecture: sizes of the model.
        minutes: that all of its parts take about, starts of engines included. On GPUs these are guesses (a start of
            vLLM that compiles and captures graphs: about a minute, twice); a shape is begun if as much is left.
    """

    name: str
    architecture: Architecture
    minutes: float

    @property
    def device_bytes(self) -> float:
        """Bytes of memory that one GPU needs to train the shape alone, with AdamW's moments in host memory: weights and
        gradients in 32 bits, and room for activations and gathered layers. Engines have the GPU in turns with it."""
        return (MASTER_BYTES + GRADIENT_BYTES) * self.architecture.parameters + WORK_BYTES

    @property
    def state_bytes(self) -> float:
        """Bytes of a trainer's state where it waits, in host memory or in a checkpoint: weights and moments."""
        return STATE_BYTES * self.architecture.parameters


def _qwen(size: str, minutes: float) -> Shape:
    architecture = public_model(f"Qwen2.5-{size}")
    assert architecture is not None, size
    return Shape(size.lower(), architecture, minutes)


TINY = Architecture("tiny", 2, 64, 2, 2, 32, 512, 128, tied=True)

SHAPES = {
    shape.name: shape for shape in (Shape("tiny", TINY, 2.0), _qwen("0.5B", 2.5), _qwen("1.5B", 3.0), _qwen("7B", 4.5))
}
"""By name, smallest first."""


def chosen(names: str) -> list[Shape]:
    """The shapes of a list such as `0.5b,7b`, smallest first. Raises InputError for a name that is none of them."""
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in SHAPES]
    if unknown or not wanted:
        raise InputError(f"--shapes {names!r}: write some of {', '.join(SHAPES)}, with commas between them")
    return [shape for name, shape in SHAPES.items() if name in wanted]


def reason_against(shape: Shape, left_s: float, memory_bytes: Sequence[int]) -> str | None:
    """Why a shape is not tried with `left_s` seconds left on GPUs of so much memory each (none on a CPU); None: it is.

    The first shape should be tried in any case: whoever asks gives it `math.inf` seconds.
    """
    if memory_bytes and min(memory_bytes) < shape.device_bytes:
        needed, there = shape.device_bytes / 2**30, min(memory_bytes) / 2**30
        return f"its trainer needs about {needed:.0f} GiB of one GPU, which has {there:.0f} GiB"
    if left_s < 60 * shape.minutes:
        return f"takes about {shape.minutes:g} minutes, and {max(left_s, 0) / 60:.1f} of --minutes are left"
    return None
