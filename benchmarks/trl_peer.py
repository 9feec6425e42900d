"""Training speed beside TRL's GRPOTrainer: same model, task, batch, cap, algorithm, threads; side by side in one run.

    python -m benchmarks.trl_peer [--example DIR] [--plan FILE] [--steps N] [--json]

After each step of rlplan, TRL takes one on prompts of the same order, so both see the same machine in the same minutes.
The first step of either is left out. rlplan is charged for the prompts that it still owes at the end.

On a CPU TRL generates with Hugging Face's `generate`: a batch that runs until its longest response ends, so the tail is
its cost too. With vLLM, on GPUs, it would batch continuously; this benchmark says nothing about that. Needs the extra
`rlplan[peer]`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from rlplan.executor.execute import execute
from rlplan.executor.prepare import Options, prepare
from rlplan.plans.yaml.errors import InputError
from rlplan.traces.run_log import Run, load_runs

from .entry import tell

START_DEADLINE_S, STEP_DEADLINE_S = 300.0, 600.0
DEMO = Path("runs/demo/example")

console = Console(stderr=True)


class Peer:
    """TRL in a process of its own, driven step by step."""

    def __init__(self, job: Path, steps: int, threads: int, out: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        arguments = [str(job), "--steps", str(steps), "--threads", str(threads), "--out", str(out / "trl")]
        self._errors = (out / "trl.log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.trl_worker", *arguments],
            cwd=Path(__file__).parents[1],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.steps: list[dict[str, float]] = []
        self._answer(START_DEADLINE_S)

    def step(self) -> None:
        """Let TRL take one step. Raises RuntimeError when it ended or takes too long."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # _answer says why it ended
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
        self.steps.append(json.loads(self._answer(STEP_DEADLINE_S)))

    def _answer(self, deadline_s: float) -> str:
        """TRL's next line that begins with @, without the @; its libraries print the other lines."""
        assert self._process.stdout is not None
        timer = threading.Timer(deadline_s, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith("@"):
                    return line[1:]
        finally:
            timer.cancel()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"TRL ended, or was silent for {deadline_s:.0f} s: {last}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._errors.close()


class Lockstep:
    """Implements `executor.turns.Watcher`: the peer steps after each step of rlplan's."""

    def __init__(self, peer: Peer, steps: int) -> None:
        self._peer = peer
        self._steps = steps

    def phase(self, text: str) -> None:
        """Tell that something slow begins."""
        console.print(f"rlplan: {text}")

    def round_begins(self, name: str, kind: str, step: int, progress: Callable[[], Any]) -> None:
        """Nothing to do."""

    def step_done(self, name: str, record: Any) -> None:
        """Let the peer take its step."""
        self._peer.step()
        seconds = self._peer.steps[-1]["seconds"]
        console.print(f"step {record.step}/{self._steps}: rlplan {record.total_s:.2f} s, TRL {seconds:.2f} s")

    def note(self, text: str) -> None:
        """Print a line for the user."""
        console.print(text)


@contextmanager
def solved_example(given: Path | None) -> Iterator[Path]:
    """A folder with job.yaml and plan.yaml: the given one, the demo's, or a temporary one."""
    folder = given or (DEMO if (DEMO / "plan.yaml").exists() else None)
    if folder is not None:
        console.print(f"using {folder}")
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="rlplan-trl-peer-") as home:
        folder = Path(home) / "example"
        for command in ("init", "profile", "solve"):
            subprocess.run([sys.executable, "-m", "rlplan.cli.main", command, str(folder)], check=True, stdout=2)
        yield folder


def compare(example: Path, plan: Path, steps: int, threads: int) -> dict[str, Any]:
    """Run both and compare. Raises InputError for a stale plan, RuntimeError when a side fails."""
    with tempfile.TemporaryDirectory(prefix="rlplan-trl-peer-") as home:
        out = Path(home)
        executions = prepare([plan], out / "rlplan", resume=False)
        console.print("starting TRL")
        peer = Peer((example / "job.yaml").resolve(), steps, threads, out)
        try:
            if not execute(executions, Options(steps, checkpoint_every=steps), Lockstep(peer, steps)):
                raise RuntimeError("interrupted")
        finally:
            peer.close()
        run = load_runs(out / "rlplan")[0]
    return result(run, peer.steps)


def result(run: Run, peer: list[dict[str, float]]) -> dict[str, Any]:
    """Samples per second of both, and their mean lengths and rewards, without their first steps."""
    run.log.steps, peer = run.log.steps[1:], peer[1:]
    ours = 1.0 / run.means.seconds_per_sample
    theirs = sum(step["samples"] for step in peer) / sum(step["seconds"] for step in peer)
    trained = sum(step.trained_samples for step in run.log.steps)
    return {
        "samples_per_s": {"rlplan": ours, "trl": theirs},
        "ratio": ours / theirs,
        "mode": run.plan.job.bias.mode,
        "steps": len(peer),
        "mean_tokens": {
            "rlplan": sum(step.trained_tokens for step in run.log.steps) / trained,
            "trl": sum(step["mean_tokens"] for step in peer) / len(peer),
        },
        "reward_mean": {
            "rlplan": sum(step.reward_mean * step.trained_samples for step in run.log.steps) / trained,
            "trl": sum(step["reward_mean"] for step in peer) / len(peer),
        },
    }


def main() -> int:
    """Parse arguments, run, print. Returns the exit code: 0, 1 when a side failed, 2 for bad input."""
    parser = argparse.ArgumentParser(description="rlplan beside TRL's GRPOTrainer, samples per second")
    parser.add_argument("--example", type=Path, help="folder of rlplan init, profiled and solved; default: the demo's")
    parser.add_argument("--plan", type=Path, help="default: plan.yaml in the example")
    parser.add_argument("--steps", type=int, default=32, help="optimizer steps of each (default 32)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="TRL's; default: all cores")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2: the first is left out")
    if importlib.util.find_spec("trl") is None:
        parser.error("TRL is not installed; run: pip install 'rlplan[peer]'")
    try:
        with solved_example(options.example) as example:
            result = compare(example, options.plan or example / "plan.yaml", options.steps, options.threads)
    except InputError as error:
        console.print(f"error: {error}")
        return 2
    except (RuntimeError, subprocess.CalledProcessError) as error:
        console.print(f"failed: {error}")
        return 1
    speed = result["samples_per_s"]
    tell(
        result,
        options.json,
        f"rlplan {speed['rlplan']:.1f}, TRL {speed['trl']:.1f} samples per second: {result['ratio']:.2f}x "
        f"({result['steps']} steps each, mode {result['mode']}; mean length {result['mean_tokens']['rlplan']:.0f} "
        f"and {result['mean_tokens']['trl']:.0f} tokens)",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
