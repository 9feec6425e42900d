"""A cluster and a job to begin with, from what everybody knows of theirs: which GPUs, which model, what kind of reward.

What is not known is written as a usual value, and a comment beside it says so. Nothing is measured.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...plans.facts.model_names import plain_name
from ...plans.facts.model_shape import named_model, sizes_text, tp_divides
from ...plans.facts.public_models import ARCHITECTURES, Architecture
from ...plans.schema.base import MOST_ACCELERATORS
from ...plans.schema.cluster import Cluster
from ...plans.schema.job import Job, is_hub_id
from ...plans.yaml.errors import InputError
from ...plans.yaml.fault_lines import NAME_PATTERN
from ...plans.yaml.yaml_io import header, loads, string
from ..hardware import GPUS, Gpu, gpu_of, hint_of
from ..laws.rank_memory import kv_capacity_tokens
from . import gpu_price, nearest_shipped

RewardKind = Literal["math", "code", "function"]

MAX_NODES, MAX_PER_NODE = 100_000, 128
# Usual hosts of GPU servers, by GPU: 14 cores and 250 GB each, as in the profiles that ship.
CORES_PER_GPU, HOST_BYTES_PER_GPU = 14, 250_000_000_000
PROMPTS_PER_STEP, SAMPLES_PER_PROMPT = 128, 8
MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS = 2048, 16384
PROMPTS = 12_000
DEADLINES_S: dict[RewardKind, float] = {"math": 5.0, "code": 30.0, "function": 5.0}
MOST_REWARD_WORKERS = 64
HAND_OVER = [0.9, 0.95]

_OWNERS = (
    ("qwen", "Qwen"), ("qwq", "Qwen"), ("llama-3.1-tulu", "allenai"), ("llama-3.1-nemotron", "nvidia"),
    ("llama", "meta-llama"), ("meta-llama", "meta-llama"), ("gpt-oss", "openai"),
    ("glm", "zai-org"), ("minimax", "MiniMaxAI"), ("deepseek", "deepseek-ai"), ("kimi", "moonshotai"),
    ("moonlight", "moonshotai"), ("intellect", "PrimeIntellect"), ("mistral", "mistralai"), ("mixtral", "mistralai"),
    ("ministral", "mistralai"), ("magistral", "mistralai"), ("devstral", "mistralai"), ("codestral", "mistralai"),
    ("gemma", "google"), ("phi", "microsoft"), ("olmo", "allenai"),
    ("smollm", "HuggingFaceTB"), ("mimo", "XiaomiMiMo"), ("seed-oss", "ByteDance-Seed"), ("ernie", "baidu"),
    ("yi-", "01-ai"), ("falcon", "tiiuae"), ("granite", "ibm-granite"), ("internlm", "internlm"),
    ("tinyllama", "TinyLlama"), ("skywork", "Skywork"), ("openthinker", "open-thoughts"),
    ("deepscaler", "agentica-org"), ("deepcoder", "agentica-org"), ("dapo", "BytedTsinghua-SIA"),
    ("open-reasoner-zero", "Open-Reasoner-Zero"), ("acereason", "nvidia"), ("openreasoning", "nvidia"),
)  # fmt: skip
"""How names begin, in small letters, and who publishes the models; the first that fits counts."""
_REPOSITORIES = {
    "Mistral-7B": "Mistral-7B-v0.3", "Mixtral-8x7B": "Mixtral-8x7B-v0.1", "Mixtral-8x22B": "Mixtral-8x22B-v0.1",
    "Mistral-Nemo": "Mistral-Nemo-Base-2407", "Mistral-Small-24B": "Mistral-Small-24B-Base-2501",
    "Ministral-8B": "Ministral-8B-Instruct-2410", "Codestral-22B": "Codestral-22B-v0.1",
    "Mistral-Large": "Mistral-Large-Instruct-2407", "Llama-4-Scout-17B": "Llama-4-Scout-17B-16E",
    "Llama-4-Maverick-17B": "Llama-4-Maverick-17B-128E", "gemma-3-4b": "gemma-3-4b-pt", "gemma-3-1b": "gemma-3-1b-pt",
    "gemma-3-12b": "gemma-3-12b-pt", "gemma-3-27b": "gemma-3-27b-pt", "OLMo-2-1B": "OLMo-2-0425-1B",
    "OLMo-2-7B": "OLMo-2-1124-7B", "OLMo-2-13B": "OLMo-2-1124-13B", "OLMo-2-32B": "OLMo-2-0325-32B",
    "Olmo-3-7B": "Olmo-3-1025-7B", "Olmo-3-32B": "Olmo-3-1125-32B", "Phi-4-mini": "Phi-4-mini-instruct",
    "Phi-3-mini": "Phi-3-mini-4k-instruct", "TinyLlama-1.1B": "TinyLlama_v1.1", "Kimi-K2": "Kimi-K2-Instruct",
    "Llama-2-7b": "Llama-2-7b-hf", "Llama-2-13b": "Llama-2-13b-hf", "Falcon3-7B": "Falcon3-7B-Base",
    "GLM-4-9B": "GLM-4-9B-0414", "GLM-4-32B": "GLM-4-32B-0414", "granite-3.3-8b": "granite-3.3-8b-base",
    "internlm3-8b": "internlm3-8b-instruct", "Llama-2-70b": "Llama-2-70b-hf",
}  # fmt: skip
"""Names of repositories, by the shorter usual name of the model."""

DATA_NAME, EXAMPLE_NAME = "data.jsonl", "data.example.jsonl"
_EXAMPLES: dict[RewardKind, tuple[dict[str, object], ...]] = {
    "math": (
        {"id": "m0", "prompt": "What is 17 * 23? Put the answer into \\boxed{}.", "answer": "391"},
        {"id": "m1", "prompt": [{"role": "user", "content": "Solve x^2 = 2 for x > 0."}], "answer": "\\sqrt{2}"},
    ),
    "code": (
        {
            "id": "c0",
            "prompt": "Write a Python function add(a, b) that returns the sum of a and b.",
            "answer": "assert add(1, 2) == 3\nassert add(-1, 1) == 0",
        },
        {
            "id": "c1",
            "prompt": [{"role": "user", "content": "Write a Python function first(s): the first character of s."}],
            "answer": ["assert first('abc') == 'a'", "assert first('z') == 'z'"],
        },
    ),
    "function": (
        {"id": "f0", "prompt": "Reply with the capital of France in the last line.", "answer": "Paris"},
        {"id": "f1", "prompt": [{"role": "user", "content": "Reply with 2 + 2 in the last line."}], "answer": "4"},
    ),
}
REWARD_NAME = "reward.py"
_REWARD = '''"""The reward of this job: rlplan calls `score` once for each response. Replace its rule by yours."""


def score(prompt, response, answer):
    """1.0 if the response's last line is the row's answer, else 0.0. Any finite number may be returned."""
    lines = response.strip().splitlines()
    return 1.0 if lines and lines[-1].strip() == str(answer).strip() else 0.0
'''


@dataclass(frozen=True)
class Machines:
    """Equal nodes of equal GPUs."""

    nodes: int
    per_node: int
    gpu: Gpu


@dataclass(frozen=True)
class Skeleton:
    """The first documents of a job.

    Attributes:
        files: text by file name.
        shipped: the model whose shipped profile serves this job on these GPUs; None if there is none.
    """

    files: dict[str, str]
    shipped: str | None


def machines_of(text: str) -> Machines:
    """`8x8xH100`: nodes, GPUs of a node, GPU. `16xH100`: 16 GPUs in nodes of 8 (fewer than 8: one node).

    Raises InputError for what is none of the two, and for a GPU of which no data sheet is known.
    """
    match = re.fullmatch(r"\s*(?:(\d{1,9})\s*[x*×]\s*)?(\d{1,9})\s*[x*×]\s*([A-Za-z][\w. -]*?)\s*", text)
    if match is None:
        raise InputError(f"--gpus {text}: write NODESxGPUSxNAME, as in 8x8xH100, or GPUSxNAME, as in 8xH100")
    name, gpu = match[3], gpu_of(match[3])
    if gpu is None:
        hint = hint_of(name)
        if not hint or hint.endswith("?"):
            known = f"known are {', '.join(sorted(GPUS))}"
            hint = f"no GPU {name!r} is known; {' '.join(filter(None, (hint, known)))}"
        raise InputError(f"--gpus {text}: {hint}")
    nodes, per_node = int(match[1] or 1), int(match[2])
    if match[1] is None and per_node > 8:
        if per_node % 8:
            raise InputError(f"--gpus {text}: {per_node} GPUs are no whole nodes of 8; write NODESxGPUSxNAME")
        nodes, per_node = per_node // 8, 8
    if not (1 <= nodes <= MAX_NODES and 1 <= per_node <= MAX_PER_NODE):
        raise InputError(f"--gpus {text}: nodes must be 1 to {MAX_NODES}, GPUs of a node 1 to {MAX_PER_NODE}")
    if nodes * per_node > MOST_ACCELERATORS:
        raise InputError(
            f"--gpus {text}: these are {nodes * per_node:,} GPUs, and one job is planned on at most "
            f"{MOST_ACCELERATORS:,}; write at most {MOST_ACCELERATORS // per_node} nodes"
        )
    return Machines(nodes, per_node, gpu)


def model_path_of(text: str, folder: Path) -> tuple[str, Architecture]:
    """(what job.yaml in `folder` calls the model, its shape).

    `text`: a hub id, a folder, or the usual name of a public model (`Qwen2.5-32B-Instruct`). Raises InputError.
    """
    text = text.rstrip("/") or text
    named = named_model(text)
    shape = named.architecture
    if os.path.isdir(text):  # noqa: PTH112 (pathlib raises for what can be no path)
        path = os.path.relpath(Path(text).resolve(), folder.resolve())
    elif is_hub_id(text):
        path = text
    else:
        public_names = {shape.name.lower(): shape.name for shape in ARCHITECTURES}
        owner = next((o for prefix, o in _OWNERS if text.lower().startswith(prefix)), None)
        if shape is None or shape.guessed or not is_hub_id(f"{owner}/{text}") or owner is None:
            near = difflib.get_close_matches(plain_name(text), public_names, 3, 0.6)
            hint = f"did you mean {' or '.join(public_names[name] for name in near)}? " if near else ""
            raise InputError(
                f"--model {text}: no public model of that name is known; {hint}a model of your own goes by its hub id "
                "(owner/name) or its folder"
            )
        rest = text[len(shape.name) :] if text.lower().startswith(shape.name.lower()) else None
        repository = text if rest is None else shape.name + ("-Instruct" if rest.lower() == "-instruct" else rest)
        path = f"{owner}/{_REPOSITORIES.get(repository, repository)}"
    if shape is None:
        raise InputError(f"--model {text}: {named.unsure}")
    if named.unsure:
        warnings.warn(named.unsure, stacklevel=2)
    return path, shape


def skeleton(machines: Machines, model: str, shape: Architecture, reward: RewardKind) -> Skeleton:
    """The files. `model`: as in job.yaml; `shape`: its architecture. Raises InputError when no engine holds it."""
    files = {
        "cluster.yaml": header(Cluster) + _cluster(machines),
        "job.yaml": header(Job) + _job(machines, model, shape, reward),
        EXAMPLE_NAME: "".join(f"{json.dumps(row)}\n" for row in _EXAMPLES[reward]),
    }
    loads(files["cluster.yaml"], Cluster, "cluster.yaml")
    loads(files["job.yaml"], Job, "job.yaml")
    if reward == "function":
        files[REWARD_NAME] = _REWARD
    return Skeleton(files, nearest_shipped(shape, machines.gpu.name))


def _cluster(machines: Machines) -> str:
    gpu, total = machines.gpu, machines.nodes * machines.per_node
    price = gpu_price(gpu.name)
    usd, basis = (price.usd_per_gpu_hour, price.basis) if price else (0.0, "no public price is known, write yours")
    return f"""\
