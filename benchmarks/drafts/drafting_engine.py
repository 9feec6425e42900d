"""A real engine that decodes whole rounds, with drafts of one kind or without: vLLM in a Ray actor, on one core."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from rlplan.executor.drafts.draft_messages import DraftReport
from rlplan.executor.drafts.history_store import HistoryStore
from rlplan.executor.engines.engine import RolloutEngine
from rlplan.executor.engines.engine_handle import EngineEvents, EngineHandle, EngineNews
from rlplan.executor.engines.engine_worker import EngineRank
from rlplan.executor.engines.messages import EngineConfig, EngineEvent, Request
from rlplan.executor.engines.vllm_options import environment
from rlplan.executor.example import task
from rlplan.executor.processes.supervision import Supervisor

METHODS = ("none", "history", "suffix", "ngram")
DRAFT_TOKENS = 4
KV_BYTES = 400_000_000
VERSION = "as it is"

STOCK: Mapping[str, Mapping[str, Any]] = {
    # Its defaults; drafts are as long as ours.
    "suffix": {"method": "suffix", "num_speculative_tokens": DRAFT_TOKENS},
    # One or more tokens before, which is what finds anything in these responses.
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": DRAFT_TOKENS,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 4,
    },
}


class StockRank(EngineRank):
    """All that runs in a rank of a stock engine beside vLLM's own."""

    def mend_drafts(self) -> bool:
        """Have vLLM verify whatever drafts it has exactly; returns whether it did not."""
        return mend_expand()


class StockEngine(RolloutEngine):
    """An engine whose drafts are vLLM's own, by one of its methods."""

    async def start_stock(self, options: Mapping[str, Any], folder: str | None) -> Any:
        """Start it with these speculative options; `folder`: of a package that vLLM imports for them."""
        import sys

        from rlplan.executor.engines import engine

        if folder is not None:
            sys.path.append(folder)
            os.environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"  # of the process of vLLM's core
        made = engine.engine_arguments
        further = {"speculative_config": dict(options), "worker_extension_cls": f"{__name__}.{StockRank.__name__}"}
        engine.engine_arguments = lambda config: made(config) | further
        facts = await self.start()
        await self._call_ranks("mend_drafts", ())
        return facts


class Sample(NamedTuple):
    """A response of a round: its prompt, tokens and the engine's log-probs."""

    prompt: str
    tokens: list[int]
    logprobs: list[float]


class Decoded(NamedTuple):
    """A round: seconds from its start to its last token, samples in the order of the requests, and what drafts gave."""

    seconds: float
    samples: list[Sample]
    report: DraftReport | None


