"""Responses of a run as a terminal shows them. A model may write anything: control characters are spelled out, and no
markup of it is followed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...plans.phrases.numbers import count, seconds
from ...plans.phrases.sentences import one_line
from ...traces.kept_samples import KeptSample, clipped, spread
from ...traces.report_texts import Hint

PROMPT_CHARACTERS, RESPONSE_CHARACTERS, CELL_CHARACTERS = 400, 600, 400
"""Of texts that are not shown whole."""

LEAST_WIDTH = 38
"""Columns of a terminal that one step takes beside others."""


def visible(text: str) -> str:
    """Text whose control characters, and those that turn its direction, are spelled out; line ends and tabs stay."""
    kept = text.replace("\r\n", "\n").replace("\t", "    ")
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in kept)


def _shown(text: str, most: int, full: bool, search: str | None) -> Text:
    if not full:
        place = text.casefold().find(search.casefold()) if search else -1
        if place > most // 2:  # what was looked for must be seen
            text = f"[... {place - most // 2:,} characters ...]\n{text[place - most // 2 :]}"
        text = clipped(text, most)
    shown = Text(visible(text))
    if search:
        shown.highlight_words([search], "reverse", case_sensitive=False)
    return shown


def figures(row: KeptSample) -> list[str]:
    """What is known of a response, in few words."""
    reward = "no reward" if row.reward is None else f"reward {row.reward:.4g}"
    if row.reward_parts:
        parts = ", ".join(f"{one_line(name)} {part.value:.4g}" for name, part in row.reward_parts.items())
        reward += f" ({parts})"
    if row.reward_outcome not in ("", "ok"):
        reward += f" [{one_line(row.reward_outcome)}]"
    found = [reward, count(row.tokens, "token") + (", cut off" if row.truncated else "")]
    if row.advantage is not None:
        found.append(f"advantage {row.advantage:+.3g}")
    if row.fate != "trained":
        found.append("not trained" if row.fate is None else one_line(row.fate))
    return found if row.kept == "drawn" else [*found, f"{one_line(row.kept)} of the step"]


def listing(rows: Sequence[KeptSample], full: bool, search: str | None) -> RenderableType:
    """Responses below each other; a prompt stands once above those to it that follow each other."""
    parts: list[RenderableType] = []
    before: tuple[int, str] | None = None
    for row in rows:
        if (row.step, row.prompt) != before:
            head = f"step {row.step}, {one_line(row.kind)} round, prompt {one_line(row.prompt)}"
            parts.append(Text(f"{head}; {row.prompt_tokens} tokens, weights {one_line(row.version)}", "bold"))
            parts.append(Padding(_shown(row.prompt_text, PROMPT_CHARACTERS, full, search), (0, 0, 0, 2), style="dim"))
            before = row.step, row.prompt
        times = f"decoded in {seconds(row.finished_s - row.issued_s)}, scored in {seconds(row.reward_s)}"
        parts.append(Text(f"  {row.draw}.{row.sample}  {'; '.join([*figures(row), times])}", "cyan"))
        parts.append(Padding(_shown(row.response, RESPONSE_CHARACTERS, full, search), (0, 0, 1, 4)))
    return Group(*parts)


def side_by_side(rows: Sequence[KeptSample], limit: int, full: bool, search: str | None, width: int) -> RenderableType:
    """Responses to one prompt, a column for each of as many steps as there is room for, the first and the last among
    them; `limit`: of each step."""
    by_step: dict[int, list[KeptSample]] = {}
    for row in rows:
        by_step.setdefault(row.step, []).append(row)
    steps = spread(sorted(by_step), max(2, width // LEAST_WIDTH))
    table = Table(expand=True, pad_edge=False)
    for step in steps:
        kept = by_step[step]
        rewards = [row.reward for row in kept if row.reward is not None]
        mean = f", mean reward {sum(rewards) / len(rewards):.3g}" if rewards else ""
        table.add_column(Text(f"step {step}, {one_line(kept[0].kind)} round{mean}"), ratio=1, overflow="fold")
    for place in range(min(limit, max(len(by_step[step]) for step in steps))):
        cells = [by_step[step][place] if place < len(by_step[step]) else None for step in steps]
        table.add_row(*("" if row is None else _cell(row, full, search) for row in cells), end_section=True)
    asked = _shown(rows[0].prompt_text, PROMPT_CHARACTERS, full, search)
    title = Text(f"prompt {one_line(rows[0].prompt)}, kept in {count(len(by_step), 'step')}", "bold")
    return Group(title, Padding(asked, (0, 0, 1, 2), style="dim"), table)


def _cell(row: KeptSample, full: bool, search: str | None) -> RenderableType:
    return Group(Text("; ".join(figures(row)), "cyan"), _shown(row.response, CELL_CHARACTERS, full, search))


def hint_lines(hints: Iterable[Hint]) -> list[Text]:
    """Hints of reward hacking, each with its responses."""
    lines = []
    for hint in hints:
        lines.append(Text(f"hint, look at these: {hint.text}", "yellow"))
        lines += [Text(f"  {one_line(example)}") for example in hint.examples]
        lines += [Text(f"  all hold: {one_line(hint.passage)}")] if hint.passage else []
    return lines
