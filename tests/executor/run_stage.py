"""A real run in one process, whose engines are made up; its trainer too, in virtual time, unless a test brings one."""

import asyncio
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file

from rlplan.executor.loop import step
from rlplan.executor.processes.supervision import Supervisor
from rlplan.executor.records.checkpoints import checkpoints
from rlplan.executor.rollout.round_samples import Progress, RolloutResult, RolloutSample
from rlplan.executor.run import TrainingRun
from rlplan.executor.trainer.manifest import write_manifest
from rlplan.executor.trainer.trainer_group import PredictedCalls, TrainerDied
from rlplan.executor.weight_sync import WeightSync
from rlplan.executor.weights.transfer import tensor_checksum
from rlplan.plans.schema.job import Job
from rlplan.plans.schema.planned_job import PlannedJob
from rlplan.plans.yaml.yaml_io import loads
from rlplan.rounds.machines.events import Finished, Scored
from rlplan.traces.trace import read_trace

from .virtual_loop import played

PROMPTS = [f"q{number}" for number in range(30)]
JOB = """\
rlplan_job: 1
name: toy
model: {path: model, dtype: float32}
data: {path: data.jsonl}
reward: {kind: math, workers: 1, deadline_s: 5.0}
rollout: {prompts_per_step: 2, samples_per_prompt: 3, max_prompt_tokens: 8, max_response_tokens: 16}
algorithm: {name: grpo, learning_rate: 0.001}
search: {tp: [1], micro_batch_tokens: [64]}
"""
PLAN = {
    "name": "toy", "bias": {"mode": "sync", "budget": 0.0}, "why": {}, "sync": {"checksum_every": 1},
    "issue": {"prompts_per_step": 2, "samples_per_prompt": 3}, "reward": {"workers": 1, "deadline_s": 5.0},
    "loss": {"samples": 6.0, "tokens": 36},
    "rounds": {
        "short": {
            "issue": {"prompts": 2, "samples": 3}, "cutoff_tokens": None,
            "rollout": {"pool": "main", "engines": 1, "tp": 1, "max_num_seqs": 8},
            "train": {"dp": 1, "micro_batch_tokens": 64},
        },
        "long": None,
    },
}  # fmt: skip
FINE = {"loss": 1.0, "logprob_mean_abs_diff": 0.0, "logprob_p99_abs_diff": 0.0, "grad_norm": 1.0, "skipped": 0.0}


class MadeUpEngine:
    """A fleet of one engine, which takes any weights for what they are, within 2 s."""

    draft_tokens, name, alive, version, load_s = 0, "made-up", True, "", 0.0
    supervisor = Supervisor()

    def __init__(self):
        self.missed = []

    def engines(self, layout):
        return [self]

    async def some_ready(self, engines):
        return engines

    async def load(self, path, version, checked):
        await asyncio.sleep(self.load_s)
        return {name: tensor_checksum(tensor) for name, tensor in load_file(path).items()} if checked else {}

    def take_missed(self):
        missed, self.missed = self.missed, []
        return missed


class NumberTrainer:
    """A `TrainerGroup` whose weights are one number, which each step changes by what it trains.

    Its writes wait while `gate` is closed, and then end as `fate` says.
    """

    name, trained_parameters, config, lives = "trainer toy", 10, SimpleNamespace(tp=1, sp=1), 1
    step_s, restarts, dies_in_update, fate, writes = 5.0, 0, False, None, 0
    predicted, dies_of = PredictedCalls(), "it was killed"

    def __init__(self):
        self.weights, self.staged, self.metrics, self.trained = 1.0, 0.0, dict(FINE), []
        self.death, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def step(self, groups, update, *, streamed, begins):
        begins()
        await asyncio.sleep(self.step_s)
        if self.dies_in_update:
            died = TrainerDied(self.name, self.dies_of)
            died.late = self.dies_of.startswith("no answer")
            raise died
        self.trained.append([(group[0].prompt_id, len(group)) for group in groups])
        if not self.metrics["skipped"]:
            for sample in (sample for group in groups for sample in group):
                self.weights = self.weights / 2 + sum(sample.response_tokens) * (1 + sample.reward)
        return dict(self.metrics)

    async def export(self, path, version, checksums):
        save_file({"w": torch.tensor([self.weights])}, path)
        return {"w": tensor_checksum(torch.tensor([self.weights]))} if checksums else {}

    async def stage(self):
        self.staged = self.weights
        return 8

    async def write(self, folder):
        self.writes += 1
        await self.gate.wait()
        if self.fate is not None:
            raise self.fate
        folder.mkdir()
        part = folder / "weights"
        part.write_text(str(self.staged))
        write_manifest(folder / "manifest-0.json", [part])

    async def before_load(self):
        """What happens before a checkpoint is loaded."""

    async def damage(self, folder):
        return None

    async def load(self, folder):
        await self.before_load()
        self.weights = float((folder / "weights").read_text())

    async def lost(self):
        await self.death.wait()
        raise TrainerDied(self.name, "it was killed")

    async def restart(self, why):
        self.weights, self.dies_in_update = 1.0, False
        self.restarts += 1
        self.death.clear()

    def mean_s_between_failures(self):
        return 3600.0

    async def close(self): ...


class NumberRounds:
    """Rounds of three tokens a sample, which depend on the weights' version alone; the last reward comes 1 s after the
    last token."""

    round_s = 4.5

    def __init__(self):
        self.progress = Progress()

    async def run(self, machine, layout, version, *_):
        await asyncio.sleep(self.round_s)
        samples = {}
        for action in machine.start():
            key = action.key
            samples[key] = RolloutSample(
                action.prompt, key.sample, (1, 2), [int(version.split(":")[1]), key.draw, key.sample], [0.0] * 3,
                float(key.sample == 0), draw=key.draw, version_start=version, version_end=version, finished_s=3.0,
                reward_outcome="ok",
            )  # fmt: skip
            machine.handle(Finished(key, 3, truncated=False))
            machine.handle(Scored(key, float(key.sample == 0)))
        return RolloutResult(3.0, 1.0, samples, ["one engine"])


def weights_by_file(run):
    """The run, whose weights go by file: its trainer and engines are no processes that could broadcast."""
    run.weights = WeightSync(run.trainer, run.fleet, run.weights_path)
    by_file = run.weights._file.send
    run.weights._broadcast.send = lambda *arguments, from_host: by_file(*arguments)
    return run


def new_run(folder, trainer, rounds=None, **parts):
    run = TrainingRun(
        "toy", PlannedJob.model_validate(PLAN), loads(JOB, Job), folder, fleet=MadeUpEngine(),
        runner=rounds or NumberRounds(), trainer=trainer, prompt_ids=list(PROMPTS), **parts,
    )  # fmt: skip
    return weights_by_file(run)


def in_a_run(folder, body, resume=False, steps=1, **parts):
    """Have `body(run, trainer)` take place in a run after so many steps; returns the events of its trace."""

    async def whole():
        trainer = NumberTrainer()
        run = new_run(folder, trainer, **parts)
        await run.start(resume)
        for _ in range(steps):
            await step(run)
        await body(run, trainer)
        await run.close()

    played(asyncio.wait_for(whole(), 10**6))
    return list(read_trace(folder / "trace.jsonl"))


def names(folder):
    return [path.name for path in checkpoints(folder)]
