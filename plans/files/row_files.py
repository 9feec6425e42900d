"""Files of rows: JSON Lines, one JSON array, or Parquet, each plain or gzipped, told apart by what they hold; and
folders of rows: Hugging Face data sets that were saved to disk, or shards of Parquet."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from ..schema.job import RowSets
from ..yaml.errors import InputError
from ..yaml.input_files import DATA_BYTES, read_bytes, too_large, utf8
from ..yaml.json_text import JsonError, array_items, parse_json
from ..yaml.yaml_io import sha256_file

PARQUET_MAGIC = b"PAR1"


def unpacked(path: str | Path, most_bytes: int = DATA_BYTES) -> bytes:
    """The bytes of a file, or, where they are gzip, those that they unpack to. Raises InputError as `read_bytes`, and
    for gzip that is torn or unpacks to more than `most_bytes`."""
    data = read_bytes(path, most_bytes)
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked_data = file.read(most_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"is gzip that cannot be read ({error}); pack it again", str(path)) from None
    if len(unpacked_data) > most_bytes:
        raise InputError(too_large(len(unpacked_data), most_bytes), str(path))
    return unpacked_data


def decoded(data: bytes, path: str | Path, wanted: str = "CSV") -> str:
    """The text of a file (UTF-8; a byte order mark is skipped). Raises InputError for a file of another kind, and with
    the first line that is not UTF-8. `wanted`: the form in which to save a file of another kind."""
    other = _other_kind(data)
    if other is not None:
        raise InputError(other if "; " in other else f"{other}; save it as {wanted}", str(path), 1)
    text = utf8(data, path)
    if "\0" in text[:4096]:
        raise InputError(f"is no text (it holds null bytes); save it as {wanted}", str(path), 1)
    return text


_PACKED = "is packed by {}; unpack it, or pack it with gzip"
_KINDS = {
    **{magic: _PACKED.format(name) for magic, name in (
        (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"), (b"\x04\x22\x4d\x18", "lz4"),
        (b"7z\xbc\xaf", "7-Zip"), (b"\x1f\x9d", "compress"))},
    b"\xd0\xcf\x11\xe0": "is an Excel workbook (xls, or one with a password)",
    b"<": "is XML or HTML", b"%PDF": "is a PDF", b"{\\rtf": "is rich text", b"ARROW1": "is an Arrow file",
    b"Obj\x01": "is an Avro file", b"SQLite format 3": "is an SQLite database", b"\x89HDF": "is an HDF5 file",
    b"\x93NUMPY": "is a NumPy array", b"\x80\x04": "is a pickle", b"\x80\x05": "is a pickle",
}  # fmt: skip
"""By the first bytes of a file: what it is, and, if saving it in another form does not help, what to do."""

_INSIDE = {
    "xl/": "is an Excel workbook (xlsx)",
    "content.xml": "is an OpenDocument file (ods)",
    "Index/": "is a Numbers document",
    "word/": "is a Word document (docx)",
}
"""By the beginning of a name in a zip: what the file is."""


def _other_kind(data: bytes) -> str | None:
    """What a file is that is no text of rows, as in `_KINDS`; None where it may be one."""
    if data.startswith(b"PK\x03\x04"):
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as file:
                names = file.namelist()
        except (OSError, ValueError, zipfile.BadZipFile):
            return "is a zip that cannot be read; pack it again, with gzip"
        inside = (what for begin, what in _INSIDE.items() if any(name.startswith(begin) for name in names))
        return next(inside, _PACKED.format("zip"))
    known = next((what for magic, what in _KINDS.items() if data.startswith(magic)), None)
    if known is None and data[257:262] == b"ustar":
        known = _PACKED.format("tar")
    return known


def json_rows(text: str) -> Iterator[tuple[int, Any]]:
    """(line, value) of each row of JSON Lines, or of a JSON array, that is `text`; a JsonError in place of a value that
    cannot be read. Empty lines are skipped. What follows a fault in an array is not read."""
    if text.lstrip()[:1] == "[" and not _is_lines(text):
        try:
            yield from array_items(text)
        except JsonError as error:
            yield error.line, error
        return
    # Not splitlines(): that also breaks at U+2028 and others, which JSON strings may hold.
    for number, line in enumerate(text.split("\n"), 1):
        # Files that were put together have byte order marks in their midst.
        if not (content := line.strip("\ufeff \t\r\n")):
            continue
        try:
            yield number, parse_json(content, unique_keys=True)
        except JsonError as error:
            yield number, error


def _is_lines(text: str) -> bool:
    """Whether a text that begins with a bracket is JSON Lines all the same: its first line is a whole array, and more
    lines follow."""
    first, _, rest = text.lstrip().partition("\n")
    try:
        parse_json(first)
    except JsonError:
        return False
    return bool(rest.strip())


def parquet_rows(data: bytes, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, row) of each row of the Parquet file with these bytes, with values as JSON has them. Raises
    InputError for a damaged file, and where pyarrow is not installed."""
    yield from _column_rows(data, path, "Parquet")


