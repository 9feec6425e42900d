"""Measures updates in further layouts of trainers, on samples of the rounds that were run.

A layout's update is compared with the data-parallel one of one rank on the same samples, both in a row: what the
profile says of it is the latter's fit, which was measured between rollouts, times the ratio of their seconds. So few
updates of a layout are enough, and its error holds how much the ratios differ.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...executor.trainer.samples import TrainSample
from ...executor.trainer.step_checks import LOGPROB_LIMITS, refusal
from ...executor.trainer.trainer_config import UpdateSettings
from ...executor.trainer.trainer_group import TrainerGroup
from ...plans.schema.sections.layouts import UpdateLayout
from ...plans.yaml.errors import RunFailed
from ..phase_schema import Train

UPDATES = 3
"""Measured updates of a layout, after one that is not counted: its calls are the first of their kind."""

RECOMPUTED_UPDATES = 2
"""Measured updates of a layout with recomputation."""

Groups = list[list[TrainSample]]
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """What updates are measured with.

    Attributes:
        steps: groups of one step each; every layout trains the same.
        dtype: the job's.
        trainer_of: makes the trainer of a layout, which is to be started and whose learning rate is 0.
    """

    steps: Sequence[Groups]
    dtype: str
    trainer_of: Callable[[UpdateLayout], TrainerGroup]


async def timed_update(trainer: TrainerGroup, groups: Groups, settings: UpdateSettings, dtype: str) -> float:
    """Seconds of one update. Raises RunFailed if the trainer refuses it: its seconds say nothing then."""
    began = time.perf_counter()
    metrics = await trainer.step(groups, settings)
    seconds = time.perf_counter() - began
    if refused := refusal(metrics, LOGPROB_LIMITS[dtype]):
        raise RunFailed(f"an update was refused, so its seconds say nothing: {refused.text}")
    return seconds


def step_groups(groups: Sequence[list[TrainSample]], prompts: int) -> list[Groups]:
    """The groups as up to 1 + `UPDATES` steps of `prompts` different prompts each, those that come first."""
    steps: list[Groups] = [[]]
    for group in groups:
        if len(steps[-1]) == prompts:
            steps.append([])
        if len(steps) > 1 + UPDATES:
            break
        if all(other[0].prompt_id != group[0].prompt_id for other in steps[-1]):
            steps[-1].append(group)
    return [step for step in steps[: 1 + UPDATES] if len(step) == prompts] or steps[:1]


async def measure_updates(
    bench: Bench, alone: TrainerGroup, fits: Sequence[Train], layouts: Sequence[UpdateLayout], notify: Notify
) -> tuple[Train, ...]:
    """Entries of `layouts`, and of the fastest of all with recomputation.

    Args:
        alone: the trainer of one rank, started.
        fits: its entries, among them one of the layouts' micro-batch.

    A layout that the trainer cannot have for this model is left out, and `notify` says why.
    """
    entries: list[Train] = []
    fit = next(entry for entry in fits if entry.micro_batch_tokens == layouts[0].micro_batch_tokens)
    notify("updates of one rank")
    base, recomputing = await _seconds(bench, alone, fit.layout)
    fastest, recomputed = statistics.median(base), scaled(fit, _recomputed(fit.layout), _ratios(recomputing, base))
    for layout in layouts:
        notify(f"updates with {_name(layout)}")
        trainer = bench.trainer_of(layout)
        try:
            await trainer.start()
            seconds, recomputing = await _seconds(bench, trainer, layout)
        except RunFailed as error:
            notify(f"updates with {_name(layout)} are left out: {error}")
            continue
        finally:
            await trainer.close()
        entries.append(scaled(fit, layout, _ratios(seconds, base)))
        if statistics.median(seconds) < fastest:
            fastest = statistics.median(seconds)
            recomputed = scaled(fit, _recomputed(layout), _ratios(recomputing, base))
    return (*entries, recomputed)


def scaled(fit: Train, layout: UpdateLayout, ratios: Sequence[float]) -> Train:
    """The entry of a layout whose updates take `ratios` of the seconds of those that `fit` is of."""
    ratio = statistics.median(ratios)
    spread = statistics.mean(abs(each / ratio - 1) for each in ratios)
    sizes = {key: getattr(layout, key) for key in UpdateLayout.model_fields}
    return fit.model_copy(
        update={
            **sizes,
            "step_s": fit.step_s * ratio,
            "step_s_per_token": fit.step_s_per_token * ratio,
            "step_s_per_token_squared": fit.step_s_per_token_squared * ratio,
            "error": math.hypot(fit.error, spread),
        }
    )


async def _seconds(bench: Bench, trainer: TrainerGroup, layout: UpdateLayout) -> tuple[list[float], list[float]]:
    """Seconds of each step but the first, and of the first `RECOMPUTED_UPDATES` of those with recomputation."""
    plain = UpdateSettings(layout.micro_batch_tokens)
    measured = bench.steps[1:] or bench.steps
    await timed_update(trainer, bench.steps[0], plain, bench.dtype)
    seconds = [await timed_update(trainer, step, plain, bench.dtype) for step in measured]
    recompute = plain._replace(recompute=True)
    return seconds, [
        await timed_update(trainer, step, recompute, bench.dtype) for step in measured[:RECOMPUTED_UPDATES]
    ]


def _ratios(seconds: Sequence[float], base: Sequence[float]) -> list[float]:
    return [layout_s / base_s for layout_s, base_s in zip(seconds, base, strict=False)]


def _recomputed(layout: UpdateLayout) -> UpdateLayout:
    return layout.model_copy(update={"recompute": "full"})


def _name(layout: UpdateLayout) -> str:
    return ", ".join(f"{key} {size}" for key in ("dp", "tp", "sp") if (size := getattr(layout, key)) > 1) or "dp 1"
