"""The number of reward workers that a plan has against every other number, measured on this machine.

    python -m benchmarks.reward_workers [--steps 8] [--beyond 0] [--example FOLDER] [--keep FOLDER] [--json]

The demo's job with rewards of kind `code`, which leaves its workers to the solver, is profiled here, solved, and run
with every number of workers that the machine has cores for, in turns: 1, 2, ..., 2, 1. `seconds` are medians of a
step's seconds by number of workers, the first step of a run aside; `ratio` is the planned number's over the best's.
`beyond` are numbers above the machine's cores, which no plan has; they are no candidates for `best`.

    {"planned": …, "best": …, "ratio": …, "seconds": {"1": …, …}, "beyond": {…}, "predicted_s": …,
     "deviation": …, "one_fewer_or_more": "…"}

The demo's policy answers with two words and writes no programs. So the answer is put into a program that the row's test
calls, and that keeps a core busy for as long as code of KodCode does (profiles/library/rewards/code.yaml; a tenth of
the wrong ones never end), all seconds times SCALE, the deadline with them: a step takes seconds instead of minutes.
Engines, Ray workers, sandboxes and tests are real.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import click

from rlplan.cli.main import cli
from rlplan.executor.example.write import write_example
from rlplan.executor.execute import execute
from rlplan.executor.prepare import Options, prepare
from rlplan.executor.rewards.charges import RewardResult
from rlplan.executor.rewards.pool import RewardPool
from rlplan.plans.phrases.numbers import deviation
from rlplan.plans.schema.cluster import load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.plan import Plan, load_plan
from rlplan.plans.yaml.yaml_io import dump
from rlplan.profiles.reward_tables import HANGS_S, reward_table
from rlplan.traces.run_log import TRACE, read_run

from .entry import run
from .layout_runs import Progress, console
from .reward_deadlines import SANDBOX_S

SCALE = 1 / 40
"""Seconds of the benchmark over those of KodCode."""

DEADLINE_S = 30.0
"""KodCode's, before scaling."""

PROMPTS_PER_STEP, MAX_RESPONSE_TOKENS = 16, 256

PROGRAM = """
```python
import time
def answer():
    while time.process_time() < {seconds:.4f}:
        pass
    return {found!r}
```
"""


TESTS = """
key, value = answer()
assert {keys!r}[key] == value
"""


def drawn(values: tuple[float, ...], *names: str) -> float:
    """One of equally likely values, chosen by names alone."""
    number = int.from_bytes(hashlib.sha256("/".join(names).encode()).digest()[:8], "big")
    return values[number % len(values)]


def program(prompt: str, response: str, tests: str) -> str:
    """The response with a program that returns its answer, after as many seconds as the prompt's right answers take, or
    as some wrong answer takes."""
    found = tuple(response.replace(" yes ", " ").split()[-2:])
    took = reward_table("code").executions()
    assert took is not None, "code that ships has a distribution"
    seconds = drawn(took.correct_s, prompt) if is_right(found, tests) else drawn(took.wrong_s, prompt, response)
    scaled = HANGS_S if seconds >= HANGS_S else SCALE * max(0.0, seconds - SANDBOX_S)
    return response + PROGRAM.format(seconds=scaled, found=found)


def is_right(found: tuple[str, ...], tests: str) -> bool:
    """Whether the tests hold what was found: a key of the prompt, and its value."""
    return len(found) == 2 and f"{found[0]!r}: {found[1]!r}" in tests


@contextmanager
def programs() -> Iterator[None]:
    """Within the block every response that is scored ends with its program."""
    score = RewardPool.score

    def with_program(
        pool: RewardPool, key: str, prompt: str, response: str, answer: Any, deadline_s: float | None = None
    ) -> asyncio.Future[RewardResult]:
        return score(pool, key, prompt, program(prompt, response, answer), answer, deadline_s)

    RewardPool.score = with_program  # type: ignore[method-assign]
    try:
        yield
    finally:
        RewardPool.score = score  # type: ignore[method-assign]


