"""Jobs of the GPU check: a model of random weights in some shape whose responses have a tail, prompts, documents.

Random weights end a response once in as many tokens as they have words. Here a head of the last layer looks for the
first word of the prompt, which is one of two marks: its query is constant, keys of marks lie along one dimension that
turns little with the position, and all other words score about 0. Of n words the mark then has the share N / (N + n) of
the head's attention, which falls as the response grows, and N is larger for the mark of long responses. The head adds
that share along a direction that the output row of the end of sequence points away from. So the chance of an end rises
with n (`Law`): few usual responses are thrice as long as their median, one prompt in TAIL_EVERY has long ones, and what
else a token is stays random.

The reward differs between the samples of a prompt, so that weights change and have to travel. The model's type is
Llama, with biases on its projections: for type qwen2 transformers would split words by Qwen2's own rules
(executor/example/warmup.py).
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rlplan.executor.example.write import detect_cluster
from rlplan.plans.facts.public_models import ARCHITECTURES, Architecture
from rlplan.plans.schema.job import Job
from rlplan.plans.yaml.yaml_io import write_document

SPECIAL = ("<pad>", "<eos>", "<unk>", "<usual>", "<long>")
PAD, EOS, UNKNOWN, USUAL, LONG = range(5)
PROMPTS, TAIL_EVERY = 320, 10
PROMPT_TOKENS = 16
"""Of a prompt at most; at least half as many."""
MEAN_PROMPT = 3 * PROMPT_TOKENS // 4
FALL, REACH = 12.0, 2.0
"""By how much attention to the mark alone would lower the logit of an end; N over the median, of usual responses."""
CALIBRATION_TOKENS = 4096
LARGE = 1000.0
"""Norm of a mark's embedding: what layers add to it hardly turns it, and the policy never writes it."""


class Tail(NamedTuple):
    """Lengths of a job's responses, tokens: the cap, and the medians of usual and of long ones."""

    cap: int
    usual: int
    long: int


TAILS = {"cuda": Tail(4096, 300, 2400), "cpu": Tail(192, 24, 128), "groups": Tail(256, 24, 160)}
"""By kind of device, and of jobs that run as one."""

TINY = Architecture("tiny", 2, 256, 4, 2, 64, 512, 256, tied=True)
QWEN = "Qwen2.5-0.5B", "Qwen2.5-1.5B"
SHAPES = {"tiny": TINY} | {a.name.split("-")[1].lower(): a for a in ARCHITECTURES if a.name in QWEN}

REWARD = '''def score(prompt: str, response: str, answer: object = None) -> float:
    """The share of a response's words that have an even number; 0 of an empty response."""
    words = [word for word in response.split() if word[1:].isdigit()]
    return sum(int(word[1:]) % 2 == 0 for word in words) / len(words) if words else 0.0
'''


def job_document(device: str, tail: Tail) -> Job:
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
                "prompts_per_step": 32 if on_gpu else 4,
                "samples_per_prompt": 8 if on_gpu else 2,
                "max_prompt_tokens": PROMPT_TOKENS,
                "max_response_tokens": tail.cap,
                "temperature": 1.0,
            },
            "algorithm": {"name": "grpo", "learning_rate": 1e-6, "mask_truncated": True, "seed": 0},
            "search": {"tp": [1], "micro_batch_tokens": [16384] if on_gpu else [2048]},
            "slo": {"step_p95_s": None},
        }
    )


