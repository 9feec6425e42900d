"""The page of an audit: what over-sampling dropped, as `rlplan audit --json` states it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from ..phrases.numbers import NONE, count, digits, fixed, percent, ratio
from ..phrases.sentences import sentence
from ..phrases.tables import Table, right
from .chart_axes import axis, beside, diamonds, figure, hatch, hovering
from .elements import BAD, INK, PHASE, Banner, Card, Chart, Swatch, Tone, esc, faded, render

Audit = Mapping[str, Any]
TRAINED, DROPPED, FILTERED = PHASE["train"], BAD, PHASE["other"]
_ROWS = 30


def audit_page(audit: Audit, *, title: str) -> str:
    """Return the page of an audit."""
    share = share_dropped(audit)
    banners = []
    if audit["prompts_dropped"]:
        banners.append(Banner(sentence(headline(audit)), "bad" if share is None or share >= 0.01 else "warn"))
    charts = [chart for chart in (_lengths(audit), _steps(audit), _prompts(audit)) if chart is not None]
    return render(
        "audit.html.j2",
        title,
        f"{audit['framework']}: {count(audit['steps'], 'step')}",
        banners=banners,
        cards=_cards(audit),
        charts=charts,
        dropped=_table(audit) if audit["dropped"] else None,
        left=max(0, len(audit["dropped"]) - _ROWS),
        notes=[sentence(note) for note in audit["notes"]],
    )


def share_dropped(audit: Audit) -> float | None:
    """Dropped groups over those that were given out; None where the latter is not known."""
    issued, dropped = audit["prompts_issued"], audit["prompts_dropped"]
    return dropped / issued if issued and dropped is not None else None


def headline(audit: Audit) -> str:
    """What was dropped, in words."""
    least = "at least " if audit["at_least"] else ""
    if audit["prompts_dropped"] is None:
        return "whether over-sampling dropped prompts cannot be told from these dumps"
    if not audit["prompts_dropped"]:
        return "over-sampling dropped no prompt that these dumps would show"
    if audit["prompts_issued"] is None:
        return (
            f"{least}{count(audit['prompts_dropped'], 'pass', 'passes')} over a prompt were given out and not trained"
        )
    share = percent(share_dropped(audit) or 0.0)
    return (
        f"over-sampling silently dropped {least}{audit['prompts_dropped']:,} of {audit['prompts_issued']:,} prompts "
        f"({share}) that the data source gave out"
    )


def range_text(audit: Audit) -> str:
    """The range of the length ratio: `0.56 to 0.79`; of one that is open below, `up to 0.79`."""
    low, high = audit["length_ratio_low"], audit["length_ratio_high"]
    return f"up to {ratio(high)}" if low is None else f"{ratio(low)} to {ratio(high)}"


def _cards(audit: Audit) -> list[Card]:
    issued, dropped = audit["prompts_issued"], audit["prompts_dropped"]
    cards = [
        Card("Prompts trained", f"{audit['prompts_trained']:,}", "a prompt counts once for each pass over the data")
    ]
    share = share_dropped(audit)
    of_passes = "passes over a prompt, by over-sampling or a filter of groups" if dropped else ""
    note = of_passes if share is None else f"{percent(share)} of the {issued:,} that were given out"
    if audit["prompts_filtered"]:
        note += f"; dynamic sampling filtered {audit['prompts_filtered']:,} more"
    least = "≥ " if audit["at_least"] and dropped else ""
    tone: Tone = "good" if dropped == 0 else "bad" if dropped else ""
    cards.append(
        Card(
            "Dropped" if share is None else "Dropped by over-sampling",
            NONE if dropped is None else f"{least}{dropped:,}",
            note,
            tone,
        )
    )
    value = audit["length_ratio"]
    if value is None:
        cards.append(Card("Length ratio", NONE, "trained over unconditioned mean length; notes below say why"))
    else:
        biased = abs(value - 1.0) >= 0.02
        text = "trained over unconditioned mean length"
        text += f"; an estimate, {range_text(audit)}" if value != 1.0 else ""
        cards.append(Card("Length ratio", ratio(value), text, "bad" if biased else "good"))
    if audit["trained_mean_tokens"] is not None:
        rest = audit["unconditioned_mean_tokens"]
        text = "tokens of a trained response" + (f"; {digits(rest)} without dropping, estimated" if rest else "")
        cards.append(Card("Mean length", digits(audit["trained_mean_tokens"]), text))
    return cards


def _lengths(audit: Audit) -> Chart | None:
    """Groups by their longest response, trained ones and, above them, dropped ones as they are estimated."""
    bars = audit["longest"]
    if bars is None:
        return None
    chart = figure(barmode="stack", bargap=0.06)
    edges = bars["edges_tokens"]
    names = [f"{digits(low)} to {digits(high)} tokens" for low, high in pairwise(edges)]
    places = list(range(len(names)))
    for kind, colour, style in (("trained", TRAINED, None), ("dropped", DROPPED, hatch(DROPPED, 5, 0.4, 0.25))):
        marker: dict[str, Any] = {"color": colour, "line": {"width": 0}}
        if style is not None:
            marker["pattern"] = style
        hover = [f"<b>{name}</b><br>{kind}: {digits(n)} groups" for name, n in zip(names, bars[kind], strict=True)]
        chart.add_bar(x=places, y=bars[kind], marker=marker, **hovering(hover))
    at = places[:: max(1, len(places) // 6)]
    ticks = {"tickvals": [place - 0.5 for place in at], "ticktext": [digits(edges[place], 2) for place in at]}
    chart.update_layout(
        xaxis=axis("longest response of a group, tokens", range=[-0.6, len(names) - 0.4], **ticks),
        yaxis=_groups_axis([a + b for a, b in zip(bars["trained"], bars["dropped"], strict=True)]),
    )  # fmt: skip
    lost = sum(bars["dropped"])
    caption = f"{count(round(sum(bars['trained'])), 'group')} were trained"
    caption += f"; {digits(lost)} were dropped, drawn where the estimate has them." if lost else "."
    legend = [Swatch("trained", TRAINED)] + ([Swatch("dropped, estimated", DROPPED, "hatch")] if lost else [])
    return Chart("lengths", "What was trained, and what was not", caption, chart, 320, tuple(legend), wide=True)


def _steps(audit: Audit) -> Chart | None:
    """By step, groups that were trained, filtered and dropped."""
    by_step = audit["by_step"]
    if audit["prompts_issued"] is None:
        return None
    chart = figure(barmode="stack", bargap=0.15 if len(by_step["step"]) < 120 else 0.0)
    over = [lost - off for lost, off in zip(by_step["dropped"], by_step["filtered"], strict=True)]
    kinds = {
        "trained": (by_step["trained"], TRAINED),
        "filtered": (by_step["filtered"], FILTERED),
        "dropped": (over, DROPPED),
    }
    hover = [
        f"<b>step {step}</b><br>" + "<br>".join(f"{name}: {values[place]:,}" for name, (values, _) in kinds.items())
        + ("" if limit is None else f"<br>longest trained response: {limit:,} tokens")
        for place, (step, limit) in enumerate(zip(by_step["step"], by_step["limit_tokens"], strict=True))
    ]  # fmt: skip
    legend = []
    for name, (values, colour) in kinds.items():
        if any(values):
            chart.add_bar(
                x=by_step["step"], y=values, marker={"color": colour, "line": {"width": 0}}, **hovering(hover)
            )
            legend.append(Swatch(name, colour))
    steps = by_step["step"]
    chart.update_layout(
        xaxis=axis("step", range=[steps[0] - 0.7, steps[-1] + 0.7], nticks=12),
        yaxis=_groups_axis([a + b for a, b in zip(by_step["trained"], by_step["dropped"], strict=True)]),
    )
    caption = f"Of each step's groups {digits(sum(over) / max(1, len(over)))} were dropped in the mean."
    return Chart("steps", "Groups of each step", caption, chart, 280, tuple(legend), wide=True)


def _groups_axis(counts: Iterable[float]) -> dict[str, Any]:
    return axis("groups", range=[0, 1.06 * max(1.0, *counts)], nticks=6)


def _prompts(audit: Audit) -> Chart | None:
    """Prompts that were dropped, by the length of what was trained of them."""
    rows = [row for row in audit["dropped"] if row["mean_tokens"] is not None]
    if not rows:
        return None
    chart = figure()
    hover = [
        f"<b>{esc(row['prompt'])}</b><br>dropped {row['dropped']} times, mean {digits(row['mean_tokens'])} tokens"
        for row in rows
    ]
    marker = {"size": 9, "opacity": 1, "color": faded(DROPPED, 0.3), "line": {"color": DROPPED, "width": 2}}
    chart.add_scatter(
        x=[row["mean_tokens"] for row in rows], y=[row["dropped"] for row in rows], mode="markers", marker=marker,
        cliponaxis=False, **hovering(hover),
    )  # fmt: skip
    others, most = audit["whom"]["never_dropped"]["mean_tokens"], max(row["dropped"] for row in rows)
    longest = max(others or 0.0, *(row["mean_tokens"] for row in rows))
    if others is not None:
        diamonds(chart, [others], [0], hover="mean of prompts that were never dropped", cliponaxis=False)
        beside(chart, others, 0, "  never dropped")
    chart.update_layout(
        xaxis=axis("mean tokens of the prompt's trained responses", range=[0, 1.06 * longest], nticks=8),
        yaxis=axis("passes dropped", range=[-0.4, 1.06 * most + 0.4], dtick=max(1, most // 6)),
    )
    legend = (Swatch("a prompt that was dropped", DROPPED, "dot"), Swatch("mean of the others", INK, "diamond"))
    return Chart("prompts", "Whom it dropped", sentence(whom_text(audit)), chart, 300, legend, wide=True)


def whom_text(audit: Audit) -> str:
    """How the prompts that were dropped sometimes differ from the others; empty where none is known by name."""
    whom = audit["whom"]
    if whom is None:
        return ""
    some, others = whom["dropped_sometimes"], whom["never_dropped"]
    text = f"{count(some['prompts'], 'prompt')} were trained in fewer passes than they were given out"
    if some["mean_tokens"] is not None and others["mean_tokens"]:
        own, rest = digits(some["mean_tokens"]), digits(others["mean_tokens"])
        text += f"; their trained responses have {own} tokens, those of the others {rest}"
    if some["mean_reward"] is not None and others["mean_reward"] is not None:
        text += f"; mean reward {some['mean_reward']:.3f} and {others['mean_reward']:.3f}"
    return text


def _table(audit: Audit) -> Table:
    titles = ["prompt", *right(("passes dropped", "trained", "mean tokens", "longest", "mean reward"))]
    rows = [
        [row["prompt"] or row["id"], f"{row['dropped']:,}", f"{row['trained']:,}", digits(row["mean_tokens"]),
         NONE if row["longest"] is None else f"{row['longest']:,}", fixed(row["mean_reward"], ".3f")]
        for row in audit["dropped"][:_ROWS]
    ]  # fmt: skip
    return Table.of(titles, rows)
