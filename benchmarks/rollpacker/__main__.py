"""`python -m benchmarks.rollpacker`"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import click

from rlplan.planner.costs.decode_costs import DecodeCost, decode_cost
from rlplan.plans.yaml.errors import InputError
from rlplan.profiles.library import library_profile
from rlplan.profiles.phase_schema import Rollout
from rlplan.profiles.profile_schema import Profile

from .. import entry
from .case import PUBLISHED_CAP, Case, Figures, cluster_of, job_of, profile_of, read_case, round_phases, trace_of
from .quotas import PLAIN, Calibrated, OperatingPoint, Sweep, ablation, plan_of, planned, rmse, summary

# The copula's rho that was found at 14B/16k, for figures without a sensitivity.
_RHO = 0.17
_REFERENCE_MODEL = "14B"


class _Cap(click.ParamType):
    """Tokens, as 16384 or 16k."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).lower()
        try:
            tokens = int(text[:-1]) * 1024 if text.endswith("k") else int(text)
        except ValueError:
            tokens = 0
        if tokens < 1:
            self.fail(f"{value!r} is no number of tokens; write 16384 or 16k", param, ctx)
        return tokens


@click.command()
@click.option("--figures", "figures_path", required=True, type=click.Path(path_type=Path), help="Published series.")
@click.option("--model", default="14B", show_default=True, help="Size, as in the figures file: 7B, 14B, 32B.")
@click.option("--cap", type=_Cap(), help="Cap on a response, 16384 or 16k. Default: the phases file's.")
@click.option("--phases", type=click.Path(path_type=Path), help="Published phases. Default: MODEL.yaml here.")
@click.option("--seed", default=0, show_default=True, help="Seed of the lengths.")
@entry.as_json_option
def command(figures_path: Path, model: str, cap: int | None, phases: Path | None, seed: int, as_json: bool) -> None:
    """The published runs of RollPacker, simulated, and rlplan's plans for the same job on the same GPUs."""
    figures = Figures.read(figures_path)
    case = read_case(phases or Path(__file__).with_name(f"{model}.yaml"))
    result = run(figures, case, model, seed, cap)
    entry.tell(result, as_json, _text)


