"""Rounds balanced by history against rounds by count: on two real engines, and on 64 simulated GPUs beside an oracle.

    python -m benchmarks.balance [--trace FILE.csv[.gz] ...] [--epochs 4] [--json]

On real engines: the demo's policy, two vLLM engines on a core each that decode 16 samples at a time,
synchronous rounds of 96 x 8 samples. Two plans that differ in `rollout.balance` alone take their steps in turns, on the
same draws (`seed_per_sample`), and train; the data has two rounds of prompts, so each prompt comes again every second
step. Figures are of the rounds after the first epoch, in which nothing is known of a prompt (`first_epoch`).

- `tail_ratio`: seconds of the tail with balance over those by count, the worse of two readings of it: `drain_ratio`, of
  the seconds in which fewer than a quarter of the 32 samples that run at once are left; and `last_quarter_ratio`, what
  remains with balance of the last quarter of the seconds of the round by count (negative: it ends before that).
- `round_ratio`: seconds of the whole rollout, likewise.
- `prediction_error`: of the mean seconds of a balanced rollout, as a replay of its own lengths predicts them, by costs
  that are refitted from the run by count (as `rlplan tune` does).
- `known`: share of its prompts with a history;
  `same_samples`: share of the trained samples that have the same length and reward in both runs; `off_policy`: samples
  of other weights, of both.

On simulated GPUs, for each source of each `--trace` of published lengths (columns `source, step,
prompt_id, sample_id, response_tokens, reward`): 64 engines of Qwen2.5-14B, each on an H100, synchronous rounds of
512 x 8 samples of the last checkpoint, histories of one group of each prompt at the checkpoint before, where there is
one, else at the same.

- `of_oracle`: seconds of a balanced rollout over those of an oracle, which is the same machine, but knows the length of
  each sample; the worst source. `sources` has it for each, with `of_oracle_by_count` and `of_oracle_in_first_epoch`
  (balanced without history: the first sample of each prompt is its probe).

    {"tail_ratio": …, "of_oracle": …, "drain_ratio": …, "last_quarter_ratio": …, "round_ratio": …, …, "sources": […]}

Without `--trace`, `of_oracle` is null; with `--only simulated`, what is of real engines is left out.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from rlplan.executor.example.write import write_example
from rlplan.planner.costs.decode_costs import DecodeCost, layout_cost
from rlplan.planner.costs.reward_costs import RewardCost
from rlplan.planner.lengths.draws import Draws
from rlplan.planner.lengths.length_model import LengthModel, fit_lengths
from rlplan.planner.simulate.columns.column_setting import balance_of
from rlplan.planner.simulate.one_round import simulate_one_round
from rlplan.planner.simulate.round_arrays import RoundDraws
from rlplan.planner.tune.executed_run import load_executed
from rlplan.planner.tune.refit import refit, replay_run
from rlplan.plans.schema.job import load_job
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.plans.yaml.yaml_io import load
from rlplan.profiles.length_trace import LengthTrace
from rlplan.profiles.library import library_profile
from rlplan.profiles.profile_schema import Profile
from rlplan.rounds.balancing.length_estimates import Expected, Recorded
from rlplan.rounds.predict import LengthHistory
from rlplan.rounds.round_shape import tail_begins_s
from rlplan.rounds.round_spec import RoundKind
from rlplan.tools.published_lengths import read_length_table
from rlplan.traces.run_log import TRACE, RunLog, read_run

from .entry import as_json_option, run, tell
from .example_plans import change_job, change_pool, cores_of, shipped_plan, write_document
from .faults.verdict import off_policy

# Rounds on two real engines, by count and balanced by history, side by side.

PROMPTS_PER_STEP, SAMPLES_PER_PROMPT = 96, 8
AT_ONCE = 16
EPOCH_STEPS = 2
"""Steps of an epoch: the data is cut to so many rounds, so that each prompt comes again."""

RUN_S = 2400.0
NAMES = ("count", "balance")


def write_plans(folder: Path, at_once: int) -> list[Path]:
    """Write the demo's example and its two plans; returns their paths."""
    write_example(folder)
    change_job(folder, rollout={"prompts_per_step": PROMPTS_PER_STEP, "samples_per_prompt": SAMPLES_PER_PROMPT})
    data = (folder / "data.jsonl").read_text().splitlines(keepends=True)
    (folder / "data.jsonl").write_text("".join(data[: EPOCH_STEPS * PROMPTS_PER_STEP]))
    change_pool(folder, cores_of(folder), 2)
    plan = shipped_plan(folder, "sync").model_dump(mode="json")
    cost = layout_cost(load(folder / "profile.yaml", Profile), EngineLayout(1, 2))
    assert cost is not None, "the shipped profile has two engines"
    short = plan["job"]["rounds"]["short"]
    short["rollout"] |= {"engines": 2, "tp": 1, "max_num_seqs": at_once}
    short["train"] |= {"dp": 1, "tp": 1, "sp": 1}
    paths = []
    for name in NAMES:
        if name == "balance":
            short["rollout"]["balance"] = balance_of(cost).model_dump()
        paths.append(write_document(folder, name, plan))
    return paths


