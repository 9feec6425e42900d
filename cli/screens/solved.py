"""A solved plan of one job, as figures and as a few lines: what `rlplan solve` and `rlplan refresh` print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...plans.check.plan_check import model_of_plan
from ...plans.facts.executable import OTHERS_ONLY, not_executable
from ...plans.facts.plan_text import (
    assumed_errors,
    assumed_notes,
    cut_text,
    limit_text,
    little_gained,
    solver_status,
    wait_text,
)
from ...plans.phrases.numbers import count, percent, ratio, seconds, times
from ...plans.phrases.sentences import levers_of
from ...plans.schema.plan import Plan
from ..shared.output import see_it
from .rounds_table import round_kinds


def plan_summary(plan: Plan, out: Path) -> dict[str, Any]:
    """The figures of a job's plan, for --json."""
    predicted = plan.predicted
    return {
        "headline": little_gained(plan),
        "plan": str(out),
        "mode": plan.job.bias.mode,
        "forced_mode": plan.solver.forced_mode,
        "step_s": predicted.step_s.mean,
        "baseline_step_s": predicted.baseline.step_s.mean,
        "speedup": predicted.speedup,
        "given_up": plan.solver.given_up,
        "ties": plan.job.why.get("ties"),
        "levers": levers_of(plan.job.why.get("levers")),
        "baseline_nodes": predicted.baseline.nodes,
        "baseline_keeps_slo": predicted.baseline.keeps_slo,
        "length_basis": None if predicted.length_basis is None else predicted.length_basis.model_dump(),
        "length_ratio": predicted.length_ratio,
        "cut_share": predicted.cut_share,
        "gap": plan.solver.gap,
        "status": plan.solver.status,
        "method": plan.solver.method,
        "objective": plan.solver.objective,
        "within_s": plan.solver.within_s,
        "bound": plan.solver.bound,
        "bias_budget": plan.job.bias.budget,
        "usd_per_1k_samples": predicted.usd_per_1k_samples,
        "nodes": predicted.nodes,
        "train_nodes": predicted.train_nodes,
        "front": [point.model_dump() for point in predicted.front],
        "solved_at": plan.volatile.solved_at,
        "candidates": plan.solver.candidates,
        "solve_s": plan.volatile.solve_s,
        "error": plan.predicted.error.total,
        "assumed": assumed_notes(plan.inputs),
        "provenance": plan.inputs.profile.provenance,
        **({} if (audit := plan.inputs.profile.reward_audit) is None else {"reward_audit": audit.model_dump()}),
        "scaled": plan.job.why.get("model"),
        "limit": None if predicted.limit is None else predicted.limit.model_dump(mode="json"),
        "not_executable": not_executable(plan, model_of_plan(plan, out)),
    }


def plan_text(plan: Plan, out: Path) -> str:
    """A job's plan in a few lines, for the terminal."""
    predicted, solver = plan.predicted, plan.solver
    where = "" if predicted.baseline.nodes is None else f" on {count(predicted.baseline.nodes, 'node')}"
    where += " (which breaks slo.step_p95_s)" if predicted.baseline.keeps_slo is False else ""
    lines = [
        *filter(None, [little_gained(plan)]),
        f"{plan.job.bias.mode}: {seconds(predicted.step_s.mean)} a step (p95 {seconds(predicted.step_s.p95)}, "
        f"error +-{percent(predicted.error.total)}), "
        f"{times(predicted.speedup)} the samples per second of plain rounds "
        f"({seconds(predicted.baseline.step_s.mean)} a step{where}) -> {out}",
        f"trained over unconditioned mean length {ratio(predicted.length_ratio)}, {cut_text(predicted)}; "
        f"{solver_status(solver)} ({solver.name})",
    ]
    for kind, decided, expected in round_kinds(plan):
        lines.append(
            f"{kind} rounds ({percent(expected.share)} of the steps, {seconds(expected.step_s.mean)} each): "
            f"{decided.issue.prompts} prompts x {decided.issue.samples} samples on "
            f"{count(decided.rollout.engines, 'engine')} of TP "
            f"{decided.rollout.tp}, micro-batches of {decided.train.micro_batch_tokens} tokens"
        )
    lines += [wait_text(predicted)] if predicted.wait is not None else []
    lines.append(f"limit: {limit_text(predicted.limit)}")
    if (costs := plan.inputs.profile.provenance) != "measured":
        lines.append(
            f"costs: {costs} from data sheets and runs of others; rlplan profile measures them on your machines"
        )
    if "model" in plan.job.why:
        lines.append(f"note: {plan.job.why['model']}")
    lines += [f"{key}: {plan.job.why[key]}" for key in ("lengths", "reward.seconds") if key in plan.job.why]
    if assumed := assumed_errors(predicted.error):
        lines.append(f"the error includes{assumed.replace(',', ':', 1)}")
    audit = plan.inputs.profile.reward_audit
    if audit is not None and not audit.passed:
        lines.append(f"note: the reward fails its audit {audit.text}: rlplan rewards audit JOB names the rows")
    basis = predicted.length_basis
    if basis is not None and basis.extrapolated:
        lines.append(f"note: {basis.sentence(predicted.speedup)}")
    if reasons := not_executable(plan, model_of_plan(plan, out)):
        lines.append(f"note: {OTHERS_ONLY}: {'; '.join(reasons)}")
    return "\n".join([*lines, *see_it(out)])
