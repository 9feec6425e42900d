"""Read and write rlplan's documents: pydantic models as YAML files.

Reading turns every fault into an `InputError` with file, line, key and remedy; all faults of a document are raised
together. Writing is canonical: equal models give equal bytes, so that digests and diffs show only real changes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from .errors import InputError, joined
from .fault_lines import explain_all
from .input_files import chunks, read_text
from .yaml_doc import Document, Loc, parse
from .yaml_write import write

M = TypeVar("M", bound=BaseModel)


def load(path: str | Path, model: type[M]) -> M:
    """Read the YAML file at `path` as a `model`. Raises InputError with file and line for each fault."""
    return loads(read_text(path), model, str(path))


def loads(text: str, model: type[M], path: str = "<text>") -> M:
    """Like `load`, from text; `path` is used in messages only."""
    document = parse(text, path)
    _check_kind(document, model, path)
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        faults = explain_all(error, document, model)
        raise joined([InputError(fault.message, path, fault.line) for fault in faults]) from None


def _check_kind(document: Document, model: type[BaseModel], path: str) -> None:
    """Raise InputError if the file is a document of another kind: one message instead of a list of unknown keys."""
    if not isinstance(document.value, dict):
        raise InputError("must be a mapping of keys to values at the top", path, 1)
    marker = next(iter(model.model_fields))
    others = [k for k in document.value if k.startswith("rlplan") and k != marker]
    if marker.startswith("rlplan") and marker not in document.value and others:
        raise InputError(
            f"is a {_named(kind_of_mark(others[0]))} ('{others[0]}'), and a "
            f"{_named(document_name(model))} ('{marker}') is needed here; pass that one",
            path,
            document.lines[(others[0],)],
        )


def error_at(path: str | Path, location: Loc, message: str) -> InputError:
    """An InputError at the line of `location` in the YAML file, for faults that are found after the file was read.

    The file is parsed again, since a model has no line numbers; if it cannot be parsed, the error has no line.
    """
    try:
        line: int | None = parse(read_text(path), str(path)).line_of(location)
    except InputError:
        line = None
    return InputError(message, str(path), line)


WRITTEN_DIGITS = 6
"""Significant digits of floats in documents that rlplan computes; no cost is known more precisely."""


def dump(model: BaseModel, path: str | Path | None = None, digits: int | None = None) -> str:
    """Canonical YAML of `model` (yaml_write.py has the rules); with `path`, also written there atomically.

    `load(dump(m)) == m` and `dump(load(dump(m))) == dump(m)`. `digits`: significant digits that floats are rounded to;
    None: every float is written in full. The first line of a whole document names its JSON Schema, for editors.
    """
    text = header(type(model)) + write(model.model_dump(mode="python", warnings=False), digits)
    if path is not None:
        atomic_write(path, text)
    return text


SCHEMA_FOLDER = ".rlplan"
"""The folder beside a document for its JSON Schema; commands that write documents write it (editor_schemas.py)."""


def document_name(model: type[BaseModel]) -> str | None:
    """`plan`, `job`, … for the model of a whole document; None for the model of a part."""
    marker = next(iter(model.model_fields))
    return kind_of_mark(marker) if marker.startswith("rlplan") else None


MARK = re.compile(r"""^(["']?)(rlplan\w*)\1[ \t]*:""", re.MULTILINE)


def document_kind(path: str | Path) -> str | None:
    """Return the mark of the document at `path` (`rlplan_job`, `rlplan_workload`, …), None without one. The document
    need not be valid. Raises InputError when the file cannot be read."""
    mark = MARK.search(read_text(path))
    return mark[2] if mark else None


def kind_of_mark(mark: str) -> str:
    """The kind of document that a mark names: `job` for `rlplan_job`, `plan` for `rlplan`."""
    return mark.removeprefix("rlplan").removeprefix("_") or "plan"


def _named(kind: str | None) -> str:
    """A kind of document as a sentence has it."""
    return "plan of groups" if kind == "groups" else str(kind)


def header(model: type[BaseModel]) -> str:
    """First line of a document of this kind, with its line break: the modeline of the YAML language server."""
    name = document_name(model)
    return f"# yaml-language-server: $schema={SCHEMA_FOLDER}/{name}.schema.json\n" if name else ""


def sha256_file(path: str | Path) -> str:
    """SHA-256 of the file's bytes as 64 hexadecimal digits. Raises InputError when it cannot be read."""
    digest = hashlib.sha256()
    for chunk in chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


STDOUT = Path("-")
"""The name of an output that means standard output."""


def atomic_write(path: str | Path, text: str) -> None:
    """Write `text` (UTF-8, LF) atomically: a reader, also after a crash, sees the whole old file or the whole new file.

    A symbolic link stays, and its target is written. A device or a pipe is written to directly, and `-` is standard
    output. Raises InputError if the file cannot be written (a full disk, a name that is too long).
    """
    if Path(path) == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
        return
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", newline="\n")
        else:
            _replace(target, text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}; {_remedy(error)}", str(path)) from None


def _remedy(error: OSError) -> str:
    """What to do about a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room, then run this again"
    return "choose another name or another folder"


def _replace(target: Path, text: str) -> None:
    # The temporary name does not contain the target's name, which may already be as long as a name may be.
    descriptor, name = tempfile.mkstemp(prefix=".rlplan-", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(_mode(target))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _mode(target: Path) -> int:
    """Permissions for the new file: those of the old one, or what open() would give (mkstemp gives 0600)."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


__all__ = [
    "STDOUT",
    "WRITTEN_DIGITS",
    "atomic_write",
    "document_kind",
    "document_name",
    "dump",
    "error_at",
    "header",
    "kind_of_mark",
    "load",
    "loads",
    "read_text",
    "sha256_file",
]
