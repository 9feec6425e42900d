"""`rlplan rewards list | show KIND | import FILE --profile PROFILE`"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import percent, seconds
from .shared.options import ACTIONS, force_option, must_fit_action

if TYPE_CHECKING:
    from ..profiles.reward_tables import RewardTable


@click.command("rewards")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("operand", metavar="[KIND|FILE]", required=False)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=NAME",
    help="import: which column holds seconds, correct or prompt; can be repeated.",
)
@click.option("--profile", "profile_path", type=click.Path(path_type=Path), help="import: the profile to change.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="import: where to write it. Default: the same file.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def rewards_command(
    action: str,
    operand: str | None,
    columns: tuple[str, ...],
    profile_path: Path | None,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Seconds of scoring a sample for `rlplan solve`: seconds that ship by kind of reward, or times of your own.

    A profile that ships holds no times of your rewards. Solve takes the seconds that ship for the job's reward.kind,
    says so, and includes their uncertainty in the plan's error. list and show print them.

    import FILE: times from CSV, gzipped CSV or JSON Lines of one scored sample a row, into a profile. Columns: seconds
    is needed; correct and prompt are used if present. Seconds are those of a worker under the job's longest
    deadline; an execution that hangs has the deadline.
    """
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
        f"a right answer {right} in the median, a wrong one {wrong}, {percent(table.hanging)} of the wrong ones until "
        "the deadline"
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
    from ..plans.yaml.errors import InputError
    from ..profiles.reward_tables import reward_kinds, reward_table

    if kind not in reward_kinds():
        raise InputError(f"no reward seconds ship for kind {kind!r}; there are: {', '.join(reward_kinds())}")
    table = reward_table(kind)
    if as_json:
        click.echo(json.dumps(reward_figures(table)))
        return 0
    lines = [
        f"{table.kind}: {_seconds_text(table)}",
        f"error    another job of the kind (one standard deviation): seconds x/÷ {math.exp(table.error.scale):.2f}"
        + (f", share that hangs x/÷ {math.exp(table.error.hanging):.2f}" if table.error.hanging else "")
        + f"; {table.error_source}",
        f"source   {table.source}",
    ]
    lines += [f"note     {table.note}"] if table.note else []
    click.echo("\n".join(lines))
    return 0


def _import(
    path: Path, columns: tuple[str, ...], profile_path: Path | None, out: Path | None, overwrite: bool, as_json: bool
) -> int:
    from ..plans.yaml.editor_schemas import write_document
    from ..plans.yaml.errors import InputError
    from ..plans.yaml.yaml_io import WRITTEN_DIGITS, load
    from ..profiles.imports.log_columns import assignments
    from ..profiles.imports.reward_import import FIELDS, executions_of, import_rewards, with_imported
    from ..profiles.profile_schema import Profile
    from .shared.paths import check_target, must_be_file

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
        f"{seconds(result['mean_s'])}; {percent(executions.unsolved)} of the prompts have no right answer\n"
        "plans that were solved from this profile are stale: solve again"
    )
    return 0
