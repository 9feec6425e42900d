"""`rlplan audit DUMP...`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import NONE, digits, fixed, ratio
from ..plans.phrases.sentences import one_line
from ..plans.phrases.tables import right, text_lines
from ..plans.yaml.errors import InputError
from .shared.options import force_option
from .shared.tokens_of import tokenizer_option, tokens_by

if TYPE_CHECKING:
    from rich.table import Table

_LISTED = 8
_WIDE = 40


@click.command("audit")
@click.argument("sources", nargs=-1, required=True, metavar="DUMP...", type=click.Path(path_type=Path))
@click.option("--rows", type=click.IntRange(min=1), help="Rows of the data set, which shows prompts never trained.")
@click.option("--cap", "cap_tokens", type=click.IntRange(min=1), help="Cap on a response's tokens, for the estimate.")
@tokenizer_option
@click.option("--html", type=click.Path(path_type=Path), help="Write everything as one page; -: standard output.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
def audit_command(
    sources: tuple[Path, ...],
    rows: int | None,
    cap_tokens: int | None,
    tokenizer: str | None,
    html: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """How many prompts over-sampling dropped, which ones, and what that did to the lengths that were trained.

    DUMPs are of one run of slime (--save-debug-rollout-data), verl (rollout_data_dir) or TRL (log_completions); beside
    slime's, its console log tells what dynamic sampling filtered. Counts are certain, and lower bounds where marked;
    the length ratio is an estimate, and unknown where dumps cannot tell it. docs/logs.md says how both are found.
    """
    from ..api.input_paths import check_target
    from ..frameworks.logs.dropped_groups import audit_dumps
    from ..frameworks.logs.imported_run import read_run_sources
    from ..plans.diff.change import plain
    from ..plans.yaml.yaml_io import STDOUT, atomic_write
    from .shared.output import check_stdout, tell

    check_stdout(html, "--html", as_json)
    if html is not None:
        check_target(html, *(source for source in sources if not source.is_dir()), kind="page", force=overwrite)
    run = read_run_sources(sources, tokens_by(tokenizer))
    if not run.dumps:
        raise InputError(
            "holds no samples that were trained; name a dump: slime's --save-debug-rollout-data, verl's "
            "rollout_data_dir, or TRL's completions",
            str(sources[0]),
        )
    result: dict[str, Any] = plain(audit_dumps(run, rows, cap_tokens))
    if html is not None:
        from ..plans.page.page_of_audit import audit_page

        atomic_write(html, audit_page(result, title=f"What {sources[0].name} dropped"))
    if as_json:
        click.echo(json.dumps(result))
        return 0
    text = audit_text(result)
    tell(text + (f"\npage: {one_line(str(html))}" if html is not None and html != STDOUT else ""), html)
    return 0


def audit_text(audit: dict[str, Any]) -> str:
    """An audit for the terminal, with its picture."""
    from ..plans.page.page_of_audit import headline, range_text, whom_text

    lines = [
        f"{audit['framework']}, {audit['steps']} steps: {audit['prompts_trained']:,} prompts trained"
        + (f" of {audit['prompts_issued']:,} that were given out" if audit["prompts_issued"] is not None else "")
        + (f", {audit['prompts_filtered']:,} filtered" if audit["prompts_filtered"] else ""),
        headline(audit),
    ]
    value = audit["length_ratio"]
    known = (
        "unknown" if value is None else ratio(value) + ("" if value == 1.0 else f" ({range_text(audit)}), estimated")
    )
    lines.append(f"trained over unconditioned mean length: {known}")
    if (bars := audit["longest"]) is not None:
        lines += _picture(bars)
    if text := whom_text(audit):
        lines.append(text)
    if audit["dropped"]:
        titles = ["prompt", *right(("dropped", "trained", "mean tokens", "longest", "reward"))]
        rows = [
            [one_line(row["prompt"])[:_WIDE] or row["id"], str(row["dropped"]), str(row["trained"]),
             digits(row["mean_tokens"]), NONE if row["longest"] is None else f"{row['longest']:,}",
             fixed(row["mean_reward"], ".3f")]
            for row in audit["dropped"][:_LISTED]
        ]  # fmt: skip
        lines += text_lines(titles, rows)
        if (left := len(audit["dropped"]) - _LISTED) > 0:
            lines.append(f"and {left} more: --json or --html has them")
    lines += [f"note: {note}" for note in audit["notes"]]
    return "\n".join(lines)


def _picture(bars: dict[str, Any]) -> list[str]:
    """Groups by their longest response, two rows to a bar at most; dropped ones lightly filled."""
    from rich.console import Console

    from .screens.bars import FULL, LIGHT, drawn

    edges, trained, dropped = bars["edges_tokens"], bars["trained"], bars["dropped"]
    most = max(a + b for a, b in zip(trained, dropped, strict=True)) or 1.0
    table: Table = _grid()
    for place in range(0, len(trained), 2):
        kept, lost = (sum(values[place : place + 2]) / 2 for values in (trained, dropped))
        full = round(_WIDE * kept / most)
        light = round(_WIDE * (kept + lost) / most) - full
        counts = f"{2 * kept:,.0f}" + (f" + {2 * lost:,.0f}" if lost >= 0.25 else "")
        table.add_row(digits(edges[place], 2), FULL * full + LIGHT * light, counts)
    console = Console(width=100, no_color=True)
    title = f"groups by their longest response, tokens: {FULL} trained" + (
        f", {LIGHT} dropped, as estimated" if sum(dropped) else ""
    )
    return [title, *drawn(console, [(table, False)]).splitlines()]


def _grid() -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    return table
