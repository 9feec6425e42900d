"""The events of a run's trace that figures are read from, as types; docs/trace.md has the meaning of every key.

Older traces lack the keys that have defaults here. All other events (starts, ends, faults, turns) stay JSON objects:
readers look at single keys of them, and take those that are absent or odd as unknown.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field

LONGEST_S, MOST = 1e9, 10**15
"""Largest believable seconds (30 years) and counts; a trace with larger ones is damaged."""

MOST_TOKENS, MOST_DRAWS = 10_000_000, 100_000_000
"""Largest believable tokens of one sample, and number of a draw within its round."""

Seconds = Annotated[int, Meta(ge=0, le=10**9)] | Annotated[float, Meta(ge=0, le=LONGEST_S)]
Signed = Annotated[int, Meta(ge=-MOST, le=MOST)] | Annotated[float, Meta(ge=-MOST, le=MOST)]
Count = Annotated[int, Meta(ge=0, le=MOST)]
Amount = Count | Annotated[float, Meta(ge=0, le=MOST)]
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Number = int | float  # also NaN: so are the rewards and metrics of a run that diverged


class Step(Struct, kw_only=True):
    """One update, as the executor writes it and readers take it. Times in seconds, lengths in tokens.

    `trained_*` are of the samples that were trained; `decoded_tokens` counts all that finished decoding; of an imported
    run, lengths that its source does not say are None; `timeouts` are the counts since the run began
    (rounds/timeouts.Counts); `reward_failures` counts the step's samples that the reward function came to no value for,
    by outcome; `epochs` are those that issued the round's prompts; `weights_way` is how weights went to the engines,
    `weights_slots` where they lay for them, and `weights_bytes` their size; `engines` had them when the round began,
    and `engines_missing` more are the plan's, which were being replaced; `ages` are those of the prompts of a long
    round by queue, in its order (empty in others), and `waits` the long rounds that prompts waited which a long round
    settled, itself included.
    """

    step: Count
    kind: str
    epochs: list[int] = field(default_factory=list)
    sync_s: Seconds
    rollout_s: Seconds
    reward_exposed_s: Seconds
    train_s: Seconds
    # Seconds of the step outside its phases; rounding can make them slightly negative.
    other_s: Annotated[int, Meta(ge=-(10**9), le=10**9)] | Annotated[float, Meta(ge=-1e9, le=1e9)] | None = None
    total_s: Seconds
    trained_samples: Amount
    trained_tokens: Amount
    reward_mean: Number
    max_tokens: Amount | None = None
    median_tokens: Amount | None = None
    decoded_tokens: Amount | None = None
    deferred: Count
    prompts: dict[str, int] = field(default_factory=dict)
    samples: dict[str, Count] | None = None
    conservation_violations: list[Any]
    on_policy_violations: Amount
    checksum_mismatches: Amount
    exhausted: Amount
    restarts: list[Any]
    timeouts: dict[str, Count] | None = None
    reward_failures: dict[str, Count] | None = None
    metrics: dict[str, Number | bool]
    weights_way: str = ""
    weights_bytes: int = 0
    weights_slots: str = ""
    engines: Any = None
    engines_missing: Any = None
    ages: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)

    @property
    def outside_s(self) -> float:
        """Seconds outside the phases, without what rounding takes from them."""
        return max(0.0, self.other_s or 0.0)


class StepEvent(Step, kw_only=True):
    """A step with the time of its event, in seconds since the run's first start."""

    t_s: Seconds


class RewardPart(Struct, frozen=True):
    """One part of a reward of several: its value before the weight and the seconds that it took."""

    value: float
    s: float
    outcome: str
    deadline_s: float | None = None
    attempts: int = 1


class Sample(Struct):
    """A response that was decoded to its end or to the cap; None where a trace does not say."""

    step: Count
    prompt: str
    epoch: Count
    draw: Annotated[int, Meta(ge=0, le=MOST_DRAWS)]
    sample: Count
    tokens: Tokens
    prompt_tokens: Tokens
    truncated: bool
    fate: str | None
    reward: float | None = None
    reward_s: float | None = None
    reward_outcome: str | None = "ok"
    reward_parts: dict[str, RewardPart] = field(default_factory=dict)
    issued_s: float | None = None
    finished_s: float | None = None
    engine: str | None = None
    moves: int = 0
    version: tuple[str, ...] = ()


class Streamed(Struct, kw_only=True):
    """Groups of a round that were trained while its other samples were decoded."""

    step: Count
    begun_s: Seconds | None
    freed: list[str]
    replicas: list[Any]
    groups: Count
    moved: Count
    portions: list[tuple[Number, Number, Number]]