def prompt_rows(vocabulary: int, seed: int) -> list[dict[str, str]]:
    """Rows of data.jsonl: prompts of up to PROMPT_TOKENS random words, of which the first is the mark of long responses
    in every TAIL_EVERY-th, and that of usual ones in the others."""
    rng = random.Random(seed)
    rows = []
    for index in range(PROMPTS):
        others = rng.choices(range(len(SPECIAL), vocabulary), k=rng.randint(PROMPT_TOKENS // 2, PROMPT_TOKENS) - 1)
        words = [SPECIAL[USUAL if index % TAIL_EVERY else LONG], *(f"w{token}" for token in others)]
        rows.append({"id": f"p{index:04d}", "prompt": " ".join(words), "answer": ""})
    return rows


class Law(NamedTuple):
    """The logit of an end behind n words is `top` - FALL N / (N + n), with N of usual and of long responses."""

    top: float
    usual: float
    long: float

    def logit(self, n: Any, reach: float) -> Any:
        """At the n-th token of a response, which may be an array, where N is `reach`."""
        return self.top - FALL * reach / (reach + MEAN_PROMPT + n)


def law_of(tail: Tail) -> Law:
    """The law with these medians: up to a median the chances of an end sum up to log 2."""

    def total(median: int, reach: float) -> float:
        return sum(math.exp(Law(0.0, 0.0, 0.0).logit(n, reach)) for n in range(1, median + 1))

    usual = REACH * tail.usual
    chances = total(tail.usual, usual)
    low, high = 1.0, 1e4 * tail.long
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if total(tail.long, middle) > chances else (low, middle)
    return Law(math.log(math.log(2.0) / chances), usual, high)


def drawn_lengths(tail: Tail, seed: int, prompts: Iterable[int]) -> list[int]:
    """Lengths of responses to prompts of these numbers, tokens, by the law that the policy is made for."""
    rng, law = random.Random(seed), law_of(tail)
    sums = {
        reach: list(itertools.accumulate(math.exp(law.logit(n, reach)) for n in range(1, tail.cap)))
        for reach in (law.usual, law.long)
    }
    each = (sums[law.usual if prompt % TAIL_EVERY else law.long] for prompt in prompts)
    return [1 + bisect.bisect_left(chances, rng.expovariate(1.0)) for chances in each]


def length_rows(job: Job, tail: Tail, seed: int) -> list[dict[str, Any]]:
    """Rows of a length trace of the job's prompts, by that law: what a plan can be made from before anything ran."""
    places = [(prompt, sample) for prompt in range(PROMPTS) for sample in range(job.rollout.samples_per_prompt)]
    lengths = drawn_lengths(tail, seed, (prompt for prompt, _ in places))
    return [
        {"prompt": f"p{prompt:04d}", "epoch": 0, "sample": sample, "tokens": tokens, "truncated": tokens == tail.cap,
         "reward": 0.5, "prompt_tokens": MEAN_PROMPT}
        for (prompt, sample), tokens in zip(places, lengths, strict=True)
    ]  # fmt: skip


def make_model(shape: Architecture, device: str, dtype: Any, longest: int) -> Any:
    """A LlamaForCausalLM with random weights of type `dtype` on `device`, for sequences of up to `longest` tokens."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

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
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},  # as of Qwen2.5: the slowest pair stands still
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def let_responses_end(model: Any, tail: Tail, seed: int = 0) -> dict[str, float]:
    """Make responses as long as `tail` says; returns, for each kind, the chance of an end over the wanted one, in a
    forward pass over random tokens behind its mark."""
    import torch

    config, generator = model.config, torch.Generator().manual_seed(seed)
    hidden, head_dim = config.hidden_size, config.head_dim
    weight, attention = model.lm_head.weight, model.model.layers[-1].self_attn
    ahead_of = min(256, tail.usual)  # further on the chance of an end may be near 1, and tell nothing
    size = CALIBRATION_TOKENS // ahead_of, 1 + MEAN_PROMPT + ahead_of
    rows = torch.randint(len(SPECIAL), weight.shape[0], size, generator=generator)
    axes, _ = torch.linalg.qr(torch.randn(hidden, 3, generator=generator))
    usual, long, away = (axes[:, i].to(weight.device, torch.float32) for i in range(3))
    law = law_of(tail)
    # Of a mark the normalised state is -sqrt(hidden) along its axis, of other words about 1 along either. Those score
    # exp(noise) in the mean, whose variance is that of the score over hidden.
    scores = [math.log(reach) + math.log(reach) ** 2 / hidden / 2 for reach in (law.usual, law.long)]
    strength = math.sqrt(scores[0] * math.sqrt(head_dim))
    slow = head_dim // 2 - 1

    def states(first: Any) -> Any:
        rows[:, 0] = first
        return model.model(input_ids=rows.to(weight.device)).last_hidden_state[:, 1 + MEAN_PROMPT :].float()

    with torch.no_grad():
        for matrix in {id(m): m for m in (weight, model.model.embed_tokens.weight)}.values():
            matrix[USUAL], matrix[LONG] = (-LARGE * axis.to(weight.dtype) for axis in (usual, long))
        rest = model.model(input_ids=rows.to(weight.device), output_hidden_states=True).hidden_states[-2]
        norm = rest.float().norm(dim=-1).mean()
        # As large as the state that it is added to: then each state has about the same share of these directions.
        attention.o_proj.bias.copy_((usual + long) * norm)
        attention.q_proj.weight[:head_dim] = 0.0
        attention.q_proj.bias[slow] = strength
        attention.k_proj.weight[slow] = -(usual + long * scores[1] / scores[0]) * strength / math.sqrt(hidden)
        attention.v_proj.weight[0] = -(usual + long) / math.sqrt(hidden)
        attention.o_proj.weight[:, 0] = away * norm
        n = torch.arange(1, 1 + ahead_of, device=weight.device)
        plain, marked, further = states(rows[:, 1]), states(USUAL), states(LONG)
        aims = [law.top, float(law.logit(n, law.usual).mean())]
        weight[EOS] = 0.0
        others = [torch.logsumexp(state @ weight.float().T, -1).mean() for state in (plain, marked)]
        ahead = (usual + long) / math.sqrt(2)
        places = torch.stack([torch.stack([(x @ axis).mean() for axis in (ahead, away)]) for x in (plain, marked)])

        def over_wanted(state: Any, reach: float) -> float:
            chances = torch.softmax(state @ weight.float().T, -1)[..., EOS]
            return float(chances.mean() / law.logit(n, reach).exp().mean())

        for _ in range(4):  # the mean of exp is more than exp of the mean: correct by the chances that came out
            wanted = torch.stack([aim + other for aim, other in zip(aims, others, strict=True)])
            first, second = torch.linalg.solve(places, wanted)
            weight[EOS] = (first * ahead + second * away).to(weight.dtype)
            aims[1] -= math.log(over_wanted(marked, law.usual))
        pull = 1.0 - math.log(over_wanted(further, law.long)) / float(second * (further @ away).mean())
        attention.v_proj.weight[0] = -(usual + long * pull) / math.sqrt(hidden)
        return {"usual": over_wanted(states(USUAL), law.usual), "long": over_wanted(states(LONG), law.long)}


def save_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer of one word for each token id, words between spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *(f"w{i}" for i in range(len(SPECIAL), vocabulary))]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=SPECIAL[UNKNOWN]))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token=SPECIAL[PAD], eos_token=SPECIAL[EOS], unk_token=SPECIAL[UNKNOWN],
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)  # fmt: skip


def write_job(folder: Path, shape: Architecture, device: str, tail: Tail) -> dict[str, Any]:
    """Write model, prompts, a length trace, cluster.yaml and, last, job.yaml into a folder, which is made; returns the
    chances of an end over the wanted ones."""
    import torch

    job = job_document(device, tail)
    model = make_model(shape, device, getattr(torch, job.model.dtype), 2 * job.rollout.longest_tokens)
    ends = let_responses_end(model, tail)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder / "model")
    save_tokenizer(folder / "model", shape.vocab)
    for name, rows in (("data", prompt_rows(shape.vocab, 0)), ("lengths", length_rows(job, tail, 0))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "even_words.py").write_text(REWARD, encoding="utf-8")
    write_document(detect_cluster(), folder / "cluster.yaml")
    write_document(job, folder / "job.yaml")
    return {"ends_over_wanted": ends, "median_tokens": {"usual": tail.usual, "long": tail.long}}
