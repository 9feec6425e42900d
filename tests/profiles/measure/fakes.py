"""Stand-ins for engines, trainers and clocks that measuring is tested with: what takes seconds is what a test says."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import rlplan
from rlplan.executor.engines.engine_bench import EngineBench
from rlplan.plans.schema.cluster import Pool
from rlplan.plans.schema.job import job_paths, load_job
from rlplan.profiles.measure.time_budget import TimeBudget


class Clock:
    """Seconds that the test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def budget(minutes=15.0):
    """A budget, its clock, and the lines that it tells."""
    clock, lines = Clock(), []
    return TimeBudget(minutes, lines.append, clock), clock, lines


def pool(per_node, nodes=1, kind="cuda", memory_bytes=10**10):
    accelerators = {"kind": kind, "name": "gpu", "per_node": per_node, "memory_bytes": memory_bytes}
    sizes = {"nodes": nodes, "cores": 16, "host_memory_bytes": 10**11, "usd_per_node_hour": 1.0}
    return Pool.model_validate({"accelerators": accelerators, **sizes})


def demo_job(**rollout):
    """The job of the CPU demo and its paths; `rollout`: what is other in it."""
    path = Path(rlplan.__file__).parent / "plans" / "examples" / "cpu-demo" / "job.yaml"
    job = load_job(path)
    return job.model_copy(update={"rollout": job.rollout.model_copy(update=rollout)}), job_paths(job, path)


class Turns:
    """Notes each turn, by its name, with whom."""

    def __init__(self, clock=None, takes_s=0.0):
        self.taken, self._clock, self._takes_s = [], clock, takes_s

    def __getattr__(self, name):
        async def turn(*whom):
            self.taken.append((name, *whom))
            if self._clock is not None:
                self._clock.now += self._takes_s

        return turn


class Bench:
    """Batches on engines: a decode step is a line, and prompts that were not asked before are prefilled."""

    def __init__(self, clock, step_s=0.01, sequence_s=1e-3, kv_s=1e-6, request_s=0.0, token_s=1e-4):
        self.asked, self._clock, self._serial, self._cached = [], clock, itertools.count(), set()
        self._law, self._prefill = (step_s, sequence_s, kv_s), (request_s, token_s)

    def prompts(self, engines, sequences, tokens):
        return [[(next(self._serial), *[0] * (tokens - 1)) for _ in range(sequences)] for _ in range(engines)]

    step_s = EngineBench.step_s

    async def seconds(self, engines, batches, tokens):
        batch, (step_s, sequence_s, kv_s) = batches[0], self._law
        new = set(batch) - self._cached
        self.asked.append((len(batches), len(batch), len(batch[0]), tokens, len(new)))
        self._cached |= new
        took_s = sum(self._prefill[0] + self._prefill[1] * len(prompt) for prompt in new)
        took_s += sum(
            step_s + len(batch) * (sequence_s + kv_s * (len(batch[0]) + step + 0.5)) for step in range(tokens)
        )
        self._clock.now += took_s
        return took_s


def engine(**facts):
    return SimpleNamespace(facts=SimpleNamespace(**facts), name="engine", version="v", config=SimpleNamespace())
