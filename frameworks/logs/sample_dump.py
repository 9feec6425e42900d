"""Samples in the dumps of other trainers: slime's debug rollout data, verl's rollout data, TRL's completions.

Of a prompt only a digest is kept. verl and TRL dump texts and no token counts; those need the tokenizer, and count
what the text still has (no end-of-text, which both leave out).
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...plans.yaml.errors import InputError

Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass(frozen=True, slots=True)
class DumpedSample:
    """A response that was trained. Lengths in tokens; None: the dump does not say.

    Attributes:
        step: the rollout's or step's number in the dump.
        prompt: digest of the prompt's text: the same for all samples of a prompt, whenever it is drawn.
        group: what tells groups of one step apart: slime's group index, verl's uid, else the prompt.
        text: the prompt's first letters, for people.
        group_number: slime's group index, which counts the groups that its data source gave out.
        long_round: whether a long round of a plan trained it (rlplan's own rollout function says so).
    """

    step: int
    prompt: str
    group: str
    tokens: int | None
    prompt_tokens: int | None
    truncated: bool | None
    reward: float | None
    text: str = ""
    group_number: int | None = None
    long_round: bool | None = None


@dataclass(frozen=True)
class SampleDump:
    """The samples of one framework's files, in the order of steps."""

    path: Path
    framework: str
    files: int
    samples: tuple[DumpedSample, ...]

    @property
    def has_lengths(self) -> bool:
        """Whether every sample says how long it is."""
        return all(sample.tokens is not None for sample in self.samples)


def read_sample_dump(path: Path, count: Count | None = None) -> SampleDump | None:
    """The samples of a dump, a file or a folder of files; None if it is a dump of none of these.

    `count`: tokens of a text, for dumps of texts. Raises InputError if a file cannot be read, or torch (slime) or
    pyarrow (TRL) are not there to read it.
    """
    if path.is_dir():
        # --dump-details puts the samples into a folder of their own.
        folder = path / "rollout_data" if (path / "rollout_data").is_dir() else path
        for pattern, read in (("*.pt", _slime), ("completions_*.parquet", _trl), ("*.jsonl", _verl)):
            if files := _in_order(folder.glob(pattern)):
                return _dump(path, files, read, count)
        return None
    if not path.exists():
        raise InputError("no such file or folder", str(path))
    if path.suffix == ".pt":
        return _dump(path, [path], _slime, count)
    if path.suffix == ".parquet":
        return _dump(path, [path], _trl, count)
    if path.suffix == ".jsonl":
        return _dump(path, [path], _verl, count)
    return None


Reader = Callable[[Path, "Count | None"], "Iterator[DumpedSample] | None"]


def _dump(path: Path, files: Sequence[Path], read: Reader, count: Count | None) -> SampleDump | None:
    samples: list[DumpedSample] = []
    for file in files:
        if (rows := read(file, count)) is None:
            return None
        samples += rows
    if not samples:
        return None
    samples.sort(key=lambda sample: sample.step)
    return SampleDump(path, read.__name__.strip("_"), len(files), tuple(samples))


def _in_order(paths: Iterator[Path]) -> list[Path]:
    """By the number in the name; dumps of evaluations are left out."""
    kept = [path for path in paths if not path.stem.startswith("eval") and "_eval_" not in path.stem]
    return sorted(kept, key=lambda path: [int(number) for number in re.findall(r"\d+", path.stem)][-1:] or [0])


def digest(prompt: Any) -> str:
    """What tells prompts apart, without their text."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


_SHOWN = 80


def _begin(prompt: Any) -> str:
    return " ".join(_said(prompt)[: 4 * _SHOWN].split())[:_SHOWN]


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _slime(path: Path, count: Count | None) -> Iterator[DumpedSample]:
    """`--save-debug-rollout-data`: what was trained, samples as dictionaries. Only data are unpickled, no code."""
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError("is a dump of slime's, which torch reads, and torch is not installed", str(path)) from None
    try:
        data = _plain_data(torch, path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(path)) from None
    except Exception as error:  # noqa: BLE001 - torch raises many kinds for files that it cannot read
        why = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise InputError(f"cannot be read as a dump of slime's: {why}", str(path)) from None
    rows = data.get("samples") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not isinstance(data.get("rollout_id"), int):
        raise InputError("holds no samples of a rollout; give what --save-debug-rollout-data wrote", str(path))
    return _slime_samples(path, data["rollout_id"], rows)


def _slime_samples(path: Path, step: int, rows: list[Any]) -> Iterator[DumpedSample]:
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("response_length"), int):
            raise InputError(f"sample {place} has no response_length; the dump is of another version", str(path))
        own = row["metadata"].get("rlplan") if isinstance(row.get("metadata"), dict) else None
        if isinstance(own, dict) and own.get("filling"):
            continue  # a copy without loss
        group, reward = row.get("group_index"), row.get("reward")
        if isinstance(reward, dict):
            reward = reward.get("score") if len(reward) > 1 else next(iter(reward.values()), None)
        tokens, length = row.get("tokens"), row["response_length"]
        status = row.get("status")
        yield DumpedSample(
            step=step,
            prompt=digest(row.get("prompt")),
            group=str(group if group is not None else digest(row.get("prompt"))),
            tokens=length,
            prompt_tokens=len(tokens) - length if tokens is not None and len(tokens) > length else None,
            truncated=None if status is None else status in ("truncated", "aborted"),
            reward=_finite(reward),
            text=_begin(row.get("prompt")),
            group_number=group if isinstance(group, int) else None,
            long_round=own.get("round") == "long" if isinstance(own, dict) else None,
        )


_PLAIN = {
    ("collections", "OrderedDict"), ("_codecs", "encode"), ("torch._utils", "_rebuild_tensor_v2"),
    ("numpy", "ndarray"), ("numpy", "dtype"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
}  # fmt: skip
"""Names that tensors and arrays of numpy (rows of Parquet bring them into samples' metadata) are made of."""


class _PlainUnpickler(pickle.Unpickler):
    """Makes data and calls no code of the file's choice; torch's own such reader is ten times slower on lists."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PLAIN:
            raise pickle.UnpicklingError(f"it holds an object {module}.{name}, which is not read")
        return super().find_class(module, name)


def _plain_data(torch: Any, path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):
            raise ValueError("it is a program, not data")
    reader = SimpleNamespace(Unpickler=_PlainUnpickler, UnpicklingError=pickle.UnpicklingError, __name__="plain data")
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=reader)


def _verl(path: Path, count: Count | None) -> Iterator[DumpedSample] | None:
    """`trainer.rollout_data_dir`: one JSON object a sample, with input, output, score and step."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(path)) from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                raise InputError("is no JSON; mend the line, or remove it", str(path), number) from None
    if not rows or not all(isinstance(row, dict) and {"input", "output", "step"} <= row.keys() for _, row in rows[:1]):
        return None
    return _verl_samples(path, rows, count)


def _verl_samples(path: Path, rows: list[tuple[int, Any]], count: Count | None) -> Iterator[DumpedSample]:
    for number, row in rows:
        if not isinstance(row, dict) or not {"input", "output", "step"} <= row.keys():
            raise InputError("has no input, output or step", str(path), number)
        if (step := _finite(row["step"])) is None:
            raise InputError(f"its step is {str(row['step'])[:40]!r}, not a number", str(path), number)
        uid = row.get("uid")
        parts = uid.rsplit("_", 2) if isinstance(uid, str) else []
        yield DumpedSample(
            step=int(step),
            prompt=digest(row["input"]),
            group=parts[0] if len(parts) == 3 else uid if isinstance(uid, str) else digest(row["input"]),
            tokens=None if count is None else count(str(row["output"])),
            prompt_tokens=None if count is None else count(str(row["input"])),
            truncated=None,
            reward=_finite(row.get("score")),
            text=_begin(row["input"]),
        )


def _trl(path: Path, count: Count | None) -> Iterator[DumpedSample] | None:
    """`log_completions`: completions_00012.parquet, with step, prompt, completion, and a column for each reward."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise InputError("is Parquet, which pyarrow reads, and pyarrow is not installed", str(path)) from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as Parquet: {str(error).splitlines()[0]}", str(path)) from None
    if not {"step", "prompt", "completion"} <= set(table.column_names):
        return None
    others = [name for name in table.column_names if name not in ("step", "prompt", "completion", "advantage")]
    numeric = [name for name in others if all(_finite(v) is not None for v in table.column(name)[:1].to_pylist())]
    return _trl_samples(table.to_pylist(), numeric, count)


def _trl_samples(rows: list[dict[str, Any]], rewards: list[str], count: Count | None) -> Iterator[DumpedSample]:
    for row in rows:
        yield DumpedSample(
            step=int(row["step"]),
            prompt=digest(row["prompt"]),
            group=digest(row["prompt"]),
            tokens=None if count is None else count(_said(row["completion"])),
            prompt_tokens=None if count is None else count(_said(row["prompt"])),
            truncated=None,
            # Weights of several rewards are not in the file.
            reward=_finite(row[rewards[0]]) if len(rewards) == 1 else None,
            text=_begin(row["prompt"]),
        )


def _said(text: Any) -> str:
    """A text, or the texts of messages."""
    if isinstance(text, list):
        return "\n".join(str(message.get("content", "")) for message in text if isinstance(message, dict))
    return str(text)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sample belongs, from 0: the nth group of its prompt (`epoch`), its group's place in the step (`draw`),
    and its own place in the group."""

    epoch: int
    draw: int
    sample: int


def placed(samples: Iterable[DumpedSample]) -> Iterator[tuple[DumpedSample, Place]]:
    """Each sample with its place, in the order of the dump."""
    epochs: dict[str, int] = {}  # prompt -> its groups so far
    groups: dict[tuple[int, str], list[int]] = {}  # (step, group) -> [epoch, draw, samples so far]
    in_step: dict[int, int] = {}
    for sample in samples:
        key = sample.step, sample.group
        if key not in groups:
            epoch, draw = epochs.get(sample.prompt, 0), in_step.get(sample.step, 0)
            epochs[sample.prompt], in_step[sample.step] = epoch + 1, draw + 1
            groups[key] = [epoch, draw, 0]
        epoch, draw, number = groups[key]
        groups[key][2] += 1
        yield sample, Place(epoch, draw, number)