class Tail(Struct, kw_only=True):
    """A round's tail on other engines: when they took it over, and how long that took; None: they did not."""

    step: Count
    engines: Count
    tp: Count
    at_s: Seconds | None
    seconds: Seconds | None
    moved: Count

    def __post_init__(self) -> None:
        if self.at_s is None and self.seconds is not None:
            raise ValueError(f"a tail began after {self.seconds} seconds of a change that never was")


class Balanced(Struct, kw_only=True):
    """A round whose samples were balanced by history."""

    step: Count
    prompts: Count
    known: Count


class DraftedBatch(Struct, kw_only=True):
    """Steps of one class of batches: mean seconds of one without and with drafts, and tokens of one with drafts; counts
    of the round (executor/drafts/draft_messages.BatchSteps), which older traces lack."""

    plain_s: Seconds
    drafted_s: Seconds
    emitted: Seconds
    verified: Signed | None = None
    saved_s: Signed | None = None
    sequence_steps: Count = 0
    drafted_steps: Count = 0
    drafted: Count = 0
    accepted: Count = 0


class Drafts(Struct, kw_only=True):
    """What drafts gave in one round, of all engines together."""

    step: Count
    epoch: Count
    steps: Count
    sequence_steps: Count
    drafted_at: list[Count]
    accepted_at: list[Count]
    by_source: dict[str, Count]
    batches: dict[int, DraftedBatch]
    ahead: tuple[Signed, Signed] = (0, 0)
    index_bytes: Count
    history_bytes: Count

    def __post_init__(self) -> None:
        if len(self.drafted_at) != len(self.accepted_at):
            raise ValueError(f"drafts of step {self.step} have no counts by place")


class Evaluation(Struct, kw_only=True):
    """An evaluation of the weights after `step` updates: `prompts` with `samples` responses each, all by these weights.

    `reward` is the mean over prompts of the mean reward of their responses (avg@n), `pass_at` by k the mean chance that
    one of k responses passes; each with its standard error over prompts (None of one prompt). `failed` prompts could
    not be scored. Lengths in tokens; `truncated` is a share of the responses; `seconds` are those of the round.
    """

    step: Count
    prompts: Count
    samples: Count
    reward: tuple[Number, Number | None]
    pass_at: dict[int, tuple[Number, Number | None]]
    mean_tokens: Amount
    truncated: Amount
    failed: Count
    seconds: Seconds


class _Resume(Struct):
    """Where a run goes on, or from which step on by another plan; `owed`: prompts that are trained first, by the rule
    of the plan that deferred them."""

    step: Count
    owed: Count = 0


class Head(Struct):
    """What each event has."""

    event: str
    t_s: Seconds


TYPES: dict[str, type[Struct]] = {
    "streamed": Streamed, "tail": Tail, "balanced": Balanced, "drafts": Drafts, "evaluation": Evaluation,
    "resume": _Resume, "plan": _Resume,
}  # fmt: skip
"""By name, what else is checked: these events are read as their JSON objects, too."""

_ROWS: dict[str, type[Sample | StepEvent]] = {"sample": Sample, "step": StepEvent}
_HEAD = msgspec.json.Decoder(Head)
_DECODERS = {name: msgspec.json.Decoder(kind) for name, kind in _ROWS.items()}
T = TypeVar("T", bound=Struct)


class DamagedEvent(ValueError):
    """An event lacks a key, or one has a value that cannot be."""


def decoded(line: bytes) -> tuple[Head, Sample | StepEvent | dict[str, Any]]:
    """An event of a trace from its line: samples and steps as their types, others as JSON objects.

    Raises DamagedEvent; another ValueError, or RecursionError, for a line that is no JSON object.
    """
    try:
        head = _HEAD.decode(line)
        if head.event in _DECODERS:
            return head, _DECODERS[head.event].decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # damaged, or with numbers that msgspec's JSON has not: NaN, infinities
    event = json.loads(line.decode("utf-8"))
    if not isinstance(event, dict):
        raise ValueError("not an object")
    head = as_type(event, Head)
    return head, as_type(event, _ROWS[head.event]) if head.event in _ROWS else event


def as_type(event: dict[str, Any], kind: type[T]) -> T:
    """An event's JSON object as its type. Raises DamagedEvent."""
    try:
        return msgspec.convert(event, kind, str_keys=True)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        if missing := re.fullmatch(r"Object missing required field (`\w+`)", reason):
            raise DamagedEvent(f"an event lacks {missing[1]!r}".replace("`", "")) from None
        key = re.search(r"`\$\.(\w+)", place)
        if key is None:
            raise DamagedEvent(reason) from None
        text = ascii(event[key[1]])
        shown = text if len(text) <= 60 else text[:57] + "..."
        why = reason[0].lower() + reason[1:].replace("`", "")
        raise DamagedEvent(f"{key[1]} of a {event.get('event')} is {shown}: {why}") from None
