"""`rlplan fmt FILE...`"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from .main import EXIT_BAD_INPUT, EXIT_FAILED


@click.command("fmt")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file is not canonical.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def fmt_command(files: tuple[Path, ...], check: bool, as_json: bool) -> int:
    """Rewrite FILES (plans, jobs, clusters, profiles, workloads, policies) in canonical form.

    Keys come in one order and values in one spelling, so that a review shows changes of meaning only. Comments stay.
    A file that is no valid document is left alone (exit code 2), the others are still rewritten.
    """
    from ..plans.yaml.canonical_form import canonical
    from ..plans.yaml.editor_schemas import place_schema
    from ..plans.yaml.errors import InputError
    from ..plans.yaml.yaml_io import atomic_write, read_text
    from .shared.documents import kind_of, model_of

    changed: list[str] = []
    refused: list[str] = []
    inputs = False  # whether a file that plans are solved from was rewritten
    for path in files:
        try:
            kind, text = kind_of(path), read_text(path)
            result = canonical(text, model_of(kind), str(path))
        except InputError as error:
            for line in error.lines():
                click.echo(f"error: {line}", err=True)
            refused.append(str(path))
            continue
        if path.read_bytes() == result.encode():
            continue
        if not check and not os.access(path, os.W_OK):
            click.echo(f"error: {path}: is read-only; make it writable first", err=True)
            refused.append(str(path))
            continue
        if not check:
            try:
                atomic_write(path, result)
            except InputError as error:
                click.echo(f"error: {error}", err=True)
                refused.append(str(path))
                continue
            place_schema(path.parent, kind)
        changed.append(str(path))
        inputs |= kind not in ("plan", "policy")
    if as_json:
        click.echo(json.dumps({"changed": changed, "refused": refused, "written": not check, "files": len(files)}))
    else:
        for name in changed:
            click.echo(f"{name}: {'is not canonical; run rlplan fmt' if check else 'rewritten'}")
        if inputs and not check:
            click.echo(
                "plans may have been solved from a rewritten file; rlplan check PLAN says whether to solve again"
            )
    if refused:
        return EXIT_BAD_INPUT
    return EXIT_FAILED if check and changed else 0