def execute(plans: list[Path], out: Path, steps: int) -> None:
    """Run plans in turns, in a process of their own. Raises RunFailed."""
    command = [sys.executable, "-m", "rlplan.cli.main", "execute", *map(str, plans), "--steps", str(steps)]
    log = out.parent / f"{out.name}.log"
    with log.open("w") as file:
        done = subprocess.run([*command, "--out", str(out)], stdout=file, stderr=file, timeout=RUN_S, check=False)
    if done.returncode:
        end = "\n".join(log.read_text().splitlines()[-15:])
        raise RunFailed(f"rlplan execute ended with exit code {done.returncode}:\n{end}")


def measure(folder: Path, epochs: int, at_once: int = AT_ONCE) -> dict[str, Any]:
    """The figures of `epochs` epochs on real engines; the first, in which nothing is known, apart."""
    plans, out = write_plans(folder / "plans", at_once), folder / "runs"
    execute(plans, out, epochs * EPOCH_STEPS)
    logs = {name: read_run(out / name / TRACE) for name in NAMES}
    later = {
        name: _seconds(log, range(EPOCH_STEPS + 1, epochs * EPOCH_STEPS + 1), at_once) for name, log in logs.items()
    }
    first = {name: _seconds(log, range(1, EPOCH_STEPS + 1), at_once) for name, log in logs.items()}
    events = [event for event in logs["balance"].events if event["event"] == "balanced"][EPOCH_STEPS:]
    return {
        **(ratios := _ratios(later)),
        "tail_ratio": max(ratios["drain_ratio"], ratios["last_quarter_ratio"]),
        "prediction_error": round(_prediction_error(folder, out), 4),
        "first_epoch": _ratios(first),
        "known": sum(event["known"] for event in events) / sum(event["prompts"] for event in events),
        "same_samples": round(_same_samples(*logs.values()), 4),
        "off_policy": sum(off_policy(log) for log in logs.values()),
        "seconds": {name: {key: round(value, 3) for key, value in each.items()} for name, each in later.items()},
    }


def _ratios(seconds: dict[str, dict[str, float]]) -> dict[str, float]:
    count, balance = seconds["count"], seconds["balance"]
    quarter_s = count["rollout_s"] / 4
    return {
        "round_ratio": round(balance["rollout_s"] / count["rollout_s"], 3),
        "last_quarter_ratio": round(1 - (count["rollout_s"] - balance["rollout_s"]) / quarter_s, 3),
        "drain_ratio": round(balance["drain_s"] / count["drain_s"], 3),
    }


def _seconds(log: RunLog, steps: range, at_once: int) -> dict[str, float]:
    """Mean seconds of the rollouts of these steps, and of their drains."""
    taken = [step for step in log.steps if step.step in steps]
    return {
        "rollout_s": fmean(step.rollout_s for step in taken),
        "drain_s": fmean(_drain_s(log, step.step, at_once) for step in taken),
    }


def _drain_s(log: RunLog, step: int, at_once: int) -> float:
    """Seconds from when fewer samples than a quarter of what the engines decode at once have not ended to the last
    end."""
    ends = sorted(row.finished_s for row in log.samples[step])
    levels = [(0.0, min(len(ends), 2 * at_once))]
    levels += [(end, min(len(ends) - number, 2 * at_once)) for number, end in enumerate(ends, 1)]
    return float(ends[-1] - tail_begins_s(levels, ends[-1]))


