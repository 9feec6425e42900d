"""Samples that one real engine begins and another goes on with, by the same weights."""

import asyncio
from dataclasses import replace

import pytest

from rlplan.executor.engines.messages import Request
from rlplan.plans.schema.levers import EngineLayout

from .test_engines import decode, events_in, load

pytestmark = pytest.mark.engine

ONE, TWO = EngineLayout(1, 2), EngineLayout(2, 1)
LONGEST = 200


def requests(tag, count=6):
    prompts = [(3 + i, 4 + i, 5 + i) for i in range(count)]
    return [Request(f"{tag}-{i}", prompts[i], LONGEST, ignore_eos=True, seed=100 + i) for i in range(count)]


async def released(fleet, engine, asked, version, after_s, max_num_seqs=None):
    """Submit to one engine, release all of it `after_s` later; the last event of each request."""
    inbox = asyncio.Queue()
    fleet.listen(lambda news: inbox.put_nowait(events_in(news)))
    await engine.submit(asked, version, max_num_seqs)
    await asyncio.sleep(after_s)
    await engine.release([request.request_id for request in asked])
    events = {}
    while len(events) < len(asked):
        for event in await asyncio.wait_for(inbox.get(), 60):
            if event.name in ("released", "finished"):
                events[event.request_id] = event
    return [events[request.request_id] for request in asked]


def rest(request, event):
    """What is left of a request after what one engine decoded of it."""
    return replace(
        request,
        request_id=f"{request.request_id}+",
        prompt_tokens=(*request.prompt_tokens, *event.tokens),
        max_tokens=request.max_tokens - len(event.tokens),
        drawn_tokens=len(event.tokens),
    )


@pytest.mark.parametrize("there", [ONE, TWO], ids=["tp 1", "tp 2"])
def test_a_moved_sample_is_what_it_would_have_been(fleet, loop, tiny_model, there):
    async def body():
        path = tiny_model / "model.safetensors"
        for layout in (ONE, there):
            await load(fleet, layout, path, "same")
        plain = await decode(fleet, ONE, "same", requests(f"plain{there.tp}"))
        asked = requests(f"moved{there.tp}")
        begun = await released(fleet, fleet.engines(ONE)[0], asked, "same", 0.15)
        moving = [rest(r, e) for r, e in zip(asked, begun, strict=True) if e.name == "released"]
        assert moving, "all samples ended before they could be moved"
        other = fleet.engines(there)[-1]
        inbox = asyncio.Queue()
        fleet.listen(lambda news: inbox.put_nowait(events_in(news)))
        await other.submit(moving, "same")
        ended = {}
        while len(ended) < len(moving):
            for event in await asyncio.wait_for(inbox.get(), 60):
                if event.name == "finished":
                    ended[event.request_id] = event
        whole = []
        for request, event in zip(asked, begun, strict=True):
            more = ended.get(f"{request.request_id}+")
            whole.append(
                (event.tokens + (more.tokens if more else []), event.logprobs + (more.logprobs if more else []))
            )
            assert (event.version_start, event.version_end) == ("same", "same")
        return [plain[f"plain{there.tp}-{i}"] for i in range(len(asked))], begun, whole

    plain, begun, whole = loop.run_until_complete(body())
    assert any(0 < len(event.tokens) < LONGEST for event in begun), "no sample was moved in mid-response"
    for expected, event, (tokens, logprobs) in zip(plain, begun, whole, strict=True):
        assert len(event.tokens) == len(event.logprobs)
        assert tokens == expected.tokens
        assert logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_waiting_requests_are_released_without_a_token(fleet, loop, tiny_model):
    async def body():
        await load(fleet, ONE, tiny_model / "model.safetensors", "same")
        engine = fleet.engines(ONE)[0]
        events = await released(fleet, engine, requests("waiting"), "same", 0.0, max_num_seqs=2)
        await engine.sleep()
        assert engine.version == ""
        await engine.wake("weights")
        await load(fleet, ONE, tiny_model / "model.safetensors", "next")
        await engine.wake("kv_cache")
        again = await decode(fleet, ONE, "next", requests("again", 2))
        return events, again

    events, again = loop.run_until_complete(body())
    assert [event.name for event in events] == ["released"] * 6
    assert [event.tokens for event in events[2:]] == [[]] * 4
    assert all(len(event.tokens) == LONGEST for event in again.values())
