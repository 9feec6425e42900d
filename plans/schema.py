"""The JSON Schema of plan.yaml, for editors. `python -m rlplan.plans.schema` writes it anew after a change of plan.py.

In an editor with the YAML language server: `# yaml-language-server: $schema=<path>/plan.schema.json` on the first line.
"""

from __future__ import annotations

import json
from pathlib import Path

from .plan import Plan
from .yaml_io import atomic_write

SCHEMA_PATH = Path(__file__).with_name("plan.schema.json")


def plan_schema() -> str:
    """JSON Schema (2020-12) of plan.yaml, generated from `Plan`; the same bytes each time."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Plan.model_json_schema()}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    atomic_write(SCHEMA_PATH, plan_schema())
    print(SCHEMA_PATH)
