"""The page of one or several runs: what happened beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..phrases.numbers import NONE, count, digits, fixed, known, percent, ratio, seconds, times
from ..phrases.sentences import listed
from .charts import charts_many_runs, charts_one_run
from .charts.charts_one_run import Detail
from .page_text import esc, table
from .palette import run_colours
from .shell import Card, banner, cards, document, section

MAX_INCIDENTS = 100

_TONES: dict[str, Literal["", "good", "bad", "warn"]] = {
    "finished": "good", "stopped": "warn", "failed": "bad", "open": "warn",
}  # fmt: skip


def page(report: Mapping[str, Any], title: str, written_at: str | None) -> str:
    """The document. `report` is what traces/report.py's `report` returns, NaN replaced by None."""
    runs: dict[str, Detail] = dict(report["runs"])
    stepped = {name: detail for name, detail in runs.items() if detail["steps"]}
    colours = run_colours({name: detail["mode"] for name, detail in runs.items()})
    named = [name if name == detail["mode"] else f"{name} (mode {detail['mode']})" for name, detail in runs.items()]
    subtitle = f"{count(len(runs), 'run')}: {listed(named)}"
    parts = [banner(f"Left out: {message}") for message in report["unreadable"].values()]
    parts += [_state(n, d, written_at) for n, d in runs.items() if d["state"] in ("open", "failed") or not d["steps"]]
    parts.append(cards(headline(runs)))
    parts.append(section("Runs", f'<div class="panel">{_overview(runs, colours)}</div>'))
    if stepped:
        charts = [
            charts_many_runs.reward(stepped, colours),
            charts_many_runs.lengths(stepped, colours),
            charts_many_runs.comparison(stepped, colours),
            charts_many_runs.waste(stepped),
        ]
        parts.append(section("What happened", *(c.html() for c in charts if c is not None), grid=True))
    for index, (name, detail) in enumerate(runs.items()):
        parts.append(section(f"Run {name}", *_run(str(index), name, detail), intro=_sentence(detail), grid=True))
    parts.append(section("Incidents", f'<div class="panel">{_incidents(runs)}</div>'))
    return document(title, subtitle, "".join(parts))


def _state(name: str, detail: Detail, written_at: str | None) -> str:
    text = f"{name}: {detail['state_text']}."
    if detail["state"] == "open" and written_at is not None:
        text += f" This page was written {written_at}."
    text += "" if detail["steps"] else " Only its plan's predictions are shown."
    return banner(text, "bad" if detail["state"] == "failed" else "warn")


def _sentence(detail: Detail) -> str:
    text = str(detail["state_text"])
    return f"Mode {detail['mode']}; {text}."


def headline(runs: Mapping[str, Detail]) -> list[Card]:
    """The figures that are asked for first; of several runs, those of the planned one beside the others."""
    order = {"exact": 0, "defer": 1, "predict": 2, "race": 3, "sync": 4}
    name, detail = min(runs.items(), key=lambda item: (not item[1]["steps"], order.get(item[1]["mode"], 5), item[0]))
    of = f"{name}: " if len(runs) > 1 else ""
    states = [d["state"] for d in runs.values()]
    worst = next((s for s in ("failed", "open", "stopped", "finished") if s in states), "open")
    words = {"open": "running or died"}
    found = [
        Card(
            "State",
            words.get(worst, worst),
            "; ".join(
                f"{n} {d['steps']:,}" + (f" of {d['steps_wanted']:,}" if d["steps_wanted"] else "")
                for n, d in runs.items()
            )
            + " steps",
            _TONES[worst],
        )
    ]
    if not detail["steps"]:
        return [*found, Card("Seconds a step", NONE, f"{of}predicted {seconds(detail['step_s_predicted'])}")]
    found.append(
        Card(
            "Seconds a step",
            seconds(detail["step_s"]),
            f"{of}predicted {seconds(detail['step_s_predicted'])}, off by {percent(detail['prediction_error'])}"
            + (f"; {owed}" if (owed := charts_one_run.owed_said(detail)) else ""),
        )
    )
    if known(detail.get("speedup")) and detail["mode"] != "sync":
        found.append(
            Card("Speed-up", times(detail["speedup"]), f"{of}per trained sample; predicted "
                 f"{times(detail['speedup_predicted'])}", "good" if detail["speedup"] > 1 else "bad")
        )  # fmt: skip
    found.append(
        Card(
            "Reward",
            fixed(detail["reward_last"], ".3f"),
            f"{of}last fifth of the steps; the first {fixed(detail['reward_first'], '.3f')}",
            "" if known(detail["reward_last"]) else "bad",
        )
    )
    if known(detail.get("length_ratio")) and detail["mode"] != "sync":
        error = detail["length_ratio_standard_error"] or 0.0
        beyond = abs(detail["length_ratio"] - detail["length_ratio_predicted"]) > max(0.01, 3 * error)
        found.append(
            Card("Length ratio", ratio(detail['length_ratio']), f"{of}± {ratio(error)}; predicted "
                 f"{ratio(detail['length_ratio_predicted'])}", "warn" if beyond else "")
        )  # fmt: skip
    faults = sum(d[key] for d in runs.values() if d["steps"] for key in _VIOLATIONS)
    restarts = sum(d["restarts"] for d in runs.values())
    found.append(
        Card("Violations", f"{faults:,}", f"on-policy, conservation, checksums; {count(restarts, 'restart')}, "
             f"{count(sum(d['resumes'] for d in runs.values()), 'resume')}", "bad" if faults else "good")
    )  # fmt: skip
    return found


