"""The engine's actor and its requests, around an AsyncLLM of the test: what vLLM is told, and what engines tell."""

import asyncio
import pickle
import random
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from rlplan.executor.drafts.draft_messages import DraftReport, PromptHistory
from rlplan.executor.engines import engine as engine_module
from rlplan.executor.engines import engine_watch
from rlplan.executor.engines.engine import RolloutEngine
from rlplan.executor.engines.engine_watch import IDLE_RANKS_S, Children
from rlplan.executor.engines.fleet import FleetConfig
from rlplan.executor.engines.messages import EngineConfig, EngineEvent, Request, SamplingRules
from rlplan.executor.engines.vllm_options import (
    ALIVE_TOKENS,
    CORES,
    KERNELS,
    MIN_P,
    SEED,
    context_tokens,
    engine_arguments,
    environment,
    niceness,
    sampling_parameters,
    versions_of,
)
from rlplan.executor.placement.run_placement import engine_counts
from rlplan.executor.processes.faults import ActorFailed
from rlplan.executor.weights.transfer import Answer, Transfer
from rlplan.plans.schema.levers import EngineLayout

from ..virtual_loop import now_s, played

CONFIG = EngineConfig("e", "model", "float32", 2, 64, 4, "cpu", 10**6, cores=(3, 5), seed=7)
FIELDS = ["extra_args", "max_tokens", "temperature", "top_p", "top_k", "stop", "include_stop_str_in_output"]
FIELDS += ["stop_token_ids", "logprobs", "flat_logprobs", "detokenize", "ignore_eos", "seed"]
FIELDS += ["output_kind", "stream_interval", "structured_outputs"]


class SamplingParams(SimpleNamespace):
    __struct_fields__ = FIELDS


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """vLLM's modules, of which the engine takes a few names."""
    found = SimpleNamespace(SamplingParams=SamplingParams, AsyncEngineArgs=dict, llm=LLM())
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(DELTA="delta"), StructuredOutputsParams=dict)
    core = SimpleNamespace(AsyncLLM=SimpleNamespace(from_engine_args=lambda arguments: found.llm.begun(arguments)))
    for name, module in (("vllm", found), ("vllm.sampling_params", kinds), ("vllm.v1.engine.async_llm", core)):
        monkeypatch.setitem(sys.modules, name, module)
    found.nice = []
    monkeypatch.setattr(engine_module, "guard_group", lambda: None)
    monkeypatch.setattr(engine_module.os, "nice", found.nice.append)
    monkeypatch.setattr(engine_module, "gc", SimpleNamespace(collect=list, freeze=list))
    return found


class LLM:
    """Decodes `told` tokens of a request, then `untold` ones in a second with its end; `calls` has what was asked."""

    told, untold, errored, resets, starts = 2, 1, False, True, True
    by_place, ends = (None, None), "length"

    def __init__(self):
        self.calls, self.aborted, self.answers, self.arguments = [], {}, {}, None
        self.decodes, self.parameters = asyncio.Event(), {}
        self.decodes.set()
        cache = SimpleNamespace(num_gpu_blocks=10, block_size=16)
        self.vllm_config = SimpleNamespace(cache_config=cache)
        manager = SimpleNamespace(processes=[SimpleNamespace(pid=41)])
        self.engine_core = SimpleNamespace(resources=SimpleNamespace(engine_manager=manager))

    def begun(self, arguments):
        self.arguments = arguments
        if not self.starts:
            raise RuntimeError("Engine core initialization failed.\n See root cause above")
        return self

    async def generate(self, prompt, parameters, name):
        self.parameters[name] = parameters
        aborted = self.aborted[name] = asyncio.Event()
        yield self.output(self.told, None)
        if not self.decodes.is_set():
            await asyncio.wait(
                [asyncio.ensure_future(e.wait()) for e in (self.decodes, aborted)], return_when=asyncio.FIRST_COMPLETED
            )
        else:
            await asyncio.sleep(1)
        yield self.output(self.untold, "abort" if aborted.is_set() else self.ends)

    def output(self, tokens, reason):
        logprobs = SimpleNamespace(logprobs=[-0.5] * tokens)
        part = SimpleNamespace(token_ids=[1] * tokens, logprobs=logprobs, finish_reason=reason, weight_versions=None)
        return SimpleNamespace(num_cached_tokens=2, finished=reason is not None, outputs=[part])

    async def abort(self, names):
        self.calls.append(("abort", tuple(names)))
        for name in names:
            self.aborted[name].set()

    async def collective_rpc(self, method, args=()):
        self.calls.append((method, args) if args else method)
        answer = self.answers.get(method, self.by_place if method == "draw_by_place" else [True, True])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def is_sleeping(self):
        self.calls.append("is_sleeping")

    async def reset_prefix_cache(self):
        return self.resets

    async def update_weight_version(self, version):
        self.calls.append(("named", version))

    async def sleep(self, level):
        self.calls.append(("sleep", level))

    async def wake_up(self, tags):
        self.calls.append(("wake", *tags))

    def shutdown(self):
        self.calls.append("shutdown")