# The machines, as pools of equal nodes. Every value is yours to correct; rlplan check cluster.yaml tells what is wrong.
rlplan_cluster: 1
name: {gpu.name.lower()}-{total}
pools:
  {gpu.name.lower()}:
    nodes: {machines.nodes}
    accelerators: {{kind: cuda, name: {gpu.name}, per_node: {machines.per_node}, memory_bytes: {gpu.memory_bytes}}}
    # Host cores and memory of one node: usual ones, not yours. Rewards and offloaded optimizer states need them.
    cores: {CORES_PER_GPU * machines.per_node}
    host_memory_bytes: {HOST_BYTES_PER_GPU * machines.per_node}
    # On demand: {basis}
    usd_per_gpu_hour: {usd}
"""


def _job(machines: Machines, model: str, shape: Architecture, reward: RewardKind) -> str:
    longest = MAX_PROMPT_TOKENS + MAX_RESPONSE_TOKENS
    tps = _tp_sizes(machines, shape, longest)
    cores = CORES_PER_GPU * machines.per_node * machines.nodes
    # Code takes long enough to be what a short round waits for: solve decides how many workers run it.
    workers = "" if reward == "code" else f"workers: {max(1, min(MOST_REWARD_WORKERS, cores // 4))}, "
    scored = {
        "math": "the final answer of a response equals the row's",
        "code": "the code of a response passes the row's tests; one that hangs takes the whole deadline.\n"
        "# rlplan solve decides how many workers run it; reward.workers: N fixes the number",
        "function": f"score(prompt, response, answer) in {REWARD_NAME}",
    }[reward]
    # What a long round has left by then lasts long, and half of its engines decode it as fast.
    shares = f"\n  hand_over: {HAND_OVER}" if machines.nodes * machines.per_node > min(tps) else ""
    hands_over = ", shares of a long round's samples from which on half of its engines may train" if shares else ""
    function = ', function: "reward:score"' if reward == "function" else ""
    rollout = (
        f"rollout: {{prompts_per_step: {PROMPTS_PER_STEP}, samples_per_prompt: {SAMPLES_PER_PROMPT}, "
        f"max_prompt_tokens: {MAX_PROMPT_TOKENS}, max_response_tokens: {MAX_RESPONSE_TOKENS}}}"
    )
    told = f"{'its shape is guessed: ' if shape.guessed else ''}{sizes_text(shape)}"
    return f"""\