def run(figures: Figures, case: Case, model: str, seed: int = 0, cap_tokens: int | None = None) -> dict[str, Any]:
    """The benchmark's result, JSON-ready.

    Under another cap than the case's, engines are as fast as calibrated under its own, rollouts are simulated, and the
    other phases stay as published; there is nothing published to compare with.
    """
    sensitivity, calibrated = _sensitivity(figures, seed)
    short, long = (round_phases(case, figures, model, round_kind) for round_kind in ("short", "long"))
    shipped = library_profile(case.gpu, case.model)
    entry = next((r for r in shipped.rollout if r.tp == case.rollout_tp), None)
    if entry is None:
        raise InputError(f"the shipped profile of {case.model} on {case.gpu} has no rollout of tp {case.rollout_tp}")
    published = {**figures.step_s(model), **case.published_step_s.model_dump(exclude_none=True)}
    sweep = _sweep(case, figures, entry, shipped, seed)
    factor = sweep.speed(case.plain.rollout_s, calibrated.rho, calibrated.overhead_s)
    if cap_tokens not in (None, case.cap_tokens):
        case, published = case.model_copy(update={"cap_tokens": cap_tokens}), {}
        sweep = _sweep(case, figures, entry, shipped, seed)
    cluster, job, trace = cluster_of(case), job_of(case), trace_of(case, figures, calibrated.rho)
    profile = profile_of(case, shipped, factor, calibrated.overhead_s, short.sync_s, short.reward_s)

    def cost_of(tp: int) -> DecodeCost | None:
        entries = [r for r in profile.rollout if r.tp == tp]
        return decode_cost(profile, entries[0], case.gpus // tp) if entries else None

    point = OperatingPoint(case, figures, calibrated.rho, seed=seed)
    fixed = point.operate(decode_cost(profile, next(r for r in profile.rollout if r.tp == entry.tp), case.engines))
    theirs = planned(point, cost_of, entry.tp, fixed)
    plain_s = calibrated.overhead_s + factor * statistics.fmean(sweep.decode_s(PLAIN, calibrated.rho))
    steps = ablation(case, plain_s, fixed, theirs, point.long_share, short, long)
    budget = abs(1.0 - theirs.length_ratio)
    plans = {
        "same_bias": plan_of(cluster, job, profile, trace, budget),
        "unbiased": plan_of(cluster, job, profile, trace, None),
    }
    verl, rollpacker = steps["verl"], steps["trainer"]
    ours = {name: summary(plan, verl, rollpacker, short, long) for name, plan in plans.items()}
    return {
        "model": case.model,
        "gpus": case.gpus,
        "cap_tokens": case.cap_tokens,
        "calibrated": {"rho": calibrated.rho, "overhead_s": calibrated.overhead_s, "decode_factor": factor},
        "sensitivity": sensitivity,
        "step_s": {"verl": verl, "rollpacker": rollpacker},
        "published_step_s": published,
        "rollpacker": {
            "length_ratio": theirs.length_ratio,
            "short_rollout_s": theirs.short_s,
            "long_rollout_s": theirs.long_s,
            "long_share": point.long_share,
            "preemptions": fixed.preemptions,
        },
        "ablation": {part: verl / seconds for part, seconds in steps.items()},
        "ours": {
            "same_bias": ours["same_bias"]["speedup_over_rollpacker"],
            "unbiased": ours["unbiased"]["speedup_over_verl"],
        },
        "plans": ours,
    }


def _sweep(case: Case, figures: Figures, entry: Rollout, shipped: Profile, seed: int) -> Sweep:
    """Plain and over-issued rounds of the case, all tasks in equal shares."""
    cost = decode_cost(shipped, entry, case.engines)
    tasks = [figures.cdf(task) for task in figures.tasks()]
    return Sweep(tasks, cost, case.prompts_per_step, case.samples_per_prompt, case.cap_tokens, seed)


def _sensitivity(figures: Figures, seed: int) -> tuple[dict[str, Any] | None, Calibrated]:
    """Figure 11 on the engines that it was measured on; without it the lengths' dependence is the one found there."""
    published = figures.sensitivity(PUBLISHED_CAP)
    if not published or "math" not in figures.tasks():
        return None, Calibrated(_RHO, 0.0, 1.0)
    case = read_case(Path(__file__).with_name(f"{_REFERENCE_MODEL}.yaml"))
    shipped = library_profile(case.gpu, case.model)
    entry = next(r for r in shipped.rollout if r.tp == case.rollout_tp)
    sweep = Sweep(
        [figures.cdf("math")], decode_cost(shipped, entry, case.engines), case.prompts_per_step,
        case.samples_per_prompt, PUBLISHED_CAP, seed,
    )  # fmt: skip
    calibrated = sweep.calibrate(published)
    points = [(*factors, s, sweep.cycle_s(factors, calibrated)) for factors, s in published.items() if factors != PLAIN]
    return {"rmse": rmse(points, published[PLAIN]), "points": points}, calibrated


def _text(result: dict[str, Any]) -> str:
    calibrated = result["calibrated"]
    lines = [
        f"{result['model']}, cap {result['cap_tokens']}, {result['gpus']} GPUs; rho {calibrated['rho']:.2f}, "
        f"{calibrated['overhead_s']:.1f} s a round, decoding {calibrated['decode_factor']:.2f}x "
        "the shipped profile's seconds"
    ]
    if result["sensitivity"]:
        lines.append(f"sensitivity (14B/16k): rmse {result['sensitivity']['rmse']:.1%} of the plain round")
        for f_p, f_n, published, predicted in result["sensitivity"]["points"]:
            lines.append(f"  f_p {f_p:<6g} f_n {f_n:<6g} published {published:5.0f} s   predicted {predicted:5.0f} s")
    for system, seconds in result["step_s"].items():
        published = result["published_step_s"].get(system)
        beside = "" if published is None else f", published {published:.1f} ({seconds / published - 1:+.1%})"
        lines.append(f"{system}: {seconds:.1f} s a step{beside}")
    ablation = "  ".join(f"{part} {value:.2f}x" for part, value in result["ablation"].items())
    lines.append(f"ablation: {ablation}")
    for name, plan in result["plans"].items():
        theirs = plan["published_train"]
        lines.append(
            f"ours, {name} ({plan['mode']}): {plan['step_s']:.1f} s a step, {plan['speedup_over_verl']:.2f}x veRL, "
            f"{plan['speedup_over_rollpacker']:.2f}x RollPacker, length ratio {plan['length_ratio']:.3f} (RollPacker's "
            f"{result['rollpacker']['length_ratio']:.3f}); with the published updates "
            f"{theirs['speedup_over_verl']:.2f}x and {theirs['speedup_over_rollpacker']:.2f}x"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    entry.run(command)
