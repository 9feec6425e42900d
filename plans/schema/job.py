"""job.yaml: what is to be trained, on what data, for which reward, by which algorithm, and what the solver may vary."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from ..yaml.errors import InputError, joined
from ..yaml.yaml_doc import Loc
from .algorithm import Algorithm, LogprobLimitSpec
from .base import (
    Choices,
    Name,
    Positive,
    Strict,
    cross_error,
    is_auto,
    is_empty,
    is_false,
    is_none,
    is_true,
)
from .levers import FinishedShares, LoraSpec, SearchCutoff, SearchDrafts
from .reward_spec import OneOrList
from .reward_spec import RewardKind as RewardKind
from .reward_spec import RewardSpec as RewardSpec
from .rollout_spec import DataSpec as DataSpec
from .rollout_spec import EngineSpec as EngineSpec
from .rollout_spec import EvaluateSpec as EvaluateSpec
from .rollout_spec import RolloutSpec as RolloutSpec

WITHIN = "usd-within"


def objective_of(text: str) -> tuple[Literal["seconds", "usd"], float | None]:
    """(what a trained sample shall cost least of, most seconds of the mean step, or None for any) of `seconds`, `usd`
    or `usd-within SECONDS`. Raises InputError for any other text."""
    name, _, number = text.replace(":", " ").strip().partition(" ")
    if text in ("seconds", "usd"):
        return ("usd", None) if text == "usd" else ("seconds", None)
    if name != WITHIN:
        raise InputError(f"objective: '{text}' is none of seconds, usd, {WITHIN} SECONDS")
    try:
        within_s = float(number)
    except ValueError:
        within_s = math.nan
    if not 0 < within_s < math.inf:
        raise InputError(f"objective: '{text}' has no seconds above 0 of the mean step; write it as {WITHIN} 120")
    return "usd", within_s


def _is_objective(text: str) -> str:
    try:
        objective_of(text)
    except InputError as error:
        raise cross_error(str(error).removeprefix(f"objective: '{text}' ")) from None
    return text


ObjectiveText = Annotated[
    str,
    AfterValidator(_is_objective),
    Field(json_schema_extra={"pattern": r"^(seconds|usd|usd-within[ :][0-9.eE+-]+)$"}),
]


class Slo(Strict):
    """Limits that every plan of the job keeps."""

    step_p95_s: Positive | None = None
    """Seconds that 95% of the steps must stay below; null for no such limit."""


class JobPlacement(Strict):
    """Engines and trainers on pools of their own."""

    train_pool: Name
    """The pool of `cluster.yaml` that trainers have to themselves; engines are on another one."""

    streams: Annotated[bool, Field(exclude_if=is_true)] = True
    """Trainers train complete groups while the others of the round decode. False: they begin when the rollout has
    ended, as a job of a co-execution group must, whose phases take turns with those of other jobs."""


class ModelSpec(Strict):
    """The policy's initial weights."""

    path: Annotated[str, Field(min_length=1)]
    """Folder of a Hugging Face model, relative to job.yaml, or a hub id `owner/name`."""

    revision: Annotated[str | None, Field(pattern=r"^[\w][\w./-]*$", max_length=200, exclude_if=is_none)] = None
    """Branch, tag or commit of a hub id; null: its main branch. All parts of profiles and runs load this one."""

    warm_start: Annotated[str | None, Field(min_length=1, exclude_if=is_none)] = None
    """Weights that training begins with, in place of those of `path`: a folder of a Hugging Face model of the same
    shape, or the folder of another run, whose newest checkpoint is taken; relative to job.yaml. Moments begin at 0."""

    dtype: Literal["float32", "bfloat16", "float16"]
    """Type of weights and activations, in the engine and in the trainer."""

    head_dtype: Annotated[Literal["float32"] | None, Field(exclude_if=is_none)] = None
    """Type that the output matrix is multiplied in, in the engine (vLLM >= 0.32) and in the trainer; null: `dtype`.
    float32 makes the two agree better on log-probabilities where logits are large, and takes several times as long."""

    compile: Annotated[Literal["auto", "on", "off"], Field(exclude_if=is_auto)] = "auto"
    """Whether the trainer compiles the model's layers (torch.compile): `auto`: on GPUs, where its first micro-batch is
    faster by 5 % or more; on CPUs never. `on` needs a C++ compiler on CPUs."""

    lora: Annotated[LoraSpec | None, Field(exclude_if=is_none)] = None
    """Adapters that are trained while the weights stay as they are; null: the weights are trained."""

    @model_validator(mode="after")
    def _adapters_are_of_the_models_weights(self) -> ModelSpec:
        if self.lora is not None and self.warm_start is not None:
            raise cross_error(
                "is for weights that are all trained, and lora trains adapters of those of path; name the weights in "
                "path (rlplan export-model writes a run's)",
                "warm_start",
            )
        return self

    @property
    def hub_name(self) -> str:
        """The hub id with its revision, `owner/name@revision`; `path` where none is named."""
        return self.path if self.revision is None else f"{self.path}@{self.revision}"


