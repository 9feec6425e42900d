"""Weights from a trainer of FSDP 2 x TP 2 to two engines of TP 2, by broadcast and by the file way of before.

    python -m benchmarks.weight_sync [--dtype bfloat16] [--repeats 5] [--json]
    python -m benchmarks.weight_sync --plan [--json]

All parts are real: trainer ranks and engines are Ray actors, engines are vLLM's on CPUs. The model has about 300
million parameters with random values; the engines begin with other values than the trainer has.

`seconds`, each the median of the repeats, which take turns: `file` as it was before weights were broadcast (rank 0
writes the file and sums it up, one engine after another loads it), `file_at_once` as it is now (no sums unless they are
asked for, all engines load at once), `broadcast`, and `first_broadcast`, which also makes the memory, once. `ratio`:
file over broadcast. `mismatches` counts what is not bit for bit the same: of each engine, the checksums of all tensors
as received on both ways beside the trainer's, the digest of the parameters in its kernels' form, and the log-probs of
what it decodes greedily, file beside broadcast. `stale_refused`: engines that were sent an older version than they were
told said so, decoded nothing, and took the right version next. `rank_peak_bytes`: the most memory that a trainer rank
took beyond what it held, on each way, when it had gone that way before.

    {"seconds": {"file": …, "broadcast": …, …}, "ratio": …, "mismatches": 0, "stale_refused": true, "bytes": …,
     "parameters": …, "dtype": …, "rank_peak_bytes": {"file": …, "broadcast": …}}

`--plan` has the seconds of one process in which the plan of a transfer is made instead: buckets of a model of the shape
of Qwen2.5-32B, and how each is held by 128 ranks that shard it.

    {"plan": {"seconds": …, "ranks": 128, "tensors": …, "buckets": …}}
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rlplan.executor.engines.engine_handle import EngineEvents, EngineHandle
from rlplan.executor.engines.fleet import Fleet, FleetConfig
from rlplan.executor.engines.messages import Request
from rlplan.executor.trainer.trainer_group import TrainerGroup
from rlplan.executor.weight_sync import BUCKET_BYTES, ByBroadcast, ByFile
from rlplan.executor.weights.bucket_plan import TensorSource, buckets_of, chunk, copies_of, cuts_of, whole_box
from rlplan.plans.schema.levers import EngineLayout
from rlplan.plans.yaml.errors import RunFailed

from . import trainer_rank_process as process
from .entry import run

LAYOUT = EngineLayout(tp=2, engines=2)
RANKS, TP = 4, 2
STALL_S = 60.0

HIDDEN, INTERMEDIATE, KEYS, VOCABULARY, LAYERS = 5120, 27648, 1024, 152064, 64
LAYER = {
    "q": (HIDDEN, HIDDEN), "k": (KEYS, HIDDEN), "v": (KEYS, HIDDEN), "o": (HIDDEN, HIDDEN), "q_bias": (HIDDEN,),
    "k_bias": (KEYS,), "v_bias": (KEYS,), "gate": (INTERMEDIATE, HIDDEN), "up": (INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE), "norm_1": (HIDDEN,), "norm_2": (HIDDEN,),
}  # fmt: skip
"""Of Qwen2.5-32B."""


class Late:
    """A trainer that sends its weights under an older version than it is told."""

    def __init__(self, trainer: TrainerGroup) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    async def each(self, method: str, deadline_s: float, what: str, *arguments: Any) -> list[Any]:
        """A call to all ranks."""
        if what == "begin":
            (transfer,) = arguments
            arguments = (transfer._replace(version="old"),)
        return await self._trainer.each(method, deadline_s, what, *arguments)


class Bench:
    """A trainer and engines that have started; `first` is the file of the weights that engines begin with."""

    def __init__(self, trainer: TrainerGroup, fleet: Fleet, folder: Path, first: Path) -> None:
        self.trainer, self.fleet, self.first = trainer, fleet, first
        self.engines = fleet.engines(LAYOUT)
        self.path = folder / "weights.safetensors"
        self.broadcast = ByBroadcast(trainer, STALL_S)
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        fleet.listen(self._inbox.put_nowait)

    async def as_before(self, version: str, checked: bool = False) -> Any:
        """The file way as it was before: one engine after another."""
        expected = await self.trainer.export(self.path, version)
        received = {engine.name: await engine.load(str(self.path), version, checked) for engine in self.engines}
        return expected, received

    async def at_once(self, version: str) -> None:
        """The file way as it is now."""
        await ByFile(self.trainer, self.path).send(self.engines, version, checked=False)

    async def by_broadcast(self, version: str, checked: bool = False) -> Any:
        """The way in pieces."""
        sent = await self.broadcast.send(self.engines, version, checked)
        assert len(sent.received) == len(self.engines), "an engine died"
        return sent.expected, sent.received

    async def forget(self) -> None:
        """Give the engines the weights that they began with."""
        for engine in self.engines:
            await engine.load(str(self.first), "first", False)

    async def state(self, engine: EngineHandle) -> tuple[str, list[int], list[float]]:
        """What an engine makes of its weights: digest of its parameters, tokens and log-probs of a greedy sample."""
        request = Request(f"{engine.name}-{time.monotonic()}", (3, 4, 5, 6), 16, temperature=0.0, ignore_eos=True)
        await engine.submit([request], engine.version)
        while True:
            news = await asyncio.wait_for(self._inbox.get(), STALL_S)
            for event in news.events if isinstance(news, EngineEvents) else []:
                if event.name == "finished" and event.request_id == request.request_id:
                    return await engine.live_checksum(), event.tokens, event.logprobs

    async def mismatches(self) -> int:
        """Compare both ways; see the module."""
        states, received, expected = {}, {}, {}
        ways: dict[str, Callable[[str, bool], Awaitable[Any]]] = {
            "file": self.as_before,
            "broadcast": self.by_broadcast,
        }
        for name, send in ways.items():
            await self.forget()
            before = [await self.state(engine) for engine in self.engines]
            expected[name], received[name] = await send(f"checked {name}", True)
            states[name] = [await self.state(engine) for engine in self.engines]
            assert all(
                a != b for old, new in zip(before, states[name], strict=True) for a, b in zip(old, new, strict=True)
            )
        different = sum(sums != expected["file"] for way in received.values() for sums in way.values())
        different += expected["file"] != expected["broadcast"] or not expected["file"]
        for one, other in zip(states["file"], states["broadcast"], strict=True):
            different += sum(a != b for a, b in zip(one, other, strict=True))
        return different

    async def stale_refused(self) -> bool:
        """Send an older version than engines are told; whether they say so, decode nothing, and take the next one."""
        late: Any = Late(self.trainer)
        way = ByBroadcast(late, STALL_S)
        try:
            await way.send(self.engines, "new", checked=False)
        except RunFailed as error:
            said = "holds weights 'old', not 'new'" in str(error)
        else:
            return False
        refused = 0
        for engine in self.engines:
            try:
                await engine.submit([Request(f"stale-{engine.name}", (3,), 1)], "new")
            except RunFailed as error:
                refused += "holds ''" in str(error)
        _, received = await self.by_broadcast("after")
        return said and refused == len(self.engines) == len(received)

    async def rank_peak(self, send: Awaitable[Any]) -> int:
        """The most bytes that a trainer rank had in memory beyond what it held before, while `send` ran."""
        pids = await self.trainer.pids()
        before = [_memory(pid, "VmRSS") for pid in pids]
        for pid in pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the mark to what is held now
        await send
        return max(_memory(pid, "VmHWM") - held for pid, held in zip(pids, before, strict=True))


def _memory(pid: int, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


async def _seconds(send: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await send
    return time.perf_counter() - began


async def measure(bench: Bench, repeats: int) -> dict[str, Any]:
    """All figures but those of the model."""
    first_s = await _seconds(bench.by_broadcast("first broadcast"))
    await bench.as_before("first file")
    times: dict[str, list[float]] = {"file": [], "file_at_once": [], "broadcast": []}
    for number in range(repeats):
        times["file"].append(await _seconds(bench.as_before(f"file {number}")))
        times["broadcast"].append(await _seconds(bench.by_broadcast(f"broadcast {number}")))
        times["file_at_once"].append(await _seconds(bench.at_once(f"at once {number}")))
        click.echo(f"repeat {number + 1} of {repeats}: { {k: round(v[-1], 2) for k, v in times.items()} }", err=True)
    peaks = {
        "broadcast": await bench.rank_peak(bench.by_broadcast("peak of broadcast")),
        "file": await bench.rank_peak(bench.as_before("peak of file")),
    }
    seconds = {name: statistics.median(values) for name, values in times.items()}
    return {
        "seconds": {name: round(value, 4) for name, value in seconds.items()} | {"first_broadcast": round(first_s, 4)},
        "ratio": round(seconds["file"] / seconds["broadcast"], 2),
        "mismatches": await bench.mismatches(),
        "stale_refused": await bench.stale_refused(),
        "repeats": repeats,
        "rank_peak_bytes": peaks,
    }


async def figures(folder: Path, sizes: dict[str, Any], dtype: str, repeats: int) -> dict[str, Any]:
    """Start a trainer and engines of a random model, and measure."""
    from rlplan.executor.processes.actors import start_ray

    trained, first = folder / "trained", folder / "first"
    parameters, _ = process.write_model("llama", trained, sizes, dtype)
    process.write_model("llama", first, sizes | {"initializer_range": 0.05}, dtype)
    for model in (trained, first):
        write_tokenizer(model)
    start_ray()
    fleet = Fleet(
        FleetConfig(
            layouts=(LAYOUT,),
            model_path=str(first),
            dtype=dtype,
            device="cpu",
            max_model_len=128,
            max_num_seqs=2,
            kv_memory_bytes_per_accelerator=50_000_000,
        )
    )
    trainer = TrainerGroup("bench", replace(process.config_of(trained, 1024, ranks=RANKS, tp=TP), dtype=dtype))
    try:
        click.echo("starting the trainer", err=True)
        await trainer.start()
        click.echo("starting two engines", err=True)
        await fleet.start()
        whole = folder / "first.safetensors"
        join_shards(first, whole)
        bench = Bench(trainer, fleet, folder, whole)
        found = await measure(bench, repeats)
        sent = await bench.broadcast.send(bench.engines, "last", checked=False)
    finally:
        await fleet.close()
        await trainer.close()
    return {**found, "bytes": sent.nbytes, "parameters": parameters, "dtype": dtype}


def plan_figures() -> dict[str, Any]:
    """Seconds in which a transfer from 128 ranks is planned."""
    shapes = {"embed": (VOCABULARY, HIDDEN), "norm": (HIDDEN,), "head": (VOCABULARY, HIDDEN)}
    shapes |= {f"{layer}.{name}": shape for layer in range(LAYERS) for name, shape in LAYER.items()}
    held = [{name: chunk(whole_box(shape), 0, 128, rank) for name, shape in shapes.items()} for rank in range(128)]
    sources = [TensorSource(name, shape, name, whole_box(shape)) for name, shape in shapes.items()]
    began = time.process_time()
    assert copies_of(held) == len(held), "each rank holds something of its own"
    buckets = buckets_of(sources, 2, BUCKET_BYTES)
    cuts = [cuts_of(bucket, held) for bucket in buckets]
    seconds = time.process_time() - began
    assert sum(len(bucket) for bucket in cuts) == len(shapes)
    return {"seconds": round(seconds, 4), "ranks": len(held), "tensors": len(shapes), "buckets": len(buckets)}


def join_shards(model: Path, path: Path) -> None:
    """Write the shards of a saved model as one file."""
    from safetensors.torch import load_file, save_file

    tensors: dict[str, Any] = {}
    for shard in model.glob("*.safetensors"):
        tensors |= load_file(shard)
    save_file(tensors, path)


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of a few words, without which vLLM does not start."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(61))]
    raw: Any = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    fast.save_pretrained(folder)


@click.command()
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", help="The job's dtype.")
@click.option("--repeats", type=click.IntRange(1), default=5, help="Transfers on each way.")
@click.option("--small", is_flag=True, help="A model of a few million parameters, to see that everything works.")
@click.option("--plan", is_flag=True, help="Only the seconds in which a transfer from 128 ranks is planned.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def main(dtype: str, repeats: int, small: bool, plan: bool, as_json: bool) -> None:
    """Weights by broadcast and by file."""
    if plan:
        planned = plan_figures()
        click.echo(json.dumps({"plan": planned}) if as_json else f"{planned['seconds']} s of {planned['ranks']} ranks")
        return
    with tempfile.TemporaryDirectory(prefix="rlplan-weights-") as home:
        sizes = process.SMALL if small else process.LARGE
        found = asyncio.run(figures(Path(home), sizes, dtype, repeats))
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, seconds in found["seconds"].items():
        click.echo(f"{name:16} {seconds:7.2f} s")
    stale = "refused" if found["stale_refused"] else "not refused"
    click.echo(f"broadcast is {found['ratio']:.1f}x as fast as the file; {found['mismatches']} mismatches")
    click.echo(f"a stale version was {stale}")


if __name__ == "__main__":
    run(main)
