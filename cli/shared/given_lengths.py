"""Response lengths from the command line: a trace (`--trace`, or the profile's own), or a table that ships
(`--lengths`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ...plans.schema.sections.origin import LengthsInput
    from ...profiles.length_trace import LengthTrace
    from ...profiles.profile_schema import Profile

trace_option = click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    help="Length trace (JSONL). Default: the profile's; a shipped profile has none.",
)
lengths_option = click.option(
    "--lengths",
    "lengths_word",
    metavar="NAME|QUANTILES",
    help="Without a trace: lengths that ship (rlplan lengths list), as math-16k; or, as a last resort, "
    "p50=800,p95=4000,max=16384[,icc=0.5]. What they leave open is in the plan's error. With ,scale=0.8 after either, "
    "all lengths times a factor that was measured.",
)


def given_lengths(
    profile: Profile,
    profile_path: Path,
    trace_path: Path | None,
    word: str | None,
    job_path: Path,
    named: Callable[[Path], dict[str, str]],
) -> tuple[LengthsInput, LengthTrace]:
    """Lengths by `--trace` or `--lengths` (`word`), and a plan's entry for them.

    `named` returns the path and digest of a file.
    """
    from ...planner.lengths.table_lengths import named_lengths
    from ...plans.schema.sections.origin import LengthsInput
    from ...plans.yaml.errors import InputError

    if word is None:
        path, trace = _length_trace(profile, profile_path, trace_path, job_path)
        return LengthsInput.of_file(**named(path)), trace
    if trace_path is not None:
        raise InputError("--trace and --lengths both say how long responses are; give one of them")
    table, lengths = named_lengths(word)
    return lengths, table


def _length_trace(
    profile: Profile, profile_path: Path, trace_path: Path | None, job_path: Path
) -> tuple[Path, LengthTrace]:
    """The length trace of the command line, else of the profile, with its path."""
    from ...plans.yaml.errors import InputError
    from ...plans.yaml.yaml_io import sha256_file
    from ...profiles.length_tables import table_names
    from ...profiles.length_trace import read_lengths
    from .paths import need_trace

    if trace_path is not None:
        need_trace(trace_path, job_path)
        return trace_path, read_lengths(trace_path)
    if profile.lengths is None:
        raise InputError(
            "holds no length trace; give one with --trace FILE, or lengths that ship with --lengths NAME "
            f"({', '.join(table_names())}; see rlplan lengths list)",
            str(profile_path),
        )
    path = profile_path.with_name(profile.lengths.path)
    need_trace(path, job_path)
    if sha256_file(path) != profile.lengths.sha256:
        raise InputError("is not the length trace that the profile names (digest differs); profile again", str(path))
    return path, read_lengths(path, cap_tokens=profile.lengths.cap_tokens)
