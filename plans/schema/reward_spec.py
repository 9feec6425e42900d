"""How a response is scored: the job's `reward`, one section or a weighted list of sections.

A sample's reward is the weighted sum of the values of all parts, added up in the order of the list, so that it does not
depend on which part was known first.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from .base import Count, MemoryBytes, Name, Positive, Strict, cross_error, is_empty, is_false, is_none, is_one
from .levers import AdaptiveTimeout, Deadlines

PLACEHOLDERS = ("prompt", "response", "answer")
"""What may stand in braces in a judge's prompt."""

MOST_VERDICTS = 101
"""Most verdicts of a judge: the percentages."""


def pattern_fault(pattern: str | None) -> str | None:
    """What is wrong with a regular expression; None if nothing, or if there is none."""
    try:
        re.compile(pattern or "")
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}; mend it (and write it in single quotes, in which \\ stays)"
    return None


def prompt_fault(prompt: str | None) -> str | None:
    """What is wrong with a judge's prompt; None if nothing, or if there is none."""
    if prompt is None:
        return None
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    try:
        fields = [part for part in string.Formatter().parse(prompt) if part[1] is not None]
    except ValueError as error:
        return f"has braces that do not fit ({error}); write {{{{ and }}}} for braces that are meant"
    for _, name, form, conversion in fields:
        if name not in PLACEHOLDERS or form or conversion:
            return f"has {{{name}}}, and only {known} are known; write {{{{ and }}}} for braces that are meant"
    if "response" not in [name for _, name, _, _ in fields]:
        return "does not hold {response}, so that the judge would not see what it is to judge; add it"
    return None


def scale_fault(scale: tuple[int, int] | None) -> str | None:
    """What is wrong with a judge's scale; None if nothing, or if there is none."""
    if scale is not None and not 1 <= scale[1] - scale[0] < MOST_VERDICTS:
        return f"is {list(scale)}; write the lower number first, then a higher one, {MOST_VERDICTS - 1} apart at most"
    return None


def verdicts_fault(verdicts: Mapping[str, float] | None) -> str | None:
    """What is wrong with a judge's verdicts; None if nothing, or if there are none."""
    if verdicts and len(set(verdicts.values())) == 1:
        worth = next(iter(verdicts.values()))
        return f"are all worth {worth:g}, so that no response is better than another; write different numbers"
    return None


def weights_fault(weights: list[float]) -> str | None:
    """What is wrong with the weights of the parts of a reward; None if nothing."""
    if any(weights):
        return None
    whose = "is 0" if len(weights) == 1 else "is 0, as those of all other parts"
    return f"{whose}, so that every reward is 0 and nothing would be learnt; write another weight"


Rows = Annotated[int, Field(ge=0, le=10**12)]


class RewardAudit(Strict):
    """Rows whose own solution or answer should get the full reward, and a wrong response should not."""

    rows: Rows
    """Rows of the data that were asked about."""

    of: Rows
    """Rows of the data file."""

    references: Rows
    """Rows with a solution or an answer of their own to try."""

    full: Rows
    """Of these: how many got the full reward."""

    wrong: Rows
    """Wrong responses: a blank, a constant, and another row's answer to each row."""

    paid: Rows
    """Of these: how many got the full reward all the same."""

    refused: Rows
    """Rows that cannot be scored, whatever the response."""

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return self.full == self.references and not self.paid and not self.refused

    @property
    def text(self) -> str:
        """The figures in one line."""
        some = f"{self.rows} rows" if self.rows == self.of else f"{self.rows} of {self.of} rows"
        refused = f", {self.refused} refused" if self.refused else ""
        return (
            f"on {some}: {self.full} of {self.references} own answers got the full reward, {self.paid} of {self.wrong} "
            f"wrong ones did{refused}"
        )

    @model_validator(mode="after")
    def _shares_are_of_what_was_tried(self) -> RewardAudit:
        for part, whole in (("rows", "of"), ("full", "references"), ("paid", "wrong"), ("refused", "rows")):
            if getattr(self, part) > getattr(self, whole):
                raise cross_error(f"is more than {whole}, {getattr(self, whole)}, of which it is a part", part)
        return self


RewardKind = Literal["function", "math", "code", "format", "length", "overlong", "judge"]

WorkerKind = Literal["function", "math", "code", "format"]
WORKER_KINDS = get_args(WorkerKind)
"""Kinds that reward workers compute, each in a pool of its own."""

LENGTH_KINDS = ("length", "overlong")
"""Kinds that look at the length of the response alone; the driver computes them at once, without a worker."""

MOST_PARTS = 16

