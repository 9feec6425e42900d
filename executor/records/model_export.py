"""A run's model as a Hugging Face folder, from one of its checkpoints: weights, config, tokenizer and a card.

Invariants:
- a folder OUT appears whole or not at all, and one that is there is never written over: all is written and synced in a
  folder beside it, which then gets its name;
- memory holds one file's tensors in the type that is written, and one parameter in the checkpoint's: never the model;
- tensors have the names and shapes of the Hugging Face checkpoint, however many ranks wrote them: transformers says
  which part of which parameter each is; what is tied is written once;
- a checkpoint that is read is not dropped meanwhile, by whatever process (`checkpoints.held`).

No process group, no GPU and no engine is needed: torch's distributed checkpoint says where in which file each part of a
parameter lies.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download, split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from ... import __version__
from ...plans.check.plan_check import input_path
from ...plans.files.row_files import rows_digest
from ...plans.phrases.numbers import bytes_text, count, runs_text
from ...plans.schema.job import Job, is_hub_id, load_job, model_folder, pretrained
from ...plans.schema.plan import Plan, load_plan
from ...plans.yaml.errors import InputError, RunFailed
from ...plans.yaml.yaml_io import sha256_file
from ...traces.report_state import evaluation_text, evaluations
from ...traces.run_log import PLAN_COPY, TRACE, run_folders
from ...traces.trace import trace_lines
from ...traces.trace_events import StepEvent, decoded
from ..trainer.manifest import damage, sync_folder
from ..trainer.policy.adapters import DOWN, UP
from ..trainer.rank_transfers import checkpoint_sources
from ..trainer.state_metadata import TensorReader
from ..weights.bucket_plan import TensorSource
from ..weights.transfer import adapter_delta
from .checkpoints import MANIFEST, SPARE_BYTES, checkpoints, folder_bytes, held

SHARD = "5GB"
"""Most bytes of a file of weights; a tensor that has more is a file of its own."""

BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "LICENSE*", "NOTICE*")
NOT_COPIED = ("*.index.json", "*_state.json", "*_results.json")
"""What is copied from the folder of the model that was trained: all that describes it, its tokenizer and its licence,
and nothing that is of its weights or of a training of its own."""

CARD_ROWS = 12
"""Most rows of the card's table."""

_OF_MODEL = "model."  # the part of trainer_state() (trainer/saved_state.py) that is exported
_SCALE = "counters.adapter_scale"


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """What was written: `step` of the run, `dtype` of the weights, `files` and `bytes` in the folder."""

    out: Path
    step: int
    dtype: str
    parameters: int
    files: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Trained:
    """What a run trained: `model` as transformers takes it, the folder or hub id; without a job.yaml to be found `job`
    is None, and `data`, its file of prompts, as well."""

    plan: Plan
    model: str
    job: Job | None
    data: Path | None
    steps: Sequence[StepEvent]
    evaluated: Sequence[Mapping[str, Any]]


