"""Folders of runs whose checkpoints real trainers wrote, without engines: what is exported in tests."""

import asyncio
import json
import shutil

from rlplan.executor.records.checkpoints import stage_checkpoint, write_checkpoint
from rlplan.plans.schema.plan import Plan
from rlplan.plans.yaml.yaml_io import dump

from ...traces.events import sample, step
from ..tiny_job import make_plan, write_job


class OneRank:
    """A `TrainerGroup` of one rank, in this process; `written`: in place of it, what ranks of a test wrote before."""

    def __init__(self, trainer=None, written=None):
        self.trainer, self.written = trainer, written
        self.trained_parameters = 1 if trainer is None else trainer.trained_parameters()

    async def stage(self):
        return 0 if self.trainer is None else self.trainer.stage()

    async def write(self, folder):
        if self.trainer is None:
            shutil.copytree(self.written, folder)
        else:
            await asyncio.to_thread(self.trainer.write_staged, folder)

    def mean_s_between_failures(self):
        return 1e9


def begin_run(folder, model, steps=30, dtype="float32"):
    """A run of `steps` steps without a checkpoint, and beside it the job of `model` that it ran; returns its folder."""
    job, run = folder / "job", folder / "run"
    job.mkdir()
    run.mkdir()
    write_job(job, model)
    text = (job / "job.yaml").read_text()
    (job / "job.yaml").write_text(text.replace("dtype: float32", f"dtype: {dtype}"))
    dump(Plan.model_validate(make_plan(job, cutoff=None)), job / "plan.yaml")
    shutil.copyfile(job / "plan.yaml", run / "plan.yaml")
    events = [{"event": "run", "t_s": 0.0, "plan": "../job/plan.yaml"}]
    for number in range(1, steps + 1):
        of_step = {
            "trained_samples": 8,
            "trained_tokens": 80 + 8 * number,
            "reward_mean": number / 100,
            "max_tokens": 40,
        }
        events += [sample(number), step(number, **of_step)]
    lines = (json.dumps(event, separators=(",", ":")) for event in events)
    (run / "trace.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return run


def save(run, number, trainer):
    """Write a checkpoint of a step, as a run does."""

    async def body():
        await write_checkpoint(run, await stage_checkpoint(run, number, {"step": number}, trainer), trainer)

    asyncio.run(body())