def _prediction_error(folder: Path, out: Path) -> float:
    """Relative error of the predicted mean seconds of the balanced rollouts, by costs refitted from those by count."""
    profile, job = load(folder / "plans" / "profile.yaml", Profile), load_job(folder / "plans" / "job.yaml")
    count, balance = (load_executed(out / name) for name in NAMES)
    cap, dynamic = job.rollout.max_response_tokens, job.algorithm.dynamic_sampling
    tuned = refit(profile, count, replay_run(count, cap, dynamic, profile)).profile
    replays = [r for r in replay_run(balance, cap, dynamic, tuned) if r.step.step > EPOCH_STEPS]
    predicted, measured = fmean(r.times.decode_end_s for r in replays), fmean(r.step.rollout_s for r in replays)
    return abs(predicted / measured - 1)


def _same_samples(count: RunLog, balance: RunLog) -> float:
    """Share of the trained samples that have the same length and reward in both runs."""

    def lengths(log: RunLog) -> list[tuple[Any, ...]]:
        return sorted((step, row.prompt, row.tokens, row.reward) for step, rows in log.samples.items() for row in rows)

    left, right = lengths(count), lengths(balance)
    same = sum((Counter(left) & Counter(right)).values())
    return same / max(len(left), len(right))


# Rounds of published lengths on 64 simulated GPUs: by count, balanced by history, and by an oracle.
#
# The oracle is the same machine, which knows the length of each sample: its samples are prompts of their own, whose
# history is exact. No engine finds a prompt in its cache here, since the oracle's samples would share none.

GPUS = 64
PROMPTS, SAMPLES = 512, 8
LEAST_PROMPTS = 20
"""Prompts of a population; of fewer it is skipped."""


def populations(path: Path, rounds: int, gpu: str, model: str, seed: int = 0) -> Iterator[dict[str, Any]]:
    """The figures of each source of a file. Raises InputError if the file cannot be read or has none."""
    cost = layout_cost(library_profile(gpu, model), EngineLayout(1, GPUS))
    if cost is None:
        raise InputError(f"the profile of {model} on {gpu} has no engines of TP 1; name a smaller model")
    cost = replace(cost, block_tokens=10**9)
    for source, trace in read_length_table(path).items():
        epochs = sorted({row.epoch for row in trace.rows})
        if min(len(_at(trace, epoch).prompts) for epoch in epochs) >= LEAST_PROMPTS:
            before, now = (fit_lengths(_at(trace, epoch), None, seed) for epoch in (epochs[-2:][0], epochs[-1]))
            figures = _figures(before, now, cost, rounds, seed)
            yield {"trace": path.name, "source": source, "checkpoints": len(epochs), **figures}


def _at(trace: LengthTrace, epoch: int) -> LengthTrace:
    return LengthTrace([row for row in trace.rows if row.epoch == epoch], trace.cap_tokens)


def _figures(before: LengthModel, now: LengthModel, cost: DecodeCost, rounds: int, seed: int) -> dict[str, Any]:
    balanced = replace(cost, balance=balance_of(cost))
    grouped = RoundKind("short", PROMPTS, PROMPTS, SAMPLES, SAMPLES, now.cap_tokens)
    alone = RoundKind("short", PROMPTS * SAMPLES, PROMPTS * SAMPLES, 1, 1, now.cap_tokens)
    seconds: dict[str, list[float]] = {"by_count": [], "balanced": [], "unknown": [], "oracle": []}
    draws = Draws(now, seed, SAMPLES)
    for number in range(rounds):
        numbers = np.arange(number * PROMPTS, (number + 1) * PROMPTS)
        lengths, tokens = draws.firsts(numbers, 0)[:, 0], draws.prompt_tokens_of(numbers)
        recorded = _recorded(before, [now.prompt_ids[k] for k in draws.traced_of(numbers)], seed, number)
        drawn = RoundDraws(lengths, tokens, now.cap_tokens, now.mean_tokens)
        exact = RoundDraws(
            lengths.reshape(-1, 1), np.repeat(tokens, SAMPLES), now.cap_tokens, now.mean_tokens,
            recorded=_exactly(lengths),
        )  # fmt: skip
        for name, kind, given, price in (
            ("by_count", grouped, drawn, cost),
            ("balanced", grouped, replace(drawn, recorded=recorded), balanced),
            ("unknown", grouped, drawn, balanced),
            ("oracle", alone, exact, balanced),
        ):
            times = simulate_one_round(kind, given, price, RewardCost(1, 0.0, 0.0), cost.max_sequences).times
            seconds[name].append(times.decode_end_s)
    means = {name: float(np.mean(each)) for name, each in seconds.items()}
    return {
        "of_oracle": round(means["balanced"] / means["oracle"], 4),
        "of_oracle_in_first_epoch": round(means["unknown"] / means["oracle"], 4),
        "of_oracle_by_count": round(means["by_count"] / means["oracle"], 4),
        "seconds": {name: round(each, 2) for name, each in means.items()},
    }


