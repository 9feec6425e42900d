"""Levers that a job may allow and a plan may use: the cutoff, speculative decoding, engines handed over to training,
adaptive reward timeouts, a judge; and the adapters that a job may train in place of its weights.

All are optional: a job that does not name a lever gets plans without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from ...rounds.balancing.balance_spec import Work
from ...rounds.balancing.placement import shared_tokens
from ...rounds.timeouts import TimeoutSpec
from .base import MOST_CHOICES, Count, Positive, Recompute, Strict, ascending, cross_error, is_none, is_one, is_zero


class EngineLayout(NamedTuple):
    """Rollout engines that run at once: accelerators per engine (tensor parallelism), and the number of engines."""

    tp: int
    engines: int

    def __str__(self) -> str:
        return f"{self.engines} x tp {self.tp}"


ReferencePlace = Literal["none", "device", "host"]


def is_no_place(place: str) -> bool:
    """Whether there is no reference to keep."""
    return place == "none"


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

    reference: Annotated[ReferencePlace, Field(exclude_if=is_no_place)] = "none"
    """Where trainers keep the frozen weights of the reference of the job's `algorithm.kl`: on their `device`, or in
    `host` memory, from where each update brings a copy; `none`: the job has no reference."""

    @property
    def trained(self) -> UpdateLayout:
        """Return the layout without a reference, as updates are measured."""
        return self.model_copy(update={"reference": "none"}) if self.reference != "none" else self

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


Finished = Annotated[float, Field(ge=0.01, lt=1)]
"""A share of a round's samples; below a hundredth it would say nothing."""


class SearchCutoff(Strict):
    """Bounds of the cutoff that `solve` may choose in mode exact; equal bounds fix it."""

    min: Count = 1
    """The least cutoff in tokens."""

    max: Count | None = None
    """The largest cutoff in tokens; null: any below the cap of a response."""

    @model_validator(mode="after")
    def _is_a_range(self) -> SearchCutoff:
        if self.max is not None and self.max < self.min:
            raise cross_error(f"is {self.max}, below min {self.min}; write max of at least min", "max")
        return self

    def holds(self, tokens: int) -> bool:
        """Return whether a cutoff of so many tokens is within the bounds."""
        return self.min <= tokens and (self.max is None or tokens <= self.max)


DraftLengths = Annotated[tuple[Count, ...], Field(max_length=MOST_CHOICES, strict=False), AfterValidator(ascending)]
"""Ascending numbers of drafted tokens; may be empty."""


class SearchDrafts(Strict):
    """Speculative decoding that `solve` may consider."""

    tokens: DraftLengths | None = None
    """Tokens drafted a step, ascending; each is tried beside no drafts, for each kind of round. Empty: drafts are never
    considered; null: lengths up to what the profile has measured."""

    acceptance: Annotated[float | None, Field(ge=0, lt=1, exclude_if=is_none)] = None
    """Chance that a drafted token is accepted when those before it were, as assumed; null: as the profile has measured
    it."""

    @model_validator(mode="after")
    def _assumes_of_some_length(self) -> SearchDrafts:
        if self.acceptance is not None and self.tokens is None:
            raise cross_error("assumes an acceptance of drafts of no stated length; write tokens: [2, 4]", "acceptance")
        return self


FinishedShares = Annotated[
    tuple[Finished, ...], Field(max_length=MOST_CHOICES, strict=False), AfterValidator(ascending)
]
"""Ascending shares of finished samples; may be empty."""


class RoundDrafts(Strict):
    """Speculative decoding in a round."""

    source: Literal["history"] = "history"
    """Where drafts come from: `history`, responses to the same prompt in earlier rounds and in this one."""

    tokens: Count
    """Tokens drafted for each sequence and step."""

    up_to_sequences: Count
    """Most running sequences with which an engine uses drafts; with more it decodes without."""

    run_ahead: Annotated[int, Field(ge=0, le=10**6, exclude_if=is_zero)] = 0
    """Sequences up to which an engine is filled in the round's tail with responses to prompts of rounds to come, for
    their drafts alone; 0: none is."""


