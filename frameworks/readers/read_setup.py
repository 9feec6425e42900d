"""Which framework a file configures, and its setup; and the setup of facts that are said as flags of a command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import yaml

from ...plans.facts.device_shares import ENGINE_SHARE
from ...plans.facts.public_models import word_set
from ...plans.facts.trainer_setup import Framework, LeftAside, TrainerSetup
from ...plans.schema.cluster import Cluster, load_cluster
from ...plans.schema.job import Job, load_job
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_io import document_kind
from .read_others import openrlhf_setup, skyrl_setup
from .read_slime import flags_of, slime_setup, slime_words
from .read_trl import script_settings, trl_setup, trl_words, yaml_settings
from .read_verl import MAIN, flat_settings, overrides_of, verl_setup, verl_words
from .settings import GivenValue
from .shell_script import ShellScript, shell_commands
from .shell_words import ShellWord

FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
MOST_BYTES = 4_000_000
_SERVERS = re.compile(r"vllm serve|trl vllm-serve|vllm-serve")


def read_setup(path: str | Path, framework: Framework | None = None) -> TrainerSetup:
    """The setup that a file configures: YAML, shell script, list of overrides or flags, Python script.

    `framework`: where the content does not tell. Raises InputError with one line for a file that cannot be read.
    """
    file = Path(path)
    text = _text(file)
    if file.suffix == ".py":
        return _python(file, text)
    tree = _tree(file, text) if file.suffix in (".yaml", ".yml", ".json") else None
    if tree is not None:
        return _yaml(file, text, tree, framework)
    return _script(file, shell_commands(file, text), framework)


def _text(file: Path) -> str:
    try:
        if file.is_dir():
            raise InputError("is a folder; name the file in it: a YAML, a script or a list of flags", str(file))
        if file.stat().st_size > MOST_BYTES:
            raise InputError(
                f"has more than {MOST_BYTES // 10**6} MB, and is no configuration; name another file", str(file)
            )
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("no such file; check the path", str(file)) from None
    except UnicodeDecodeError:
        raise InputError("is no text in UTF-8; name a configuration", str(file)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}; check the path and its permissions", str(file)) from None


def _tree(file: Path, text: str) -> Mapping[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "it cannot be parsed"
        raise InputError(f"is no YAML: {what}; mend it", str(file), mark.line + 1 if mark else None) from None
    if not isinstance(tree, Mapping):
        raise InputError("holds no keys; name a configuration of a trainer", str(file))
    return tree


def _yaml(file: Path, text: str, tree: Mapping[str, Any], framework: Framework | None) -> TrainerSetup:
    keys = set(tree)
    if any(str(key).startswith("rlplan_") for key in keys):
        if document_kind(file) not in ("rlplan_job", "rlplan_cluster"):
            raise InputError("is neither a job.yaml nor a cluster.yaml; name one of the two", str(file))
        return _own_setup(file)
    found: Framework | None = framework
    if found is None and "actor_rollout_ref" in keys:
        found = "verl"
    if found is None and {"trainer", "generator"} <= keys:
        found = "skyrl"
    grpo = {"num_generations", "max_completion_length", "use_vllm", "per_device_train_batch_size", "beta"}
    if found is None and keys & grpo and ("model_name_or_path" in keys or "num_generations" in keys):
        found = "trl"
    if found is None and any(str(key).replace("-", "_") in ("rollout_batch_size", "actor_num_nodes") for key in keys):
        found = "slime"
    if found in ("verl", "skyrl"):
        given = flat_settings(tree, _lines(text))
        return verl_setup(given, str(file)) if found == "verl" else skyrl_setup(given, str(file))
    if found == "trl":
        given = yaml_settings(file)
        return trl_setup(given, str(file), _launch_beside(file))
    if found in ("slime", "vime", "openrlhf"):
        lines = _lines(text)
        sign = "_" if found == "openrlhf" else "-"
        flat = flat_settings(tree, lines)
        given = {f"--{key if found == 'openrlhf' else key.replace('_', sign)}": each for key, each in flat.items()}
        return openrlhf_setup(given, str(file)) if found == "openrlhf" else slime_setup(given, str(file), found)
    raise InputError(
        "no framework is known by these keys; say which with --framework verl, slime, vime, trl, skyrl or openrlhf",
        str(file),
    )


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each key, by its way from the root."""
    found: dict[tuple[str, ...], int] = {}

    def walk(node: yaml.Node | None, keys: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = (*keys, str(getattr(key, "value", "")))
                found[name] = key.start_mark.line + 1
                walk(value, name)

    walk(yaml.compose(text, yaml.SafeLoader), ())
    return found


def _launch_beside(file: Path) -> dict[str, Any]:
    """accelerate's configuration where exactly one lies beside a YAML of TRL."""
    found = []
    for other in sorted({*file.parent.glob("*.yaml"), *file.parent.glob("*.yml")} - {file}):
        try:
            tree = yaml.safe_load(other.read_text(encoding="utf-8")) if other.stat().st_size < MOST_BYTES else None
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue
        if isinstance(tree, Mapping) and "distributed_type" in tree:
            found.append(dict(tree))
    return found[0] if len(found) == 1 else {}


def _python(file: Path, text: str) -> TrainerSetup:
    """A script that calls GRPOConfig, or whose first text shows how it is started."""
    if "GRPO" not in text:
        raise InputError("a Python script is read if it calls TRL's GRPOConfig, which this one does not", str(file))
    for line, command in _shown_commands(text):
        try:
            shown = shell_commands(file, "\n" * (line - 1) + command).commands
        except InputError:
            continue  # not a command: a sentence whose first word is one of a command
        for each in shown:
            if any(word.text.endswith(file.name) for word in each.words):
                return trl_words(each.words, str(file), is_shown=True)
    given = script_settings(text, str(file))
    return trl_setup(given, str(file), _launch_beside(file), is_command="TrlParser" in text)


def _shown_commands(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of commands that a script's own text shows, with their continuation lines."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if re.match(r"\s*(\w+=\S+ )*(accelerate launch|torchrun|trl grpo|python3?|uv run)\b", line):
            end = at
            while lines[end].rstrip().endswith("\\") and end + 1 < len(lines):
                end += 1
            yield at + 1, "\n".join(each.rstrip() for each in lines[at : end + 1])


def _script(file: Path, script: ShellScript, framework: Framework | None) -> TrainerSetup:
    setup = _of_commands(file, script, framework)
    why = "no such file, so that what it sets is not known; put it there"
    missing = tuple(LeftAside("source", word.text, why, "unresolved") for word in script.missing)
    return replace(setup, left_aside=setup.left_aside + missing)


def _of_commands(file: Path, script: ShellScript, framework: Framework | None) -> TrainerSetup:
    path = str(file)
    serve: dict[str, GivenValue] = {}
    for command in script.commands:
        if _SERVERS.search(" ".join(command.texts()[:6])):
            serve |= flags_of(command.words, path)
    for command in script.commands:
        found = framework_of(command.words) if framework is None else framework
        if found is None or (framework is not None and not _has_settings(command.words)):
            continue
        return _of_words(found, command.words, path, serve)
    raise InputError(
        "no command of it starts RL training with verl, slime, vime, TRL, SkyRL or OpenRLHF; name the one that does, "
        "or say which framework it is for with --framework",
        path,
    )


def _has_settings(words: tuple[ShellWord, ...]) -> bool:
    return sum(word.text.startswith("--") or "=" in word.text for word in words) >= 2


def framework_of(words: tuple[ShellWord, ...]) -> Framework | None:
    """The framework that a command starts, by its words; None: none of them."""
    texts = [word.text for word in words]
    line = " ".join(texts)
    if any(text.startswith(("generator.", "trainer.placement.", "trainer.policy.")) for text in texts):
        return "skyrl"
    if ("openrlhf" in line and "train_ppo_ray" in line) or ("--pretrain" in texts and "--vllm_num_engines" in texts):
        return "openrlhf"
    if MAIN.search(line) and ("data." in line or "actor_rollout_ref" in line or "trainer." in line):
        return "verl"
    if "--rollout-batch-size" in texts or "--actor-num-gpus-per-node" in texts:
        return "vime" if any(text.startswith("--vllm-") for text in texts) else "slime"
    if texts[:2] == ["trl", "grpo"] or ("accelerate" in texts and "launch" in texts and _is_grpo(texts)):
        return "trl"
    if any("actor_rollout_ref." in text for text in texts):
        return "verl"
    if any(text.startswith(("--vllm.num_engines", "--actor.model_name_or_path")) for text in texts):
        return "openrlhf"
    if texts and ("torchrun" in texts[0] or "python" in texts[0]) and _is_grpo(texts):
        return "trl"
    return None


def _is_grpo(texts: list[str]) -> bool:
    return any("grpo" in text.lower() or "--num_generations" in text or "gspo" in text.lower() for text in texts)


def _of_words(
    framework: Framework, words: tuple[ShellWord, ...], path: str, serve: Mapping[str, GivenValue]
) -> TrainerSetup:  # fmt: skip
    if framework == "verl":
        return verl_words(words, path)
    if framework in ("slime", "vime"):
        return slime_words(words, path, "vime" if framework == "vime" else "slime")
    if framework == "trl":
        return trl_words(words, path, serve)
    if framework == "skyrl":
        return skyrl_setup(overrides_of(_behind(words, r"main_\w+(\.py)?$"), path), path)
    if framework == "openrlhf":
        return openrlhf_setup(flags_of(_behind(words, r"train_ppo_ray(\.py)?$"), path), path)
    raise InputError("rlplan's own documents are job.yaml and cluster.yaml; name one of them", path)


def _behind(words: tuple[ShellWord, ...], started: str) -> tuple[ShellWord, ...]:
    """The words behind the program that is started; all where none is named so."""
    at = next((i for i, word in enumerate(words) if re.search(started, word.text)), -1)
    return words[at + 1 :]


# --- The same facts as flags ------------------------------------------------------------------------------------------

_FACTS: Mapping[str, str] = {
    "rollout_gpus": "rollout_gpus", "train_gpus": "train_gpus", "rollout_tp": "rollout_tp", "train_tp": "tp",
    "train_pp": "pp", "train_ep": "ep", "train_cp": "cp", "zero": "zero", "micro_batch": "micro_batch_samples",
    "micro_batch_tokens": "micro_batch_tokens", "prompts": "prompts", "samples": "samples",
    "max_prompt_tokens": "max_prompt_tokens", "max_response_tokens": "max_response_tokens",
    "mean_response_tokens": "mean_response_tokens", "memory_share": "memory_share", "host_bytes": "host_bytes",
    "optimizer_on": "optimizer_at",
}  # fmt: skip
"""Attributes by the names of flags (dashes for underscores)."""


def setup_from_flags(
    framework: Framework, *, model: str, nodes: int, gpus_per_node: int, gpu: str | None = None, **facts: Any
) -> TrainerSetup:
    """The setup of facts; what is not said is the framework's default, and stands in `defaulted`.

    `facts`: keys of `_FACTS`, with None for what is not said (`optimizer_on`: host or device; `host_bytes` of a node).
    With `rollout_gpus` or `train_gpus`, and unless these are all GPUs, both sides have GPUs of their own. Raises
    InputError.
    """
    said = {_FACTS[name]: value for name, value in facts.items() if value is not None}
    total = nodes * gpus_per_node
    base = _defaults(framework, nodes, gpus_per_node, model, bool({"tp", "pp", "ep", "cp"} & set(said)))
    train, rollout = said.pop("train_gpus", None), said.pop("rollout_gpus", None)
    for name, size in (("--train-gpus", train), ("--rollout-gpus", rollout)):
        if size is not None and not 1 <= size <= total:
            raise InputError(f"{name} {size}: the machines have {total} GPUs; write 1 to {total}")
    apart = total not in (train, rollout) and 0 < (train or 0) + (rollout or 0) <= total
    changed: dict[str, Any] = {"gpu": gpu, "colocated": not apart}
    changed["train_gpus"] = train or (total - int(rollout or 0) if apart else total)
    changed["rollout_gpus"] = rollout or (total - int(train or 0) if apart else total)
    if apart:
        changed |= {"engine_sleeps": False, "weights_at": "device", "optimizer_at": "device"}
    if "micro_batch_samples" in said:
        changed["micro_batch_tokens"] = None
    if "micro_batch_tokens" in said:
        changed["micro_batch_samples"] = None
    if framework == "trl" and "zero" in said:
        changed |= {"backend": "deepspeed", "weight_bytes": 2.0, "gradient_bytes": 2.0, "optimizer_bytes": 12.0}
    elif base.backend == "megatron" and said.get("zero", 1) != 1:
        raise InputError(f"--zero {said['zero']}: Megatron shares out the optimizer alone; write --zero 1")
    setup = replace(base, **{**changed, **said})
    if {"prompts", "samples"} & set(said):
        setup = replace(setup, mini_batch_samples=setup.prompts * setup.samples)
    stated = {*said, "model", "nodes", "gpus_per_node", "gpu"}
    stated |= {name for name, size in (("train_gpus", train), ("rollout_gpus", rollout)) if size is not None}
    defaulted = tuple(name for name in TrainerSetup.__dataclass_fields__ if name not in _NOT_DEFAULTS | stated)
    return replace(setup, defaulted=defaulted, lines={}, left_aside=())


_NOT_DEFAULTS = word_set(
    "framework version source shape host_bytes keys algorithm defaulted left_aside lines mean_response_tokens "
    "shard_ranks issued_prompts gpu"
)


def _defaults(framework: Framework, nodes: int, per_node: int, model: str, divided: bool = False) -> TrainerSetup:
    """The setup of a framework that is told the machines and the model alone, and whether a layout is `divided` by
    tensors, stages, contexts or experts: then verl and SkyRL train by Megatron.

    Where a framework's own default is no way to run GRPO (verl: one sample a prompt, a critic, no KL loss; slime: no
    size of a step; OpenRLHF: engines that share GPUs take 0.95 of them and stay), that of its example scripts is:
    n = 8, `--colocate`, full recomputation, dynamic batches; engines of 0.6 that sleep.
    """
    source = "<flags>"
    if framework == "verl":
        given = {
            "trainer.nnodes": nodes, "trainer.n_gpus_per_node": per_node, "actor_rollout_ref.model.path": model,
            "algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8,
            "actor_rollout_ref.actor.use_kl_loss": True,
            **({"actor_rollout_ref.actor.strategy": "megatron"} if divided else {}),
        }  # fmt: skip
        return verl_setup({key: GivenValue(value) for key, value in given.items()}, source)
    if framework in ("slime", "vime"):
        flags = {
            "--actor-num-nodes": nodes, "--actor-num-gpus-per-node": per_node, "--colocate": True,
            "--hf-checkpoint": model, "--recompute-granularity": "full", "--use-dynamic-batch-size": True,
            "--max-tokens-per-gpu": 9216,
            "--rollout-batch-size": 32, "--n-samples-per-prompt": 8, "--rollout-max-response-len": 8192,
        }  # fmt: skip
        given_flags = {key: GivenValue(value) for key, value in flags.items()}
        return slime_setup(given_flags, source, "vime" if framework == "vime" else "slime")
    if framework == "trl":
        settings = {"model_name_or_path": model, "use_vllm": True, "num_generations": 8}
        launch = {"num_processes": nodes * per_node, "num_machines": nodes}
        return trl_setup({key: GivenValue(value) for key, value in settings.items()}, source, launch, is_command=False)
    if framework == "skyrl":
        placed = {
            "trainer.placement.policy_num_nodes": nodes, "trainer.placement.policy_num_gpus_per_node": per_node,
            "trainer.policy.model.path": model, "generator.inference_engine.num_engines": nodes * per_node,
            **({"trainer.strategy": "megatron"} if divided else {}),
        }  # fmt: skip
        return skyrl_setup({key: GivenValue(value) for key, value in placed.items()}, source)
    if framework == "openrlhf":
        arguments = {
            "--actor.num_nodes": nodes, "--actor.num_gpus_per_node": per_node, "--actor.model_name_or_path": model,
            "--train.colocate_all": True, "--vllm.num_engines": nodes * per_node,
            "--algo.advantage.estimator": "group_norm", "--rollout.n_samples_per_prompt": 8,
            "--vllm.enable_sleep": True, "--ds.enable_sleep": True, "--vllm.gpu_memory_utilization": 0.6,
            "--actor.gradient_checkpointing_enable": True, "--ds.packing_samples": True,
        }  # fmt: skip
        return openrlhf_setup({key: GivenValue(value) for key, value in arguments.items()}, source)
    raise InputError(
        f"--framework {framework}: facts as flags are for verl, slime, vime, trl, skyrl and openrlhf; name job.yaml"
    )


_OWN_KEYS = {
    "model": "model.path", "prompts": "rollout.prompts_per_step", "samples": "rollout.samples_per_prompt",
    "max_prompt_tokens": "rollout.max_prompt_tokens", "max_response_tokens": "rollout.max_response_tokens",
    "rollout_tp": "search.tp", "micro_batch_tokens": "search.micro_batch_tokens", "nodes": "pools.*.nodes",
    "gpus_per_node": "pools.*.accelerators.per_node", "gpu": "pools.*.accelerators.name",
    "host_bytes": "pools.*.host_memory_bytes", "colocated": "placement.train_pool",
    "dynamic_sampling": "algorithm.dynamic_sampling",
}  # fmt: skip


def _own_setup(path: Path) -> TrainerSetup:
    """The setup of our own job.yaml beside its cluster.yaml, or of a cluster.yaml beside its job.yaml: the first layout
    that the job's `search` names. The executor keeps float32 weights, gradients and moments, sharded over replicas."""
    kind = document_kind(path)
    other = path.with_name("cluster.yaml" if kind == "rlplan_job" else "job.yaml")
    if not other.is_file():
        raise InputError(
            f"needs {other.name} beside it, which is not there; write one (rlplan init), or name a plan",
            str(path),
        )
    job_path, cluster_path = (path, other) if kind == "rlplan_job" else (other, path)
    return _of_documents(load_job(job_path), load_cluster(cluster_path), str(path))


def _of_documents(job: Job, cluster: Cluster, source: str = "") -> TrainerSetup:
    """The setup of a job on a cluster: on the largest pool, or on that and the pool that it trains on."""
    train_name = None if job.placement is None else job.placement.train_pool
    rest = [name for name in cluster.pools if name != train_name] or list(cluster.pools)
    name = max(rest, key=lambda each: cluster.pools[each].accelerators_total)
    pool = cluster.pools[name]
    train = pool if train_name is None or train_name not in cluster.pools else cluster.pools[train_name]
    colocated = train is pool
    spec, wide = job.rollout, job.model.dtype == "float32"
    aside = [
        LeftAside(f"search.{key}", str(list(values)), f"{values[0]} is taken; rlplan solve weighs them all")
        for key, values in (("tp", job.search.tp), ("micro_batch_tokens", job.search.micro_batch_tokens))
        if len(values) > 1
    ]
    return TrainerSetup(
        framework="rlplan", model=job.model.path, nodes=pool.nodes + (0 if colocated else train.nodes),
        gpus_per_node=pool.accelerators.per_node, gpu=pool.accelerators.name, source=source,
        host_bytes=float(pool.host_memory_bytes), colocated=colocated, train_gpus=train.accelerators_total,
        rollout_gpus=pool.accelerators_total, backend="fsdp", zero=3,
        micro_batch_tokens=job.search.micro_batch_tokens[0],
        recompute="none" if wide and pool.accelerators.kind == "cpu" else "full", weight_bytes=4.0, gradient_bytes=4.0,
        optimizer_bytes=8.0, chunked_logits=True, prompts=spec.prompts_per_step, samples=spec.samples_per_prompt,
        dynamic_sampling=job.algorithm.dynamic_sampling, max_prompt_tokens=spec.max_prompt_tokens,
        max_response_tokens=spec.max_response_tokens, engine="vllm", rollout_tp=job.search.tp[0],
        weights_at="between" if colocated else "device", optimizer_at="between" if colocated else "device",
        memory_share=ENGINE_SHARE, engine_sleeps=colocated, engine_keeps_weights_on_host=False, keys=_OWN_KEYS,
        defaulted=("recompute", "memory_share"), left_aside=tuple(aside),
    )  # fmt: skip
