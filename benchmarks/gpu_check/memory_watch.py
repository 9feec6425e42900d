"""Watches the free memory of the GPUs while a command runs, and finds what each turn on the devices changed of it."""

from __future__ import annotations

import bisect
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

PERIOD_S = 0.05


class Sample(NamedTuple):
    """Free bytes of all GPUs at a time, and how long each trace was then."""

    time_s: float
    free_bytes: int
    trace_bytes: dict[str, int]


def cuda_free_bytes() -> int:
    """Free bytes of all GPUs together, whoever holds the others (`torch.cuda.mem_get_info`)."""
    import torch

    return sum(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))


class MemoryWatch:
    """Within its block, samples `free_bytes` (None: nothing is sampled) and the lengths of the traces under `out`."""

    def __init__(self, out: Path, free_bytes: Callable[[], int] | None) -> None:
        self.samples: list[Sample] = []
        self._out, self._free_bytes = out, free_bytes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        if self._free_bytes is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        assert self._free_bytes is not None
        while not self._over.is_set():
            lengths = {path.parent.name: path.stat().st_size for path in self._out.glob("**/trace.jsonl")}
            self.samples.append(Sample(time.monotonic(), self._free_bytes(), lengths))
            self._over.wait(PERIOD_S)


def changes(samples: Sequence[Sample], run: str, turns: Iterable[tuple[int, float]]) -> list[int | None]:
    """Bytes by which free memory grew in each turn of a run: (bytes of the trace up to the turn's end, its seconds).

    A turn's line is in the trace when the turn is over, so the first sample that sees the line comes after it, and the
    last one that is older than the turn's seconds before it. None where there are no such samples.
    """
    times = [sample.time_s for sample in samples]
    lengths = [sample.trace_bytes.get(run, 0) for sample in samples]
    found: list[int | None] = []
    for trace_bytes, seconds in turns:
        after = bisect.bisect_left(lengths, trace_bytes)
        before = bisect.bisect_right(times, times[after] - seconds - 2 * PERIOD_S) - 1 if after < len(times) else -1
        found.append(None if before < 0 else samples[after].free_bytes - samples[before].free_bytes)
    return found


def turn_figures(
    events: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]], samples: Sequence[Sample]
) -> dict[str, dict[str, Any]]:
    """Of each kind of turn: how often, the median of its seconds, and of planned and measured bytes.

    `events`: by run, its trace's events, each with the bytes of the trace up to its end.
    """
    kinds: defaultdict[str, list[tuple[float, float, int | None]]] = defaultdict(list)
    for run, lines in events.items():
        turns = [(end, event) for end, event in lines if event.get("event") == "turn"]
        grown = changes(samples, run, [(end, float(event["seconds"])) for end, event in turns])
        for (_, event), change in zip(turns, grown, strict=True):
            kinds[event["turn"]].append((float(event["seconds"]), float(event["device_bytes"]), change))
    return {kind: _figures(taken) for kind, taken in sorted(kinds.items())}


def _figures(taken: Sequence[tuple[float, float, int | None]]) -> dict[str, Any]:
    seen = [change for _, _, change in taken if change is not None]
    return {
        "times": len(taken),
        "seconds": statistics.median(seconds for seconds, _, _ in taken),
        "planned_bytes": statistics.median(planned for _, planned, _ in taken),
        "freed_bytes": statistics.median(seen) if seen else None,
    }
