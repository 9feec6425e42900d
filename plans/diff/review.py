"""`Report`: a difference as title, tables and remarks, with what is said of plans of a job and of groups alike, and its
text as GitHub markdown for a pull request.

job_report.py and groups_report.py make a `Report`; cli/diff.py prints it in a terminal. The markdown has
40 lines at most. Its first line is a hidden comment; a CI step finds its earlier comment by it. Text from documents is
escaped or in code spans, so that it opens no link, mentions no user and breaks no table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..check.solved_rules import has_edited_decisions, has_edited_predictions
from ..phrases.numbers import MATTERS
from ..phrases.sentences import one_line, shorten
from ..phrases.tables import Row, Table, columns
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import Plan
from .change import Quantity, change_text, delta_text, key_values, values
from .groups_diff import GroupsDiff
from .input_diff import InputChange, InputFiles, altered, inputs_of, stale_inputs
from .job_diff import PlanDiff, sides_of


@dataclass(frozen=True)
class Report:
    """A report on a difference, independent of its output format.

    Attributes:
        name: path of the plan; a CI step finds its earlier comment by it.
        title: the plans that are compared.
        verdict: the difference in one line.
        warnings: warnings that a reviewer must see.
        sections: tables, most important first; tables without rows are not shown.
        remarks: details, shown last.
    """

    name: str
    title: str
    verdict: str
    warnings: tuple[str, ...]
    sections: tuple[Table, ...]
    remarks: tuple[str, ...]


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


def fold(rows: Sequence[Row], room: int) -> tuple[list[Row], int]:
    """(at most `room` rows in their order, the number of rows left out). The first row of each block is kept first,
    then the second row of each block, and so on."""
    if len(rows) <= room:
        return list(rows), 0
    seen: dict[str, int] = {}
    rank: list[tuple[int, int]] = []
    for index, row in enumerate(rows):
        rank.append((seen.get(row.block, 0), index))
        seen[row.block] = seen.get(row.block, 0) + 1
    kept = sorted(index for _, index in sorted(rank)[: max(0, room)])
    return [rows[index] for index in kept], len(rows) - len(kept)


MAX_LINES = 40
_CELL = 120  # characters; a longer cell would hide the other cells of its row
_NOTE = 140
_MOST_WARNINGS = 4
_LEAST_ROWS = 2  # of a table: the first row, and the number of the other rows


def marker(name: str) -> str:
    """The first line of the report: the same for every report on the plan `name`."""
    return f"<!-- rlplan diff: {re.sub(r'[^A-Za-z0-9_./+: -]|--+', '_', shorten(name, 200))} -->"


def markdown(report: Report, max_lines: int | None = MAX_LINES) -> str:
    """The report as markdown; tables are cut so that it has at most `max_lines` lines (None: no limit)."""
    warnings = [f"- ⚠️ {escape(shorten(text, 300))}" for text in report.warnings]
    if max_lines is not None and len(warnings) > _MOST_WARNINGS:
        warnings = [*warnings[: _MOST_WARNINGS - 1], f"- ⚠️ … and {len(warnings) - _MOST_WARNINGS + 1} more"]
    head = [marker(report.name), f"### {code(report.title)}", "", f"**{escape(report.verdict)}**"]
    if warnings:
        head += ["", *warnings]
    foot = [f"<sub>{'; '.join(escape(shorten(text, 400)) for text in report.remarks)}</sub>"] if report.remarks else []
    sections = [section for section in report.sections if section.rows]
    rooms = [len(section.rows) for section in sections]
    if max_lines is not None:
        around = sum(3 + (2 if section.rest else 0) for section in sections)
        rooms = _share(rooms, max_lines - len(head) - around - (2 if foot else 0))
    lines = list(head)
    for section, room in zip(sections, rooms, strict=True):
        lines += ["", *_table(section, room)]
    lines += ["", *foot] if foot else []
    assert max_lines is None or len(lines) <= max_lines, len(lines)
    return "\n".join(lines) + "\n"


def _share(row_counts: Sequence[int], room: int) -> list[int]:
    """Lines for each table: an equal share each, then the unused lines for the first tables that need more."""
    equal = max(_LEAST_ROWS, room // max(1, len(row_counts)))
    rooms = [min(count, equal) for count in row_counts]
    left = room - sum(rooms)
    for index, count in enumerate(row_counts):
        more = max(0, min(count - rooms[index], left))
        rooms[index] += more
        left -= more
    return rooms


def _table(section: Table, room: int) -> list[str]:
    noted = any(row.note for row in section.rows)
    # The line with the number of cut rows needs a row itself.
    rows, left = fold(section.rows, room if len(section.rows) <= room else room - 1)
    titles = [column.title for column in section.columns] + ([section.note_title] if noted else [])
    rules = ["--:" if column.right else ":--" for column in section.columns] + ([":--"] if noted else [])
    lines = [_line(titles), _line(rules)]
    previous_note = ""
    for row in rows:
        lines.append(_line([*_cells(section, row), *([_note(row, previous_note)] if noted else [])]))
        previous_note = row.note
    if left:
        lines.append(_line([f"… and {left} more", *[""] * (len(titles) - 1)]))
    return [*lines, "", escape(section.rest)] if section.rest else lines


def _cells(section: Table, row: Row) -> list[str]:
    return [
        (code if column.code else escape)(shorten(cell, _CELL))
        for cell, column in zip(row.cells, section.columns, strict=True)
    ]


def _note(row: Row, previous_note: str) -> str:
    return "″" if row.note and row.note == previous_note else escape(shorten(row.note, _NOTE))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escape(text: str) -> str:
    """Text that markdown shows as it is, in a table or outside."""
    text = one_line(text)
    text = re.sub(r"#(?=\d)", "&#35;", text.replace("&", "&amp;"))  # no reference to an issue
    text = text.replace("<", "&lt;").replace("@", "&#64;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", text)


def code(text: str) -> str:
    """A code span, also for text with backticks and pipes; empty for empty text."""
    text = one_line(text)
    if not text:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text.replace('|', chr(92) + '|')}{pad}{fence}"