class SearchSpec(Strict):
    """Values that `profile` measures and `solve` considers."""

    tp: Choices
    """Tensor-parallel sizes of engines, ascending."""

    micro_batch_tokens: Choices
    """Token budgets of one training micro-batch, ascending."""

    hand_over: FinishedShares = ()
    """Shares of finished samples at which half of a long round's engines may go to training; empty: never."""

    tail: Annotated[FinishedShares, Field(exclude_if=is_empty)] = ()
    """Shares of finished samples at which fewer engines of a higher size of `tp` may take over a long round's tail;
    empty: never."""

    drafts: SearchDrafts | None = None
    """Speculative decoding; null: it is considered if the profile has measured drafts."""

    balance: Annotated[bool, Field(exclude_if=is_false)] = False
    """Whether rounds may start the longest expected samples first, by the earlier responses to their prompts, where
    that saves time; for data that is seen more than once. Modes sync, exact and predict."""

    cutoff_tokens: Annotated[SearchCutoff | None, Field(exclude_if=is_none)] = None
    """Bounds of the cutoff of mode exact; null: `solve` tries quantiles of the length trace. Other modes ignore it."""

    max_over_issue: Annotated[float, Field(ge=1, le=100)] = 2.0
    """Samples that a round may issue at its start for each sample that it trains: prompts times samples of a short
    round over prompts_per_step times samples_per_prompt, and the copies of a long round by waves. (What a long round by
    queue issues follows from its cutoff.) Most of what is issued beyond 1 is decoded and not trained. The default has
    room for RollPacker's 1.25 x 1.25 (arXiv 2509.21009); 1 leaves plain synchronous rounds and mode predict."""


class Job(Strict):
    """The document job.yaml."""

    rlplan_job: Literal[1]
    """Version of the format."""

    name: Name
    """Name of the job; runs and plans carry it."""

    model: ModelSpec
    """The policy's initial weights."""

    data: DataSpec
    """The prompts."""

    reward: Annotated[RewardSpec, OneOrList()]
    """How a response is scored; or a list of such sections, whose weighted sum is a sample's reward."""

    rollout: RolloutSpec
    """The size of a step and the limits of a sample."""

    algorithm: Algorithm
    """The policy-gradient update."""

    logprob_limits: Annotated[LogprobLimitSpec | None, Field(exclude_if=is_none)] = None
    """How far engine and trainer may differ; null: as far as rounding of `model.dtype` explains."""

    search: SearchSpec
    """Values that `profile` measures and `solve` considers."""

    evaluate: Annotated[EvaluateSpec | None, Field(exclude_if=is_none)] = None
    """Evaluations between steps, on the engines, scored by the job's reward; null: none."""

    engine: Annotated[EngineSpec | None, Field(exclude_if=is_none)] = None
    """Arguments of vLLM that the job sets; null: none."""

    slo: Slo = Slo()
    """Limits that the plan keeps."""

    objective: Annotated[ObjectiveText | None, Field(exclude_if=is_none)] = None
    """What `solve` minimises per trained sample: `seconds`; `usd`, for the nodes that a plan takes; or `usd-within
    SECONDS`, fewest USD among plans whose mean step is within so many seconds. Null: as `--objective`, else seconds."""

    placement: Annotated[JobPlacement | None, Field(exclude_if=is_none)] = None
    """A pool of their own for trainers; null: engines and trainers take turns on the same accelerators."""

    @property
    def evaluated_reward(self) -> RewardSpec:
        """What scores evaluations."""
        return self.reward.only(() if self.evaluate is None else self.evaluate.rewards)

    @property
    def kv_dtype(self) -> str:
        """Type of the values in the engines' KV cache."""
        return (self.engine and self.engine.kv_cache_dtype) or self.model.dtype

    @model_validator(mode="after")
    def _some_micro_batch_holds_the_longest_sequence(self) -> Job:
        largest, longest = self.search.micro_batch_tokens[-1], self.rollout.longest_tokens
        if largest < longest:
            raise cross_error(
                f"the largest micro-batch has {largest} tokens but a sequence may have {longest} "
                f"(max_prompt_tokens + max_response_tokens); add a size of at least {longest}",
                "search.micro_batch_tokens",
            )
        return self

    @model_validator(mode="after")
    def _length_rewards_have_an_effect(self) -> Job:
        cap = self.rollout.max_response_tokens
        for part in self.reward.parts:
            free = part.target_tokens or 0
            if part.cache_tokens is not None:
                free = (part.max_tokens or cap) - part.cache_tokens
            field = "target_tokens" if part.target_tokens else "cache_tokens"
            if free >= cap or free < 0:
                raise cross_error(
                    f"lets the first {free} tokens be free, and a response has at most {cap} "
                    "(rollout.max_response_tokens), so that it never has an effect; write a smaller number"
                    if free > 0
                    else f"is {part.cache_tokens}, more than a response may have ({cap}, rollout.max_response_tokens)",
                    ".".join(map(str, (*self.reward.key_of(part), field))),
                )
        return self

    @model_validator(mode="after")
    def _evaluations_have_prompts(self) -> Job:
        if self.evaluate is not None and self.evaluate.data is None and self.data.held_out is None:
            raise cross_error(
                "names no prompts; add data, a file of rows, or data.held_out, a share of the job's own",
                "evaluate",
                rule="missing-key",
            )
        labels = [part.label for part in self.reward.parts]
        for place, name in enumerate(() if self.evaluate is None else self.evaluate.rewards):
            if name not in labels:
                text = f"'{name}' is no part of the reward; write some of {', '.join(labels)}"
                raise cross_error(text, f"evaluate.rewards.{place}")
        return self

    @model_validator(mode="after")
    def _prompts_fill_a_step(self) -> Job:
        prompts, needed = self.data.trained_prompts, self.rollout.prompts_per_step
        if prompts is not None and prompts < needed:
            held_out = "" if self.data.held_out is None else f", {prompts} without data.held_out"
            raise cross_error(
                f"is {self.data.prompts}{held_out}, and a step trains {needed} different ones "
                "(rollout.prompts_per_step); lower that, or "
                "use more data",
                "data.prompts",
                rule="too-few-prompts",
            )
        return self