def with_code_rewards(folder: Path) -> None:
    """Change the example in `folder`: rewards of kind code with tests as answers, workers left to the solver."""
    job = load_job(folder / "job.yaml").model_dump(mode="json")
    job["reward"] = {"kind": "code", "deadline_s": SCALE * DEADLINE_S}
    job["rollout"] |= {"prompts_per_step": PROMPTS_PER_STEP, "max_response_tokens": MAX_RESPONSE_TOKENS}
    dump(Job.model_validate(job), folder / "job.yaml")
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    tests = [row | {"answer": TESTS.format(keys=row["answer"])} for row in rows]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tests))


def measured_s(folder: Path) -> list[float]:
    """Seconds of a run's steps, but for the first."""
    return [step.total_s for step in read_run(folder / TRACE).steps[1:]]


def ran(example: Path, plan: Plan, counts: list[int], steps: int) -> dict[int, list[float]]:
    """Seconds of steps by number of workers, each number run twice, the second time in the opposite order."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for number, workers in enumerate([*counts, *reversed(counts)]):
        reward = plan.job.reward.model_copy(update={"workers": workers})
        path = example / f"run-{number}-workers-{workers}.yaml"
        dump(plan.model_copy(update={"job": plan.job.model_copy(update={"reward": reward})}), path)
        out = example.parent / "runs" / path.stem
        if not execute(prepare([path], out, resume=False), Options(steps, drain_queue=False), Progress()):
            raise SystemExit(130)
        seconds[workers] += measured_s(out)
    return seconds


def result(plan: Plan, seconds: dict[int, list[float]], cores: int) -> dict[str, Any]:
    """The benchmark's JSON result."""
    medians = {workers: statistics.median(values) for workers, values in sorted(seconds.items())}
    planned = plan.job.reward.workers
    allowed = {workers: value for workers, value in medians.items() if workers <= cores}
    best = min(allowed, key=lambda workers: allowed[workers])
    predicted_s = plan.predicted.step_s.p50
    return {
        "planned": planned,
        "best": best,
        "ratio": round(medians[planned] / medians[best], 4),
        "seconds": {str(workers): round(value, 3) for workers, value in allowed.items()},
        "beyond": {str(workers): round(value, 3) for workers, value in medians.items() if workers > cores},
        "predicted_s": round(predicted_s, 3),
        "deviation": round(deviation(medians[planned], predicted_s), 4),
        "one_fewer_or_more": plan.job.why.get("reward.workers", ""),
    }


@click.command()
@click.option("--steps", type=click.IntRange(min=2), default=8, show_default=True, help="Steps of each of the runs.")
@click.option("--beyond", type=click.IntRange(min=0), default=0, show_default=True, help="Numbers above the cores.")
@click.option("--example", type=click.Path(exists=True, path_type=Path), help="Copy this folder of `rlplan init`.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep plans and runs in this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def main(steps: int, beyond: int, example: Path | None, keep: Path | None, as_json: bool) -> None:
    """Measure the planned number of reward workers against every other; exit code 1 if it is not within 3 %."""
    with ExitStack() as stack:
        home = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlplan-workers-")))
        folder = home / "example"
        if example:
            shutil.copytree(example, folder)
        else:
            console.print("writing the demo's example")
            write_example(folder)
        with_code_rewards(folder)
        stack.enter_context(programs())
        with redirect_stdout(sys.stderr):  # standard output is the benchmark's own
            cli.main(["profile", str(folder), "--minutes", "1", "--trace-rounds", "1"], standalone_mode=False)
            cli.main(["solve", str(folder)], standalone_mode=False)
        plan = load_plan(folder / "plan.yaml")
        cores = load_cluster(folder / "cluster.yaml").pools["main"].cores
        document = result(plan, ran(folder, plan, list(range(1, cores + beyond + 1)), steps), cores)
    if as_json:
        click.echo(json.dumps(document))
    else:
        for key, value in document.items():
            click.echo(f"{key:20} {value}")
    if document["ratio"] > 1.03:
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
