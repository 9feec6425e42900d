"""The parts of the GPU check that plan and run the job: `rlplan solve`, `execute` of two plans, and `profile`.

Plans are made before anything is measured, from the lengths that the policy was made for and a stand-in profile of what
the device should reach. What they predict is a guess; that they run, and how long a step takes, do not rest on it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlplan.plans.facts.public_models import Architecture
from rlplan.plans.schema.cluster import Cluster, load_cluster
from rlplan.plans.schema.job import Job, load_job
from rlplan.plans.schema.workload import Workload
from rlplan.plans.yaml.yaml_io import WRITTEN_DIGITS, dump
from rlplan.profiles.hardware import gpu_of
from rlplan.profiles.laws.hardware_peaks import shape_of_policy, work_of_shape
from rlplan.profiles.laws.rank_memory import STATE_BYTES
from rlplan.profiles.library.fitness import machine_of
from rlplan.profiles.phase_schema import Reward, Rollout, Spread, Train
from rlplan.profiles.profile_schema import Dtype, Profile

from .random_policy import TINY

MODES = ("sync", "exact")
LEAST_STEP_S, STEP_S_PER_SEQUENCE = 2.5e-3, 2e-5
"""Seconds of a decode step that no small model falls below, and what each sequence adds (H100, vLLM 0.24: measured)."""
MFU, BANDWIDTH_SHARE = 0.3, 0.6
CPU_FLOPS, CPU_BYTES_PER_S = 3e10, 1e10
MOST_SEQUENCES = 1024
NOT_MEASURED = Spread(p50=1.0, p95=2.0, repeats=0)


def stand_in(job: Path, shape: Architecture, micro_batch_tokens: Sequence[int]) -> Path:
    """Write `stand-in.yaml` into the folder of a job, for a model of `shape` on its cluster.yaml; returns its path."""
    pool = load_cluster(job / "cluster.yaml").pools["main"]
    gpu = gpu_of(pool.accelerators.name)
    flops, bytes_per_s = (CPU_FLOPS, CPU_BYTES_PER_S) if gpu is None else (gpu.bf16_flops, gpu.memory_bytes_per_s)
    dtype: Dtype = "float32" if pool.accelerators.kind == "cpu" else "bfloat16"
    work = work_of_shape(shape_of_policy(shape, shape.parameters, dtype), shape.parameters, dtype)
    kv_bytes = work.weight_bytes * shape.kv_values_per_token
    step_s = max(LEAST_STEP_S, work.weight_bytes * shape.parameters / (BANDWIDTH_SHARE * bytes_per_s))
    profile = Profile(
        rlplan_profile=1,
        job=f"stand-in.{shape.name.lower()}",
        provenance="derived",
        note="A guess by data sheets, so that plans can be made before anything is measured.",
        machine=machine_of(pool),
        model_parameters=shape.parameters,
        rollout=(
            Rollout(
                tp=1, engines=1,
                step_s=step_s, step_s_per_sequence=STEP_S_PER_SEQUENCE,
                curve_sequences=(1, MOST_SEQUENCES),
                curve_s=tuple(step_s + STEP_S_PER_SEQUENCE * n for n in (1, MOST_SEQUENCES)),
                step_s_per_kv_token=kv_bytes / (BANDWIDTH_SHARE * bytes_per_s),
                prefill_s=5e-4, prefill_s_per_token=2.0 * shape.parameters / (MFU * flops),
                kv_capacity_tokens=int(0.5 * pool.accelerators.memory_bytes / kv_bytes), kv_bytes_per_token=kv_bytes,
                start=NOT_MEASURED, sync=NOT_MEASURED, error=0.5,
            ),
        ),
        train=tuple(
            Train(
                dp=1, micro_batch_tokens=tokens, step_s=0.2, error=0.5,
                step_s_per_token=work.update_flops(1.0, 0.0) / (MFU * flops),
                step_s_per_token_squared=work.update_flops(0.0, 1.0) / (MFU * flops),
            )
            for tokens in micro_batch_tokens
        ),
        reward=Reward(workers=1, latency=Spread(p50=1e-3, p95=2e-3, repeats=0), per_sample_s=1e-3),
    )  # fmt: skip
    path = job / "stand-in.yaml"
    dump(profile, path, WRITTEN_DIGITS)
    return path


def solve(parts: Parts, job: Path, shape: Architecture, modes: Sequence[str], name: str = "solve") -> bool:
    """Solve a plan of each mode for the job in a folder, by a stand-in profile; whether all could be."""
    stand_in(job, shape, load_job(job / "job.yaml").search.micro_batch_tokens or ())
    # Forced: without a data sheet of the accelerator a derived profile is taken for one of another machine.
    inputs = ("--force", "--profile", job / "stand-in.yaml", "--trace", job / "lengths.jsonl")
    return all(
        parts.run(f"{name} {mode}", *RLPLAN, "solve", job, *inputs, "--mode", mode, "-o", job / f"{mode}.yaml")
        for mode in modes
    )


def run_figures(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a run's `step` events (at least one): how many of each kind, medians of their seconds, log-probs, weights."""
    metrics = [step["metrics"] for step in steps if "logprob_mean_abs_diff" in step["metrics"]]
    kinds = [str(step["kind"]) for step in steps]
    return {
        "steps": len(steps),
        "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "step_s": statistics.fmean(step["total_s"] for step in steps),
        "seconds": {
            phase: [round(step[f"{phase}_s"], 3) for step in steps] for phase in ("total", "rollout", "train", "sync")
        },
        "tokens": [metric["tokens"] for metric in metrics],
        "logprob_mean": [metric["logprob_mean_abs_diff"] for metric in metrics],
        "weights": sorted({f"{step.get('weights_way', '')} {step.get('weights_slots', '')}".strip() for step in steps}),
    }


