"""Who decoded, scored and trained when in a round of a run; what of scoring and training decoding has hidden."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..plans.schema.plan import Plan

Event = Mapping[str, Any]


def overlap(plan: Plan, steps: Sequence[Event], samples: Mapping[int, Sequence[Event]], events: Sequence[Event]) -> Any:
    """What was hidden behind decoding, as means over the steps, in seconds: by name `reward` and `train`, `exposed_s`
    (the step waited for it) and `alone_s` (it would have waited, had nothing run beside the rollout).

    Scores alone take the seconds of all samples shared out over the workers; updates alone take the update's seconds
    and, at the speed of all replicas, those of the portions that were trained before. `streamed`: rounds in which
    groups were trained before the end, their groups and samples that moved, as means over these rounds; None: none.
    `balanced`: rounds that were balanced by history, the share of their prompts of which something was known, and
    samples that moved, as means over these; None: none.
    `tails`: rounds whose tail other engines decoded, the seconds of the change and samples that moved, as means over
    these; None: none.
    """
    train = plan.job.rounds.short.train
    early = {event["step"]: event for event in events if event["event"] == "streamed" and event["groups"]}
    hidden = {
        number: sum(ended - began for began, ended, _ in event["portions"]) * len(event["replicas"]) / train.dp
        for number, event in early.items()
    }
    scored = [sum(row.get("reward_s") or 0.0 for row in samples.get(step["step"], ())) for step in steps]
    exposed_s = statistics.fmean(step["train_s"] for step in steps)
    return {
        "reward": {
            "exposed_s": statistics.fmean(step["reward_exposed_s"] for step in steps),
            "alone_s": statistics.fmean(scored) / _scored_at_once(plan),
        },
        "train": {
            "exposed_s": exposed_s,
            "alone_s": exposed_s + statistics.fmean(hidden.get(step["step"], 0.0) for step in steps),
        },
        "streamed": {
            "rounds": len(early),
            "groups": statistics.fmean(event["groups"] for event in early.values()),
            "moved": statistics.fmean(event["moved"] for event in early.values()),
        }
        if early
        else None,
        "balanced": _balanced(events),
        "tails": _tails(events),
    }


def _scored_at_once(plan: Plan) -> int:
    """How many samples are scored at once: by reward workers, else by a judge; 1 where only lengths are looked at."""
    reward = plan.job.reward
    judged = 0 if reward.judge is None else reward.judge.instances * reward.judge.at_once
    return reward.workers or judged or 1


def _balanced(events: Sequence[Event]) -> dict[str, Any] | None:
    """Figures of the rounds that were balanced by history; None without any."""
    # Of a step that was redone the last one counts.
    rounds = {event["step"]: event for event in events if event["event"] == "balanced"}.values()
    if not rounds:
        return None
    return {
        "rounds": len(rounds),
        "known": sum(event["known"] for event in rounds) / max(1, sum(event["prompts"] for event in rounds)),
    }


def _tails(events: Sequence[Event]) -> dict[str, Any] | None:
    """Figures of the rounds whose tail other engines have decoded; None without any."""
    changed = _changed(events).values()
    if not changed:
        return None
    return {
        "rounds": len(changed),
        "seconds": statistics.fmean(event["seconds"] for event in changed),
        "moved": statistics.fmean(event["moved"] for event in changed),
    }


def _changed(events: Sequence[Event]) -> dict[int, Event]:
    """By step, what is told of tails that other engines took over."""
    tails = {event["step"]: event for event in events if event["event"] == "tail"}  # a step that was redone: its last
    return {step: event for step, event in tails.items() if event["seconds"] is not None}


def round_timeline(
    steps: Sequence[Event], samples: Mapping[int, Sequence[Event]], events: Sequence[Event]
) -> dict[str, Any] | None:
    """The last round that trained groups before its end, or else the last one that has samples: its `step`, `kind`,
    `end_s` (of the step) and `rows`, each with a `name`, `what` (decode, score, stream, train) and `spans` (begin and
    end in seconds from the round's start) that do not overlap; None without samples.

    Decoding is that of samples that ended; one that was aborted is not in a trace. Traces of earlier versions do not
    say when samples decoded, and have no timeline.
    """
    early = {event["step"]: event for event in events if event["event"] == "streamed" and event["groups"]}
    timed = {number: [row for row in rows if _is_timed(row)] for number, rows in samples.items()}
    chosen = [step for step in steps if step["step"] in early and timed.get(step["step"])]
    chosen = chosen or [step for step in steps if timed.get(step["step"])]
    if not chosen:
        return None
    step = chosen[-1]
    rows, streamed = timed[step["step"]], early.get(step["step"])
    freed = set(streamed.get("freed", ())) if streamed else set()
    began_s = [float(streamed["begun_s"])] if streamed and streamed["begun_s"] is not None else []
    if (tail := _changed(events).get(step["step"])) is not None:
        began_s.append(tail["at_s"] + tail["seconds"])
    moved_s = max(began_s, default=0.0)  # when samples that moved went on
    decoding: dict[str, list[tuple[float, float]]] = {name: [] for name in sorted(freed)}
    for row in rows:
        moved = bool(row.get("moves"))
        began = moved_s if moved else row["issued_s"]
        decoding.setdefault(row["engine"], []).append((began, max(began, row["finished_s"])))
        if moved and len(freed) == 1:
            decoding[next(iter(freed))].append((row["issued_s"], moved_s))
    round_s = step["rollout_s"] + step["reward_exposed_s"] + max(step.get("other_s") or 0.0, 0.0)
    result = [_row(name, "decode", spans) for name, spans in sorted(decoding.items())]
    result.append(
        _row("scores", "score", ((r["finished_s"], r["finished_s"] + (r.get("reward_s") or 0.0)) for r in rows))
    )
    if streamed is not None:
        name = "trainer, before the round's end"
        result.append(_row(name, "stream", ((began, ended) for began, ended, _ in streamed["portions"])))
    result.append(_row("trainer", "train", [(round_s, round_s + step["train_s"])]))
    return {"step": step["step"], "kind": step["kind"], "end_s": round_s + step["train_s"], "rows": result}


def _is_timed(row: Event) -> bool:
    """Whether a sample says on which engine it decoded, and when."""
    numbers = (row.get("issued_s"), row.get("finished_s"), row.get("reward_s") or 0.0)
    return isinstance(row.get("engine"), str) and all(isinstance(value, int | float) for value in numbers)


def _row(name: str, what: str, spans: Iterable[tuple[float, float]]) -> dict[str, Any]:
    """A row of a timeline; spans that touch become one."""
    joined: list[list[float]] = []
    for began, ended in sorted(spans):
        if joined and began <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], ended)
        elif ended > began:
            joined.append([began, ended])
    return {"name": name, "what": what, "spans": joined}
