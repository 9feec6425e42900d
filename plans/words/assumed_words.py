"""What of a plan rests on figures that nobody measured on its job, in words."""

from __future__ import annotations

from ..schema.predicted import PredictedError
from ..schema.sections.origin import Inputs


def assumed_errors(error: PredictedError) -> str:
    """The parts of the error that assumed figures make, to go on a list of its parts; empty without any that shows."""
    parts = (("assumed lengths", error.assumed_lengths), ("assumed reward times", error.assumed_rewards))
    return "".join(f", {name} {_percent(share)}" for name, share in parts if share >= 5e-4)


def assumed_notes(inputs: Inputs) -> list[str]:
    """What a reader must know of a plan's inputs before trusting its figures, and what to do about it, a line each;
    none where all is the job's own or of a trace that somebody gave."""
    return [f"{name}: {fact}; {remedy}" for name, fact, remedy in _assumed(inputs)]


def assumed_facts(inputs: Inputs) -> list[str]:
    """The same without names and remedies, to stand on one line."""
    return [fact for _, fact, _ in _assumed(inputs)]


def _assumed(inputs: Inputs) -> list[tuple[str, str, str]]:
    """(name, what is assumed, what to do) of each."""
    found = []
    lengths = inputs.lengths
    times = "" if lengths.scale is None else f", all lengths times {lengths.scale:g}"
    trace = "solve with --trace once you have some (rlplan lengths import)"
    if lengths.library is not None:
        table = f"response lengths are the shipped table '{lengths.library}'{times}, not the job's own"
        found.append(("lengths-assumed", table, trace))
    if lengths.assumed is not None:
        guess = f"response lengths are a guess ({lengths.assumed}){times}, not measured"
        found.append(("lengths-assumed", guess, trace))
    if inputs.rewards is not None:
        shipped = f"reward seconds are the shipped ones of kind {inputs.rewards.library}, not the job's own"
        remedy = "measure them (rlplan profile) or import them (rlplan rewards import)"
        found.append(("rewards-assumed", shipped, remedy))
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"
