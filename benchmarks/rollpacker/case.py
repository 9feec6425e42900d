"""A case: the published GPUs of one model size, and the seconds of the phases that are not simulated."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rlplan.plans.schema.base import Count, Name, NonNegative, Positive, Strict
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.plan import InputFile, Inputs, LengthsInput, ProfileFile
from rlplan.plans.yaml.errors import InputError
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.hardware import GPUS
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.phase_schema import Reward, Spread
from rlplan.profiles.profile_schema import Profile, RoundCheck

from ..copula_trace import copula_lengths

# The published series of the paper's figures, read from a file of x, y pairs.

PUBLISHED_CAP = 16384
"""Cap in tokens under which the lengths of figure 2a were sampled."""

TASKS = ("math", "code", "judge")
_CAP_NAMES = {4096: "4k", 8192: "8k", 16384: "16k", 32768: "32k"}


@dataclass(frozen=True)
class Figures:
    """One file of published series."""

    path: Path
    series: dict[str, Any]

    @staticmethod
    def read(path: Path) -> Figures:
        """Read a file. Raises InputError if it is absent or holds no length CDF."""
        try:
            series = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise InputError("no such file; give the published series with --figures", str(path)) from None
        except ValueError as error:
            raise InputError(f"is not JSON: {error}", str(path)) from None
        if not isinstance(series, dict) or not any(f"fig2a_{task}" in series for task in TASKS):
            raise InputError(
                "holds no series fig2a_math, fig2a_code or fig2a_judge (tokens, CDF in per cent)", str(path)
            )
        return Figures(path, series)

    def tasks(self) -> tuple[str, ...]:
        """Tasks whose lengths are published."""
        return tuple(task for task in TASKS if f"fig2a_{task}" in self.series)

    def cdf(self, task: str) -> list[tuple[float, float]]:
        """(tokens, share of the responses within them); what is above the last share was cut by `PUBLISHED_CAP`."""
        points = [(float(tokens), float(percent) / 100) for tokens, percent in self.series[f"fig2a_{task}"]]
        # The figure's axis ends at a quarter of the cap; how much ends between there and the cap stands in the note.
        note = re.search(rf"below the \S+ cap:.*?\b{task} (\d+\.?\d*)", str(self.series.get("fig2a_tail_note", "")))
        if note and points[-1][0] < PUBLISHED_CAP:
            points.append((float(PUBLISHED_CAP), float(note.group(1)) / 100))
        return points

    def sensitivity(self, cap_tokens: int) -> dict[tuple[float, float], float]:
        """Published seconds by (over-issue of prompts, of samples), (1, 1) first; empty if none for this cap."""
        data, cap = self.series.get("fig11_seconds", {}), _CAP_NAMES.get(cap_tokens, "")
        points: dict[tuple[float, float], float] = {}
        factors = data.get("eta", [])
        for eta, seconds in zip(factors, data.get("fixedP_vary_R", {}).get(cap, []), strict=False):
            points[1.0, float(eta)] = float(seconds)
        for eta, seconds in zip(factors, data.get("fixedR_vary_P", {}).get(cap, []), strict=False):
            points[float(eta), 1.0] = float(seconds)
        for name, by_cap in data.items():
            match = re.fullmatch(r"both_(\d+\.?\d*)", name)
            if match and cap in by_cap:
                points[float(match.group(1)), float(match.group(1))] = float(by_cap[cap])
        return points if (1.0, 1.0) in points else {}

    def step_s(self, model: str) -> dict[str, float]:
        """Mean published seconds of a step by system ("verl", "rollpacker"); empty if not published for this size."""
        names = {"verl": f"fig9_{model}_verl", "rollpacker": f"fig9_{model}_rp"}
        return {
            system: statistics.fmean(y for _, y in self.series[name])
            for system, name in names.items()
            if name in self.series
        }

    def phases_s(self, model: str) -> dict[str, dict[str, float]]:
        """Published seconds of RollPacker's phases by kind of round; empty if not published for this size."""
        phases: dict[str, dict[str, float]] = self.series.get("fig10c_seconds", {}).get(model, {})
        return phases