def started(body, vllm, config=CONFIG, **llm):
    """Have `body(engine, llm)` take place in virtual time with an engine that has started and holds weights v1."""

    async def scene():
        vllm.llm = LLM()
        engine = RolloutEngine(config)
        facts = await engine.start()
        for name, value in llm.items():
            setattr(vllm.llm, name, value)
        engine._version, vllm.llm.calls = "v1", []
        try:
            await body(engine, vllm.llm)
        finally:
            await engine.close()
        assert vllm.llm.calls[-1] == "shutdown"
        return facts

    return played(scene())


def request(name="r", prompt_tokens=(1, 2), **fields):
    return Request(name, prompt_tokens, **{"max_tokens": 1000, "ignore_eos": False, "seed": 1, **fields})


async def events(engine, timeout_s=60.0):
    return [(event.name, event.request_id, len(event.tokens)) for event in await engine.poll(timeout_s)]


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        (CONFIG, ["draw_by_place"]),
        (replace(CONFIG, draft_tokens=3, compute_share=0.1), ["draw_by_place", "attach_drafts"]),
        (replace(CONFIG, device="cuda"), ["draw_by_place", "device_uuid"]),
    ],
)
def test_an_engine_that_starts_warms_up_and_says_what_it_has(vllm, monkeypatch, config, asked):
    monkeypatch.setattr(engine_module, "engine_arguments", lambda config: {"config": config.name})
    seen, calls, call = [], [], LLM.collective_rpc

    async def kept(self, method, args=()):
        calls.append(method)
        return await call(self, method, args)

    async def body(engine, llm):
        seen.append((engine._decoding.draws_by_place, await engine.poll(0.0)))
        assert len(llm.parameters) == 4 and {each.max_tokens for each in llm.parameters.values()} == {4}
        assert isinstance(await engine.look_at_children(), Children)

    monkeypatch.setattr(LLM, "collective_rpc", kept)
    facts = started(body, vllm, config)
    assert (facts.start_s, facts.kv_capacity_tokens, facts.kv_block_tokens, facts.cores) == (1.0, 160, 16, (41,))
    assert [name for name in calls if name != "pulse"] == asked and vllm.nice == [niceness(config)]
    assert facts.devices == ((True, True) if config.device == "cuda" else ()) and seen == [(True, [])]


def test_ranks_that_cannot_draw_by_place_leave_seeds_to_vllm(vllm, monkeypatch):
    monkeypatch.setattr(LLM, "by_place", ["no sampler", None])

    async def body(engine, llm):
        await engine.submit([request(seed=5)], "v1")
        await engine.poll(60.0)
        assert (llm.parameters["r"].seed, llm.parameters["r"].extra_args) == (5, None)

    assert started(body, vllm).slow_seeds == "no sampler"
    with pytest.raises(ValueError, match=r"rollout.top_p, .* of what they leave alone \(no sampler\); leave them out"):
        started(body, vllm, replace(CONFIG, restricts=True))


def test_a_moved_samples_stop_is_found_where_both_engines_wrote_it(vllm):
    rules = SamplingRules(stop=("b c",))

    async def body(engine, llm):
        llm.tokenizer = SimpleNamespace(
            decode=lambda tokens, skip_special_tokens: " ".join(map("xabcd".__getitem__, tokens))
        )
        llm.told, llm.untold, llm.aborts = 0, 3, []
        for drawn, words, kept in ((2, [3, 1, 4], 1), (1, [2, 3, 4], 2), (2, [1, 1, 1], 3)):
            llm.output = partial(said, words)
            await engine.submit([request(f"r{drawn}", prompt_tokens=(1, 2), drawn_tokens=drawn, rules=rules)], "v1")
            event = (await engine.poll(60.0))[0]
            assert (event.tokens, event.truncated) == (words[:kept], kept == 3) and len(event.logprobs) == kept

    def said(words, count, reason):
        found = LLM.output(None, count, reason)
        found.outputs[0].token_ids = words[:count]
        return found

    started(body, vllm)


