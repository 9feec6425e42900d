"""`rlplan execute PLAN...` and `rlplan execute GROUPS`: jobs of co-execution groups, each by its own plan, in turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import count, runs_text
from ..plans.yaml.errors import InputError, RunFailed
from .main import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED
from .shared.options import Finite, HowMany, trust_option

if TYPE_CHECKING:
    from ..executor.groups.bound_driver import Proposed, ReplanInputs
    from ..executor.groups.job_process import JobEnd
    from ..executor.groups.prepare_group import PreparedGroup
    from ..executor.placement.run_placement import Placement
    from ..executor.prepare import Execution, Options
    from ..executor.records.trackers import TrackerName
    from ..plans.check.finding import Finding
    from .shared.trust import Trust


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
@trust_option
@click.option("--show-placement", is_flag=True, help="As --dry-run, and print node and devices of each process.")
@click.option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="In steps; sooner where a trainer's death would cost more than a checkpoint.",
)
@click.option(
    "--keep-every",
    type=click.IntRange(min=1),
    default=None,
    metavar="STEPS",
    help="Keep the checkpoint of every so many steps, beside the latest two.",
)
@click.option(
    "--save-model-every",
    type=click.IntRange(min=1),
    default=None,
    metavar="STEPS",
    help="Write the model of every so many steps, and of the last, to models/ in the run's folder, as rlplan "
    "export-model does; training goes on meanwhile.",
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
    "goes on without an engine or a reward worker as long as it has another.",
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
    "--readmit",
    is_flag=True,
    help="With --resume: take nodes again that the run has excluded.",
)
@click.option(
    "--unsafe-versions",
    is_flag=True,
    help="Run with versions of vLLM, Ray, torch or transformers that rlplan was never run with.",
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
@click.option(
    "--samples",
    type=HowMany(),
    default="16",
    show_default=True,
    help="Responses of each step that are kept for rlplan samples: whole prompts, drawn by lot, and beside them the "
    "longest, the best and the worst that were trained. all: every one; 0: none.",
)
@click.option(
    "--tracker",
    "trackers",
    multiple=True,
    type=click.Choice(["tensorboard", "wandb", "mlflow"]),
    default=["tensorboard"],
    show_default=True,
    help="What takes the run's figures beside its trace; can be given several times.",
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
    trust: str | None,
    show_placement: bool,
    checkpoint_every: int,
    keep_every: int | None,
    save_model_every: int | None,
    stall_timeout: float,
    restarts_per_hour: int,
    grace_s: float | None,
    node_patience: float,
    readmit: bool,
    unsafe_versions: bool,
    no_speed_check: bool,
    speed_check_every: int | None,
    samples: int | None,
    trackers: tuple[TrackerName, ...],
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

    --dry-run also lists what would be read, run and written. If the plan, its job or its reward function belongs to
    another user, or may be written by everybody, you are asked once before it runs; without a terminal it is refused
    (exit code 2) unless --trust names the digest that the refusal and --dry-run print.
    """
    from ..executor.processes.host import installed, must_be_tested
    from ..executor.records.trackers import must_be_installed
    from ..plans.yaml.yaml_io import document_kind

    must_be_installed(trackers)
    if not unsafe_versions:
        must_be_tested(installed())
    of_groups = [plan for plan in plans if document_kind(plan) == "rlplan_groups"]
    if of_groups:
        if len(plans) > 1:
            raise InputError("is a plan of groups, which is executed alone; leave out the others", str(of_groups[0]))
        one_job = {"--history": history is not None, "--show-placement": show_placement, "--readmit": readmit}
        for option, given in one_job.items():
            if given:
                raise InputError(f"{option} is for the plan of one job; leave it out", str(of_groups[0]))
        from ..executor.prepare import Options

        options = Options(
            steps, resume, checkpoint_every, stall_timeout, grace_s, restarts_per_hour, node_patience,
            drain_queue=not no_drain, trackers=trackers, keep_every=keep_every, save_model_every=save_model_every,
            samples=samples, unsafe_versions=unsafe_versions,
        )  # fmt: skip
        return _execute_groups(of_groups[0], group, out, options, dry_run, trust, as_json)
    if readmit and not resume:
        raise InputError("--readmit is for --resume; leave it out", str(plans[0]))
    if group is not None:
        raise InputError("--group is for a plan of groups; leave it out", str(plans[0]))

    from ..executor.execute import execute
    from ..executor.prepare import Options, history_of, in_force, placement_of, prepare
    from .screens.live import LiveView
    from .shared.findings import memory_findings, must_fit_memory, with_findings
    from .shared.output import share
    from .shared.trust import must_be_trusted, trust_of

    try:
        if resume and len(plans) == 1 and (now := in_force(plans[0], out)) != plans[0]:
            click.echo(f"{now} took the place of {plans[0]} in {out}; it is resumed by {now}", err=True)
            plans = (now,)
        with share("execute") as update:
            executions = prepare(plans, out, resume, update)
        remembered = None if history is None else history_of(history, executions, resume)
    except InputError as error:
        raise (with_findings(error, plans) if dry_run or show_placement else error) from None
    placement = placement_of(executions)
    if dry_run or show_placement:
        return _dry_run(plans, executions, placement, show_placement, as_json)
    must_be_trusted(trust_of(executions), trust, plans[0])
    must_fit_memory([finding for plan in plans for finding in memory_findings(plan)])
    options = Options(
        steps, resume, checkpoint_every, stall_timeout, grace_s, restarts_per_hour, node_patience, remembered,
        drain_queue=not no_drain,
        speed_check=not no_speed_check, speed_check_every=speed_check_every, trackers=trackers,
        keep_every=keep_every, save_model_every=save_model_every,
        samples=samples, readmit=readmit, unsafe_versions=unsafe_versions,
    )  # fmt: skip
    with LiveView({e.name: e.plan for e in executions}, steps, quiet=as_json, drains=not no_drain) as view:
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
    from .shared.trust import trust_of

    trust = trust_of(executions)
    names = [execution.name for execution in executions]
    rooms = list(placement.nodes_in_use().values())
    addresses, lack, in_cluster = live_check(rooms, executions[0].pool.accelerators.kind)
    beside, refused = (None, None) if in_cluster else _beside_others(executions, placement)
    lack = lack or refused
    # Without a cluster a plan is checked for nodes that it will have.
    short = refused is not None or (in_cluster and lack is not None)
    findings = [finding for report in reports(plans) for finding in report.findings]
    broken = [finding for finding in findings if not finding.warning]
    if as_json:
        rows = [{"file": finding.file, **finding.data()} for finding in findings]
        result = {"checked": names, "findings": rows, "shortage": lack, "ok": not broken and not short}
        result |= {"trust": trust.data()} | ({} if beside is None else {"beside": beside})
        shown = {"placement": placement_data(placement, addresses)} if show_placement else {}
        click.echo(json.dumps(result | shown))
    else:
        click.echo("\n".join([*(finding.noted for finding in findings), *trust.lines]))
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