class RoundPrefix(Strict):
    """Placement of a prompt's samples on engines that hold the prompt, which prefill and store it only once."""

    block_tokens: Count
    """Tokens in a block of the engines' KV cache; of a prompt its whole blocks are shared."""

    tokens_per_sample: Count
    """Shared prompt tokens that are worth one sample: for each so many, an engine that holds the prompt may be one
    sample ahead of the least loaded engine and still get the prompt's next sample."""

    def lead(self, prompt_tokens: int) -> float:
        """Return by how many samples an engine that holds a prompt of so many tokens may be ahead and still get one."""
        return shared_tokens(prompt_tokens, self.block_tokens) / self.tokens_per_sample


class RoundBalance(Strict):
    """Samples of a round that start longest expected first, each on the engine that would end soonest with it; running
    ones move to an engine that has few left, where that pays. Modes sync, exact and predict only."""

    by: Literal["history"]
    """What samples are expected to be as long as: the earlier responses to their prompt in this run, and those of the
    round that have ended; before there is any, the first sample of each prompt starts first."""

    step_s: Positive
    """Seconds of an engine's decode step, whatever it decodes; with the next three keys, what tells how soon an engine
    would end."""

    step_s_per_sequence: Annotated[float, Field(ge=0)]
    """Seconds more for each running sequence."""

    step_s_per_kv_token: Annotated[float, Field(ge=0)]
    """Seconds more for each KV token that these hold."""

    kv_capacity_tokens: Count
    """KV tokens that an engine holds; samples that are expected to hold more together wait."""

    def end_s(self, work: Work, at_once: int) -> float:
        """Return the seconds in which an engine that decodes `at_once` samples at a time would end its work."""
        steps = max(work.longest, work.tokens / at_once, work.kv_steps / self.kv_capacity_tokens)
        return self.step_s * steps + self.step_s_per_sequence * work.tokens + self.step_s_per_kv_token * work.kv_steps


class RoundHandOver(Strict):
    """Engines that stop decoding and train what is finished while the tail of the round decodes on."""

    engines: Count
    """Number of engines that begin to train; at least one engine goes on decoding."""

    at_finished: Finished
    """Share of the samples to be trained that must have ended before."""

    growth_tokens: Annotated[int, Field(ge=0, le=10**9, exclude_if=is_zero)] = 0
    """Tokens by which a sample that still runs then is expected to grow: engines are freed only if the KV of the others
    would hold all that runs, grown so."""

    def stay(self, engines: int) -> int:
        """Return how many of a round's engines decode on; raise ValueError if none does."""
        if self.engines >= engines:
            raise ValueError(f"{self.engines} of {engines} engines cannot be freed: one must go on decoding")
        return engines - self.engines


class RoundTail(Strict):
    """Fewer engines of a higher TP size that decode the tail of a round, on devices of the round's engines."""

    engines: Count
    """Number of engines that decode the tail."""

    tp: Annotated[int, Field(ge=2, le=10**9)]
    """Accelerators of each of them, more than an engine of the round has."""

    at_finished: Finished
    """Share of the samples to be trained that must have ended before."""

    growth_tokens: Annotated[int, Field(ge=0, le=10**9, exclude_if=is_zero)] = 0
    """Tokens by which a sample that still runs then is expected to grow: engines change only if the KV of those of the
    tail would hold all that runs, grown so."""

    @property
    def layout(self) -> EngineLayout:
        """The engines' layout, as costs are looked up by it."""
        return EngineLayout(self.tp, self.engines)

    def stay(self, engines: int) -> int:
        """Return how many engines decode the tail; all `engines` of the round stop."""
        return self.engines


class AdaptiveTimeout(Strict):
    """Reward deadlines that follow how long a prompt's correct answers took."""

    min_s: Positive
    """Shortest deadline in seconds; the longest is `deadline_s`, which also holds until a prompt is answered right."""

    anchor_factor: Annotated[float, Field(ge=1, le=100)]
    """The deadline is this factor times the seconds of the prompt's slowest correct answer so far."""


def timeout_spec(deadline_s: float, adaptive: AdaptiveTimeout | None) -> TimeoutSpec:
    """Return a job's or a plan's deadlines as both the simulated and the executed timeouts take them."""
    if adaptive is None:
        return TimeoutSpec(deadline_s)
    return TimeoutSpec(deadline_s, adaptive.min_s, adaptive.anchor_factor)


