"""What of a plan rests on figures that nobody measured on its job, in words."""

from __future__ import annotations

from .origin import Inputs
from .predicted import PredictedError


def assumed_errors(error: PredictedError) -> str:
    """The parts of the error that assumed figures make, to go on a list of its parts; empty without any that shows."""
    parts = (("assumed lengths", error.assumed_lengths), ("assumed reward times", error.assumed_rewards))
    return "".join(f", {name} {_percent(share)}" for name, share in parts if share >= 5e-4)


def assumed_notes(inputs: Inputs) -> list[str]:
    """What a reader must know of a plan's inputs before trusting its figures, a line each; none where all is the
    job's own or of a trace that somebody gave."""
    found = []
    lengths = inputs.lengths
    times = "" if lengths.scale is None else f", all lengths times {lengths.scale:g}"
    if lengths.library is not None:
        found.append(
            f"lengths-assumed: response lengths are the shipped table '{lengths.library}'{times}, not the job's own; "
            "solve with --trace once you have some (rlplan lengths import)"
        )
    if lengths.assumed is not None:
        found.append(
            f"lengths-assumed: response lengths are a guess ({lengths.assumed}){times}, not measured; solve with "
            "--trace once you have some (rlplan lengths import)"
        )
    if inputs.rewards is not None:
        found.append(
            f"rewards-assumed: reward seconds are the shipped ones of kind {inputs.rewards.library}, not the job's own"
            "; measure them (rlplan profile) or import them (rlplan rewards import)"
        )
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"
