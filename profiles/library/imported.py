"""A cluster and a job of another trainer's configuration: its sizes and lengths; what it lacks is as in `init`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ...plans.facts.model_shape import named_model, sizes_text, tp_divides
from ...plans.facts.public_models import Architecture
from ...plans.facts.trainer_setup import TrainerSetup
from ...plans.schema.algorithm import OWN, Algorithm, ReferenceKl
from ...plans.schema.base import MOST_SAMPLES_PER_STEP
from ...plans.schema.cluster import Cluster
from ...plans.schema.job import Job
from ...plans.schema.levers import MOST_RANK, TARGET_MODULES
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import header, loads, number, string
from ..laws.rank_memory import kv_capacity_tokens
from . import gpu_price, nearest_shipped
from .skeleton import (
    CORES_PER_GPU,
    DEADLINES_S,
    HOST_BYTES_PER_GPU,
    MOST_REWARD_WORKERS,
    PROMPTS,
    Machines,
    Skeleton,
    job_name,
    machines_of,
    model_path_of,
)

GPU = "H100"
"""What is assumed where neither the configuration nor the user says which GPU it is."""
_RATES = ("actor_rollout_ref.actor.optim.lr", "--lr", "learning_rate", "trainer.policy.optimizer_config.lr",
          "--actor.adam.lr", "--actor_learning_rate")  # fmt: skip
_ALPHAS = ("actor_rollout_ref.model.lora_alpha", "actor_rollout_ref.model.lora.alpha", "lora_alpha",
           "trainer.policy.model.lora.alpha", "--ds.lora.alpha", "--lora_alpha")  # fmt: skip
_TARGETS = ("actor_rollout_ref.model.target_modules", "actor_rollout_ref.model.lora.target_modules",
            "lora_target_modules", "trainer.policy.model.lora.target_modules", "--ds.lora.target_modules",
            "--target_modules")  # fmt: skip
_ALPHA = {"trl": 32.0}
"""What frameworks take where nothing is said (frameworks/keys): others 16."""
_TEMPERATURES = ("actor_rollout_ref.rollout.temperature", "--rollout-temperature", "temperature",
                 "generator.sampling_params.temperature", "--rollout.temperature")  # fmt: skip


@dataclass(frozen=True)
class ImportedJob:
    """The documents, and what of the configuration is not in them: a line each, and keys that change no seconds."""

    documents: Skeleton
    model: str
    not_taken: tuple[str, ...]
    not_read: tuple[str, ...]


def imported_job(setup: TrainerSetup, gpus: str | None, model: str | None, folder: Path) -> ImportedJob:
    """The documents of a setup. `gpus`, `model`: what the user says of them in place of the configuration.

    Raises InputError for a model whose shape is not known, and for machines on which no engine holds it.
    """
    notes: list[str] = []
    machines = _machines(setup, gpus, notes)
    path, shape = _model(setup, model, folder)
    stated = {each.key: each.value for each in setup.left_aside if each.kind == "not read"}
    taken: set[str] = set()
    files = {
        "cluster.yaml": header(Cluster) + _cluster(setup, machines, gpus is not None),
        "job.yaml": header(Job) + _job(setup, machines, path, shape, stated, taken, notes),
    }
    notes += [f"{each.key}: {each.value}: {each.why}" for each in setup.left_aside if each.kind != "not read"]
    rest = tuple(each.key for each in setup.left_aside if each.kind == "not read" and each.key not in taken)
    if notes:
        files["job.yaml"] += "# Not in these documents:\n" + "".join(f"#   {note}\n" for note in notes)
    if rest:
        lines = textwrap.wrap(", ".join(rest), 116, break_long_words=False, break_on_hyphens=False)
        files["job.yaml"] += "# Settings that change no bytes and no seconds of a plan:\n"
        files["job.yaml"] += "".join(f"#   {line}\n" for line in lines)
    loads(files["cluster.yaml"], Cluster, "cluster.yaml")
    loads(files["job.yaml"], Job, "job.yaml")
    shipped = nearest_shipped(shape, machines.gpu.name)
    return ImportedJob(Skeleton(files, shipped), path, tuple(notes), rest)


def _machines(setup: TrainerSetup, gpus: str | None, notes: list[str]) -> Machines:
    if gpus is not None:
        return machines_of(gpus)
    if setup.gpu is None:
        notes.append(f"which GPU it is: {GPU} is assumed; say it with --gpus")
    return machines_of(f"{setup.nodes}x{setup.gpus_per_node}x{setup.gpu or GPU}")


def _model(setup: TrainerSetup, model: str | None, folder: Path) -> tuple[str, Architecture]:
    if model is not None:
        return model_path_of(model, folder)
    try:
        return model_path_of(setup.model, folder)
    except InputError as error:
        if setup.shape is not None:  # Megatron's flags say what the name does not
            return setup.model if "/" in setup.model else f"local/{setup.model}", setup.shape
        said = named_model(setup.model).unsure or error.message
        key, line = setup.keys.get("model", "model"), setup.lines.get("model")
        raise InputError(f"{key} {setup.model}: {said.removeprefix('--model ')}; say the model with --model",
                         setup.source, line) from None  # fmt: skip


def _cluster(setup: TrainerSetup, machines: Machines, by_user: bool) -> str:
    gpu = machines.gpu
    price = gpu_price(gpu.name)
    usd, basis = (price.usd_per_gpu_hour, price.basis) if price else (0.0, "no public price is known, write yours")
    host = HOST_BYTES_PER_GPU * machines.per_node if setup.host_bytes is None else int(setup.host_bytes)
    said = "as the command said" if by_user else f"of {Path(setup.source).name}"
    pools = ""
    for name, nodes, per_node in _pools(setup, machines):
        pools += f"""\
  {name}:
    nodes: {nodes}
    accelerators: {{kind: cuda, name: {gpu.name}, per_node: {per_node}, memory_bytes: {gpu.memory_bytes}}}
    # Host cores and memory of one node: usual ones, not yours.
    cores: {CORES_PER_GPU * per_node}
    host_memory_bytes: {max(1, host * per_node // machines.per_node)}
    # On demand: {basis}
    usd_per_gpu_hour: {usd}
"""
    return f"""\
# The machines, {said}. Every value is yours to correct; rlplan check cluster.yaml tells what is wrong.
rlplan_cluster: 1
name: {gpu.name.lower()}-{machines.nodes * machines.per_node}
pools:
{pools}"""


def _pools(setup: TrainerSetup, machines: Machines) -> list[tuple[str, int, int]]:
    """(name, nodes, GPUs of a node) of one pool, or of one for engines and one for trainers."""
    if setup.colocated:
        return [(machines.gpu.name.lower(), machines.nodes, machines.per_node)]
    sides = (("rollout", setup.rollout_gpus), ("train", setup.train_gpus))
    return [
        (name, 1, gpus) if gpus < machines.per_node else (name, -(-gpus // machines.per_node), machines.per_node)
        for name, gpus in sides
    ]  # fmt: skip


def _job(
    setup: TrainerSetup, machines: Machines, model: str, shape: Architecture, stated: Mapping[str, str],
    taken: set[str], notes: list[str],
) -> str:  # fmt: skip
    prompts, samples = setup.prompts, setup.samples
    if samples < 2:
        notes.append(
            f"{setup.keys.get('samples', 'samples')}: {samples}: advantages compare samples of one prompt; 8 are taken"
        )
        samples = 8
    prompts = min(prompts, MOST_SAMPLES_PER_STEP // samples)
    longest = setup.max_prompt_tokens + setup.max_response_tokens
    own = setup.micro_batch_tokens or (setup.micro_batch_samples or 1) * longest
    budgets = sorted({max(longest, own), 2 * max(longest, own)})
    tps = _tps(setup, machines, shape, longest)
    for what, holds in (("a value model (critic)", setup.critic), ("partial rollouts", setup.partial_rollout),
                        (f"{setup.steps_ahead} steps ahead", setup.steps_ahead > 0)):  # fmt: skip
        if holds:
            notes.append(f"{what}: rlplan trains all weights, synchronously, without one")
    if setup.mini_batch_samples is not None and setup.mini_batch_samples < setup.prompts * setup.samples:
        key = setup.keys.get("mini_batch_samples", "mini-batches")
        notes.append(
            f"{key}: {setup.prompts * setup.samples / setup.mini_batch_samples:g} updates a step; rlplan makes one"
        )
    rate = _first(stated, _RATES, taken, 1e-6, 1.0)
    algorithm = "".join(f"  {key}: {value}\n" for key, value in _algorithm(setup, notes).items())
    temperature = _first(stated, _TEMPERATURES, taken, 1.0, 10.0)
    lora = _lora(setup, stated, taken, notes)
    cores = CORES_PER_GPU * machines.per_node * machines.nodes
    placement = "" if setup.colocated else "placement: {train_pool: train, streams: false}\n"
    guessed = "its shape is guessed: " if shape.guessed else ""
    return f"""\
# As {Path(setup.source).name} has it for {setup.framework} {setup.version}.
# The reward and the number of prompts are not in it: write yours. rlplan check job.yaml tells what is wrong.
rlplan_job: 1
name: {job_name(model, "math")}
model: {{path: {string(model)}, dtype: bfloat16{lora}}}  # {guessed}{sizes_text(shape)}
data: {{path: data.jsonl, prompts: {max(PROMPTS, 4 * prompts)}}}
reward: {{kind: math, workers: {max(1, min(MOST_REWARD_WORKERS, cores // 4))}, deadline_s: {DEADLINES_S["math"]}}}
rollout:
  prompts_per_step: {prompts}
  samples_per_prompt: {samples}
  max_prompt_tokens: {setup.max_prompt_tokens}
  max_response_tokens: {setup.max_response_tokens}
  temperature: {number(temperature)}
algorithm:
{algorithm}  learning_rate: {number(rate)}
  dynamic_sampling: {str(setup.dynamic_sampling).lower()}
# What rlplan solve tries, {setup.framework}'s own first: TP {setup.rollout_tp}, {own} tokens a micro-batch.
search: {{tp: {list(tps)}, micro_batch_tokens: {budgets}}}
{placement}"""


def _algorithm(setup: TrainerSetup, notes: list[str]) -> dict[str, str]:
    """Keys of the job's `algorithm` section as text: those that differ from the algorithm's own. What rlplan does not
    have so is left out, and noted."""
    values = {"name": "grpo", "loss_aggregation": "token-mean", **setup.algorithm}
    if values["name"] == "reinforce_plus_plus_baseline" and values.pop("entropy_bonus", 0.0):
        notes.append("an entropy bonus: rlplan's reinforce_plus_plus_baseline has none")
    if "clip_low" in values:
        values["clip_low"] = min(values["clip_low"], 1.0)  # a ratio is above 0 in any case
    kl = values.pop("kl", None)
    if kl is not None:
        try:
            ReferenceKl.model_validate(kl)
            values["kl"] = "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in kl.items()) + "}"
            Algorithm.model_validate({**values, "kl": kl, "learning_rate": 1e-6})
        except ValidationError as error:
            values.pop("kl", None)
            where = f"KL to a reference, {kl['estimator']} in the {kl['applied_to']}"
            notes.append(f"{where}: {error.errors()[0]['msg'].removeprefix('Value error, ')}")
    own = OWN[values["name"]]._asdict()
    return {
        key: _scalar(value) for key, value in values.items() if key == "loss_aggregation" or value != own.get(key, None)
    }


def _scalar(value: object) -> str:
    """A number or text as YAML writes it."""
    return number(value) if isinstance(value, float) else str(value)


def _lora(setup: TrainerSetup, stated: Mapping[str, str], taken: set[str], notes: list[str]) -> str:
    """The key of the adapters that the configuration trains, after a comma; "" of one that trains the weights."""
    if not setup.lora_rank:
        return ""
    rank, alpha = (
        min(setup.lora_rank, MOST_RANK),
        _first(stated, _ALPHAS, taken, _ALPHA.get(setup.framework, 16.0), 1e6),
    )
    targets = ""
    for key in (key for key in _TARGETS if key in stated):
        named = re.findall(r"[\w-]+", stated[key])
        if named == ["all-linear"]:
            taken.add(key)
        elif named and set(named) <= set(TARGET_MODULES):
            taken.add(key)
            targets = f", target_modules: [{', '.join(dict.fromkeys(named))}]"
        else:
            notes.append(f"{key}: {stated[key]}: adapters of all matrices of a layer are taken")
    return f", lora: {{rank: {rank}, alpha: {number(alpha)}{targets}}}"


def _first(stated: Mapping[str, str], keys: tuple[str, ...], taken: set[str], default: float, most: float) -> float:
    """The number of the first of `keys` that is stated and within (0, most); it is then no longer left aside."""
    for key in keys:
        if re.fullmatch(r"[0-9.]+(?:[eE][-+]?\d+)?", stated.get(key, "")) and 0 < float(stated[key]) < most:
            taken.add(key)
            return float(stated[key])
    return default


def _tps(setup: TrainerSetup, machines: Machines, shape: Architecture, longest: int) -> tuple[int, ...]:
    """TP of engines within a node that divide the heads and hold the model and the longest sequence."""
    sizes = {1, 2, 4, 8, 16, setup.rollout_tp}
    per_node = min(per_node for name, _, per_node in _pools(setup, machines) if name != "train")
    fitting = tuple(
        tp for tp in sorted(sizes)
        if tp <= per_node and tp_divides(tp, shape) and kv_capacity_tokens(shape, machines.gpu, tp) >= longest
    )  # fmt: skip
    if not fitting:
        raise InputError(
            f"an engine within a node of {per_node} {machines.gpu.name} does not hold {shape.name} "
            f"({2 * shape.parameters / 1e9:.0f} GB of weights in bf16) and a sequence of {longest} tokens; say others "
            "with --gpus", setup.source,
        )  # fmt: skip
    return fitting
