"""How a trainer is built: what all its ranks share, as plain data that Ray can send. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...plans.schema.sections.algorithm import Algorithm
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


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """How the ranks of one trainer are built.

    Attributes:
        model_path: folder of a Hugging Face causal LM, or hub id.
        algorithm: the job's. (Its dynamic sampling happens before the trainer.)
        micro_batch_tokens: token budget (prompt and response) of one forward and backward.
        samples_per_prompt: size of a group.
        temperature: at which responses were sampled.
        divisors: what losses are divided by.
        ranks: data-parallel ranks.
        threads: torch threads of a rank on CPU.
        logprob_limits: how far log-probs of engine and trainer may differ; None: they are reported, without a limit.
        device: `cpu` or `cuda`.
        dtype: float32, bfloat16 or float16; `policy_model.py` says what is computed in what.
    """

    model_path: str
    algorithm: Algorithm
    micro_batch_tokens: int
    samples_per_prompt: int
    temperature: float
    divisors: Divisors
    ranks: int = 1
    threads: int = 1
    logprob_limits: LogprobLimits | None = None
    device: str = "cpu"
    dtype: str = "float32"