class DraftingEngine:
    """An engine that drafts by `method`, one of METHODS; it remembers the responses of its own rounds."""

    def __init__(
        self, method: str, model: Path, longest_tokens: int, sequences: int, suffix_folder: str | None = None
    ) -> None:
        self.method = method
        self.store = HistoryStore()
        self.rounds = 0
        self._model, self._suffix_folder = model, suffix_folder
        self._news: asyncio.Queue[EngineNews] = asyncio.Queue()
        config = EngineConfig(
            name=f"engine-{method}",
            model_path=str(model),
            dtype="float32",
            tp=1,
            max_model_len=longest_tokens + (DRAFT_TOKENS if method in STOCK else 0),
            max_num_seqs=sequences,
            device="cpu",
            kv_memory_bytes=KV_BYTES,
            cores=(min(os.sched_getaffinity(0)),),
            draft_tokens=DRAFT_TOKENS if method == "history" else 0,
        )
        self._handle = EngineHandle(config, self._news.put_nowait, Supervisor(), spawn=self._spawn)

    def _spawn(self, config: EngineConfig) -> Any:
        import ray

        from rlplan.executor.engines.engine_watch import START_GROUP
        from rlplan.executor.processes.actors import ACTOR_OPTIONS

        kind: Any = _started_as(STOCK[self.method], self._suffix_folder) if self.method in STOCK else RolloutEngine
        remote: Any = ray.remote(concurrency_groups={START_GROUP: 1})(kind)  # type: ignore[call-overload]
        options = {**ACTOR_OPTIONS, "max_concurrency": 8, "runtime_env": {"env_vars": environment(config)}}
        return remote.options(**options).remote(config)

    async def start(self) -> None:
        """Start it with the model's weights."""
        await self._handle.start()
        await self._handle.load(str(self._model / "model.safetensors"), VERSION, False)

    async def close(self) -> None:
        """Stop it."""
        await self._handle.close()

    async def decode(
        self,
        prompts: Mapping[str, tuple[int, ...]],
        samples: int,
        most_tokens: int,
        *,
        epoch: int = 0,
        up_to_sequences: int = 64,
        temperature: float = 1.0,
        seed: int | None = None,
        remembers: bool = True,
    ) -> Decoded:
        """Decode a round of `samples` responses to each of the prompts; `remembers`: drafts of later rounds may come
        from it."""
        self.rounds += 1
        requests = [
            Request(
                request_id=f"{self.rounds}/{number}.{sample}",
                prompt_tokens=tokens,
                max_tokens=most_tokens,
                temperature=temperature,
                seed=None if seed is None else seed + number * samples + sample,
                prompt_id=prompt,
            )
            for number, (prompt, tokens) in enumerate(prompts.items())
            for sample in range(samples)
        ]
        began = time.perf_counter()
        if self.method == "history":
            await self._handle.begin_drafts(DRAFT_TOKENS, up_to_sequences)
            known = [history for prompt in prompts if (history := self.store.of(prompt, epoch)) is not None]
            if known:
                await self._handle.remember(known)
        await self._handle.submit(requests, VERSION)
        ended = await self._finished(len(requests))
        seconds = time.perf_counter() - began
        report = await self._handle.take_drafts([]) if self.method == "history" else None
        done = [Sample(each.prompt_id, ended[each.request_id].tokens, ended[each.request_id].logprobs)
                for each in requests]  # fmt: skip
        if remembers and self.method == "history":
            for prompt in prompts:
                texts: Sequence[tuple[list[int], None]] = [(one.tokens, None) for one in done if one.prompt == prompt]
                self.store.record(prompt, epoch, self.rounds, texts)
        return Decoded(seconds, done, report)

    async def _finished(self, count: int) -> dict[str, EngineEvent]:
        ended: dict[str, EngineEvent] = {}
        while len(ended) < count:
            news = await self._news.get()
            if not isinstance(news, EngineEvents):
                raise RuntimeError(f"{self.method}: {news}")
            ended |= {event.request_id: event for event in news.events if event.name == "finished"}
        return ended


def _started_as(options: Mapping[str, Any], folder: str | None) -> type:
    """An engine's class whose start is that of a stock method."""

    class Stock(StockEngine):
        async def start(self) -> Any:
            if getattr(self, "_begun", False):
                return await super().start()
            self._begun = True
            return await self.start_stock(options, folder)

    return Stock


# A mend of vLLM on CPUs (0.32): what its verification of drafts reads of each sample must be the sample's.
#
# vLLM spreads a value of each sample, such as its temperature, over the sample's drafted tokens. Its CPU kernel
# writes the result of values that are no 64-bit integers into a copy that nobody reads
# (`cpu_triton_utils._expand_kernel_impl`), so that drafts are verified at whatever temperature the memory held
# before: samples are then no samples of the policy.


def expand(values: Any, ends: Any, tokens: int, replace_from: float = 0, replace_to: float = 0) -> Any:
    """Each sample's value at each of its tokens, as vLLM's `expand_batch_to_tokens`.

    Args:
        values: [samples].
        ends: [samples]; tokens of all samples up to each.
        tokens: of all samples.
        replace_from, replace_to: a value that is written as another.
    """
    import torch

    counts = torch.diff(ends, prepend=ends.new_zeros(1)).to(torch.int64)
    expanded = values.repeat_interleave(counts, output_size=tokens)
    return expanded.masked_fill(expanded == replace_from, replace_to)


def mend_expand() -> bool:
    """Have vLLM use `expand` in this process if its own function is wrong; returns whether it was."""
    import torch
    from vllm.v1.sample import rejection_sampler

    values, ends = torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 3, 5], dtype=torch.int32)
    wanted = expand(values, ends, 5, 0, 1)
    if torch.equal(rejection_sampler.expand_batch_to_tokens(values, ends, 5, 0, 1), wanted):
        return False
    rejection_sampler.expand_batch_to_tokens = expand  # type: ignore[assignment]
    return True


