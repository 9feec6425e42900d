"""For tests: a training law by the data sheets with every factor at its prior, and layouts of updates."""

import math
from typing import Any

from rlplan.plans.schema.levers import UpdateLayout
from rlplan.profiles.laws.train_law import FACTORS
from rlplan.profiles.phase_schema import TrainLaw


def neutral() -> dict[str, float]:
    """Each factor at the centre of its prior."""
    return {factor.name: math.exp(factor.log_mean) for factor in FACTORS}


def train_law(model: str = "Qwen2.5-7B", accelerator: str = "H100") -> TrainLaw:
    return TrainLaw(
        model=model,
        accelerator=accelerator,
        factors=neutral(),
        memory_factors={"activations": 1.0, "rest": 1.0},
        fabric_bytes_per_s=5e10,
        accelerators_per_node=8,
        error=0.2,
        memory_error=0.1,
        source="test",
    )


def update_layout(dp: int = 1, **changes: Any) -> UpdateLayout:
    """An update of so many replicas with micro-batches of 16,384 tokens, which computes all activations again."""
    return UpdateLayout(**{"dp": dp, "micro_batch_tokens": 16384, "recompute": "full", **changes})