def execute_figures(steps: dict[str, list[dict[str, Any]]]) -> Fragment:
    """Of the runs' `step` events by plan: each run's figures; `step_ratio`, seconds of a step of sync over those of one
    of exact; `logprob_mean`, the largest mean of a step's differences between engine and trainer, nats."""
    found: Fragment = {name: run_figures(each) for name, each in steps.items() if each}
    if all(mode in found for mode in MODES):
        found["exact"]["step_ratio"] = round(found["sync"]["step_s"] / found["exact"]["step_s"], 3)
    differences = [value for run in found.values() for value in run["logprob_mean"]]
    return found | ({"logprob_mean": max(differences)} if differences else {})


def follow(out: Path, tell: Callable[[Fragment], None]) -> Callable[[], None]:
    """Returns a function that tells the figures of the runs of `MODES` under `out` whenever one has done a step."""
    traces = {mode: JsonLines(out / mode / "trace.jsonl") for mode in MODES}
    steps: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}

    def look() -> None:
        new = {mode: [event for event in trace.new() if event.get("event") == "step"] for mode, trace in traces.items()}
        for mode, events in new.items():
            steps[mode] += events
        if any(new.values()):
            tell({"execute": execute_figures(steps)})

    return look


def execute(parts: Parts, job: Path, steps: int, out: Path) -> None:
    """Run the plans of `MODES` side by side for so many steps, then report on them. `speedup` is by seconds of a
    trained sample over a cycle, with the long rounds that exact still owes as its plan predicts them."""
    plans = [job / f"{mode}.yaml" for mode in MODES]
    command = (*RLPLAN, "execute", *plans, "--steps", steps, "--out", out, "--json")
    parts.run("execute", *command, look=follow(out, parts.tell))
    if parts.run("report", *RLPLAN, "report", out, "--json"):
        runs = json.loads(parts.outputs["report"])["runs"]
        keys = ("speedup", "on_policy_violations", "conservation_violations", "checksum_mismatches", "restarts")
        parts.tell({"execute": {name: {key: run[key] for key in keys if key in run} for name, run in runs.items()}})


def profile(parts: Parts, job: Path) -> None:
    """Measure the job's profile in the least time; it stays beside the job, with its length trace."""
    command = (*RLPLAN, "profile", job, "--trace-rounds", 1, "--minutes", 1, "--json")
    if parts.run("profile", *command):
        summary = json.loads(parts.outputs["profile"].splitlines()[-1])
        kept = parts.folder / "profiles"
        kept.mkdir()
        for name in ("profile.yaml", "profile.lengths.jsonl"):
            shutil.copy2(job / name, kept)
        parts.tell({"profile": summary | {"path": str(kept / "profile.yaml")}})


# Parts of the GPU check, which are commands with a deadline, and its result as it grows: fragments, each told as one
# JSON line at once, which together are all of it.
#
# Invariants: - whenever the check is cut, the lines that were told hold all that was measured: merged in their order
# they are the result; - what a part prints as JSON lines is known at once, whatever becomes of the part afterwards; -
# a part begins only while as many seconds are left as it takes at least.

MARK = "RLPLAN_GPU_CHECK"
"""Environment variable by which the processes of a part are known, also those that left its process group."""

ROOT = Path(__file__).resolve().parents[2]
RLPLAN = (sys.executable, "-m", "rlplan.cli.main")
GRACE_S = 10.0
"""Seconds that a part has, after its deadline, to end by itself: `rlplan execute` saves its trace."""
LOOK_S = 0.1

Fragment = dict[str, Any]

