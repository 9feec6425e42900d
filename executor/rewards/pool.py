"""The driver's side of rewards: samples in as they finish decoding, one future for each, Ray workers behind.

What always holds:
- A sample whose `score` was called ends in exactly one way: its future gets one `RewardResult`, is cancelled, or raises
  `RewardPoolDown`. A worker's death or hang loses no sample, and a late answer of a worker given up on is never read.
- A sample waits for nothing without a deadline. A worker that is silent past it is killed and started anew, and the
  reason names it.
- A worker is asked for a sign of life before each call: one that died or was stopped while it was idle costs the
  samples meant for it nothing, and no suspicion.
- Samples that were with a worker that died or hung are tried again each in a call of its own, so that one bad sample
  cannot take the others with it twice; so are those that cost the process in which a worker scores.
- All state is touched on the event loop only; nothing blocks it.

`charges` decides whether the response or the machine is charged with a failure, and after how many failures.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from functools import partial
from typing import Any

from ...plans.yaml.errors import InputError, RunFailed
from ..placement.actor_placer import ActorPlacer
from ..processes.supervision import Supervisor
from .charges import FINAL, SOLO, RewardResult, ScoringSample, tries, verdict
from .functions import ScorerConfig
from .process import START_S, RewardPoolDown, RewardProcess, WorkerDied, WorkerHung
from .scoring import ScoringResult

# Samples that wait for a reward worker, and which of them travel together in the next call.
#
# A call holds several samples, fewer where rewards are slow. A suspect, which may have cost a worker, gets a call of
# its own, so that it cannot take others with it again; suspects come last, since each may cost a worker's restart,
# which those behind it would wait for.

BATCH_SAMPLES = 32
"""Most samples in one Ray call. A call costs about 1 ms on the driver's loop, so 32 make it negligible."""
FIRST_BATCH_SAMPLES = 4
"""Most samples in a call before the first result, when the seconds of a sample are unknown."""
BATCH_TARGET_S = 0.25
"""Slow rewards travel in smaller batches, so that results are not held back much longer than this by their batch."""


class SampleQueue:
    """The samples of one pool that are not with a worker."""

    def __init__(self) -> None:
        self._shared: deque[ScoringSample] = deque()
        self._suspects: deque[ScoringSample] = deque()
        self._wake = asyncio.Event()
        self._idle_workers = 0
        self._recent_s = 0.0

    def __len__(self) -> int:
        return sum(not sample.future.done() for line in (self._shared, self._suspects) for sample in line)

    def put(self, sample: ScoringSample, solo: bool = False) -> None:
        """Add a sample at the end; `solo`: it is a suspect."""
        (self._suspects if solo else self._shared).append(sample)
        self._wake.set()

    def put_back(self, batch: list[ScoringSample]) -> None:
        """Put back a batch that no worker has seen. A single sample may be a suspect, and stays one."""
        if len(batch) == 1:
            self._suspects.appendleft(batch[0])
            self._wake.set()
        else:
            self.put_first(batch)

    def put_first(self, samples: list[ScoringSample]) -> None:
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

    async def next_batch(self) -> list[ScoringSample]:
        """The samples of an idle worker's next call; waits until there are some."""
        self._idle_workers += 1
        try:
            while not (batch := self._take()):
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._idle_workers -= 1
        return batch

    def _take(self) -> list[ScoringSample]:
        """A share of the queue that leaves something for other idle workers; or else one suspect."""
        share = math.ceil(len(self._shared) / self._idle_workers)
        by_time = int(BATCH_TARGET_S / self._recent_s) if self._recent_s > 0 else FIRST_BATCH_SAMPLES
        batch = _first(self._shared, max(1, min(share, by_time, BATCH_SAMPLES)))
        return batch or _first(self._suspects, 1)


def _first(line: deque[ScoringSample], most: int) -> list[ScoringSample]:
    """Take up to `most` samples off the front of a line; those that nobody waits for any more are dropped."""
    batch: list[ScoringSample] = []
    while line and len(batch) < most:
        sample = line.popleft()
        if not sample.future.done():
            batch.append(sample)
    return batch


log = logging.getLogger(__name__)


