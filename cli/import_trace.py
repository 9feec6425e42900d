"""`rlplan import-trace SOURCE...`"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..plans.phrases.numbers import count
from ..plans.phrases.sentences import listed
from ..plans.yaml.errors import InputError
from .shared.options import force_option
from .shared.tokens_of import tokenizer_option, tokens_by

if TYPE_CHECKING:
    from ..frameworks.logs.imported_run import ImportedRun
    from ..profiles.length_trace import LengthTrace


@click.command("import-trace")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...", type=click.Path(path_type=Path))
@click.option("--lengths", "lengths_path", type=click.Path(path_type=Path), help="The length trace to write.")
@click.option("--run", "run_path", type=click.Path(path_type=Path), help="The run's folder to write; needs --plan.")
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    help="The plan of the job that ran, which report shows beside.",
)
@tokenizer_option
@click.option(
    "--cap",
    "cap_tokens",
    type=click.IntRange(min=1),
    help="Cap on a response's tokens; where the source does not say which were cut, those that reach it were.",
)
@click.option(
    "--column", "columns", multiple=True, metavar="FIELD=NAME", help="Of a plain table, as in rlplan lengths."
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def import_trace_command(
    sources: tuple[Path, ...],
    lengths_path: Path | None,
    run_path: Path | None,
    plan_path: Path | None,
    tokenizer: str | None,
    cap_tokens: int | None,
    columns: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
) -> int:
    """Read logs and dumps of a run of another trainer; without --lengths or --run only say what is in them.

    SOURCEs are of one run. Metrics: a console log of verl or slime, TensorBoard's files, an export of W&B (CSV), verl's
    file logger, transformers' trainer_state.json. Samples: slime's --save-debug-rollout-data (needs torch), verl's
    rollout_data_dir, TRL's log_completions (needs pyarrow). One plain table of responses is read as `rlplan lengths
    import` reads it.

    --lengths writes what `rlplan solve --trace` takes, --run what `rlplan report` and `rlplan tune` take. Only what the
    sources say is written; what they lack is listed.
    """
    from ..api.input_paths import check_target
    from ..frameworks.logs.imported_run import check_run_folder, read_run_sources
    from .shared.output import must_be_file

    if run_path is not None and plan_path is None:
        raise InputError("--run needs the plan of the job that ran: --plan plan.yaml (rlplan solve --plain makes one)")
    if lengths_path is not None:
        must_be_file(lengths_path, "a summary is printed")
        check_target(lengths_path, *(s for s in sources if not s.is_dir()), kind="lengths", force=overwrite)
    if run_path is not None:
        check_run_folder(run_path, overwrite)
    found = read_run_sources(sources, tokens_by(tokenizer))
    trace = _lengths(found, sources, columns, cap_tokens)
    cautions: list[str] = []
    if lengths_path is not None:
        if trace is None:
            raise InputError(
                f"no length trace can be made of this: it lacks {listed(found.missing[:1])}", str(sources[0])
            )
        cautions += _write_lengths(lengths_path, trace)
    if run_path is not None:
        assert plan_path is not None
        cautions += _write_run(run_path, plan_path, found, cap_tokens)
    if found.dumps:
        cautions.append("dumps hold what was trained: with over-sampling these are shorter than what the model writes")
    result = _result(found, trace, lengths_path, run_path, cautions, cap_tokens)
    click.echo(json.dumps(result) if as_json else _text(result))
    return 0


def _lengths(
    found: ImportedRun, sources: tuple[Path, ...], columns: tuple[str, ...], cap_tokens: int | None
) -> LengthTrace | None:
    """The length trace of a plain table, or of the dumps; None where no source has lengths of responses."""
    from ..frameworks.logs.sample_dump import placed
    from ..profiles.imports.length_import import FIELDS, import_lengths
    from ..profiles.imports.log_columns import assignments
    from ..profiles.length_trace import LengthRow, LengthTrace

    if found.tables:
        if len(sources) > 1:
            raise InputError("is no log or dump of verl, slime or TRL; give a plain table alone", str(found.tables[0]))
        path = found.tables[0]
        try:
            return LengthTrace(import_lengths(path, assignments(columns, FIELDS), cap_tokens), cap_tokens)
        except InputError as error:
            raise InputError(
                f"is no log of verl, slime or TRL, and as a table: {error.message}", str(path), error.line
            ) from None
    if not found.has_lengths:
        return None
    rows = []
    for sample, place in placed(found.samples):
        assert sample.tokens is not None
        cut = sample.truncated
        if cut is None and cap_tokens is not None:
            cut = sample.tokens >= cap_tokens
        rows.append(
            LengthRow(
                sample.prompt,
                place.epoch,
                place.sample,
                max(1, sample.tokens),
                cut,
                sample.reward,
                sample.prompt_tokens,
            )
        )
    return LengthTrace(rows, cap_tokens)


def _write_lengths(path: Path, trace: LengthTrace) -> list[str]:
    from ..profiles.length_trace import write_lengths
    from .lengths import cautions

    write_lengths(path, trace.rows)
    return cautions(trace)


def _write_run(folder: Path, plan_path: Path, found: ImportedRun, cap_tokens: int | None) -> list[str]:
    from ..frameworks.logs.imported_run import write_imported_run
    from ..plans.schema.plan import load_plan

    if not found.logs:
        raise InputError("a run has seconds of steps, and no source has; add the log of its metrics", str(folder))
    return write_imported_run(folder, load_plan(plan_path), plan_path, found, cap_tokens)


def _result(
    found: ImportedRun,
    trace: LengthTrace | None,
    lengths: Path | None,
    run: Path | None,
    cautions: list[str],
    cap_tokens: int | None,
) -> dict[str, Any]:
    read = [
        {"path": str(log.path), "framework": log.framework, "form": log.form, "steps": len(log.steps), "samples": 0}
        for log in found.logs
    ]
    read += [
        {
            "path": str(dump.path), "framework": dump.framework, "form": "dump", "samples": len(dump.samples),
            "steps": len({sample.step for sample in dump.samples}),
        }
        for dump in found.dumps
    ]  # fmt: skip
    read += [
        {"path": str(path), "framework": "", "form": "table", "steps": 0, "samples": len(trace.rows) if trace else 0}
        for path in found.tables
    ]
    return {
        "sources": read,
        "framework": found.framework or None,
        "steps": len(found.steps),
        "summary": None if trace is None else asdict(trace.summary()),
        "missing": []
        if found.tables
        else [text for text in found.missing if cap_tokens is None or "--cap" not in text],
        "cautions": cautions,
        "lengths": None if lengths is None else str(lengths),
        "run": None if run is None else str(run),
    }


def _text(result: dict[str, Any]) -> str:
    lines = [
        f"{source['path']}: {' '.join(filter(None, (source['framework'], source['form'])))}, "
        + " and ".join(
            count(source[key], word) for key, word in (("steps", "step"), ("samples", "sample")) if source[key]
        )
        for source in result["sources"]
    ]
    if (summary := result["summary"]) is not None:
        lines.append(
            f"{summary['samples']} responses to {summary['prompts']} prompts: p50 {summary['p50_tokens']:.0f}, p95 "
            f"{summary['p95_tokens']:.0f}, longest {summary['max_tokens']}, mean {summary['mean_tokens']:.0f} tokens"
        )
    if result["missing"]:
        lines.append(f"not in it: {', '.join(result['missing'])}")
    lines += [f"warning: {text}" for text in result["cautions"]]
    if (path := result["lengths"]) is not None:
        lines.append(f"-> {path}; use it: rlplan solve JOB --trace {path}")
    if (path := result["run"]) is not None:
        lines.append(f"-> {path}; use it: rlplan report {path}" + (f", rlplan tune {path}" if summary else ""))
    if result["lengths"] is result["run"] is None:
        lines.append("nothing was written: --lengths FILE writes a length trace, --run FOLDER with --plan PLAN a run")
    return "\n".join(lines)
