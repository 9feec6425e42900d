"""What an engine tells of requests that are released."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from rlplan.executor.engines.decoding import Decoding
from rlplan.executor.engines.messages import Request


class UntilAborted:
    """Decodes some tokens, and tells the others with the end, as vLLM does with what it has not told yet."""

    def __init__(self, told: int, untold: int) -> None:
        self.told, self.untold, self.aborted = told, untold, asyncio.Event()

    async def generate(self, prompt, parameters, name):
        yield self.output(self.told, None)
        await self.aborted.wait()
        yield self.output(self.untold, "abort")

    def output(self, tokens: int, reason: str | None) -> SimpleNamespace:
        part = SimpleNamespace(token_ids=[1] * tokens, logprobs=None, finish_reason=reason)
        return SimpleNamespace(num_cached_tokens=0, finished=reason is not None, outputs=[part])

    async def abort(self, names) -> None:
        self.aborted.set()


@pytest.mark.parametrize(
    ("told", "untold", "events"),
    [
        (90, 20, [("cutoff", 0), ("released", 110)]),  # reached by what comes with the end
        (105, 5, [("cutoff", 0), ("released", 110)]),  # told before
        (50, 20, [("released", 70)]),
    ],
)
def test_a_cutoff_that_is_reached_when_a_sample_is_released_is_told_once(told, untold, events) -> None:
    async def released() -> list[tuple[str, int]]:
        decoding = Decoding(4, pytest.fail)
        decoding.open(UntilAborted(told, untold))
        request = Request("r", (1, 2), max_tokens=1000, cutoff_tokens=100, temperature=1.0, ignore_eos=False, seed=1)
        decoding.submit([request], "v", 4)
        await asyncio.sleep(0.01)
        await decoding.release(["r"], "v")
        await asyncio.sleep(0.01)
        return [(event.name, len(event.tokens)) for event in decoding.take()]

    assert asyncio.run(released()) == events
