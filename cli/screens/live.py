"""The live view of `execute` and `watch`: for each run its step, the time that it has left, seconds by phase and
reward, measured beside predicted.

On a terminal the view is redrawn in place; elsewhere, and for a co-execution group, each step is one line, so that logs
stay readable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...plans.phrases.numbers import count, duration
from ...plans.phrases.tables import right
from ...plans.schema.groups_plan import GroupMember
from ...plans.schema.plan import Plan
from ...traces.time_left import time_left_s
from .bars import table

# Drawing takes CPU time from the engines, and nobody reads faster than this.
REFRESH_PER_S = 2

BAR_WIDTH = 32


@dataclass
class _Row:
    plan: Plan
    steps: int
    drains: bool = True
    records: list[Any] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)  # the start, and the end of each step since then
    state: str = ""

    def left_s(self, now_s: float) -> float:
        """Seconds until the run has its steps."""
        left_s = time_left_s(self.plan, self.records, self.steps, self.ended_s, self.drains)
        return max(0.0, left_s - (now_s - self.ended_s[-1] if self.ended_s else 0.0))

    @property
    def of_steps(self) -> int:
        """Steps that the run was asked for, or more where it trains what it deferred."""
        return max(self.records[-1].step if self.records else 0, self.steps)


class LiveView:
    """Implements `executor.turns.Watcher`; use as a context manager.

    `drains`: whether runs train what they have deferred after their `steps`; `now_s`: a clock in seconds.
    """

    def __init__(
        self,
        plans: dict[str, Plan],
        steps: int,
        *,
        quiet: bool = False,
        console: Console | None = None,
        drains: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ):
        self._rows = {name: _Row(plan, steps, drains) for name, plan in plans.items()}
        self._quiet = quiet
        self._now_s = now_s
        self._console = console or Console(stderr=quiet)
        self._phase = ""
        self._round: tuple[str, str, int, Callable[[], Any], float] | None = None
        self._live = (
            Live(console=self._console, refresh_per_second=REFRESH_PER_S, get_renderable=self._render)
            if self._console.is_terminal and not quiet
            else None
        )

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._round = None
        if self._live is not None:
            self._live.stop()

    # -- Watcher -------------------------------------------------------------------------------------------------------

    def phase(self, text: str) -> None:
        """A slow phase begins, such as starting the engines."""
        self._phase, self._round = text, None
        self._line(text)

    def round_begins(self, name: str, kind: str, step: int, progress: Callable[[], Any]) -> None:
        """A round begins."""
        self._phase = ""
        row = self._rows[name]
        row.ended_s = row.ended_s or [self._now_s()]
        self._round = (name, kind, step, progress, time.perf_counter())

    def run_is(
        self,
        name: str,
        plan: Plan,
        steps: int,
        drains: bool,
        records: Sequence[Any],
        ended_s: Sequence[float],
        state: str,
    ) -> None:
        """What another process's run has done so far, as its trace tells: all its steps, when it was last started and
        each step since then ended by this view's clock, and its state, shown in place of the time that is left if it is
        not empty."""
        self._rows[name] = _Row(plan, steps, drains, list(records), list(ended_s), state)

    def step_done(self, name: str, record: Any) -> None:
        """A step ended."""
        row = self._rows[name]
        row.records.append(record)
        if row.ended_s:
            row.ended_s.append(self._now_s())
        self.step_line(name, record)

    def step_line(self, name: str, record: Any) -> None:
        """Tell of a step, the last one of its run, where there is no terminal."""
        row = self._rows[name]
        predicted, left_s = self._predicted(row.plan, record.kind), row.left_s(self._now_s())
        self._line(
            f"{name} {record.step}/{row.of_steps} {record.kind:5} {record.total_s:6.2f} s (predicted {predicted:.2f})  "
            f"rollout {record.rollout_s:.2f}  train {record.train_s:.2f}  sync {record.sync_s:.2f}  "
            f"reward {record.reward_mean:.3f}  longest {record.max_tokens}  deferred {record.deferred}"
            + (f"  queue of {len(record.ages)}, oldest {max(record.ages)} long rounds" if record.ages else "")
            + (f"  waited up to {max(record.waits)}" if record.waits else "")
            + (f"  about {duration(left_s)} left" if left_s else "")
        )
        for outcome, number in (record.reward_failures or {}).items():
            self.note(f"{name} step {record.step}: {outcome} of {count(number, 'sample')}; the report says why")

    def note(self, text: str) -> None:
        """Print a line."""
        self._line(text)
        if self._live is not None:
            self._console.print(text)

    def plan_changed(self, name: str, plan: Plan) -> None:
        """A run goes on by another plan: means from now on are of its steps, and of the last one before."""
        row = self._rows[name]
        self._rows[name] = _Row(plan, row.steps, row.drains, row.records[-1:])

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        if self._live is None and not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

    @staticmethod
    def _predicted(plan: Plan, kind: str) -> float:
        rounds = plan.predicted.rounds
        chosen = rounds.long if kind == "long" and rounds.long is not None else rounds.short
        return chosen.step_s.mean

    def _render(self) -> Group:
        figures = ["s/step", "predicted", "rollout", "reward wait", "train", "sync"]
        figures += ["reward", "longest", "deferred"]
        drawn = table(["run", "mode", *right(figures)], overflow="ellipsis")
        for name, row in self._rows.items():
            drawn.add_row(name, row.plan.job.bias.mode, *self._cells(row))
        bars = Table.grid(padding=(0, 2, 0, 0))
        for name, row in self._rows.items():
            done = row.records[-1].step if row.records else 0
            left = row.state or f"about {duration(row.left_s(self._now_s()))} left"
            bars.add_row(name, ProgressBar(row.of_steps, done, width=BAR_WIDTH), f"step {done} of {row.of_steps}", left)
        return Group(drawn, bars, self._tail())

    def _cells(self, row: _Row) -> list[str]:
        records = row.records
        if not records:
            return ["-", f"{row.plan.predicted.step_s.mean:.2f}", *["-"] * 7]
        last = records[-1]

        def mean(attribute: str) -> str:
            return f"{sum(getattr(r, attribute) for r in records) / len(records):.2f}"

        return [
            mean("total_s"),
            f"{row.plan.predicted.step_s.mean:.2f}",
            mean("rollout_s"),
            mean("reward_exposed_s"),
            mean("train_s"),
            mean("sync_s"),
            f"{last.reward_mean:.3f}",
            str(last.max_tokens),
            str(last.deferred),
        ]

    def _tail(self) -> Text:
        if self._round is None:
            return Text(self._phase, style="dim")
        name, kind, step, progress, began = self._round
        now = progress()
        expected = self._predicted(self._rows[name].plan, kind)
        return Text(
            f"{name} step {step}, {kind} round: {time.perf_counter() - began:4.1f} of {expected:.1f} s; "
            f"{now.decoding} decoding, {now.finished} finished, {now.scored} scored, {now.aborted} aborted",
            style="dim",
        )


class GroupView:
    """Implements `executor.groups.job_process.GroupWatcher`.

    A job's slowdown is the mean seconds between ends of its steps over those that the plan has for it alone.
    """

    def __init__(self, steps: int, *, quiet: bool = False) -> None:
        self._jobs: dict[str, GroupMember] = {}
        self._steps = steps
        self._console = Console(stderr=quiet)
        self._first_end: dict[str, tuple[float, int]] = {}

    def phase(self, text: str) -> None:
        """Something slow begins."""
        self.note(text)

    def jobs(self, planned: Mapping[str, GroupMember]) -> None:
        """Jobs that run from now on, as their plan has them; a slowdown is measured anew in another place."""
        for name, member in planned.items():
            if self._jobs.get(name) != member:
                self._first_end.pop(name, None)
            self._jobs[name] = member

    def reported(self, job: str, what: dict[str, Any]) -> None:
        """What a job's process told."""
        match what["tell"]:
            case "step":
                self._step(job, what)
            case "phase" | "note" | "failed":
                self.note(f"{job}: {what['text']}")

    def _step(self, job: str, what: dict[str, Any]) -> None:
        now, step = time.monotonic(), int(what["step"])
        first_s, first = self._first_end.setdefault(job, (now, step))
        planned = self._jobs[job].slowdown
        text, steps = "", max(step, self._steps)  # what a run owes is trained after its steps
        if step > first:
            slowdown = (now - first_s) / (step - first) / planned.alone_s
            text = f"  {slowdown:.2f}x alone (at most {planned.slo:.2f})"
        self.note(
            f"{job} {step}/{steps} {what['kind']:5} {what['total_s']:6.2f} s  rollout {what['rollout_s']:.2f}  "
            f"train {what['train_s']:.2f}  reward {what['reward_mean']:.3f}{text}"
        )

    def note(self, text: str) -> None:
        """A line for the person who watches."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