def _column_rows(data: bytes, path: str | Path, kind: Literal["Parquet", "Arrow"]) -> Iterator[tuple[int, Any]]:
    """As `parquet_rows`; `Arrow`: of a stream of record batches."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        todo = "run: pip install pyarrow, or write the rows as JSONL"
        raise InputError(f"is {kind}, and pyarrow, which reads it, is not installed; {todo}", str(path)) from None
    try:
        buffer, number = pyarrow.BufferReader(data), 0
        if kind == "Arrow":
            batches = iter(pyarrow.ipc.open_stream(buffer))
        else:
            batches = pyarrow.parquet.ParquetFile(buffer).iter_batches(batch_size=1024)
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield number, _plain(row)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"cannot be read as {kind} ({error}); write it again", str(path)) from None


def folder_rows(folder: Path, most_bytes: int = DATA_BYTES) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1 in the whole folder, row) of each row of a folder's shards, in their order. Raises InputError as
    `parquet_rows` and `row_shards`, and for shards of more than `most_bytes` in all."""
    number = 0
    for shard in row_shards(folder):
        data = read_bytes(shard, most_bytes)
        most_bytes -= len(data)
        for _, row in _column_rows(data, shard, "Parquet" if data[:4] == PARQUET_MAGIC else "Arrow"):
            number += 1
            yield number, row


def row_shards(folder: Path) -> list[Path]:
    """The files with the rows of a folder that `save_to_disk` of Hugging Face's datasets wrote, or of one of Parquet
    files, by name. Raises InputError for any other folder."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() or path.suffix in (".json", ".parquet"))
    if "dataset_dict.json" in names:
        parts = ", ".join(name for name in names if (folder / name / "state.json").is_file())
        raise InputError(f"holds several data sets ({parts}); name the folder of one of them", str(folder))
    if "state.json" not in names:
        if shards := [folder / name for name in names if name.endswith(".parquet")]:
            return shards
        todo = "name a file of rows, or a folder of Parquet files or that datasets' save_to_disk wrote"
        raise InputError(f"is a folder without rows; {todo}", str(folder))
    try:
        state = json.loads(read_bytes(folder / "state.json"))
        shards = [folder / Path(each["filename"]).name for each in state["_data_files"]]
    except (ValueError, KeyError, TypeError):
        raise InputError("is no state of a data set; save it again", str(folder / "state.json")) from None
    if state.get("_indices_data_files"):
        todo = "call flatten_indices() and save it again"
        raise InputError(f"has rows in another order than its files; {todo}", str(folder / "state.json"))
    return shards


def rows_digest(path: Path | RowSets) -> str:
    """SHA-256 of a file of rows, or of the names and digests of a folder's, or of those of sets. Raises InputError."""
    if isinstance(path, RowSets):
        named = [f"{name} {rows_digest(each)}" for name, each, _ in path.sets]
        return hashlib.sha256("\n".join(named).encode()).hexdigest()
    if not path.is_dir():
        return sha256_file(path)
    named = [f"{shard.name} {sha256_file(shard)}" for shard in row_shards(path)]
    return hashlib.sha256("\n".join(named).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A value of Parquet as JSON has it: maps as objects, whole decimals as integers, bytes as text if they are UTF-8,
    times in ISO 8601."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) and len(each) == 2 for each in value):
            return {str(key): _plain(each) for key, each in value}
        return [_plain(each) for each in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value) if isinstance(value, timedelta) else value
