"""Charts that compare runs: reward, evaluations, seconds and lengths by step, trained lengths, tokens that were not
trained, seconds a step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..phrases.numbers import beside_predicted, count, digits, fixed, is_finite, percent, seconds, times
from ..phrases.sentences import listed
from .chart_axes import axis, beside, cut, draw_bar, figure, lanes, share_axis
from .charts_one_run import Detail
from .charts_plan import length_axis
from .elements import GOOD, INK, MODE, MUTED, PHASE, Chart, Swatch, esc, faded

Runs = Mapping[str, Detail]
MAX_POINTS = 1200


def smoothed(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return means over windows of `width` around each value, narrower at both ends; None if a value is missing."""
    half = width // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [statistics.fmean(numbers) if (numbers := _finite(window)) == [*window] else None for window in windows]


def _finite(values: Sequence[float | None]) -> list[float]:
    """Return the finite numbers of a series."""
    return [value for value in values if is_finite(value)]


def reward(runs: Runs, colours: Mapping[str, str]) -> Chart:
    """Return a chart of the mean reward of each step, and of its moving mean."""
    rows = {name: detail["series"]["reward_mean"] for name, detail in runs.items()}
    chart, legend = _by_step(runs, colours, rows, "reward", lambda value: fixed(value, ".3f"))
    rewards = [value for values in rows.values() for value in _finite(values)]
    low, high = min(rewards, default=0.0), max(rewards, default=1.0)
    rise = max(0.05, 0.08 * (high - low))
    chart.update_layout(yaxis=axis("mean reward", range=[low - rise, high + rise], nticks=6))
    changes = [
        f"{name} from {fixed(detail['reward_first'], '.3f')} to {fixed(detail['reward_last'], '.3f')}"
        for name, detail in runs.items()
    ]
    caption = f"First to last fifth of the steps: {listed(changes)}. Thin: each step; thick: moving mean."
    lacking = {name: len(values) - len(_finite(values)) for name, values in rows.items()}
    if missing_texts := [f"{name}'s of {count(missing, 'step')}" for name, missing in lacking.items() if missing]:
        caption += f" Rewards that are no numbers are left out: {listed(missing_texts)}."
    return Chart("reward", "Reward", caption, chart, 320, legend)


def step_seconds(runs: Runs, colours: Mapping[str, str]) -> Chart | None:
    """Return a chart of the seconds of each step, of several runs; one run has a chart of its phases."""
    if len(runs) < 2:
        return None
    rows = {name: detail["series"]["total_s"] for name, detail in runs.items()}
    chart, legend = _by_step(runs, colours, rows, "took", seconds)
    chart.update_layout(yaxis=axis("seconds", range=[0, _top(rows)], nticks=6))
    means = [f"{name} {seconds(detail['step_s'])}" for name, detail in runs.items()]
    caption = f"Mean over the cycle: {listed(means)}. Thin: each step; thick: moving mean."
    return Chart("step-seconds", "Seconds of each step", caption, chart, 320, legend)


def step_lengths(runs: Runs, colours: Mapping[str, str]) -> Chart | None:
    """Return a chart of the mean length of each step's trained responses; None if nothing was trained."""
    rows = {
        name: [
            tokens / samples if samples else None
            for tokens, samples in zip(
                *(detail["series"][f"trained_{what}"] for what in ("tokens", "samples")), strict=True
            )
        ]
        for name, detail in runs.items()
    }
    if not any(map(_finite, rows.values())):
        return None
    chart, legend = _by_step(runs, colours, rows, "mean length", lambda value: f"{digits(value)} tokens")
    chart.update_layout(yaxis=axis("tokens", range=[0, _top(rows)], nticks=6))
    means = [f"{name} {digits(detail['trained_mean_tokens'])} tokens" for name, detail in runs.items()]
    caption = f"Trained responses, mean of the run: {listed(means)}. Thin: each step; thick: moving mean."
    if any(detail["series"]["kind"].count("long") for detail in runs.values()):
        caption += " Long rounds train the long responses that short rounds put off."
    return Chart("step-lengths", "Length of responses", caption, chart, 320, legend)


