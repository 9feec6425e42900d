"""TRL: a YAML of `trl grpo --config`, a Python script with `GRPOConfig(…)`, or the command that starts one of them.

What TRL does without being told (1.16): plain data parallelism, every GPU with all states in the checkpoint's type (a
script) or in float32 (`trl grpo`, whose `dtype` is float32); gradient checkpointing; log-probabilities without whole
logits; no reference model (beta is 0); generation by transformers. accelerate's configuration says what is sharded:
ZeRO keeps a float32 master copy beside bf16 weights, FSDP under mixed precision keeps everything in float32.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ...plans.facts.trainer_setup import LeftAside, TrainerSetup
from ...plans.yaml.errors import InputError
from ..keys.key_table import key_table
from .read_algorithm import trl_algorithm
from .read_slime import flags_of
from .settings import GivenValue, Taken, whole
from .shell_words import ShellWord

PROCESSES = 8
"""Processes that the accelerate configurations which TRL ships start."""
OLD = {"dtype": "torch_dtype"}
_ZERO = {"zero1": 1, "zero2": 2, "zero3": 3}
_SHIPPED: Mapping[str, Mapping[str, Any]] = {
    **{
        name: {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage}}
        for name, stage in _ZERO.items()
    },
    "fsdp1": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}},
    "fsdp2": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_reshard_after_forward": True, "fsdp_version": 2}},
    "multi_gpu": {"distributed_type": "MULTI_GPU"},
    "single_gpu": {"distributed_type": "NO", "num_processes": 1},
}
"""What `--accelerate_config NAME` of the `trl` command means (8 processes, bf16)."""


def trl_setup(
    given: Mapping[str, GivenValue],
    source: str,
    launch: Mapping[str, Any],
    serve: Mapping[str, GivenValue] | None = None,
    is_command: bool = True,
) -> TrainerSetup:
    """The setup of TRL's settings.

    `launch`: accelerate's configuration; `serve`: flags of the vLLM server that the same script starts; `is_command`:
    they are for `trl grpo`, and not arguments of GRPOConfig in a script. Raises InputError.
    """
    taken = Taken("trl", source, key_table("trl"), given, OLD)
    processes = _of(launch, "num_processes")
    nodes = max(1, _of(launch, "num_machines") or 1)
    world = processes or PROCESSES * nodes
    per_node = max(1, world // nodes)
    batch = taken.count("micro_batch_samples", "per_device_train_batch_size")
    accumulated = taken.count("mini_batch_samples", "gradient_accumulation_steps")
    samples = taken.count("samples", "num_generations")
    steps = taken.some(None, "steps_per_generation") or accumulated
    generated = taken.some("prompts", "generation_batch_size") or batch * world * steps
    taken.decide("prompts", taken.has("generation_batch_size", "steps_per_generation", "per_device_train_batch_size"))
    states = _states(taken, launch, is_command)
    for attribute in ("nodes", "gpus_per_node", "train_gpus"):
        taken.decide(attribute, processes is not None, "")
    engine = _engine(taken, batch * steps, serve or {}, world)
    total = world if engine["colocated"] else world + engine["rollout_gpus"]
    response = taken.count("max_response_tokens", "max_completion_length")
    prompt = taken.some("max_prompt_tokens", "max_prompt_length")
    model_length = taken.some(None, "vllm_max_model_length")
    if prompt is None and model_length is not None and model_length > response:
        prompt = model_length - response
        taken.decide("max_prompt_tokens", True, "vllm_max_model_length")
    return taken.setup(
        model=taken.model(("model_name_or_path", "model")),
        nodes=-(-total // per_node),
        gpus_per_node=per_node,
        train_gpus=world,
        cp=_parallel(launch, "cp"),
        sp=_parallel(launch, "sp"),
        micro_batch_samples=batch,
        mini_batch_samples=batch * world * accumulated,
        chunked_logits=True,
        algorithm=trl_algorithm(taken),
        reference=bool(taken.number("reference", "beta")) and not states["lora_rank"],
        prompts=max(1, generated // samples),
        samples=samples,
        max_prompt_tokens=prompt or 512,
        max_response_tokens=response,
        **states,
        **engine,
    )


def _parallel(launch: Mapping[str, Any], kind: str) -> int:
    """Size of context (`cp`) or sequence (`sp`) parallelism."""
    return _of(_section(launch, "parallelism_config"), f"parallelism_config_{kind}_size") or 1


def _of(mapping: Mapping[str, Any], key: str) -> int | None:
    try:
        return None if mapping.get(key) is None else whole(mapping[key])
    except ValueError:
        return None


def _section(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = mapping.get(key)
    return found if isinstance(found, Mapping) else {}


def _states(taken: Taken, launch: Mapping[str, Any], is_command: bool) -> dict[str, Any]:
    """What is kept of a parameter, in which type, and who shares it."""
    dtype = taken.text("weight_bytes", "dtype", None if is_command else "auto")
    wide = dtype == "float32"
    mixed = str(launch.get("mixed_precision", "bf16")).lower() != "no"
    mixed = mixed and (taken.flag(None, "bf16", True) or taken.flag(None, "fp16"))
    zero, deep, fsdp = _section(launch, "deepspeed_config"), launch.get("distributed_type") == "DEEPSPEED", {}
    if launch.get("distributed_type") == "FSDP":
        fsdp = dict(_section(launch, "fsdp_config"))
    states: dict[str, Any] = {"backend": "ddp", "zero": 0, "tp": 1, "pp": 1, "ep": 1}
    weight, gradient, moments = (4.0, 4.0, 8.0) if wide else (2.0, 2.0, 4.0)
    if deep:
        states |= {"backend": "deepspeed", "zero": _of(zero, "zero_stage") if zero.get("zero_stage") is not None else 2}
        weight, gradient, moments = (2.0, 2.0, 12.0) if mixed else (4.0, 4.0, 8.0)
        on_host = str(zero.get("offload_optimizer_device", "none")) in ("cpu", "nvme")
        states["optimizer_at"] = "host" if on_host else "device"
        states["weights_at"] = "host" if str(zero.get("offload_param_device", "none")) in ("cpu", "nvme") else "device"
    elif fsdp:
        strategy = str(fsdp.get("fsdp_sharding_strategy", "FULL_SHARD")).upper()
        keeps = str(fsdp.get("fsdp_reshard_after_forward", True)).lower() in ("false", "shard_grad_op", "no_shard")
        states |= {"backend": "fsdp", "zero": 2 if keeps or strategy in ("SHARD_GRAD_OP", "2") else 3}
        if strategy in ("NO_SHARD", "3"):
            states["zero"] = 0
        if mixed:
            weight, gradient, moments = 4.0, 4.0, 8.0
        if str(fsdp.get("fsdp_offload_params", False)).lower() == "true":
            states |= {"weights_at": "host", "optimizer_at": "host"}
    optimizer = taken.text("optimizer_bytes", "optim", "adamw_torch_fused")
    if "8bit" in optimizer:
        moments -= (8.0 if moments >= 8 else 4.0) - 2.0
    elif optimizer in ("adafactor", "sgd") or "lion" in optimizer:
        moments -= 8.0 if moments >= 8 else 4.0
    checkpointing = taken.flag("recompute", "gradient_checkpointing")
    again = checkpointing or str(fsdp.get("fsdp_activation_checkpointing", False)).lower() == "true"
    lora = taken.count("lora_rank", "lora_r") if taken.flag(None, "use_peft") else 0
    taken.decide("backend", bool(launch))
    taken.decide("zero", bool(launch))
    return {
        **states, "lora_rank": lora, "recompute": "full" if again else "none",
        "weight_bytes": weight, "gradient_bytes": gradient, "optimizer_bytes": max(0.0, moments),
    }  # fmt: skip


def _engine(taken: Taken, batch: int, serve: Mapping[str, GivenValue], world: int) -> dict[str, Any]:
    """`batch`: samples that a process generates at once."""
    if not taken.flag("engine", "use_vllm"):
        return {"engine": "transformers", "colocated": True, "rollout_gpus": world, "rollout_tp": 1,
                "max_num_seqs": batch, "engine_sleeps": False}  # fmt: skip
    if taken.text("colocated", "vllm_mode") == "server":
        flags = {name.replace("_", "-"): setting for name, setting in serve.items()}
        server = Taken("trl", taken.source, taken.table, flags)
        tp = server.count(None, "--tensor-parallel-size", 1)
        dp = server.count(None, "--data-parallel-size", 1)
        share = server.number(None, "--gpu-memory-utilization", 0.9)
        taken.decide("rollout_tp", bool(serve), "--tensor-parallel-size")
        taken.decide("rollout_gpus", bool(serve), "--data-parallel-size")
        return {"engine": "vllm", "colocated": False, "rollout_gpus": tp * dp, "rollout_tp": tp, "memory_share": share,
                "max_num_seqs": server.some(None, "--max-num-seqs", 256), "engine_sleeps": False}  # fmt: skip
    tp = taken.count("rollout_tp", "vllm_tensor_parallel_size")
    return {"engine": "vllm", "colocated": True, "rollout_gpus": world, "rollout_tp": tp,
            "memory_share": taken.number("memory_share", "vllm_gpu_memory_utilization"), "max_num_seqs": batch * tp,
            "engine_sleeps": taken.flag("engine_sleeps", "vllm_enable_sleep_mode")}  # fmt: skip


# --- Where the settings stand ---------------------------------------------------------------------------------------


def trl_words(
    words: Sequence[ShellWord], path: str, serve: Mapping[str, GivenValue] | None = None, is_shown: bool = False
) -> TrainerSetup:
    """The setup of a command that starts TRL: `trl grpo …`, or `accelerate launch … SCRIPT …`. Raises InputError.

    `is_shown`: a script's own text shows the command. It configures nothing that is run, and so a file of accelerate's
    that it names and that is not there is left aside.
    """
    texts = [word.text for word in words]
    script = next((i for i, text in enumerate(texts) if text.endswith(".py")), -1)
    launcher = words[:script] if script >= 0 else words
    flags = {name.lstrip("-").replace("-", "_"): each for name, each in flags_of(words[script + 1 :], path).items()}
    launching = {name.lstrip("-"): each for name, each in flags_of(launcher, path).items()} | flags
    aside: tuple[LeftAside, ...] = ()
    if is_shown and (absent := _absent_file(launching, path)) is not None:
        why = "the script's own text names it, and no such file is there: TRL's own way to start is taken"
        aside = (LeftAside("--config_file", absent.shown(), why, "unresolved"),)
        launching = {name: each for name, each in launching.items() if each is not absent}
    launch = _launch(launching, path)
    for name in ("accelerate_config", "num_processes", "config_file", "num_machines"):
        flags.pop(name, None)
    given: dict[str, GivenValue] = {}
    config = flags.pop("config", None)
    if config is not None and not config.unresolved:
        given |= yaml_settings(_near(str(config.value), path), relative_to=path)
    is_command = script < 0
    if script >= 0 and (found := _near(texts[script], path)).is_file():
        text = found.read_text(encoding="utf-8", errors="replace")
        given = script_settings(text, str(found), path) | given
        is_command = "TrlParser" in text
    setup = trl_setup(given | flags, path, launch, serve, is_command)
    return replace(setup, left_aside=setup.left_aside + aside)


def _near(name: str, beside: str) -> Path:
    """A file by a relative name: from here, from the folder of `beside`, or from one above it."""
    folders = [Path(), *Path(beside).resolve().parents[:6]]
    return next((folder / name for folder in folders if (folder / name).is_file()), Path(name))


def _absent_file(flags: Mapping[str, GivenValue], path: str) -> GivenValue | None:
    """The flag that names a configuration of accelerate's which is not there; None where it is, or none is named."""
    named = flags.get("config_file") or flags.get("accelerate_config")
    if named is None or named.unresolved or str(named.value) in _SHIPPED or _near(str(named.value), path).is_file():
        return None
    return named


