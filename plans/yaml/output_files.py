"""Check, before the work starts, that a result file or folder can be written.

A file that rlplan did not write is not overwritten: a wrong option (`--out notes.txt`) must not destroy a user's file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from .errors import InputError
from .yaml_io import MARK, STDOUT, kind_of_mark

Written = Literal["plan", "profile", "lengths", "page", "timeline", "schema", "document"]
"""What rlplan writes into files that a user names; `document`: a cluster, a job, a workload or site rules."""

_HEAD_BYTES = 1 << 14


def must_take_file(path: Path, kind: Written | None = None, force: bool = False) -> None:
    """Raise InputError unless a file can be written at `path`; `-` is standard output.

    Args:
        kind: what is to be written; a file there is overwritten if it is of that kind. None: if rlplan wrote it.
        force: overwrite whatever is there.
    """
    if path == STDOUT:
        return
    try:
        if path.is_dir():
            raise InputError("is a folder; name a file", str(path))
        if not path.parent.is_dir():
            raise InputError("cannot be written: its folder does not exist", str(path))
        if path.exists() and not path.is_file():
            return  # a device or a pipe is written to directly, without a temporary file beside it
        _must_take_files(path.parent, path)
        if path.exists() and not force:
            _must_be_ours(path, kind)
    except OSError as error:  # a folder that may not be entered
        raise InputError(f"cannot be written: {error.strerror}", str(path)) from None


def must_take_folder(path: Path) -> None:
    """Raise InputError unless `path` is a folder, or can become one, in which files can be written."""
    message = "cannot be a run folder: it is a file, or lies where nothing can be written"
    if path == STDOUT:
        raise InputError("is standard output, and a folder is needed; name one", str(path))
    try:
        existing = next(p for p in (path, *path.absolute().parents) if p.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise InputError(message, str(path))
        with tempfile.NamedTemporaryFile(prefix=".rlplan-", dir=existing):
            pass
    except OSError as error:  # the permission check is not enough: /proc is writable but takes no files
        raise InputError(f"{message} ({error.strerror})", str(path)) from None


def _must_take_files(folder: Path, path: Path) -> None:
    try:
        with tempfile.NamedTemporaryFile(prefix=".rlplan-", dir=folder):
            pass
    except OSError as error:  # the permission check is not enough: some file systems still take no new files
        why = f"its folder takes no new file ({error.strerror})"
        raise InputError(f"cannot be written: {why}; name another folder, or make room", str(path)) from None


def _must_be_ours(path: Path, kind: Written | None) -> None:
    """Raise InputError if rlplan did not write the file at `path`, or if the file is of another kind than `kind`."""
    existing = written_kind(path)
    if existing == "empty" or (existing is not None and kind in (None, existing)):
        return
    if existing is None:
        message = f"exists and is no {kind} of rlplan's" if kind else "exists and was not written by rlplan"
    else:
        message = f"exists and is a {existing}, and a {kind} is to be written"
    raise InputError(f"{message}; choose another name, or say --force", str(path))


def written_kind(path: Path) -> Written | Literal["empty"] | None:
    """The kind of the regular file at `path`, from its first bytes; None: not written by rlplan, or unreadable."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None  # an unreadable file may be the user's own
    if not head.strip():
        return "empty"
    text = head.decode("utf-8", "replace")
    return next((kind for kind, looks in _LOOKS.items() if looks(text)), None) or _document(text)


def _document(text: str) -> Written | None:
    match = MARK.search(text)
    if match is None:
        return None
    kind = kind_of_mark(match[2])
    kinds: dict[str, Written] = {"plan": "plan", "groups": "plan", "profile": "profile"}
    return kinds.get(kind, "document")


_LOOKS: dict[Written, Callable[[str], bool]] = {
    "page": lambda text: '<meta name="generator" content="rlplan' in text,
    "timeline": lambda text: text.startswith('{"traceEvents":['),
    "schema": lambda text: text.startswith(('{\n  "$defs"', '{\n  "$schema"')),
    "lengths": lambda text: text.startswith('{"prompt":') and '"tokens":' in text.partition("\n")[0],
}
