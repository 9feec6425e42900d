"""How engines and updates are laid out over accelerators: the one type of each, for plans, profiles, costs and runs."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from ..base import Count, Recompute, Strict, cross_error, is_one


class EngineLayout(NamedTuple):
    """Rollout engines that run at once: accelerators per engine (tensor parallelism), and the number of engines."""

    tp: int
    engines: int

    def __str__(self) -> str:
        return f"{self.engines} x tp {self.tp}"


class UpdateLayout(Strict):
    """The trainers of a round; they take turns with the engines on the same pool."""

    dp: Count
    """Replicas, each with a share of the batch."""

    tp: Count = 1
    """Accelerators that share each layer's matrices (tensor parallelism)."""

    pp: Count = 1
    """Stages that the layers are split into (pipeline parallelism)."""

    cp: Count = 1
    """Accelerators that share each sequence and pass keys and values around (context parallelism, ring attention)."""

    sp: Annotated[Count, Field(exclude_if=is_one)] = 1
    """Accelerators that share each sequence by its tokens and swap them for attention heads (Ulysses)."""

    state_copies: Annotated[Count, Field(exclude_if=is_one)] = 1
    """Copies of weights, gradients and optimizer states, each sharded over neighbouring ranks, as those of a node
    (hybrid sharding). With 1 they are sharded over all ranks that train on different tokens (dp x cp x sp)."""

    ep: Count = 1
    """Accelerators among the replicas that share the experts of a mixture-of-experts model (expert parallelism)."""

    micro_batch_tokens: Count
    """Token budget of one packed micro-batch."""

    recompute: Recompute = "none"
    """Which activations are computed again in the backward pass instead of kept."""

    offload: bool = False
    """Keep the optimizer's state in host memory."""

    @model_validator(mode="after")
    def _copies_are_equal(self) -> UpdateLayout:
        if self.state_copies > 1 and (fault := copies_fault(self.state_copies, self.dp * self.cp * self.sp)):
            raise cross_error(fault, "state_copies")
        return self

    @property
    def replica(self) -> int:
        """Accelerators of one replica; `ep` takes none of its own."""
        return self.tp * self.pp * self.cp * self.sp

    @property
    def accelerators(self) -> int:
        """Accelerators of all replicas together."""
        return self.dp * self.replica

    @property
    def shard_ranks(self) -> int:
        """Ranks that share out one copy of the states, beside tensor ranks and stages, which divide the model."""
        return self.dp * self.cp * self.sp // self.state_copies


def copies_fault(copies: int, ranks: int) -> str | None:
    """What is wrong with so many copies of the states on so many ranks that train on different tokens; None if nothing
    is."""
    if ranks % copies == 0:
        return None
    return f"is {copies}, which does not divide dp x cp x sp {ranks}; write a size that does"