# The documents of a published run as `rlplan solve` takes them: cluster, job, profile, length trace.

GPUS_PER_NODE = 8
PROMPT_TOKENS = 256
# Prompts of a task and samples of each in the trace: enough that the tail beyond 1 % is known.
_TRACED, _SAMPLES = 240, 16
# USD per GPU-hour: H800 as in RollMux (arXiv 2512.11306), others do not matter to any ratio here.
_USD = {"H800": 5.28}
# Sandbox calls take 0.31 s at the median (figure 7a); one CPU worker per GPU.
_REWARD_S = 0.31


def cluster_of(case: Case) -> Cluster:
    """The GPUs of the case, eight to a node."""
    pool = {
        "nodes": -(-case.gpus // GPUS_PER_NODE),
        "accelerators": {
            "kind": "cuda",
            "name": case.gpu,
            "per_node": min(GPUS_PER_NODE, case.gpus),
            "memory_bytes": GPUS[case.gpu].memory_bytes,
        },
        "cores": 128,
        "host_memory_bytes": 2 * 10**12,
        "usd_per_node_hour": min(GPUS_PER_NODE, case.gpus) * _USD.get(case.gpu, 2.0),
    }
    return Cluster.model_validate({"rlplan_cluster": 1, "name": "published", "pools": {"main": pool}})


def job_of(case: Case) -> Job:
    """The job of the case."""
    longest = PROMPT_TOKENS + case.cap_tokens
    budgets = [tokens for tokens in (8192, 16384, 32768, 65536, 131072) if tokens >= longest][:2]
    return Job.model_validate(
        {
            "rlplan_job": 1,
            "name": "published",
            "model": {"path": case.model, "dtype": "bfloat16"},
            "data": {"path": "published.jsonl"},
            "reward": {"kind": "code", "workers": case.gpus, "deadline_s": 30.0},
            "rollout": {
                "prompts_per_step": case.prompts_per_step,
                "samples_per_prompt": case.samples_per_prompt,
                "max_prompt_tokens": PROMPT_TOKENS,
                "max_response_tokens": case.cap_tokens,
            },
            "algorithm": {"name": "grpo", "learning_rate": 1e-6},
            "search": {"tp": [1, 2, 4, 8], "micro_batch_tokens": budgets},
        }
    )


def profile_of(
    case: Case, shipped: Profile, factor: float, overhead_s: float, sync_s: float, reward_s: float
) -> Profile:
    """The shipped profile at the calibrated speed, with the published sync and reward latency."""
    sync = Spread(p50=sync_s, p95=sync_s, repeats=0)
    check = RoundCheck(
        tp=case.rollout_tp,
        engines=1,
        rounds=1,
        overhead_s=overhead_s,
        overhead_s_per_sample=0.0,
        factor=factor,
        error=0.0,
    )
    latency = Spread(p50=max(reward_s, _REWARD_S), p95=max(reward_s, _REWARD_S), repeats=0)
    return shipped.model_copy(
        update={
            "rollout": tuple(r.model_copy(update={"sync": sync}) for r in shipped.rollout),
            "checks": (check,),
            "reward": Reward(workers=case.gpus, latency=latency, per_sample_s=_REWARD_S),
        }
    )


def trace_of(case: Case, figures: Figures, rho: float) -> LengthTrace:
    """Published lengths of all tasks in equal shares, with one dependence within prompts."""
    rows = []
    for number, task in enumerate(figures.tasks()):
        trace = copula_lengths(
            figures.cdf(task), rho, case.cap_tokens, _TRACED, _SAMPLES, seed=number, prompt_tokens=PROMPT_TOKENS
        )
        rows += [dataclasses.replace(row, prompt=f"{task}-{row.prompt}") for row in trace.rows]
    return LengthTrace(rows, case.cap_tokens)


def no_inputs() -> Inputs:
    """Placeholder for the input files of a plan: these documents are in no file."""
    digest = "0" * 64
    file, lengths = InputFile(path="a.yaml", sha256=digest), LengthsInput(path="lengths.jsonl", sha256=digest)
    profile = ProfileFile(path="profile.yaml", sha256=digest, provenance="derived")
    return Inputs(cluster=file, job=file, profile=profile, lengths=lengths)


class PlainPhases(Strict):
    """Seconds of a step of the plain synchronous system."""

    rollout_s: Positive
    """Decoding; the speed of the engines is calibrated on it."""

    reward_s: NonNegative
    """Rewards, scored after the rollout."""

    train_s: NonNegative
    """The update."""

    sync_s: NonNegative = 0.0
    """Weight transfer to the engines, where no other phase contains it."""


class RoundPhases(Strict):
    """Seconds of a RollPacker round besides its rollout."""

    sync_s: NonNegative
    """Weight transfer to the engines."""

    reward_s: NonNegative
    """Waiting for rewards after the last token."""

    train_s: NonNegative
    """The part of the update that is not hidden under the rollout."""


class RacePhases(Strict):
    """RollPacker's rounds; missing kinds are taken from the figures file."""

    short: RoundPhases | None = None
    """Short rounds."""

    long: RoundPhases | None = None
    """Long rounds."""

    other_s: NonNegative = 0.0
    """Seconds of a step beside its published phases."""

    long_train_unhidden_s: NonNegative | None = None
    """The whole update of a long round; null: as long as the plain system's."""


class Published(Strict):
    """Mean seconds of a step, to compare with; null: from the figures file."""

    verl: Positive | None = None
    """The plain synchronous system."""

    rollpacker: Positive | None = None
    """RollPacker over its cycle."""


class Case(Strict):
    """The document."""

    model: Name
    """As in the shipped profiles, say Qwen2.5-14B."""

    gpu: Name = "H800"
    """As in the shipped profiles."""

    gpus: Count
    """In all; eight to a node."""

    rollout_tp: Count
    """Accelerators per engine."""

    cap_tokens: Count
    """Cap on a response."""

    prompts_per_step: Count = 128
    """P."""

    samples_per_prompt: Annotated[int, Field(ge=2)] = 8
    """n."""

    prompts_factor: Annotated[float, Field(ge=1)] = 1.25
    """Over-issue of prompts at RollPacker's operating point."""

    samples_factor: Annotated[float, Field(ge=1)] = 1.25
    """Over-issue of samples there."""

    plain: PlainPhases
    """The plain synchronous system (veRL)."""

    race: RacePhases = RacePhases()
    """RollPacker's phases besides the rollout."""

    published_step_s: Published = Published()
    """To compare with."""

    sources: dict[str, str] = Field(default={})
    """Where the numbers come from."""

    @property
    def engines(self) -> int:
        """Engines of the rollout."""
        return self.gpus // self.rollout_tp


def read_case(path: Path) -> Case:
    """Read a case. Raises InputError."""
    if not path.is_file():
        raise InputError(
            "no such file; give the published phases with --phases (14B.yaml here is an example)", str(path)
        )
    case = load(path, Case)
    if case.gpus % case.rollout_tp:
        raise InputError(f"rollout_tp {case.rollout_tp} does not divide {case.gpus} GPUs", str(path))
    return case


def round_phases(case: Case, figures: Figures, model: str, round_kind: str) -> RoundPhases:
    """Phases of a kind of round: the case's, else the figures'. Raises InputError if neither has them."""
    phases = case.race.short if round_kind == "short" else case.race.long
    if phases is not None:
        return phases
    published = figures.phases_s(model).get(round_kind)
    if published is None:
        raise InputError(
            f"has no phases of RollPacker's {round_kind} rounds for {model}; give race.{round_kind} in --phases",
            str(figures.path),
        )
    return RoundPhases(sync_s=published["sync"], reward_s=published["reward"], train_s=published["train"])