def load_job(path: str | Path) -> Job:
    """Read job.yaml. Raises InputError. Its paths are not checked; `job_paths` checks them."""
    from ..yaml.yaml_io import load

    return load(path, Job)


@dataclass(frozen=True)
class RowSets:
    """Several data sets as one: (name, absolute path, weight) of each."""

    sets: tuple[tuple[str, Path, int], ...]

    def __str__(self) -> str:
        return ", ".join(str(path) for _, path, _ in self.sets)


@dataclass(frozen=True)
class JobPaths:
    """Where a job's files are.

    Attributes:
        model: the absolute path of the local folder, or the hub id, `owner/name@revision` where a revision is named;
            `pretrained` makes of it what transformers and vLLM accept.
        data: absolute path of the file of prompts, or those of its sets; None if there is no file and the job only
            says `data.prompts`.
        evaluation: of the file of prompts of `evaluate`; None where it names none.
        warm_start: of what `model.warm_start` names; None without it.
        weights: the folder of a model whose weights training begins with; "": those of `model`.
        model_folder: the local folder, or None for a hub id.
        reward_folder: the folder of job.yaml, which is searched first for the module of `reward.function`.
        judge: the name of the judge's model, as `model`; "" without a judge.
    """

    model: str
    data: Path | RowSets | None
    model_folder: Path | None
    reward_folder: Path
    judge: str = ""
    evaluation: Path | None = None
    warm_start: Path | None = None
    weights: str = ""


def scoring_paths(job: Job, job_path: str | Path) -> JobPaths:
    """The files that scoring a response needs, the data and the folder of `reward.function`, as `job_paths` gives them;
    no model need be here. Raises InputError where the data file is missing."""
    from ..yaml.yaml_io import error_at

    for loc, fault in missing_files(job, job_path, to_train=True):
        if loc[0] == "data":
            raise error_at(job_path, loc, f"{'.'.join(map(str, loc))}: {fault}")
    return JobPaths("", _rows(job, job_path), None, Path(job_path).resolve().parent)


