"""JSON Schemas for editors: generated from the models, shipped in schemas/, copied beside the documents that we write.

The first line of a document names `.rlplan/NAME.schema.json`, relative to the document, so that it is the same on every
machine. Git ignores the folder `.rlplan`; each command that writes a document writes the schema again.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from pydantic import BaseModel

from .errors import InputError
from .yaml_io import SCHEMA_FOLDER, atomic_write, document_name, dump, read_text

SHIPPED = Path(__file__).parents[1] / "schemas"
"""The schemas as they ship: `NAME.schema.json`."""


def schema_of(model: type[BaseModel]) -> str:
    """JSON Schema (2020-12) of a document, generated from its model; the same bytes each time."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_document(model: BaseModel, path: str | Path, digits: int | None = None) -> None:
    """`dump` a whole document to `path`, and write its schema beside it."""
    dump(model, path, digits)
    name = document_name(type(model))
    assert name is not None, "a part of a document has no file"
    if Path(path).is_file():  # no schema for standard output, a device or a pipe
        place_schema(Path(path).parent, name)


def place_schema(folder: Path, name: str) -> None:
    """Write the schema of a kind of document into `folder`/.rlplan. A failure gives only a warning: only editors need
    the schema."""
    text = read_text(SHIPPED / f"{name}.schema.json")
    target = folder / SCHEMA_FOLDER / f"{name}.schema.json"
    try:
        if target.is_file() and target.read_text(encoding="utf-8") == text:
            return
        target.parent.mkdir(exist_ok=True)
        atomic_write(target.parent / ".gitignore", "*\n")
        atomic_write(target, text)
    except (OSError, InputError) as error:
        why = error.message if isinstance(error, InputError) else error.strerror
        warnings.warn(f"{target}: the schema for editors cannot be written ({why})", stacklevel=2)