def test_a_vllm_that_keeps_the_heads_dtype_is_refused(vllm, monkeypatch):
    monkeypatch.setattr(engine_module, "engine_arguments", lambda config: {})
    model = SimpleNamespace(head_dtype="torch.bfloat16")

    async def scene():
        vllm.llm = LLM()
        vllm.llm.vllm_config.model_config = model
        with pytest.raises(ValueError, match=r"logits of bfloat16, not float32; install vLLM 0\.32"):
            await RolloutEngine(replace(CONFIG, head_dtype="float32")).start()

    played(scene())


def test_a_core_that_does_not_come_up_is_a_dead_actor(vllm):
    async def scene():
        vllm.llm.starts = False
        with pytest.raises(ActorFailed, match=r"e: Engine core initialization failed\. See root cause above"):
            await RolloutEngine(replace(CONFIG, device="cuda")).start()

    played(scene())


def test_requests_decode_as_many_at_once_as_the_round_says(vllm):
    async def body(engine, llm):
        for version, asleep, why in (
            ("v2", (), "asked to decode with 'v2', holds 'v1'"),
            ("v1", ("kv_cache",), "sleep"),
        ):
            engine._asleep = asleep
            with pytest.raises(RuntimeError, match=why):
                await engine.submit([request()], version)
        engine._asleep = ()
        await engine.submit([request(f"r{n}") for n in range(3)], "v1", 2)
        await asyncio.sleep(0)
        assert await engine.held_tokens() == {"r0": 66, "r1": 66, "r2": 2} | {
            "r0": 4 + ALIVE_TOKENS,
            "r1": 4 + ALIVE_TOKENS,
        }
        began = now_s()
        done = await engine.poll(60.0)
        assert sorted(event.request_id for event in done) == ["r0", "r1"] and now_s() - began == pytest.approx(1.005)
        (one, _) = done
        assert (one.name, one.tokens, one.logprobs, one.truncated) == ("finished", [1] * 3, [-0.5] * 3, True)
        assert (one.version_start, one.version_end, one.cached_tokens, one.decode_s) == ("v1", "v1", 2, 1.0)
        assert await events(engine) == [("finished", "r2", 3)]
        await engine.submit([request("r3")], "v1")
        assert engine._decoding._room._value == 4, "as many as vLLM was built for"

    started(body, vllm)


def test_an_abort_drops_a_request_and_what_it_told(vllm):
    async def body(engine, llm):
        await engine.submit([request("a"), request("b")], "v1")
        await asyncio.sleep(1.5)
        await engine.submit([request("c")], "v1")
        await asyncio.sleep(0.5)
        await engine.abort(["a", "c", "unknown"])
        assert await events(engine) == [("finished", "b", 3)]
        assert await events(engine, 5.0) == [("pulse", "", 0)] and await engine.held_tokens() == {}

    started(body, vllm)


@pytest.mark.parametrize(
    ("told", "untold", "told_of"),
    [
        (90, 20, [("cutoff", 0), ("released", 110)]),  # reached by what comes with the end
        (105, 5, [("cutoff", 0), ("released", 110)]),  # told before
        (50, 20, [("released", 70)]),
    ],
)
def test_a_released_sample_tells_its_tokens_and_a_cutoff_once(vllm, told, untold, told_of):
    async def body(engine, llm):
        llm.decodes.clear()
        await engine.submit([request(cutoff_tokens=100), request("waits")], "v1", 1)
        await asyncio.sleep(0.01)
        await engine.release(["r", "waits", "unknown"])
        await asyncio.sleep(0.01)
        found = await events(engine)
        assert [(name, tokens) for name, r, tokens in found if r == "r"] == told_of
        assert ("released", "waits", 0) in found and llm.calls.count(("abort", ("r",))) == 1

    started(body, vllm, told=told, untold=untold)


