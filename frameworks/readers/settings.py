"""What a configuration states, and what a reader takes of it: an attribute's key and line, or that it is a default.

Readers ask for an attribute by the framework's key. A key that the configuration does not have gives the default of the
framework's key table. What was asked for and cannot be used, what does nothing in this version, and what no key is
called, is listed as left aside.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ...plans.facts.trainer_setup import Framework, LeftAside, TrainerSetup
from ...plans.yaml.errors import InputError
from ..keys.key_table import KeyTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value as it was written; `line` in the file that is read (None: in another one), `unresolved`: variables in it
    whose values are not known."""

    value: Any
    line: int | None = None
    unresolved: tuple[str, ...] = ()

    def shown(self) -> str:
        """The value on one line."""
        text = " ".join(str(self.value).split())
        return text if len(text) <= 60 else f"{text[:57]}..."


class Taken:
    """The settings of one configuration, and what was taken of them."""

    def __init__(
        self, framework: Framework, source: str, table: KeyTable, given: Mapping[str, GivenValue],
        old: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """`old`: keys of earlier versions, by the key that they became."""
        self.framework, self.source, self.table, self.given = framework, source, table, dict(given)
        self._old = dict(old or {})
        self._used: set[str] = set()
        self._keys: dict[str, str] = {}
        self._lines: dict[str, int] = {}
        self._defaulted: list[str] = []
        self._aside: list[LeftAside] = []

    def has(self, *keys: str) -> bool:
        """Whether one of the keys is stated, and not as null."""
        return any(self._given(key) not in (None, "null", "None", "") for key in keys)

    def take(
        self, attribute: str | None, keys: str | Sequence[str], read: Callable[[Any], T], default: Any = None
    ) -> Any:
        """The value of the first of `keys` that is stated, else `default`, else that of the key table.

        `read` raises ValueError with what a value should be.
        """
        names = [keys] if isinstance(keys, str) else list(keys)
        if attribute is not None:
            self._keys.setdefault(attribute, names[0])
        for name in names:
            value = self._given(name)
            if value in (None, "null", "None"):
                continue
            setting = self.given[self._name(name)]
            if setting.unresolved:
                what = ", ".join(dict.fromkeys(setting.unresolved))
                self.leave(
                    name, setting.shown(), f"holds {what}, which the file does not set; the default is taken: write "
                    "the value", "unresolved",
                )  # fmt: skip
                break
            try:
                taken = read(value)
            except ValueError as error:
                raise InputError(
                    f"{name} is {setting.shown()!r}, not {error}; write one", self.source, setting.line
                ) from None
            if attribute is not None:
                self._keys[attribute] = name
                if setting.line is not None:
                    self._lines[attribute] = setting.line
            return taken
        else:
            name = next((each for each in names if each in self.given), names[0])
        if attribute is not None:
            self._defaulted.append(attribute)
        if default is None and (key := self.table.get(names[0])) is not None and key.default is not None:
            default = read(key.default)
        return default

    def count(self, attribute: str | None, keys: str | Sequence[str], default: int | None = None) -> int:
        """A whole number from 1; 1 where neither the configuration nor a default says one."""
        taken = self.take(attribute, keys, whole, default)
        return 1 if taken is None else max(1, int(taken))

    def some(self, attribute: str | None, keys: str | Sequence[str], default: int | None = None) -> int | None:
        """A whole number from 1, or None: not set (0 and below say so too)."""
        taken = self.take(attribute, keys, whole, default)
        return None if taken is None or taken < 1 else int(taken)

    def number(self, attribute: str | None, keys: str | Sequence[str], default: float | None = None) -> float | None:
        """A number, or None."""
        taken = self.take(attribute, keys, real, default)
        return None if taken is None else float(taken)

    def flag(self, attribute: str | None, keys: str | Sequence[str], default: bool | None = None) -> bool:
        """True or false."""
        return bool(self.take(attribute, keys, truth, default))

    def text(self, attribute: str | None, keys: str | Sequence[str], default: str | None = None) -> str:
        """A text; empty where there is none."""
        taken = self.take(attribute, keys, str, default)
        return "" if taken is None else str(taken)

    def model(self, keys: str | Sequence[str]) -> str:
        """The model: a hub id or path; of a path that begins with what is not known, its last part."""
        for name in [keys] if isinstance(keys, str) else keys:
            setting = self.given.get(self._name(name))
            last = "" if setting is None else str(setting.value).rstrip("/").split("/")[-1]
            if setting is not None and setting.unresolved and last and not re.search(r"[$`]", last):
                self.given[self._name(name)] = replace(setting, value=last, unresolved=())
        return self.text("model", keys)

    def decide(self, attribute: str, stated: bool, key: str = "") -> None:
        """Note the key of an attribute that follows from several, and whether the configuration states it."""
        if key:
            self._keys[attribute] = key
            if (name := self._name(key)) in self.given and (line := self.given[name].line) is not None:
                self._lines[attribute] = line
        if stated:
            self._defaulted = [each for each in self._defaulted if each != attribute]
        elif attribute not in self._defaulted:
            self._defaulted.append(attribute)

    def leave(self, key: str, value: str, why: str, kind: str = "not read") -> None:
        """List a setting as left aside."""
        self._aside.append(LeftAside(key, value, why, kind))  # type: ignore[arg-type]

    def setup(self, **attributes: Any) -> TrainerSetup:
        """The setup, with all that is left aside. `attributes`: those of TrainerSetup."""
        if not attributes["model"]:
            key = self._keys.get("model", "model")
            raise InputError(f"names no model; write {key}", self.source)
        for name, setting in self.given.items():
            if name not in self._used:
                self.leave(name, setting.shown(), *self._verdict(name))
            elif (why := self.table.dead(name)) is not None:
                self.leave(name, setting.shown(), why, "dead")
        known = set(TrainerSetup.__dataclass_fields__)
        return TrainerSetup(
            framework=self.framework, version=self.table.version, source=self.source, keys=self._keys,
            defaulted=tuple(dict.fromkeys(each for each in self._defaulted if each in known)),
            left_aside=tuple(self._aside), lines=self._lines, **attributes,
        )  # fmt: skip

    def _verdict(self, name: str) -> tuple[str, str]:
        if (why := self.table.dead(name)) is not None:
            return why, "dead"
        if name not in self.table and name not in self._old.values():
            near = self.table.nearest(name)
            hint = f"; the nearest is {near}" if near else ""
            return f"no such key in {self.table.framework} {self.table.version}{hint}", "unknown"
        return "changes no bytes and no seconds that are computed here", "not read"

    def _name(self, key: str) -> str:
        return key if key in self.given or key not in self._old else self._old[key]

    def _given(self, key: str) -> Any:
        name = self._name(key)
        if name not in self.given:
            return None
        self._used.add(name)
        return self.given[name].value


def whole(value: Any) -> int:
    """A whole number of a text or number. Raises ValueError with what it should be."""
    try:
        number = float(str(value).strip("'\"").replace("_", ""))
    except ValueError:
        raise ValueError("a whole number") from None
    if not math.isfinite(number) or number != int(number) or abs(number) > 1e15:
        raise ValueError("a whole number")
    return int(number)


def real(value: Any) -> float:
    """A number. Raises ValueError with what it should be."""
    try:
        number = float(str(value).strip("'\""))
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(number):
        raise ValueError("a number")
    return number


def truth(value: Any) -> bool:
    """True or false. Raises ValueError with what it should be."""
    text = str(value).strip("'\"").lower()
    if text in ("true", "1", "yes", "on", "y", "t"):
        return True
    if text in ("false", "0", "no", "off", "n", "f", "none", "null", ""):
        return False
    raise ValueError("true or false")
