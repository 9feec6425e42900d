"""The page of one or several runs: measurements and the plans' predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..phrases.numbers import (
    NONE,
    count,
    deviation_text,
    digits,
    duration,
    fixed,
    is_finite,
    machine_text,
    model_error_text,
    percent,
    ratio,
    seconds,
    times,
)
from ..phrases.sentences import as_trained_text, listed
from ..phrases.tables import Table, right
from . import charts_many_runs, charts_one_run, charts_round
from .charts_one_run import Detail
from .elements import Banner, Card, Live, Tone, mark, render, run_colours

MAX_INCIDENTS = 100

_TONES: dict[str, Tone] = {
    "finished": "good", "running": "good", "stopped": "warn", "failed": "bad", "died": "bad", "open": "warn",
}  # fmt: skip


def run_page(report: Mapping[str, Any], *, title: str, written_at: str | None = None, live: Live = "") -> str:
    """Return the page of one or several runs.

    Args:
        report: what `rlplan report --json` prints (traces/report.py), NaN replaced by None.
        written_at: now, in UTC; the page of a run that has not ended shows it, since it may be opened days later.
        live: as `render` has it.
    """
    runs: dict[str, Detail] = dict(report["runs"])
    stepped = {name: detail for name, detail in runs.items() if detail["steps"]}
    colours = run_colours({name: detail["mode"] for name, detail in runs.items()})
    named = [name if name == detail["mode"] else f"{name} (mode {detail['mode']})" for name, detail in runs.items()]
    subtitle = f"{count(len(runs), 'run')}: {listed(named)}"
    banners = [Banner(f"Left out: {message}") for message in report["unreadable"].values()]
    unfinished = {n: d for n, d in runs.items() if d["state"] in ("open", "died", "failed") or not d["steps"]}
    banners += [_state(name, detail, written_at) for name, detail in unfinished.items()]
    charts = None
    if stepped:
        drawn = (
            charts_many_runs.reward(stepped, colours),
            charts_many_runs.evaluations(stepped, colours),
            charts_many_runs.step_seconds(stepped, colours),
            charts_many_runs.step_lengths(stepped, colours),
            charts_many_runs.lengths(stepped, colours),
            charts_many_runs.comparison(stepped, colours),
            charts_many_runs.waste(stepped),
        )
        charts = [chart for chart in drawn if chart is not None]
    incidents, earlier = _incidents(runs)
    return render(
        "run.html.j2",
        title,
        subtitle,
        live,
        banners=banners,
        cards=headline(runs),
        overview=_overview(runs, colours),
        charts=charts,
        runs=[_run(str(index), name, detail) for index, (name, detail) in enumerate(runs.items())],
        incidents=incidents,
        earlier=f"{earlier:,}" if earlier else "",
    )


def _state(name: str, detail: Detail, written_at: str | None) -> Banner:
    text = f"{name}: {detail['state_text']}."
    if detail["state"] == "open" and written_at is not None:
        text += f" This page was written {written_at}."
    text += "" if detail["steps"] else " Only its plan's predictions are shown."
    return Banner(text, "bad" if detail["state"] in ("failed", "died") else "warn")


def headline(runs: Mapping[str, Detail]) -> list[Card]:
    """Return the cards with the headline figures; of several runs, those of the first in `order` that has steps."""
    order = {"exact": 0, "defer": 1, "predict": 2, "race": 3, "sync": 4}
    name, detail = min(runs.items(), key=lambda item: (not item[1]["steps"], order.get(item[1]["mode"], 5), item[0]))
    prefix = f"{name}: " if len(runs) > 1 else ""
    states = [d["state"] for d in runs.values()]
    worst = next((s for s in ("failed", "died", "open", "running", "stopped", "finished") if s in states), "open")
    left = [d["left_s"] for d in runs.values() if is_finite(d.get("left_s"))]
    counts = "; ".join(
        f"{n} {d['steps']:,}" + (f" of {d['steps_wanted']:,}" if (d["steps_wanted"] or -1) >= d["steps"] else "")
        for n, d in runs.items()
    )
    text = f"{counts} steps" + (f"; about {duration(max(left))} left" if left else "")
    state = Card("State", "running or died" if worst == "open" else worst, text, _TONES[worst])
    predicted_s = seconds(detail["step_s_predicted"])
    if not detail["steps"]:
        return [state, Card("Seconds a step", NONE, f"{prefix}predicted {predicted_s}")]
    text = f"{prefix}predicted {predicted_s} ({deviation_text(detail['deviation'])})"
    if (factor := detail.get("machine_factor")) is not None:
        text += f"; {machine_text(factor)}, model off by {model_error_text(detail)}"
    text += f"; {owed}" if (owed := charts_one_run.owed_text(detail)) else ""
    cards = [state, Card("Seconds a step", seconds(detail["step_s"]), text)]
    if (limit := detail.get("limit")) is not None:
        text = f"{prefix}predicted {percent(limit['ratio_predicted'])}; decoding reached "
        text += f"{percent(limit['of_bandwidth'])} of the memory bandwidth, training an MFU of {percent(limit['mfu'])}"
        cards.append(Card("Of the hardware's peak", percent(limit["ratio"]), text))
    if is_finite(detail.get("speedup")) and detail["mode"] != "sync":
        text = f"{prefix}samples per second, over the plain run; predicted {times(detail['speedup_predicted'])}"
        cards.append(Card("Speed-up", times(detail["speedup"]), text, "good" if detail["speedup"] > 1 else "bad"))
    text = f"{prefix}mean of the last fifth of the steps; first fifth {fixed(detail['reward_first'], '.3f')}"
    tone: Tone = "" if is_finite(detail["reward_last"]) else "bad"
    cards.append(Card("Reward", fixed(detail["reward_last"], ".3f"), text, tone))
    if evaluations := [each for each in detail.get("evaluations", ()) if is_finite(each["reward"][0])]:
        first, last = evaluations[0], evaluations[-1]
        best = max(evaluations, key=lambda each: each["reward"][0])
        spread = "" if last["reward"][1] is None else f"± {fixed(last['reward'][1], '.3f')}; "
        text = (
            f"{prefix}{spread}after {count(last['step'], 'step')}, {count(last['prompts'], 'prompt')} x "
            f"{last['samples']}; {fixed(first['reward'][0], '.3f')} after {first['step']}, best "
            f"{fixed(best['reward'][0], '.3f')} after {best['step']}"
        )
        cards.append(Card("Evaluation", fixed(last["reward"][0], ".3f"), text))
    if is_finite(detail.get("length_ratio")) and detail["mode"] != "sync":
        error = detail["length_ratio_standard_error"] or 0.0
        text = f"{prefix}± {ratio(error)}; predicted {ratio(detail['length_ratio_predicted'])}{as_trained_text(detail)}"
        beyond = abs(detail["length_ratio"] - detail["length_ratio_predicted"]) > max(0.01, 3 * error)
        cards.append(Card("Length ratio", ratio(detail["length_ratio"]), text, "warn" if beyond else ""))
    if is_finite(detail.get("cut_share")):
        text = f"{prefix}of the trained samples; predicted {percent(detail['cut_share_predicted'])}"
        cards.append(Card("Cut at the cap", percent(detail["cut_share"]), text))
    faults = sum(d[key] for d in runs.values() if d["steps"] for key in _VIOLATIONS)
    restarts, resumes = (sum(d[key] for d in runs.values()) for key in ("restarts", "resumes"))
    text = f"on-policy, conservation, checksums; {count(restarts, 'restart')}, {count(resumes, 'resume')}"
    return [*cards, Card("Violations", f"{faults:,}", text, "bad" if faults else "good")]


_VIOLATIONS = ("on_policy_violations", "conservation_violations", "checksum_mismatches")


def _overview(runs: Mapping[str, Detail], colours: Mapping[str, str]) -> Table:
    rows = []
    for name, d in runs.items():
        ran = bool(d["steps"])
        length = NONE
        if is_finite(d.get("length_ratio")):
            length = f"{ratio(d['length_ratio'])} ± {ratio(d['length_ratio_standard_error'])}"
        rows.append([
            mark(colours[name], name),
            d["mode"],
            "running or died" if d["state"] == "open" else d["state"],
            f"{d['steps']:,}",
            seconds(d["step_s"]) if ran else NONE,
            seconds(d["step_s_predicted"]),
            NONE if d.get("machine_factor") is None else times(d["machine_factor"]),
            NONE if d.get("machine_factor") is None else model_error_text(d),
            times(d.get("speedup")),
            times(d["speedup_predicted"]),
            length,
            ratio(d["length_ratio_predicted"]),
            f"{fixed(d['reward_first'], '.3f')} → {fixed(d['reward_last'], '.3f')}" if ran else NONE,
            fixed(d["logprob_max_abs_diff"], ".1e") if ran else NONE,
        ])  # fmt: skip
    figures = ["steps", "s/step", "predicted", "machine", "model off", "speed-up", "predicted", "length ratio"]
    figures += ["predicted", "reward", "log-probs differ"]
    return Table.of(["run", "mode", "state", *right(figures)], rows)


def _run(key: str, name: str, detail: Detail) -> dict[str, Any]:
    """Return one run's section: its charts, coverage and, where the tail cannot be drawn, its longest response."""
    ran = bool(detail["steps"])
    shape = charts_one_run.shape(key, name, detail) if ran else None
    drawn = (
        charts_one_run.steps(key, name, detail) if ran else None,
        charts_one_run.phases(key, name, detail),
        shape,
        charts_round.one_round(key, name, detail) if ran else None,
        charts_one_run.drafts(key, name, detail) if ran else None,
    )
    return {
        "name": name,
        "intro": f"Mode {detail['mode']}; {detail['state_text']}.",
        "charts": [chart for chart in drawn if chart is not None],
        "coverage": _coverage(detail if ran else {"coverage": {}}),
        "longest": digits(detail["max_over_median_tokens"]) if ran and shape is None else "",
        "texts": _texts(texts) if (texts := detail.get("texts")) is not None else None,
    }


