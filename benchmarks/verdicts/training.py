"""Five steps of training on rows with inputs and outputs, on this machine, through profile, solve and execute.

    python -m benchmarks.verdicts.training [--steps 5] [--seed 0] [--keep FOLDER] [--json]

A prompt asks for a program ("times 7 ?"). The policy is a tiny Llama that was taught to write one in a fence,

    ```python
    n = int(input())
    print(n * 7)
    ```

with the number that was asked for in `RIGHT` of its answers and another one in the rest; some comments before the
last line make lengths differ. Each token is a piece of the program, line breaks included. The row's answer is what
the program reads and what it must print, so that each response really runs in the sandbox.

- `steps`: trained; `reward_by_step`: mean of each; `outcomes`: how many samples ended how;
- `expected_reward`: the mean that the policy has before it is trained.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import click

from rlplan.cli.main import cli
from rlplan.executor.example.write import detect_cluster, new_folder
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.yaml_io import dump
from rlplan.traces.run_log import TRACE, read_run

from ..entry import as_json_option, run, tell

RIGHT, COMMENT = 0.5, 0.4
"""Probabilities in what the policy is taught: of the number that was asked for, and of one more comment."""
ROWS, UPDATES, BATCH, LONGEST = 256, 300, 64, 32
NUMBERS = tuple(str(number) for number in range(2, 10))
SIGNS = {"times": "*", "plus": "+"}
OPEN, READ, CLOSE = "```python\n", "n = int(input())\n", ")\n```"
NOTE = "# nearly there\n"
PRINTS = {word: f"print(n {sign} " for word, sign in SIGNS.items()}
PAD, EOS, UNKNOWN, ASK = "<pad>", "<eos>", "<unk>", "?"
NAMES = tuple(f"task{at}" for at in range(ROWS // (len(NUMBERS) * len(SIGNS))))
PIECES = (PAD, EOS, UNKNOWN, ASK, *SIGNS, *NUMBERS, OPEN, READ, NOTE, *PRINTS.values(), CLOSE, *NAMES)
TOKEN = {piece: at for at, piece in enumerate(PIECES)}


def row(at: int) -> dict[str, Any]:
    """Prompt `at` of the data, and what its program must do."""
    rest, number = divmod(at, len(NUMBERS))
    name, sign = divmod(rest, len(SIGNS))
    word = list(SIGNS)[sign]
    inputs = [3 + at % 5, 11, 40 + at % 7]
    outputs = [n * int(NUMBERS[number]) if word == "times" else n + int(NUMBERS[number]) for n in inputs]
    answer = {"inputs": [f"{n}\n" for n in inputs], "outputs": [f"{n}\n" for n in outputs]}
    prompt = f"{NAMES[name]} {word} {NUMBERS[number]} {ASK}"
    reference = f"{READ}{PRINTS[word]}{NUMBERS[number]})\n"
    return {"id": f"p{at:03}", "prompt": prompt, "answer": answer, "reference": reference}


def response(rng: random.Random, word: str, number: str, right: float) -> list[str]:
    """The pieces of an answer as the policy is taught it; its number is right with this probability."""
    notes = 0
    while notes < LONGEST - 8 and rng.random() < COMMENT:
        notes += 1
    wrong = rng.choice([each for each in NUMBERS if each != number])
    written = number if rng.random() < right else wrong
    return [OPEN, READ, *[NOTE] * notes, PRINTS[word], written, CLOSE, EOS]


def taught_policy(seed: int) -> Any:
    """A LlamaForCausalLM that writes such answers, after a few seconds of training on draws of them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    rng = random.Random(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(PIECES) + len(PIECES) % 2,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=TOKEN[EOS],
        pad_token_id=TOKEN[PAD],
    )
    model = LlamaForCausalLM(config).float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for update in range(UPDATES):
        right = 1.0 if update < UPDATES * 3 // 4 else RIGHT  # the number is looked up sooner where it is always right
        texts = []
        for _ in range(BATCH):
            words = row(rng.randrange(ROWS))["prompt"].split()
            texts.append([TOKEN[piece] for piece in [*words, *response(rng, words[1], words[2], right)]])
        longest = max(map(len, texts))
        tokens = torch.tensor([text + [TOKEN[PAD]] * (longest - len(text)) for text in texts])
        labels = torch.where(tokens == TOKEN[PAD], -100, tokens)
        labels[:, :4] = -100  # the prompt
        loss = model(input_ids=tokens, attention_mask=(tokens != TOKEN[PAD]).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return model.eval()


def tokenizer() -> Any:
    """Words of a prompt are tokens, and so are the pieces of a program, which are written one after the other."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel(dict(TOKEN), unk_token=UNKNOWN))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )


def write_training(folder: Path, seed: int = 0) -> None:
    """Write model, data, job.yaml and cluster.yaml into a new folder."""
    with new_folder(folder) as building:
        taught_policy(seed).save_pretrained(building / "model")
        tokenizer().save_pretrained(building / "model")
        lines = [json.dumps(row(at)) + "\n" for at in range(ROWS)]
        (building / "data.jsonl").write_text("".join(lines), encoding="utf-8")
        job = {
            "rlplan_job": 1,
            "name": "programs",
            "model": {"path": "model", "dtype": "float32"},
            "data": {"path": "data.jsonl", "seed": seed},
            "reward": {"kind": "code", "workers": 1, "deadline_s": 5.0},
            "rollout": {
                "prompts_per_step": 8,
                "samples_per_prompt": 4,
                "max_prompt_tokens": 8,
                "max_response_tokens": LONGEST,
                "temperature": 1.0,
                "seed_per_sample": True,
            },
            "algorithm": {"name": "grpo", "learning_rate": 1e-3, "seed": seed},
            "search": {"tp": [1], "micro_batch_tokens": [512, 1024]},
        }
        dump(Job.model_validate(job), building / "job.yaml")
        dump(detect_cluster(), building / "cluster.yaml")


def trained(home: Path, steps: int, seed: int) -> dict[str, Any]:
    """Write, profile, solve and execute in the folder; the figures of the run."""
    folder, out = home / "programs", home / "run"
    write_training(folder, seed)
    with redirect_stdout(sys.stderr):  # standard output is the benchmark's own
        for words in (
            ["profile", str(folder), "--minutes", "1", "--trace-rounds", "1"],
            ["solve", str(folder)],
            ["execute", str(folder / "plan.yaml"), "--steps", str(steps), "--out", str(out)],
        ):
            print(f"rlplan {words[0]} ...", file=sys.stderr, flush=True)
            cli.main(words, standalone_mode=False)
    log = read_run(out / TRACE)
    samples = [sample for step in log.steps for sample in log.samples[step.step]]
    return {
        "steps": len(log.steps),
        "reward_by_step": [round(step.reward_mean, 4) for step in log.steps],
        "expected_reward": RIGHT,
        "outcomes": dict(Counter(str(sample.get("reward_outcome")) for sample in samples)),
        "seconds": [round(step.total_s, 2) for step in log.steps],
    }


@click.command()
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep example, plan and run in this folder.")
@as_json_option
def main(steps: int, seed: int, keep: Path | None, as_json: bool) -> None:
    """Train on programs that are tested by input and output."""
    with ExitStack() as stack:
        home = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlplan-programs-")))
        figures = trained(home, steps, seed)
    tell(figures, as_json)


if __name__ == "__main__":
    run(main)
