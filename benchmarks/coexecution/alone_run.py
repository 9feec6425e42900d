"""What a job took alone, in work: seconds of each phase times the speed of the core that it ran on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rlplan.traces.run_log import TRACE, RunLog, read_run

from .core_speed import CoreSpeed

WARM = 2
"""Steps at the start that are not measured: engines and allocators warm up in them."""


class AloneRun(NamedTuple):
    """A job's run alone, which is complete.

    Attributes:
        log: its trace.
        work: of each step, that of the rollout on core 0 and of the training on core 1, in pieces (core_speed.py).
        besides: CPU seconds that the job took for each second of a phase, beside that second of the phase's core: its
            driver, rewards.
    """

    log: RunLog
    work: tuple[tuple[float, float], ...]
    besides: float

    def seconds(self, speeds: Sequence[float]) -> tuple[tuple[float, float], ...]:
        """Seconds of each step's rollout and training on cores of these speeds."""
        return tuple((rollout / speeds[0], train / speeds[1]) for rollout, train in self.work)


def read_alone(run: Path, cores: Sequence[CoreSpeed], background: float) -> AloneRun:
    """Read the run in a folder; `cores`: what cores 0 and 1 did meanwhile; `background`: CPU seconds in a second that
    the machine computes without a job."""
    trace = run / TRACE
    log = read_run(trace)
    assert log.last_t_s is not None
    began_s = trace.stat().st_mtime - log.last_t_s  # its last line was written last
    work, phases_s, computed_s = [], 0.0, 0.0
    for number, phases in enumerate(_phases(log)):
        begin_s, turn_s, end_s = (began_s + second for second in phases)
        work.append(
            ((turn_s - begin_s) * cores[0].speed(begin_s, turn_s), (end_s - turn_s) * cores[1].speed(turn_s, end_s))
        )
        if number >= WARM:
            phases_s += end_s - begin_s
            computed_s += sum(core.computed_s(begin_s, end_s) for core in cores)
    return AloneRun(log, tuple(work), max(0.0, computed_s / phases_s - background - 1.0))


def _phases(log: RunLog) -> Iterator[tuple[float, float, float]]:
    """Of each step: second of the trace in which it began, in which its rollout ended, and in which it ended."""
    for step in log.steps:
        begin_s = step.t_s - step.total_s
        yield begin_s, begin_s + step.rollout_s + step.reward_exposed_s, step.t_s
