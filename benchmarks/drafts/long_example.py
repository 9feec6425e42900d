"""A second example, with long answers: the demo's task with 1,442 symbols and one key in each prompt.

    python -m benchmarks.drafts.long_example FOLDER

A response tries symbols until one is the key, so it has 2 x 1,442 + 2 tokens on average and 2,000 in the median. The
policy is the demo's Llama, with a larger vocabulary and more positions, taught as the demo's is (executor/example/
warmup.py), but for contexts of up to 4,224 tokens. It is made in a process of its own, whose copy of the task's
constants is changed.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from rlplan.executor.example import task, warmup

SYMBOLS = 1442
PROMPTS = 16
MOST_TOKENS = 4096
POSITIONS = 4224

PHASES = (
    warmup.WarmupPhase(steps=250, rows=24, tokens=64, keys=20, hits=0.5),
    warmup.WarmupPhase(steps=150, rows=24, tokens=96, keys=8, hits=0.5),
    warmup.WarmupPhase(steps=24, rows=2, tokens=2048, keys=4, hits=0.1),
)


def enlarge_task() -> None:
    """Change the task's constants in this process."""
    task.SYMBOLS = SYMBOLS
    task.SYMBOL_WORDS = tuple(f"n{i}" for i in range(SYMBOLS))
    task.WORDS = (*task.WORDS[: task.FIRST_SYMBOL], *task.SYMBOL_WORDS)
    task.TOKEN = {word: i for i, word in enumerate(task.WORDS)}
    warmup.MAX_POSITIONS, warmup.TRAINED_POSITIONS = 2 * POSITIONS, POSITIONS


def write(folder: Path) -> dict[str, float]:
    """Write `model/` and `data.jsonl` into a folder; returns how well the model does what it was taught."""
    enlarge_task()
    model = warmup.warm_up(0, threads=1, phases=PHASES)
    model.save_pretrained(folder / "model")
    warmup.make_tokenizer().save_pretrained(folder / "model")
    rng = random.Random(0)
    with (folder / "data.jsonl").open("w", encoding="utf-8") as file:
        for number in range(PROMPTS):
            hunt = task.draw_hunt(rng, 1)
            file.write(json.dumps({"id": f"l{number:03d}", "prompt": hunt.prompt, "answer": hunt.answer}) + "\n")
    return warmup.answer_quality(model, 0)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    print(json.dumps(write(Path(sys.argv[1]))))
