"""Samples that wait for a reward worker, and which of them travel together in the next call.

A call holds several samples, fewer where rewards are slow. A suspect, which may have cost a worker, gets a call of its
own, so that it cannot take others with it again; suspects come last, since each may cost a worker's restart, which
those behind it would wait for.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

from .charges import Sample

BATCH_SAMPLES = 32
"""Most samples in one Ray call. A call costs about 1 ms on the driver's loop, so 32 make it negligible."""
FIRST_BATCH_SAMPLES = 4
"""Most samples in a call before the first result, when the seconds of a sample are unknown."""
BATCH_TARGET_S = 0.25
"""Slow rewards travel in smaller batches, so that results are not held back much longer than this by their batch."""


class SampleQueue:
    """The samples of one pool that are not with a worker."""

    def __init__(self) -> None:
        self._shared: deque[Sample] = deque()
        self._suspects: deque[Sample] = deque()
        self._wake = asyncio.Event()
        self._idle_workers = 0
        self._recent_s = 0.0

    def __len__(self) -> int:
        return sum(not sample.future.done() for line in (self._shared, self._suspects) for sample in line)

    def put(self, sample: Sample, solo: bool = False) -> None:
        """Add a sample at the end; `solo`: it is a suspect."""
        (self._suspects if solo else self._shared).append(sample)
        self._wake.set()

    def put_back(self, batch: list[Sample]) -> None:
        """Put back a batch that no worker has seen. A single sample may be a suspect, and stays one."""
        if len(batch) == 1:
            self._suspects.appendleft(batch[0])
            self._wake.set()
        else:
            self.put_first(batch)

    def put_first(self, samples: list[Sample]) -> None:
        """Put samples that a call did not reach back to the front, in their order."""
        if samples:
            self._shared.extendleft(reversed(samples))
            self._wake.set()

    def learn(self, seconds: float) -> None:
        """Note the seconds that a sample took to score; they limit the size of batches."""
        self._recent_s += (seconds - self._recent_s) * (0.1 if self._recent_s > 0 else 1.0)

    def clear(self) -> None:
        """Forget all samples."""
        self._shared.clear()
        self._suspects.clear()

    async def next_batch(self) -> list[Sample]:
        """The samples of an idle worker's next call; waits until there are some."""
        self._idle_workers += 1
        try:
            while not (batch := self._take()):
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._idle_workers -= 1
        return batch

    def _take(self) -> list[Sample]:
        """A share of the queue that leaves something for other idle workers; or else one suspect."""
        share = math.ceil(len(self._shared) / self._idle_workers)
        by_time = int(BATCH_TARGET_S / self._recent_s) if self._recent_s > 0 else FIRST_BATCH_SAMPLES
        batch = _first(self._shared, max(1, min(share, by_time, BATCH_SAMPLES)))
        return batch or _first(self._suspects, 1)


def _first(line: deque[Sample], most: int) -> list[Sample]:
    """Take up to `most` samples off the front of a line; those that nobody waits for any more are dropped."""
    batch: list[Sample] = []
    while line and len(batch) < most:
        sample = line.popleft()
        if not sample.future.done():
            batch.append(sample)
    return batch
