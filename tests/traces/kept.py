"""Kept responses with what a test does not care about filled in, and folders of runs that kept them."""

from pathlib import Path
from typing import Any

from rlplan.traces.kept_samples import KeptSample, samples_file, write_samples

from .events import sample, step, write


def kept(step_number: int = 1, sample_number: int = 0, **changes: Any) -> KeptSample:
    fixed: dict[str, Any] = {
        "step": step_number, "kind": "short", "kept": "drawn", "prompt": f"p{step_number}", "draw": 0,
        "sample": sample_number, "epoch": 0, "fate": "trained", "reward": 1.0, "advantage": 0.5, "tokens": 10,
        "prompt_tokens": 3, "truncated": False, "issued_s": 0.0, "finished_s": 2.0, "reward_s": 0.1, "version": "a:0",
        "prompt_text": "What is 1 + 1?", "response": "It is 2.",
    }  # fmt: skip
    return KeptSample(**{**fixed, **changes})


def write_kept(folder: Path, *rows: KeptSample) -> Path:
    """Write a run's folder with these responses, and a trace that has their steps; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    by_step: dict[int, list[KeptSample]] = {}
    for row in rows:
        by_step.setdefault(row.step, []).append(row)
    for number, of_step in by_step.items():
        write_samples(samples_file(folder, number), of_step)
    keys = ("step", "prompt", "epoch", "draw", "sample", "tokens", "prompt_tokens", "truncated", "fate", "reward")
    events = []
    for number, of_step in by_step.items():
        events += [sample(number, **{key: getattr(row, key) for key in keys}) for row in of_step]
        events.append(step(number, kind=of_step[0].kind))
    write(folder / "trace.jsonl", *events)
    return folder
