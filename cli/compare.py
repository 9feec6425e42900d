"""`rlplan compare [JOB] [CLUSTER...]`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import digits, percent, ratio
from ..plans.phrases.tables import right
from ..plans.schema import MODES
from ..plans.yaml.errors import InputError, joined
from .main import EXIT_INFEASIBLE
from .shared.options import Finite, Objectives, for_option, force_option, lengths_option, trace_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..plans.facts.compared_plans import ComparedPoint


WIDE_BAR, NARROW_BAR = 12, 8
WIDE = 118
"""Least width in characters at which the table has the column `bottleneck`; a narrower terminal gets lines below it."""


@click.command("compare", cls=Objectives)
@click.argument("paths", metavar="[JOB] [CLUSTER]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--vary",
    multiple=True,
    metavar="PATH=VALUE,…",
    help="Values to try for one key of cluster, job or profile; can be repeated, every choice is then a point.",
)
@click.option(
    "--cluster",
    "cluster_paths",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Can be repeated: machines to try. Default: cluster.yaml beside JOB.",
)
@click.option("--profile", "profile_path", type=click.Path(path_type=Path), help="Default: profile.yaml beside JOB.")
@trace_option
@lengths_option
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help="Force a mode. Default: the best at each point.",
)
@click.option("--bias-budget", type=Finite(0, 1, max_open=True), help="As of rlplan solve. Default: 0.")
@click.option(
    "--objective",
    metavar="seconds|usd|usd-within SECONDS",
    help="As of rlplan solve, at each point. Default: the job's objective, else seconds.",
)
@for_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the simulation.")
@click.option(
    "--html", type=click.Path(path_type=Path), help="Write one page that needs no network; -: standard output."
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON line.")
def compare_command(
    paths: tuple[Path, ...],
    vary: tuple[str, ...],
    cluster_paths: tuple[Path, ...],
    profile_path: Path | None,
    trace: Path | None,
    lengths: Any,
    mode: Any,
    bias_budget: float | None,
    objective: str | None,
    made_for: str,
    seed: int,
    html: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Solve JOB on several clusters, or with several values of a key, and put the plans side by side.

    JOB is a job.yaml or its folder, and CLUSTER a cluster.yaml, as after --cluster: compare a.yaml b.yaml. Default: the
    job.yaml beside the first cluster.

    --vary takes any key of cluster, job or profile by its dotted path, as rlplan simulate --set does, and a list of
    values. A point with other GPUs, or another model, than the profile's takes the profile of these that ships, if the
    job's own profile was not measured either. No plan is written. A point without a plan is listed with the reason.
    """
    from ..api.given_documents import given_lengths, inputs_of
    from ..api.input_paths import check_target, job_file, job_inputs, need_cluster, need_job, need_profile, trace_inputs
    from ..planner.choose.candidates.solve_options import SolveOptions
    from ..planner.compare import compare, points_of
    from ..plans.facts.model_shape import shape_of_job
    from ..plans.files.prompt_rows import prompts_to_plan
    from ..plans.schema.cluster import load_cluster
    from ..plans.schema.job import job_paths, load_job, objective_of
    from ..plans.yaml.yaml_io import atomic_write, document_kind, load
    from ..profiles.library.fitness import unfit
    from ..profiles.profile_schema import Profile
    from .shared.output import check_stdout, share

    jobs = [path for path in paths if path.is_dir() or not path.exists() or document_kind(path) != "rlplan_cluster"]
    cluster_paths = (*(path for path in paths if path not in jobs), *cluster_paths)
    if len(jobs) > 1:
        raise InputError(f"{jobs[1]} is no cluster file, and one job is compared at a time ({jobs[0]})")
    if not jobs and not cluster_paths:
        raise InputError("there is nothing to compare; name a job, or a cluster file with a job.yaml beside it")
    job_path = job_file(jobs[0]) if jobs else cluster_paths[0].with_name("job.yaml")
    need_job(job_path)
    job = load_job(job_path)
    minimised, within_s = objective_of(objective or job.objective or "seconds")
    if not vary and len(cluster_paths) < 2:
        raise InputError(
            "there is nothing to compare; vary a key (--vary PATH=VALUE,VALUE) or name a second cluster file"
        )
    cluster_paths = cluster_paths or (job_path.with_name("cluster.yaml"),)
    profile_path = profile_path or job_path.with_name("profile.yaml")
    for path in cluster_paths:
        need_cluster(path)
    need_profile(profile_path, job_path, job)
    clusters, profile = [load_cluster(path) for path in cluster_paths], load(profile_path, Profile)
    check_stdout(html, "--html", as_json)
    if html is not None:
        others = [*job_inputs(job, job_path), *trace_inputs(profile, profile_path, trace)]
        check_target(html, job_path, *cluster_paths, profile_path, *others, kind="page", force=overwrite)
    files = job_paths(job, job_path)
    # If the model is varied, each point looks for a profile of its own.
    allowed = {"profile-of-other-model"} if any(text.startswith("job.model.path=") for text in vary) else set()
    faults = [fault for fault in unfit(profile, job, files, []) if fault.rule not in allowed]
    if faults:
        raise joined([InputError(f"{fault.message}; {fault.remedy}", str(profile_path)) for fault in faults])
    rows = prompts_to_plan(job, job_path, files) if files.data is not None else None
    names = cluster_names([path.stem for path in cluster_paths], cluster_paths)
    wanted = points_of(list(zip(names, clusters, strict=True)), job, profile, vary)
    source, lengths = given_lengths(profile, profile_path, trace, lengths, job_path, job_path)
    inputs = inputs_of(job_path, cluster_paths[0], job_path, profile_path, profile, source)
    options = SolveOptions(
        mode=mode,
        bias_budget=bias_budget,
        objective=minimised,
        within_s=within_s,
        seed=seed,
        prompts=rows,
        for_any=made_for == "any",
        model=shape_of_job(job, job_path),
    )
    with share("compare") as update:
        points = list(compare(wanted, lengths, inputs, options, update, files.model_folder))
    result = _data(job.name, vary, points)
    if html is not None:
        from ..plans.page.page_of_compare import comparison_page

        atomic_write(html, comparison_page(points, job=job.name, title=f"{job.name}: {len(points)} plans compared"))
        result["html"] = str(html)
    if as_json:
        click.echo(json.dumps(result))
    else:
        _print(job.name, points, html)
    return 0 if any(point.plan for point in points) else EXIT_INFEASIBLE


