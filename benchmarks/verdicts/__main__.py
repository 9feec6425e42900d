"""The command; see the package."""

from __future__ import annotations

import json
import sys
import time

import click

from rlplan.plans.yaml.errors import RunFailed

from ..entry import as_json_option, run
from .tables import wrong_code_cases, wrong_math_cases, wrong_model_cases

TABLES = {"code": wrong_code_cases, "math": wrong_math_cases, "models": wrong_model_cases}


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(TABLES)), help="Judge these tables alone.")
@as_json_option
def main(only: tuple[str, ...], as_json: bool) -> None:
    """Judge the tables of cases."""
    found: dict[str, object] = {}
    lines: list[str] = []
    for table in only or TABLES:
        print(f"judging {table} ...", file=sys.stderr, flush=True)
        began = time.monotonic()
        cases, wrong = TABLES[table]()
        found[table] = {"cases": cases, "wrong": len(wrong)}
        lines += [f"{table}: {line}" for line in wrong]
        if not as_json:
            took_s = time.monotonic() - began
            print(f"{table:8}{cases:5} cases {len(wrong):5} wrong {took_s:7.1f} s", *wrong, sep="\n  ", flush=True)
    if as_json:
        print(json.dumps({**found, "lines": lines}))
    if lines:
        raise RunFailed(f"{len(lines)} cases are judged wrongly")


if __name__ == "__main__":
    run(main)
