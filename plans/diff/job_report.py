"""What a reviewer reads about the difference of two plans of one job."""

from __future__ import annotations

from collections.abc import Mapping

from ..phrases.numbers import count, unsigned
from ..phrases.sentences import shorten
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import Plan
from .change import Quantity
from .groups_diff import GroupsDiff
from .input_diff import InputChange, altered, inputs_of
from .job_diff import PlanDiff
from .quantity_text import UNKNOWN, change_text, delta_text, figure, key_values, relative_text, sigma_text, values
from .review import Column, Report, Row, Section

ALWAYS = ("seconds_per_sample", "step_s.mean", "step_s.p95", "usd_per_1k_samples")
"""Figures that are shown also if they did not change."""

BIAS_NOISE = 0.005
"""Differences of length ratios below it are not spoken of in the verdict: what a simulation of unbiased modes gives."""

EFFECT_COLUMNS = (
    Column("effect"),
    Column("old", right=True),
    Column("new", right=True),
    Column("delta", right=True),
    Column("change", right=True),
)


def job_report(diff: PlanDiff, name: str, title: str = "", full: bool = False) -> Report:
    """What to show.

    Args:
        name, title: path of the new plan, and what is compared; no title: the name.
        full: figures that did not change, too.
    """
    if diff.same and not full:
        return Report(name, title or name, job_verdict(diff), job_warnings(diff), (), ())
    return Report(
        name=name,
        title=title or name,
        verdict=job_verdict(diff),
        warnings=job_warnings(diff),
        sections=(
            effects_section((*diff.effects, *diff.phases), ALWAYS, full),
            inputs_section(diff.inputs),
            _decisions(diff),
        ),
        remarks=(*_error(diff), *_details(diff), *found_by_text(diff, full)),
    )


def job_verdict(diff: PlanDiff) -> str:
    """The one line that matters."""
    if diff.same:
        return "same: decisions, predictions, inputs and solver do not differ"
    first = out_of_date(diff)
    if first:
        # What is predicted is not of this plan, or not of these inputs: no word of faster or slower.
        return f"{first}; {_what(diff) or 'the plans themselves are the same'}"
    parts = [_speed(diff.effect("seconds_per_sample")), _price(diff.effect("usd_per_1k_samples")), _bias(diff)]
    end = _what(diff)
    if not diff.inputs:
        end = f"{end or 'decisions unchanged'}; {_source(diff)}"
    elif not diff.decisions:
        end = f"decisions unchanged, {end}: estimated anew"
    return f"{', '.join(parts)}; {end}"


