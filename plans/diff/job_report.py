"""The `Report` on the difference of two plans of one job, or on one that was added or removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..check.solved_rules import has_edited_decisions, has_edited_predictions
from ..facts.plan_text import cut_text
from ..phrases.numbers import MATTERS, count, unsigned
from ..phrases.sentences import PHASE_NAMES, shorten
from ..phrases.tables import Row, Table, columns
from ..schema.groups_plan import GroupsPlan
from ..schema.length_evidence import MUCH_AT_CAP
from ..schema.plan import Plan
from .change import (
    UNKNOWN,
    Quantity,
    Unit,
    change_text,
    delta_text,
    figure,
    key_values,
    relative_text,
    sigma_text,
    values,
)
from .groups_diff import GroupsDiff
from .input_diff import InputChange, InputFiles, altered, inputs_of, stale_inputs
from .job_diff import MEMORY_NAMES, PlanDiff, Repriced, free_memory, sides_of, speedup
from .review import Report

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


def report_of(
    diff: PlanDiff | GroupsDiff,
    name: str,
    title: str,
    full: bool,
    verdict: str,
    warnings: tuple[str, ...],
    sections: tuple[Table, ...],
    remarks: tuple[str, ...],
) -> Report:
    """The report on a difference of any kind; unless `full`, that of the same plans has no tables and no remarks."""
    if diff.same and not full:
        sections, remarks = (), ()
    return Report(name, title or name, verdict, warnings, sections, remarks)


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


def out_of_date(diff: PlanDiff | GroupsDiff) -> str:
    """Why the figures are invalid: plans edited by hand, input files changed after solving; "" if they are valid."""
    reasons = []
    if "new" in diff.edited:
        reasons.append("edited by hand: the figures are of the solved decisions")
    elif "old" in diff.edited:
        reasons.append("the old plan was edited by hand: its figures are of the solved decisions")
    for side in diff.figures_edited:
        reasons.append(f"the predictions of the {side} plan were edited by hand")
    inputs = inputs_of(diff.new)
    if names := altered(diff.stale):
        files = ", ".join(shorten(inputs[name].path, 60) for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        reasons.append(f"stale: {files}{more} changed since the new plan was solved")
    again = "new" in (*diff.edited, *diff.figures_edited) or names
    return "; ".join(reasons) + ("; solve again" if again else "") if reasons else ""


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


def edited_warnings(edited: tuple[str, ...], figures: tuple[str, ...]) -> list[str]:
    """Warnings for the sides whose decisions (`edited`) or predictions (`figures`) were edited by hand."""
    return [
        f"the {side} plan was edited after it was solved: its predictions and reasons are of the solved decisions"
        for side in edited
    ] + [f"the predictions of the {side} plan were edited after it was solved; do not trust them" for side in figures]


def stale_warnings(plan: Plan | GroupsPlan, stale: Mapping[str, str]) -> list[str]:
    """Warnings for input files that have changed since the new plan was solved, or are missing."""
    inputs = inputs_of(plan)
    return [
        f"{inputs[name].path} "
        + ("is not at hand" if state == "not at hand" else "has changed since the new plan was solved; solve again")
        for name, state in stale.items()
    ]


def effects_section(figures: tuple[Quantity, ...], always: tuple[str, ...], full: bool) -> Table:
    """A table with a row for each figure that changed in the digits shown; a line below it lists the others. Phases
    that changed by little of a step are left out."""
    rows, same, unknown = [], [], []
    least_s = MATTERS * max((quantity.new or 0.0 for quantity in figures if quantity.key == "step_s.mean"), default=0.0)
    for quantity in figures:
        old, new = values(quantity)
        in_step = quantity.unit == "s" and quantity.key.startswith(("phases_s.", "rounds."))
        if in_step and not full and abs(quantity.delta or least_s) < least_s:
            continue
        if full or (quantity.changed and old != new) or quantity.key in always:
            block = "phase" if quantity.label.startswith("·") else "memory" if quantity.key.startswith("memory") else ""
            cells = (quantity.label, old, new, delta_text(quantity), change_text(quantity))
            rows.append(Row(cells, block=block, tone=quantity.tone))
        elif quantity.new is None:
            unknown.append(quantity.label)
        else:
            same.append(f"{quantity.label.removeprefix('· ')} {new}")
    rest = f"Unchanged: {'; '.join(same)}." if same else ""
    rest += (" " if rest else "") + f"Unknown: {'; '.join(unknown)}." if unknown else ""
    return Table(columns("effect", ">old", ">new", ">delta", ">change"), tuple(rows), rest=rest)


def inputs_section(inputs: tuple[InputChange, ...]) -> Table:
    """A table with a row for each key of an input that differs; if the keys are unknown, a row with the digests."""
    rows = []
    for change in inputs:
        digests = tuple("none" if file is None else f"{file.sha256[:8]}…" for file in (change.old, change.new))
        if change.keys is None:
            rows.append(Row((change.name, *digests), change.name, change.reason))
        elif not change.keys:
            rows.append(Row((change.name, *digests), change.name, "other bytes, but the same values"))
        else:
            rows += [Row((key_change.key, *key_values(key_change)), change.name) for key_change in change.keys]
    return Table(columns("`input", "`old", "`new"), tuple(rows), note_title="remark")


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


def solver_text(diff: PlanDiff | GroupsDiff, full: bool) -> list[str]:
    """The remark on changes of solver and version; changes that follow from other changes only if `full`."""
    keys = ("bound", "reached", "given_up", "candidates", "columns", "simulated", "fluid")
    derived = tuple(f"solver.{key}" for key in keys)
    shown = [change for change in diff.solver if full or not change.key.startswith(derived)]
    texts = [f"{change.key} {' -> '.join(key_values(change))}" for change in shown]
    versions = diff.old.volatile.rlplan, diff.new.volatile.rlplan
    if versions[0] != versions[1]:
        texts.append(f"rlplan {versions[0]} -> {versions[1]}")
    return [f"solved differently: {', '.join(texts)}"] if texts else []


def one_job_report(plan: Plan, name: str, new: bool, files: InputFiles) -> Report:
    """The report on a plan that was added (`new`) or removed: it beside the plain synchronous plan of the job."""
    error = f"relative error of its mean seconds, one standard deviation: {figure(plan.predicted.error.total, 'share')}"
    verdict = f"{'new plan' if new else 'plan removed'}: {_one_line(plan)}"
    sections = (_beside_sync(plan), _why(plan)) if new else (_beside_sync(plan),)
    return Report(name, name, verdict, tuple(one_plan_warnings(plan, new, files)), sections, (error,))


def one_plan_warnings(plan: Plan | GroupsPlan, new: bool, files: InputFiles) -> list[str]:
    """Warnings of edits and of changed inputs of a plan that was added (`new`); none of one that was removed."""
    if not new:
        return []
    edited, figures = has_edited_decisions(plan), has_edited_predictions(plan)
    warnings = edited_warnings(sides_of(False, edited), sides_of(False, figures))
    return warnings + (stale_warnings(plan, stale_inputs(plan, files)) if files.folder is not None else [])


def one_plan_dict(plan: Plan | GroupsPlan, new: bool) -> dict[str, Any]:
    """The plan that was added (`new`) or removed, for JSON."""
    exclude = {"inputs", "volatile", "rlplan", "rlplan_groups"}
    return {
        "kind": "groups" if isinstance(plan, GroupsPlan) else "job",
        "same": False,
        "added" if new else "removed": plan.model_dump(mode="json", exclude=exclude),
    }


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
