"""A real judge: a tiny model behind vLLM, which can write nothing but its verdicts; killed, it loses no question."""

import asyncio
import contextlib
import os
import signal

import pytest

from rlplan.executor.engines.messages import EngineConfig
from rlplan.executor.engines.vllm_options import niceness
from rlplan.executor.processes.supervision import Supervisor
from rlplan.executor.rewards.judge_pool import JudgeConfig, JudgePool
from rlplan.executor.rollout.prompts import load_tokenizer

SAMPLES = 24


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_killed_judge_is_replaced_and_every_sample_gets_a_verdict(tiny_model, loop, ray):
    engine = EngineConfig(
        "judge-0", str(tiny_model), "float32", 1, 256, 4, "cpu", 50_000_000,
        cores=(sorted(os.sched_getaffinity(0))[-1],), compute_share=0.2, sleeps=False,
    )  # fmt: skip
    rubric = " ".join(f"w{i % 60}" for i in range(160))
    config = JudgeConfig((engine,), f"{rubric} {{prompt}} {{response}}", {"w1": 1.0, "w2": 0.25}, 4, 120.0, 2)
    pool = JudgePool(config, load_tokenizer(str(tiny_model)), Supervisor())
    deaths: list[str] = []
    pool.tell = lambda death: deaths.append(death.engine.name)

    async def body():
        try:
            await pool.start()
            facts = pool.engines[0].facts
            assert os.getpriority(os.PRIO_PROCESS, facts.cores[0]) - os.getpriority(os.PRIO_PROCESS, 0) == niceness(
                engine
            )
            futures = [pool.score(f"s{i}", f"w{i}", "w5 w6", None) for i in range(SAMPLES)]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            # With a question in each slot: those that were answered meanwhile make room for the next.
            assert any(not future.done() for future in futures)
            with contextlib.suppress(ProcessLookupError):
                os.kill(facts.cores[0], signal.SIGKILL)
            return await asyncio.gather(*futures)
        finally:
            await pool.close()

    results = loop.run_until_complete(body())
    stats = pool.stats()
    assert {result.outcome for result in results} == {"ok"} and len(results) == SAMPLES
    assert {result.reward for result in results} <= {1.0, 0.25}
    assert deaths == ["judge-0"] and stats["lost"] == sum(result.attempts > 1 for result in results) > 0
    assert stats["cached"] > 0, "the rubric is read once"
