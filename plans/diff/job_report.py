"""The `Report` on the difference of two plans of one job, or on one that was added or removed."""

from __future__ import annotations

from ..facts.plan_text import cut_text
from ..phrases.numbers import count, unsigned
from ..phrases.sentences import PHASE_NAMES, shorten
from ..phrases.tables import Row, Table, columns
from ..schema.plan import Plan
from ..schema.predicted_evidence import MUCH_AT_CAP
from .change import (
    UNKNOWN,
    Quantity,
    Unit,
    figure,
    key_values,
    relative_text,
    sigma_text,
)
from .input_diff import InputFiles
from .job_diff import MEMORY_NAMES, PlanDiff, Repriced, free_memory, speedup
from .review import (
    Report,
    edited_warnings,
    effects_section,
    inputs_section,
    one_plan_warnings,
    out_of_date,
    report_of,
    solver_text,
    stale_warnings,
)

ALWAYS = ("seconds_per_sample", "step_s.mean", "step_s.p95", "usd_per_1k_samples")
"""Figures that are always shown, even if they did not change."""

BIAS_NOISE = 0.005
"""Differences of length ratios below it are simulation noise; the verdict then says that the bias is unchanged."""

CUT_NOISE = 0.2
"""The same for shares of samples that the cap cuts, relative to the share: the rarer they are, the fewer a simulation
has of them."""


def job_report(diff: PlanDiff, name: str, title: str = "", full: bool = False) -> Report:
    """The report on a difference.

    Args:
        name: path of the new plan.
        title: title of the report; empty: the name.
        full: whether to show figures that did not change, too.
    """
    sections = (
        effects_section((*diff.effects, *diff.phases), ALWAYS, full),
        inputs_section(diff.inputs),
        _decisions(diff),
    )
    remarks = (*_error(diff), *_details(diff), *solver_text(diff, full))
    return report_of(diff, name, title, full, job_verdict(diff), job_warnings(diff), sections, remarks)


def job_verdict(diff: PlanDiff) -> str:
    """The difference in one line."""
    if diff.same:
        return "same: decisions, predictions, inputs and solver do not differ"
    first = out_of_date(diff)
    if first:
        # The predictions are not of this plan or not of these inputs, so do not say faster or slower.
        return f"{first}; {_counts(diff) or 'the plans themselves are the same'}"
    clauses = [_headline(diff), _price(diff.effect("usd_per_1k_samples")), _bias(diff)]
    end = _counts(diff)
    if not diff.inputs:
        end = f"{end or 'decisions unchanged'}; {_source(diff)}"
    elif not diff.decisions:
        end = f"decisions unchanged, {end}: estimated anew"
    return f"{', '.join(clauses)}; {end}"


def _source(diff: PlanDiff) -> str:
    """The cause of a difference if no input differs: options of `rlplan solve`, edits, versions, or else the seed."""
    old, new = diff.old.solver, diff.new.solver
    budgets = [
        None if solver.forced_mode else f"{plan.job.bias.budget:g}"
        for plan, solver in ((diff.old, old), (diff.new, new))
    ]
    causes = [
        f"solved with {option} {now}" if now else f"solved without {option} {before}"
        for option, before, now in (
            ("--mode", old.forced_mode, new.forced_mode),
            ("--bias-budget", *(budgets if all(budgets) else ("", ""))),
            ("--objective", old.aim, new.aim),
            ("--for", "any" * old.for_any, "any" * new.for_any),
        )
        if before != now
    ]
    edited = {"new": new.refreshed, "old": old.refreshed}
    causes += [f"the {side} plan was edited by hand and refreshed" for side, it_was in edited.items() if it_was]
    versions = [(plan.volatile.rlplan, plan.solver.name) for plan in (diff.old, diff.new)]
    if versions[0] != versions[1]:
        causes.append(f"solved by {' and '.join(versions[1])}, before by {' and '.join(versions[0])}")
    return "; ".join(causes) or "no input or option differs: perhaps another --seed"


def _counts(diff: PlanDiff) -> str:
    """The numbers of decisions and inputs that differ, as text; "" if none differ."""
    counts = []
    if diff.decisions:
        counts.append(count(len(diff.decisions), "decision"))
    if diff.inputs:
        counts.append(f"{count(len(diff.inputs), 'input')} ({', '.join(change.name for change in diff.inputs)})")
    return (
        f"{', '.join(counts)} {'differs' if len(diff.decisions) + len(diff.inputs) == 1 else 'differ'}"
        if counts
        else ""
    )


