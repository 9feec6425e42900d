"""What a profile holds of each phase: a few coefficients of rollout, training and scoring, with their spread,
their error and where they come from."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..plans.facts.public_models import ARCHITECTURES, Architecture
from ..plans.schema.base import NonNegative, Positive, Recompute, cross_error, is_empty, is_none, is_one, is_zero
from ..plans.schema.levers import EngineLayout, UpdateLayout, copies_fault
from .hardware import GPUS

Whole = Annotated[int, Field(ge=1, le=10**15)]
"""A number of things, at least one."""


class ProfileModel(BaseModel):
    """Base of the profile's models: frozen, without unknown keys; the docstring under a field is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Spread(ProfileModel):
    """A measured duration: median and spread over repeats."""

    p50: NonNegative
    """Median in seconds"""

    p95: NonNegative
    """95th percentile in seconds"""

    repeats: Annotated[int, Field(ge=0, le=10**15)]
    """How many times it was measured; 0: derived"""

    def scaled(self, factor: float) -> Spread:
        """The same with its seconds multiplied."""
        return Spread(p50=factor * self.p50, p95=factor * self.p95, repeats=self.repeats)


class Evidence(ProfileModel):
    """Where a value of a derived profile comes from."""

    source: str
    """Key of the profile's `sources`"""

    error: NonNegative
    """Relative error to be expected of the value, one standard deviation"""


class DecodePoint(ProfileModel):
    """One measured point of the decode grid."""

    sequences: Whole
    """Sequences running on the engine"""

    kv_tokens: NonNegative
    """Tokens that these sequences hold in the KV cache together, mean over the measurement"""

    step_s: Positive
    """Seconds per decode step, median of the repeats"""

    spread: NonNegative
    """Median absolute deviation over the median"""

    outlier: bool = False
    """Left out of the fit: its residual is beyond 4 robust sigmas"""


class Rollout(ProfileModel):
    """What generation costs in one layout. All engines of the layout were busy while it was measured."""

    tp: Whole
    """Tensor-parallel size of each engine"""

    engines: Whole
    """Engines that run at once"""

    step_s: Positive
    """Seconds of a decode step without sequences (a)"""

    step_s_per_sequence: NonNegative
    """Seconds that each running sequence adds to a decode step (b)"""

    step_s_per_kv_token: NonNegative
    """Seconds that each token in the KV cache adds to a decode step (c)"""

    prefill_s: NonNegative
    """Seconds to admit a request, whatever its prompt's length"""

    prefill_s_per_token: NonNegative
    """Seconds that each prompt token adds to a prefill"""

    kv_capacity_tokens: Whole
    """Tokens that the KV cache of one engine holds at most"""

    kv_bytes_per_token: Whole
    """Bytes of the KV cache per token, over the whole engine"""

    start: Spread
    """Cold start of an engine"""

    sync: Spread
    """Weight transfer from the trainer to all engines of the layout, end to end"""

    sync_apart: Annotated[Spread | None, Field(exclude_if=is_none)] = None
    """The same from a trainer with accelerators of its own; null: as sync"""

    error: NonNegative
    """Mean relative error on grid points left out of the fit, one at a time"""

    points: tuple[DecodePoint, ...] = ()
    """The measured grid of decode steps; empty: derived"""

    ep: Whole = 1
    """Ranks among which whole experts are divided; 1: every expert is split"""

    curve_sequences: tuple[Annotated[int, Field(le=1000000)], ...] = ()
    """Numbers of sequences that `curve_s` is given for, ascending from 1; empty: a and b hold"""

    curve_s: tuple[float, ...] = ()
    """Seconds of a decode step with that many sequences and an empty KV cache; linear between them"""

    host_s: Annotated[NonNegative, Field(exclude_if=is_zero)] = 0.0
    """Seconds of vLLM's Python in a decode step. A step takes the longer of these and its curve's, or both where an
    engine drafts; 0: steps were measured whole"""

    host_s_per_sequence: Annotated[NonNegative, Field(exclude_if=is_zero)] = 0.0
    """Seconds that each running sequence adds to host_s"""

    prefill_s_per_token_squared: NonNegative = 0.0
    """Seconds that each squared prompt token adds to a prefill: attention"""

    kv_block_tokens: Annotated[Annotated[int, Field(ge=1, le=10**6)] | None, Field(exclude_if=is_none)] = None
    """KV tokens in a block of the engine's cache; null: 32 on CPUs and vLLM's choice, 16, on GPUs"""

    sleep_s: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Seconds of a step in which the engines give their GPUs to the trainer; null: not measured"""

    wake_s: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Seconds of a step in which the engines take their GPUs back; null: not measured"""

    evidence: dict[str, Evidence] = {}
    """By field: where its value comes from, and its error"""

    @property
    def layout(self) -> EngineLayout:
        """The engines that were measured."""
        return EngineLayout(self.tp, self.engines)

    @model_validator(mode="after")
    def _curve_is_a_curve(self) -> Rollout:
        if len(self.curve_sequences) != len(self.curve_s):
            raise cross_error("curve_sequences and curve_s must be of one length", "curve_s")
        if self.curve_sequences and self.curve_sequences[0] != 1:
            raise cross_error("must start at 1", "curve_sequences")
        if any(b <= a for a, b in itertools.pairwise(self.curve_sequences)):
            raise cross_error("must be strictly ascending", "curve_sequences")
        if any(b < a for a, b in itertools.pairwise(self.curve_s)) or any(s <= 0 for s in self.curve_s):
            raise cross_error("must be positive and never fall: more sequences do not make a step faster", "curve_s")
        return self