@pytest.mark.parametrize(("cutoff", "interval"), [(None, ALIVE_TOKENS), (2, 2), (101, 100)])
def test_vllm_without_intervals_of_requests_tells_at_cutoffs_too(vllm, monkeypatch, cutoff, interval):
    async def body(engine, llm):
        monkeypatch.setattr(SamplingParams, "__struct_fields__", [])
        state = SimpleNamespace(stream_interval=ALIVE_TOKENS)
        llm.output_processor = SimpleNamespace(external_req_ids={"r": ["r-0"]}, request_states={"r-0": state})
        await engine.submit([request(cutoff_tokens=cutoff)], "v1")
        await engine.poll(60.0)
        assert state.stream_interval == interval

    started(body, vllm)


def test_a_poll_without_events_says_whether_anything_grew_or_lives(vllm):
    async def body(engine, llm):
        llm.decodes.clear()
        await engine.submit([request()], "v1")
        assert [await events(engine, 2.0) for _ in range(2)] == [[("alive", "", 0)], [("pulse", "", 0)]]
        assert llm.calls.count("pulse") >= 3 and "is_sleeping" not in llm.calls, "ranks of an engine that decodes"
        await engine.abort(["r"])
        llm.calls.clear()
        for _ in range(int(2 * IDLE_RANKS_S)):
            assert await events(engine, 1.0) == [("pulse", "", 0)]
        assert llm.calls.count("pulse") == 2 and 35 <= llm.calls.count("is_sleeping") <= 39
        llm.answers["pulse"] = RuntimeError("no answer")
        llm.is_sleeping = lambda: asyncio.sleep(10**6)
        await engine.poll(2.0)
        assert await engine.poll(30.0) == [], "a question without an answer is not asked again"

    started(body, vllm)


def test_a_dead_core_is_told_to_the_next_poll_and_call(vllm):
    async def body(engine, llm):
        began = now_s()
        asyncio.get_running_loop().call_later(1.0, setattr, llm, "errored", True)
        with pytest.raises(ActorFailed, match="vLLM failed: its core process died"):
            await engine.poll(60.0)
        assert 1.0 <= now_s() - began <= 1.3
        llm.answers["receive_weights"] = RuntimeError("EngineDeadError")
        with pytest.raises(ActorFailed, match="vLLM's core process died"):
            await engine.load_weights("w", "v2", False)

    started(body, vllm)


def test_an_engine_whose_request_fails_says_why(vllm):
    async def body(engine, llm):
        llm.generate = lambda *arguments: 1 / 0
        await engine.submit([request()], "v1")
        with pytest.raises(ActorFailed, match="vLLM failed: ZeroDivisionError: division by zero"):
            await engine.poll(60.0)
        with pytest.raises(ActorFailed, match="it warmed up: ZeroDivisionError"):
            await engine._warm_up()

    started(body, vllm)


@pytest.mark.parametrize(
    ("ends", "name"),
    [("stop", "finished"), ("length", "finished"), ("abort", "released"), ("error", "lost"), ("repetition", "lost")],
)
def test_only_stop_and_length_are_ends_of_a_response(vllm, ends, name):
    async def body(engine, llm):
        llm.ends = ends
        await engine.submit([request()], "v1")
        (event,) = await engine.poll(60.0)
        assert (event.name, event.reason, event.truncated) == (name, ends, ends == "length")

    started(body, vllm)


def test_what_a_rank_raises_as_weights_arrive_costs_the_engine(vllm):
    told = Transfer("v2", "host", "float32", (), False)

    async def body(engine, llm):
        for method, call in (
            ("receive_weights", lambda: engine.load_weights("w", "v2", False)),
            ("begin_weights", lambda: engine.begin_weights(told, "v2")),
            ("load_bucket", lambda: engine.load_bucket(0)),
            ("finish_weights", lambda: engine.finish_weights("v2")),
        ):
            llm.answers[method] = Exception("Call to collective_rpc method failed: CUDA error: an illegal access")
            with pytest.raises(ActorFailed, match=r"vLLM could not receive weights: Exception: .*CUDA error"):
                await call()

    started(body, vllm)


