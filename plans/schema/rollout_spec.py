"""Sections of job.yaml about sampling: how a step's samples are drawn, by which engines, and those of evaluations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .base import (
    MOST_PROMPTS_PER_STEP,
    MOST_SAMPLES_PER_STEP,
    Count,
    Strict,
    Tokens,
    cross_error,
    is_empty,
    is_none,
    is_one,
    is_zero,
)

TopP = Annotated[float, Field(gt=0, le=1, exclude_if=is_one)]
TopK = Annotated[int, Field(ge=0, exclude_if=is_zero)]
MinP = Annotated[float, Field(ge=0, lt=1, exclude_if=is_zero)]
StopText = Annotated[str, Field(min_length=1, max_length=200)]
Stops = Annotated[tuple[StopText, ...], Field(max_length=16, strict=False, exclude_if=is_empty)]
StopTokens = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=64, strict=False, exclude_if=is_empty)]


class RolloutSpec(Strict):
    """The size of a step and the limits of a sample."""

    prompts_per_step: Annotated[int, Field(ge=1, le=MOST_PROMPTS_PER_STEP)]
    """P: prompts trained in one step."""

    samples_per_prompt: Annotated[int, Field(ge=2, le=MOST_SAMPLES_PER_STEP)]
    """n: samples per prompt that are trained; at least 2, because advantages compare samples of one prompt."""

    max_prompt_tokens: Tokens
    """Longest prompt in tokens; a longer one is an error when the data is read."""

    max_response_tokens: Tokens
    """Cap on a response in tokens; a response that reaches it is truncated."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Sampling temperature; greedy decoding (0) gives equal samples, hence no advantages."""

    top_p: TopP = 1.0
    """Tokens are drawn from the likeliest ones alone whose chances add up to this; 1: from all. The update takes them
    as drawn from all of the policy's distribution, so below 1, as with `top_k` and `min_p`, it is biased."""

    top_k: TopK = 0
    """Tokens are drawn from so many of the likeliest alone; 0: from all."""

    min_p: MinP = 0.0
    """Tokens are drawn from those alone that have at least this share of the likeliest token's chance; 0: from all."""

    stop: Stops = ()
    """Texts that end a response beside the model's end token. The response is complete: with the text, which is trained
    on and which rewards read, and not truncated."""

    stop_token_ids: StopTokens = ()
    """Tokens that end a response beside the model's end token, and are its last."""

    seed_per_sample: bool = False
    """Give each sample a seed of its own: runs of one job can then be compared draw by draw, and a resumed run draws
    what it would have drawn, whichever engine decodes a sample and beside what. Decoding is as fast (on an H200, within
    9 %): one kernel draws a whole batch by seeds and places. On a vLLM that this does not fit, `execute` says so;
    vLLM's generators then draw sample by sample, which takes a GPU longer, and what is moved is drawn anew."""

    @property
    def longest_tokens(self) -> int:
        """Longest sequence in tokens, prompt and response."""
        return self.max_prompt_tokens + self.max_response_tokens

    @property
    def samples_per_step(self) -> int:
        """Samples that a step trains: prompts_per_step times samples_per_prompt."""
        return self.prompts_per_step * self.samples_per_prompt

    @model_validator(mode="after")
    def _a_step_can_be_planned(self) -> RolloutSpec:
        if self.samples_per_step > MOST_SAMPLES_PER_STEP:
            raise cross_error(
                f"a step has {self.samples_per_step} samples (prompts_per_step x samples_per_prompt), and at most "
                f"{MOST_SAMPLES_PER_STEP} can be planned; lower one of the two",
                "prompts_per_step",
            )
        return self


class EngineSpec(Strict):
    """Arguments of vLLM that a job may set, by vLLM's names; what a plan decides (sequences, TP, KV tokens) is none."""

    kv_cache_dtype: Annotated[Literal["fp8", "fp8_e4m3", "fp8_e5m2"] | None, Field(exclude_if=is_none)] = None
    """Type of the KV cache, on GPUs; null: `model.dtype`. One byte a value holds more tokens, and takes engine and
    trainer further apart on log-probabilities."""

    max_num_batched_tokens: Annotated[int | None, Field(ge=512, le=1_048_576, exclude_if=is_none)] = None
    """Prompt tokens in one step of an engine; null: 8,192 on GPUs, which profiles that ship are of, 4,096 on CPUs. At
    least the context and the sequences of an engine are taken."""

    gpu_memory_utilization: Annotated[float | None, Field(ge=0.1, le=0.9, exclude_if=is_none)] = None
    """Share of a GPU's memory that an engine may take; null: 0.9."""


class EvaluateSpec(Strict):
    """Evaluations of the policy between two steps, on prompts that it is not trained on."""

    data: Annotated[str | None, Field(min_length=1, exclude_if=is_none)] = None
    """File of rows as of `data.path`, relative to job.yaml; null: the prompts of `data.held_out`. Each evaluation
    decodes all of them."""

    every_steps: Count
    """Steps between two evaluations; what the run ends with is evaluated in any case."""

    at_start: bool = True
    """Evaluate the weights that the run begins with."""

    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = 1
    """n: responses to each prompt; pass@k is told for each power of two k up to n."""

    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Sampling temperature; 0 decodes greedily, one response to a prompt."""

    top_p: TopP = 1.0
    """As `rollout.top_p`, of evaluations; `rollout.stop` and `rollout.stop_token_ids` end their responses, too."""

    top_k: TopK = 0
    """As `rollout.top_k`, of evaluations."""

    min_p: MinP = 0.0
    """As `rollout.min_p`, of evaluations."""

    passes_at: float = 1.0
    """Least reward of a response that passes."""

    @model_validator(mode="after")
    def _greedy_responses_are_one(self) -> EvaluateSpec:
        if self.temperature == 0 and self.samples_per_prompt > 1:
            raise cross_error(
                f"is {self.samples_per_prompt}, and at temperature 0 all responses to a prompt are the same; write 1, "
                "or a temperature above 0",
                "samples_per_prompt",
            )
        return self
