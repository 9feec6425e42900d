"""Speed of the planner's simulator and of a solve, on jobs that are built here.

    python -m benchmarks.planner_speed [--seconds S] [--skip-solve] [--skip-scale] [--json]

- `responses_per_s`: responses of the short round of RollPacker's operating point (160 prompts x 10 samples for 128 x 8,
  on 16 engines whose KV runs full, so that they preempt) per second of one core, with lengths drawn before.
  `columns` has whole columns of each kind of round, at the same size; it includes drawing lengths and recording rounds.
- `scaling`: seconds of such a round of 1k, 10k and 100k requests on as many engines, and the exponent of the least
  squares line through the logarithms; n log n over this range has 1.11.
- `solve_64gpu_s`: seconds to solve a job of 128 x 8 with responses of up to 16k tokens on 64 GPUs, TP 1 to 8, with the
  costs of a model of 14B parameters, `candidates` being counted as the plan counts them. One thread does it, so the
  plan cannot depend on how many cores there are.
- `solve_s`, `solve_cpu_s`, `peak_bytes`: of solving the shipped 32B example on 8 to 1,024 nodes, with 16 prompts a step
  for each node; `differences`: the error of simulating its large rounds by cells (planner_scale.py);
  `largest_difference` is the largest of them.

Rates and scaling count CPU seconds of the process, so that a busy machine changes them little; the solve counts time.
The kernel is compiled or loaded before; `compile_s` says how long that took (later runs load it from disk).

    {"responses_per_s": …, "solve_64gpu_s": …, "scaling": {"requests": …, "seconds": …, "exponent": …},
     "solve_s": {"8": …, "1024": …}, "peak_bytes": {…}, "largest_difference": …, …}
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any

import numpy as np

from rlplan.planner.choose.candidates.round_kinds import DeferralRule, LongKey, ShortKey
from rlplan.planner.costs.decode_costs import DecodeCost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import fit_lengths
from rlplan.planner.simulate.columns.whole_columns import LongColumn, Setting, ShortColumn, long_draws
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws
from rlplan.planner.solve import solve
from rlplan.plans.schema.cluster import Cluster
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.schema.plan import Plan
from rlplan.profiles.length_trace import LengthRow, LengthTrace
from rlplan.profiles.phase_schema import DecodePoint, Reward, Rollout, Spread, Train
from rlplan.profiles.profile_schema import Machine, Profile, ProfileLengths
from rlplan.rounds.round_spec import RoundKind

from . import planner_scale
from .entry import tell

# Documents of the 64-GPU job that `planner_speed` solves: a 14B model, 128 prompts x 8 samples of up to 16k tokens.

CAP = 16384
PROMPTS, SAMPLES = 128, 8


def trace(prompts: int = 256, samples: int = 16, seed: int = 0) -> LengthTrace:
    """Lengths like those published of a 14B model under a cap of 16k: heavy tails, half of it between prompts."""
    rng = np.random.default_rng(seed)
    rows = []
    for p in range(prompts):
        location = 6.5 + 0.8 * rng.normal()
        for s in range(samples):
            tokens = 1 + int(np.exp(location + 0.8 * rng.normal()))
            reward = float(rng.random() < 0.5)
            rows.append(LengthRow(f"p{p:04d}", 0, s, min(tokens, CAP), tokens >= CAP, reward, 256))
    return LengthTrace(rows, CAP)


def spread(seconds: float) -> Spread:
    """A duration with p95 10 % above the median."""
    return Spread(p50=seconds, p95=1.1 * seconds, repeats=5)


def rollout(tp: int) -> Rollout:
    """One engine of 14B parameters in 16 bits on `tp` GPUs of 80 GB and 3.35 TB/s: weights and KV are read at 75 %."""
    a = 4e-3 + 29.5e9 / (tp * 2.5e12) + 5e-4 * math.log2(tp)
    return Rollout(
        tp=tp,
        engines=64 // tp,
        step_s=a,
        step_s_per_sequence=2e-5,
        step_s_per_kv_token=196608 / (tp * 2.5e12),
        prefill_s=2e-4,
        prefill_s_per_token=6e-5 / tp,
        kv_capacity_tokens=int((68e9 * tp - 29.5e9) / 196608),
        kv_bytes_per_token=196608,
        start=spread(60.0),
        sync=spread(15.0),
        error=0.03,
        points=(DecodePoint(sequences=256, kv_tokens=1e5, step_s=a + 0.02, spread=0.01),),
    )


def profile() -> Profile:
    """Costs of the 64-GPU job."""
    return Profile(
        rlplan_profile=1,
        job="math-14b",
        measured="0" * 64,
        provenance="measured",
        machine=Machine(accelerator="H800", kind="cuda", accelerators=8, cores=96, host_memory_bytes=2 * 10**12),
        model_parameters=14_800_000_000,
        rollout=tuple(rollout(tp) for tp in (1, 2, 4, 8)),
        train=tuple(
            Train(
                dp=64,
                micro_batch_tokens=tokens,
                step_s=4.0,
                step_s_per_token=(4e-6 + 0.02 / tokens),
                step_s_per_token_squared=1e-11,
                error=0.03,
            )
            for tokens in (16896, 20480, 24576, 32768)
        ),
        reward=Reward(workers=64, latency=spread(0.35), per_sample_s=0.05),
        lengths=ProfileLengths(
            path="lengths.jsonl", sha256="0" * 64, prompts=256, samples=4096, cap_tokens=CAP, icc=0.5
        ),
        checks=(),
        volatile={"measured_at": "never", "measuring_s": 0.0, "versions": {}},
    )


def cluster() -> Cluster:
    """8 nodes of 8 GPUs."""
    pool = {
        "nodes": 8,
        "accelerators": {"kind": "cuda", "name": "H800", "per_node": 8, "memory_bytes": 80 * 10**9},
        "cores": 96,
        "host_memory_bytes": 2 * 10**12,
        "usd_per_node_hour": 20.0,
    }
    return Cluster.model_validate({"rlplan_cluster": 1, "name": "pod", "pools": {"gpu": pool}})


def job() -> Job:
    """128 prompts x 8 samples of up to 16k tokens."""
    return Job.model_validate(
        {
            "rlplan_job": 1,
            "name": "math-14b",
            "model": {"path": "m", "dtype": "bfloat16"},
            "data": {"path": "d.jsonl"},
            "reward": {"kind": "math", "workers": 64, "deadline_s": 2.0},
            "rollout": {
                "prompts_per_step": PROMPTS,
                "samples_per_prompt": SAMPLES,
                "max_prompt_tokens": 512,
                "max_response_tokens": CAP,
            },
            "algorithm": {"name": "grpo", "learning_rate": 1e-6},
            "search": {"tp": [1, 2, 4, 8], "micro_batch_tokens": [16896, 20480, 24576, 32768]},
        }
    )


REWARD = RewardCost(workers=64, per_sample_s=0.05, delay_s=0.3)


def solve_once() -> tuple[Plan, float]:
    """Solve the 64-GPU job; (plan, seconds)."""

    began = time.perf_counter()
    plan = solve(cluster(), job(), profile(), trace(), planner_scale.INPUTS).plan
    return plan, time.perf_counter() - began


def engines(count: int, kv_capacity_tokens: int) -> DecodeCost:
    """`count` engines of TP 2 that hold so many KV tokens each."""
    return DecodeCost(
        key=EngineLayout(2, count),
        a=0.012,
        b=2e-5,
        c=4e-8,
        prefill_s=2e-4,
        prefill_s_per_token=3e-5,
        kv_capacity_tokens=kv_capacity_tokens,
        max_sequences=256,
        sync_s=15.0,
        host_bytes=0,
    )


def race_round(prompts: int, rng: np.random.Generator) -> tuple[RoundKind, RoundDraws]:
    """`prompts` x 10 requests, of which 8 samples of 4 prompts in 5 are trained."""
    round_kind = RoundKind("short", prompts, prompts * 4 // 5, SAMPLES, 10, CAP)
    lengths = np.exp(rng.normal(6.5, 0.8, (prompts, 1)) + rng.normal(0, 0.8, (prompts, 10)))
    round_draws = RoundDraws(
        lengths=np.clip(lengths, 1, CAP).astype(np.int32),
        prompt_tokens=np.full(prompts, 256, dtype=np.int32),
        cap_tokens=CAP,
        expected_tokens=1300.0,
    )
    return round_kind, round_draws


def rate(seconds: float) -> tuple[float, float, int]:
    """(responses per second of CPU, seconds of the first round, preemptions in a round) of the 1,600-request round."""
    cost = engines(16, 40_000)
    rounds = [race_round(160, np.random.default_rng(seed)) for seed in range(16)]
    began = time.perf_counter()
    simulate_one_round(*rounds[0], cost, REWARD, 256)
    first = time.perf_counter() - began
    began, simulated, preemptions = time.process_time(), 0, 0
    while time.process_time() - began < seconds or simulated < len(rounds):
        outcome = simulate_one_round(*rounds[simulated % len(rounds)], cost, REWARD, 256)
        preemptions += outcome.times.preemptions
        simulated += 1
    return 1600 * simulated / (time.process_time() - began), first, preemptions // simulated


def columns(seconds: float) -> dict[str, float]:
    """Responses per second of CPU of columns, by kind of round."""
    cost = engines(16, 40_000)
    setting = Setting(PROMPTS, SAMPLES, CAP, False, {cost.key: cost}, REWARD, Draws(fit_lengths(trace()), 0, 16))
    cutoff_tokens = setting.draws.model.group_max_quantiles(SAMPLES, (0.8,))[0]
    pool = long_draws(setting.draws, SAMPLES, cutoff_tokens, 64 * PROMPTS)
    rates: dict[str, float] = {}
    for name, column in {
        "race": ShortColumn(setting, ShortKey("race", 160, 10, None, cost.key)),
        "exact_short": ShortColumn(setting, ShortKey("exact", 170, SAMPLES, cutoff_tokens, cost.key)),
        "exact_long": LongColumn(setting, LongKey(DeferralRule("exact", 0, 0, cutoff_tokens), 1, cost.key)),
        "sync": ShortColumn(setting, ShortKey("sync", PROMPTS, SAMPLES, None, cost.key)),
    }.items():
        began, rounds = time.process_time(), 0
        while time.process_time() - began < seconds:
            rounds += 4
            if isinstance(column, LongColumn):
                column.extend(rounds, pool)
            else:
                column.extend(rounds)
        rates[name] = sum(column.log.issued) / (time.process_time() - began)
    return rates


def scaling(repeats: int = 7) -> dict[str, Any]:
    """Seconds of race rounds of growing size on 16 engines, the least of `repeats`, and the exponent."""
    requests, seconds = [], []
    for prompts in (100, 1000, 10_000):
        round_kind, round_draws = race_round(prompts, np.random.default_rng(0))
        took = []
        for _ in range(repeats):
            began = time.process_time()
            simulate_one_round(round_kind, round_draws, engines(16, 200_000), REWARD, 256)
            took.append(time.process_time() - began)
        requests.append(prompts * 10)
        seconds.append(min(took))
    return {"requests": requests, "seconds": seconds, "exponent": exponent(requests, seconds)}


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Slope of the least squares line of log seconds over log sizes."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def main() -> int:
    """Parse arguments, measure, print. Returns the exit code."""
    parser = argparse.ArgumentParser(description="how fast the planner simulates and solves")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="CPU seconds to measure each kind of round for (default 2)"
    )
    parser.add_argument("--skip-solve", action="store_true", help="leave the 64-GPU solve out")
    parser.add_argument("--skip-scale", action="store_true", help="leave the solves on up to 1,024 nodes out")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    if options.seconds <= 0:
        parser.error("--seconds must be above 0")
    responses_per_s, compile_s, preemptions = rate(options.seconds)
    result: dict[str, Any] = {
        "responses_per_s": round(responses_per_s),
        "solve_64gpu_s": None,
        "scaling": scaling(),
        "columns": {name: round(value) for name, value in columns(options.seconds).items()},
        "preemptions_per_round": preemptions,
        "compile_s": round(compile_s, 3),
    }
    if not options.skip_solve:
        plan, seconds = solve_once()
        result |= {
            "solve_64gpu_s": round(seconds, 2),
            "candidates": plan.solver.candidates,
            "mode": plan.job.bias.mode,
            "speedup_over_sync": plan.predicted.speedup,
        }
    if not options.skip_scale:
        result |= planner_scale.measure()
    tell(result, options.json, text)
    return 0


def text(result: dict[str, Any]) -> str:
    """The result as text."""
    curve = result["scaling"]
    lines = [
        f"responses per second of one core: {result['responses_per_s']:,} ({result['preemptions_per_round']} "
        f"preemptions in a round; first round {result['compile_s']} s); whole columns: "
        + ", ".join(f"{name} {value:,}" for name, value in result["columns"].items()),
        "scaling: "
        + ", ".join(f"{n:,} in {1e3 * s:.1f} ms" for n, s in zip(curve["requests"], curve["seconds"], strict=True))
        + f": exponent {curve['exponent']:.2f}",
    ]
    if result["solve_64gpu_s"] is not None:
        lines.append(
            f"64 GPUs: {result['candidates']:,} schedules in {result['solve_64gpu_s']} s, one thread; "
            f"{result['mode']}, {result['speedup_over_sync']:.2f}x sync"
        )
    return "\n".join([*lines, *(planner_scale.lines(result) if "solve_s" in result else [])])


if __name__ == "__main__":
    sys.exit(main())
