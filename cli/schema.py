"""`rlplan schema NAME`, and the kinds of document: their names, marks and models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..plans.yaml.errors import InputError
from .shared.options import force_option

if TYPE_CHECKING:
    from pydantic import BaseModel

KINDS = ("cluster", "job", "profile", "plan", "workload", "groups", "policy")
"""Names of the kinds of document."""


def mark_of(kind: str) -> str:
    """The key at the top of a document that states its kind."""
    return "rlplan" if kind == "plan" else f"rlplan_{kind}"


def model_of(kind: str) -> type[BaseModel]:
    """The model of a kind of document."""
    from ..profiles.document_models import ALL_MODELS

    return ALL_MODELS[mark_of(kind)]


LINES = ("lengths",)
"""Names of files that hold one JSON object per line; their schema is that of a line."""


@click.command("schema")
@click.argument("name", type=click.Choice([*KINDS, *LINES]), required=False)
@click.option("--out", type=click.Path(path_type=Path), help="Write all of them into this folder instead.")
@force_option
def schema_command(name: str | None, out: Path | None, overwrite: bool) -> int:
    """Print the JSON Schema of the document NAME, or write those of all documents into a folder.

    lengths: of one line of a length trace (docs/lengths.md).

    The first line of every document that rlplan writes names its schema for editors with the YAML language server; it
    lies in .rlplan beside the document.
    """
    from ..plans.yaml.output_files import must_take_file
    from ..plans.yaml.yaml_io import atomic_write, schema_of

    if (name is None) == (out is None):
        raise InputError(f"give one of {', '.join([*KINDS, *LINES])}, or --out FOLDER for all")
    if name in LINES:
        from ..profiles.length_trace import LengthLine

        click.echo(schema_of(LengthLine), nl=False)
        return 0
    if name is not None:
        click.echo(schema_of(model_of(name)), nl=False)
        return 0
    assert out is not None
    if not os.path.isdir(out):  # noqa: PTH112 (pathlib raises for what can be no path)
        raise InputError("is a file; name a folder" if os.path.isfile(out) else "no such folder", str(out))  # noqa: PTH113
    for kind in KINDS:
        must_take_file(out / f"{kind}.schema.json", "schema", overwrite)
    for kind in KINDS:
        atomic_write(out / f"{kind}.schema.json", schema_of(model_of(kind)))
        click.echo(out / f"{kind}.schema.json")
    return 0