# What is trained, on what data, for which reward. Every value is yours to correct; rlplan check job.yaml tells what is
# wrong, and rlplan schema job what else may stand here.
rlplan_job: 1
name: {job_name(model, reward)}
model: {{path: {string(model)}, dtype: bfloat16}}  # {told}
# How many prompts there are is enough to plan. rlplan profile (without --shipped) and rlplan execute need the file,
# with rows as in {EXAMPLE_NAME}; once it is there, remove `prompts`.
data: {{path: {DATA_NAME}, prompts: {PROMPTS}}}
# {scored[0].upper()}{scored[1:]}.
reward: {{kind: {reward}{function}, {workers}deadline_s: {DEADLINES_S[reward]}}}
# The size of a step, and the longest prompt and response; how long responses are below that cap, a length trace tells
# (rlplan solve --trace).
{rollout}
algorithm: {{name: grpo, learning_rate: 1.0e-06, clip_high: 0.28, loss_aggregation: token-mean}}
# What rlplan solve tries: GPUs of an engine (those that hold the model and the longest response), tokens of a
# micro-batch{hands_over}.
search:
  tp: {list(tps)}
  micro_batch_tokens: [{longest}, {2 * longest}]{shares}
"""


def _tp_sizes(machines: Machines, shape: Architecture, longest: int) -> tuple[int, ...]:
    """Powers of two within a node that divide the model's heads and leave KV for the longest sequence."""
    sizes = [tp for tp in (1, 2, 4, 8, 16) if tp <= machines.per_node]
    split = [tp for tp in sizes if tp_divides(tp, shape)]
    holding = tuple(tp for tp in split if kv_capacity_tokens(shape, machines.gpu, tp) >= longest)
    if not holding:
        raise InputError(
            f"--gpus, --model: an engine within a node of {machines.per_node} {machines.gpu.name} does not hold "
            f"{shape.name} ({2 * shape.parameters / 1e9:.0f} GB of weights in bf16) and a response of "
            f"{MAX_RESPONSE_TOKENS} tokens; take GPUs with more memory, more of them in a node, or a smaller model"
        )
    return holding


def job_name(model: str, reward: RewardKind) -> str:
    """A job's name of the model's and the reward's."""
    base = re.sub(r"[^a-z0-9_.-]+", "-", model.rstrip("/").split("/")[-1].lower()).strip("-_.") or "job"
    name = f"{base[:50]}-{reward}"
    assert re.fullmatch(NAME_PATTERN, name), name
    return name
