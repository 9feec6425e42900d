"""Samples as columns give back the rows that they were made of, and take a part of the memory of their trace."""

import json
import random
import tracemalloc

import numpy as np
from msgspec import structs

from rlplan.traces.report import run_report
from rlplan.traces.run_log import Run, read_run
from rlplan.traces.sample_columns import Samples
from rlplan.traces.trace_events import RewardPart, Sample

from .events import sample, step
from .test_report import EXAMPLE


def test_rows_come_back_as_they_were():
    first = Sample(1, "p", 0, 0, 0, 300, 20, True, "trained", 1.0, 0.1, issued_s=0.1, finished_s=2.5, engine="a")
    part = RewardPart(0.25, 0.001, "late", deadline_s=3.0, attempts=2)
    rows = [
        first,
        structs.replace(first, prompt="q", fate=None, reward=None, reward_s=1 / 3, moves=70_000, truncated=False),
        structs.replace(first, tokens=10_000_000, issued_s=None, version=("v:1", "v:2"), engine=None),
        structs.replace(first, reward_parts={"code": part, "judge": structs.replace(part, value=1.0)}),
        structs.replace(first, reward_parts={"judge": part}, reward=0.1 + 0.2),
    ]
    samples = Samples(rows)
    assert list(samples) == rows and len(samples) == 5 and list(Samples([])) == []
    assert samples.trained.tolist() == [True, False, True, True, True]
    assert samples.timed.tolist() == [True, True, False, True, True]
    assert samples["tokens"].dtype == np.uint32 and np.isnan(samples["reward"]).tolist() == [False, True, *[False] * 3]
    assert samples.by_prompt(samples.trained) == {"p": (10_000_900, 4)}
    rows_of_judge, judged = samples.parts()["judge"]
    assert rows_of_judge.tolist() == [3, 4] and judged["value"].tolist() == [1.0, 0.25]


def test_a_report_takes_less_memory_than_its_trace_has_bytes(tmp_path):
    """As objects the samples take eight times the bytes of their lines."""
    rng, path = random.Random(3), tmp_path / "trace.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(1, 41):
            for place in range(500):
                seconds = round(rng.uniform(1.0, 90.0), 6)
                fields = {"reward": float(rng.random() < 0.5), "reward_s": round(rng.random(), 6), "engine": "engine 0",
                          "issued_s": 0.001, "finished_s": seconds, "version": [f"plan:{number}"] * 2}  # fmt: skip
                row = sample(number, prompt=f"k{place // 8}", draw=place // 8, sample=place % 8, **fields)
                file.write(json.dumps({**row, "tokens": rng.randrange(1, 8192)}) + "\n")
            file.write(json.dumps(step(number, samples={"trained": 500})) + "\n")
    tracemalloc.start()
    try:
        run = Run(tmp_path, EXAMPLE, read_run(path))
        run_report(run, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(map(len, run.log.samples.values())) == 20_000
    assert peak < path.stat().st_size / 3