def cluster_names(stems: list[str], paths: tuple[Path, ...]) -> list[str]:
    """Names of the clusters: the files' names, or their paths if two files have the same name."""
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]


def _data(job: str, vary: tuple[str, ...], points: list[ComparedPoint]) -> dict[str, Any]:
    from ..plans.facts.compared_plans import cheapest, fastest

    return {
        "job": job,
        "vary": list(vary),
        "points": [point.data() for point in points],
        "fastest": fastest(points),
        "cheapest": cheapest(points),
    }


def _print(job: str, points: list[ComparedPoint], html: Path | None) -> None:
    from rich.console import Console

    from .screens.bars import drawn
    from .shared.output import tell

    console = Console(highlight=False)
    wide = console.width >= WIDE
    lines = _lines(job, points, wide) + ([] if html is None else [f"html: {html}; open it in a browser"])
    tell(drawn(console, [(_table(points, wide), False), *((line, True) for line in lines)]), html)


def _table(points: list[ComparedPoint], wide: bool) -> RenderableType:
    from rich.text import Text

    from ..plans.facts.compared_plans import binds, cheapest, fastest, short_name
    from .screens.bars import gauge, table

    paths = list(points[0].values)
    figures = ["mode", ">s/step", ">ms/sample", ">±", "speed", ">x plain", ">USD/1k", ">length"]
    first, *names = (short_name(path, paths) for path in paths)
    drawn = table([first, *right(names), *figures, *([">cut", "bottleneck"] if wide else [])])
    for column in drawn.columns[len(paths) : len(paths) + len(figures)]:
        column.no_wrap = True
    best, least = fastest(points), cheapest(points)
    rates = [1 / point.plan.predicted.seconds_per_sample if point.plan else 0.0 for point in points]
    for index, (point, rate) in enumerate(zip(points, rates, strict=True)):
        values = [Text(value) for value in point.value_texts.values()]
        if point.plan is None:
            drawn.add_row(*values, Text("no plan", style="yellow"), *[""] * (len(figures) - 1 + 2 * wide))
            continue
        predicted = point.plan.predicted
        drawn.add_row(
            *values,
            point.plan.job.bias.mode,
            digits(predicted.step_s.mean),
            Text(digits(1000 * predicted.seconds_per_sample, 4), style="bold" if index == best else ""),
            percent(predicted.error.total),
            gauge(rate / max(rates), WIDE_BAR if wide else NARROW_BAR),
            f"{point.plan.predicted.speedup:.2f}",
            Text(digits(predicted.usd_per_1k_samples, 4), style="bold" if index == least else ""),
            ratio(predicted.length_ratio),
            *([percent(predicted.cut_share), binds(point.plan)] if wide else []),
        )
    return drawn


def _lines(job: str, points: list[ComparedPoint], wide: bool) -> list[str]:
    """Lines below the table: its columns, the fastest and the cheapest plan, points without a plan, and notes."""
    from ..plans.facts.compared_plans import assumed_line, binds, cheapest, fastest, notes_of
    from ..plans.facts.plan_text import cut_text

    best, least = fastest(points), cheapest(points)
    cut = "; cut: share of the trained samples that the job's cap cuts" * wide
    lines = [
        f"job {job}; ±: error of each figure, by the plan itself; x plain: over plain rounds on the same "
        f"nodes; length: trained over unconditioned mean length, 1 is unbiased{cut}"
    ]
    if assumed := assumed_line(points):
        lines.append(f"assumed: {assumed}")
    if best is not None:
        lines.append(
            f"fastest: {points[best].label}" + (f"; cheapest: {points[least].label}" if least is not None else "")
        )
    if not wide:
        plans = [(point.label, point.plan) for point in points if point.plan is not None]
        lines += [f"{label}: bottleneck {binds(plan)}; {cut_text(plan.predicted)}" for label, plan in plans]
    lines += [f"no plan: {point.label}: {point.reason}" for point in points if point.plan is None]
    for note, labels in notes_of(points).items():
        lines.append(f"note: {note}" + ("" if len(labels) == len(points) else f" ({'; '.join(labels)})"))
    return lines
