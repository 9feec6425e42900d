"""References of a link: numbers for objects that stay in their process, names of exceptions and of a response's own."""

from __future__ import annotations

import builtins
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from .plain_data import SCALARS, VIEWED, Unreadable
from .remote_objects import OwnerLink, Remote, is_remote, local_type

NAMEABLE = frozenset({
    "abc", "bisect", "cmath", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "heapq", "io", "itertools", "json", "math", "operator", "os", "random", "re",
    "statistics", "string", "sys", "textwrap", "time", "typing", "unittest",
})  # fmt: skip
"""Modules of the standard library that a test may use by the name under which the response imported them."""
ASSUMED = ("typing", "collections", "dataclasses", "decimal", "fractions")
"""Modules whose public names tests may use without an import."""
PACKAGES: set[str] = set()
"""Top-level modules of the packages that the job states; they stand in both processes, as the standard library does."""


def is_shared(module: str) -> bool:
    """Whether a module of that name is there in both processes."""
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in PACKAGES


class References:
    """The objects of ours that the other side knows, and the stand-ins for its own, of one link."""

    def __init__(self, link: OwnerLink) -> None:
        self._link = link
        self._ours: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._next = 0
        self._theirs: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self._types: dict[tuple[str, str | None, bool], type[Remote]] = {}
        self._error_types: dict[int, type[BaseException]] = {}
        self._unused: list[int] = []

    # ---- objects ----

    def write(self, value: Any) -> list[Any]:
        """The reference to an object that is no plain data."""
        if is_remote(value) and value._link is self._link:
            return ["yours", value._number]
        if isinstance(value, BaseException) and "_remote" in vars(value):
            return self.write(vars(value)["_remote"])
        if isinstance(value, type) and issubclass(value, BaseException):
            return self._write_error_type(value)
        if self._link.is_tester and (named := _standard(value)):
            return ["standard", *named]
        kind = type(value)
        data = next((base.__name__ for base in VIEWED if issubclass(kind, base) and kind is not base), None)
        return ["object", self.number(value), kind.__name__, data, isinstance(value, types.CoroutineType)]

    def read(self, written: list[Any]) -> Any:
        """The object of ours that is meant, or what stands for one of theirs. Raises `Unreadable`."""
        try:
            tag, *rest = written
            if tag == "yours":
                return self._ours[rest[0]]
            if tag == "object":
                return self._stand_in(*rest)
            if tag == "error type":
                return self._read_error_type(*rest)
            if tag == "standard" and not self._link.is_tester:
                return find_standard(*rest)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise Unreadable(f"no reference: {type(error).__name__}") from None
        raise Unreadable("no reference")

    def drop(self, number: int) -> None:
        """Theirs of this number is no longer used here."""
        self._unused.append(number)

    def dropped(self) -> list[int]:
        """Numbers of theirs that were dropped since this was last asked."""
        unused, self._unused = self._unused, []
        # One that came back meanwhile has a new stand-in, which is to be kept.
        return [number for number in unused if number not in self._theirs]

    def forget(self, numbers: list[int]) -> None:
        """Ours of these numbers are no longer used there."""
        for number in numbers:
            value = self._ours.pop(number, None)
            self._numbers.pop(id(value), None)

    def number(self, value: Any) -> int:
        """The number of an object of ours, which is kept until the other side drops it."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = self._next
            self._ours[number] = value  # kept, so that its id stays its own
            self._next += 1
        return number

    def _stand_in(self, number: int, name: str, data: str | None, coroutine: bool) -> Remote:
        found = self._theirs.get(number)
        if found is None:
            key = (str(name), data, bool(coroutine))
            if key not in self._types:
                self._types[key] = local_type(*key)
            found = self._theirs[int(number)] = self._types[key](self._link, int(number))
        return found

    # ---- exceptions ----

    def write_error(self, error: BaseException) -> list[Any]:
        """An exception: its class, its arguments if they are plain, its text, and the object if it may have more."""
        if "_remote" in vars(error):
            return [self.write(vars(error)["_remote"]), [], "", None]
        plain = all(type(value) in SCALARS for value in error.args)
        arguments = list(error.args) if plain else [_text(error)]
        built_in = _built_in(type(error))
        return [self._write_error_type(type(error)), arguments, _text(error), None if built_in else self.write(error)]

    def read_error(self, written: Any, arguments: Any, text: str, more: Any) -> BaseException:
        """The exception to raise here. Raises `Unreadable` if it is none."""
        kind = self.read(written)
        if isinstance(kind, BaseException):  # one of ours that comes back
            return kind
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise Unreadable("no exception")
        values = [value for value in arguments if type(value) in SCALARS]
        try:
            error = kind(*values)
        except Exception:  # noqa: BLE001 - a few built-in classes want arguments of their own kind
            error = Exception(str(text))
        if more is not None and isinstance(error, _TheirError):
            error._remote, error._text = self.read(more), str(text)
        return error

    def _write_error_type(self, kind: type[BaseException]) -> list[Any]:
        """A class of exceptions: those classes of its that are not built in, from itself up, and the first that is."""
        if "_number_of_type" in vars(kind):
            return ["yours", vars(kind)["_number_of_type"]]
        chain: list[tuple[int, str]] = []
        for each in kind.__mro__:
            if _built_in(each):
                return ["error type", chain, each.__name__]
            chain.append((self.number(each), each.__name__))
        raise AssertionError("every exception derives from a built-in one")

    def _read_error_type(self, chain: Any, base: str) -> type[BaseException]:
        made = getattr(builtins, base)
        if not (isinstance(made, type) and issubclass(made, BaseException)):
            raise Unreadable("no exception")
        for number, name in reversed(chain):
            if number not in self._error_types:
                bases = (made,) if issubclass(made, _TheirError) else (_TheirError, made)
                self._error_types[number] = type(str(name), bases, {"_number_of_type": int(number)})
            made = self._error_types[number]
        return made


class _TheirError(BaseException):
    """What is raised here for an exception whose class is defined in the other process."""

    _text = ""
    _remote: Any

    def __str__(self) -> str:
        return self._text or super().__str__()

    def __getattr__(self, name: str) -> Any:
        if "_remote" not in vars(self):
            raise AttributeError(name)
        return getattr(vars(self)["_remote"], name)


def _built_in(kind: type) -> bool:
    return getattr(builtins, kind.__name__, None) is kind


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 - a class of the response's
        return type(other).__name__


def _standard(value: Any) -> tuple[str, str] | None:
    """Module and name of a module, class or function of the standard library; None of anything else."""
    if isinstance(value, types.ModuleType):
        name = value.__name__
        return (name, "") if is_shared(name) else None
    if not isinstance(value, (type, types.BuiltinFunctionType, types.FunctionType)):
        return None
    module, name = getattr(value, "__module__", None), value.__name__
    if not isinstance(module, str) or not is_shared(module):
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


def find_standard(module: str, name: str) -> Any:
    """The module, or its member of that name."""
    found = __import__(module, fromlist=["*"])
    return getattr(found, name) if name else found


# ---- the names of the response's module, as tests use them ----

FOUND, MISSING, STANDARD = "found", "missing", "standard"
"""Answers to `get`: a value, none, or the name of the standard library's module that it is from."""