_KINDS_OF_KEY = {
    "function": ("function",),
    "pattern": ("format",),
    "target_tokens": ("length",),
    "per_token": ("length",),
    "cache_tokens": ("overlong",),
    "max_tokens": ("overlong",),
    "model": ("judge",),
    "prompt": ("judge",),
    "scale": ("judge",),
    "verdicts": ("judge",),
    "workers": WORKER_KINDS,
    "deadline_s": (*WORKER_KINDS, "judge"),
    "retries": (*WORKER_KINDS, "judge"),
    "memory_bytes": WORKER_KINDS,
    "packages": ("code",),
    "partial": ("code",),
    "sandbox": ("code",),
    "environment": ("function", "math"),
    "adaptive_timeout": WORKER_KINDS,
    "shortest_deadline_s": WORKER_KINDS,
}
"""By key: the kinds that read it."""

_NEEDED = {
    "function": {"function": "'package.module:name'"},
    "math": {},
    "code": {},
    "format": {"pattern": "a regular expression"},
    "length": {"target_tokens": "a number of tokens", "per_token": "a number above 0"},
    "overlong": {"cache_tokens": "a number of tokens"},
    "judge": {"model": "a folder or a hub id", "prompt": "text with {response}"},
}
"""By kind: the keys that it needs, beside the deadline, each with what to write."""

Word = Annotated[str, Field(pattern=r"^\S(.{0,198}\S)?$")]
"""A verdict of a judge: text without spaces around it."""


Package = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$")]
"""The name of a distribution."""


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
"""The name of a variable of the environment."""


Source = Annotated[str, Field(min_length=1, max_length=200)]
"""What a row says of where it comes from."""


def scores_rows(rows: Collection[str], sources: Collection[str]) -> bool:
    """Whether a part of a reward scores rows of these sources: it names one of them in its `rows`, or names none."""
    return not rows or not set(rows).isdisjoint(sources)


