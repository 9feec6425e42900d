"""A simulated run as numbers: phases, idle accelerators, tokens, bias and cost, over all steps and by kind of round.

Accelerators and USD are of the nodes that the plan takes of its pool, as in its predictions.

An accelerator of these nodes is *busy* while its engine has a running sequence or while it trains, else idle: waiting
for the round's longest samples, for rewards, for weights, for engines that start. The bubble is the idle share of their
accelerator-seconds. On CPUs the trainer takes all cores (executor/configuration.py, planned_trainer);
elsewhere the accelerators of its layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...plans.schema.plan import Plan
from ...plans.schema.predicted import PredictedRound
from ...traces.report_steps import quantile, waits
from ..costs.decode_costs import DecodeCost
from ..costs.job_pools import JobPools, NodesTaken
from .reference_round import Observe
from .whole_run import SimulatedRun, SimulatedStep, Watch

PHASES = ("rollout", "reward_exposed", "train", "sync", "switch")


class BusyMeter(Watch):
    """Counts each step's accelerator-seconds with a running sequence; passes everything on to `inner`."""

    def __init__(self, inner: Watch | None = None) -> None:
        self.busy_s: list[float] = []
        self._inner = inner or Watch()
        self._tp = 1
        self._running: dict[int, tuple[float, int]] = {}  # engine -> (since when, sequences)
        self._total = 0.0

    def round_begins(self, number: int, kind: str, cost: DecodeCost) -> Observe | None:
        self._tp, self._running, self._total = cost.key.tp, {}, 0.0
        inner = self._inner.round_begins(number, kind, cost)

        def observe(t_s: float, event: str, a: int, b: int, c: int) -> None:
            if event == "engine":
                since, running = self._running.get(a, (t_s, 0))
                if running:
                    self._total += t_s - since
                self._running[a] = (t_s, b)
            if inner:
                inner(t_s, event, a, b, c)

        return observe

    def step_done(self, number: int, step: SimulatedStep, deferred: list[tuple[int, str]]) -> None:
        self.busy_s.append(self._tp * self._total)
        self._inner.step_done(number, step, deferred)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Some of a run's steps, with their busy accelerator-seconds (decode and train)."""

    steps: Sequence[SimulatedStep]
    busy_s: Sequence[float]


def summarize(run: SimulatedRun, meter: BusyMeter, plan: Plan, pools: JobPools, nodes: NodesTaken) -> dict[str, Any]:
    """The run as plain data: `all`, `short` and `long` steps, what is over the whole run, the plan's own `predicted`.

    Per-step figures are of the steps asked for; per-sample figures, bias and cost charge what they still owed. `nodes`:
    those that the plan takes of its pools (round_costs.nodes_of).
    """
    accelerators = nodes.rollout * pools.rollout.accelerators.per_node
    train_accelerators = accelerators
    if pools.train is not None:
        train_accelerators = nodes.train * pools.train.accelerators.per_node
        accelerators += train_accelerators
    if pools.rollout.accelerators.kind != "cpu":
        train_accelerators = min(train_accelerators, plan.job.rounds.short.train.accelerators)
    busy = [
        decode_s + train_accelerators * step.train_s + step.early_accelerator_s
        for decode_s, step in zip(meter.busy_s, (*run.steps, *run.settling), strict=True)
    ]
    every = _Steps(run.steps, busy[: len(run.steps)])
    seconds_per_sample = run.seconds_per_sample()
    result: dict[str, Any] = {
        "mode": plan.job.bias.mode,
        "forced_mode": plan.solver.forced_mode,
        "nodes": nodes.total,
        "train_nodes": nodes.train if pools.apart else None,
        "all": _part(every, run, accelerators),
        "short": _part(_of_kind(every, "short"), run, accelerators),
        "long": _part(_of_kind(every, "long"), run, accelerators),
        "seconds_per_sample": seconds_per_sample,
        "accelerator_s_per_1k_samples": 1000 * seconds_per_sample * accelerators,
        "usd_per_hour": pools.usd_per_hour(nodes),
        "usd_per_1k_samples": 1000 * seconds_per_sample * pools.usd_per_hour(nodes) / 3600,
        "length_ratio": run.length_ratio(),
        "cut_share": run.cut_share(),
        "epochs": max(step.epoch for step in run.steps) + 1,
        "owed_prompts": run.steps[-1].deferred,
        "settling_steps": len(run.settling),
        "waits": waits((*run.steps, *run.settling)),
        "predicted": _predicted(plan),
    }
    return result


def _of_kind(part: _Steps, kind: str) -> _Steps:
    keep = [i for i, step in enumerate(part.steps) if step.kind == kind]
    return _Steps([part.steps[i] for i in keep], [part.busy_s[i] for i in keep])


def _part(part: _Steps, run: SimulatedRun, accelerators: int) -> dict[str, Any] | None:
    steps = part.steps
    if not steps:
        return None
    total_s = math.fsum(s.step_s for s in steps)
    decoded = sum(s.decoded_tokens for s in steps)
    trained = sum(s.response_tokens for s in steps)
    samples = sum(s.samples for s in steps)
    return {
        "steps": len(steps),
        "share": len(steps) / len(run.steps),
        "step_s": _spread([s.step_s for s in steps]),
        "phases_s": {phase: _spread([getattr(s, f"{phase}_s") for s in steps]) for phase in PHASES},
        "bubble": 1.0 - math.fsum(part.busy_s) / (total_s * accelerators),
        "samples": samples,
        "tokens": {"decoded": decoded, "trained": trained, "wasted": decoded - trained},
        "preemptions": sum(s.preemptions for s in steps),
        "accelerator_s_per_1k_samples": 1000 * total_s * accelerators / samples if samples else None,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"p50": quantile(values, 0.5), "p95": quantile(values, 0.95), "mean": math.fsum(values) / len(values)}


def _phase_means(kind: PredictedRound) -> dict[str, float]:
    """A plan's mean seconds of each phase of one kind of round; its weight transfer includes the change of layout."""
    waits = kind.reward_exposed_s.mean
    means = {"rollout": kind.rollout_s.mean, "reward_exposed": waits, "train": kind.train_s.mean, "sync": kind.sync_s}
    return {**means, "switch": 0.0}


def _predicted(plan: Plan) -> dict[str, Any]:
    predicted = plan.predicted
    short, long = predicted.rounds.short, predicted.rounds.long
    return {
        "step_s": predicted.step_s.model_dump(),
        "phases_s": {**predicted.phases_s.model_dump(), "switch": 0.0},
        "short": {**short.model_dump(), "phases_s": _phase_means(short)},
        "long": {**long.model_dump(), "phases_s": _phase_means(long)} if long else None,
        "seconds_per_sample": predicted.seconds_per_sample,
        "length_ratio": predicted.length_ratio,
        "cut_share": predicted.cut_share,
        "usd_per_1k_samples": predicted.usd_per_1k_samples,
    }