class Train(ProfileModel):
    """What an update costs in one layout, for one micro-batch budget."""

    dp: Whole
    """Data-parallel ranks"""

    micro_batch_tokens: Whole
    """Token budget of a packed micro-batch"""

    step_s: NonNegative
    """Seconds of an update that do not depend on its tokens (optimizer, export)"""

    step_s_per_token: Positive
    """Seconds that each trained token adds, prompt tokens included"""

    step_s_per_token_squared: NonNegative
    """Seconds for each sample's squared number of tokens: attention"""

    error: NonNegative
    """Mean relative error on batches left out of the fit"""

    noise: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Relative standard deviation of an update about the fit; null: as `error` has it"""

    tp: Whole = 1
    """Tensor-parallel ranks"""

    pp: Whole = 1
    """Pipeline stages"""

    cp: Whole = 1
    """Context-parallel ranks: they share the tokens of one sample"""

    sp: Annotated[Whole, Field(exclude_if=is_one)] = 1
    """Sequence-parallel ranks (Ulysses): they share the tokens of one sample"""

    state_copies: Annotated[Whole, Field(exclude_if=is_one)] = 1
    """Copies of weights, gradients and optimizer states, each sharded over neighbouring ranks"""

    ep: Whole = 1
    """Expert-parallel ranks, among the data-parallel ones"""

    recompute: Recompute = "none"
    """Which activations are computed again in the backward pass"""

    offload: bool = False
    """Whether the optimizer's states are kept in host memory"""

    peak_bytes: Annotated[int, Field(ge=0, le=10**15)] = 0
    """Peak memory of a rank, of its GPU or, on a CPU, resident in its host; 0: not measured"""

    moves_s: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Seconds of a step in which a rank's states come to its GPU and leave it for the engines, beside `step_s`; null:
    not measured"""

    @model_validator(mode="after")
    def _copies_are_equal(self) -> Train:
        if fault := copies_fault(self.state_copies, self.dp * self.cp * self.sp):
            raise cross_error(fault, "state_copies")
        return self

    @property
    def layout(self) -> UpdateLayout:
        """The update's layout, whose sizes are keys of the entry."""
        return UpdateLayout(
            **{key: getattr(self, key) for key in UpdateLayout.model_fields if key in Train.model_fields}
        )


Scale = Annotated[float, Field(gt=0)]

TRAIN_FACTORS = ("compute", "experts", "attention", "elements", "logits", "launch", "gather", "exchange", "step")
"""What a training law has a factor on the seconds of (laws/train_law.py)."""

MEMORY_FACTORS = ("activations", "rest")
"""What it has a factor on the bytes of (laws/rank_memory.py)."""


class TrainedAdapters(ProfileModel):
    """Low-rank adapters (LoRA) that updates train in place of the weights, and that weight transfers are of."""

    rank: Whole
    """Of an adapter's two matrices"""

    modules: tuple[str, ...]
    """Matrices of a layer that have adapters"""

    sent: Literal["merged", "adapter"]
    """What engines are sent: all weights with the adapters added, or adapters alone"""

    parameters: Whole
    """Of all adapters"""

    frozen_bytes: Literal[2, 4]
    """Of a frozen weight on a trainer"""