# Seconds of long rounds over three epochs, with drafts of each kind and without, on engines that take turns.

Prompts = Mapping[str, tuple[int, ...]]
EPOCHS = 3


def parts(prompts: Prompts, size: int) -> Iterator[Prompts]:
    """The prompts in rounds of `size`."""
    names = list(prompts)
    for begin in range(0, len(names), size):
        yield {name: prompts[name] for name in names[begin : begin + size]}


async def epochs(
    engines: Sequence[DraftingEngine], prompts: Prompts, size: int, samples: int, most_tokens: int, up_to: int
) -> dict[str, Any]:
    """By method and epoch ("1", "2", ...): `seconds` of all rounds, and over those the seconds without drafts, `ratio`,
    and the least of a round, `worst_round`; and of ours `accepted`, tokens of drafts that a sample gets a step,
    `by_source`, and `same`, the share of samples whose tokens are those without drafts.

    One of the engines is without drafts (`none`). Engines take turns round by round, in an order that turns, too. All
    draw with the same seeds.
    """
    done: dict[str, dict[str, list[Decoded]]] = {engine.method: {} for engine in engines}
    turn = 0
    for epoch in range(EPOCHS):
        for part in parts(prompts, size):
            for engine in [*engines[turn % len(engines) :], *engines[: turn % len(engines)]]:
                seed = 1_000_003 * (turn + 1)
                decoded = await engine.decode(
                    part, samples, most_tokens, epoch=epoch, up_to_sequences=up_to, seed=seed
                )  # fmt: skip
                done[engine.method].setdefault(str(epoch + 1), []).append(decoded)
            turn += 1
    plain = done["none"]
    return {
        method: {number: _figures(rounds, plain[number]) for number, rounds in by_epoch.items()}
        for method, by_epoch in done.items()
    }


def _figures(rounds: Sequence[Decoded], plain: Sequence[Decoded]) -> dict[str, Any]:
    """The figures of an epoch's rounds, beside the same rounds without drafts."""
    took, without = (sum(decoded.seconds for decoded in each) for each in (rounds, plain))
    pairs = list(zip(rounds, plain, strict=True))
    figures: dict[str, Any] = {
        "seconds": round(took, 2),
        "ratio": round(without / took, 3),
        "worst_round": round(min(other.seconds / one.seconds for one, other in pairs), 3),
    }
    reports = [decoded.report for decoded in rounds if decoded.report is not None]
    if not reports:
        return figures
    steps = sum(report.sequence_steps for report in reports)
    accepted = sum(sum(report.accepted_at) for report in reports)
    same = [a.tokens == b.tokens for one, other in pairs for a, b in zip(one.samples, other.samples, strict=True)]
    return figures | {
        "accepted": round(accepted / steps, 3) if steps else 0.0,
        "by_source": dict(sum((Counter(report.by_source) for report in reports), Counter())),
        "same": round(mean(same), 4),
    }


# Tests of whether two sets of samples have one distribution.

LEAST_EXPECTED = 5.0
"""A category that is expected less often in either set is counted with others: the chi-square law is one of many."""