def _launch(flags: Mapping[str, GivenValue], path: str) -> dict[str, Any]:
    """accelerate's configuration: the file that flags name, with what they say beside it."""
    launch: dict[str, Any] = {}
    named = flags.get("config_file") or flags.get("accelerate_config")
    if named is not None and not named.unresolved:
        if str(named.value) in _SHIPPED:
            launch |= {"num_processes": PROCESSES, **_SHIPPED[str(named.value)]}
        elif _absent_file(flags, path) is None:
            launch |= accelerate_config(_near(str(named.value), path))
        else:
            raise InputError(
                f"--config_file {named.value}: no such file, here or in a folder above; it says what is sharded: put "
                "it there, or write its path", path, named.line,
            )  # fmt: skip
    for name, key in (
        ("num_processes", "num_processes"), ("num_machines", "num_machines"), ("nproc_per_node", "num_processes"),
        ("nproc-per-node", "num_processes"), ("nnodes", "num_machines"),
    ):  # fmt: skip
        if name in flags and not flags[name].unresolved and str(flags[name].value).isdigit():
            launch[key] = int(str(flags[name].value))
    if "nproc_per_node" in flags or "nproc-per-node" in flags:
        launch["num_processes"] = (launch.get("num_processes") or 1) * (launch.get("num_machines") or 1)
    return launch


