"""A simulated run as Chrome trace events (the JSON that Perfetto and chrome://tracing open).

Thousands of samples do not fit on rows of their own, so engines show counters: sequences that run, KV tokens that they
hold. Processes are classes of resources: the schedule (spans of steps, tails, and instants of what is put off), engines
(a span of each engine's work and its counters; instants of preemptions and cutoffs), reward workers (a counter of
samples that wait for a score, spans of seconds spent on rewards alone), trainers, and weight transfer.

Format: "Trace Event Format" (Google, 2016): `X` complete events with `ts` and `dur` in microseconds, `C` counters, `i`
instants, `M` metadata.
"""

from __future__ import annotations

from typing import Any

from ...rounds.round_shape import tail_begins_s
from ..costs.decode_costs import DecodeCost
from .reference_round import Observe
from .whole_run import SimulatedStep, Watch

SCHEDULE, ENGINES, REWARDS, TRAINERS, SYNC = 1, 2, 3, 4, 5
_NAMES = {
    SCHEDULE: "schedule",
    ENGINES: "engines",
    REWARDS: "reward workers",
    TRAINERS: "trainers",
    SYNC: "weight transfer",
}


class Timeline(Watch):
    """Collects the events of the first `steps` steps; `document()` is the whole file."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._at_s = 0.0  # where the step under way begins
        self._events: list[dict[str, Any]] = []
        self._engines: set[int] = set()
        self._cost: DecodeCost | None = None
        self._seen: list[tuple[float, str, int, int, int]] = []

    def round_begins(self, number: int, kind: str, cost: DecodeCost) -> Observe | None:
        self._cost, self._seen = cost, []
        if number >= self._steps:
            return None
        return lambda t_s, event, a, b, c: self._seen.append((t_s, event, a, b, c))

    def step_done(self, number: int, step: SimulatedStep, deferred: list[tuple[int, str]]) -> None:
        if number >= self._steps:
            return
        begin = self._at_s
        start = begin
        for name, seconds in (("switch engines", step.switch_s), ("weight transfer", step.sync_s)):
            if seconds > 0:
                self._span(SYNC, 0, name, start, seconds)
                start += seconds
        rollout = start
        self._round(rollout, step, deferred)
        start += step.rollout_s
        if step.reward_exposed_s > 0:
            self._span(REWARDS, 0, "reward exposed", start, step.reward_exposed_s)
            start += step.reward_exposed_s
        self._span(
            TRAINERS, 0, "train", start, step.train_s, samples=step.samples, tokens=step.tokens, groups=step.groups
        )
        arguments = {"samples": step.samples, "decoded_tokens": step.decoded_tokens, "deferred": step.deferred}
        if step.ages:
            arguments |= {"queue": len(step.ages), "oldest_age": max(step.ages)}
        self._span(SCHEDULE, 0, f"{step.kind} step {number + 1}", begin, step.step_s, **arguments)
        self._span(SCHEDULE, 1, "rollout", rollout, step.rollout_s)
        self._at_s = begin + step.step_s

    def _round(self, origin: float, step: SimulatedStep, deferred: list[tuple[int, str]]) -> None:
        running: dict[int, int] = {}
        busy_since: dict[int, float] = {}
        waiting = 0
        levels: list[tuple[float, int]] = []
        put_off = dict(deferred)
        last_abort: dict[int, float] = {}
        for t_s, name, a, b, c in sorted(self._seen, key=lambda event: event[0]):
            now = origin + t_s
            if name == "engine":
                self._engines.add(a)
                if b and not running.get(a):
                    busy_since[a] = now
                if not b and running.get(a):
                    self._span(ENGINES, a, "decode", busy_since[a], now - busy_since[a])
                running[a] = b
                levels.append((t_s, sum(running.values())))
                self._counter(ENGINES, f"engine {a} running", now, sequences=b)
                self._counter(ENGINES, f"engine {a} KV", now, tokens=c)
            elif name == "preempted":
                self._instant(ENGINES, a, "preempted", now, draw=b, sample=c)
            elif name == "cutoff":
                self._instant(ENGINES, c, "cutoff", now, draw=a, sample=b)
            elif name == "submitted":
                waiting += 1
                self._counter(REWARDS, "waiting for a score", now, samples=waiting)
            elif name == "scored":
                waiting -= 1
                self._counter(REWARDS, "waiting for a score", now, samples=waiting)
            elif name == "aborted":
                last_abort[a] = now
        end = origin + step.rollout_s
        for engine, count in running.items():
            if count:  # aborted by the round's end, at the step boundary after it
                self._span(ENGINES, engine, "decode", busy_since[engine], max(0.0, end - busy_since[engine]))
            self._counter(ENGINES, f"engine {engine} running", end, sequences=0)
            self._counter(ENGINES, f"engine {engine} KV", end, tokens=0)
        self._counter(REWARDS, "waiting for a score", end + step.reward_exposed_s, samples=0)
        for draw, prompt in put_off.items():
            self._instant(SCHEDULE, 0, "deferred", last_abort.get(draw, end), prompt=prompt, draw=draw)
        tail = tail_begins_s(levels, step.rollout_s)
        if tail < step.rollout_s:
            self._span(SCHEDULE, 2, "tail", origin + tail, step.rollout_s - tail)

    # -- events --------------------------------------------------------------------------------------------------------

    def _span(self, pid: int, tid: int, name: str, at_s: float, seconds: float, **args: Any) -> None:
        self._add("X", pid, tid, name, at_s, args, dur=round(1e6 * seconds, 3))

    def _instant(self, pid: int, tid: int, name: str, at_s: float, **args: Any) -> None:
        self._add("i", pid, tid, name, at_s, args, s="t")

    def _counter(self, pid: int, name: str, at_s: float, **args: Any) -> None:
        self._add("C", pid, 0, name, at_s, args)

    def _add(self, ph: str, pid: int, tid: int, name: str, at_s: float, args: dict[str, Any], **more: Any) -> None:
        event = {"ph": ph, "pid": pid, "tid": tid, "name": name, "ts": round(1e6 * at_s, 3), **more}
        self._events.append({**event, "args": args} if args else event)

    def document(self) -> dict[str, Any]:
        """The trace, events in order of time."""
        threads = {(SCHEDULE, 0): "steps", (SCHEDULE, 1): "rollout", (SCHEDULE, 2): "tail", (REWARDS, 0): "exposed"}
        threads |= {(TRAINERS, 0): "update", (SYNC, 0): "weights"}
        threads |= {(ENGINES, engine): f"engine {engine}" for engine in sorted(self._engines)}
        named: list[dict[str, Any]] = []
        for pid, name in _NAMES.items():
            named.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}})
            named.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}})
        for (pid, tid), name in threads.items():
            named.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}})
        events = sorted(self._events, key=lambda event: (event["ts"], -event.get("dur", 0.0)))
        return {"traceEvents": named + events, "displayTimeUnit": "ms"}
