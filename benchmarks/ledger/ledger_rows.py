"""Rows of the ledger: published steps with their settings, priced, and the factors that follow from the fitted ones."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import yaml

from rlplan.planner.doctor.setup_memory import engine_weight_bytes, known_model
from rlplan.planner.doctor.setup_seconds import (
    NONE,
    Overheads,
    SetupSeconds,
    StepFacts,
    setup_seconds,
    with_overheads,
)
from rlplan.plans.facts.trainer_setup import TrainerSetup
from rlplan.plans.yaml.errors import InputError

FOLDER = Path(__file__).parent
KEYS = {"name", "source", "fitted", "rounds", "first", "setup", "facts", "measured", "outside"}
SCORED = "old_logprobs+reference"


@dataclass(frozen=True)
class LedgerRow:
    """A published step.

    Attributes:
        page: name of its file.
        fitted: its phases are among those that the factors follow from.
        rounds: of generation and training in a step.
        first_s: what was predicted when the row was priced for the first time; None: it has no step, or no price.
        measured: seconds of the step, and of phases or of sums of them ("old_logprobs+reference").
        outside: what the planner does not express, or the source does not say.
        setup: None where the row cannot be priced; `outside` says why.
        laws: what the laws alone make of the set-up; None: it has none.
    """

    name: str
    page: str
    source: str
    fitted: bool
    rounds: int
    first_s: float | None
    measured: Mapping[str, float]
    outside: str
    setup: TrainerSetup | None
    laws: SetupSeconds | None


def ledger_rows(folder: Path = FOLDER) -> list[LedgerRow]:
    """All rows, in the order of the files' names and of the files. Raises InputError for one with unknown keys."""
    return [row for path in sorted(folder.glob("*.yaml")) for row in _read(path)]


def _read(path: Path) -> Iterator[LedgerRow]:
    page = yaml.safe_load(path.read_text(encoding="utf-8"))
    of_setup, of_facts = ({each.name for each in fields(kind)} for kind in (TrainerSetup, StepFacts))
    for row in page["rows"]:
        setup = {**page.get("setup", {}), **row["setup"]} if "setup" in row else None
        facts = {**page.get("facts", {}), **row.get("facts", {})}
        odd = sorted([*(row.keys() - KEYS), *((setup or {}).keys() - of_setup), *(facts.keys() - of_facts)])
        if odd or "name" not in row or not row.get("measured"):
            raise InputError(f"{path.name}: {row.get('name', 'a row')}: needs name and measured; unknown: {odd}")
        if setup is not None:
            all_gpus = setup["nodes"] * setup["gpus_per_node"]
            setup = {"train_gpus": all_gpus, "rollout_gpus": all_gpus, **setup}
        made = None if setup is None else TrainerSetup(**setup)
        yield LedgerRow(
            row["name"],
            path.stem,
            "; ".join(part for part in (page.get("source", ""), row.get("source", "")) if part),
            row.get("fitted", False),
            row.get("rounds", 1),
            row.get("first"),
            {name: float(seconds) for name, seconds in row["measured"].items()},
            "; ".join(part for part in (row.get("outside", ""), page.get("outside", "")) if part),
            made,
            None if made is None else setup_seconds(made, StepFacts(**facts), NONE),
        )


def predicted(row: LedgerRow, overheads: Overheads) -> SetupSeconds | None:
    """The row's seconds, None where it cannot be priced; its step has `rounds` of all phases but the sync."""
    if row.setup is None or row.laws is None:
        return None
    seconds = with_overheads(row.setup, row.laws, overheads)
    again = (row.rounds - 1) * (seconds.step_s - seconds.phases_s["sync"])
    return replace(seconds, step_s=seconds.step_s + again)


def sum_s(phases_s: Mapping[str, float], name: str) -> float:
    """Seconds of a phase, or of a sum of phases: "old_logprobs+reference"."""
    return sum(phases_s.get(part, 0.0) for part in name.split("+"))


def asked(rows: Sequence[LedgerRow]) -> dict[str, list[float]]:
    """What the phases of each fitted row ask for, by factor (`Overheads`)."""
    found: dict[str, list[float]] = defaultdict(list)
    priced = [(row, row.setup, seconds) for row in rows if row.fitted and (seconds := predicted(row, NONE))]
    for row, setup, seconds in priced:
        assert setup is not None
        found["decode"].append(row.measured["generation"] / seconds.phases_s["generation"])
        trainer = "megatron" if setup.backend == "megatron" else "sharded"
        found[trainer].append(row.measured["update"] / seconds.phases_s["update"])
        loaded_bytes = engine_weight_bytes(setup, known_model(setup))
        found["load_bytes_per_s"].append(loaded_bytes / (row.measured["sync"] - seconds.phases_s["sync"]))
    trainers = _mean(found)
    for row, setup, seconds in priced:
        assert setup is not None
        found["scoring"].append(row.measured[SCORED] / sum_s(seconds.phases_s, SCORED) / trainers.trainer(setup))
    return dict(found)


def _mean(found: Mapping[str, Sequence[float]]) -> Overheads:
    return replace(NONE, **{name: statistics.geometric_mean(values) for name, values in found.items()})


def fit(rows: Sequence[LedgerRow]) -> Overheads:
    """Factors from the phases of the fitted rows alone: of each the geometric mean of what they ask for."""
    return _mean(asked(rows))
