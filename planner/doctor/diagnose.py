"""`rlplan doctor`: what is wrong with a set-up, what would mend it, and which placements of its GPUs would be faster.

A remedy is a change of a few settings that was tried: the set-up with it fits. It is told as attributes of
TrainerSetup; who prints it says it in the framework's own keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.phrases.numbers import bytes_text
from ...profiles.hardware import Gpu
from .changed_setups import PlacedSetup, better_placements, priced, remedies_of, with_layout
from .host_memory import NODE_OWN
from .rank_states import SetupUse
from .setup_memory import first_overflow, known_gpu, known_model, setup_uses
from .setup_rules import (
    DoctorFinding,
    batch_findings,
    engine_findings,
    is_impossible,
    key_findings,
    layout_findings,
    length_findings,
)
from .setup_seconds import SetupSeconds

PHASE_NAMES = {"init": "start", "rollout": "rollout", "train": "training"}

TIGHT = 0.95
"""Share of a place that may be needed before it is called tight: the sums of public runs are off by 5 %."""


@dataclass(frozen=True)
class Diagnosis:
    """What `rlplan doctor` says of a set-up; `seconds` is None where the model or GPU has no price."""

    setup: TrainerSetup
    architecture: Architecture
    uses: tuple[SetupUse, ...]
    findings: tuple[DoctorFinding, ...]
    seconds: SetupSeconds | None
    placements: tuple[PlacedSetup, ...]
    no_seconds: str = ""

    @property
    def first(self) -> SetupUse | None:
        """The first place and phase that does not fit."""
        return first_overflow(self.uses)

    @property
    def layout_taken(self) -> bool:
        """Whether the layout was taken, since none was said."""
        return any(finding.rule == "layout-taken" for finding in self.findings)

    @property
    def fits(self) -> bool:
        """Whether the layout can be, and every place has room in every phase."""
        return self.first is None and not self.is_impossible

    @property
    def is_impossible(self) -> bool:
        """Whether the layout does not divide, so that nothing starts."""
        return any(finding.rule == "layout" and not finding.warning for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 without findings but warnings, else 1, as `rlplan check`."""
        return int(any(not finding.warning for finding in self.findings))


def diagnose(setup: TrainerSetup) -> Diagnosis:
    """Judge a set-up. Takes seconds, and no GPU.

    Raises InputError where the model's shape or the GPU is not known.
    """
    setup, uses, found = judge(setup)
    a, gpu = known_model(setup), known_gpu(setup)
    seconds, why = (None, "the layout does not divide") if is_impossible(setup, a) else priced(setup)
    if seconds is None:
        return Diagnosis(setup, a, uses, found, None, (), why)
    return Diagnosis(setup, a, uses, (*found, _binds(seconds)), seconds, better_placements(setup, a, gpu, seconds))


def judge(setup: TrainerSetup) -> tuple[TrainerSetup, tuple[SetupUse, ...], tuple[DoctorFinding, ...]]:
    """(the set-up with the layout that is taken where none is said, its memory, its findings), without seconds.

    Raises InputError as `diagnose`.
    """
    a, gpu = known_model(setup), known_gpu(setup)
    said, setup = setup, with_layout(setup, a, gpu)
    uses = setup_uses(setup, a, gpu)
    found = [*layout_findings(setup, a), *_taken(said, setup), *_memory(setup, a, gpu, uses), *batch_findings(setup)]
    found += [*engine_findings(setup, a, gpu), *length_findings(setup), *key_findings(setup)]
    return setup, uses, tuple(found)


def _taken(said: TrainerSetup, setup: TrainerSetup) -> Iterator[DoctorFinding]:
    """The layout that was taken where none was said."""
    names = {"tp": "tp", "pp": "pp", "ep": "ep", "rollout_tp": "engines of tp"}
    taken = [
        f"{name} {getattr(setup, key)}" for key, name in names.items() if getattr(setup, key) != getattr(said, key)
    ]
    if taken:
        text = "no layout was said; taken is the smallest that has room, else the one that needs least"
        yield DoctorFinding("layout-taken", f"{text}: {', '.join(taken)}", warning=True)


# -- memory ------------------------------------------------------------------------------------------------------------