def _headline(diff: PlanDiff) -> str:
    """What the decisions change in seconds; where inputs differ, what these change apart from it.

    Predictions from different inputs are not held against each other: where the old decisions have no price with the
    new inputs, nothing is said to be faster.
    """
    if diff.comparable:
        return _speed(diff.effect("seconds_per_sample"))
    if not diff.decisions:
        return f"by the inputs alone, {_speed(diff.effect('seconds_per_sample'))}"
    if diff.old.job.name != diff.new.job.name:
        return "not comparable: the plans are of two jobs, on other inputs"
    if not isinstance(diff.repriced, Repriced):
        return "not known to be faster or slower, since inputs differ"
    by_decisions = _speed(diff.effect("by_decisions.seconds_per_sample"))
    return f"by the decisions, {by_decisions}; by the inputs, {_speed(diff.effect('by_inputs.seconds_per_sample'))}"


def _speed(seconds: Quantity) -> str:
    relative, sigma = seconds.relative, seconds.relative_sigma
    if not seconds.changed:
        return "as fast as before"
    if relative is None:
        return f"seconds per sample {UNKNOWN}"
    if seconds.within_error:
        return f"not certain to be faster or slower ({relative_text(relative)} {sigma_text(relative, sigma or 0)})"
    error = f" ({sigma_text(relative, sigma)})" if sigma else ""
    if -0.99 <= relative < 0:
        return f"faster: {unsigned(100 * relative)}% fewer seconds per sample{error}"
    if relative < 10:
        return f"slower: {unsigned(100 * relative)}% more seconds per sample{error}"
    return f"{'faster' if relative < 0 else 'slower'}: {relative_text(relative)} the seconds per sample{error}"


def _price(price: Quantity) -> str:
    sides = dict.fromkeys((figure(price.old, "usd"), figure(price.new, "usd")))
    return f"{' -> '.join(sides)} USD per 1000 samples"


def _bias(diff: PlanDiff) -> str:
    ratio, budget = diff.effect("length_ratio"), diff.effect("bias_budget")
    unchanged = ratio.delta is not None and abs(ratio.delta) < BIAS_NOISE
    cut = _cut(diff)
    text = "length ratio unchanged" if cut else "bias unchanged"
    if not unchanged:
        text = f"length ratio {figure(ratio.old, 'ratio')} -> {figure(ratio.new, 'ratio')}"
    if budget.changed:
        text += f", bias budget {figure(budget.old, 'share')} -> {figure(budget.new, 'share')}"
    return text + cut


def _cut(diff: PlanDiff) -> str:
    """How many trained samples the cap cuts on either side, if the caps differ, or the shares by more than the
    simulation's noise; nothing of an older plan that does not state it."""
    old, new = diff.old.predicted.cut, diff.new.predicted.cut
    if old is None or new is None:
        return ""
    noise = min(BIAS_NOISE, CUT_NOISE * max(old.share, new.share))
    if old.cap_tokens == new.cap_tokens and abs(new.share - old.share) <= noise:
        return ""
    sides = [f"{figure(cut.share, 'share')} at {cut.cap_tokens:,} tokens" for cut in (old, new)]
    return f", trained samples cut {' -> '.join(sides)}"


def job_warnings(diff: PlanDiff) -> tuple[str, ...]:
    """Warnings that a reviewer must see."""
    warnings = edited_warnings(diff.edited, diff.figures_edited) + stale_warnings(diff.new, diff.stale)
    old, new = diff.old, diff.new
    if old.job.name != new.job.name:
        warnings.append(f"the two plans are of different jobs, {old.job.name} and {new.job.name}")
    elif isinstance(diff.repriced, str):
        warnings.append(f"decisions and inputs are not told apart: {diff.repriced}")
    if (old.predicted.length_ratio, old.job.bias) != (new.predicted.length_ratio, new.job.bias):
        deviation, budget = abs(1 - new.predicted.length_ratio), new.job.bias.budget
        # Warn only if the new plan exceeds its budget and the old plan did not.
        if budget and deviation > budget and not abs(1 - old.predicted.length_ratio) > old.job.bias.budget:
            warnings.append(
                f"the length ratio is {figure(deviation, 'share')} from 1, more than the bias budget of "
                f"{figure(budget, 'share')}"
            )
    if (new.predicted.cut_share or 0.0) >= MUCH_AT_CAP > (old.predicted.cut_share or 0.0):
        warnings.append(f"{cut_text(new.predicted)}, so that the cap decides what is trained")
    for quantity in diff.effects:
        if quantity.key.startswith("memory.") and quantity.new is not None and quantity.new < 0 and quantity.changed:
            warnings.append(f"{quantity.label}: {figure(quantity.new, 'share')}; it does not fit")
    if new.solver.refreshed and not old.solver.refreshed:
        warnings.append(
            "the new plan was edited by hand and refreshed: no search chose it, and it is "
            f"{figure(new.solver.gap, 'share')} from the solver's bound"
        )
    elif (old.solver.status, new.solver.status) == ("optimal", "feasible"):
        warnings.append("the search for the new plan ended at a limit: it may not be the best plan")
    return tuple(warnings)