def out_of_date(diff: PlanDiff | GroupsDiff) -> str:
    """What makes figures worthless, before them: edits by hand, input files that changed since; or ""."""
    words = []
    if "new" in diff.edited:
        words.append("edited by hand: the figures are of the decisions before")
    elif "old" in diff.edited:
        words.append("the old plan was edited by hand: its figures are of the decisions before")
    for side in diff.figures_edited:
        words.append(f"the predictions of the {side} plan were edited by hand")
    inputs = inputs_of(diff.new)
    if names := altered(diff.stale):
        files = ", ".join(shorten(inputs[name].path, 60) for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        words.append(f"stale: {files}{more} changed since the new plan was solved")
    again = "new" in (*diff.edited, *diff.figures_edited) or names
    return "; ".join(words) + ("; solve again" if again else "") if words else ""


def _source(diff: PlanDiff) -> str:
    """What may have made a difference if no input did."""
    if diff.effect("bias_budget").changed:
        return "no input differs: another bias budget"
    if diff.new.solver.refreshed:
        return "no input differs: edited by hand and refreshed"
    if diff.old.solver.refreshed:
        return "no input differs: the old plan was edited by hand and refreshed"
    return "no input differs: another seed, version or solver"


def _what(diff: PlanDiff) -> str:
    """How many decisions and inputs differ; "" if none do."""
    what = []
    if diff.decisions:
        what.append(count(len(diff.decisions), "decision"))
    if diff.inputs:
        what.append(f"{count(len(diff.inputs), 'input')} ({', '.join(change.name for change in diff.inputs)})")
    return f"{', '.join(what)} {'differs' if len(diff.decisions) + len(diff.inputs) == 1 else 'differ'}" if what else ""


def _speed(seconds: Quantity) -> str:
    relative, sigma = seconds.relative, seconds.relative_sigma
    if not seconds.changed:
        return "as fast as before"
    if relative is None:
        return f"seconds per sample {UNKNOWN}"
    if seconds.within_error:
        return f"no faster or slower beyond the error ({relative_text(relative)}, {sigma_text(relative, sigma or 0)})"
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
    text = "bias unchanged"
    if not unchanged:
        text = f"length ratio {figure(ratio.old, 'ratio')} -> {figure(ratio.new, 'ratio')}"
    if budget.changed:
        text += f", bias budget {figure(budget.old, 'share')} -> {figure(budget.new, 'share')}"
    return text


def job_warnings(diff: PlanDiff) -> tuple[str, ...]:
    """What a reviewer must not miss."""
    found = edited_warnings(diff.edited, diff.figures_edited) + stale_warnings(diff.new, diff.stale)
    old, new = diff.old, diff.new
    if old.job.name != new.job.name:
        found.append(f"the plans are of two jobs, {old.job.name} and {new.job.name}")
    if (old.predicted.length_ratio, old.job.bias) != (new.predicted.length_ratio, new.job.bias):
        off, budget = abs(1 - new.predicted.length_ratio), new.job.bias.budget
        # Of a plan within its budget the rest is the noise of the simulation.
        if budget and off > budget and not abs(1 - old.predicted.length_ratio) > old.job.bias.budget:
            found.append(
                f"trained lengths are off by {figure(off, 'share')}, more than the bias budget of "
                f"{figure(budget, 'share')}"
            )
    for each in diff.effects:
        if each.key.startswith("memory.") and each.new is not None and each.new < 0 and each.changed:
            found.append(f"{each.label}: {figure(each.new, 'share')}; it does not fit")
    if new.solver.refreshed and not old.solver.refreshed:
        found.append(
            "the new plan was edited by hand and refreshed: no search chose it, and it is "
            f"{figure(new.solver.gap, 'share')} from the solver's bound"
        )
    elif (old.solver.status, new.solver.status) == ("optimal", "feasible"):
        found.append("the search for the new plan ended at a limit: nothing says that it is the best")
    return tuple(found)


def edited_warnings(edited: tuple[str, ...], figures: tuple[str, ...]) -> list[str]:
    """About decisions, and figures, that were edited by hand (their digest is stale)."""
    return [
        f"the {side} plan was edited after it was solved: its predictions and reasons are of other decisions"
        for side in edited
    ] + [f"the predictions of the {side} plan were edited after it was solved; do not trust them" for side in figures]


def stale_warnings(plan: Plan | GroupsPlan, stale: Mapping[str, str]) -> list[str]:
    """About input files that are not what the new plan was solved from."""
    inputs = inputs_of(plan)
    return [
        f"{inputs[name].path} "
        + ("is not at hand" if state == "not at hand" else "has changed since the new plan was solved; solve again")
        for name, state in stale.items()
    ]


def effects_section(figures: tuple[Quantity, ...], always: tuple[str, ...], full: bool) -> Section:
    """A row for each figure that changed; the others in a line below."""
    rows, same, unknown = [], [], []
    for each in figures:
        old, new = values(each)
        if full or each.changed or each.key in always:
            block = "phase" if each.label.startswith("·") else "memory" if each.key.startswith("memory") else ""
            cells = (each.label, old, new, delta_text(each), change_text(each))
            rows.append(Row(cells, block=block, tone=each.tone))
        elif each.new is None:
            unknown.append(each.label)
        else:
            same.append(f"{each.label.removeprefix('· ')} {new}")
    rest = f"Unchanged: {'; '.join(same)}." if same else ""
    rest += (" " if rest else "") + f"Unknown: {'; '.join(unknown)}." if unknown else ""
    return Section(EFFECT_COLUMNS, tuple(rows), rest=rest)


def inputs_section(inputs: tuple[InputChange, ...]) -> Section:
    """A row for each key that differs in an input; one with its digests where that cannot be told."""
    rows = []
    for each in inputs:
        digests = tuple("none" if file is None else f"{file.sha256[:8]}…" for file in (each.old, each.new))
        if each.keys is None:
            rows.append(Row((each.name, *digests), each.name, each.reason))
        elif not each.keys:
            rows.append(Row((each.name, *digests), each.name, "other bytes, but the same values"))
        else:
            rows += [Row((change.key, *key_values(change)), each.name) for change in each.keys]
    columns = (Column("input", code=True), Column("old", code=True), Column("new", code=True))
    return Section(columns, tuple(rows), note_title="remark")


def _decisions(diff: PlanDiff) -> Section:
    rows = [Row((each.change.key, *key_values(each.change)), each.block, each.why) for each in diff.decisions]
    columns = (Column("decision", code=True), Column("old", code=True), Column("new", code=True))
    return Section(columns, tuple(rows), note_title="why")


def _error(diff: PlanDiff) -> list[str]:
    """What ± means, where there is one."""
    shown = any(each.changed and each.relative is not None and each.relative_sigma for each in diff.effects)
    return [diff.errors.words()] if shown else []


def _details(diff: PlanDiff) -> list[str]:
    """What is predicted differently, if no figure shows it."""
    if not diff.predictions or any(each.changed for each in (*diff.effects, *diff.phases)):
        return []
    return [shorten(f"predicted differently: {', '.join(change.key for change in diff.predictions)}", 200)]


def found_by_text(diff: PlanDiff | GroupsDiff, full: bool) -> list[str]:
    """One line about solver and versions; what follows from other changes only if `full`."""
    keys = ("bound", "reached", "given_up", "candidates", "columns", "simulated", "fluid")
    derived = tuple(f"solver.{key}" for key in keys)
    shown = [change for change in diff.solver if full or not change.key.startswith(derived)]
    words = [f"{change.key} {' -> '.join(key_values(change))}" for change in shown]
    versions = diff.old.volatile.rlplan, diff.new.volatile.rlplan
    if versions[0] != versions[1]:
        words.append(f"rlplan {versions[0]} -> {versions[1]}")
    return [f"found otherwise: {', '.join(words)}"] if words else []
