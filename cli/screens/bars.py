"""Bars and histograms of block characters, plain tables, and screens as text, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.console import Console, JustifyMethod, OverflowMethod, RenderableType
from rich.table import Table

from ...plans.phrases.tables import TableColumn, columns

RAMP = " ▁▂▃▄▅▆▇█"
FULL, LIGHT = "█", "░"

ASCII = str.maketrans(dict(zip("▁▂▃▄▅▆▇█░·×…", ".:-=+*%#-.x~", strict=True)) | {"±": "+-", "→": "->"})
"""Translation of these characters for a terminal that shows only ASCII."""


def drawn(console: Console, parts: Iterable[tuple[RenderableType, bool]]) -> str:
    """(what is drawn, whether its lines may be longer than the console is wide) of each part as text for a console,
    without spaces at the ends of lines; in ASCII where the console shows nothing else."""
    with console.capture() as capture:
        for part, long_lines in parts:
            console.print(part, soft_wrap=long_lines, markup=False)
    text = "\n".join(line.rstrip() for line in capture.get().splitlines())
    return text.translate(ASCII) if console.options.ascii_only else text


def block(share: float) -> str:
    """A block character as high as the share; any share above 0 is visible."""
    return RAMP[min(8, max(0, math.ceil(8 * share - 1e-9)))]


def gauge(share: float, width: int) -> str:
    """A bar of `width` characters, filled by the share; never empty above 0, never full below 1."""
    filled = min(width, max(0, round(share * width)))
    if 0 < share < 1:
        filled = min(width - 1, max(1, filled))
    return FULL * filled + LIGHT * (width - filled)


def histogram(quantiles: Sequence[float], width: int) -> str:
    """A histogram of `width` characters over the logarithm of the values, from quantiles at equal steps.

    Between any two neighbouring quantiles lie equally many values; they are drawn as evenly spread.
    """
    logs = sorted(math.log(max(1.0, value)) for value in quantiles)
    low, high = logs[0], logs[-1]
    if high <= low:
        return FULL.rjust(width // 2 + 1).ljust(width)
    cells = [0.0] * width
    scale = width / (high - low)
    for begin, end in pairwise(logs):
        first, last = (begin - low) * scale, (end - low) * scale
        if last - first < 1e-9:
            cells[min(width - 1, int(first))] += 1.0
            continue
        for cell in range(int(first), min(width, math.ceil(last))):
            cells[cell] += (min(last, cell + 1) - max(first, cell)) / (last - first)
    most = max(cells)
    return "".join(block(cell / most) for cell in cells)


def table(
    titles: Sequence[str | TableColumn],
    gap: int = 2,
    overflow: OverflowMethod = "fold",
    no_wrap: bool = False,
) -> Table:
    """A table for rich without rows, by its columns or their titles (plans/phrases/tables.py); `gap`: characters
    between columns."""
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for title in titles:
        (column,) = columns(title) if isinstance(title, str) else (title,)
        justify: JustifyMethod = "right" if column.right else "left"
        drawn.add_column(column.title, justify=justify, overflow=overflow, no_wrap=no_wrap)
    return drawn


def spark(values: Sequence[float | None], width: int = 40) -> str:
    """Rewards as blocks from 0 to 1, averaged to at most `width` columns; `?` for a column with a missing value."""
    columns = min(width, len(values))
    blocks = []
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        numbers = [value for value in part if value is not None and math.isfinite(value)]
        if len(numbers) < len(part):
            blocks.append("?")
        else:
            blocks.append(RAMP[round(8 * min(1.0, max(0.0, sum(numbers) / len(numbers))))])
    return "".join(blocks)