STACK = re.compile(r"\s+@ +\S+ .*|\*\*\* SIGTERM received|PC: @|\[.*\] logging\.cc:\d+:")
"""Lines in which Ray's own library writes its stack when a process of it is asked to end."""


def tell(**fragment: Any) -> None:
    """Print a fragment of the check's result, from within a part."""
    print(json.dumps(fragment), flush=True)


def end_of(text: str, lines: int = 12) -> str:
    """The last lines of a text that are neither empty nor of Ray's own stack, each of at most 500 characters."""
    kept = [line.rstrip()[-500:] for line in text.splitlines() if line.strip() and not STACK.match(line)]
    return "\n".join(kept[-lines:])


class JsonLines:
    """The JSON objects of a file that still grows, each once, when its line is whole; other lines are no objects."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> list[Fragment]:
        """The objects that came since this was asked last; none of a file that is not there."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(value := json.loads(line), dict):
                    found.append(value)
        self._read += len(whole) + 1 if whole else 0
        return found


@dataclass(slots=True)
class Parts:
    """Runs the commands of one check.

    Attributes:
        device: `cuda` or `cpu`; on a CPU no part sees a GPU.
        folder: for their output; it is there.
        ends_s: `time.monotonic()` at which the check's seconds are over.
        tell: takes each fragment of the result.
        outputs: what each command that has ended printed, by name.
    """

    device: str
    folder: Path
    ends_s: float
    tell: Callable[[Fragment], None]
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.ends_s - time.monotonic()

    def run(
        self,
        name: str,
        *command: Any,
        most_s: float = float("inf"),
        fragments: bool = False,
        look: Callable[[], None] = lambda: None,
        **environment: str,
    ) -> bool:
        """Run a command with these variables in its environment; whether it ended well. A failure is told, under
        `failed`, with the end of what it said.

        `fragments`: what it prints as JSON lines are fragments of the result. `look` is called again and again while
        it runs. After `most_s` seconds, or at the end of the check, it is asked to end (SIGTERM), and GRACE_S later
        whatever is left of it is killed, by the mark in its environment.
        """
        token, log = uuid.uuid4().hex, self.folder / f"{name.replace(' ', '-')}.log"
        began, answers = time.monotonic(), log.with_suffix(".out")
        lines, late_s = JsonLines(answers), 0.0
        environ = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}), **environment}
        # Into files: a pipe would stay open as long as any process that the command left behind.
        with log.open("wb") as errors, answers.open("wb") as output:
            process = subprocess.Popen(
                [str(word) for word in command], env={**environ, MARK: token}, cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=output, stderr=errors,
            )  # fmt: skip
            try:
                ended = False
                while not ended:
                    ended = process.poll() is not None
                    for fragment in lines.new() if fragments else ():
                        self.tell(fragment)
                    look()
                    ran_s = time.monotonic() - began
                    if (ran_s >= most_s or self.left_s <= 0.0) and not (late_s or ended):
                        late_s = ran_s
                        process.send_signal(signal.SIGTERM)
                    if late_s and ran_s >= late_s + GRACE_S:
                        break
                    time.sleep(0.0 if ended else LOOK_S)
            finally:
                end_marked(token)
                process.wait()
        self.outputs[name] = answers.read_text(encoding="utf-8", errors="replace")
        told: Fragment = {"parts": {name: round(time.monotonic() - began, 1)}}
        ok = process.returncode == 0 and not late_s
        if not ok:
            why = f"not done within {late_s:.0f} s" if late_s else f"exit code {process.returncode}"
            end = end_of(log.read_text(encoding="utf-8", errors="replace")) or end_of(self.outputs[name])
            told["failed"] = {name: f"{why}\n{end}".rstrip()}
        self.tell(told)
        return ok


def end_marked(token: str) -> None:
    """Kill the processes that bear this mark in their environment (Linux: it is read from /proc)."""
    wanted = f"{MARK}={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = wanted in (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # the process has ended, or is another user's
            continue
        if marked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)


def merged(result: Mapping[str, Any], fragment: Mapping[str, Any]) -> Fragment:
    """A result with a fragment: mappings are merged key by key, of anything else the fragment's value counts."""
    found = dict(result)
    for key, value in fragment.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found