_VIOLATIONS = ("on_policy_violations", "conservation_violations", "checksum_mismatches")


def _overview(runs: Mapping[str, Detail], colours: Mapping[str, str]) -> str:
    rows = []
    for name, d in runs.items():
        ran = bool(d["steps"])
        length = NONE
        if known(d.get("length_ratio")):
            length = f"{ratio(d['length_ratio'])} ± {ratio(d['length_ratio_standard_error'])}"
        rows.append([
            f'<i class="mark" style="--c:{colours[name]}"></i>{esc(name)}',
            esc(d["mode"]),
            esc("running or died" if d["state"] == "open" else d["state"]),
            f"{d['steps']:,}",
            esc(seconds(d["step_s"]) if ran else NONE),
            esc(seconds(d["step_s_predicted"])),
            esc(times(d.get("speedup"))),
            esc(times(d["speedup_predicted"])),
            esc(length),
            ratio(d['length_ratio_predicted']),
            esc(f"{fixed(d['reward_first'], '.3f')} → {fixed(d['reward_last'], '.3f')}" if ran else NONE),
            esc(fixed(d["logprob_max_abs_diff"], ".1e") if ran else NONE),
        ])  # fmt: skip
    head = ["run", "mode", "state", "steps", "s/step", "predicted", "speed-up", "predicted", "length ratio"]
    head += ["predicted", "reward", "log-probs differ"]
    return table(head, rows, numbers=tuple(range(3, len(head))))


def _run(key: str, name: str, detail: Detail) -> list[str]:
    found = [charts_one_run.steps(key, name, detail)] if detail["steps"] else []
    found.append(charts_one_run.phases(key, name, detail))
    shape = charts_one_run.shape(key, name, detail) if detail["steps"] else None
    html = [chart.html() for chart in [*found, *([shape] if shape is not None else [])]]
    if detail["steps"]:
        html.append(_coverage(detail))
    if shape is None and detail["steps"]:
        html.append(
            '<div class="panel"><h3>The tail of its rollouts</h3><p class="dim">In every round samples were stopped on '
            "the way, and the trace does not say how long those had run. The longest response that ended has "
            f"{esc(digits(detail['max_over_median_tokens']))} times the median's tokens.</p></div>"
        )
    return html


def _coverage(detail: Detail) -> str:
    """How many steps lie below the predicted p50 and p95, by kind of round."""
    rows = [
        [esc(kind), esc(what), f"{found['steps']:,}"]
        + [
            f"{found[key][f'below_{level}']:,} ({percent(found[key][f'share_below_{level}'])})"
            for level in ("p50", "p95")
        ]
        for kind, found in detail["coverage"].items()
        for key, what in (("step_s", "step"), ("rollout_s", "rollout"))
        if key in found
    ]
    if not rows:
        return ""
    body = table(["rounds", "seconds of", "steps", "below p50", "below p95"], rows, numbers=(2, 3, 4))
    return (
        f'<div class="panel"><h3>Coverage of the predicted bands</h3>{body}<p class="dim">Of a plan that is right, '
        "half of the steps lie below p50 and 95% below p95, but for chance; what is off in all steps alike moves them "
        "to one side.</p></div>"
    )


def _incidents(runs: Mapping[str, Detail]) -> str:
    rows = [(row["t_s"], name, row) for name, detail in runs.items() for row in detail["incidents"]]
    rows.sort(key=lambda item: (item[0], item[1]))
    if not rows:
        return "<p>None: no restart, no resume, no violation, no reward that timed out.</p>"
    shown = rows[-MAX_INCIDENTS:]
    body = table(
        ["run", "step", "time", "what", ""],
        [
            [esc(name), f"{row['step']}", esc(seconds(t_s)), esc(row["kind"]), esc(row["text"])]
            for t_s, name, row in shown
        ],
        numbers=(1, 2),
    )
    left = len(rows) - len(shown)
    return (f'<p class="dim">{left:,} earlier ones are not shown.</p>' if left else "") + body
