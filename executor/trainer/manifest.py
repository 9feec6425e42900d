"""Manifests: which files a rank wrote for a checkpoint, so that damage is found before it is loaded.

A manifest is one JSON object, `{"files": {"NAME": {"bytes": ..., "sha256": ...}}}`, names relative to its folder. A
file that is itself a manifest (`manifest*.json`) is checked like any other and then read for more files.

Imports no torch: the driver, which checks checkpoints, does without it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

READERS = 8  # files hashed at a time; hashing runs outside of Python's lock


def write_manifest(path: Path, files: Iterable[Path]) -> None:
    """Write a manifest of `files`, which lie in its folder or below, durably. Raises OSError."""
    with ThreadPoolExecutor(READERS) as pool:
        entries = list(pool.map(_entry, files))
    names = (file.relative_to(path.parent).as_posix() for file in files)
    with path.open("w", encoding="utf-8") as out:
        json.dump({"files": dict(zip(names, entries, strict=True))}, out, indent=1)
        out.flush()
        os.fsync(out.fileno())


def damage(manifest: Path, nested: bool = True) -> str | None:
    """The first fault of the files that a manifest names, as text; None if they are as they were written. Without
    `nested`, of files that manifests in it name only the sizes are looked at: each rank sums up its own (a driver alone
    would read hundreds of GB)."""
    return _damage(manifest, True, nested)


def _damage(manifest: Path, summed: bool, nested: bool) -> str | None:
    try:
        files: dict[str, dict[str, Any]] = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        wanted = {manifest.parent / name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except FileNotFoundError:
        return f"{manifest.name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{manifest.name} cannot be read ({type(error).__name__})"
    # Sizes first: they cost nothing, and a file that was cut short is the usual damage.
    for path, (size, _) in wanted.items():
        if not path.is_file():
            return f"{path.name} is missing"
        if path.stat().st_size != size:
            return f"{path.name} has {path.stat().st_size} bytes instead of {size}"
    with ThreadPoolExecutor(READERS) as pool:
        digests = pool.map(_digest, wanted if summed else ())
        for (path, (_, digest)), sha256 in zip(wanted.items(), digests, strict=False):
            if sha256 != digest:
                return f"{path.name} has other bytes than were written"
    for path in wanted:
        if path.name.startswith("manifest") and (fault := _damage(path, nested, nested)) is not None:
            return fault
    return None


def sync_folder(folder: Path) -> None:
    """Make files that were made or renamed in `folder` survive a power failure."""
    descriptor: Any = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(path: Path) -> str | None:
    """The file's SHA-256; None if it cannot be read, which is damage too. Raises OSError where that may pass."""
    try:
        return _sha256(path)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE):
            raise
        return None