def test_a_dead_core_is_told_with_its_logs_words(vllm, monkeypatch, tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "x" * 2**19 + "\n(EngineCore pid=7) ERROR [core.py:9] torch.OutOfMemoryError: CUDA out of memory. 2 GiB\n"
    )
    monkeypatch.setattr(engine_watch, "output_file", lambda: log)

    async def body(engine, llm):
        llm.errored = True
        with pytest.raises(ActorFailed, match=r"its core process died; its log says: CUDA out of memory\. 2 GiB"):
            await engine.poll(60.0)

    started(body, vllm)


def test_weights_are_held_if_all_ranks_received_the_same_version(vllm):
    async def body(engine, llm):
        llm.answers["receive_weights"] = [("v2", {"w": "1"}), ("v2", {"w": "1"})]
        assert await engine.load_weights("path", "v2", True) == {"w": "1"} and engine._version == "v2"
        assert llm.calls == [("receive_weights", ("path", "v2", True)), ("named", "v2")]
        for answers, resets, why in (
            ([("v2", {"w": "1"}), ("v2", {"w": "2"})], True, "ranks received different weights from path"),
            ([("v1", {}), ("v2", {})], True, "path holds weights 'v1', not 'v2'"),
            ([("v2", {}), ("v2", {})], False, "prefix cache of the old weights could not be emptied"),
        ):
            llm.answers["receive_weights"], llm.resets, engine._version = answers, resets, "v1"
            with pytest.raises(RuntimeError, match=why):
                await engine.load_weights("path", "v2", True)
            assert engine._version == "", "none of them may decode"
        told = Transfer("v2", "host", "float32", (), False)
        llm.decodes.clear()
        engine._version = "v1"
        await engine.submit([request()], "v1")
        for call in (engine.load_weights("path", "v2", False), engine.begin_weights(told, "v2")):
            with pytest.raises(RuntimeError, match="must not change while 1 requests decode"):
                await call

    started(body, vllm)


def test_an_engine_holds_a_version_once_all_of_it_is_loaded(vllm):
    told = Transfer("v2", "host", "float32", (), False)

    async def body(engine, llm):
        llm.answers |= {"begin_weights": [None, None], "load_bucket": [None, "a peer is gone"]}
        assert await engine.begin_weights(told, "v2") == Answer() and engine._version == ""
        assert await engine.load_bucket(3) == Answer(broken="a peer is gone")
        llm.answers["finish_weights"] = [("v2", {"w": "1"})] * 2
        assert await engine.finish_weights("v2") == Answer({"w": "1"}) and engine._version == "v2"
        assert [call for call in llm.calls if call[0] == "load_bucket"] == [("load_bucket", (3,))]
        with pytest.raises(RuntimeError, match="the trainer holds weights 'v1', not 'v2'"):
            await engine.begin_weights(told, "v1")
        assert engine._version == ""

    started(body, vllm)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_engine_that_slept_decodes_after_weights_and_cache_woke(vllm, monkeypatch, device):
    monkeypatch.setattr(engine_module, "engine_arguments", lambda config: {})

    async def body(engine, llm):
        llm.answers["receive_weights"] = [("v2", {})] * 2
        await engine.sleep()
        assert engine._version == ""
        with pytest.raises(RuntimeError, match="the memory of its weights is asleep"):
            await engine.load_weights("path", "v2", False)
        with pytest.raises(RuntimeError, match="kv_cache cannot wake; asleep: weights, kv_cache"):
            await engine.wake("kv_cache")
        await engine.wake("weights")
        await engine.load_weights("path", "v2", False)
        await engine.wake("kv_cache")
        with pytest.raises(RuntimeError, match="weights cannot wake; asleep: nothing"):
            await engine.wake("weights")
        turns = [call for call in llm.calls if call[0] in ("sleep", "wake")]
        assert turns == ([("sleep", 2), ("wake", "weights"), ("wake", "kv_cache")] if device == "cuda" else [])
        await engine.submit([request()], "v2")
        with pytest.raises(RuntimeError, match="cannot sleep while 1 requests decode"):
            await engine.sleep()
        await asyncio.sleep(0)
        await engine.abort(["r"])
        if device == "cuda":
            llm.sleep = lambda level: 1 / 0
            with pytest.raises(ActorFailed, match="e: vLLM could not sleep: ZeroDivisionError"):
                await engine.sleep()

    started(body, vllm, replace(CONFIG, device=device))


