"""Factors of the decode law for GPUs and models without measurements: those of their generation, or of others.

A measured group is one (GPU, model, precision). Its factors over the data sheets are fitted (../served_fit.py); the
mean over the groups of a generation and of a kind of model (dense, or with experts), and the data sheets themselves, is
carried over. How far that is off is measured by predicting each group from the others. A generation of which there is
no group (Ampere) takes the mean over the others' groups; its error is that of one generation predicted from another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlplan.plans.facts.model_names import architecture_of
from rlplan.profiles.hardware import gpu_of
from rlplan.profiles.laws.decode_law import FACTORS, DecodeLaw

from .served_fit import Group, Served, fit_served, seconds_per_token, sheet_of

Array = NDArray[np.float64]

GENERATION = {
    "A100": "Ampere", "H100": "Hopper", "H200": "Hopper", "H800": "Hopper", "H20": "Hopper", "B200": "Blackwell",
}  # fmt: skip
GENERATIONS = GENERATION | {"B300": "Blackwell", "GH200": "Hopper"}
LEAST_POINTS = 12
# Rollout decodes long answers to short prompts; points beyond this say more of prefill (and of how it was scheduled).
MOST_PROMPT_PER_OUTPUT = 8.0
# What no left-out group shows: engine versions. The RollPacker runs (vLLM 0.8) took 13.7 ms a token where the points of
# these files (0.12 and later) say 8 to 9 (RollPacker, arXiv 2509.21009).
LEAST_ERROR = 0.15


@dataclass(frozen=True)
class Carried:
    """Factors for a generation and a kind of model, and how far they are off on groups that they do not come from.

    `on`: the generations whose GPUs they were measured on.
    """

    logs: Array
    error: float
    groups: int
    on: tuple[str, ...]


def carried(data: dict[Group, Served]) -> dict[tuple[str, bool], Carried]:
    """By (generation, has experts): factors between the measured groups' and the data sheets' own."""
    centre = np.array([factor.log_mean for factor in FACTORS])
    fitted: dict[tuple[str, bool], dict[Group, Array]] = {}
    kept = {g: p.take(p.isl <= MOST_PROMPT_PER_OUTPUT * p.osl) for g, p in sorted(data.items())}
    for group, points in kept.items():
        gpu, architecture = gpu_of(group.system), architecture_of(group.model)
        in_tables = gpu is not None and architecture is not None and not architecture.guessed
        if len(points) < LEAST_POINTS or not in_tables:
            continue
        assert gpu is not None and architecture is not None
        if gpu.name in GENERATIONS:
            kind = (GENERATIONS[gpu.name], bool(architecture.experts))
            fitted.setdefault(kind, {})[group] = fit_served(group, points).law.logs
    by_kind = {}
    for kind, logs in fitted.items():
        errors = []
        for group in logs:
            others = [value for other, value in logs.items() if other != group]
            if others:
                law = DecodeLaw(sheet_of(group), np.mean([*others, centre], axis=0))
                predicted = seconds_per_token(law, kept[group])
                errors.append(float(np.mean(np.abs(predicted / kept[group].seconds - 1))))
        error = max(LEAST_ERROR, float(np.mean(errors))) if errors else 2 * LEAST_ERROR
        by_kind[kind] = Carried(np.mean([*logs.values(), centre], axis=0), error, len(logs), kind[:1])
    borrowed = _between_generations(fitted, kept, centre)
    for generation in sorted(set(GENERATION.values())):
        for sparse in (False, True):
            elsewhere = {kind[0]: of for kind, of in sorted(fitted.items()) if kind[1] == sparse}
            if (generation, sparse) in by_kind or not elsewhere:
                continue
            logs = {group: value for of in elsewhere.values() for group, value in of.items()}
            error = max(borrowed, *(by_kind[other, sparse].error for other in elsewhere))
            mean = np.mean([*logs.values(), centre], axis=0)
            by_kind[generation, sparse] = Carried(mean, error, len(logs), tuple(elsewhere))
    return by_kind


def _between_generations(
    fitted: dict[tuple[str, bool], dict[Group, Array]], kept: dict[Group, Served], centre: Array
) -> float:
    """Mean relative error of each group's seconds a token, predicted from groups of other generations alone."""
    errors = []
    for (generation, sparse), logs in sorted(fitted.items()):
        others = [v for kind, of in fitted.items() if kind[0] != generation and kind[1] == sparse for v in of.values()]
        for group in sorted(logs) if others else []:
            law = DecodeLaw(sheet_of(group), np.mean([*others, centre], axis=0))
            errors.append(float(np.mean(np.abs(seconds_per_token(law, kept[group]) / kept[group].seconds - 1))))
    return float(np.mean(errors)) if errors else 2 * LEAST_ERROR
