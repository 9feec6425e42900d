"""A job of the GPU check: a model of random weights in some shape, prompts of random words, job.yaml, cluster.yaml.

    python -m benchmarks.gpu_check.random_policy FOLDER --shape 0.5b --device cuda

Random weights end a response once in as many tokens as they have words, so that all would reach the cap, and there
would be nothing to plan. So the last layer's attention has a bias along one direction, and the output row of the end of
sequence points there, as far as makes a response end after MEAN_TOKENS tokens on average: lengths are then about
geometric. The reward differs between the samples of a prompt, so that weights change and have to travel.

The model's type is Llama, with the sizes of the shape and biases on its projections as Qwen2.5 has them: for type qwen2
transformers would split words by Qwen2's own rules (executor/example/warmup.py).
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import click

from rlplan.executor.example.write import detect_cluster
from rlplan.plans.facts.public_models import Architecture
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.editor_schemas import write_document
from rlplan.plans.yaml.errors import InputError

from .shapes import SHAPES

SPECIAL = ("<pad>", "<eos>", "<unk>")
PAD, EOS = 0, 1
PROMPTS, PROMPT_TOKENS = 256, 64
CAP = {"cuda": 1024, "cpu": 256}
MEAN_TOKENS = {"cuda": 96, "cpu": 24}
"""Of a response, by kind of device: the longest of a step is then several times the median, and few reach the cap."""

REWARD = '''"""The reward of the GPU check: any that differs between the samples of a prompt."""


def score(prompt: str, response: str, answer: object = None) -> float:
    """The share of a response's words that have an even number; 0 of an empty response."""
    words = [word for word in response.split() if word[1:].isdigit()]
    return sum(int(word[1:]) % 2 == 0 for word in words) / len(words) if words else 0.0
'''


def job_document(device: str) -> Job:
    """The job.yaml of the check on a kind of device."""
    on_gpu = device == "cuda"
    return Job.model_validate(
        {
            "rlplan_job": 1,
            "name": "gpu-check",
            "model": {"path": "model", "dtype": "bfloat16" if on_gpu else "float32"},
            "data": {"path": "data.jsonl", "seed": 0},
            "reward": {"kind": "function", "function": "even_words:score", "workers": 1, "deadline_s": 2.0},
            "rollout": {
                "prompts_per_step": 16 if on_gpu else 8,
                "samples_per_prompt": 8 if on_gpu else 4,
                "max_prompt_tokens": PROMPT_TOKENS,
                "max_response_tokens": CAP[device],
                "temperature": 1.0,
                "seed_per_sample": True,
            },
            "algorithm": {"name": "grpo", "learning_rate": 1e-6, "mask_truncated": True, "seed": 0},
            "search": {"tp": [1], "micro_batch_tokens": [8192, 16384] if on_gpu else [1024, 2048]},
            "slo": {"step_p95_s": None},
        }
    )


def words(vocabulary: int) -> list[str]:
    """One word for each token id of a model."""
    return [*SPECIAL, *(f"w{i}" for i in range(len(SPECIAL), vocabulary))]


def prompt_rows(vocabulary: int, seed: int) -> list[dict[str, str]]:
    """Rows of data.jsonl: prompts of 8 to PROMPT_TOKENS random words."""
    rng = random.Random(seed)
    rows = []
    for index in range(PROMPTS):
        drawn = (rng.randrange(len(SPECIAL), vocabulary) for _ in range(rng.randint(8, PROMPT_TOKENS)))
        rows.append({"id": f"p{index:04d}", "prompt": " ".join(f"w{i}" for i in drawn), "answer": ""})
    return rows


def make_model(shape: Architecture, device: str, dtype: Any, longest: int) -> Any:
    """A LlamaForCausalLM with random weights of type `dtype` on `device`, for sequences of up to `longest` tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=longest,
        tie_word_embeddings=shape.tied,
        attention_bias=True,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def let_responses_end(model: Any, mean_tokens: float, seed: int = 0) -> float:
    """Make a response end after `mean_tokens` tokens on average; returns the mean probability of an end that resulted,
    in a forward pass over random tokens."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weight = model.lm_head.weight
    tokens = torch.randint(len(SPECIAL), weight.shape[0], (4, PROMPT_TOKENS), generator=generator).to(weight.device)
    direction = torch.randn(weight.shape[1], generator=generator).to(weight.device)
    direction /= direction.norm()
    with torch.no_grad():
        # As large as the state that it is added to: then each state has about the same share of this direction.
        state = model.model(input_ids=tokens, output_hidden_states=True).hidden_states[-2]
        bias = model.model.layers[-1].self_attn.o_proj.bias
        bias.copy_(direction * state.float().norm(dim=-1).mean())
        state = model.model(input_ids=tokens).last_hidden_state.float()
        weight[EOS] = 0.0
        others = torch.logsumexp(state @ weight.float().T, -1)
        wanted = others - math.log(mean_tokens)
        weight[EOS] = (direction * (wanted.mean() / (state @ direction).mean())).to(weight.dtype)
        logits = state @ weight.float().T
        return float(torch.softmax(logits, -1)[..., EOS].mean())


def save_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer of one word for each token id, words between spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words(vocabulary))}, unk_token=SPECIAL[2]))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token=SPECIAL[PAD], eos_token=SPECIAL[EOS], unk_token=SPECIAL[2],
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)  # fmt: skip


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--shape", "name", type=click.Choice(list(SHAPES)), required=True)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
def main(folder: Path, name: str, device: str) -> None:
    """Write the job into FOLDER, which is made; prints one JSON line about it."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    cluster = detect_cluster()
    kind = cluster.pools["main"].accelerators.kind
    if kind != device:
        raise InputError(
            f"torch sees accelerators of kind {kind} here, and --device is {device}; write --device {kind}"
        )
    disable_progress_bar()
    shape, job = SHAPES[name].architecture, job_document(device)
    model = make_model(shape, device, getattr(torch, job.model.dtype), 2 * job.rollout.longest_tokens)
    ends = let_responses_end(model, MEAN_TOKENS[device])
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder / "model")
    save_tokenizer(folder / "model", shape.vocab)
    rows = prompt_rows(shape.vocab, seed=0)
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "even_words.py").write_text(REWARD, encoding="utf-8")
    write_document(cluster, folder / "cluster.yaml")
    write_document(job, folder / "job.yaml")
    parameters = sum(p.numel() for p in model.parameters())
    click.echo(json.dumps({"parameters": parameters, "dtype": job.model.dtype, "mean_tokens_expected": 1 / ends}))


if __name__ == "__main__":
    from ..entry import run

    run(main)