class RewardSpec(Deadlines):
    """How a response is scored: one value per sample, of one kind."""

    kind: RewardKind
    """`function`: a Python function; `math`: equality of the last answer; `code`: tests in a sandbox; `format`: 1 if
    the response matches a pattern; `length`: a penalty for tokens beyond a target; `overlong`: DAPO's penalty close to
    the cap; `judge`: the verdict of a model."""

    name: Annotated[Name | None, Field(exclude_if=is_none)] = None
    """Name of this part in plan, trace and report; null: its kind. Of several parts no two have one name."""

    weight: Annotated[float, Field(ge=-1e6, le=1e6, exclude_if=is_one)] = 1.0
    """Factor on the value of this part in the sample's reward; 0: it is only recorded."""

    rows: Annotated[tuple[Source, ...], Field(exclude_if=is_empty, strict=False)] = ()
    """Rows that this part scores, by their `data_source` or by the name of their set (`data.sets`): `[gsm8k, math]`;
    empty: all. A row that no part scores is refused."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """`package.module:name` of `name(prompt, response, answer) -> float`; needed for kind function, and only there."""

    pattern: Annotated[str | None, Field(min_length=1, max_length=10_000, exclude_if=is_none)] = None
    """Of kind format: the regular expression (Python's) that the whole response must match; `.` matches line breaks,
    too."""

    target_tokens: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """Of kind length: tokens of a response that cost nothing."""

    per_token: Annotated[Positive | None, Field(le=1e6, exclude_if=is_none)] = None
    """Of kind length: what each token beyond `target_tokens` takes from the reward."""

    cache_tokens: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """Of kind overlong: L_cache, the last tokens up to `max_tokens`, over which the value falls from 0 to -1 (DAPO,
    arXiv 2503.14476, equation 13)."""

    max_tokens: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """Of kind overlong: L_max, from which on the value is -1; null: the cap of a response
    (rollout.max_response_tokens)."""

    model: Annotated[str | None, Field(min_length=1, exclude_if=is_none)] = None
    """Of kind judge: the model that judges, a Hugging Face folder relative to job.yaml or a hub id `owner/name`. Its
    weights never change. It has the job's `model.dtype`."""

    prompt: Annotated[str | None, Field(min_length=1, max_length=100_000, exclude_if=is_none)] = None
    """Of kind judge: what it is asked; `{response}` stands for the response, and `{prompt}` and `{answer}` for those of
    the row. What stands before the first of them is the same for all samples, so it is read only once (prefix cache).
    Braces that are meant are doubled."""

    scale: Annotated[tuple[int, int] | None, Field(exclude_if=is_none, strict=False)] = None
    """Of kind judge: the judge writes a whole number of this range and nothing else; `[0, 10]`: 0 is worth 0, 10 is
    worth 1."""

    verdicts: Annotated[dict[Word, float] | None, Field(min_length=2, max_length=MOST_VERDICTS, exclude_if=is_none)] = (
        None
    )
    """Of kind judge, in place of `scale`: the words that it can write, and what each is worth, `{good: 1, bad: 0}`."""

    workers: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """Reward worker processes; null: `solve` decides, within the host cores that engines and other parts leave them."""

    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 3600.0
    """Seconds until one call is given up; a response that causes it gets reward 0. A judge that gives no verdict in
    time is asked again. Needed for all kinds but length and overlong."""

    shortest_deadline_s: Annotated[Positive | None, Field(exclude_if=is_none)] = None
    """Lower bound of deadlines that `solve` lets adapt, if no right answer suffers by the profile; null: as written."""

    retries: Annotated[int, Field(ge=0, le=100)] = 2
    """How often a call is repeated after a failure of the function or of the machine."""

    memory_bytes: Annotated[MemoryBytes | None, Field(exclude_if=is_none)] = None
    """Memory (address space) that scoring one response may take, of other kinds than `code` beyond what their
    modules take; null: 1 GiB. A response that takes more gets reward 0."""

    packages: Annotated[tuple[Package, ...], Field(exclude_if=is_empty, strict=False)] = ()
    """Of kind code: installed packages that responses and tests may import beside the standard library, by the names
    that pip has for them, such as `[numpy, pytest]`; what they require comes with them."""

    partial: Annotated[bool, Field(exclude_if=is_false)] = False
    """Of kind code: false: 1 if a response passes all tests, else 0; true: the share of its tests, or of its cases of
    input and output, that it passes."""

    sandbox: Annotated[Literal["required", "optional"], Field(exclude_if=lambda value: value == "required")] = (
        "required"
    )
    """Of kind code: `required`: a host that can neither give responses files of their own nor protect its own from them
    runs none; `optional`: there they can read and write what the user can, and the run only says so."""

    environment: Annotated[tuple[Variable, ...], Field(exclude_if=is_empty, strict=False)] = ()
    """Of kinds function and math: variables of the environment that the reward sees beside those that any Python
    program needs, such as `[OPENAI_API_KEY]`. Tokens and keys of the host are among what it does not see."""

    adaptive_timeout: Annotated[AdaptiveTimeout | None, Field(exclude_if=is_none)] = None
    """Shorter deadlines for prompts whose correct answers are fast; null: `deadline_s` for all."""

    @property
    def label(self) -> str:
        """Name of the part in plan, trace and report."""
        return self.name or self.kind

    @property
    def parts(self) -> tuple[RewardSpec, ...]:
        """The parts whose weighted sum is a sample's reward, in order."""
        return (self,)

    def scores(self, sources: Collection[str]) -> bool:
        """Whether this part scores rows of these sources."""
        return scores_rows(self.rows, sources)

    def key_of(self, part: RewardSpec) -> tuple[str | int, ...]:
        """Where job.yaml has a part of this reward: the section, or the place in the list."""
        return ("reward", self.parts.index(part)) if isinstance(self, RewardList) else ("reward",)

    def only(self, names: Collection[str]) -> RewardSpec:
        """The reward of the parts of these names alone, each of weight 1; of no names: this reward."""
        if not names:
            return self
        kept = [part.model_copy(update={"weight": 1.0}) for part in self.parts if part.label in names]
        return self.model_copy(update={"sections": tuple(kept)}) if isinstance(self, RewardList) else kept[0]

    @property
    def pooled(self) -> tuple[RewardSpec, ...]:
        """The parts that reward workers compute: first that of a plan's `reward`, then those of its `further`."""
        return _pooled(self.parts)

    @property
    def judge(self) -> RewardSpec | None:
        """The part that a judge gives; None without one."""
        return next((part for part in self.parts if part.kind == "judge"), None)

    def worth(self) -> dict[str, float]:
        """What each verdict of the judge is worth, by its text."""
        if self.verdicts is not None:
            return dict(self.verdicts)
        assert self.scale is not None, "a judge has a scale or verdicts"
        low, high = self.scale
        return {str(number): (number - low) / (high - low) for number in range(low, high + 1)}

    @model_validator(mode="after")
    def _fields_agree(self) -> RewardSpec:
        for key, what in _NEEDED[self.kind].items():
            if getattr(self, key) is None:
                raise cross_error(f"kind {self.kind} needs the key {key}: {what}", "kind")
        if self.kind not in LENGTH_KINDS and "deadline_s" not in self.model_fields_set:
            raise ValidationError.from_exception_data(
                "reward", [{"type": "missing", "loc": ("deadline_s",), "input": None}]
            )
        for key in sorted(self.model_fields_set & set(_KINDS_OF_KEY)):
            kinds = _KINDS_OF_KEY[key]
            if self.kind not in kinds and getattr(self, key) not in (None, (), False, "required"):
                other = f" or write kind: {kinds[0]}" if len(kinds) == 1 else ""
                raise cross_error(f"{key} has no effect with kind {self.kind}; remove it{other}", key)
        if self.kind == "judge" and (self.scale is None) == (self.verdicts is None):
            raise cross_error("kind judge needs either scale, such as [0, 10], or verdicts: {good: 1, bad: 0}", "kind")
        for field, text in (("shortest_deadline_s", self._bound_fault()), ("pattern", pattern_fault(self.pattern)),
                            ("prompt", prompt_fault(self.prompt)), ("scale", scale_fault(self.scale)),
                            ("cache_tokens", self._cache_fault()),
                            ("verdicts", verdicts_fault(self.verdicts))):  # fmt: skip
            if text is not None:
                raise cross_error(text, field)
        return self

    def _bound_fault(self) -> str | None:
        """What is wrong with a bound for deadlines that `solve` decides: they are fixed, or have no room."""
        shortest_s, longest_s = self.shortest_deadline_s, self.deadline_s
        if shortest_s is None:
            return None
        if self.adaptive_timeout is not None:
            return "is a bound for deadlines that solve decides, and adaptive_timeout fixes them; remove one of the two"
        if shortest_s <= longest_s:
            return None
        return f"is {shortest_s:g}, above the longest deadline; write at most {longest_s:g} (deadline_s)"

    def _cache_fault(self) -> str | None:
        if self.cache_tokens is None or self.max_tokens is None or self.cache_tokens < self.max_tokens:
            return None
        return f"is {self.cache_tokens}, and all responses up to max_tokens {self.max_tokens} are punished; write less"

    @model_serializer(mode="wrap")
    def _as_written(self, handler: Any) -> Any:
        """A list as a list; and no key that has no effect with the kind."""
        if isinstance(self, RewardList):
            return [section.model_dump() for section in self.sections]
        dumped = handler(self)
        if self.kind in (*LENGTH_KINDS, "judge"):
            dumped = {key: value for key, value in dumped.items() if self.kind in _KINDS_OF_KEY.get(key, (self.kind,))}
        return dumped


class RewardList(RewardSpec):
    """A list of rewards. Its own keys are those of the part that a plan's `reward` is about: the first with workers (a
    pattern last), else the judge, else the first."""

    sections: tuple[RewardSpec, ...]
    """The parts, in the order of the list."""

    @property
    def parts(self) -> tuple[RewardSpec, ...]:
        """The parts whose weighted sum is a sample's reward, in order."""
        return self.sections


def _pooled(parts: Sequence[RewardSpec]) -> tuple[RewardSpec, ...]:
    """The parts that reward workers compute, a pattern, which is the quickest of them, last."""
    return tuple(sorted((part for part in parts if part.kind in WORKER_KINDS), key=lambda part: part.kind == "format"))


_SECTIONS: TypeAdapter[tuple[RewardSpec, ...]] = TypeAdapter(Annotated[tuple[RewardSpec, ...], Field(strict=False)])


class OneOrList:
    """Annotation of a field of type RewardSpec that may also be written as a list of sections."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(_read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        one = handler(schema)
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": MOST_PARTS}]}


def _read(value: Any, handler: Any) -> Any:
    """A section as it is; a list as a RewardList. Raises ValidationError with places in the list."""
    if not isinstance(value, (list, tuple)):
        one = handler(value)
        if not isinstance(one, RewardList) and (fault := weights_fault([one.weight])) is not None:
            raise cross_error(fault, "weight")
        return one
    if not 1 <= len(value) <= MOST_PARTS:
        raise cross_error(f"is a list of {len(value)} parts; write from 1 to {MOST_PARTS}")
    sections = _SECTIONS.validate_python(value)
    labels = [section.label for section in sections]
    for place, label in enumerate(labels):
        if label in labels[:place]:
            text = f"is the second part called '{label}'; give it a name of its own (key name)"
            raise cross_error(text, f"{place}.kind" if sections[place].name is None else f"{place}.name")
    if (fault := weights_fault([section.weight for section in sections])) is not None:
        raise cross_error(fault, "0.weight")
    judges = [place for place, section in enumerate(sections) if section.kind == "judge"]
    if len(judges) > 1:
        raise cross_error("is the second judge, and a job has one at most; remove it", f"{judges[1]}.kind")
    main = [*_pooled(sections), *(sections[place] for place in judges), *sections][0]
    keys = {key: getattr(main, key) for key in main.model_fields_set if key != "weight"}
    return RewardList(**keys, sections=sections)


assert set(_NEEDED) == set(get_args(RewardKind)), "every kind says what it needs"
