"""Sentences on what a plan's figures rest on: assumed inputs, and lengths that change while the policy learns."""

from __future__ import annotations

import math

from ..schema.length_evidence import LengthDrift
from ..schema.plan import Inputs
from ..schema.predicted import Predicted, PredictedError
from ..schema.predicted_limit import HardwareLimit
from .numbers import digits, per_second, percent, seconds

_STANDS_OUT = 1.645
"""A change of lengths is mentioned from this many standard errors on; the planner uses the same limit."""


def cut_text(predicted: Predicted) -> str:
    """Return which share of the trained samples the job's cap cuts; of a plan that does not state it, that."""
    cut = predicted.cut
    if cut is None:
        return "trained samples cut at the cap: unknown"
    of_longer = ", extrapolated from shorter responses" if predicted.cut_extrapolated else ""
    return f"{percent(cut.share)} of the trained samples cut at {cut.cap_tokens:,} tokens{of_longer}"


def wait_text(predicted: Predicted) -> str:
    """Return how long prompts wait in the queue of long rounds; empty for a plan without a queue."""
    wait = predicted.wait
    if wait is None:
        return ""
    lacking = f"; a long round lacks {percent(wait.untrained)} of its prompts" if wait.untrained >= 5e-4 else ""
    return (
        f"deferred prompts wait {digits(wait.mean_rounds)} long rounds on average and {wait.longest_rounds:g} at most, "
        f"counting the one that trains them ({wait.followed_rounds} long rounds followed){lacking}"
    )


def assumed_errors(error: PredictedError) -> str:
    """Return the parts of a prediction's error that come from assumed inputs, as `, NAME SHARE` each; empty without."""
    sources = (("assumed lengths", error.assumed_lengths), ("assumed reward times", error.assumed_rewards))
    return "".join(f", {name} {percent(share)}" for name, share in sources if share >= 5e-4)


def assumed_notes(inputs: Inputs) -> list[str]:
    """Return one line for each assumed input of a plan: its rule's name, what is assumed, what to do about it.

    The list is empty where all inputs are the job's own, or come from a length trace that the user gave.
    """
    return [f"{name}: {fact}; {remedy}" for name, fact, remedy in _assumptions(inputs)]


def assumed_facts(inputs: Inputs) -> list[str]:
    """Return what is assumed about each assumed input of a plan, without rule names and remedies."""
    return [fact for _, fact, _ in _assumptions(inputs)]


def _assumptions(inputs: Inputs) -> list[tuple[str, str, str]]:
    """Return (rule's name, what is assumed, what to do) of each assumed input."""
    assumptions = []
    lengths = inputs.lengths
    times = "" if lengths.scale is None else f", all lengths times {lengths.scale:g}"
    trace = "solve with --trace once you have some (rlplan lengths import)"
    if lengths.library is not None:
        table = f"response lengths are the shipped table '{lengths.library}'{times}, not the job's own"
        assumptions.append(("lengths-assumed", table, trace))
    if lengths.assumed is not None:
        guess = f"response lengths are a guess ({lengths.assumed}){times}, not measured"
        assumptions.append(("lengths-assumed", guess, trace))
    if inputs.rewards is not None:
        shipped = f"reward seconds are the shipped ones of kind {inputs.rewards.library}, not the job's own"
        remedy = "measure them (rlplan profile) or import them (rlplan rewards import)"
        assumptions.append(("rewards-assumed", shipped, remedy))
    return assumptions


def limit_text(limit: HardwareLimit | None) -> str:
    """Return how far the step is from what the hardware can do, in one line."""
    if limit is None:
        return (
            "not known: neither a data sheet nor the profile says the peak of these accelerators (rlplan profile), or "
            "the plan is of an older rlplan (rlplan refresh)"
        )
    phases = limit.phases
    return (
        f"at the hardware's peak a step takes {seconds(limit.step_s)}, {percent(limit.ratio)} of the predicted one; "
        f"decoding reads memory at {percent(phases.rollout.ratio)} of {per_second(limit.peak_bytes_per_s, 'B')}, "
        f"training computes at {percent(phases.train.ratio)} (MFU) of {per_second(limit.peak_flops, 'FLOP')}"
    )


def drift_text(drift: LengthDrift | None) -> str:
    """Return a sentence on how lengths moved over the epochs of the length trace, which predictions do not follow."""
    held = "predictions hold for the policy that the lengths were measured on"
    if drift is None:
        return f"{held}; no prompt has two epochs in the length trace, so how learning moves lengths is unknown"
    moves = [
        f"{name} by {100 * math.expm1(rate):+.1f}% (±{100 * error:.1f}%)"
        for name, rate, error in (("the mean", drift.body, drift.body_error), ("p95", drift.tail, drift.tail_error))
        if abs(rate) > _STANDS_OUT * error
    ]
    if not moves:
        return (
            f"{held}; lengths did not change measurably over epochs {drift.first} to {drift.last} of the length trace"
        )
    return (
        f"{held}; from epoch {drift.first} to {drift.last} of the length trace each epoch moved "
        f"{' and '.join(moves)}, and no prediction follows that"
    )
