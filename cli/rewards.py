"""`rlplan rewards list | show KIND | import FILE --profile PROFILE | try JOB | audit JOB`"""

from __future__ import annotations

import difflib
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import count, percent, seconds
from ..plans.yaml.errors import ErrorCollector, InputError
from .main import EXIT_FAILED
from .shared.options import ACTIONS, force_option, must_fit_action, refuse_options_but

if TYPE_CHECKING:
    from ..executor.rewards.local_scoring import Tried
    from ..executor.rewards.reward_audit import Audited
    from ..plans.files.prompt_rows import Prompt, RowFault
    from ..plans.schema.job import Job, JobPaths, RewardSpec
    from ..profiles.phase_schema import RewardExecutions
    from ..profiles.reward_tables import RewardTable


@click.command("rewards")
@click.argument("action", type=click.Choice((*ACTIONS, "try", "audit")))
@click.argument("operand", metavar="[KIND|FILE|JOB]", required=False)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=NAME",
    help="import: which column holds seconds, correct or prompt; FIELD= leaves one out that is recognized by itself; "
    "can be repeated.",
)
@click.option("--profile", "profile_path", type=click.Path(path_type=Path), help="import: the profile to change.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="import: where to write it. Default: the same file.")
@click.option("--row", metavar="ID", help="try: the row of the data. Default: the first that can be scored.")
@click.option(
    "--response",
    metavar="FILE|TEXT",
    help="try: what is scored; -: standard input. Default: the row's own solution, or its answer.",
)
@click.option(
    "--responses",
    "responses_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help='try: JSON Lines of {"id": …, "response": …}, each scored; -: standard input.',
)
@click.option("--rows", type=click.IntRange(min=1), help="audit: so many rows, evenly spread. Default: all.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON: one line, with --responses one each.")
def rewards_command(
    action: str,
    operand: str | None,
    row: str | None,
    response: str | None,
    responses_path: Path | None,
    rows: int | None,
    columns: tuple[str, ...],
    profile_path: Path | None,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Try and audit a job's reward; and seconds of scoring a sample for `rlplan solve`, that ship or of your own.

    try JOB: what the reward sees in a response and says of it, step by step. audit JOB: whether each row's own solution
    or answer gets the full reward, and a blank, a constant and another row's answer do not. JOB is a job.yaml or its
    folder; its data is needed, and no model, profile or cluster.

    A profile that ships holds no times of your rewards. Solve takes the seconds that ship for the job's reward.kind,
    says so, and includes their uncertainty in the plan's error. list and show print them.

    import FILE: times from a table (CSV, JSON Lines, a JSON array or Parquet, gzipped or not) of one scored sample a
    row, into a profile. Columns: seconds is needed; correct and prompt are used if present. Seconds are those of a
    worker under the job's longest deadline; an execution that hangs has the deadline.
    """
    if action in ("try", "audit"):
        allowed = ("row", "response", "responses_path") if action == "try" else ("rows",)
        refuse_options_but(action, *allowed, "as_json")
        if operand is None:
            raise click.UsageError(f"{action} what? Name a job.yaml, or its folder", click.get_current_context())
        if action == "audit":
            return _audit(Path(operand), rows, as_json)
        return _try(Path(operand), row, response, responses_path, as_json)
    must_fit_action(
        action,
        operand,
        listing="list takes no name; to see one kind: rlplan rewards show KIND",
        showing="show what? Name a kind of reward: code, function or math",
    )
    if action == "list":
        return _list(as_json)
    assert operand is not None, "must_fit_action refuses it"
    if action == "show":
        return _show(operand, as_json)
    return _import(Path(operand), columns, profile_path, out, overwrite, as_json)


def reward_figures(table: RewardTable) -> dict[str, Any]:
    """A table for --json: seconds, shares, and their sources."""
    figures: dict[str, Any] = {"kind": table.kind}
    if table.per_sample_s is not None:
        figures["per_sample_s"] = table.per_sample_s
    for name, values in (("right", table.right_s), ("wrong", table.wrong_s)):
        if values is not None:
            figures |= {f"{name}_p50_s": values[len(values) // 2], f"{name}_longest_s": values[-1]}
    if table.wrong_s is not None:
        figures |= {"hanging": table.hanging, "correct": table.correct, "unsolved": table.unsolved}
    return figures | {
        "error": table.error.model_dump(),
        "error_source": table.error_source,
        "source": table.source,
        "note": table.note,
    }


def _seconds_text(table: RewardTable) -> str:
    if table.per_sample_s is not None:
        return f"{seconds(table.per_sample_s)} a sample"
    assert table.right_s is not None and table.wrong_s is not None, "it has one of the two"
    right, wrong = (seconds(values[len(values) // 2]) for values in (table.right_s, table.wrong_s))
    return (
        f"a right answer takes {right} in the median and a wrong one {wrong}; {percent(table.hanging)} of the wrong "
        "ones run until the deadline"
    )


def _list(as_json: bool) -> int:
    from ..profiles.reward_tables import reward_kinds, reward_table

    tables = [reward_table(kind) for kind in reward_kinds()]
    if as_json:
        click.echo(json.dumps({"tables": [reward_figures(table) for table in tables]}))
        return 0
    for table in tables:
        click.echo(f"{table.kind:10}{_seconds_text(table)}")
    click.echo("none of them is of your job: rlplan rewards show KIND says how far off one may be")
    return 0


def _show(kind: str, as_json: bool) -> int:
    from ..profiles.reward_tables import reward_kinds, reward_table

    if kind not in reward_kinds():
        raise InputError(f"no reward seconds ship for kind {kind!r}; there are: {', '.join(reward_kinds())}")
    table = reward_table(kind)
    if as_json:
        click.echo(json.dumps(reward_figures(table)))
        return 0
    lines = [
        f"{table.kind}: {_seconds_text(table)}",
        "error    how far another job of the kind differs (one standard deviation): seconds by a factor of "
        f"{math.exp(table.error.scale):.2f}"
        + (
            f", share that runs until the deadline by {math.exp(table.error.hanging):.2f}"
            if table.error.hanging
            else ""
        )
        + f"; {table.error_source}",
        f"source   {table.source}",
    ]
    lines += [f"note     {table.note}"] if table.note else []
    click.echo("\n".join(lines))
    return 0


def _import(
    path: Path, columns: tuple[str, ...], profile_path: Path | None, out: Path | None, overwrite: bool, as_json: bool
) -> int:
    from ..api.input_paths import check_target
    from ..plans.yaml.yaml_io import WRITTEN_DIGITS, load, write_document
    from ..profiles.imports.log_columns import assignments
    from ..profiles.imports.reward_import import FIELDS, executions_of, import_rewards, with_imported
    from ..profiles.profile_schema import Profile
    from .shared.output import must_be_file

    if profile_path is None:
        raise InputError("import changes a profile; name it: --profile profile.yaml")
    column_of_field = assignments(columns, FIELDS)
    target = out or profile_path
    must_be_file(target, "a summary is printed")
    check_target(target, path, kind="profile", force=overwrite)
    profile = load(profile_path, Profile)
    samples = import_rewards(path, column_of_field)
    write_document(with_imported(profile, samples, path.name), target, WRITTEN_DIGITS)
    executions, times_s = executions_of(samples), sorted(sample.seconds for sample in samples)
    result: dict[str, Any] = {
        "profile": str(target),
        "samples": len(samples),
        "p50_s": times_s[len(times_s) // 2],
        "p95_s": times_s[int(0.95 * len(times_s))],
        "longest_s": times_s[-1],
        "mean_s": sum(times_s) / len(times_s),
        "correct": executions.correct,
        "unsolved": executions.unsolved,
    }
    if as_json:
        click.echo(json.dumps(result))
        return 0
    click.echo(
        f"{len(samples)} executions -> {target}\n"
        f"p50 {seconds(result['p50_s'])}, p95 {seconds(result['p95_s'])}, longest {seconds(result['longest_s'])}, mean "
        f"{seconds(result['mean_s'])}; {_answers_text(executions)}\n"
        "plans that were solved from this profile are stale: solve again"
    )
    return 0


def _answers_text(executions: RewardExecutions) -> str:
    """What a table says of right answers."""
    if executions.unsolved is not None:
        return f"{percent(executions.unsolved)} of the prompts have no right answer"
    if executions.correct is not None:
        right = percent(executions.correct)
        return f"{right} of the answers are right, to how many of the prompts is unknown: no column prompt"
    return "which answers are right is unknown: no column correct"


# ---- a job's reward on its own rows ----


def _job(path: Path) -> tuple[Job, JobPaths, list[Prompt], list[RowFault]]:
    """(job, the files that scoring needs, the rows of its data, those that are refused)."""
    from ..api.input_paths import job_file, need_job
    from ..plans.files.prompt_rows import read_rows
    from ..plans.schema.job import load_job, scoring_paths

    path = job_file(path)
    need_job(path)
    job = load_job(path)
    paths = scoring_paths(job, path)
    assert paths.data is not None, "it is refused without data"
    # The reward reads the answers that it is asked about; all answers of a large file would take minutes.
    return job, paths, *read_rows(paths.data, job.reward, "no")


def _try(path: Path, name: str | None, response: str | None, responses: Path | None, as_json: bool) -> int:
    from ..executor.rewards.local_scoring import scored_here, tried
    from ..plans.files.prompt_rows import Prompt

    if responses is not None and (name is not None or response is not None):
        raise InputError("--responses has rows and responses of its own; leave out --row and --response")
    job, paths, rows, faults = _job(path)
    parts = scored_here(job)
    if not parts:
        kinds = ", ".join(part.kind for part in job.reward.parts)
        raise InputError(f"a reward of kind {kinds} needs a model or its tokens, and cannot be tried here", str(path))
    left_out = [part.label for part in job.reward.parts if part not in parts]
    if responses is not None:
        return _try_all(job, paths, rows, faults, responses, left_out, as_json)
    found = _by_id(rows, faults)
    if name is None and rows:
        name = rows[0].id
    row = found.get(name) if name is not None else faults[0]
    if row is None:
        raise _unknown(str(name), found, str(paths.data))
    if not isinstance(row, Prompt):
        if as_json:
            click.echo(json.dumps(_line(row.id, None, True, row.text), ensure_ascii=False))
        else:
            click.echo(f"row {row.id or '?'} (line {row.line}) is refused: {row.text}")
        return EXIT_FAILED
    given = _response(parts, row, response)
    text, source = given or ("", "none")
    (result,) = tried(job, paths, [(row, text)])
    if given is None and not result.refused:
        raise InputError(f"row '{row.id}' has no reference solution to try; give a response with --response")
    if as_json:
        told = [
            {"name": part.label, "kind": part.kind, "weight": part.weight, "value": scored.reward,
             "outcome": scored.outcome, "seconds": scored.seconds, "why": scored.detail,
             "steps": [list(step) for step in scored.steps]}
            for part, scored in result.parts
        ]  # fmt: skip
        line = _line(row.id, result.reward, result.refused, result.why)
        click.echo(json.dumps({**line, "response": source, "parts": told, "left_out": left_out}, ensure_ascii=False))
    else:
        click.echo(tried_text(row, text, source, result, left_out))
    return 0 if result.reward is not None else EXIT_FAILED


def _try_all(
    job: Job,
    paths: JobPaths,
    rows: list[Prompt],
    faults: list[RowFault],
    file: Path,
    left_out: list[str],
    as_json: bool,
) -> int:
    """Score each response of a file, in order."""
    from ..executor.rewards.local_scoring import tried
    from ..plans.files.prompt_rows import Prompt

    found = _by_id(rows, faults)
    given = list(_responses(file, found, str(paths.data)))
    results = tried(job, paths, [(row, text) for row, text in given if isinstance(row, Prompt)])
    rewards: list[float] = []
    refused = 0
    for row, _ in given:
        if isinstance(row, Prompt):
            result = next(results)
            line = _line(row.id, result.reward, result.refused, result.why)
        else:
            line = _line(row.id, None, True, row.text)
        refused += line["refused"]
        rewards += [line["reward"]] if line["reward"] is not None else []
        if as_json:
            click.echo(json.dumps(line, ensure_ascii=False))
        else:
            told = "refused" if line["refused"] else "not scored" if line["reward"] is None else f"{line['reward']:g}"
            click.echo(f"{line['id']}: {told}{'' if not line['why'] else '  ' + line['why']}")
    unscored = len(given) - len(rewards) - refused
    if not as_json:
        mean = f", mean reward {sum(rewards) / len(rewards):.3f}" if rewards else ""
        failed = f", {unscored} not scored" if unscored else ""
        click.echo(f"{count(len(given), 'response')}: {len(rewards)} scored{mean}, {refused} refused{failed}")
        for label in left_out:
            click.echo(f"without {label}, which needs a model or its tokens")
    return EXIT_FAILED if unscored else 0


def _by_id(rows: list[Prompt], faults: list[RowFault]) -> dict[str, Prompt | RowFault]:
    """The rows by id; one that is refused only where no other has its id."""
    found: dict[str, Prompt | RowFault] = {row.id: row for row in rows}
    for fault in faults:
        if fault.id is not None:
            found.setdefault(fault.id, fault)
    return found


def _unknown(name: str, found: Mapping[str, Any], data: str, file: str | None = None, line: int = 0) -> InputError:
    near = difflib.get_close_matches(name, list(found)[:10_000], 1)
    hint = f"did you mean '{near[0]}'?" if near else f"the first is '{next(iter(found), '')}'"
    return InputError(f"no row of {data} has the id '{name[:80]}'; {hint}", file, line or None)


def _responses(
    file: Path, found: Mapping[str, Prompt | RowFault], data: str
) -> Iterator[tuple[Prompt | RowFault, str]]:
    """(row, response) of each line of a file. Raises one InputError with a line for each bad one."""
    from ..plans.yaml.input_files import DATA_BYTES, read_text
    from ..plans.yaml.json_text import parse_json
    from ..plans.yaml.yaml_io import STDOUT

    shown = "standard input" if file == STDOUT else str(file)
    text = sys.stdin.read() if file == STDOUT else read_text(file, DATA_BYTES)
    errors = ErrorCollector()
    read: list[tuple[Prompt | RowFault, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            errors.errors.append(InputError(f"{error}; each line is one JSON object", shown, number))
            continue
        if not isinstance(value, dict) or not isinstance(value.get("response"), str) or "id" not in value:
            message = 'must be {"id": …, "response": …} with text in response'
            errors.errors.append(InputError(message, shown, number))
        elif (row := found.get(str(value["id"]))) is None:
            errors.errors.append(_unknown(str(value["id"]), found, data, shown, number))
        else:
            read.append((row, value["response"]))
    errors.raise_any()
    if not read:
        raise InputError('has no responses; write one {"id": …, "response": …} a line', shown)
    return iter(read)


def _response(parts: list[RewardSpec], row: Prompt, given: str | None) -> tuple[str, str] | None:
    """(what is scored, where it is from); None where nothing is given and the row has no reference."""
    from ..executor.rewards.reward_audit import AUDITED, references
    from ..plans.yaml.input_files import DATA_BYTES, read_text

    if given == "-":
        return sys.stdin.read(), "standard input"
    if given is not None:
        is_file = os.path.isfile(given)  # noqa: PTH113 (pathlib raises for what can be no path)
        return (read_text(given, DATA_BYTES), f"the file {given}") if is_file else (given, "the text that was given")
    part = next((part for part in parts if part.kind in AUDITED), parts[0])
    text = next(references(part, row), None)
    if text is None:
        return None
    return text, "the row's own solution" if row.reference is not None else "the row's answer"


def _line(name: str | None, reward: float | None, refused: bool, why: str) -> dict[str, Any]:
    return {"id": name, "reward": reward, "refused": refused, "why": " ".join(why.split())}


def _audit(path: Path, most: int | None, as_json: bool) -> int:
    from ..api.input_paths import job_file, need_job
    from ..executor.rewards.reward_audit import audit_job
    from ..plans.schema.job import load_job
    from .shared.output import share

    path = job_file(path)
    need_job(path)
    with share("audit") as update:
        found = audit_job(load_job(path), path, most, update)
    counted = found.audit
    if not counted.references + counted.wrong + counted.refused:
        raise InputError("; ".join(found.left_out) or "no part of the reward can be audited", str(path))
    if as_json:
        result = {
            "rows": counted.rows, "of": counted.of,
            "references": {"full": counted.full, "of": counted.references},
            "wrong": {"zero": found.zero, "paid": counted.paid, "of": counted.wrong},
            "refused": counted.refused, "passed": counted.passed,
            "failed": [asdict(failure) for failure in found.failed],
            "left_out": list(found.left_out),
        }  # fmt: skip
        click.echo(json.dumps(result, ensure_ascii=False))
    else:
        click.echo(audit_text(found))
    return 0 if counted.passed else EXIT_FAILED


MOST_LISTED = 20
"""Rows that fail an audit that are listed; the others are counted."""
_SHOWN = 2000
_INDENT = "    "


def tried_text(row: Prompt, response: str, source: str, result: Tried, left_out: Sequence[str]) -> str:
    """A response, each part's steps and value, and the reward. `source`: where the response is from."""
    lines = [f"row {row.id} (line {row.line}); response: {source}, {count(len(response), 'character')}"]
    lines += _block(response)
    for part, scored in result.parts:
        named = part.label if part.label == part.kind else f"{part.label} ({part.kind})"
        ended = _ended(scored.outcome, scored.reward, scored.refused)
        lines.append(f"{named}: {ended} in {seconds(scored.seconds)}")
        for name, text in ((name, text.strip("\n")) for name, text in scored.steps):
            lines += [f"  {name}:", *_block(text)] if "\n" in text else [f"  {name}: {text}"]
        lines += [f"  why: {scored.detail}"] if scored.detail else []
    if result.reward is None:
        lines.append("no reward: the row is refused" if result.refused else "no reward: scoring failed")
    elif len(result.parts) > 1 or result.parts[0][0].weight != 1.0:
        terms = " + ".join(f"{part.weight:g} x {scored.reward:g}" for part, scored in result.parts)
        lines.append(f"reward {result.reward:g} = {terms}")
    else:
        lines.append(f"reward {result.reward:g}")
    lines += [f"without {label}, which needs a model or its tokens" for label in left_out]
    return "\n".join(lines)


def _ended(outcome: str, reward: float, refused: bool) -> str:
    if refused or outcome == "infra_failed":
        return "refused" if refused else "not scored"
    return f"{reward:g}" + ("" if outcome == "ok" else f" ({outcome.replace('_', ' ')})")


def _block(text: str) -> list[str]:
    cut = text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}\n…\n{text[-_SHOWN // 2 :]}"
    return [f"{_INDENT}{line}".rstrip() for line in cut.splitlines()]


def audit_text(found: Audited) -> str:
    """The counts of an audit, and the rows that fail."""
    lines = [found.audit.text]
    for failure in found.failed[:MOST_LISTED]:
        gets = "is refused" if failure.reward is None else f"{failure.probe} gets {failure.reward:g}"
        lines.append(f"  line {failure.line}, row {failure.id or '?'}: {gets}: {failure.why}")
    if (left := len(found.failed) - MOST_LISTED) > 0:
        probes = Counter(failure.probe for failure in found.failed)
        lines.append(f"  {left} more ({', '.join(f'{number} {probe}' for probe, number in sorted(probes.items()))} in "
                     "all); --json lists them")  # fmt: skip
    lines += [f"note: {text}" for text in found.left_out]
    lines.append("passed" if found.audit.passed else "failed")
    return "\n".join(lines)
