"""Changes in the files that two plans were solved from.

A plan names its inputs by path and digest. The digests alone show which files changed. The changed keys are shown only
if the files of both plans are at hand and still have these digests: a file with another digest is not the file that the
plan was solved from.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..check.solved_rules import input_files
from ..facts.digest import UNREAD, digest_of
from ..schema.groups_plan import GroupsPlan
from ..schema.plan import InputFile, Plan
from ..yaml.errors import InputError
from ..yaml.input_files import read_bytes
from ..yaml.yaml_doc import parse
from .change import NOT_GIVEN, KeyChange, changes, same

State = Literal["at hand", "not at hand", "other bytes"]
"""Whether the file that a plan names exists, and is still the file that the plan was solved from."""


class NamedFigures(InputFile):
    """Figures that ship with rlplan and that a plan was solved from, as if they were a file; `path` is their name."""


@dataclass(frozen=True)
class InputChange:
    """An input whose digest differs between two plans, or that only one of them has.

    Attributes:
        name: `job`, `cluster`, …, as in the plan's `inputs`.
        old, new: the input in each plan; None if the plan does not have it.
        old_state, new_state: state of the file of each plan; None without a file.
        keys: the keys that differ, dotted below `name`; None: unknown.
        reason: why the keys are unknown; else "".
    """

    name: str
    old: InputFile | None
    new: InputFile | None
    old_state: State | None
    new_state: State | None
    keys: tuple[KeyChange, ...] | None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "name": self.name,
            "old": self.old and {**self.old.model_dump(), "state": self.old_state},
            "new": self.new and {**self.new.model_dump(), "state": self.new_state},
            "changes": None if self.keys is None else [change.as_dict() for change in self.keys],
            "reason": self.reason or None,
        }


@dataclass(frozen=True)
class InputFiles:
    """The input files of one plan, read at most once.

    Attributes:
        folder: the plan's folder; None: none of its files is at hand.
    """

    folder: Path | None
    _read: dict[str, bytes | None] = field(default_factory=dict)

    def read(self, file: InputFile) -> tuple[State, bytes]:
        """(state of the file, its bytes if it is still the file that the plan was solved from, else b"")."""
        if isinstance(file, NamedFigures):  # figures that ship with rlplan; `rlplan check` compares them
            return "at hand", b""
        if file.path not in self._read:
            self._read[file.path] = self._bytes(file.path)
        data = self._read[file.path]
        if data is None:
            return "not at hand", b""
        if hashlib.sha256(data).hexdigest() != file.sha256:
            return "other bytes", b""
        return "at hand", data

    def solver_reads(self, name: str, file: InputFile) -> str | None:
        """The digest of what the solver reads of the file as it is now; None if the file was not read or is invalid."""
        data, kind = self._read.get(file.path), next((kind for kind in UNREAD if kind == name), None)
        if data is None or kind is None:
            return None
        try:
            return digest_of(kind, data.decode("utf-8-sig"))
        except (InputError, UnicodeDecodeError):
            return None

    def _bytes(self, path: str) -> bytes | None:
        if self.folder is None:
            return None
        try:
            return read_bytes(self.folder / path)
        except InputError:  # missing, a folder, a pipe, no permission, a name that no file can have
            return None


def inputs_of(plan: Plan | GroupsPlan) -> dict[str, InputFile]:
    """The inputs of a plan by name, in the plan's order; a group plan's sources are `sources.JOB`."""
    inputs = {".".join(map(str, loc[1:])): file for loc, file in input_files(plan)} | _named_figures(plan)
    previous = plan.inputs.previous if isinstance(plan, GroupsPlan) else None
    return inputs | ({"previous": previous} if previous else {})


def _named_figures(plan: Plan | GroupsPlan) -> dict[str, InputFile]:
    if not isinstance(plan, Plan):
        return {}
    lengths, rewards = plan.inputs.lengths, plan.inputs.rewards
    figures: dict[str, InputFile] = {}
    if lengths.file is None:
        figures["lengths"] = NamedFigures(path=lengths.name, sha256=lengths.sha256)
    if rewards is not None:
        figures["rewards"] = NamedFigures(path=rewards.library, sha256=rewards.sha256)
    return figures


def input_changes(
    old: Mapping[str, InputFile], new: Mapping[str, InputFile], old_files: InputFiles, new_files: InputFiles
) -> tuple[InputChange, ...]:
    """The inputs that differ by digest. A file with another path and the same digest is no change."""
    changed_inputs = []
    for name in [*new, *(name for name in old if name not in new)]:
        before, after = old.get(name), new.get(name)
        if before is None or after is None or before.sha256 != after.sha256:
            changed_inputs.append(_input_change(name, before, after, old_files, new_files))
    return tuple(changed_inputs)


def stale_inputs(plan: Plan | GroupsPlan, files: InputFiles) -> dict[str, State]:
    """Inputs of a plan that have changed since it was solved, or are missing, by name. A change that the solver does
    not read does not count."""
    inputs = inputs_of(plan)
    states = {name: files.read(file)[0] for name, file in inputs.items()}
    recorded = plan.inputs.solver_read.model_dump() if isinstance(plan, Plan) and plan.inputs.solver_read else {}
    return {
        name: state
        for name, state in states.items()
        if state != "at hand" and not (name in recorded and files.solver_reads(name, inputs[name]) == recorded[name])
    }


def altered(stale: Mapping[str, State]) -> list[str]:
    """Inputs whose files have changed since the plan was solved: the plan is out of date."""
    return [name for name, state in stale.items() if state == "other bytes"]


def _input_change(
    name: str, old: InputFile | None, new: InputFile | None, old_files: InputFiles, new_files: InputFiles
) -> InputChange:
    old_state, before = (None, b"") if old is None else old_files.read(old)
    new_state, after = (None, b"") if new is None else new_files.read(new)
    keys: tuple[KeyChange, ...] | None = None
    reason = ""
    if old is None or new is None:
        reason = "only the new plan has it" if old is None else "only the old plan has it"
    elif isinstance(old, NamedFigures) or isinstance(new, NamedFigures):
        source_texts = _source_text(old), _source_text(new)
        if source_texts[0] != source_texts[1]:
            keys = (KeyChange(name, *source_texts),)
        else:
            reason = "rlplan's own figures under that name changed"
    elif old_state != "at hand" or new_state != "at hand":
        sides = (("old", old_state, old), ("new", new_state, new))
        reason = "; ".join(_missing_text(side, state, file) for side, state, file in sides if state != "at hand")
    else:
        try:
            keys = tuple(_content(name, old.path, new.path, before, after))
        except (InputError, ValueError):
            reason = "cannot be read as a document or a trace"
    return InputChange(name, old, new, old_state, new_state, keys, reason)


def _source_text(file: InputFile) -> str:
    """Name and origin of an input: figures that ship with rlplan or are stated in the plan, or a file."""
    return f"{file.path} ({'shipped or stated' if isinstance(file, NamedFigures) else 'a file'})"


def _missing_text(side: str, state: State | None, file: InputFile) -> str:
    """Why the file of a side cannot be compared: it is not at hand, or has changed."""
    if state == "not at hand":
        return f"the {side} plan's {file.path} is not at hand"
    return f"{file.path} is no longer what the {side} plan was solved from"


def _content(name: str, old_path: str, new_path: str, before: bytes, after: bytes) -> list[KeyChange]:
    """Keys that differ between the bytes of two documents, or figures that differ between two length traces."""
    if old_path.endswith(".jsonl") or new_path.endswith(".jsonl"):
        figures = _trace(before), _trace(after)
        return [
            KeyChange(f"{name}.{key}", figures[0][key], figures[1][key])
            for key in figures[1]
            if not same(figures[0][key], figures[1][key])
        ]
    values = [parse(data.decode("utf-8-sig"), path).value for data, path in ((before, old_path), (after, new_path))]
    for value in values:
        if isinstance(value, dict):
            value.pop("volatile", None)
    key_changes = list(changes(values[0], values[1], NOT_GIVEN, name))
    if name == "profile":
        key_changes.sort(key=_profile_order)
    return key_changes


def _profile_order(change: KeyChange) -> tuple[int, float]:
    """Sort key: values without a number first, then numbers by relative change, then measured points and digests."""
    if ".points" in change.key or ".sha256" in change.key or change.key == "profile.measured":
        return 2, 0.0
    return (0, 0.0) if change.relative is None else (1, -abs(change.relative))


def _trace(data: bytes) -> dict[str, Any]:
    """Number of samples of a length trace, and figures of their lengths in tokens. A truncated last row is ignored."""
    lengths: list[float] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            if number == len(lines) - 1:
                continue
            raise
        if not isinstance(row, dict):
            raise ValueError("no trace")
        if isinstance(row.get("tokens"), (int, float)):
            lengths.append(row["tokens"])
    if not lengths:
        raise ValueError("no lengths")
    lengths.sort()

    def quantile(level: float) -> float:
        return lengths[min(len(lengths) - 1, math.ceil(level * len(lengths)) - 1)]

    return {
        "samples": len(lengths),
        "mean_tokens": sum(lengths) / len(lengths),
        "median_tokens": quantile(0.5),
        "p95_tokens": quantile(0.95),
        "max_tokens": lengths[-1],
    }
