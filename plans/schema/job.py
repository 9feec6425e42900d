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
from .algorithm import Algorithm
from .base import (
    MOST_PROMPTS_PER_STEP,
    MOST_SAMPLES_PER_STEP,
    Choices,
    Count,
    Name,
    Positive,
    Strict,
    Tokens,
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


class DataSpec(Strict):
    """The prompts: a file of them, or, while a job is only planned, how many there will be."""

    path: Annotated[str | None, Field(min_length=1, exclude_if=is_none)] = None
    """File of rows, relative to job.yaml: JSON Lines, a JSON array or Parquet, plain or gzipped; each row has `id`,
    `prompt` (text or chat messages) and `answer`."""

    prompts: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """How many prompts there are; enough to plan while the file is not here, but not to measure or to train."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the order in which prompts are drawn in each epoch."""

    @model_validator(mode="after")
    def _prompts_can_be_counted(self) -> DataSpec:
        if self.path is None and self.prompts is None:
            raise cross_error(
                "names no prompts; add path, a JSONL file, or prompts, how many there will be", rule="missing-key"
            )
        return self


class ModelSpec(Strict):
    """The policy's initial weights."""

    path: Annotated[str, Field(min_length=1)]
    """Folder of a Hugging Face model, relative to job.yaml, or a hub id `owner/name`."""

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


class EvaluateSpec(Strict):
    """Evaluations of the policy between two steps, on prompts that it is not trained on."""

    data: Annotated[str, Field(min_length=1)]
    """File of rows as of `data.path`, relative to job.yaml. Each evaluation decodes all of its prompts."""

    every_steps: Count
    """Steps between two evaluations; what the run ends with is evaluated in any case."""

    at_start: bool = True
    """Evaluate the weights that the run begins with."""

    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = 1
    """n: responses to each prompt; pass@k is told for each power of two k up to n."""

    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Sampling temperature; 0 decodes greedily, one response to a prompt."""

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

    search: SearchSpec
    """Values that `profile` measures and `solve` considers."""

    evaluate: Annotated[EvaluateSpec | None, Field(exclude_if=is_none)] = None
    """Evaluations between steps, on the engines, scored by the job's reward; null: none."""

    slo: Slo = Slo()
    """Limits that the plan keeps."""

    objective: Annotated[ObjectiveText | None, Field(exclude_if=is_none)] = None
    """What `solve` minimises per trained sample: `seconds`; `usd`, for the nodes that a plan takes; or `usd-within
    SECONDS`, fewest USD among plans whose mean step is within so many seconds. Null: as `--objective`, else seconds."""

    placement: Annotated[JobPlacement | None, Field(exclude_if=is_none)] = None
    """A pool of their own for trainers; null: engines and trainers take turns on the same accelerators."""

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
    def _prompts_fill_a_step(self) -> Job:
        prompts, needed = self.data.prompts, self.rollout.prompts_per_step
        if prompts is not None and prompts < needed:
            raise cross_error(
                f"is {prompts}, and a step trains {needed} different ones (rollout.prompts_per_step); lower that, or "
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
class JobPaths:
    """Where a job's files are.

    Attributes:
        model: the name that transformers and vLLM accept: the absolute path of the local folder, or the hub id.
        data: absolute path of the file of prompts; None if there is no file and the job only says `data.prompts`.
        evaluation: of the file of prompts of `evaluate`; None without such a section.
        model_folder: the local folder, or None for a hub id.
        reward_folder: the folder of job.yaml, which is searched first for the module of `reward.function`.
        judge: the name of the judge's model, as `model`; "" without a judge.
    """

    model: str
    data: Path | None
    model_folder: Path | None
    reward_folder: Path
    judge: str = ""
    evaluation: Path | None = None


def scoring_paths(job: Job, job_path: str | Path) -> JobPaths:
    """The files that scoring a response needs, the data and the folder of `reward.function`, as `job_paths` gives them;
    no model need be here. Raises InputError where the data file is missing."""
    from ..yaml.yaml_io import error_at

    for loc, fault in missing_files(job, job_path, to_train=True):
        if loc[0] == "data":
            raise error_at(job_path, loc, f"{'.'.join(map(str, loc))}: {fault}")
    return JobPaths("", _beside(job.data.path, job_path), None, Path(job_path).resolve().parent)


def is_hub_id(model: str) -> bool:
    """Whether a model's name has the form of a hub id, `owner/name`."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model) is not None


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
    data = _beside(job.data.path, job_path)
    folder = model_folder(job, job_path)
    data_file = data if data is not None and os.path.isfile(data) else None  # noqa: PTH113
    judge = judge_folder(job, job_path) or (job.reward.judge and job.reward.judge.model) or ""
    reward_folder = Path(job_path).resolve().parent
    evaluation = None if job.evaluate is None else _beside(job.evaluate.data, job_path)
    return JobPaths(str(folder or job.model.path), data_file, folder, reward_folder, str(judge), evaluation)


def model_folder(job: Job, job_path: str | Path) -> Path | None:
    """The local folder of the model of the job at `job_path`; None where it is not on this machine, or on the hub."""
    return _folder(job.model.path, job_path)


def _beside(path: str | None, job_path: str | Path) -> Path | None:
    """A path that the job at `job_path` names, relative to it, be it there or not; None for what is no path."""
    try:
        return None if path is None else Path(job_path).resolve().parent / Path(path).expanduser()
    except RuntimeError:  # `~name`, where no user is called `name`
        return None


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
    if job.evaluate is not None and to_train:
        held_out = _beside(job.evaluate.data, job_path)
        if held_out is None or not os.path.isfile(held_out):  # noqa: PTH113
            yield ("evaluate", "data"), f"no such file: '{job.evaluate.data}'; paths are relative to this file"
    if data is not None and os.path.isfile(data):  # noqa: PTH113 (pathlib raises for what can be no path)
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