class TrainLaw(ProfileModel):
    """Costs of an update in any layout: seconds that data sheets give for this model, times fitted factors."""

    model: str
    """Name in the table of architectures, unless `architecture` is given"""

    architecture: Annotated[dict[str, int], Field(exclude_if=is_empty)] = {}
    """Sizes of a model that is in no table, by the names that the table has for them (plans/facts/public_models.py);
    yes is 1. Empty: those of `model`"""

    accelerator: str
    """Name in the table of data sheets"""

    factors: dict[str, Scale]
    """By name: factor on the seconds that the data sheets give"""

    memory_factors: dict[str, Scale]
    """Factors on computed memory: of activations, and of the rest"""

    fabric_bytes_per_s: Positive
    """Bytes per second of the network between nodes, per accelerator, in one direction"""

    accelerators_per_node: Whole
    """Accelerators that share the fast links"""

    error: NonNegative
    """Mean relative error of step seconds on left-out models and devices"""

    memory_error: NonNegative
    """Mean relative error of peak memory on left-out models and devices"""

    physics_error: Annotated[NonNegative | None, Field(exclude_if=is_none)] = None
    """Mean relative error, beside `error`, of layouts that no run was fitted to (tp, pp, cp, sp or ep above 1, or ranks
    on several nodes); null: 0.5"""

    parallel_factor: Annotated[Positive | None, Field(exclude_if=is_none)] = None
    """Factor on the seconds of layouts with tp, pp, cp, sp or ep above 1; null: 1.2"""

    adapters: Annotated[TrainedAdapters | None, Field(exclude_if=is_none)] = None
    """What is trained in place of the weights, by physics: no run with adapters was fitted; null: the weights are"""

    source: str
    """Key of the profile's `sources`"""

    @property
    def shape(self) -> Architecture:
        """The model's shape: its own, else the table's."""
        if self.architecture:
            return Architecture(self.model, **self.architecture)  # type: ignore[arg-type]
        return next(a for a in ARCHITECTURES if a.name == self.model)

    @model_validator(mode="after")
    def _is_whole(self) -> TrainLaw:
        for field, names in (("factors", TRAIN_FACTORS), ("memory_factors", MEMORY_FACTORS)):
            lacking = [name for name in names if name not in getattr(self, field)]
            if lacking:
                raise cross_error(f"lacks {', '.join(lacking)}; it has {', '.join(names)}, each a number", field)
        if self.architecture and (fault := _sizes_fault(self.architecture)):
            raise cross_error(fault, "architecture")
        models = [self.model] if self.architecture else [shape.name for shape in ARCHITECTURES]
        for field, names_in_table in (("model", models), ("accelerator", list(GPUS))):
            if getattr(self, field) not in names_in_table:
                near = difflib.get_close_matches(getattr(self, field), names_in_table, 5, 0.0)
                raise cross_error(f"'{getattr(self, field)}' is not known; names that are: {', '.join(near)}, …", field)
        return self


def _sizes_fault(sizes: Mapping[str, int]) -> str | None:
    """Why these are no sizes of an Architecture, and what to do; None if they are."""
    names = [field.name for field in dataclasses.fields(Architecture) if field.name != "name"]
    positive = names[: names.index("vocab") + 1]
    if unlike := [*(set(sizes) - set(names)), *(set(positive) - set(sizes))]:
        return f"has unknown names or lacks some ({', '.join(sorted(unlike))}); it has {', '.join(names)}"
    for name, size in sizes.items():
        if not (name in positive) <= size <= 10**9:
            return f"{name} is {size}; write a number from {int(name in positive)} on, as the model's config.json"
    if sizes.get("active_experts", 0) > sizes.get("experts", 0):
        return "active_experts is more than experts; correct one of them"
    return None


Ascending = Annotated[tuple[NonNegative, ...], Field(min_length=1, max_length=64)]

MOST_EXECUTIONS = 32
"""Most values that a distribution is fitted to: enough to show a share of 5% that hangs, few enough to review."""


class RewardExecutions(ProfileModel):
    """Seconds that scoring takes a worker where samples differ, under the job's longest deadline."""

    correct_s: Annotated[Ascending | None, Field(exclude_if=is_none)] = None
    """Equally likely seconds of a right answer to a solved prompt, ascending; null: none was told from the others"""

    wrong_s: Ascending
    """Equally likely seconds of a wrong answer, ascending, or of any if correct_s is null; at most the deadline"""

    correct: Annotated[Annotated[float, Field(ge=0, le=1)] | None, Field(exclude_if=is_none)] = None
    """Share of right answers to solved prompts, or to all if unsolved is null; null with correct_s"""

    unsolved: Annotated[Annotated[float, Field(ge=0, le=1)] | None, Field(exclude_if=is_none)] = None
    """Share of prompts without a right answer; null: not known"""

    scatter: Annotated[Annotated[float, Field(ge=1, le=1000000.0)] | None, Field(exclude_if=is_none)] = None
    """Slowest over fastest right answer of one prompt, the most that was seen of prompts whose slowest took at least
    half a second; null: not seen"""

    @model_validator(mode="after")
    def _is_a_distribution(self) -> RewardExecutions:
        if (self.correct_s is None) != (self.correct is None):
            lacking = "correct_s" if self.correct_s is None else "correct"
            raise cross_error(f"correct_s and correct are given together; add {lacking}, or leave out the other")
        for name in ("correct_s", "wrong_s"):
            values = getattr(self, name) or ()
            if any(b < a for a, b in itertools.pairwise(values)):
                raise cross_error("must be ascending", name)
        return self


class Reward(ProfileModel):
    """What scoring one sample costs, measured through the reward workers."""

    workers: Whole
    """Reward workers that were running"""

    latency: Spread
    """From submission to result, for one sample on its own"""

    per_sample_s: NonNegative
    """Seconds that a worker takes per sample when many are queued"""

    load: Annotated[Annotated[float, Field(ge=0, le=1000000000.0)] | None, Field(exclude_if=is_none)] = None
    """Seconds of workers that a second of decoding gives rise to, in the measured rounds; null: unknown"""

    executions: Annotated[RewardExecutions | None, Field(exclude_if=is_none)] = None
    """Seconds by sample, in place of `per_sample_s`; null: all samples take the same"""

    evidence: dict[str, Evidence] = {}
    """By field: where its value comes from"""