def _recorded(before: LengthModel, prompts: list[str], seed: int, number: int) -> Recorded:
    """What is recorded of prompts of each of which a group was drawn at the earlier checkpoint.

    Prompts are drawn anew: a trace of few prompts has each of them many times in a round, each time with a history of
    its own.
    """
    rng = np.random.default_rng([seed, 7, number])
    places = {prompt: place for place, prompt in enumerate(before.prompt_ids)}
    known = [place for place, prompt in enumerate(prompts) if prompt in places]
    groups = before.draw_many(np.array([places[prompts[place]] for place in known]), (SAMPLES,), rng)
    history = LengthHistory()
    for place, group in zip(known, groups.tolist(), strict=True):
        history.record(str(place), [int(tokens) for tokens in group])
    return history.recorded(map(str, known))


def _exactly(lengths: NDArray[np.int32]) -> Recorded:
    return Recorded({str(k): Expected(float(t), float(t)) for k, t in enumerate(lengths.ravel())}, spread=0.0)


@click.command(help="Rounds balanced by history against rounds by count; see the docstring of benchmarks/balance.")
@click.option(
    "--trace", "traces", multiple=True, type=click.Path(path_type=Path), help="Published lengths; repeatable."
)
@click.option("--epochs", type=click.IntRange(min=2), default=4, show_default=True, help="Of the real runs.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Simulated rounds of a source."
)
@click.option("--gpu", default="h100", show_default=True, help="Of the simulated engines.")
@click.option("--model", default="qwen2.5-14b", show_default=True, help="That they decode.")
@click.option("--only", type=click.Choice(["both", "real", "simulated"]), default="both", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Keep plans and runs in this new folder.")
@as_json_option
def main(
    traces: tuple[Path, ...], epochs: int, rounds: int, gpu: str, model: str, only: str, out: Path | None, as_json: bool
) -> None:
    """Measure and print."""
    result: dict[str, Any] = {"tail_ratio": None, "of_oracle": None}
    if only != "simulated":
        with contextlib.ExitStack() as stack:
            folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bl")))
            folder.mkdir(parents=True, exist_ok=True)
            click.echo(f"real engines: 2 plans, {epochs} epochs", err=True)
            result |= measure(folder, epochs)
    if only != "real" and traces:
        sources = []
        for path in traces:
            click.echo(f"{path.name}: {rounds} rounds of each source", err=True)
            sources += list(populations(path, rounds, gpu, model))
        result |= {"of_oracle": max(each["of_oracle"] for each in sources), "sources": sources}
    lines = [
        f"{each['source']}: {each['of_oracle']:.3f} of an oracle's seconds with history, "
        f"{each['of_oracle_in_first_epoch']:.3f} without, {each['of_oracle_by_count']:.3f} by count"
        for each in result.get("sources", ())
    ]
    if result["tail_ratio"] is not None:
        lines.insert(
            0,
            f"2 engines: tail {result['tail_ratio']:.2f} of that by count, round {result['round_ratio']:.2f}; "
            f"predicted within {result['prediction_error']:.1%}",
        )
    tell(result, as_json, lines)


if __name__ == "__main__":
    run(main)