def _decisions(diff: PlanDiff) -> Table:
    rows = [
        Row((decision.change.key, *key_values(decision.change)), decision.block, decision.why)
        for decision in diff.decisions
    ]
    return Table(columns("`decision", "`old", "`new"), tuple(rows), note_title="why")


def _error(diff: PlanDiff) -> list[str]:
    """The remark that explains ±, if a figure has it."""
    shown = any(
        quantity.changed and quantity.relative is not None and quantity.relative_sigma for quantity in diff.effects
    )
    return [diff.errors.sentence()] if shown else []


def _details(diff: PlanDiff) -> list[str]:
    """The remark on predictions that differ, if no figure shows a difference."""
    if not diff.predictions or any(quantity.changed for quantity in (*diff.effects, *diff.phases)):
        return []
    return [shorten(f"predicted differently: {', '.join(change.key for change in diff.predictions)}", 200)]


def one_job_report(plan: Plan, name: str, new: bool, files: InputFiles) -> Report:
    """The report on a plan that was added (`new`) or removed: it beside the plain synchronous plan of the job."""
    error = f"relative error of its mean seconds, one standard deviation: {figure(plan.predicted.error.total, 'share')}"
    verdict = f"{'new plan' if new else 'plan removed'}: {_one_line(plan)}"
    sections = (_beside_sync(plan), _why(plan)) if new else (_beside_sync(plan),)
    return Report(name, name, verdict, tuple(one_plan_warnings(plan, new, files)), sections, (error,))


def _one_line(plan: Plan) -> str:
    fast = speedup(plan.predicted)
    return (
        f"{plan.job.name} by mode {plan.job.bias.mode}, {figure(plan.predicted.step_s.mean, 's')} a step, "
        f"{'unknown' if fast is None else f'{fast:.2f}x'} the samples per second of plain rounds, "
        f"{figure(plan.predicted.usd_per_1k_samples, 'usd')} USD per 1000 samples, "
        f"length ratio {figure(plan.predicted.length_ratio, 'ratio')}"
    )


def _beside_sync(plan: Plan) -> Table:
    p, base = plan.predicted, plan.predicted.baseline
    pairs: list[tuple[str, float | None, float]] = [
        ("seconds per sample", base.seconds_per_sample, p.seconds_per_sample),
        ("step, mean", base.step_s.mean, p.step_s.mean),
        ("step, p50", base.step_s.p50, p.step_s.p50),
        ("step, p95", base.step_s.p95, p.step_s.p95),
    ]
    rows = [
        Row((label, figure(a, "s", b < 1), figure(b, "s", b < 1), relative_text(b / a - 1) if a else ""))
        for label, a, b in pairs
    ]
    phases = ((key, getattr(p.phases_s, key)) for key in ("rollout", "reward_exposed", "train", "sync"))
    rows += [Row((f"· {PHASE_NAMES[key]}", "", figure(value, "s", value < 1), "")) for key, value in phases]
    figures: list[tuple[str, float, Unit]] = [
        ("USD per 1000 samples", p.usd_per_1k_samples, "usd"),
        ("USD per hour", p.usd_per_hour, "usd"),
        ("nodes", float(p.nodes), "count"),
        ("length ratio", p.length_ratio, "ratio"),
    ]
    if p.cut is not None:
        figures.append(("trained samples cut at the cap", p.cut.share, "share"))
    rows += [Row((label, "", figure(value, unit), "")) for label, value, unit in figures]
    rows += [Row((MEMORY_NAMES[key], "", figure(free, "share"), "")) for key, free in free_memory(p).items()]
    return Table(columns("figure", ">plain rounds", ">this plan", ">change"), tuple(rows))


def _why(plan: Plan) -> Table:
    rows = tuple(Row((key, shorten(text, 200))) for key, text in plan.job.why.items())
    return Table(columns("`decision", "why"), rows)