def is_hub_id(model: str) -> bool:
    """Whether a model's name has the form of a hub id, `owner/name`."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model) is not None


def pretrained(model: str) -> tuple[str, dict[str, str]]:
    """A model's name as `JobPaths.model` has it, in two: the folder or hub id that `from_pretrained` takes, and its
    `revision` where one is named."""
    name, at, revision = model.partition("@")
    return (name, {"revision": revision}) if at and is_hub_id(name) else (model, {})


def job_paths(job: Job, job_path: str | Path) -> JobPaths:
    """Resolve the job's relative paths against the folder of job.yaml (at `job_path`).

    A `model.path` that is a folder is local; otherwise `owner/name` is a hub id, which is not looked up here.
    Raises InputError when the data file is missing and the job does not say how many prompts it holds, or when
    `model.path` is neither a folder nor a hub id.
    """
    from ..yaml.yaml_io import error_at

    missing = [
        error_at(job_path, loc, f"{'.'.join(map(str, loc))}: {fault}") for loc, fault in missing_files(job, job_path)
    ]
    if missing:
        raise joined(missing)
    warm_start = _beside(job.model.warm_start, job_path)
    folder = model_folder(job, job_path)
    data_file = None if any(loc[0] == "data" for loc, _ in missing_files(job, job_path, True)) else _rows(job, job_path)
    judge = judge_folder(job, job_path) or (job.reward.judge and job.reward.judge.model) or ""
    reward_folder = Path(job_path).resolve().parent
    evaluation = None if job.evaluate is None else _beside(job.evaluate.data, job_path)
    name = str(folder or job.model.hub_name)
    return JobPaths(name, data_file, folder, reward_folder, str(judge), evaluation, warm_start)


def model_folder(job: Job, job_path: str | Path) -> Path | None:
    """The local folder of the model of the job at `job_path`; None where it is not on this machine, or on the hub."""
    return _folder(job.model.path, job_path)


def _beside(path: str | None, job_path: str | Path) -> Path | None:
    """A path that the job at `job_path` names, relative to it, be it there or not; None for what is no path."""
    try:
        return None if path is None else Path(job_path).resolve().parent / Path(path).expanduser()
    except RuntimeError:  # `~name`, where no user is called `name`
        return None


def _rows(job: Job, job_path: str | Path) -> Path | RowSets | None:
    """Where the job's rows are, be they there or not; None where it names no file."""
    if not job.data.sets:
        return _beside(job.data.path, job_path)
    return RowSets(tuple((each.name, _beside(each.path, job_path) or Path(each.path), each.weight)
                         for each in job.data.sets))  # fmt: skip


def _folder(model: str, job_path: str | Path) -> Path | None:
    """The local folder of a model that the job at `job_path` names; None if it is none on this machine."""
    folder = _beside(model, job_path)
    return folder if folder is not None and os.path.isdir(folder) else None  # noqa: PTH112


def judge_folder(job: Job, job_path: str | Path) -> Path | None:
    """The local folder of the model of the job's judge; None without one, or where it is not on this machine."""
    part = job.reward.judge
    return None if part is None or part.model is None else _folder(part.model, job_path)


def missing_files(job: Job, job_path: str | Path, to_train: bool = False) -> Iterator[tuple[Loc, str]]:
    """Yield (key, what is wrong and what to do) for each missing file of the job. A hub id is not looked up.

    `to_train`: the file of prompts is needed; otherwise their number (`data.prompts`) is enough.
    """
    data = _beside(job.data.path, job_path)
    models: list[tuple[Loc, str]] = [(("model", "path"), job.model.path)]
    models += [((*job.reward.key_of(part), "model"), part.model) for part in job.reward.parts if part.model is not None]
    for loc, model in models:
        if _folder(model, job_path) is None and not is_hub_id(model):
            yield loc, f"no such folder: '{model}'; paths are relative to this file, a hub id is 'owner/name'"
    if job.model.warm_start is not None and to_train:
        start = _beside(job.model.warm_start, job_path)
        if start is None or not os.path.isdir(start):  # noqa: PTH112
            yield ("model", "warm_start"), f"no such folder: '{job.model.warm_start}'; paths are relative to this file"
    if job.model.revision is not None and _folder(job.model.path, job_path) is not None:
        yield ("model", "revision"), f"'{job.model.path}' is a folder, which has no revisions; remove the key"
    if job.evaluate is not None and job.evaluate.data is not None and to_train:
        held_out = _beside(job.evaluate.data, job_path)
        if held_out is None or not os.path.exists(held_out):  # noqa: PTH110
            yield ("evaluate", "data"), f"no such file: '{job.evaluate.data}'; paths are relative to this file"
    gone = [
        (("data", "sets", place, "path"), f"no such file: '{each.path}'; paths are relative to this file")
        for place, each in enumerate(job.data.sets)
        if not ((file := _beside(each.path, job_path)) and os.path.exists(file))  # noqa: PTH110
    ]
    if job.data.sets:
        yield from gone if to_train or job.data.prompts is None else ()
        return
    if data is not None and os.path.exists(data):  # noqa: PTH110 (pathlib raises for what can be no path)
        return
    if job.data.prompts is None:
        yield ("data", "path"), f"no such file: '{job.data.path}'; paths are relative to this file"
    elif to_train:
        fault = "no file is named" if job.data.path is None else f"no such file: '{job.data.path}'"
        yield (
            ("data", "path"),
            f"{fault}; data.prompts is enough to plan, but measuring and training need the prompts: name a JSONL file, "
            'each row {"id": …, "prompt": …, "answer": …}',
        )