class Deadlines(Strict):
    """Base of the sections that have a deadline for a reward, which may adapt."""

    if TYPE_CHECKING:  # each section has these keys in a place and with words of its own
        deadline_s: float
        adaptive_timeout: AdaptiveTimeout | None

    def timeout_spec(self) -> TimeoutSpec:
        """Return the deadlines as the timeouts of a round take them."""
        return timeout_spec(self.deadline_s, self.adaptive_timeout)

    @model_validator(mode="after")
    def _deadlines_agree(self) -> Self:
        if self.adaptive_timeout is not None and self.adaptive_timeout.min_s > self.deadline_s:
            raise cross_error(
                f"adaptive_timeout.min_s is {self.adaptive_timeout.min_s:g}, above the longest deadline; write at most "
                f"{self.deadline_s:g} (deadline_s)",
                "adaptive_timeout.min_s",
            )
        return self


class RewardJudge(Strict):
    """A model that scores the samples, beside the reward workers if there are any; what it takes is the profile's."""

    place: Literal["own", "beside"]
    """`own`: on accelerators that the engines do not use; `beside`: on the engines', which it slows down."""

    instances: Count
    """Copies of the judge. The simulator has each work through its samples one after the other, at the seconds a sample
    that the profile measured with `at_once` of them."""

    tp: Count = 1
    """Accelerators per copy."""

    at_once: Annotated[int, Field(ge=1, le=1024, exclude_if=is_one)] = 1
    """Samples that a copy is asked about at a time; further ones wait."""

    share: Annotated[float | None, Field(gt=0, lt=1, exclude_if=is_none)] = None
    """Share of their cores that a copy beside an engine gets while both want them, by priority; null: as the system
    divides them, which gives both the same."""

    deadline_s: Annotated[float | None, Field(gt=0, le=3600, exclude_if=is_none)] = None
    """Seconds until a sample without a verdict is asked about again; null: the job's."""

    @model_validator(mode="after")
    def _a_share_is_of_engines(self) -> RewardJudge:
        if self.share is not None and self.place == "own":
            raise cross_error("is of accelerators that the engines use; remove it, or write place: beside", "share")
        return self


MOST_RANK = 1024
TargetModule = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TARGET_MODULES: tuple[TargetModule, ...] = get_args(TargetModule)
"""Matrices of a layer of the families that are trained (plans/facts/executable.py)."""
ALL_LINEAR = "all-linear"
"""All of them, as peft calls it."""


class OrAllLinear:
    """Annotation of a tuple of modules that may also be written as `all-linear`, for all of them."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any, names: Any) -> Any:
            if isinstance(value, str) and value != ALL_LINEAR:
                raise cross_error(f"is '{value}'; write {ALL_LINEAR}, or a list of names: [{value}]")
            found = TARGET_MODULES if value == ALL_LINEAR else names(value)
            if twice := [each for each in found if found.count(each) > 1]:
                raise cross_error(f"names {twice[0]} twice; leave one out")
            return found

        written = core_schema.plain_serializer_function_ser_schema(
            lambda names: ALL_LINEAR if names == TARGET_MODULES else list(names)
        )
        return core_schema.no_info_wrap_validator_function(read, handler(source), serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"const": ALL_LINEAR}, handler(schema)]}


class LoraSpec(Strict):
    """Low-rank adapters (LoRA, arXiv 2106.09685): a target matrix W is used as W + alpha / rank * B A, and A and B are
    trained in place of W. There is no dropout: log-probabilities of engine and trainer would differ by it."""

    rank: Annotated[int, Field(ge=1, le=MOST_RANK)]
    """Rows of A and columns of B."""

    alpha: Positive
    """Numerator of the scale alpha / rank."""

    target_modules: Annotated[
        tuple[TargetModule, ...], Field(min_length=1, max_length=len(TARGET_MODULES), strict=False), OrAllLinear()
    ] = TARGET_MODULES
    """Matrices of each layer that have adapters, by their names in transformers; `all-linear`: all of them but the
    output matrix. Experts are no modules of their own, and have none."""

    sent: Literal["merged", "adapter"] = "merged"
    """What engines are sent after a step: `merged`: all weights, adapters added; `adapter`: A and B alone, which each
    engine adds to the weights of the model's files."""

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / self.rank

    @property
    def of_all(self) -> bool:
        """Whether all matrices that the model has are targets."""
        return self.target_modules == TARGET_MODULES
