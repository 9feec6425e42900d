"""Folders of runs that never ran: a plan, and a trace as the executor writes it."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SAMPLES = 8


def in_mode(plan: str, mode: str) -> str:
    """The plan of tests/plans/conftest.py in another mode; its digests are not looked at by a report."""
    document = yaml.safe_load(plan)
    rounds = document["job"]["rounds"]
    document["job"]["bias"]["mode"] = mode
    if mode != "exact":
        rounds["short"]["cutoff_tokens"] = None
        rounds["long"]["issue"]["copies"] = 1
    if mode == "sync":
        rounds["short"]["issue"]["prompts"] = 16
        rounds["long"] = document["predicted"]["rounds"]["long"] = None
    return yaml.safe_dump(document, sort_keys=False)


def step(number: int, t_s: float, kind: str, rows: list[dict], aborted: int, **changes) -> dict:
    """A step's event."""
    trained = [row for row in rows if row["fate"] == "trained"]
    times = {"sync_s": 0.1 + 0.01 * (number % 3), "rollout_s": max(row["finished_s"] for row in rows)}
    times |= {"reward_exposed_s": 0.02 * (number % 5), "train_s": 1.5 + 0.1 * (number % 4), "other_s": 0.01}
    fates = {"trained": len(trained), "deferred": len(rows) - len(trained) + aborted}
    return {
        "event": "step", "t_s": t_s, "step": number, "kind": kind, **times, "total_s": sum(times.values()),
        "trained_samples": len(trained), "trained_tokens": sum(row["tokens"] for row in trained),
        "max_tokens": max(row["tokens"] for row in rows), "median_tokens": 40.0 - number,
        "decoded_tokens": sum(row["tokens"] for row in rows), "deferred": 0, "prompts": {}, "samples": fates,
        "conservation_violations": [], "on_policy_violations": 0, "checksum_mismatches": 0, "exhausted": 0,
        "restarts": [], "timeouts": {}, "metrics": {"logprob_max_abs_diff": 1e-5}, **changes,
    }  # fmt: skip


def write_run(
    home: Path, plan: str, mode: str, *, steps: int, killed: bool = False, end: dict | None = None, full: bool = False
) -> Path:
    """A run of so many steps: with an `end`, or killed while it wrote a line. `full`: with all levers and faults."""
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
    if full:
        events = [*_with_all(events), {"event": "failed", "t_s": t_s, "step": steps, "prompt": "p1", "reason": "odd"}]
    text = "".join(json.dumps(event) + "\n" for event in events)
    if killed:
        text += '{"event":"sample","t_s":99.0,"st'
    else:
        text += json.dumps(end or {"event": "end", "t_s": t_s, "step": steps, "finished": steps == 40}) + "\n"
    (home / "trace.jsonl").write_text(text)
    os.utime(home / "trace.jsonl", (1.7e9, 1.7e9))
    return home


def _with_all(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events as if the run had used all levers: its reward has two parts,
    and of two engines one is missing once."""
    for event in events:
        number, t_s = event.get("step", 0), event["t_s"]
        if event["event"] == "sample":
            place = event["draw"] + event["sample"]
            late = place % 5 == 4
            parts = {"code": (1.0, "ok"), "judge": (0.25 * (place % 5), "policy_timeout" if late else "ok")}
            yield event | {
                "engine": f"engine {place % 2}", "moves": int(late), "reward_s": 0.05 * place,
                "reward_parts": {name: {"value": v, "s": 0.1, "outcome": o} for name, (v, o) in parts.items()},
            }  # fmt: skip
        elif event["event"] != "step":
            yield event
        else:
            odd = number % 2
            common = {"t_s": t_s, "step": number}
            tokens = {"by_source": {"own": 4 * number, "earlier<b>": odd}, "sequence_steps": 20 + number}
            batch = {"plain_s": 0.02, "drafted_s": 0.03, "emitted": 2.0, "verified": 9, "saved_s": 0.09 * number - 0.2}
            yield {"event": "checkpoint", **common, "stage_s": 0.25, "write_s": 2.0 + number, "bytes": 10**9 * number}
            yield {"event": "balanced", **common, "prompts": 8, "known": 4 + odd}
            yield {"event": "tail", **common, "engines": 1, "tp": 2, "at_s": 0.5, "seconds": 0.25, "moved": number}
            yield {
                "event": "streamed", **common, "begun_s": 0.5, "freed": ["engine 1"], "replicas": [0, 1], "groups": 1,
                "moved": 3, "portions": [[0.5, 0.75, 1], [0.75, 1.0, 1]],
            }  # fmt: skip
            yield {
                "event": "drafts", **common, **tokens, "kind": event["kind"], "epoch": 1 + number // 3, "steps": 9,
                "drafted_at": [9, 5, 1], "accepted_at": [8, 1, 0], "batches": {"3": batch, "12": batch},
                "ahead": [odd, 30], "index_bytes": 5000 - number, "history_bytes": 700 * number,
            }  # fmt: skip
            if number % 2 == 0:
                avg, chance = 0.25 + 0.05 * number, {"1": [0.5, 0.1], "4": [0.7 + 0.02 * number, None]}
                yield {
                    "event": "evaluation", **common, "prompts": 9, "samples": 4, "reward": [avg, 0.1],
                    "pass_at": chance, "mean_tokens": 50.0, "truncated": 0.1, "failed": odd, "seconds": 3.0,
                }  # fmt: skip
            shares = {"logprob_beyond_share": 0.01 * number, "logprob_max_abs_diff": 1e-5 * (7 - number)}
            yield event | {
                "engines": 2 - (number == 2), "engines_missing": int(number == 2), "deferred": 8,
                "timeouts": {"timeouts": number, "cut": odd, "executions": 30 * number},
                "reward_failures": {"code": odd}, "metrics": shares | {"skipped": number == 3},
                "on_policy_violations": int(number == 4), "conservation_violations": ["1 lost"] * (number == 1),
                "checksum_mismatches": 2 * (number == 2), "exhausted": number // 3,
            }  # fmt: skip
