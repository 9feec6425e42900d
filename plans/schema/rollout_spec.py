"""Sections of job.yaml about prompts and sampling: the data, how a step's samples are drawn, by which engines, and
those of evaluations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from .base import (
    MOST_PROMPTS_PER_STEP,
    MOST_SAMPLES_PER_STEP,
    Count,
    Name,
    Positive,
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


OF_THE_TEMPLATE = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize")
"""What a chat template gets that is no variable of its own."""


class DataSet(Strict):
    """One of several data sets that a job is trained on."""

    name: Name
    """Begins the ids of its prompts, `name/id`."""

    path: Annotated[str, Field(min_length=1)]
    """File or folder of rows, as `data.path`."""

    weight: Annotated[int, Field(ge=1, le=100)] = 1
    """How often an epoch has each of its prompts: the second time as prompt `name/id#2`. Whole numbers: for half as
    much of one set, weigh the others double."""


class DataSpec(Strict):
    """The prompts: a file of them, or, while a job is only planned, how many there will be."""

    path: Annotated[str | None, Field(min_length=1, exclude_if=is_none)] = None
    """File of rows, relative to job.yaml: JSON Lines, a JSON array or Parquet, plain or gzipped; or a folder that
    `save_to_disk` of datasets wrote, or of Parquet files. Each row has `id`, `prompt` (text or chat messages) and
    `answer`."""

    sets: Annotated[tuple[DataSet, ...], Field(max_length=64, strict=False, exclude_if=is_empty)] = ()
    """Several data sets in place of `path`, each with a weight; an epoch has the prompts of all of them, mixed."""

    prompts: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """How many prompts there are; enough to plan while the file is not here, but not to measure or to train."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the order in which prompts are drawn in each epoch."""

    held_out: Annotated[Positive | None, Field(exclude_if=is_none)] = None
    """Prompts that are never trained on, which `evaluate` decodes where it names no data: a share of them below 1, or
    how many. `seed` and a row's id say which: with a share, rows that are added move no other row."""

    chat_template_kwargs: Annotated[dict[str, JsonValue], Field(exclude_if=is_empty, default_factory=dict)]
    """Variables of the model's chat template for all prompts that are chat messages, those of evaluations, too, such as
    `{enable_thinking: false}`; a row's own `chat_template_kwargs` come first."""

    @model_validator(mode="after")
    def _prompts_can_be_counted(self) -> DataSpec:
        if self.path is not None and self.sets:
            raise cross_error("stands beside path; keep one of the two, all sets in the list", "sets")
        names = [each.name for each in self.sets]
        if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
            raise cross_error(f"has two sets called '{twice}'; give each a name of its own", "sets")
        if self.path is None and not self.sets and self.prompts is None:
            raise cross_error(
                "names no prompts; add path, a JSONL file, or prompts, how many there will be", rule="missing-key"
            )
        if self.held_out is not None and self.held_out > 1 and self.held_out % 1:
            raise cross_error(f"is {self.held_out:g}; write a share below 1, or a whole number of prompts", "held_out")
        if own := next((name for name in self.chat_template_kwargs if name in OF_THE_TEMPLATE), None):
            raise cross_error(f"has '{own}', which is no variable of its own there; remove it", "chat_template_kwargs")
        return self

    @property
    def name(self) -> str:
        """The file as the job names it, or its sets by their names."""
        return self.path or f"data.sets ({', '.join(each.name for each in self.sets)})"

    @property
    def trained_prompts(self) -> int | None:
        """How many prompts will be trained on by `prompts`, near the number where `held_out` is a share of them."""
        return None if self.prompts is None else self.prompts - self.held_out_of(self.prompts)

    def held_out_of(self, prompts: int) -> int:
        """How many of so many prompts are held out, near the number where a share of them is."""
        held_out = self.held_out or 0
        return min(prompts, round(held_out * prompts if held_out < 1 else held_out))


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

    @property
    def most_tokens_per_step(self) -> int:
        """Tokens that a step trains at most, prompts included."""
        return self.samples_per_step * self.longest_tokens

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

    rewards: Annotated[tuple[Name, ...], Field(max_length=16, strict=False, exclude_if=is_empty)] = ()
    """Parts of the job's reward that score evaluations, by their names (`name`, else the kind), each of weight 1, such
    as `[math]` beside a penalty for length, or a part of weight 0, which is worth nothing in training. Empty: as
    samples are scored."""

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