def export_model(
    run_dir: Path,
    out: Path,
    step: int | None = None,
    *,
    dtype: str | None = None,
    model: str | None = None,
    adapter: bool = False,
    verify: bool = True,
    shard: str = SHARD,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> ExportedModel:
    """Write the model of a run's checkpoint to `out`, as a folder that transformers and vLLM load.

    Args:
        run_dir: of one run; it may be going on.
        step: of the checkpoint; None: the latest.
        dtype: of the weights: float32, bfloat16 or float16; None: that of the job.
        model: folder or hub id of the model that was trained; None: where the run's job says.
        adapter: write the adapters alone, as a folder of peft, in place of the model with these added.
        verify: the checkpoint's files are read once more before, to see that they are as they were written.
        shard: most bytes of a file.
        progress: is told what is being done and the share that is done; what it raises ends the export.

    Raises InputError if there is no such run or checkpoint, it is damaged, or `out` exists; RunFailed if the disk does
    not take the model.
    """
    began = time.monotonic()
    if os.path.lexists(out):
        raise InputError("exists, and a model is never written over anything; name a new folder", str(out))
    folder = _checkpoint(run_dir, step)
    number = step_of(folder)
    try:
        with held(folder):
            if verify:
                progress("checking files", 0.0)
                if (fault := damage(folder / MANIFEST)) is not None:
                    others = [step_of(each) for each in checkpoints(run_dir) if each != folder]
                    instead = f"export another with --step: {runs_text(others)}" if others else "there is no other"
                    raise InputError(f"is damaged ({fault}); {instead}", str(folder))
            trained = _trained(run_dir, number, model)
            if dtype is None and trained.job is not None:
                dtype = "float32" if adapter else trained.job.model.dtype
            if dtype is None:
                raise InputError("has no job.yaml to be found; give the type of the weights with --dtype", str(run_dir))
            reader = _Reader(folder / "trainer")
            if adapter and reader.scale is None:
                raise InputError("trained no adapters (model.lora), so there is only a model; leave --adapter out",
                                 str(run_dir))  # fmt: skip
            config, described = _description(trained.model, weights=reader.scale is not None and not adapter)
            sources = _sources(reader, config, trained.model)
            if reader.scale is not None and not adapter:
                kept = trained.job.model.dtype if trained.job is not None else "float32"
                reader.add_to(described, torch.bfloat16 if kept == "bfloat16" else torch.float32)
            with _whole(out) as partial:
                if adapter:
                    parameters = _write_adapter(reader, trained.model, dtype, partial)
                else:
                    parameters = _write_weights(reader, sources, dtype, shard, partial, progress)
                    _write_beside(config, described, dtype, partial)
                (partial / "README.md").write_text(_card(run_dir, trained, number, dtype, adapter), encoding="utf-8")
                files = sum(1 for path in partial.rglob("*") if path.is_file())
                size = folder_bytes(partial)
    except FileNotFoundError as error:
        gone = "was removed while it was read" if not folder.is_dir() else f"is damaged ({error.filename} is missing)"
        raise InputError(f"{gone}; export another step", str(folder)) from error
    return ExportedModel(out, number, dtype, parameters, files, size, time.monotonic() - began)


def _checkpoint(run_dir: Path, step: int | None) -> Path:
    """The folder of a run's checkpoint. Raises InputError if it has none of the step, or is no run."""
    if (folders := run_folders(run_dir)) != [run_dir]:
        listed = ", ".join(folder.name for folder in folders)
        raise InputError(f"holds {count(len(folders), 'run')}: {listed}; name the folder of one", str(run_dir))
    found = {step_of(folder): folder for folder in checkpoints(run_dir)}
    if not found:
        raise InputError("has no checkpoint yet; wait for its first one", str(run_dir))
    if step is not None and step not in found:
        there = runs_text(sorted(found))
        raise InputError(f"has no checkpoint of step {step}; there are those of steps {there}", str(run_dir))
    return found[max(found) if step is None else step]


def step_of(folder: Path) -> int:
    """The step of a checkpoint, from its folder's name."""
    return int(folder.name.rpartition("-")[2])


def _trained(run_dir: Path, until: int, model: str | None) -> _Trained:
    """What the run trained, with its steps and evaluations up to `until`. Raises InputError if the model cannot be
    found."""
    steps: dict[int, StepEvent] = {}
    events: list[dict[str, Any]] = []
    plans = [run_dir / PLAN_COPY]
    try:
        for _, line in trace_lines(run_dir / TRACE):
            if b'"event":"sample"' in line:  # most of a trace
                continue
            _, event = decoded(line)
            if isinstance(event, StepEvent):
                steps[event.step] = event
            elif isinstance(event, dict):
                events.append(event)
        evaluated = [each for each in evaluations(events) if each["step"] <= until]
    except ValueError as error:
        raise InputError(f"{error}; the trace is damaged", str(run_dir / TRACE)) from error
    plans += [
        run_dir / named
        for event in events
        if event["event"] in ("run", "resume", "plan") and isinstance(named := event.get("plan"), str)
    ]
    plan = load_plan(run_dir / PLAN_COPY)
    done = [steps[number] for number in sorted(steps) if number <= until]
    # What the plan names lies beside where it was executed; its copy may lead there as well.
    for path in reversed(plans):
        if not (job_path := input_path(plan.inputs.job, path)).is_file():
            continue
        job = load_job(job_path)
        data = None if job.data.path is None else job_path.parent / job.data.path
        found = model or str(model_folder(job, job_path) or job.model.hub_name)
        return _Trained(plan, found, job, data if data is not None and data.exists() else None, done, evaluated)
    if model is None:
        raise InputError(
            "does not lead to the job of its plan; give the model that it trained with --model", str(run_dir)
        )
    return _Trained(plan, model, None, None, done, evaluated)


@contextlib.contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder that is `out` once the block is done, and is removed if it fails.

    Raises RunFailed for what the disk does not take."""
    partial: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
        partial.chmod(0o777 & ~_umask())
        yield partial
        for path in partial.iterdir():
            path.chmod(0o666 & ~_umask())  # safetensors' are their owner's alone, and another user may serve them
            sync_folder(path)
        sync_folder(partial)
        partial.rename(out)
        partial = None
        sync_folder(out.parent)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise  # of what is read
        why = error.strerror or error
        raise RunFailed(f"{out} cannot be written ({why}); make room, or name another folder") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


class _Reader:
    """Reads single parameters of a trainer's state, from the files of all ranks that wrote it."""

    def __init__(self, folder: Path) -> None:
        self._reader = TensorReader(folder)
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        self.shapes = {
            key.removeprefix(_OF_MODEL): tuple(entry.size)
            for key, entry in self._metadata.state_dict_metadata.items()
            if key.startswith(_OF_MODEL) and isinstance(entry, TensorStorageMetadata)
        }
        self.scale: float | None = None
        """Of adapters, which the checkpoint then has in place of weights; None: it has weights."""
        if _SCALE in self._metadata.state_dict_metadata:
            self.scale = float(self._read(_SCALE, torch.empty((), dtype=torch.float64)))
        self._last: tuple[str, torch.Tensor] = "", torch.empty(0)
        self._base: tuple[Mapping[str, Path], torch.dtype] = {}, torch.float32

    def read(self, name: str) -> torch.Tensor:
        """A parameter, whole, in the type that it is trained in: float32."""
        return self._read(_OF_MODEL + name, torch.empty(self.shapes[name], dtype=torch.float32))

    def add_to(self, folder: Path, kept: torch.dtype) -> None:
        """From now on `tensor` adds adapters to the weights of the model in `folder`, which the trainer kept as `kept`.
        Raises InputError if it has no safetensors."""
        files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                files |= dict.fromkeys(file.keys(), path)
        if not files:
            raise InputError("holds no safetensors, to whose weights the adapters could be added; name a folder that "
                             "does with --model, or write the adapters alone: --adapter", str(folder))  # fmt: skip
        self._base = files, kept

    def tensor(self, source: TensorSource) -> torch.Tensor:
        """A tensor of the checkpoint of transformers, in float32. Raises FileNotFoundError if the model's files lack
        it."""
        if self.scale is None:
            if source.parameter != self._last[0]:  # transformers keeps a layer's experts in one
                self._last = "", torch.empty(0)  # two at a time would take twice the memory
                self._last = source.parameter, self.read(source.parameter)
            return self._last[1][source.box.slices].reshape(source.shape)
        files, kept = self._base
        if source.name not in files:
            raise FileNotFoundError(2, "the model's files lack a weight", source.name)
        with safe_open(files[source.name], framework="pt") as file:
            weight: torch.Tensor = file.get_tensor(source.name).to(kept).float()
        stem = source.parameter.removesuffix(".weight")
        if f"{stem}.{DOWN}" in self.shapes:
            weight = weight + adapter_delta(self.read(f"{stem}.{DOWN}"), self.read(f"{stem}.{UP}"), self.scale)
        return weight

    def _read(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        planner = DefaultLoadPlanner()
        planner.set_up_planner({key: tensor}, self._metadata, is_coordinator=True)
        plan = planner.finish_plan(self._reader.prepare_local_plan(planner.create_local_plan()))
        self._reader.read_data(plan, planner).wait()
        return tensor


def _write_weights(
    reader: _Reader,
    sources: Sequence[TensorSource],
    dtype: str,
    shard: str,
    out: Path,
    progress: Callable[[str, float], None],
) -> int:
    """Write all weights, and the index of their files if they are several; returns the number of parameters."""
    kind: torch.dtype = getattr(torch, dtype)
    sizes = {source.name: torch.empty(source.shape, dtype=kind, device="meta") for source in sources}
    total = sum(tensor.nbytes for tensor in sizes.values())
    if (free := shutil.disk_usage(out).free) < total + SPARE_BYTES:
        raise RunFailed(
            f"the model needs {bytes_text(total)} and the disk of {out.parent} has {bytes_text(free)} free; make room"
        )
    split = split_torch_state_dict_into_shards(
        sizes, filename_pattern="model{suffix}.safetensors", max_shard_size=shard
    )
    by_name = {source.name: source for source in sources}
    done = 0
    for file, names in split.filename_to_tensors.items():
        tensors = {}
        for source in map(by_name.__getitem__, names):
            progress("writing weights", done / total)
            # A copy even where nothing is converted: files would else hold one parameter's memory several times.
            tensors[source.name] = reader.tensor(source).to(kind, copy=True)
            done += tensors[source.name].nbytes
        try:
            save_file(tensors, out / file, metadata={"format": "pt"})
        except SafetensorError as error:  # the disk's refusal, in words of its own
            raise OSError(str(error)) from error
    parameters = sum(tensor.numel() for tensor in sizes.values())
    if split.is_sharded:
        facts = {"total_size": total, "total_parameters": parameters}
        index = {"metadata": facts, "weight_map": dict(sorted(split.tensor_to_filename.items()))}
        _write_json(out / "model.safetensors.index.json", index)
    return parameters


def _write_adapter(reader: _Reader, model: str, dtype: str, out: Path) -> int:
    """Write the adapters as peft does; returns the number of their parameters."""
    assert reader.scale is not None, "the checkpoint has adapters"
    tensors = {
        f"base_model.model.{name}.weight": reader.read(name).to(getattr(torch, dtype)) for name in sorted(reader.shapes)
    }
    ranks = {shape[0] for name, shape in reader.shapes.items() if name.endswith(DOWN)}
    base, revision = pretrained(model)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base if is_hub_id(base) and not Path(base).is_dir() else Path(base).name,
        "revision": revision.get("revision"),
        "r": min(ranks),
        "lora_alpha": float(f"{min(ranks) * reader.scale:.12g}"),
        "lora_dropout": 0.0,
        "target_modules": sorted({name.split(".")[-2] for name in reader.shapes}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    _write_json(out / "adapter_config.json", config)
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    return sum(tensor.numel() for tensor in tensors.values())


def _description(model: str, weights: bool = False) -> tuple[Any, Path]:
    """The config of the model that was trained, and the folder of what describes it, with its `weights` if they are
    needed. Raises InputError."""
    try:
        name, revision = pretrained(model)
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, **revision)
        if Path(model).is_dir():
            return config, Path(model)
        wanted, unwanted = [*BESIDE_WEIGHTS, *(["*.safetensors"] if weights else [])], [*NOT_COPIED]
        at = revision.get("revision")
        return config, Path(snapshot_download(name, revision=at, allow_patterns=wanted, ignore_patterns=unwanted))
    except (OSError, ValueError) as error:  # their texts have several lines
        raise InputError(f"has no model that transformers reads ({str(error).splitlines()[0]})", model) from error


def _sources(reader: _Reader, config: Any, model: str) -> tuple[TensorSource, ...]:
    """The tensors to write, in the order of the model's parameters. Raises InputError if the checkpoint is of another
    model."""
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    wanted = {name: tuple(parameter.shape) for name, parameter in skeleton.named_parameters()}
    found = reader.shapes
    if reader.scale is not None:
        found = {name: shape for name, shape in wanted.items() if f"{name.removesuffix('weight')}{UP}" not in found}
        for name, (outputs, _) in ((n, s) for n, s in reader.shapes.items() if n.endswith(UP)):
            stem = name.removesuffix(UP)
            found[f"{stem}weight"] = outputs, reader.shapes[f"{stem}{DOWN}"][1]
    if odd := sorted(wanted.items() ^ found.items()):
        name, shape = odd[0]
        where = "the checkpoint" if found.get(name) == shape else "that model"
        raise InputError(
            f"the checkpoint is of another model: only {where} has {name} of shape {list(shape)}; give the one that "
            "was trained with --model",
            model,
        )
    return checkpoint_sources(skeleton)


def _write_beside(config: Any, described: Path, dtype: str, out: Path) -> None:
    """Write all but the weights: what describes the model and its tokenizer, as it was, with the weights' type."""
    for path in sorted({path for pattern in BESIDE_WEIGHTS for path in described.glob(pattern)}):
        if path.is_file() and not any(path.match(pattern) for pattern in NOT_COPIED):
            shutil.copyfile(path, out / path.name)
    facts: dict[str, Any] = json.loads((out / "config.json").read_text(encoding="utf-8"))
    facts.pop("_name_or_path", None)  # a path of the machine that it was made on
    # Older models have the older name; who reads one reads the other.
    facts["torch_dtype" if "torch_dtype" in facts else "dtype"] = dtype
    _write_json(out / "config.json", facts)
    if not (out / "generation_config.json").exists():
        GenerationConfig.from_model_config(config).save_pretrained(out)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _card(run_dir: Path, trained: _Trained, step: int, dtype: str, adapter: bool) -> str:
    """The model's README.md: what it was made from, by which plan, and how rewards and lengths went. No path of the
    machine is in it."""
    plan, job = trained.plan, trained.job
    on_hub = is_hub_id(trained.model) and not Path(trained.model).is_dir()
    base = trained.model if on_hub else Path(trained.model).name
    head = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": "[rlplan, reinforcement-learning]",
    }
    head |= {"base_model": base} if on_hub else {}
    how = f"in mode `{plan.job.bias.mode}`"
    if job is not None:
        how = (
            f"by {job.algorithm.name} {how}, {job.rollout.prompts_per_step} prompts x {job.rollout.samples_per_prompt} "
        )
        how += f"samples a step, at temperature {job.rollout.temperature:g}"
    digests = {"plan": sha256_file(run_dir / PLAN_COPY), "job": plan.inputs.job.sha256}
    if trained.data is not None:
        digests["data"] = rows_digest(trained.data)
    lines = [
        "---",
        *(f"{key}: {value}" for key, value in head.items()),
        "---",
        "",
        f"# {plan.job.name}, step {step}",
        "",
    ]
    lines += [f"`{base}` after {count(step, 'step')} of reinforcement learning with rlplan {__version__}, {how}."]
    lines += [
        f"{'Adapters' if adapter else 'Weights'} are {dtype}; they were trained in float32.",
        "",
        "| | SHA-256 |",
        "|---|---|",
    ]
    lines += [f"| {name} | `{digest}` |" for name, digest in digests.items()]
    lines += ["", "## Rewards and lengths", "", *_curve(trained.steps)]
    if trained.evaluated:
        lines += ["", "## Evaluations, on prompts of their own", ""]
        lines += [f"- {evaluation_text(evaluation)}" for evaluation in trained.evaluated]
    return "\n".join(lines) + "\n"


def _curve(steps: Sequence[StepEvent]) -> list[str]:
    """A table of means over equally many steps each, of those that trained samples."""
    trained = [step for step in steps if step.trained_samples]
    if not trained:
        return ["No step has trained anything yet: these are the weights that the run began with."]
    each = -(-len(trained) // CARD_ROWS)
    lines = ["| steps | mean reward | mean tokens of a response | longest |", "|---|---|---|---|"]
    for start in range(0, len(trained), each):
        rows = trained[start : start + each]
        samples = sum(row.trained_samples for row in rows)
        reward = sum(row.reward_mean * row.trained_samples for row in rows) / samples
        tokens = sum(row.trained_tokens for row in rows) / samples
        numbers = f"{rows[0].step}" if len(rows) == 1 else f"{rows[0].step} to {rows[-1].step}"
        lines.append(f"| {numbers} | {reward:.4f} | {tokens:.1f} | {max(row.max_tokens or 0 for row in rows):g} |")
    return [*lines, "", "They are of the samples that were trained."]