def chi_square_p(one: Mapping[Hashable, int], other: Mapping[Hashable, int]) -> float:
    """P-value of the two-sample chi-square test of homogeneity on two counts; 1 if there is only one category.

    The p-value is the regularised upper incomplete gamma function Q(df / 2, x / 2).
    """
    ones, others = sum(one.values()), sum(other.values())
    shares = (ones / (ones + others), others / (ones + others))
    rows: list[tuple[int, int]] = []
    rest = [0, 0]
    for name in sorted({*one, *other}, key=repr):
        counts = one.get(name, 0), other.get(name, 0)
        if min(shares) * sum(counts) >= LEAST_EXPECTED:
            rows.append(counts)
        else:
            rest = [rest[0] + counts[0], rest[1] + counts[1]]
    if min(shares) * sum(rest) >= LEAST_EXPECTED:
        rows.append((rest[0], rest[1]))
    if len(rows) < 2:
        return 1.0
    x = sum((count - share * sum(counts)) ** 2 / (share * sum(counts))
            for counts in rows for count, share in zip(counts, shares, strict=True))  # fmt: skip
    half = torch.tensor([(len(rows) - 1) / 2, x / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def length_classes(lengths: Iterable[int]) -> Counter[Hashable]:
    """How often lengths are in each of classes that grow by a fifth."""
    bounds = [1]
    while bounds[-1] < 10**6:
        bounds.append(max(bounds[-1] + 1, bounds[-1] * 6 // 5))
    edges = torch.tensor(bounds)
    return Counter(torch.bucketize(torch.tensor(list(lengths)), edges).tolist())


def transitions(texts: Iterable[Sequence[int]], kinds: Mapping[int, str]) -> Counter[Hashable]:
    """How often a token follows one of a kind, as (kind, token); tokens that `kinds` does not name are all `other`."""
    counts: Counter[Hashable] = Counter()
    for text in texts:
        for before, token in itertools.pairwise(text):
            counts[kinds.get(before, "other"), token] += 1
    return counts


# Are responses with drafts those of the policy? Greedy ones token by token, sampled ones by tests that were fixed
# before: at the 1 % level, on what follows a token of each kind, on lengths, and on rewards.

GREEDY_TOKENS = 128
"""Of a greedy response at most: one that never finds a key would repeat itself up to the cap."""

SAMPLED_TOKENS = 128
SAMPLED_PROMPTS, SAMPLES_EACH = 500, 40
LEVEL = 0.01
ROUND = 64


async def identical(plain: DraftingEngine, drafting: DraftingEngine, prompts: Prompts) -> dict[str, Any]:
    """Greedy responses to all prompts, without drafts, and twice with drafts: the second time from the first."""
    differ = accepted = 0
    for epoch, part in itertools.product(range(2), parts(prompts, ROUND)):
        one, two = [
            await engine.decode(part, 1, GREEDY_TOKENS, epoch=epoch, temperature=0.0) for engine in (plain, drafting)
        ]
        differ += sum(a.tokens != b.tokens for a, b in zip(one.samples, two.samples, strict=True))
        accepted += 0 if two.report is None else sum(two.report.accepted_at)
    return {"responses": 2 * len(prompts), "different": differ, "accepted": accepted}


async def sampled(
    plain: DraftingEngine, drafting: DraftingEngine, prompts: Prompts, reward: Callable[[Sample], float]
) -> dict[str, Any]:
    """20,000 responses of each engine to the same prompts, and the p-values of the tests."""
    chosen = dict(itertools.islice(prompts.items(), SAMPLED_PROMPTS))
    drawn: dict[str, list[Sample]] = {plain.method: [], drafting.method: []}
    accepted = 0
    for number, part in enumerate(parts(chosen, 4)):
        for engine in (plain, drafting):
            seed = 10**9 * (engine is drafting) + 1000 * number
            done = await engine.decode(part, SAMPLES_EACH, SAMPLED_TOKENS, epoch=number, up_to_sequences=256, seed=seed)
            drawn[engine.method] += done.samples
            accepted += 0 if done.report is None else sum(done.report.accepted_at)
    one, two = drawn.values()
    kinds = _kinds()
    p_values = {
        "next_token": chi_square_p(*(transitions((each.tokens for each in arm), kinds) for arm in (one, two))),
        "length": chi_square_p(*(length_classes(len(each.tokens) for each in arm) for arm in (one, two))),
        "reward": chi_square_p(*(Counter(reward(each) for each in arm) for arm in (one, two))),
    }
    return {
        "samples": [len(one), len(two)],
        "accepted": accepted,
        "p_values": {name: round(value, 4) for name, value in p_values.items()},
    }


def _kinds() -> Mapping[int, str]:
    """The kinds of tokens of the demo's task."""
    symbols = {task.TOKEN[word]: "symbol" for word in task.SYMBOL_WORDS}
    values = {task.TOKEN[word]: "value" for word in task.VALUE_WORDS}
    return {**symbols, **values, task.TOKEN[task.MISS]: "miss", task.TOKEN[task.HIT]: "hit"}


# The package that vLLM's stock `suffix` method needs, in a folder of its own.

REQUIREMENT = "arctic-inference==0.1.1"
"""The version that vLLM 0.32 asks for. Built from source, for which pip fetches torch once more: some minutes."""

BUILD_S = 1500.0


def install(folder: Path) -> str | None:
    """Install it below `folder`, apart from our environment, for its plug-in changes vLLM where it is found; returns
    why that was impossible."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{REQUIREMENT} was not built within {BUILD_S:.0f} s"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]