def test_drafts_and_checksums_are_asked_of_the_ranks(vllm):
    async def body(engine, llm):
        history = PromptHistory("p", [], [], 0)
        await engine.begin_drafts(4, 8)
        await engine.remember([history])
        llm.answers["take_drafts"] = [None, pickle.dumps(DraftReport(3))]
        assert (await engine.take_drafts(["r"])).steps == 3
        llm.answers["live_checksum"] = ["ab", 12]
        assert await engine.live_checksum() == "ab-12"
        assert llm.calls == [
            ("begin_drafts", (4, 8)), ("remember", ([pickle.dumps(history)],)), ("take_drafts", (["r"],)),
            "live_checksum",
        ]  # fmt: skip

    started(body, vllm)


# -- options -----------------------------------------------------------------------------------------------------------


def test_an_engine_on_cores_and_one_on_gpus_have_their_own_options(monkeypatch):
    cpu, gpu = environment(CONFIG), environment(replace(CONFIG, device="cuda", gpus=("1", "4")))
    assert (cpu[CORES], cpu["OMP_NUM_THREADS"]) == ("3|5", "1") and CORES not in gpu
    assert cpu[KERNELS] == "128" and KERNELS not in gpu
    assert gpu["CUDA_VISIBLE_DEVICES"] == "1,4" and gpu["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in environment(replace(CONFIG, device="cuda"))
    on_cores, alone = engine_arguments(CONFIG), engine_arguments(replace(CONFIG, tp=1, cores=(3,)))
    assert (on_cores["kv_cache_memory_bytes"], on_cores["max_num_batched_tokens"], on_cores["seed"]) == (10**6, 4096, 7)
    assert on_cores["enforce_eager"] and on_cores["max_model_len"] == 64
    assert "distributed_executor_backend" not in on_cores and "one_process" in alone["distributed_executor_backend"]
    on_gpus, fixed = (engine_arguments(replace(CONFIG, device="cuda", memory_share=share)) for share in (None, 0.07))
    assert on_gpus["enable_sleep_mode"] and on_gpus["gpu_memory_utilization"] == 0.9
    wide = engine_arguments(replace(CONFIG, device="cuda", max_num_seqs=9000))
    assert (on_gpus["max_num_batched_tokens"], wide["max_num_batched_tokens"]) == (8192, 9000), "vLLM refuses fewer"
    assert "kv_cache_memory_bytes" not in on_gpus, "it has what vLLM finds free"
    asked = replace(CONFIG, kv_dtype="fp8", batched_tokens=2048, share=0.6)
    small, of_cores = engine_arguments(replace(asked, device="cuda")), engine_arguments(asked)
    assert (small["kv_cache_dtype"], small["max_num_batched_tokens"], small["gpu_memory_utilization"]) == (
        "fp8",
        2048,
        0.6,
    )
    assert (of_cores["max_num_batched_tokens"], on_cores["max_num_batched_tokens"]) == (2048, 4096)
    assert "kv_cache_dtype" not in on_gpus
    assert (fixed["kv_cache_memory_bytes"], fixed["gpu_memory_utilization"]) == (10**6, 0.07)
    assert (
        fixed["enable_sleep_mode"]
        and not engine_arguments(replace(CONFIG, sleeps=False, device="cuda"))["enable_sleep_mode"]
    )
    found = SimpleNamespace()
    auto = SimpleNamespace(from_pretrained=lambda path, **_: found)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoConfig=auto))
    for found.max_position_embeddings, tokens in ((None, 67), (66, 66), (50, 64)):
        assert context_tokens(replace(CONFIG, draft_tokens=3)) == tokens
    overrides = [engine_arguments(replace(CONFIG, head_dtype=each)).get("hf_overrides") for each in (None, "float32")]
    assert overrides == [None, {"head_dtype": "float32"}]
    assert engine_arguments(replace(CONFIG, draft_tokens=3))["speculative_config"]["num_speculative_tokens"] == 3
    shares = [niceness(replace(CONFIG, compute_share=share)) for share in (1.0, 0.5, 0.2, 0.01)]
    assert shares == [0, 0, 6, 19] and niceness(replace(CONFIG, compute_share=0.2, device="cuda")) == 0


