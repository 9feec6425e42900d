"""Mistakes of size: numbers of the wrong magnitude. Each was once accepted, ended in a traceback, or ran for ever."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from .mistake import DRY_RUN, REPORT, SHIPPED, SIMULATE, SOLVE, Mistake, Spoil, check

_PLAN_CHECK = check("plan.yaml")


def _set(name: str, key: str, value: str) -> Spoil:
    """Sets the first `key` of the document `name` to `value`."""

    def spoil(folder: Path) -> None:
        path = folder / name
        text, count = re.subn(rf"(?<=\b{key}: )(\[[^\]]*\]|[^,}}\n]+)", value, path.read_text(), count=1)
        assert count == 1, f"{name} has no {key}"
        path.write_text(text)

    return spoil


def _long_row(folder: Path) -> None:
    rows = (folder / "lengths.jsonl").read_text().splitlines()
    row = json.loads(rows[5]) | {"tokens": 99_999_999_999}
    (folder / "lengths.jsonl").write_text("\n".join([*rows[:5], json.dumps(row), *rows[6:]]) + "\n")


def _no_data(spoil: Spoil) -> Spoil:
    """The change `spoil`, and no data file, so that no command compares sizes with the data."""

    def both(folder: Path) -> None:
        spoil(folder)
        (folder / "data.jsonl").unlink()

    return both


SIZES: tuple[tuple[str, str, str, str], ...] = (
    ("a million prompts a step", "job.yaml", "prompts_per_step", "1000000"),
    ("ten million prompts a step", "job.yaml", "prompts_per_step", "10000000"),
    ("a million samples of a prompt", "job.yaml", "samples_per_prompt", "1000000"),
    ("a response of 10^12 tokens", "job.yaml", "max_response_tokens", "1000000000000"),
    ("100,000 reward workers", "job.yaml", "workers", "100000"),
    ("640 GB on an H100", "cluster.yaml", "memory_bytes", "640000000000"),
    ("80 MB on an H100", "cluster.yaml", "memory_bytes", "80000000"),
    ("a million nodes", "cluster.yaml", "nodes", "1000000"),
    ("kind: gpu", "cluster.yaml", "kind", "gpu"),
    ("kind: cpu of H100s", "cluster.yaml", "kind", "cpu"),
    ("10,000 micro-batches", "job.yaml", "micro_batch_tokens", str(list(range(4096, 14096)))),
    ("a deadline of a day", "job.yaml", "deadline_s", "86400"),
)
"""(text on the mistake, document, key, value that is written there)."""


def size_mistakes() -> Iterator[Mistake]:
    """Yield each mistake with every command that reads the document."""
    for fault, name, key, value in SIZES:
        infeasible = "80 MB" in fault  # a valid cluster on which nothing fits
        for command in (SOLVE, SHIPPED, check(name)):
            sure = command is SOLVE or (not infeasible and "workers" not in fault and "nodes" not in fault)
            yield Mistake(f"{fault}: {command[0]}", command, sure, _set(name, key, value))
        if name == "job.yaml":
            yield Mistake(f"{fault}: simulate", (*SIMULATE[:2], "--set", f"job.{_section(key)}.{key}={value}"), False)
            yield Mistake(f"{fault}, no data: simulate", SIMULATE, False, _no_data(_set(name, key, value)))
        yield Mistake(f"{fault}: check of the plan", _PLAN_CHECK, True, _set(name, key, value))
    yield Mistake("a response of 99,999,999,999 tokens", SOLVE, True, _long_row)
    yield Mistake("10^9 steps", (*SIMULATE, "--steps", "1000000000"), True)
    yield Mistake("100,000 steps", (*SIMULATE[:2], "--steps", "9999999"), True)
    yield Mistake("10^12 prompts of an epoch", (*SIMULATE, "--prompts", "1000000000000"), True)
    yield Mistake("an edited prediction", _PLAN_CHECK, True, _set("plan.yaml", "seconds_per_sample", "0.001"))
    yield Mistake("an edited decision", _PLAN_CHECK, True, _set("plan.yaml", "checksum_every", "11"))
    yield Mistake("an edited decision, executed", DRY_RUN, False, _set("sync.yaml", "checksum_every", "11"))
    yield Mistake("a run of an edited plan", REPORT, False, _set("run/plan.yaml", "checksum_every", "11"))


def _section(key: str) -> str:
    if key in ("workers", "deadline_s"):
        return "reward"
    return "search" if key == "micro_batch_tokens" else "rollout"
