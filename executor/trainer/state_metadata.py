"""Reads checkpoints of torch's without running anything that they hold.

torch's distributed checkpoint keeps its table of tensors (`.metadata`) as a pickle, and unpickles it without a check:
whoever can write to a checkpoint's folder runs code in each rank, and in whoever exports the model. Here

- only the classes that describe tensors are made; any other name in the pickle is refused before it is looked up;
- entries that are no tensors are refused: torch would unpickle their bytes, too;
- tensors are read from files of the checkpoint's own folder (as torch reads them: weights only, no code).
"""

from __future__ import annotations

import pickle
from pathlib import Path, PurePath
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader

from ...plans.yaml.errors import InputError

_DESCRIPTIONS = (
    "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex", "StorageMeta",
)  # fmt: skip
_MADE = {
    *((metadata.__name__, name) for name in (*_DESCRIPTIONS, "_MEM_FORMAT_ENCODING")),
    (filesystem.__name__, "_StorageInfo"), (filesystem.__name__, "_StoragePrefix"),
    ("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath"),  # Python 3.13
}  # fmt: skip
"""Names, each with its module, that a table of tensors is made of; beside them torch's types of numbers."""


class _TableUnpickler(pickle._Unpickler):  # in Python, so that BUILD can be refused
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_build(self) -> None:
        """Set attributes of a description alone, and by its own way of it: elsewhere, or with a state of slots, a table
        could replace methods."""
        state, made = self.stack[-1], type(self.stack[-2])  # type: ignore[attr-defined]
        known = made in (*(getattr(metadata, name) for name in _DESCRIPTIONS), filesystem._StorageInfo)
        if not known or (isinstance(state, tuple) and not hasattr(made, "__setstate__")):
            raise pickle.UnpicklingError(f"sets attributes of {made.__name__}")
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # how Python 3.11 first wrote members of enums
            return _member
        of_torch = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) not in _MADE and not of_torch:
            raise pickle.UnpicklingError(f"names {module}.{name}, which is no part of a table of tensors")
        return super().find_class(module, name)


def _member(kind: Any, name: str) -> Any:
    if kind is not metadata._MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"asks for {name!r} of {kind!r}")
    return kind[name]


class TensorReader(FileSystemReader):
    """torch's reader of a checkpoint's folder, which runs nothing that stands there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._tables: dict[Path, metadata.Metadata] = {}  # a large one takes seconds to read

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        """The table of the tensors, read once. Raises InputError if it is none, or holds anything else, OSError."""
        path = Path(self._get_metadata_path(kwargs.get("rank")))
        if path not in self._tables:
            with self.fs.create_stream(path, "rb") as file:
                try:
                    self._tables[path] = _checked(_TableUnpickler(file).load())
                except Exception as error:  # noqa: BLE001 - of any bytes the unpickler raises anything
                    todo = "nothing of it was run; load a checkpoint that rlplan wrote"
                    raise InputError(f"is no table of a checkpoint's tensors: {error}; {todo}", str(path)) from None
        table = self._tables[path]
        table.storage_meta = table.storage_meta or metadata.StorageMeta()
        table.storage_meta.load_id = self.load_id
        return table


def _checked(table: Any) -> metadata.Metadata:
    """A table of tensors in files of its own folder. Raises UnpicklingError for anything else, or AttributeError."""
    found: metadata.Metadata = table
    plain = type(table) is metadata.Metadata and type(table.state_dict_metadata) is type(table.storage_data) is dict
    if plain and (table.storage_meta is None or type(table.storage_meta) is metadata.StorageMeta):
        kinds = {type(entry) for entry in table.state_dict_metadata.values()}
        files = {info.relative_path for info in table.storage_data.values()}
        own = all(isinstance(name, str) and PurePath(name).name == name != ".." for name in files)
        if own and not kinds - {metadata.TensorStorageMetadata}:
            return found
    raise pickle.UnpicklingError("describes other things than tensors in files of its folder")
