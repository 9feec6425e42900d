"""Read and write rlplan's documents: pydantic models as YAML files, with the JSON Schemas that editors check them by.

Reading turns every fault into an `InputError` with file, line, key and remedy; all faults of a document are raised
together. Writing is canonical: equal models give equal bytes, and a small change of values changes few lines, so that
digests and diffs show only real changes.

The rules of canonical text: keys in the order they come in; two spaces of indentation; a list of scalars, and a mapping
of scalars below the root that holds no prose and fits a line, in flow style (as an item of a list also if it holds
lists of scalars); floats in the shortest form that reads back as the same value, after rounding if `digits` is given;
strings quoted only if YAML 1.1 or 1.2 might read them as another type; no aliases; LF; one line break at the end.

The first line of a document names `.rlplan/NAME.schema.json`, relative to the document, so that it is the same on every
machine. Git ignores the folder `.rlplan`; each command that writes a document writes the schema again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import sys
import tempfile
import warnings
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from .errors import InputError, joined
from .fault_lines import explain_all
from .input_files import chunks
from .input_files import read_text as read_text
from .yaml_doc import Document, Loc, parse, plain_value

_WIDTH = 140  # wide enough for {path, sha256, provenance} of an input on one line
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*")
_IMPLICIT = yaml.SafeLoader.yaml_implicit_resolvers
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def number(value: float, digits: int | None = None) -> str:
    """A float as text that YAML 1.1 and 1.2 both read as a float; `digits`: significant digits, None: all digits."""
    if not math.isfinite(value):
        raise InputError(f"{value} is no value of a document; write a finite number")
    text = repr((value if digits is None else float(f"{value:.{digits}g}")) + 0.0)  # + 0.0 turns -0.0 into 0.0
    mantissa, e, exponent = text.partition("e")
    if e and "." not in mantissa:
        mantissa += ".0"
    return mantissa + e + exponent


def string(value: str) -> str:
    """A string as YAML: without quotes where that is safe, else in double quotes on one line."""
    if _PLAIN.fullmatch(value) and plain_value(value) == value and not _implicit_in_yaml_1_1(value):
        return value
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _escape(c)) for c in value) + '"'


def _implicit_in_yaml_1_1(value: str) -> bool:
    return any(pattern.match(value) for _, pattern in _IMPLICIT.get(value[0], []))


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _scalar(value: Any, digits: int | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return number(float(value), digits)
    if not isinstance(value, str):
        raise InputError(f"{value!r} is no value of a document; write text, a number, true, false or a list of these")
    return string(value)


def _flow(value: Any, digits: int | None, listed: bool = False) -> str | None:
    """`value` in flow style; None if it must be a block. `listed`: whether it is an item of a list."""
    if isinstance(value, dict):
        nested = [v for v in value.values() if isinstance(v, (dict, list, tuple))]
        if any(isinstance(v, dict) or not listed or _flow(v, digits) is None for v in nested):
            return None
        if any(isinstance(v, str) and " " in v for v in value.values()):
            return None
        return "{" + ", ".join(f"{string(k)}: {_flow(v, digits)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        if any(isinstance(v, (dict, list, tuple)) for v in value):
            return None
        return "[" + ", ".join(_scalar(v, digits) for v in value) + "]"
    return _scalar(value, digits)


class YamlLine(NamedTuple):
    """A line of a document, and the location of the key or list item at its start."""

    text: str
    location: Loc


def _block(value: Any, indent: str, location: Loc, out: list[YamlLine], digits: int | None) -> None:
    pairs: list[tuple[str, str | int, Any]]
    if isinstance(value, dict):
        # PyYAML reads a key of at most 1024 characters.
        assert all(len(k) <= 500 for k in value), "a key is a name, not a text"
        pairs = [(f"{string(k)}:", k, v) for k, v in value.items()]
    else:
        pairs = [("-", index, v) for index, v in enumerate(value)]
    for head, key, item in pairs:
        flow = _flow(item, digits, head == "-")
        breakable = isinstance(item, dict) and bool(item)
        if flow is not None and (not breakable or len(indent) + len(head) + 1 + len(flow) <= _WIDTH):
            out.append(YamlLine(f"{indent}{head} {flow}", (*location, key)))
        else:
            out.append(YamlLine(f"{indent}{head}", (*location, key)))
            _block(item, indent + "  ", (*location, key), out, digits)


def lines(value: dict[str, Any], digits: int | None = None) -> list[YamlLine]:
    """Canonical lines of a document: str keys; values are dict, list, tuple, str, int, float, bool or None."""
    out: list[YamlLine] = []
    _block(value, "", (), out, digits)
    return out or [YamlLine("{}", ())]


def write(value: dict[str, Any], digits: int | None = None) -> str:
    """Canonical text of a document."""
    return "".join(f"{line.text}\n" for line in lines(value, digits))


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
    """Canonical YAML of `model` (yaml_io.py has the rules); with `path`, also written there atomically.

    `load(dump(m)) == m` and `dump(load(dump(m))) == dump(m)`. `digits`: significant digits that floats are rounded to;
    None: every float is written in full. The first line of a whole document names its JSON Schema, for editors.
    """
    text = header(type(model)) + write(model.model_dump(mode="python", warnings=False), digits)
    if path is not None:
        atomic_write(path, text)
    return text


SCHEMA_FOLDER = ".rlplan"
"""The folder beside a document for its JSON Schema; commands that write documents write it (yaml_io.py)."""


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


SHIPPED = Path(__file__).parents[1] / "schemas"
"""The schemas as they ship: `NAME.schema.json`."""


def schema_of(model: type[BaseModel]) -> str:
    """JSON Schema (2020-12) of a document, generated from its model; the same bytes each time."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_document(model: BaseModel, path: str | Path, digits: int | None = None) -> None:
    """`dump` a whole document to `path`, and write its schema beside it."""
    dump(model, path, digits)
    name = document_name(type(model))
    assert name is not None, "a part of a document has no file"
    if Path(path).is_file():  # no schema for standard output, a device or a pipe
        place_schema(Path(path).parent, name)


def place_schema(folder: Path, name: str) -> None:
    """Write the schema of a kind of document into `folder`/.rlplan. A failure gives only a warning: only editors need
    the schema."""
    text = read_text(SHIPPED / f"{name}.schema.json")
    target = folder / SCHEMA_FOLDER / f"{name}.schema.json"
    try:
        if target.is_file() and target.read_text(encoding="utf-8") == text:
            return
        target.parent.mkdir(exist_ok=True)
        atomic_write(target.parent / ".gitignore", "*\n")
        atomic_write(target, text)
    except (OSError, InputError) as error:
        why = error.message if isinstance(error, InputError) else error.strerror
        warnings.warn(f"{target}: the schema for editors cannot be written ({why})", stacklevel=2)
