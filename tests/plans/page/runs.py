"""Folders of runs that never ran: a plan, and a trace as the executor writes it."""

from __future__ import annotations

import json
import random
from pathlib import Path

SAMPLES = 8


def in_mode(plan: str, mode: str) -> str:
    """The plan of tests/plans/conftest.py in another mode; its digests are not looked at by a report."""
    if mode == "exact":
        return plan
    head, rest = plan.split("\n    long:\n", 1)
    job, predicted = rest.split("\n  reward: {workers", 1)
    if mode == "sync":
        predicted = (
            predicted.split("\n    long:\n")[0]
            + "\n    long: null\n  length_ratio"
            + predicted.split("length_ratio", 1)[1]
        )
        head, job = (
            head.replace("issue: {prompts: 20, samples: 8}", "issue: {prompts: 16, samples: 8}") + "\n    long: null",
            "",
        )
    else:
        head, job = head, "\n    long:\n" + job.replace("copies: 3", "copies: 1")
    text = head + job + "\n  reward: {workers" + predicted
    return text.replace("cutoff_tokens: 288", "cutoff_tokens: null").replace(
        "mode: exact, budget", f"mode: {mode}, budget", 1
    )


def step(number: int, t_s: float, kind: str, rows: list[dict], aborted: int, **changes) -> dict:
    """A step's event."""
    rollout_s = max(row["finished_s"] for row in rows)
    trained = [row for row in rows if row["fate"] == "trained"]
    times = {"sync_s": 0.1, "rollout_s": rollout_s, "reward_exposed_s": 0.02, "train_s": 1.5, "other_s": 0.01}
    fates = {fate: sum(row["fate"] == fate for row in rows) for fate in ("trained", "deferred")}
    fates["deferred"] += aborted
    return {
        "event": "step", "t_s": t_s, "step": number, "kind": kind, **times, "total_s": sum(times.values()),
        "trained_samples": len(trained), "trained_tokens": sum(row["tokens"] for row in trained),
        "reward_mean": 0.3 + 0.02 * number,
        "max_tokens": max(row["tokens"] for row in rows), "median_tokens": 40.0,
        "decoded_tokens": sum(row["tokens"] for row in rows), "deferred": 0, "prompts": {}, "samples": fates,
        "conservation_violations": [], "on_policy_violations": 0, "checksum_mismatches": 0, "exhausted": 0,
        "restarts": [], "timeouts": {}, "metrics": {"logprob_max_abs_diff": 1e-5}, **changes,
    }  # fmt: skip


def write_run(home: Path, plan: str, mode: str, *, steps: int, killed: bool = False, end: dict | None = None) -> Path:
    """A run of so many steps: with an `end`, or killed while it wrote a line."""
    home.mkdir(parents=True)
    (home / "plan.yaml").write_text(in_mode(plan, mode))
    chance = random.Random(mode)
    events: list[dict] = [{"event": "run", "t_s": 1.0, "name": home.name, "mode": mode, "steps": 40}]
    t_s = 2.0
    for number in range(1, steps + 1):
        kind = "long" if mode != "sync" and number % 5 == 0 else "short"
        rows = []
        for prompt in range(4):
            late = kind == "short" and mode != "sync" and prompt == 3
            for sample in range(SAMPLES):
                tokens = int(min(1024, 2 + chance.expovariate(1 / 60) * (4 if kind == "long" else 1)))
                rows.append({
                    "event": "sample", "t_s": t_s, "step": number, "prompt": f"p{(number + prompt) % 9}", "epoch": 0,
                    "draw": prompt, "sample": sample, "tokens": tokens, "truncated": False, "prompt_tokens": 5,
                    "reward": 1.0, "fate": "deferred" if late else "trained",
                    "issued_s": 0.001, "finished_s": 0.01 + tokens / 90,
                })  # fmt: skip
        changes: dict = {"reward_mean": {"race": 0.2, "sync": 0.3}.get(mode, 0.4) + 0.02 * number}
        changes |= {"restarts": ["engine 1: </script><script>alert(2)</script>"]} if killed and number == 7 else {}
        events += [*rows, step(number, t_s, kind, rows, 3 if mode == "race" else 0, **changes)]
        t_s += events[-1]["total_s"]
    text = "".join(json.dumps(event) + "\n" for event in events)
    if killed:
        text += '{"event":"sample","t_s":99.0,"st'
    else:
        text += json.dumps(end or {"event": "end", "t_s": t_s, "step": steps, "finished": steps == 40}) + "\n"
    (home / "trace.jsonl").write_text(text)
    return home
