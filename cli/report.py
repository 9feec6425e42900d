"""`rlplan report RUN`"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

_BLOCKS = " ▁▂▃▄▅▆▇█"


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="Write everything as one page that opens offline.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
def report_command(run: Path, html: Path | None, as_json: bool) -> int:
    """Show what RUN did beside what its plan predicted. RUN is the --out of `rlplan execute`.

    RUN may still be going on, or have died: what its trace tells is shown, and how it stands.

    \b
    Example:
      rlplan report runs/demo --html report.html
    """
    from ..executor.report import report, run_files
    from .paths import check_target

    if html is not None:
        check_target(html, *run_files(run))
    result = _finite(report(run))
    if html is not None:
        from ..plans.page import run_page
        from ..plans.yaml_io import atomic_write

        atomic_write(html, run_page(result, title=run.resolve().name))
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return 0
    for name, detail in result["runs"].items():
        click.echo(run_text(name, detail))
    if "baseline" in result:
        click.echo(_comparison(result))
    if html is not None:
        click.echo(f"page: {html}")
    return 0


def _finite(value: Any) -> Any:
    """NaN is not JSON; what is unknown is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_text(name: str, detail: dict[str, Any]) -> str:
    """A run in some lines."""
    if not detail["steps"]:
        lines = [f"{name} ({detail['mode']}): predicted {detail['step_s_predicted']:.2f} s a step"]
        return "\n".join([*lines, f"  {detail['state_text']}", *_incidents(detail)])
    lines = [
        f"{name} ({detail['mode']}): {detail['steps']} steps, {detail['step_s']:.2f} s a step over the cycle, "
        f"predicted {detail['step_s_predicted']:.2f} (off by {detail['prediction_error']:.1%})",
        f"  {detail['state_text']}",
        f"  {'phase':16}{'measured':>10}{'predicted':>10}{'off by':>9}",
    ]
    for phase, value in detail["phases_s"].items():
        lines.append(f"  {phase:16}{value['measured']:10.3f}{value['predicted']:10.3f}{value['error']:9.1%}")
    for kind, value in detail["rounds"].items():
        if value is not None:
            lines.append(
                f"  {kind + ' rounds':16}{value['step_s']:10.3f}{value['step_s_predicted']:10.3f}   "
                f"{value['share']:.0%} of steps, predicted {value['share_predicted']:.0%}"
            )
    lines.append(f"  reward {detail['reward_first']:.3f} -> {detail['reward_last']:.3f}  {_spark(detail['rewards'])}")
    # A ratio is None where a run has too few prompts in common with the plain one.
    if detail.get("length_ratio") is not None and detail.get("length_ks") is not None:
        lines.append(
            f"  trained / unconditioned mean length {detail['length_ratio']:.3f} "
            f"(+- {detail['length_ratio_standard_error']:.3f}), K-S distance {detail['length_ks']:.3f}; "
            f"predicted {detail['length_ratio_predicted']:.3f}"
        )
    lines += _tail_and_waste(detail)
    counts = detail["reward_timeouts"]
    if counts.get("timeouts"):
        lines.append(
            f"  {counts['timeouts']} of {counts['executions']} rewards timed out, {counts['cut']} of them before the "
            "longest deadline: at most so many right answers were judged wrong for a deadline that adapts"
        )
    lines.append(
        f"  violations: on-policy {detail['on_policy_violations']}, conservation {detail['conservation_violations']}; "
        f"log-probs differ by at most {detail['logprob_max_abs_diff']:.1e}; {detail['restarts']} restarts"
    )
    return "\n".join([*lines, *_incidents(detail)])


def _tail_and_waste(detail: dict[str, Any]) -> list[str]:
    tails = [
        f"{kind} {value['share']:.0%} ({value['rounds']} of {value['of_rounds']} rounds)"
        for kind, value in detail["tail"].items()
        if value is not None
    ]
    lines = [
        f"  longest / median response {detail['max_over_median_tokens']:.1f}"
        + (f"; rollout with under a quarter of its sequences: {', '.join(tails)}" if tails else "")
    ]
    lost = detail["waste"]
    if lost["share"] or lost["aborted_samples"]:
        fates = ", ".join(f"{fate} {number:,}" for fate, number in lost["tokens"].items() if fate != "trained")
        lines.append(
            f"  {lost['share']:.1%} of the tokens of samples that ended were not trained"
            + (f" ({fates})" if fates else "")
            + f"; {lost['aborted_samples']:,} samples were stopped on the way"
        )
    return lines


_INCIDENTS = 8


def _incidents(detail: dict[str, Any]) -> list[str]:
    """The last incidents, a line each."""
    found = detail["incidents"]
    lines = [f"  step {row['step']}, {row['t_s']:.0f} s: {row['kind']}: {row['text']}" for row in found[-_INCIDENTS:]]
    left = len(found) - _INCIDENTS
    return [f"  {left} earlier incidents: see --json", *lines] if left > 0 else lines


def _spark(values: list[float], width: int = 40) -> str:
    """Rewards as blocks from 0 to 1, averaged to at most `width` columns."""
    if not values:
        return ""
    columns = min(width, len(values))
    means = []
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        means.append(sum(part) / len(part))
    return "".join(_BLOCKS[min(8, max(0, round(8 * mean)))] for mean in means)


def _comparison(result: dict[str, Any]) -> str:
    lines = [f"baseline {result['baseline']['step_s']:.2f} s a step"]
    for role, speedup in (("planned", "speedup"), ("race", "race_speedup")):
        if role in result:
            length = result["length_ratio"][role]
            lines.append(
                f"{role:8} {result[role]['step_s']:.2f} s a step: {result[speedup]:.2f}x per trained sample"
                + ("" if length is None else f", length ratio {length:.3f}")
            )
    return "\n".join(lines)