class BoundNames:
    """What the response's module calls by which name.

    A function or class is asked for once, and again after a name of that module was bound anew (`OwnerLink.seen`).
    """

    def __init__(self, connection: OwnerLink, defined: dict[str, Any]) -> None:
        self._connection, self._seen = connection, connection.seen
        self.used = False
        """Whether the tests have asked for anything of the response."""
        self._known: dict[str, Any] = {name: value for name, value in defined.items() if is_remote(value)}

    def look_up(self, name: str) -> Any:
        """The object. Raises `KeyError` if there is none of that name.

        What the response imported from the standard library is taken from this process's library, by the same name
        only: a response must not be able to hand over, say, `unittest.mock.ANY` for a number.
        """
        self.used = True
        if self._seen != self._connection.seen:
            self._known.clear()
        if name in self._known:
            return self._known[name]
        answer = self._connection.look("get", name)
        if type(answer) is not tuple or len(answer) != 2:
            raise KeyError(name)
        how, value = answer
        if how == FOUND:
            if is_remote(value):
                self._known[name], self._seen = value, self._connection.seen
            return value
        if how == STANDARD and type(value) is str and value.partition(".")[0] in NAMEABLE | PACKAGES:
            own_name = "" if value.rpartition(".")[2] == name else name
            try:
                return find_standard(value, own_name)
            except (ImportError, AttributeError):
                raise KeyError(name) from None
        raise KeyError(name)


class Names(dict[str, Any]):
    """The tests' global names: their own, then the response's, then those that data sets use without an import.

    `overrides`: built-in names that stand for functions of the response's.
    """

    def __init__(self, own: dict[str, Any], bound: BoundNames, overrides: Iterable[str] = ()) -> None:
        super().__init__(own)
        self._bound, self._overrides = bound, frozenset(overrides)

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) and name not in self._overrides:
            raise KeyError(name)
        try:
            return self._bound.look_up(name)
        except KeyError:
            found = _assumed(name)
            if found is None:
                raise
            return found


def _assumed(name: str) -> Any:
    """A module of the library of that name, or a class that data sets import beforehand; None if it is neither."""
    if name in NAMEABLE:
        return find_standard(name, "")
    for module in ASSUMED:
        if name in getattr(sys.modules.get(module), "__all__", ()):
            return find_standard(module, name)
    return None


def assume_imports(names: dict[str, Any]) -> None:
    """Add to the built-in names what functions may use without importing it, since their data sets' graders import it
    (LiveCodeBench, APPS, LeetCode), or the prompt that they complete does (HumanEval: `List`)."""
    modules = {name: sys.modules[name] for name in NAMEABLE if name in sys.modules}
    for module in (*ASSUMED, "heapq", "bisect", "itertools", "functools", "math"):
        known = vars(sys.modules[module])
        public = known.get("__all__", [each for each in known if not each.startswith("_")])
        modules |= {name: known[name] for name in public if name in known}
    for name, value in modules.items():
        names.setdefault(name, value)


class SolutionModule(types.ModuleType):
    """The response's module, as tests import it."""

    def __init__(self, connection: OwnerLink, bound: BoundNames, taken: Mapping[str, Any]) -> None:
        super().__init__("solution")
        vars(self).update(_connection=connection, _bound=bound, _taken=taken)

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self._public()
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._bound.look_up(name)
        except KeyError:
            raise AttributeError(f"module 'solution' has no attribute {name!r}") from None

    def _public(self) -> list[str]:
        """What `*` imports: none of the names that the tests have already, or that are built in."""
        offered = self._bound.look_up("*")
        if type(offered) is not list or not all(type(name) is str for name in offered):
            raise AttributeError("module 'solution' names nothing for '*'")
        kept = (
            each for each in offered if not (each.startswith("__") or each in self._taken or hasattr(builtins, each))
        )
        return [name for name in kept if hasattr(self, name)]

    def __setattr__(self, name: str, value: Any) -> None:
        self._connection.ask("set", name, value)

    def __delattr__(self, name: str) -> None:
        self._connection.ask("unset", name)
