"""How a trainer is built: what all its ranks share, as plain data that Ray can send. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...plans.schema.algorithm import Algorithm
from ...plans.schema.levers import LoraSpec
from .step_checks import LogprobLimits


class Divisors(NamedTuple):
    """What losses are divided by, the same in all steps of a run.

    Attributes:
        samples: samples in the loss of a synchronous step, as the plan states them.
        tokens: their response tokens, as the plan states them.
        max_response_tokens: the job's cap on a response.
    """

    samples: float
    tokens: float
    max_response_tokens: int


class UpdateSettings(NamedTuple):
    """How a step computes; kinds of round may differ in it.

    Attributes:
        micro_batch_tokens: token budget (prompt and response) of one forward and backward, for the ranks that share
            its tokens together.
        recompute: whether layers compute their activations again in the backward pass.
        offload: whether AdamW's moments are kept in host memory.
        norm_share: expected norm of the step's gradients over that of a synchronous step, to which `max_grad_norm` and
            AdamW's second moment refer.
        reference: where the reference's weights are, of a job with a KL; the same in all kinds of round.
    """

    micro_batch_tokens: int
    recompute: bool = False
    offload: bool = False
    norm_share: float = 1.0
    reference: Literal["none", "device", "host"] = "none"


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """How the ranks of one trainer are built.

    Attributes:
        model_path: folder of a Hugging Face causal LM, or hub id.
        algorithm: the job's. (Its dynamic sampling happens before the trainer.)
        update: how a step computes, unless it is told otherwise.
        samples_per_prompt: size of a group.
        temperature: at which responses were sampled.
        divisors: what losses are divided by.
        ranks: all ranks: dp x sp x tp.
        tp: ranks that share each layer's matrices.
        sp: ranks that share each sequence's tokens.
        state_copies: copies of weights, gradients and moments, each sharded over neighbouring ranks.
        threads: torch threads of a rank on CPU.
        logprob_limits: how far log-probs of engine and trainer may differ; None: they are reported, without a limit.
        device: `cpu` or `cuda`.
        dtype: float32, bfloat16 or float16; `policy/load_policy.py` says what is computed in what.
        head_dtype: what the head is computed in; None: as all else.
        compile: whether layers run compiled: on, off, or auto: where a GPU's first micro-batch gains by it.
        lora: the adapters that are trained in place of the weights; None: the weights are trained.
    """

    model_path: str
    algorithm: Algorithm
    update: UpdateSettings
    samples_per_prompt: int
    temperature: float
    divisors: Divisors
    ranks: int = 1
    tp: int = 1
    sp: int = 1
    state_copies: int = 1
    threads: int = 1
    logprob_limits: LogprobLimits | None = None
    device: str = "cpu"
    dtype: str = "float32"
    head_dtype: Literal["float32"] | None = None
    compile: Literal["auto", "on", "off"] = "auto"
    lora: LoraSpec | None = None

    @property
    def dp(self) -> int:
        """Replicas, each with a share of the batch."""
        return self.ranks // (self.tp * self.sp)