def _execute_groups(
    path: Path, key: str | None, out: Path, options: Options, dry_run: bool, accepted: str | None, as_json: bool
) -> int:
    """Run all groups of a plan, or one; returns the exit code. A dry run makes the checks of a start and stops."""
    from ..executor.groups.prepare_group import prepare_groups
    from .shared.findings import memory_findings, must_fit_memory, reports
    from .shared.trust import must_be_trusted, trust_of

    groups = prepare_groups(path, key, out, options.resume)
    beyond_memory = [
        finding for group in groups for job in group.jobs for finding in memory_findings(job.execution.plan_path)
    ]
    trust = trust_of([job.execution for group in groups for job in group.jobs], path)
    if dry_run:
        checked = [finding for report in reports([path]) for finding in report.findings]
        return _dry_run_of_groups(groups, [*checked, *beyond_memory], trust, as_json)
    must_be_trusted(trust, accepted, path)
    must_fit_memory(beyond_memory)

    from ..executor.groups.group_run import run_groups
    from .screens.live import GroupView

    view = GroupView(options.steps, quiet=as_json)
    ends = run_groups(groups, out, key is not None, options, view, write_replan)
    return _groups_told(ends, out, [group.key for group in groups], as_json)


def _dry_run_of_groups(
    groups: Sequence[PreparedGroup], findings: Sequence[Finding], trust: Trust, as_json: bool
) -> int:
    from ..executor.placement.live_checks import live_check

    names = {group.key: [job.name for job in group.jobs] for group in groups}
    rooms = [room for group in groups for room in group.rooms]
    # Without a cluster this machine stands for all nodes.
    check = live_check(rooms, groups[0].kind)
    lack = check.lack if check.in_cluster else None
    ok = lack is None and all(finding.warning for finding in findings)
    code = 0 if ok else EXIT_BAD_INPUT if any(finding.bad_input for finding in findings) else EXIT_FAILED
    texts = [finding.noted for finding in findings]
    if as_json:
        click.echo(json.dumps({"groups": names, "findings": texts, "shortage": lack, "ok": ok, "trust": trust.data()}))
        return code
    click.echo("\n".join([*texts, *trust.lines]))
    if lack is not None:
        click.echo(f"cluster in RAY_ADDRESS: {lack}")
    if ok:
        told = "; ".join(f"{key} with {', '.join(jobs)}" for key, jobs in names.items())
        click.echo(
            f"can be started, since inputs, memory and files are in order: {told}, on {count(len(rooms), 'node')}"
        )
    return code