def evaluations(runs: Runs, colours: Mapping[str, str]) -> Chart | None:
    """Return a chart of the evaluations of each run; None if no run was evaluated."""
    found = {
        name: known
        for name, detail in runs.items()
        if (known := [each for each in detail["evaluations"] if is_finite(each["reward"][0])])
    }
    if not found:
        return None
    chart, legend, captions = figure(), [], []
    for name, rows in found.items():
        colour, xs = colours[name], [row["step"] for row in rows]
        most = max((int(k) for row in rows for k in row["pass_at"]), default=1)
        lines = [("avg", f"avg@{rows[-1]['samples']}", "solid", [row["reward"] for row in rows])]
        if most > 1:
            chances = [row["pass_at"].get(most, row["pass_at"].get(str(most), (None, None))) for row in rows]
            lines.append(("pass", f"pass@{most}", "dot", chances))
        for kind, label, dash, values in lines:
            text = label if len(runs) == 1 else f"{name}, {label}"
            legend.append(Swatch(text, colour, "line" if kind == "avg" else "dots"))
            if kind == "avg" and any(error for _, error in values):
                low, high = ([value + sign * (error or 0.0) for value, error in values] for sign in (-1, 1))
                chart.add_scatter(
                    x=[*xs, *reversed(xs)], y=[*high, *reversed(low)], mode="lines", fill="toself",
                    fillcolor=faded(colour, 0.15), line={"width": 0}, hoverinfo="skip",
                )  # fmt: skip
            chart.add_scatter(
                x=xs, y=[value for value, _ in values], mode="lines+markers", hoverinfo="text",
                line={"color": colour, "width": 2, "dash": dash}, marker={"size": 6, "color": colour},
                hovertext=[f"<b>{esc(name)}</b>, after {count(x, 'step')}<br>{label} {fixed(value, '.3f')}"
                           + (f" ± {error:.3f}" if error is not None else "")
                           for x, (value, error) in zip(xs, values, strict=True)],
            )  # fmt: skip
        first, last, best = rows[0], rows[-1], max(rows, key=lambda row: row["reward"][0])
        captions.append(
            f"{name} from {fixed(first['reward'][0], '.3f')} to {fixed(last['reward'][0], '.3f')}, best "
            f"{fixed(best['reward'][0], '.3f')} after {count(best['step'], 'step')} "
            f"({count(last['prompts'], 'prompt')} x {last['samples']})"
        )
    ends = [row["step"] for rows in found.values() for row in rows]
    chart.update_layout(
        xaxis=_step_axis(min(ends), max(ends)), yaxis=axis("reward of held-out prompts", nticks=6),
    )  # fmt: skip
    caption = f"Mean reward of held-out prompts: {listed(captions)}. Band: one standard error over prompts."
    return Chart("evaluations", "Evaluation", caption, chart, 320, tuple(legend))


