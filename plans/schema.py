"""The JSON Schemas of the documents that people review, for editors. `python -m rlplan.plans.schema` writes them anew.

In an editor with the YAML language server: `# yaml-language-server: $schema=<path>/plan.schema.json` on the first line.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from .groups_plan import GroupsPlan
from .plan import Plan
from .workload import Workload
from .yaml_io import atomic_write

_FOLDER = Path(__file__).parent
SCHEMAS: dict[Path, type[BaseModel]] = {
    _FOLDER / "plan.schema.json": Plan,
    _FOLDER / "groups.schema.json": GroupsPlan,
    _FOLDER / "workload.schema.json": Workload,
}
"""Where the schema of each document is."""


def schema_of(model: type[BaseModel]) -> str:
    """JSON Schema (2020-12) of a document, generated from its model; the same bytes each time."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, model in SCHEMAS.items():
        atomic_write(path, schema_of(model))
        print(path)
