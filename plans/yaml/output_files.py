"""Where results are written: whether a file or a folder can be made there, asked before the work and not after it.

A file that rlplan did not write is not overwritten: what looks like a slip (`--out notes.txt`) would cost the notes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from .errors import InputError
from .yaml_io import STDOUT, kind_of_mark

Written = Literal["plan", "profile", "lengths", "page", "timeline", "schema", "document"]
"""What rlplan writes into files that a user names; `document`: a cluster, a job, a workload or a policy."""

_PROBE_BYTES = 1 << 16  # more than a plan has, so that a full disk is noticed before the work
_HEAD_BYTES = 1 << 14


def must_take_file(path: Path, kind: Written | None = None, force: bool = False) -> None:
    """Raise InputError unless a file can be written at `path`; `-` is standard output.

    Args:
        kind: what is to be written; a file there is overwritten if it is of that kind. None: if rlplan wrote it.
        force: overwrite whatever is there.
    """
    if path == STDOUT:
        return
    _must_have_room_for_its_name(path)
    try:
        if path.is_dir():
            raise InputError("is a folder; name a file", str(path))
        if not path.parent.is_dir():
            raise InputError("cannot be written: its folder does not exist", str(path))
        if path.exists() and not path.is_file():
            return  # a device or a pipe takes what it is given, and needs no file beside it
        _must_take_files(path.parent, path)
        if path.exists() and not force:
            _must_be_ours(path, kind)
    except OSError as error:  # a folder that may not be entered
        raise InputError(f"cannot be written: {error.strerror}", str(path)) from None


def must_take_folder(path: Path) -> None:
    """Raise InputError unless `path` is a folder, or can become one, in which files can be written."""
    what = "cannot be a run folder: it is a file, or lies where nothing can be written"
    if path == STDOUT:
        raise InputError("is standard output, and a folder is needed; name one", str(path))
    _must_have_room_for_its_name(path)
    try:
        existing = next(p for p in (path, *path.absolute().parents) if p.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise InputError(what, str(path))
        with tempfile.NamedTemporaryFile(prefix=".rlplan-", dir=existing):
            pass
    except OSError as error:  # permissions alone do not tell: /proc has them and takes no file
        raise InputError(f"{what} ({error.strerror})", str(path)) from None


def _must_have_room_for_its_name(path: Path) -> None:
    """File systems take names of so many bytes (mostly 255), and the system paths of so many (mostly 4096)."""
    if "\0" in str(path):
        raise InputError("is no path: it holds a null character", str(path).replace("\0", "?"))
    most = 255
    longest = max(path.parts, key=lambda part: len(os.fsencode(part)), default="")
    size = len(os.fsencode(longest))
    if size > most:
        shown = f"{str(path)[:60]}…"
        raise InputError(f"a name in it has {size} bytes, and a file's name may have {most}; shorten it", shown)
    if len(os.fsencode(path)) >= 4096:
        raise InputError("has 4096 bytes or more, and a path may have 4095; shorten it", f"{str(path)[:60]}…")


def _must_take_files(folder: Path, path: Path) -> None:
    try:
        with tempfile.NamedTemporaryFile(prefix=".rlplan-", dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:  # permissions alone do not tell: some file systems take no new files whatever they say
        why = f"its folder takes no new file ({error.strerror})"
        raise InputError(f"cannot be written: {why}; name another folder, or make room", str(path)) from None


def _must_be_ours(path: Path, kind: Written | None) -> None:
    """Raise InputError if the file at `path` is of another kind than what is to be written, or none of ours."""
    found = written_kind(path)
    if found == "empty" or (found is not None and kind in (None, found)):
        return
    if found is None:
        what = f"exists and is no {kind} of rlplan's" if kind else "exists and was not written by rlplan"
    else:
        what = f"exists and is a {found}, and a {kind} is to be written"
    raise InputError(f"{what}; choose another name, or say --force", str(path))


def written_kind(path: Path) -> Written | Literal["empty"] | None:
    """Of which kind the regular file at `path` is, by how it begins; None: none that rlplan writes, or unreadable."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None  # what cannot be read is not known to be ours
    if not head.strip():
        return "empty"
    text = head.decode("utf-8", "replace")
    return next((kind for kind, looks in _LOOKS.items() if looks(text)), None) or _document(text)


def _document(text: str) -> Written | None:
    from ..schema.groups_plan import MARK

    found = MARK.search(text)
    if found is None:
        return None
    kind = kind_of_mark(found[2])
    kinds: dict[str, Written] = {"plan": "plan", "groups": "plan", "profile": "profile"}
    return kinds.get(kind, "document")


_LOOKS: dict[Written, Callable[[str], bool]] = {
    "page": lambda text: '<meta name="generator" content="rlplan' in text,
    "timeline": lambda text: text.startswith('{"traceEvents":['),
    "schema": lambda text: text.startswith(('{\n  "$defs"', '{\n  "$schema"')),
    "lengths": lambda text: text.startswith('{"prompt":') and '"tokens":' in text.partition("\n")[0],
}
