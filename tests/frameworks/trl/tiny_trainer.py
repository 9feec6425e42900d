"""A plan of four prompts a step, a model at random, and a GRPOTrainer of both."""

import re
from pathlib import Path

import torch
import yaml
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from rlplan.executor.example.warmup import make_tokenizer

PLAN = Path(__file__).parents[2] / "plans" / "plan.yaml"
P, N, CUTOFF, CAP, TOKENS = 4, 2, 10, 40, 70
STOPS = list(range(300, 390))  # a quarter of the tokens that a policy at random draws ends a response


def write_plan(folder, mode="exact", prompts=P, cutoff=CUTOFF):
    document = yaml.safe_load(re.sub(r"[A-Z]+_SHA|DECISIONS", "a" * 64, PLAN.read_text(encoding="utf-8")))
    job = document["job"]
    job["bias"]["mode"] = mode
    job["issue"] = {"prompts_per_step": prompts, "samples_per_prompt": N}
    job["loss"] = {"samples": float(prompts * N), "tokens": TOKENS}
    short, long = job["rounds"]["short"], job["rounds"]["long"]
    short["issue"] = {"prompts": prompts + (mode != "sync"), "samples": N + (mode == "race")}
    short["cutoff_tokens"] = cutoff if mode == "exact" else None
    long["issue"] = (
        {"prompts": prompts + 2, "samples": N, "copies": 1} if mode == "exact" else {"prompts": prompts, "samples": N}
    )
    if mode == "exact":
        long["queue"] = {}
    if mode == "sync":
        job["rounds"]["long"] = document["predicted"]["rounds"]["long"] = None
    path = folder / f"{mode}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def write_model(folder, hidden=16):
    """A Llama at random, with the demo's tokenizer, in this folder."""
    tokenizer = make_tokenizer()
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=400, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=2, num_attention_heads=2,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=STOPS, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def dataset(rows=40):
    words = [f"n{n} n{n + 1}" for n in range(rows)]
    return Dataset.from_dict({"prompt": [f"keys {pair} ?" for pair in words], "pair": words})


def rewards(prompts, completions, completion_ids, pair, **others):
    """Looks at all that a reward may look at: the row must be that of the prompt that was decoded."""
    for prompt, row, text, ids in zip(prompts, pair, completions, completion_ids, strict=True):
        assert f" {row} " in prompt and text is not None and ids
    return [float(sum(ids) % 3) for ids in completion_ids]


def trainer_of(model, folder, rows=40, evaluated=None, **options):
    usual = {"per_device_train_batch_size": 4, "max_steps": 8, "save_steps": 3, "loss_type": "dr_grpo"}
    options = usual | {"learning_rate": 1e-3} | options
    args = GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, logging_steps=1,
        gradient_accumulation_steps=2, num_generations=N, max_completion_length=CAP,
        gradient_checkpointing=False, **options,
    )  # fmt: skip
    return GRPOTrainer(model, rewards, args=args, train_dataset=dataset(rows), eval_dataset=evaluated)
