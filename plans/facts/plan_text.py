"""Sentences that say the same of a plan everywhere: what its figures rest on, what the solver proved, its layouts."""

from __future__ import annotations

import math

from ..phrases.numbers import count, digits, per_second, percent, seconds
from ..phrases.sentences import one_line
from ..schema.groups_plan import GroupsPlan
from ..schema.levers import UpdateLayout
from ..schema.plan import Inputs, Plan, Solver
from ..schema.predicted import Predicted, PredictedError
from ..schema.predicted_evidence import HardwareLimit, LengthDrift

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


def groups_status(plan: GroupsPlan) -> str:
    """Return what the solver proved of a plan of groups: `optimal of 31 candidate groups in USD per hour`."""
    solver = plan.solver
    found = {"optimal": "optimal", "gap": "near the optimum", "limit": "best found", "placed": "placed"}[solver.status]
    among = f"{found} of {count(solver.columns, 'candidate group')}"
    if solver.gap is None:
        return f"{among}, nothing is proven"
    bound = f", at most {percent(solver.gap, 2)} from the optimum" if solver.gap >= 5e-5 else ""
    over = f" over {one_line(solver.universe)}" if solver.status == "limit" else ""
    return f"{among} in {plan.rules.objective.replace('_', ' ').replace('usd', 'USD')}{bound}{over}"


def solver_status(solver: Solver) -> str:
    """Return where a plan stands among the solver's schedules: `optimal of 90 schedules`, or `1.3% slower than the best
    of 90 schedules; …`.

    Why a slower plan is simpler, `job.why.ties` says. Where a limit ended the search, the best schedule is only the
    best found. A plan that was edited is none of them. The gap is told where it is not 0.
    """
    worse, better = ("slower", "faster") if solver.objective == "seconds_per_sample" else ("dearer", "cheaper")
    if solver.refreshed:
        return f"edited by hand and refreshed, {percent(solver.gap, 2)} {worse} than the solver's bound"
    proven = solver.status == "optimal"
    among = f"of {count(solver.candidates, 'schedule')}"
    text = f"optimal {among}" if proven else f"best found {among}, not proven"
    if given_up := _given_up(solver):
        best = f"best {among}" if proven else f"best found {among}"
        text = f"{percent(given_up)} {worse} than the {best}; chosen because it is simpler"
    text += ", by enumeration" * (solver.method == "enumeration")
    return text + (f"; one up to {percent(solver.gap, 2)} {better} may exist" if solver.gap >= 5e-5 else "")


def proof_word(solver: Solver) -> str:
    """Return `solver_status` in a word: edited, simplest (of tied schedules), optimal or not proven."""
    if solver.refreshed:
        return "edited"
    return "simplest" if _given_up(solver) else "optimal" if solver.status == "optimal" else "not proven"


def _given_up(solver: Solver) -> float:
    """Share by which a plan costs more than the best schedule; 0 where it would be shown as 0.0 %."""
    share = solver.given_up or 0.0
    return share if share >= 0.0005 else 0.0


LITTLE = 0.05
"""Gain over plain rounds below which a plan's first line is about that."""


def little_gained(plan: Plan) -> str | None:
    """Return a line on a plan that is less than `LITTLE` faster than plain rounds; None if it is faster."""
    predicted, solver = plan.predicted, plan.solver
    gain = predicted.speedup - 1
    if gain >= LITTLE:
        return None
    has_levers = any(kind.rollout.drafts or kind.rollout.balance for _, kind in plan.job.rounds.kinds)
    if plan.job.bias.mode == "sync" and not has_levers:
        if solver.refreshed or solver.forced_mode:
            return f"plain rounds, as {'the plan was edited' if solver.refreshed else '--mode sync asks'}"
        unit = "cheaper" if solver.objective == "usd_per_sample" else "faster"
        return f"plain rounds are planned: no other schedule that solve may choose is {LITTLE:.0%} {unit}"
    if gain >= 0:
        more = f"{percent(gain)} more samples per second" if gain else "no more samples per second"
        return f"little is gained: {more} than plain rounds give, which are simpler"
    slower = f"slower than plain rounds: {percent(-gain)} fewer samples per second"
    if predicted.baseline.keeps_slo is False:
        return f"{slower}, but plain ones break slo.step_p95_s"
    return f"{slower}; rlplan solve --mode sync plans those"


SIZES = ("dp", "tp", "pp", "cp", "sp", "ep")


def trainers_text(train: UpdateLayout) -> str:
    """How the trainers share an update: the sizes above 1 (`dp 1` if there is none), recomputation and offload."""
    sizes = [f"{name} {size}" for name in SIZES if (size := getattr(train, name)) > 1] or ["dp 1"]
    sizes += [f"{train.state_copies} copies of the states"] * (train.state_copies > 1)
    options = [f"recompute {train.recompute}"] * (train.recompute != "none") + ["offload"] * train.offload
    options += [f"reference {'in host memory' if train.reference == 'host' else 'on the device'}"] * (
        train.reference != "none"
    )
    return ", ".join([*sizes, *options])


def update_text(train: UpdateLayout) -> str:
    """`trainers_text` and the token budget of a micro-batch: all that an update is decided by."""
    return f"{trainers_text(train)}, micro-batches of {train.micro_batch_tokens} tokens"


def nodes_text(plan: Plan) -> str:
    """Return `8 nodes of pool main`; of each pool its own where trainers have one to themselves."""
    nodes, trainers, placement = plan.predicted.nodes, plan.predicted.train_nodes or 0, plan.job.placement
    text = f"{count(nodes - trainers, 'node')} of pool {plan.job.rounds.short.rollout.pool}"
    if placement is None:
        return text
    return f"{text} and {trainers} of pool {placement.train_pool} (trainers)"