def _texts(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return responses of a run by step, those to one prompt side by side, and hints of reward hacking."""
    again = texts["prompt"]
    intro = (
        f"Of the first, a middle and the last of {count(texts['steps'], 'step')} that kept responses: the best, the "
        "worst, the longest, and others; rlplan samples shows the rest."
    )
    if texts["unreadable"]:
        intro += f" Left out: {'; '.join(texts['unreadable'])}."
    intro += "" if texts["hints"] else " They show no hint of reward hacking."
    return {
        "intro": intro,
        "hints": [{**hint, "examples": "; ".join(hint["examples"])} for hint in texts["hints"]],
        "columns": [_text_column(column, prompts=True) for column in texts["columns"]],
        "again": None
        if again is None
        else {
            "title": f"The same prompt in several steps: {again['prompt']}",
            "text": again["text"],
            "columns": [_text_column(column, prompts=False) for column in again["columns"]],
        },
    }


def _text_column(column: Mapping[str, Any], prompts: bool) -> dict[str, Any]:
    """Return the responses of one step; `prompts`: each with its prompt."""
    return {
        "title": f"Step {column['step']:,}, {column['kind']} round",
        "samples": [
            {
                "figures": _figures(row),
                "about": f"Prompt {row['prompt']}, {count(row['prompt_tokens'], 'token')}",
                "prompt": row["prompt_text"] if prompts else "",
                "response": row["response"],
            }
            for row in column["samples"]
        ],
    }


def _figures(row: Mapping[str, Any]) -> str:
    reward = f"reward {fixed(row['reward'], '.4g')}"
    if row["reward_parts"]:
        parts = ", ".join(f"{name} {fixed(value, '.4g')}" for name, value in row["reward_parts"].items())
        reward += f" ({parts})"
    found = [reward, count(row["tokens"], "token") + (", cut off" if row["truncated"] else "")]
    if row["advantage"] is not None:
        found.append(f"advantage {fixed(row['advantage'], '+.3g')}")
    if row["fate"] != "trained":
        found.append(row["fate"] or "not trained")
    return "; ".join(found)


def _coverage(detail: Detail) -> Table:
    """Return a table of how many steps lie below the predicted p50 and p95, by kind of round."""
    rows = [
        [kind, noun, f"{counts['steps']:,}"]
        + [
            f"{counts[key][f'below_{level}']:,} ({percent(counts[key][f'share_below_{level}'])})"
            for level in ("p50", "p95")
        ]
        for kind, counts in detail["coverage"].items()
        for key, noun in (("step_s", "step"), ("rollout_s", "rollout"))
        if key in counts
    ]
    return Table.of(["rounds", "seconds of", ">steps", ">below p50", ">below p95"], rows)


def _incidents(runs: Mapping[str, Detail]) -> tuple[Table, int]:
    """Return a table of the last incidents, and how many earlier incidents it leaves out."""
    rows = [(row["t_s"], name, row) for name, detail in runs.items() for row in detail["incidents"]]
    rows.sort(key=lambda item: (item[0], item[1]))
    shown = [
        [name, str(row["step"]), seconds(t_s), row["kind"], row["text"]] for t_s, name, row in rows[-MAX_INCIDENTS:]
    ]
    return Table.of(["run", ">step", ">time", "what", ""], shown), len(rows) - len(shown)
