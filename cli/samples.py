"""`rlplan samples RUN`"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ..plans.phrases.sentences import listed, one_line
from ..plans.yaml.errors import InputError


class _Steps(click.ParamType):  # type: ignore[type-arg]
    """`N`, `A:B`, `A:` or `:B`, as (first, last); None: open."""

    name = "N|A:B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"(\d{0,9})(:?)(\d{0,9})", str(value))
        if match is None or not (match[1] or match[3]):
            self.fail(f"{value!r} is neither a step nor a range A:B", param, ctx)
        first, last = (int(match[place]) if match[place] else None for place in (1, 3))
        return first, last if match[2] else first


@click.command("samples")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--step", "steps", type=_Steps(), default=None, help="One step, or the steps from A to B.")
@click.option("--prompt", default=None, metavar="ID", help="Responses to this prompt, its steps side by side.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(["shortest", "longest", "best", "worst"]),
    default=None,
    help="By length or by reward; without it as they were kept, prompt by prompt.",
)
@click.option(
    "--only",
    type=click.Choice(["truncated", "deferred", "long", "short"]),
    default=None,
    help="Cut off, at the cap or at a short round's cutoff; of prompts put off to a long round; of long or of short "
    "rounds.",
)
@click.option("--search", default=None, metavar="TEXT", help="With this text in prompt or response, in any case.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=None,
    help="At most so many; without it 10, with --prompt 4 of each step, with --json all.",
)
@click.option("--full", is_flag=True, help="Whole texts; without it long ones lose their middle.")
@click.option("--json", "as_json", is_flag=True, help="Print each response as a line of JSON.")
def samples_command(
    run: Path,
    steps: tuple[int | None, int | None] | None,
    prompt: str | None,
    order: str | None,
    only: str | None,
    search: str | None,
    limit: int | None,
    full: bool,
    as_json: bool,
) -> int:
    """Show responses that RUN kept, with prompt, reward, advantage, length, kind of round and weights.

    RUN is the folder of one run; it may still be going on. Without --step, --prompt, --only and --search the last step
    is shown. How many responses a step keeps is said by --samples of `rlplan execute`.

    Below them stand hints of reward hacking, if there are any: best responses that repeat themselves or share a long
    passage, rewards that rise while lengths collapse. They come from the whole run, whatever is shown.
    """
    from ..traces.kept_samples import fits, in_order, kept_steps, read_samples
    from ..traces.report_texts import overview, reward_hints
    from ..traces.run_log import TRACE, read_run

    folder = _run_folder(run)
    files = kept_steps(folder)
    if not files:
        raise InputError(
            "kept no responses; rlplan execute keeps some with --samples 16, also after --resume", str(run)
        )
    first, last = steps or (None, None)
    if steps is None and prompt is None and only is None and search is None:
        first = last = max(files)
    wanted = {step: path for step, path in files.items() if step >= (first or 0) and (last is None or step <= last)}
    if not wanted:
        raise InputError(
            f"has kept responses of steps {min(files)} to {max(files)}, of none that is asked for", str(run)
        )
    faults: list[InputError] = []

    def rows() -> Iterator[Any]:
        for path in wanted.values():
            try:
                yield from read_samples(path)
            except InputError as fault:
                faults.append(fault)

    found = in_order((row for row in rows() if fits(row, prompt, only, search)), order)
    if len(faults) == len(wanted):
        raise faults[0]
    for fault in faults:
        click.echo(f"warning: left out from there on: {one_line(str(fault))}", err=True)
    if as_json:
        from msgspec.json import encode

        for row in found[:limit]:
            click.echo(encode(row).decode())
        return 0

    from rich.console import Console

    from .screens.samples_screen import hint_lines, listing, side_by_side

    console = Console(highlight=False)
    shown = f"{_steps_text(list(wanted))} of {len(files)} with responses"
    if not found:
        console.print(f"no response fits, in {shown}", markup=False)
    elif prompt is not None:
        console.print(side_by_side(found, limit or 4, full, search, console.width))
    else:
        console.print(listing(found[: limit or 10], full, search))
        console.print(f"{min(limit or 10, len(found))} of {len(found)} responses; {shown}", markup=False)
    steps_taken = read_run(folder / TRACE).steps if (folder / TRACE).exists() else []
    for line in hint_lines(reward_hints(overview(folder, []), steps_taken)):
        console.print(line)
    return 0


def _run_folder(path: Path) -> Path:
    """The folder of the one run at `path`. Raises InputError for anything else."""
    from ..traces.run_log import run_folders

    folders = run_folders(path)
    if len(folders) > 1:
        names = one_line(listed([folder.name for folder in folders], "or"))
        raise InputError(f"holds several runs; name one of them: {names}", str(path))
    return folders[0]


def _steps_text(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