class Told:
    """Tells fragments, each as a line of `print_line` and of a file, with the seconds since the start under `at_s`."""

    def __init__(self, path: Path, print_line: Callable[[str], None], began_s: float) -> None:
        self._path, self._print, self._began_s = path, print_line, began_s
        self.result: Fragment = {}

    def tell(self, fragment: Fragment) -> None:
        """Add a fragment to the result."""
        self.result = merged(self.result, fragment)
        line = json.dumps(fragment | {"at_s": round(time.monotonic() - self._began_s, 1)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._print(line)


def run_parts(
    parts: Mapping[str, Callable[[], object]],
    least_s: Mapping[str, float],
    left_s: Callable[[], float],
    tell: Callable[[Fragment], None],
) -> None:
    """Run the parts, in order; what is skipped or fails is told with the reason, and the next one goes on.

    `least_s`: by part, the seconds without which it is not begun; `left_s` says how many are left.
    """
    for name, work in parts.items():
        if (left := left_s()) < least_s[name]:
            why = f"takes at least {least_s[name]:.0f} s, and {max(left, 0.0):.0f} of --seconds are left"
            tell({"skipped": {name: why}})
            continue
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts are worth having
            tell({"failed": {name: f"{type(error).__name__}: {error}"}})


# The part of the GPU check for jobs that run as one: two jobs of a tiny model, whose engines and trainers take turns.
#
# Nodes are two of Ray, of one GPU each. With one GPU both nodes offer it, so that turns, sleeping engines and waiting
# trainers are tried there too; what one phase then takes is no measure, since the other computes on the same GPU.

JOBS = "one", "other"
SLO, WARM_S, COLD_S = 4.0, 0.5, 60.0
GROUP = "g1"


def plan_group(parts: Parts, folder: Path) -> bool:
    """Plan two jobs as a group, from the job in `folder`/one; whether that could be done."""
    first = folder / JOBS[0]
    apart(first)
    if not solve(parts, first, TINY, ["sync"], "groups solve"):
        return False
    (first / "sync.yaml").rename(first / "plan.yaml")
    for name in JOBS[1:]:
        shutil.copytree(first, folder / name)
    return parts.run("groups solve both", *RLPLAN, "solve", write_workload(folder), "-o", folder / "groups.yaml")


def run_group(parts: Parts, folder: Path, steps: int) -> None:
    """Run the jobs of the group for so many steps; tells each job's figures."""
    from ..ray_nodes import RayNodes  # brings Ray, without which attention and updates are measured

    out = folder / "run"
    with RayNodes([1, 1], pinned=parts.device == "cpu", gpus=parts.device == "cuda") as nodes:
        command = (*RLPLAN, "execute", folder / "groups.yaml", "--steps", steps, "--out", out, "--json")
        parts.run("groups execute", *command, RAY_ADDRESS=nodes.address)
    parts.tell({"groups": {name: job_figures(JsonLines(out / GROUP / name / "trace.jsonl").new()) for name in JOBS}})


def apart(folder: Path) -> None:
    """Give the trainers of the job in a folder a pool to themselves; its pools have one node of one device each."""
    cluster = load_cluster(folder / "cluster.yaml").model_dump(mode="json")
    pool = cluster["pools"]["main"]
    pool["accelerators"]["per_node"] = 1
    cluster["pools"]["train"] = pool
    dump(Cluster.model_validate(cluster), folder / "cluster.yaml")
    job = load_job(folder / "job.yaml").model_dump(mode="json")
    dump(Job.model_validate(job | {"placement": {"train_pool": "train", "streams": False}}), folder / "job.yaml")


def write_workload(folder: Path) -> Path:
    """Write the workload of the jobs, which are solved; returns its path."""
    shutil.copy2(folder / JOBS[0] / "cluster.yaml", folder)
    state_bytes = math.ceil(STATE_BYTES * TINY.parameters)
    phases = {
        phase: {"pool": pool, "nodes": 1, "resident_bytes": state_bytes, "warm_s": WARM_S}
        for phase, pool in (("rollout", "main"), ("train", "train"))
    }
    jobs = {
        name: {"slo": SLO, "cold_s": COLD_S, "source": {"plan": f"{name}/plan.yaml"}, "phases": phases} for name in JOBS
    }
    workload = {"rlplan_workload": 1, "cluster": "cluster.yaml", "jobs": jobs}
    dump(Workload.model_validate(workload), folder / "workload.yaml")
    return folder / "workload.yaml"


def job_figures(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a job's trace: steps, turns, seconds waited for others, medians of the seconds that its switches took."""
    steps = [event for event in events if event["event"] == "step"]
    permits = [event for event in events if event["event"] == "permit"]

    def median_s(key: str) -> dict[str, float]:
        phases = sorted({str(event["phase"]) for event in permits})
        each = {phase: [event[key] for event in permits if event["phase"] == phase] for phase in phases}
        return {phase: round(statistics.median(seconds), 4) for phase, seconds in each.items()}

    return {
        "steps": len(steps),
        "turns": len(permits),
        "waited_s": round(sum(event["waited_s"] for event in permits), 3),
        "switch_in_s": median_s("switch_in_s"),
        "switch_out_s": median_s("switch_out_s"),
        "step_s": statistics.median(step["total_s"] for step in steps) if steps else None,
    }
