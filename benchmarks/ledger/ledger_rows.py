"""Rows of the ledger: published steps with their settings, priced, and the factors that follow from the fitted ones."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rlplan.plans.facts.trainer_setup import TrainerSetup
from rlplan.plans.yaml.errors import InputError
from rlplan.planner.doctor.setup_seconds import NONE, Overheads, SetupSeconds, StepFacts, setup_seconds

FOLDER = Path(__file__).parent
KEYS = {"name", "source", "fitted", "setup", "facts", "measured", "outside"}


@dataclass(frozen=True)
class LedgerRow:
    """A published step.

    Attributes:
        fitted: its phases are among those that the factors follow from.
        measured: seconds of the step, and of phases or of sums of them ("old_logprobs+reference").
        outside: what the planner does not express, or the source does not say.
        setup, facts: None where the row cannot be priced; `outside` says why.
    """

    name: str
    source: str
    fitted: bool
    measured: Mapping[str, float]
    outside: str
    setup: TrainerSetup | None
    facts: StepFacts


def ledger_rows(folder: Path = FOLDER) -> list[LedgerRow]:
    """All rows, in the order of the files' names and of the files."""
    return [row for path in sorted(folder.glob("*.yaml")) for row in _read(path)]


def _read(path: Path) -> Iterable[LedgerRow]:
    page = yaml.safe_load(path.read_text())
    known, at_all = {f.name for f in fields(TrainerSetup)}, {f.name for f in fields(StepFacts)}
    for row in page["rows"]:
        setup = {**page.get("setup", {}), **row["setup"]} if "setup" in row else None
        facts = {**page.get("facts", {}), **row.get("facts", {})}
        odd = [*(row.keys() - KEYS), *((setup or {}).keys() - known), *(facts.keys() - at_all)]
        if odd or "name" not in row or "measured" not in row:
            raise InputError(f"{path.name}: {row.get('name', 'a row without a name')}: unknown or missing {odd}")
        if setup is not None:
            both = setup["nodes"] * setup["gpus_per_node"]
            setup = {"train_gpus": both, "rollout_gpus": both, **setup}
        yield LedgerRow(
            row["name"],
            "; ".join(part for part in (page.get("source", ""), row.get("source", "")) if part),
            row.get("fitted", False),
            {name: float(seconds) for name, seconds in row["measured"].items()},
            "; ".join(part for part in (row.get("outside", ""), page.get("outside", "")) if part),
            None if setup is None else TrainerSetup(**setup),
            StepFacts(**facts),
        )


@cache
def _laws(row: LedgerRow) -> SetupSeconds:
    assert row.setup is not None
    return setup_seconds(row.setup, row.facts, NONE)