def _memory(setup: TrainerSetup, a: Architecture, gpu: Gpu, uses: Sequence[SetupUse]) -> Iterator[DoctorFinding]:
    """One finding for each place and phase that overflows, and one for the tightest that does not."""
    seen = set()
    for use in uses:
        if use.fits or (use.phase, use.where) in seen:
            continue
        seen.add((use.phase, use.where))
        remedies = remedies_of(setup, a, gpu, use)
        later = max((each for each in uses if (each.phase, each.where) == (use.phase, use.where)), key=_needed)
        grows = f"; {use_name(later)} {bytes_text(later.needed_bytes)}" if later.step > use.step else ""
        more = f"or take hosts of {bytes_text(host_bytes_needed(setup, uses))}" if use.where == "host" else ""
        if more and not remedies:
            more = more.removeprefix("or ")
        needs, has = bytes_text(use.needed_bytes), bytes_text(use.capacity_bytes)
        yield DoctorFinding(
            f"{use.where}-memory",
            f"{use_name(use)} needs {needs} and there are {has}{grows}",
            arithmetic=tuple(use.arithmetic),
            remedies=remedies,
            advice=more,
        )
    if not seen:
        tightest = max(uses, key=lambda use: use.needed_bytes / use.capacity_bytes)
        share = tightest.needed_bytes / tightest.capacity_bytes
        if share > TIGHT:
            yield DoctorFinding(
                "tight-memory",
                f"{use_name(tightest)} takes {share:.0%} of {bytes_text(tightest.capacity_bytes)}; sums are off by 5 %",
                warning=True,
                arithmetic=tuple(tightest.arithmetic),
            )


def _needed(use: SetupUse) -> float:
    return use.needed_bytes


def host_bytes_needed(setup: TrainerSetup, uses: Sequence[SetupUse]) -> float:
    """Memory of a node's host with which all phases fit, in whole GB: the node's own share grows with it."""
    assert setup.host_bytes is not None
    least = 0.0
    for use in (each for each in uses if each.where == "host"):
        own = use.holds[NODE_OWN].bytes
        least = max(least, (use.needed_bytes - own) / ((use.capacity_bytes - own) / setup.host_bytes))
    return math.ceil(least / 1e9) * 1e9


def use_name(use: SetupUse) -> str:
    """A use in words: `train on a GPU, from the second step on`."""
    place = "a GPU" if use.where == "device" else "a node's host"
    whose = "" if use.side == "both" else f" of the {use.side}"
    when = ", from the first update on" if use.step > 1 else ""
    return f"{PHASE_NAMES[use.phase]} on {place}{whose}{when}"


def _binds(seconds: SetupSeconds) -> DoctorFinding:
    phase, taken = max(seconds.phases_s.items(), key=lambda item: item[1])
    total = sum(seconds.phases_s.values())
    parts = ", ".join(f"{name} {size:.3g} s" for name, size in seconds.phases_s.items() if size > 0)
    return DoctorFinding("binds", f"{phase} takes {taken / total:.0%} of a step", warning=True, arithmetic=(parts,))


def as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """What `rlplan doctor --json` prints, remedies as attributes."""
    first, seconds = diagnosis.first, diagnosis.seconds
    return {
        "fits": diagnosis.fits,
        "first": None
        if first is None
        else {
            "phase": first.phase,
            "where": first.where,
            "step": first.step,
            "needed_bytes": round(first.needed_bytes),
            "capacity_bytes": round(first.capacity_bytes),
        },
        "findings": [
            {**asdict(finding), "remedies": list(map(dict, finding.remedies))} for finding in diagnosis.findings
        ],
        "step_s": None if seconds is None else seconds.step_s,
        "step_error": None if seconds is None else seconds.error,
        "phases_s": {} if seconds is None else dict(seconds.phases_s),
        "limits_s": {} if seconds is None else dict(seconds.limits_s),
        "placements": [asdict(placed) for placed in diagnosis.placements],
        "memory": [
            {
                "phase": use.phase,
                "where": use.where,
                "step": use.step,
                "side": use.side,
                "needed_bytes": round(use.needed_bytes),
                "capacity_bytes": round(use.capacity_bytes),
                "fits": use.fits,
                "sum": use.arithmetic,
            }
            for use in diagnosis.uses
        ],
        "setup": {
            "framework": diagnosis.setup.framework,
            "version": diagnosis.setup.version,
            "model": diagnosis.setup.model,
            "parameters": diagnosis.architecture.parameters,
            "layout": {name: getattr(diagnosis.setup, name) for name in ("tp", "pp", "cp", "ep", "sp", "rollout_tp")},
            "defaulted": list(diagnosis.setup.defaulted),
            "left_aside": [asdict(setting) for setting in diagnosis.setup.left_aside],
        },
        "no_seconds": diagnosis.no_seconds,
    }