class RewardPool:
    """Scores samples on Ray workers. All methods are to be called on one running event loop; Ray must be initialised.

    Args:
        config: how samples are scored; its deadline is the longest that a sample may have.
        workers: number of worker processes. Ray reserves no core for them; where they may run is the plan's matter.
        retries: how often a call is repeated that failed by the function's fault or the machine's.
        name: prefix of the workers' names, `reward-0` and so on.
        slack_s: seconds granted to Ray and to a busy machine beyond what a worker may take, before it counts as hung.
        start_s: seconds that a worker may take to start at most, the import of the function's module included.
        supervisor: the run's, which starts and replaces workers; one of the pool's own if there is none.
        placer: the node of each worker.
        first_worker: number of the first worker among those of all pools of the run.
    """

    def __init__(
        self,
        config: ScorerConfig,
        workers: int,
        *,
        retries: int = 2,
        name: str = "reward",
        slack_s: float = 10.0,
        start_s: float = START_S,
        supervisor: Supervisor | None = None,
        placer: ActorPlacer | None = None,
        first_worker: int = 0,
    ) -> None:
        assert workers >= 1
        self._retries = retries
        self._deadline_s = config.deadline_s
        self._alarm_s = config.deadline_s  # the worker's own figure replaces it at start
        self._slack_s = slack_s
        supervisor = supervisor or Supervisor()
        process = partial(RewardProcess, config=config, supervisor=supervisor, start_s=start_s, placer=placer)
        self._workers = [process(f"{name}-{i}", number=first_worker + i) for i in range(workers)]
        self._ended: list[RewardProcess] = []
        self._samples: dict[str, ScoringSample] = {}
        self._queue = SampleQueue()
        self._tasks: list[asyncio.Task[None]] = []
        self._down: RewardPoolDown | None = None
        self._open = False
        self._counts: Counter[str] = Counter()
        self._witness: ScoringSample | None = None

    async def start(self) -> None:
        """Start all workers.

        Raises `InputError` if the reward function is not usable, `RunFailed` if a worker does not start, tried again.
        """
        assert not self._open and not self._tasks, "start() twice"
        facts = await asyncio.gather(*(worker.start() for worker in self._workers), return_exceptions=True)
        for fact in facts:
            if isinstance(fact, BaseException):
                await self.close()
                raise fact
            self._alarm_s = fact.alarm_s
        self._open = True
        self._tasks = [asyncio.create_task(self._serve(w), name=f"{w.name} serve") for w in self._workers]
        for task in self._tasks:
            task.add_done_callback(self._serve_ended)

    def score(
        self, sample_key: str, prompt: str, response: str, answer: Any, deadline_s: float | None = None
    ) -> asyncio.Future[RewardResult]:
        """Queue one sample; the future resolves to its result. Never blocks.

        `deadline_s`: seconds of wall time for this sample, at most the pool's own, which is the default.
        The future raises `RewardPoolDown` if no worker can be started any more; `cancel` and `close` cancel it.
        """
        assert self._open, "score() on a pool that is not started, or closed"
        assert sample_key not in self._samples, f"sample {sample_key} is being scored already"
        deadline_s = self._deadline_s if deadline_s is None else deadline_s
        # A longer one would make a slow worker look like a hung one.
        assert 0 < deadline_s <= self._deadline_s, f"a deadline of {deadline_s:g} s in a pool of {self._deadline_s:g} s"
        future: asyncio.Future[RewardResult] = asyncio.get_running_loop().create_future()
        if self._down is not None:
            future.set_exception(self._down)
            return future
        sample = ScoringSample(sample_key, prompt, response, answer, deadline_s, future)
        self._samples[sample_key] = sample
        # A caller may cancel the future itself, for example by a wait_for around it.
        future.add_done_callback(lambda done: self._forget(sample) if done.cancelled() else None)
        self._queue.put(sample)
        return future

    def cancel(self, sample_key: str) -> bool:
        """Drop a sample: queued work is not started, a running call's result is not read, the future is cancelled.

        True if it was still being scored; an unknown or finished key is no error, since the two may cross.
        """
        sample = self._samples.get(sample_key)
        if sample is None:
            return False
        sample.future.cancel()
        self._forget(sample)
        return True

    def stats(self) -> Counter[str]:
        """Counts since `start`: samples by outcome, and those that were `retried` or `cancelled`; `restarted` workers,
        `renewed` processes within workers; and now: samples in the `queue`, `unfinished` ones."""
        return self._counts + Counter(queue=len(self._queue), unfinished=len(self._samples))

    def facts(self) -> dict[str, Any]:
        """The `WorkerFacts` of each worker that is up, by its name."""
        return {worker.name: worker.facts for worker in self._workers if worker.facts is not None}

    async def close(self) -> None:
        """Cancel what is unfinished and kill the workers; leaves no task, future or actor. May be called twice."""
        self._open = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for sample in list(self._samples.values()):
            self.cancel(sample.key)
        self._queue.clear()
        await asyncio.gather(*(worker.close() for worker in self._workers + self._ended))

    async def _serve(self, worker: RewardProcess) -> None:
        while True:
            batch = await self._queue.next_batch()
            why = await self._silent(worker)
            if why is not None:
                self._queue.put_back(batch)
            else:
                why = await self._run(worker, batch)
            if why is None:
                continue
            log.warning("%s; starting it anew", why)
            self._counts["restarted"] += 1
            try:
                await worker.restart(why)
            except (RunFailed, InputError) as error:
                log.error("%s", error)
                self._workers.remove(worker)
                self._ended.append(worker)
                if not self._workers:
                    self._give_up(RewardPoolDown(str(error)))
                return

    def _serve_ended(self, task: asyncio.Task[None]) -> None:
        """A serving task that ended by an error of this program must not leave its samples waiting for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended unexpectedly", task.get_name(), exc_info=error)
            self._give_up(RewardPoolDown(f"{task.get_name()} ended unexpectedly: {error!r}"))

    async def _silent(self, worker: RewardProcess) -> str | None:
        """Why an idle worker must be replaced before it is handed anything; None if it lives."""
        try:
            await worker.ping(self._slack_s)
        except (WorkerDied, WorkerHung) as error:
            return f"{error}, while it was idle"
        return None

    async def _run(self, worker: RewardProcess, batch: list[ScoringSample]) -> str | None:
        """Have the worker score a batch, and settle the results; why the worker must be replaced, None if not."""
        for sample in batch:
            sample.attempts += 1
        # The worker starts no sample later than one alarm into the call, so that this does not grow with the batch.
        limit_s = self._alarm_s * min(len(batch), 2) + self._slack_s
        rows = [(sample.prompt, sample.response, sample.answer, sample.deadline_s) for sample in batch]
        try:
            results = await worker.score(rows, budget_s=self._alarm_s, limit_s=limit_s)
        except WorkerDied as error:
            self._died(worker, batch, str(error))
            return str(error)
        except WorkerHung as error:
            self._hung(worker, batch, error)
            return str(error)
        for sample, scored in zip(batch, results, strict=False):
            self._settle(worker, sample, scored)
        # Not reached within the call's budget: back to the front, and no attempt of theirs.
        for sample in batch[len(results) :]:
            sample.attempts -= 1
        self._queue.put_first(batch[len(results) :])
        if not results[-1].renew:
            return None
        self._counts["renewed"] += 1
        try:
            await worker.renew()
        except (WorkerDied, WorkerHung) as error:
            return str(error)
        return None

    # ---- results of a call ----

    def _settle(self, worker: RewardProcess, sample: ScoringSample, scored: ScoringResult) -> None:
        self._queue.learn(scored.seconds)
        if scored.outcome in FINAL:
            self._finish(worker, sample, scored)
        else:
            self._failed(worker, sample, scored, solo=scored.outcome in SOLO)

    def _failed(self, worker: RewardProcess, sample: ScoringSample, scored: ScoringResult, solo: bool) -> None:
        """Score a failed sample again until its failures count; then score a witness before the sample is charged."""
        sample.failures[scored.outcome] += 1
        if sample.failures[scored.outcome] < tries(scored.outcome, self._retries):
            self._again(sample, solo)
        elif sample.accused is not None or self._witness is None or scored.outcome == "infra_failed":
            self._finish(worker, sample, scored)
        else:
            self._queue.put(self._witness.as_witness(sample, scored), solo=True)

    def _again(self, sample: ScoringSample, solo: bool) -> None:
        if not sample.future.done():
            self._counts["retried"] += 1
            self._queue.put(sample, solo)

    def _died(self, worker: RewardProcess, batch: list[ScoringSample], reason: str) -> None:
        for sample in batch:
            # In company a sample is a suspect, not yet guilty: that call is not charged to it.
            if len(batch) == 1:
                self._failed(worker, sample, ScoringResult("policy_crash", 0.0, 0.0, reason), solo=True)
            else:
                self._again(sample, solo=True)

    def _hung(self, worker: RewardProcess, batch: list[ScoringSample], error: WorkerHung) -> None:
        for sample in batch:
            sample.hangs += 1
            if len(batch) == 1 and sample.hangs >= 2:
                self._finish(worker, sample, ScoringResult("policy_timeout", 0.0, error.silent_s, str(error)))
            else:
                self._again(sample, solo=True)

    def _finish(self, worker: RewardProcess, sample: ScoringSample, scored: ScoringResult) -> None:
        if sample.accused is not None:
            accused, charge = sample.accused
            sample, scored = accused, verdict(charge, scored)
        elif scored.outcome == "ok":
            self._witness = sample
        self._forget(sample, finished=True)
        if sample.future.done():
            return
        self._counts[scored.outcome] += 1
        sample.future.set_result(
            RewardResult(scored.reward, scored.seconds, scored.outcome, scored.detail, sample.attempts, worker.name)
        )

    def _forget(self, sample: ScoringSample, finished: bool = False) -> None:
        # By identity: the key may be in use again by the time a callback runs.
        if self._samples.get(sample.key) is sample:
            del self._samples[sample.key]
            self._counts["cancelled"] += not finished

    def _give_up(self, error: RewardPoolDown) -> None:
        self._down = error
        for sample in list(self._samples.values()):
            self._forget(sample, finished=True)
            if not sample.future.done():
                sample.future.set_exception(error)