def test_a_requests_parameters_say_how_it_goes_on(monkeypatch):
    first = sampling_parameters(request(prompt_id="p", temperature=0.5))
    assert (first.max_tokens, first.temperature, first.seed, first.stream_interval) == (1000, 0.5, None, ALIVE_TOKENS)
    assert (first.logprobs, first.output_kind, first.ignore_eos, first.detokenize) == (0, "delta", False, False)
    assert set(first.extra_args.values()) == {"p", 2, "r", 1} and first.extra_args[SEED] == 1
    limited = sampling_parameters(request(rules=SamplingRules(0.9, 40, 0.05, ("</a>",), (7,))))
    assert (limited.top_p, limited.top_k, limited.extra_args) == (0.9, 40, {MIN_P: 0.05, SEED: 1})
    assert limited.stop == ["</a>"] and limited.include_stop_str_in_output and limited.stop_token_ids == [7]
    assert limited.detokenize, "vLLM looks for stops in text"
    by_vllm = [sampling_parameters(request(drawn_tokens=drawn), draws_by_place=False) for drawn in (0, 1)]
    assert [(each.extra_args, each.seed) for each in by_vllm] == [(None, 1), (None, 1 + 0x9E3779B1)]
    assert sampling_parameters(request(seed=None)).extra_args is None
    assert sampling_parameters(request(choices=("A", "B"))).structured_outputs == {"choice": ["A", "B"]}
    monkeypatch.setattr(SamplingParams, "__struct_fields__", [])
    assert not hasattr(sampling_parameters(request()), "stream_interval"), "vLLM 0.24 does not know it"
    assert engine_arguments(CONFIG)["stream_interval"] == ALIVE_TOKENS
    intervals = [request(cutoff_tokens=cutoff).output_interval for cutoff in (None, 1, 2, 257, 258, 514)]
    assert intervals == [256, 256, 1, 256, 129, 171]


def test_events_travel_with_8_bytes_a_token():
    drawn = random.Random(1)
    tokens = [drawn.randrange(150_000) for _ in range(5000)]
    event = EngineEvent("finished", "r", tokens, [-float(np.float32(drawn.random())) for _ in tokens], True, "a", "b")
    packed = pickle.dumps(event, 5)
    assert pickle.loads(packed) == event and len(packed) < 8.2 * len(tokens)


def test_the_weights_that_vllm_names_for_a_sample_count():
    spans = [SimpleNamespace(version="run:4", start=0, end=7), SimpleNamespace(version="run:5", start=7, end=9)]
    assert versions_of(SimpleNamespace(weight_versions=spans), "run:4", "run:4") == ("run:4", "run:5")
    assert versions_of(SimpleNamespace(weight_versions=None), "run:4", "run:4") == ("run:4", "run:4")
    assert versions_of(SimpleNamespace(), "run:4", "") == ("run:4", "")


def test_a_fleet_has_its_largest_layouts_engines_on_own_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {4, 5, 6})
    layouts = (EngineLayout(2, 1), EngineLayout(1, 2), EngineLayout(1, 3))
    assert engine_counts(layouts) == {1: 3, 2: 1}
    config = FleetConfig(layouts, "model", "float32", "cpu", 64, 4, 100, seed=7, draft_tokens=2)
    engines = [engine for of_size in config.engines().values() for engine in of_size]
    assert [(e.name, e.cores, e.seed, e.kv_memory_bytes, e.draft_tokens) for e in engines] == [
        ("rollout-tp1-0", (4,), 7, 100, 2), ("rollout-tp1-1", (5,), 8, 100, 2), ("rollout-tp1-2", (6,), 9, 100, 2),
        ("rollout-tp2-0", (4, 5), 7, 200, 2),
    ]  # fmt: skip
    assert replace(config, device="cuda").engines()[2][0].cores == ()
    planned = replace(config, kv_bytes={2: 30}).engines()
    assert (planned[1][0].kv_memory_bytes, planned[2][0].kv_memory_bytes) == (100, 30), "of each rank"
    on_gpus = replace(config, kv_bytes={1: 70, 2: 99}, device="cuda").engines()
    assert [on_gpus[tp][0].memory_share for tp in (1, 2)] == [pytest.approx(0.75), 0.9], "cache, and 5 % of 100 bytes"
    assert engines[0].renamed("judge-0") == replace(engines[0], name="judge-0")
