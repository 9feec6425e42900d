"""Open input files: only regular files of a limited size; anything else raises an InputError.

A pipe may never end and a device (`/dev/zero`) has no end, so neither is read. A file is opened without waiting, and
the open file is checked and not its path, so that a path that becomes a pipe in between is refused as well.

A document that a Python program gives as an object is read like a file of the current folder: `in_memory` names it.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError

DOCUMENT_BYTES = 8 * 2**20
"""Bytes of a YAML document or of a model's config.json: a plan has some 10 kB, one of groups 1.5 kB a job."""

DATA_BYTES = 4 * 2**30
"""Bytes of a file of rows: prompts, a length trace, the trace of a run."""

_CHUNK_BYTES = 1 << 20
_MOST_IN_MEMORY = 1000
_in_memory: dict[str, bytes] = {}


def in_memory(kind: str, text: str) -> Path:
    """A path in the current folder at which this process, and no other, reads `text`. It follows from kind and text.

    The texts of the last 1000 paths are kept, so that a plan that was solved from objects finds its inputs.
    """
    data = text.encode()
    name = f"<{kind}-{hashlib.sha256(data).hexdigest()[:12]}>"
    _in_memory[name] = data
    if len(_in_memory) > _MOST_IN_MEMORY:
        _in_memory.pop(next(iter(_in_memory)), None)
    return Path(name)


def is_file(path: str | Path) -> bool:
    """Whether there is a file at `path`, on the disk or in memory."""
    return Path(path).name in _in_memory or os.path.isfile(path)  # noqa: PTH113 (pathlib raises for what can be no path)


@contextmanager
def opened(path: str | Path, most_bytes: int = DATA_BYTES) -> Iterator[io.FileIO]:
    """The regular file at `path`, open for reading bytes.

    Raises InputError when it is missing, a folder, a pipe or a device, cannot be opened, or has more than `most_bytes`;
    and when reading it fails within the block.
    """
    try:
        with open(_descriptor(path), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError
            if not stat.S_ISREG(status.st_mode):
                raise InputError("is a pipe or a device; a file is needed", str(path))
            if status.st_size > most_bytes:
                raise InputError(too_large(status.st_size, most_bytes), str(path))
            yield file
    except FileNotFoundError:
        raise InputError("no such file", str(path)) from None
    except IsADirectoryError:
        raise InputError("is a folder; a file is needed", str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(path)) from None


def _descriptor(path: str | Path) -> int:
    # Without O_NONBLOCK, opening a pipe waits for its other end.
    flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, flags)
    except ValueError:
        raise InputError("is no path: it holds a null character", str(path).replace("\0", "?")) from None


def too_large(size: int, most_bytes: int) -> str:
    """The message for a file of `size` bytes if at most `most_bytes` are read."""
    return (
        f"has {size / 2**20:,.0f} MiB, and at most {most_bytes / 2**20:,.0f} MiB are read; "
        "check that it is the right file"
    )


def chunks(path: str | Path, most_bytes: int = DATA_BYTES) -> Iterator[bytes]:
    """The bytes of the regular file at `path`, chunk by chunk. Raises InputError as `opened` does, also for a file that
    holds more bytes than its size says (files of /proc have size 0)."""
    if (data := _in_memory.get(Path(path).name)) is not None:
        yield data
        return
    with opened(path, most_bytes) as file:
        read = 0
        while chunk := file.read(_CHUNK_BYTES):
            read += len(chunk)
            if read > most_bytes:
                raise InputError(too_large(read, most_bytes), str(path))
            yield chunk


def read_bytes(path: str | Path, most_bytes: int = DATA_BYTES) -> bytes:
    """All bytes of the regular file at `path`. Raises InputError as `chunks` does."""
    return b"".join(chunks(path, most_bytes))


def read_text(path: str | Path, most_bytes: int = DOCUMENT_BYTES) -> str:
    """The file's text (UTF-8; a byte order mark is skipped). Raises InputError as `read_bytes` does, and with the line
    of the first byte that is not UTF-8."""
    return utf8(read_bytes(path, most_bytes), path)


def utf8(data: bytes, path: str | Path) -> str:
    """The text of the bytes of the file at `path`, as `read_text`."""
    even, odd = (half.count(0) > 0.6 * len(half) for half in (data[:4096:2], data[1:4096:2]))
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or even != odd:
        raise InputError("is UTF-16 and not UTF-8 text; save it as UTF-8", str(path), 1)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8 text; save it as UTF-8", str(path), line) from None


def must_be_readable(path: str | Path, most_bytes: int = DATA_BYTES) -> None:
    """Raise InputError as `opened` does, before a module of `rounds` reads the file: such a module makes no checks."""
    with opened(path, most_bytes):
        return