def _groups_told(ends: dict[str, JobEnd], out: Path, keys: list[str], as_json: bool) -> int:
    """Print how the jobs ended; returns the exit code."""
    from ..executor.groups.member_task import BAD_INPUT, DONE, STOPPED

    codes = {end.code for end in ends.values() if not end.left} or {DONE}
    if as_json:
        jobs = {
            name: {
                "finished": end.code == DONE,
                "left": end.left,
                "reason": end.reason if end.code != DONE and not end.left else "",
                "restarts": end.restarts,
            }
            for name, end in ends.items()
        }
        click.echo(json.dumps({"out": str(out), "groups": keys, "jobs": jobs, "finished": codes == {DONE}}))
    else:
        for name, end in ends.items():
            click.echo(f"{name}: {_how_ended(end)}")
        click.echo(f"see: rlplan report {out}")
    if codes == {DONE}:
        return 0
    if codes <= {DONE, STOPPED}:
        return EXIT_INTERRUPTED
    return EXIT_BAD_INPUT if BAD_INPUT in codes else EXIT_FAILED


def _how_ended(end: JobEnd) -> str:
    from ..executor.groups.member_task import DONE, STOPPED

    if end.left:
        return "left with a checkpoint, since a plan without it was applied"
    if end.code == DONE:
        return "done"
    return "stopped with a checkpoint; continue with --resume" if end.code == STOPPED else f"failed: {end.reason}"


def write_replan(given: ReplanInputs, path: Path) -> Proposed:
    """Write a re-plan to a path. Raises InputError, Infeasible."""
    from ..executor.groups.bound_driver import Proposed
    from ..planner.groups.propose_replan import propose_replan
    from ..plans.check.plan_check import input_path
    from ..plans.diff.auto_apply import may_apply
    from ..plans.diff.groups_diff import diff_groups
    from ..plans.diff.input_diff import InputFiles
    from ..plans.schema.groups_plan import load_groups_plan
    from ..plans.schema.site_rules import find_site_rules, load_site_rules
    from ..plans.yaml.yaml_io import dump, sha256_file

    running = load_groups_plan(given.running)
    workload = input_path(running.inputs.workload, given.plan)
    proposal = propose_replan(workload, given.running, path, given.journals, given.ahead_s, given.ended)
    dump(proposal.plan, path)
    rules = find_site_rules(given.plan)
    policy = None if rules is None else load_site_rules(rules)
    files = InputFiles(given.plan.parent), InputFiles(path.parent)
    diff = diff_groups(running, proposal.plan, *files, old_sha256=sha256_file(given.running))
    permission = may_apply(policy, diff, given.hours_since, given.ended)
    moves = proposal.moves
    return Proposed(path, len(moves), sum(move.price_s for move in moves), permission.given, permission.reason)


def placement_data(placement: Placement, addresses: Sequence[str | None]) -> list[dict[str, Any]]:
    """One entry for each node in use: its number, its address if it is known, and the devices of who runs there."""
    rows = []
    for number, (node, room) in enumerate(placement.nodes_in_use().items()):
        engines = {name: list(on.devices) for name, on in placement.engines.items() if on.node == node}
        trainers = {
            plan: {rank: list(on.devices) for rank, on in enumerate(ranks) if on.node == node}
            for plan, ranks in placement.trainers.items()
        }
        rows.append(
            {
                "node": node,
                "pool": room.pool,
                "address": addresses[number] if number < len(addresses) else None,
                "engines": engines,
                "trainers": {plan: ranks for plan, ranks in trainers.items() if ranks},
                "reward_workers": [i for i, place in enumerate(placement.reward_workers) if place == node],
            }
        )
    return rows


def placement_lines(placement: Placement, addresses: Sequence[str | None]) -> list[str]:
    """Lines of the same."""
    lines = []
    for row in placement_data(placement, addresses):
        lines.append(f"node {row['node']} of pool {row['pool']}" + (f": {row['address']}" if row["address"] else ""))
        lines += [f"  {_devices(devices)}: engine {name}" for name, devices in row["engines"].items()]
        for plan, ranks in row["trainers"].items():
            devices = sorted(device for held in ranks.values() for device in held)
            which = f"{'rank' if len(ranks) == 1 else 'ranks'} {runs_text(sorted(ranks))}"
            lines.append(f"  {_devices(devices)}: trainer {plan}, {which}")
        if row["reward_workers"]:
            workers = row["reward_workers"]
            lines.append(f"  {count(len(workers), 'reward worker')}: {runs_text(workers)}")
    return lines


def _devices(devices: Sequence[int]) -> str:
    return f"{'device' if len(devices) == 1 else 'devices'} {runs_text(devices)}"
