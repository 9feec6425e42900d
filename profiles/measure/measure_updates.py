"""Measures updates in further layouts of trainers, on samples of the rounds that were run, and the memory of each.

A layout's update is compared with that of the first trainer on the same samples, both in a row: what the profile says
of it is the latter's fit, which was measured between rollouts, times the ratio of their seconds. So few updates of a
layout are enough, and its error holds how much the ratios differ.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...executor.configuration import update_settings
from ...executor.memory.device_holds import trainer_name
from ...executor.memory.free_memory import free_host_bytes
from ...executor.trainer.step_checks import LogprobLimits, refusal
from ...executor.trainer.train_samples import Groups, TrainSample
from ...executor.trainer.trainer_config import UpdateSettings
from ...executor.trainer.trainer_group import TrainerGroup
from ...plans.schema.levers import UpdateLayout
from ...plans.yaml.errors import RunFailed
from ..laws.suspicions import recompute_gains
from ..phase_schema import Train
from .measure_site import FIRST, Site, update_name
from .time_budget import MOVES, TimeBudget, TurnSeconds

UPDATES = 3
"""Measured updates of a layout, after one that is not counted: its calls are the first of their kind."""

RECOMPUTED_UPDATES = 2
"""Measured updates of a layout with recomputation."""

MUCH_SLOWER = 1.5
"""Between rounds updates take a fifth longer than in a row; if they take this much longer, a line says so."""

HOST_SHARE = 0.5
"""Of free host memory, what trainers may take that have started and wait for others to be measured."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What updates are measured with.

    Attributes:
        site: has the trainers, of which only the first is started; their learning rate is 0.
        steps: groups of one step each; every layout trains the same.
        limits: of log-probs, the job's.
        on_gpu: whether states of trainers leave the devices.
        budget: of time; the first trainer is measured in any case.
    """

    site: Site
    steps: Sequence[Groups]
    limits: LogprobLimits
    on_gpu: bool
    budget: TimeBudget


@dataclass(frozen=True, slots=True)
class _Measured:
    """Updates of one layout: seconds of each, of those with recomputation, peak bytes of a rank in both, and seconds of
    a step in which states leave the devices and come back (None: they have none to leave)."""

    seconds: list[float]
    recomputing_s: list[float]
    peak_bytes: int
    recomputing_bytes: int
    moves_s: float | None


async def timed_update(trainer: TrainerGroup, groups: Groups, settings: UpdateSettings, limits: LogprobLimits) -> float:
    """Seconds of one update. Raises RunFailed if the trainer refuses it: its seconds say nothing then."""
    began = time.perf_counter()
    metrics = await trainer.step(groups, settings)
    seconds = time.perf_counter() - began
    if refused := refusal(metrics, limits):
        raise RunFailed(f"an update was refused, so its seconds say nothing: {refused.text}")
    return seconds


def step_groups(groups: Groups, prompts: int) -> Sequence[Groups]:
    """The groups as up to 1 + `UPDATES` steps of `prompts` different prompts each, those that come first."""
    steps: list[list[Sequence[TrainSample]]] = [[]]
    for group in groups:
        if len(steps[-1]) == prompts:
            steps.append([])
        if len(steps) > 1 + UPDATES:
            break
        if all(other[0].prompt_id != group[0].prompt_id for other in steps[-1]):
            steps[-1].append(group)
    return [step for step in steps[: 1 + UPDATES] if len(step) == prompts] or steps[:1]


async def measure_updates(bench: Bench, fits: Sequence[Train]) -> tuple[Train, ...]:
    """The entries of a profile: those of the first trainer, which `fits` are, with its peak memory; then those of the
    other trainers, and the fastest of all with recomputation.

    A layout that the trainer cannot have for this model, that takes more memory than there is or for which no time is
    left is left out, and the budget says so.
    """
    site, budget = bench.site, bench.budget
    base_layout = site.updates[FIRST]
    others = {name: layout for name, layout in site.updates.items() if name != FIRST}
    fit = max(fits, key=lambda entry: entry.micro_batch_tokens)
    budget.tell(f"updates of the first trainer, {update_name(base_layout)}")
    began_s = budget.elapsed_s
    base = await _measured(bench, FIRST, fit.layout)
    took_s = budget.elapsed_s - began_s
    if bench.on_gpu and (of_rounds_s := _fitted_s(fit, bench.steps[1:] or bench.steps)) > MUCH_SLOWER * sum(
        base.seconds
    ):
        budget.tell(
            f"updates took {of_rounds_s:.3g} s after rounds, and {sum(base.seconds):.3g} s when repeated on the same "
            "samples: the GPU plans kernels anew for new lengths, or another process used it"
        )
    entries = [entry.model_copy(update=_keys(base, entry is fit)) for entry in fits]
    fastest = statistics.median(base.seconds)
    recomputed = _recomputed(fit, fit.layout, base, base)
    failed: dict[str, RunFailed] = {}
    side_by_side = len(others) > 1 and bench.on_gpu and _host_room(site, others)
    side_by_side = side_by_side and budget.allows(took_s, "other layouts of the trainer")
    if side_by_side:
        budget.tell(f"starting {len(others)} trainers side by side")
        await site.turns.start([], list(others), failed.__setitem__)
    for name, layout in others.items():
        text = f"updates with {update_name(layout)}"
        if not budget.allows(took_s, text):
            continue
        budget.tell(text)
        began_s = budget.elapsed_s
        try:
            if name in failed:
                raise failed[name]
            if not side_by_side:
                await site.turns.start([], [name])
            found = await _measured(bench, name, layout)
        except RunFailed as error:
            budget.tell(f"{text} are left out: {error}")
            continue
        finally:
            await site.turns.end([], [name])
        took_s = max(took_s, budget.elapsed_s - began_s)
        entry = scaled(fit, layout, _ratios(found.seconds, base.seconds))
        entries.append(entry.model_copy(update=_keys(found, True)))
        if statistics.median(found.seconds) < fastest:
            fastest = statistics.median(found.seconds)
            recomputed = _recomputed(fit, layout, found, base)
    return (*entries, *recomputed)


def _fitted_s(fit: Train, steps: Sequence[Groups]) -> float:
    """Seconds of these updates by the fit of those that followed rounds."""
    lengths = [[sample.tokens for samples in step for sample in samples] for step in steps]
    tokens, squares = sum(map(sum, lengths)), sum(t * t for step in lengths for t in step)
    return len(steps) * fit.step_s + tokens * fit.step_s_per_token + squares * fit.step_s_per_token_squared


def _host_room(site: Site, names: Collection[str]) -> bool:
    """Whether the host of this node has room for what all these trainers keep there while another one trains."""
    free, holders = free_host_bytes(), site.turns.ledger.holders
    held = sum(site.updates[name].accelerators * holders[trainer_name(name)].host_bytes("offloaded") for name in names)
    return free is None or held <= HOST_SHARE * free


def _keys(measured: _Measured, peak: bool) -> dict[str, float | int | None]:
    """Keys of an entry beside its seconds; `peak`: whether it is of the micro-batch that the peak was measured with."""
    return {"peak_bytes": measured.peak_bytes if peak else 0, "moves_s": measured.moves_s}


def _recomputed(fit: Train, layout: UpdateLayout, measured: _Measured, base: _Measured) -> list[Train]:
    """The entry of a layout with recomputation, if it was measured with it and without."""
    if not measured.recomputing_s:
        return []
    entry = scaled(
        fit,
        layout.model_copy(update={"recompute": "full"}),
        _ratios(measured.recomputing_s, base.seconds),
    )
    return [entry.model_copy(update={"peak_bytes": measured.recomputing_bytes, "moves_s": measured.moves_s})]


def scaled(fit: Train, layout: UpdateLayout, ratios: Sequence[float]) -> Train:
    """The entry of a layout whose updates take `ratios` of the seconds of those that `fit` is of."""
    ratio = statistics.median(ratios)
    spread = statistics.mean(abs(each / ratio - 1) for each in ratios)
    sizes = {key: getattr(layout, key) for key in UpdateLayout.model_fields if key in Train.model_fields}
    return fit.model_copy(
        update={
            **sizes,
            "step_s": fit.step_s * ratio,
            "step_s_per_token": fit.step_s_per_token * ratio,
            "step_s_per_token_squared": fit.step_s_per_token_squared * ratio,
            "error": math.hypot(fit.error, spread),
        }
    )


async def _measured(bench: Bench, name: str, layout: UpdateLayout) -> _Measured:
    """Seconds of each step but the first, of the first `RECOMPUTED_UPDATES` of those with recomputation (none where the
    layout cannot do without), and their peaks."""
    turns, trainer, log = bench.site.turns, bench.site.trainers[name], TurnSeconds(name)
    await turns.to_training(log)
    plain = update_settings(layout)
    measured = bench.steps[1:] or bench.steps
    await _timed(bench, trainer, bench.steps[0], plain)
    await trainer.peak_bytes()
    seconds = [await _timed(bench, trainer, step, plain) for step in measured]
    peak = await trainer.peak_bytes()
    recomputing_s: list[float] = []
    if not plain.recompute:
        recompute = plain._replace(recompute=True)
        recomputing_s = [await _timed(bench, trainer, step, recompute) for step in measured[:RECOMPUTED_UPDATES]]
    recomputing = await trainer.peak_bytes()
    if recomputing_s and recompute_gains(sum(recomputing_s), sum(seconds[:RECOMPUTED_UPDATES])):
        bench.budget.tell("measured again, since updates with recomputation took less time than those without")
        seconds = [await _timed(bench, trainer, step, plain) for step in measured]
        recomputing_s = [await _timed(bench, trainer, step, recompute) for step in measured[:RECOMPUTED_UPDATES]]
    return _Measured(
        seconds, recomputing_s, peak, recomputing, await moves_s(bench.site, log) if bench.on_gpu else None
    )


async def moves_s(site: Site, log: TurnSeconds) -> float:
    """Seconds in which the states of the trainer that `log` is of, which has trained, leave its devices and come back.

    It leaves once more at the end. Engines stay asleep: none of them has weights to decode with.
    """
    engines = site.fleet.all_engines()  # a trainer leaves for those that it shares devices with
    await site.turns.to_decoding(log, engines)
    await site.turns.to_training(log)
    await site.turns.to_decoding(log, engines)
    return log.of_step(MOVES)


async def _timed(bench: Bench, trainer: TrainerGroup, step: Groups, settings: UpdateSettings) -> float:
    return await timed_update(trainer, step, settings, bench.limits)


def _ratios(seconds: Sequence[float], base: Sequence[float]) -> list[float]:
    return [layout_s / base_s for layout_s, base_s in zip(seconds, base, strict=False)]
