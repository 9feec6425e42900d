"""`rlplan execute PLAN...`"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..plans.phrases.numbers import count
from .main import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED
from .shared.options import Finite

if TYPE_CHECKING:
    from ..executor.placement.seats import Placement
    from ..executor.prepare import Execution


@click.command("execute")
@click.argument("plans", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/run"), show_default=True, help="Run folder.")
@click.option("--steps", type=click.IntRange(min=1), default=40, show_default=True, help="Optimizer steps per plan.")
@click.option(
    "--no-drain",
    is_flag=True,
    help="End at --steps even if prompts wait for a long round; without it further long rounds train them.",
)
@click.option("--resume", is_flag=True, help="Continue the run in --out from its last checkpoint.")
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of a run of the same data: drafts begin with the responses that its latest checkpoint remembers.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check plans as a start and as rlplan check would, and the cluster in RAY_ADDRESS for room, and stop.",
)
@click.option("--show-placement", is_flag=True, help="As --dry-run, and print node and devices of each process.")
@click.option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="In steps; sooner where a trainer's death would cost more than a checkpoint.",
)
@click.option(
    "--stall-timeout",
    type=Finite(min=1),
    default=120.0,
    show_default=True,
    help="Seconds without a sign of life after which an engine or a trainer rank is replaced; must exceed the longest "
    "prefill. A start may take five times as long.",
)
@click.option(
    "--restarts-per-hour",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    help="How often an engine, the trainer or a reward worker may be replaced within any hour before the run ends; it "
    "goes on without a reward worker as long as it has another.",
)
@click.option(
    "--grace-s",
    type=Finite(min=0),
    default=None,
    help="Seconds from SIGINT or SIGTERM until the round is left and what was trained is saved; default: no limit.",
)
@click.option(
    "--node-patience",
    type=Finite(min=0),
    default=600.0,
    show_default=True,
    help="Seconds that a trainer waits for a node in place of one that was lost, before the run ends.",
)
@click.option(
    "--no-speed-check",
    is_flag=True,
    help="Do not measure, before the first step, how fast the machine is beside when it was profiled.",
)
@click.option(
    "--speed-check-every",
    type=click.IntRange(min=1),
    default=None,
    metavar="STEPS",
    help="Measure it again every so many steps, on a machine whose speed varies.",
)
@click.option("--group", default=None, help="Which group of a plan of groups to run; needed if it has several.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def execute_command(
    plans: tuple[Path, ...],
    out: Path,
    steps: int,
    no_drain: bool,
    resume: bool,
    history: Path | None,
    dry_run: bool,
    show_placement: bool,
    checkpoint_every: int,
    stall_timeout: float,
    restarts_per_hour: int,
    grace_s: float | None,
    node_patience: float,
    no_speed_check: bool,
    speed_check_every: int | None,
    group: str | None,
    as_json: bool,
) -> int:
    """Run real synchronous training as PLANS say.

    One plan runs in --out. Several plans (of one job) take turns round by round on the same engines, each in a folder
    of its own under --out, so that they can be compared on a machine that others use too.

    Of a plan of groups (groups.yaml) all groups run at once, or the one of --group: the jobs of a group run as one,
    each by its own plan in a process and folder of its own, and take turns on the nodes that they share.

    A run has deferred prompts when it has its --steps; then further long rounds train them, which are steps as well, so
    that the longest responses are not lost. --no-drain ends it at --steps. --resume with more --steps goes on from
    either end.

    Ctrl-C or SIGTERM ends the run at the round's end, with a checkpoint (exit code 130). A second one, or --grace-s,
    leaves the round: the trained steps are saved, the samples of the round are lost. A third one ends the run at once.

    --dry-run starts nothing: it makes the checks of a start (exit code 2) and those of `rlplan check` (exit code 1). If
    RAY_ADDRESS names a cluster, its nodes must have room for the plan (exit code 1); if not, a plan of several nodes
    is checked without them, and told to need them (exit code 0).
    A plan that does not fit in memory is not started (exit code 1).
    """
    from ..plans.yaml.errors import InputError
    from ..plans.yaml.yaml_io import document_kind

    of_groups = [plan for plan in plans if document_kind(plan) == "rlplan_groups"]
    if of_groups:
        if len(plans) > 1:
            raise InputError("is a plan of groups, which is executed alone; leave out the others", str(of_groups[0]))
        for option, given in (("--history", history is not None), ("--show-placement", show_placement)):
            if given:
                raise InputError(f"{option} is for the plan of one job; leave it out", str(of_groups[0]))
        from ..executor.prepare import Options
        from .many_jobs.execute_groups import execute_groups_command

        options = Options(
            steps, resume, checkpoint_every, stall_timeout, grace_s, restarts_per_hour, node_patience,
            drain_queue=not no_drain,
        )  # fmt: skip
        return execute_groups_command(of_groups[0], group, out, options, dry_run, as_json)
    if group is not None:
        raise InputError("--group is for a plan of groups; leave it out", str(plans[0]))

    from ..executor.execute import execute
    from ..executor.prepare import Options, history_of, placement_of, prepare
    from .screens.live import LiveView
    from .shared.findings import memory_findings, must_fit_memory, with_findings
    from .shared.progress import share

    try:
        with share("execute") as update:
            executions = prepare(plans, out, resume, update)
        remembered = None if history is None else history_of(history, executions, resume)
    except InputError as error:
        raise (with_findings(error, plans) if dry_run or show_placement else error) from None
    placement = placement_of(executions)
    if dry_run or show_placement:
        return _dry_run(plans, executions, placement, show_placement, as_json)
    must_fit_memory([finding for plan in plans for finding in memory_findings(plan)])
    options = Options(
        steps, resume, checkpoint_every, stall_timeout, grace_s, restarts_per_hour, node_patience, remembered,
        drain_queue=not no_drain,
        speed_check=not no_speed_check, speed_check_every=speed_check_every,
    )  # fmt: skip
    with LiveView({e.name: e.plan for e in executions}, steps, quiet=as_json) as view:
        finished = execute(executions, options, view)
    summary = {"out": str(out), "runs": [e.name for e in executions], "finished": finished}
    if as_json:
        click.echo(json.dumps(summary))
    elif finished:
        click.echo(f"done; see: rlplan report {out}")
    else:
        click.echo(f"stopped with checkpoints; continue with --resume, or see: rlplan report {out}")
    return 0 if finished else EXIT_INTERRUPTED


def _dry_run(
    plans: tuple[Path, ...], executions: list[Execution], placement: Placement, show_placement: bool, as_json: bool
) -> int:
    """Print the findings of `check` in plans that could be started, and what their cluster lacks; returns the exit
    code."""
    from ..executor.placement.live_checks import live_check
    from .shared.findings import reports
    from .shared.placement_text import placement_data, placement_lines

    names = [execution.name for execution in executions]
    addresses, lack, in_cluster = live_check(placement, executions[0].pool.accelerators.kind)
    beside, refused = (None, None) if in_cluster else _beside_others(executions, placement)
    lack = lack or refused
    # Without a cluster a plan is checked for nodes that it will have.
    short = refused is not None or (in_cluster and lack is not None)
    findings = [finding for report in reports(plans) for finding in report.findings]
    broken = [finding for finding in findings if not finding.warning]
    if as_json:
        rows = [{"file": finding.file, **finding.data()} for finding in findings]
        result = {"checked": names, "findings": rows, "shortage": lack, "ok": not broken and not short}
        result |= {} if beside is None else {"beside": beside}
        shown = {"placement": placement_data(placement, addresses)} if show_placement else {}
        click.echo(json.dumps(result | shown))
    else:
        for finding in findings:
            click.echo(finding.noted)
        for text in placement_lines(placement, addresses) if show_placement else ():
            click.echo(text)
        if beside is not None and refused is None:
            click.echo(f"{beside}; the plan fits beside them")
        if refused is not None:
            click.echo(refused)
        elif lack is not None:
            click.echo(f"cluster in RAY_ADDRESS: {lack}" if in_cluster else f"a start {lack}")
        if broken:
            click.echo(f"{count(len(broken), 'finding')}; see rlplan check --rules")
        elif lack is None:
            click.echo(f"can be started, since inputs, memory and files are in order: {', '.join(names)}")
        elif not in_cluster:
            click.echo(f"inputs, memory and files are in order: {', '.join(names)}")
    if any(finding.bad_input for finding in broken):
        return EXIT_BAD_INPUT
    return EXIT_FAILED if broken or short else 0


def _beside_others(executions: list[Execution], placement: Placement) -> tuple[str | None, str | None]:
    """(what other processes hold of this machine's GPUs, why the plans do not fit beside them); None, None where they
    hold nothing, and for plans of several nodes or without GPUs."""
    from ..plans.yaml.errors import RunFailed

    first = executions[0]
    if first.pool.accelerators.kind != "cuda" or len(placement.nodes_in_use()) > 1:
        return None, None
    from ..executor.configuration import configuration
    from ..executor.memory.device_holds import device_ledger
    from ..executor.memory.free_memory import beside_others, held_here, held_text
    from ..executor.placement.live_nodes import gpus_here

    names = [f"GPU {number} of node 0" for number in range(first.pool.accelerators.per_node)]
    found = zip(names, held_here(gpus_here(len(names))), strict=False)
    if not (held := {name: each for name, each in found if each is not None}):
        return None, None
    plans = {execution.name: execution.plan for execution in executions}
    jobs = [plan.job for plan in plans.values()]
    fleet = configuration(jobs, first.checked.job, first.checked.paths, first.pool).fleet
    where = placement.device_names("cuda")
    try:
        beside_others(partial(device_ledger, fleet, plans, first.pool, where=where), fleet, plans, held)
    except RunFailed as refusal:
        return held_text(held), str(refusal)
    return held_text(held), None