def _by_step(
    runs: Runs,
    colours: Mapping[str, str],
    rows: Mapping[str, Sequence[float | None]],
    what: str,
    text: Callable[[float | None], str],
) -> tuple[Any, tuple[Swatch, ...]]:
    """Return a chart of a figure of each step of each run, and of its moving mean, with its legend."""
    chart = figure()
    ends: list[int] = []
    for name, values in rows.items():
        xs = runs[name]["series"]["step"]
        ends += [xs[0], xs[-1]]
        skip = -(-len(values) // MAX_POINTS)
        smooth = smoothed(values, max(1, len(values) // 8))
        chart.add_scatter(
            x=xs[::skip], y=values[::skip], mode="lines+markers" if len(values) < 4 else "lines", hoverinfo="skip",
            line={"color": faded(colours[name], 0.3), "width": 1}, marker={"size": 6, "color": colours[name]},
        )  # fmt: skip
        chart.add_scatter(
            x=xs[::skip], y=smooth[::skip], mode="lines", line={"color": colours[name], "width": 2.2}, hoverinfo="text",
            hovertext=[f"<b>{esc(name)}</b>, step {x}<br>{what} {text(v)}, mean around it {text(s)}"
                       for x, v, s in zip(xs[::skip], values[::skip], smooth[::skip], strict=True)],
        )  # fmt: skip
    chart.update_layout(xaxis=_step_axis(min(ends), max(ends)))
    return chart, tuple(Swatch(name, colours[name], "line") for name in runs)


def _top(rows: Mapping[str, Sequence[float | None]]) -> float:
    """Return the end of an axis from 0 that holds all values."""
    return 1.08 * max((value for values in rows.values() for value in _finite(values)), default=1.0)


def _step_axis(first: int, last: int) -> dict[str, Any]:
    """Return an axis of steps; with few of them plotly would put ticks between them."""
    margin = max(0.5, 0.02 * (last - first))
    whole = {"dtick": 1} if last - first < 8 else {}
    return axis("step", range=[first - margin, last + margin], nticks=9, **whole)


def lengths(runs: Runs, colours: Mapping[str, str]) -> Chart | None:
    """Return a chart of trained lengths, with the unconditioned lengths of the plan; None if nothing was trained."""
    chart = figure()
    shares = [index / 20 for index in range(21)]
    shown = {name: detail for name, detail in runs.items() if detail["trained_lengths_tokens"]}
    if not shown:
        return None
    expected = {name: detail["predicted"]["lengths_tokens"] for name, detail in shown.items()}
    first = next(iter(expected.values()))
    longest = max(values[-1] for name, d in shown.items() for values in (expected[name], d["trained_lengths_tokens"]))
    x_axis = length_axis(longest, first[10])
    alike = all(values == first for values in expected.values())  # runs of one job
    curves = (
        [("predicted", first, MUTED, "dot")]
        if alike
        else [(f"{name}, predicted", values, colours[name], "dot") for name, values in expected.items()]
    )
    curves += [(name, d["trained_lengths_tokens"], colours[name], "solid") for name, d in shown.items()]
    for name, values, colour, dash in curves:
        chart.add_scatter(
            x=values, y=shares, mode="lines", line={"color": colour, "width": 2, "dash": dash}, hoverinfo="text",
            hovertext=[f"<b>{esc(name)}</b><br>{percent(s)} have at most {v:,} tokens"
                       for s, v in zip(shares, values, strict=True)],
        )  # fmt: skip
    legend = [Swatch(name, colours[name], "line") for name in shown]
    legend.append(Swatch("unconditioned, as planned with", MUTED, "dots"))
    if cutoffs := sorted({d["cutoff_tokens"] for d in shown.values() if d["cutoff_tokens"]}):
        cut(chart, x_axis, cutoffs[0], f"{listed([f'<b>{cutoff:,}</b>' for cutoff in cutoffs])} tokens")
        for cutoff in cutoffs[1:]:
            chart.add_vline(x=cutoff, line={"color": INK, "width": 1.5, "dash": "dash"})
        legend.append(Swatch("cutoff of short rounds", INK, "dash"))
    chart.update_layout(xaxis=x_axis, yaxis=axis("share of responses", range=[0, 1.04], tickformat=".0%", nticks=6))
    ratios = [
        f"{name} {d['length_ratio']:.3f} ± {fixed(d['length_ratio_standard_error'], '.3f')} "
        f"(K-S distance {d['length_ks']:.3f}, predicted ratio {d['length_ratio_predicted']:.3f})"
        for name, d in shown.items()
        if is_finite(d.get("length_ratio")) and is_finite(d.get("length_ks")) and d["mode"] != "sync"
    ]
    caption = (
        f"Trained over unconditioned mean length, prompt by prompt: {listed(ratios)}; 1 is unbiased."
        if ratios
        else "Lengths of trained responses. Their bias can be told beside a run of plain rounds only."
    )
    return Chart("lengths", "Lengths of trained responses", caption, chart, 320, tuple(legend))


FATES = {
    "trained": GOOD,
    "deferred": MODE["defer"],
    "discarded": MODE["race"],
    "returned": MODE["predict"],
    "surplus": PHASE["scoring"],
    "filtered": MODE["exact"],
    "failed": "#a03030",
    "unknown": MODE["sync"],
}


def waste(runs: Runs) -> Chart | None:
    """Return a chart of the tokens of ended samples by their fate (trained, deferred, …); None if none ended."""
    chart = figure(barmode="stack")
    seen = dict.fromkeys(fate for detail in runs.values() for fate in detail["waste"]["tokens"])
    if not seen:
        return None
    fates = [fate for fate in FATES if fate in seen] + [fate for fate in seen if fate not in FATES]
    for fate in fates:
        tokens = [detail["waste"]["tokens"].get(fate, 0) for detail in runs.values()]
        totals = [sum(detail["waste"]["tokens"].values()) or 1 for detail in runs.values()]
        shares = [t / total for t, total in zip(tokens, totals, strict=True)]
        draw_bar(
            chart, shares, list(range(len(runs))), 0.5, FATES.get(fate, MUTED),
            [f"<b>{esc(name)}</b>, {esc(fate)}<br>{t:,} tokens, {percent(t / total, 1)}"
             for name, t, total in zip(runs, tokens, totals, strict=True)],
        )  # fmt: skip
    chart.update_layout(
        xaxis=share_axis("share of the tokens of samples that ended"),
        yaxis=lanes([(index, esc(name)) for index, name in enumerate(runs)], -0.6, len(runs) - 0.4),
    )
    untrained = [
        f"{name} {percent(lost['share'], 1)}"
        + (f", and {count(lost['aborted_samples'], 'sample')} stopped unfinished" if lost["aborted_samples"] else "")
        for name, lost in ((name, detail["waste"]) for name, detail in runs.items())
    ]
    caption = f"Tokens of finished samples that were not trained: {'; '.join(untrained)}."
    if any(detail["waste"]["aborted_samples"] for detail in runs.values()):
        caption += " How many tokens the stopped samples had, the trace does not say."
    legend = tuple(Swatch(fate, FATES.get(fate, MUTED)) for fate in fates)
    return Chart("waste", "What became of what was decoded", caption, chart, 40 * len(runs) + 74, legend)


def comparison(runs: Runs, colours: Mapping[str, str]) -> Chart:
    """Return a chart of the mean step's seconds, measured and predicted, for each run."""
    chart = figure()
    most = max(max(d["step_s"], d["step_s_predicted"]) for d in runs.values()) or 1.0
    for index, (name, detail) in enumerate(runs.items()):
        measured_s, predicted_s = detail["step_s"], detail["step_s_predicted"]
        hover = f"<b>{esc(name)}</b><br>measured {measured_s:.3f} s<br>predicted {predicted_s:.3f} s"
        draw_bar(chart, [predicted_s], [index], 0.5, faded(colours[name], 0.3), hover)
        draw_bar(chart, [measured_s], [index], 0.24, colours[name], hover)
        beside(chart, 0, index - 0.44, beside_predicted(measured_s, predicted_s))
    chart.update_layout(
        xaxis=axis("seconds a step, over the cycle", range=[0, 1.04 * most], nticks=6),
        yaxis=lanes([(index, esc(name)) for index, name in enumerate(runs)], -0.75, len(runs) - 0.5),
    )
    speedups = [
        f"{name} {times(d['speedup'])}"
        for name, d in runs.items()
        if is_finite(d.get("speedup")) and d["mode"] != "sync"
    ]
    caption = (
        f"Trained samples per second over those of the plain run (mode sync): {listed(speedups)}."
        if speedups
        else "No run of mode sync is in the folder to compare with."
    )
    legend = (Swatch("measured", MUTED), Swatch("predicted", MUTED, "band"))
    return Chart("comparison", "Seconds a step", caption, chart, 50 * len(runs) + 56, legend)
