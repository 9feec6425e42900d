"""Which keys a version of a framework has, their defaults, and those that do nothing there."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

VERSIONS: Mapping[str, str] = {
    "verl": "0.9.1", "trl": "1.16.0", "openrlhf": "0.11.2", "skyrl": "0.4.0", "slime": "0.3.1", "vime": "2026-08",
}  # fmt: skip
"""The version of a framework whose keys are read and written where none is named."""
_DEAD = "dead: "


@dataclass(frozen=True, slots=True)
class FrameworkKey:
    """A key; `computed`: its default follows from others; `dead`: why it does nothing, else None; `note`: `+` where
    Hydra wants that prefix, `megatron` where it is of that backend alone."""

    name: str
    default: object
    computed: bool = False
    note: str = ""
    dead: str | None = None


class KeyTable:
    """The keys of one version of one framework."""

    def __init__(self, framework: str, version: str, text: str) -> None:
        self.framework, self.version = framework, version
        self._keys: dict[str, FrameworkKey] = {}
        for line in text.splitlines():
            if line.startswith("#") or not line:
                continue
            name, default, note = (*line.split("\t"), "")[:3]
            dead = note.removeprefix(_DEAD) if note.startswith(_DEAD) else None
            value = None if default == "?" else json.loads(default)
            self._keys[name] = FrameworkKey(name, value, default == "?", "" if dead else note, dead)
        self._open = tuple(name[:-1] for name in self._keys if name.endswith("*"))
        self._sections = {name[:at] for name in self._keys for at, char in enumerate(name) if char == "."}

    def __contains__(self, name: str) -> bool:
        """Whether a key, a section of keys, or a key of an open section is of this version."""
        return name in self._keys or name in self._sections or name.startswith(self._open)

    def names(self) -> tuple[str, ...]:
        """All keys, in order."""
        return tuple(self._keys)

    def get(self, name: str) -> FrameworkKey | None:
        """A key by name; None: there is none, or it is of an open section."""
        return self._keys.get(name)

    def default(self, name: str) -> object:
        """The default of a key that exists; None also where it is computed."""
        return self._keys[name].default

    def dead(self, name: str) -> str | None:
        """Why a key does nothing in this version; None if it does something, or is not known."""
        key = self._keys.get(name)
        return None if key is None else key.dead

    def nearest(self, name: str) -> str | None:
        """The key that a wrong name may mean: one with the same last part, else one that is spelled alike."""
        last = name.split(".")[-1]
        same = [each for each in self._keys if each.split(".")[-1] == last and "." in name]
        near = difflib.get_close_matches(name, same or list(self._keys), 1, 0.4 if same else 0.75)
        return near[0] if near else None


@cache
def key_table(framework: str, version: str | None = None) -> KeyTable:
    """The table of a framework's version. Raises KeyError for a framework without one."""
    version = version or VERSIONS[framework]
    text = files(__package__).joinpath(f"{framework}-{version}.tsv").read_text(encoding="utf-8")
    return KeyTable(framework, version, text)