def accelerate_config(path: Path) -> dict[str, Any]:
    """A configuration of accelerate as a mapping. Raises InputError."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read as accelerate's configuration: {error}; write one with accelerate config",
                         str(path)) from None  # fmt: skip
    return dict(tree) if isinstance(tree, Mapping) else {}


def yaml_settings(path: Path, relative_to: str = "") -> dict[str, GivenValue]:
    """Settings of a YAML of `trl grpo --config`. Lines are left out where it is not the file that is read."""
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, yaml.SafeLoader)
        tree = yaml.safe_load(text)
    except OSError:
        raise InputError(f"--config {path}: no such file; write its path", relative_to or None) from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"is no YAML: {' '.join(str(error).split())}; mend it", str(path)) from None
    if not isinstance(tree, Mapping) or not isinstance(node, yaml.MappingNode):
        raise InputError("holds no keys of trl grpo; write `key: value` lines", str(path))
    lines = {key.value: key.start_mark.line + 1 for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    own = not relative_to or str(path) == relative_to
    return {str(key): GivenValue(value, lines.get(str(key)) if own else None) for key, value in tree.items()}


def script_settings(text: str, source: str, relative_to: str = "") -> dict[str, GivenValue]:
    """Arguments of `GRPOConfig(…)`, and the model of `GRPOTrainer(…)`, that are literals. Raises InputError."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"is no Python: {error.msg}; mend it", source, error.lineno) from None
    own = not relative_to or source == relative_to
    names = {
        target.id: node.value
        for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets
        if isinstance(target, ast.Name)
    }  # fmt: skip
    given: dict[str, GivenValue] = {}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    arguments = _arguments(calls)
    for call in calls:
        called = ast.unparse(call.func).split(".")[-1]
        for keyword in call.keywords if called in ("GRPOConfig", "GRPOTrainer", "LoraConfig") else ():
            name = {"LoraConfig": {"r": "lora_r"}, "GRPOTrainer": {"model": "model_name_or_path"}}.get(called, {})
            if keyword.arg is None or (called != "GRPOConfig" and keyword.arg not in name):
                continue
            line = keyword.value.lineno if own else None
            value = names.get(keyword.value.id, keyword.value) if isinstance(keyword.value, ast.Name) else keyword.value
            value = arguments.get(value.attr, value) if isinstance(value, ast.Attribute) else value
            key = name.get(keyword.arg, keyword.arg)
            try:
                given[key] = GivenValue(ast.literal_eval(value), line)
            except ValueError:
                shown = ast.unparse(value)
                given.setdefault(key, GivenValue(shown, line, (shown,)))
        if called == "LoraConfig":
            given["use_peft"] = GivenValue(True, call.lineno if own else None)
    model = given.get("model_name_or_path")
    if model is not None and model.unresolved:
        made = re.search(r"from_pretrained\(\s*['\"]([^'\"]+)", text)
        if made:
            given["model_name_or_path"] = GivenValue(made[1], model.line)
        else:
            given.pop("model_name_or_path")
    if (
        isinstance(init := given.get("model_init_kwargs"), GivenValue)
        and isinstance(init.value, dict)
        and "dtype" in init.value
    ):
        given["dtype"] = GivenValue(init.value["dtype"], init.line)
    return given


def _arguments(calls: Sequence[ast.Call]) -> dict[str, ast.expr]:
    """Defaults of a script's own command line arguments, by name."""
    found: dict[str, ast.expr] = {}
    for call in calls:
        name = next((each.value for each in call.args if isinstance(each, ast.Constant)), None)
        default = next((each.value for each in call.keywords if each.arg == "default"), None)
        if ast.unparse(call.func).endswith(".add_argument") and isinstance(name, str) and default is not None:
            found[name.lstrip("-").replace("-", "_")] = default
    return found
