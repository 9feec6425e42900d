"""What the tester's and the response's process say to each other: one asks the other to do something with an object.

Both sides are built alike. While one waits for an answer it answers what the other asks meanwhile: a function of the
test's that a response calls. Who does what:

- a value is plain data (`plain_data`), or a reference: to an object of the sender's, which a `Remote` stands for, or
  back to one of the receiver's;
- an answer also says which of the containers in its request have changed, and those are changed on the asking side;
- a container that a test reads from an object of the response's is lent: what the test changes in it is changed in the
  response's own before the next request is carried out;
- an exception travels as its built-in class, with plain arguments; a class of the response's own is made anew from its
  name and its built-in base, so that tests can catch it.

The tester believes nothing of this but data. A message that cannot be read, or the other process's end, raises
`LinkLost`, which is no `Exception`, so that no test swallows it.
"""

from __future__ import annotations

import _thread
import importlib
import json
import operator
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

from .plain_data import SCALARS, Reader, Unreadable, Writer, is_changeable, refill
from .references import References
from .remote_objects import OPERATIONS, is_remote

LENGTH = struct.Struct("<Q")
MOST_BYTES = 64 << 20
"""Of a message that the tester reads."""
_dumps, _loads = json.dumps, json.loads  # tests may replace them in the module
MOST_BORROWED = 16
"""Containers of the response's that are watched for changes by the test at once: those that were read last."""


class LinkLost(BaseException):
    """The other process is gone, or what it says makes no sense."""


class ProcessLink:
    """One end of the connection.

    Args:
        channel: a stream socket to the other process.
        is_tester: whether this is the tester's end, which trusts nothing.
        ended: in the tester, a descriptor that becomes readable when the other process ends.
        allowed: in the tester, raises if the other side may not do this to an object of ours.
    """

    def __init__(
        self,
        channel: socket.socket,
        is_tester: bool,
        ended: int | None = None,
        allowed: Callable[[str, Any, tuple[Any, ...]], None] | None = None,
    ) -> None:
        self.is_tester = is_tester
        self.operations = dict(OPERATIONS)
        self.mirrored: Callable[[], dict[str, Any]] = dict
        self.lost = ""
        self.version: Callable[[], int] = lambda: 0
        """A number of ours that travels with each answer."""
        self.answering = 0
        """How many requests of the other side are being carried out: it listens, then."""
        self.seen = 0
        """The other side's number, by its last answer."""
        self._channel, self._ended, self._allowed = channel, ended, allowed
        self._references = References(self)
        self._borrowed: dict[int, tuple[Any, list[tuple[Any, Any]]]] = {}
        self._looked: dict[tuple[Any, ...], Any] = {}
        self._asked = 0
        self._lock = _thread.RLock()

    def ask(self, operation: str, *values: Any) -> Any:
        """Have the other side carry out an operation on its objects; returns or raises what that does there."""
        with self._lock:
            self._looked, self._asked = {}, self._asked + 1
            writer = Writer(self._references.write)
            changed = [[number, writer.contents(self._borrowed[number][0])] for number in self._changed()]
            for number, _ in changed:
                self._borrowed[number] = _snapshot(
                    self._borrowed[number][0], [now for now, _ in self._borrowed[number][1]]
                )
            written = writer.many(values)
            mirrored = {name: writer.write(value) for name, value in self.mirrored().items()}
            self._send([operation, changed, written, mirrored, self._references.dropped()])
            while True:
                message = self._receive()
                if message[0] not in ("got", "raised"):
                    self._answer(message)
                    continue
                got, self.seen, parts = message[0] == "got", message[1], message[2:]
                break
            if got:
                return self._read(lambda: self._result(writer, *parts))
            error = self._read(lambda: self._references.read_error(*parts))
            if isinstance(error, StopIteration) and operation != "next":
                # From a call it would end a `map` of the test's as if nothing more were to be checked.
                raise RuntimeError("the response raised StopIteration") from None
            raise error

    def look(self, operation: str, *values: Any) -> Any:
        """`ask` for what changes nothing; the answer is kept as long as nothing else was asked, or has changed here."""
        with self._lock:
            if not all(is_remote(value) or type(value) in SCALARS for value in values):
                return self.ask(operation, *values)
            key = (
                operation,
                *((ProcessLink, each._number) if is_remote(each) else (type(each), each) for each in values),
            )
            kept, before = {} if self._changed() else self._looked, self._asked
            if key not in kept:
                kept[key] = self.ask(operation, *values)
                if self._asked > before + 1:  # by a function of the test's that was called meanwhile
                    return kept[key]
            self._looked = kept
            return kept[key]

    def _changed(self) -> list[int]:
        """Numbers of borrowed containers that the test has changed."""
        watched = self._borrowed.items()
        return [number for number, (_, copies) in watched if not all(_same(now, was) for now, was in copies)]

    def drop(self, number: int) -> None:
        """Tell the other side, with the next message, that its object of this number is no longer used here."""
        self._references.drop(number)

    def serve(self) -> None:
        """Answer for ever."""
        while True:
            self._answer(self._receive())

    def _answer(self, message: list[Any]) -> None:
        operation, lent, written, mirrored, dropped = self._read(lambda: _parts(message))
        self._read(lambda: self._references.forget(dropped))
        reader = Reader(self._references.read)
        for number, contents in () if self.is_tester else lent:
            reader.read(contents, into=self._references.read(["yours", number]))
        values = self._read(lambda: reader.many(written))
        others = self._read(lambda: {str(name): reader.read(value) for name, value in mirrored.items()})
        given = [container.copy() for container in reader.numbered]
        self.answering += 1
        try:
            if operation not in self.operations:
                raise TypeError(f"no operation {operation!r}")
            if self._allowed is not None and operation != "warn":
                self._allowed(operation, values[0] if values else None, tuple(values[1:]))
            with Mirror({} if self.is_tester else others):
                result = self.operations[operation](*values)
            writer = Writer(self._references.write, reader.numbered)
            answer = ["got", self.version(), writer.write(result)]
            answer.append(
                [[i, writer.contents(now)] for i, (now, was) in enumerate(zip(reader.numbered, given, strict=True))
                 if not _same(now, was)]
            )  # fmt: skip
            if operation in ("getattr", "getitem") and not self.is_tester and is_changeable(result):
                answer.append(self._references.number(result))
            self._send(answer)
        except LinkLost:
            raise
        except BaseException as error:  # noqa: BLE001 - it is the other side's to handle
            self._send(["raised", self.version(), *self._references.write_error(error)])
        finally:
            self.answering -= 1

    def _result(self, writer: Writer, written: Any, changed: Any, lent: int = -1) -> Any:
        reader = Reader(self._references.read, writer.numbered)
        result = reader.read(written)
        inner = reader.numbered[len(writer.numbered) :]
        for number, contents in changed:
            reader.read(contents, into=writer.numbered[number])
        return self._borrow(int(lent), result, inner) if lent >= 0 and is_changeable(result) else result

    def _borrow(self, number: int, read: Any, inner: list[Any]) -> Any:
        """The container that stands here for theirs of this number: the one that did so before, or else this one."""
        known = self._borrowed.pop(number, (None, []))[0]
        if type(known) is type(read):
            refill(known, read)
            inner = [known, *(each for each in inner if each is not read)]
            read = known
        self._borrowed[number] = _snapshot(read, inner)
        while len(self._borrowed) > MOST_BORROWED:
            oldest = next(iter(self._borrowed))
            del self._borrowed[oldest]
            self._references.drop(oldest)
        return read

    def _read(self, act: Callable[[], Any]) -> Any:
        """What `act` makes of a message. Raises `LinkLost` if it is none."""
        try:
            return act()
        except (Unreadable, TypeError, ValueError, LookupError, AttributeError, RecursionError, MemoryError) as error:
            raise self._lose(f"sent what is no message ({type(error).__name__}: {error})") from None

    def _lose(self, why: str) -> LinkLost:
        self.lost = self.lost or why
        return LinkLost(why)

    # ---- bytes ----

    def _send(self, message: list[Any]) -> None:
        data = _dumps(message, separators=(",", ":")).encode()
        try:
            self._channel.sendall(LENGTH.pack(len(data)) + data)
        except OSError:
            raise self._lose("closed its connection") from None

    def _receive(self) -> list[Any]:
        size = LENGTH.unpack(self._bytes(LENGTH.size))[0]
        if size > MOST_BYTES:
            raise self._lose(f"sent a message of {size} bytes; {MOST_BYTES} are the most")
        data = self._bytes(size)
        message = self._read(lambda: _loads(data))
        if type(message) is not list or len(message) < 2 or type(message[0]) is not str:
            raise self._lose("sent what is no message")
        return message

    def _bytes(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if self._ended is not None:
                ready = select.select([self._channel.fileno(), self._ended], [], [])[0]
                if self._channel.fileno() not in ready:
                    raise self._lose("ended")
            try:
                part = self._channel.recv(min(size - len(data), 1 << 20))
            except OSError:
                part = b""
            if not part:
                raise self._lose("closed its connection")
            data += part
        return bytes(data)


MIRRORED = {"sys": ("stdin", "stdout", "stderr", "argv"), "builtins": ("input", "print", "open")}
"""What any test may replace, by module; tests that patch, more of the library."""
ENVIRONMENT, FOLDER = "os:environ", "."
"""Places of what is no name of a module."""


class Mirror:
    """For the time of a call, what the other side has replaced in place of ours: `sys:stdout`, `random:choice` and so
    on, its environment, and its working folder."""

    def __init__(self, replaced: dict[str, Any]) -> None:
        self._replaced = replaced
        self._before: list[tuple[Any, str, Any]] = []
        self._environment: dict[str, str] | None = None
        self._folder = ""

    def __enter__(self) -> None:
        for place, value in self._replaced.items():
            if place == ENVIRONMENT:
                self._environment = dict(os.environ)
                _set_environment(value)
            elif place == FOLDER:
                self._folder = os.getcwd()  # noqa: PTH109 - see the package: few imports
                os.chdir(value)
            else:
                path, _, name = place.partition(":")
                owner = owner_of(path)
                self._before.append((owner, name, vars(owner)[name]))
                setattr(owner, name, value)

    def __exit__(self, *_: Any) -> None:
        for owner, name, value in reversed(self._before):  # one module may have two names
            setattr(owner, name, value)
        if self._environment is not None:
            _set_environment(self._environment)
        if self._folder:
            os.chdir(self._folder)


def owner_of(path: str) -> Any:
    """The module, or the class in a module."""
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _parts(message: list[Any]) -> tuple[str, Any, Any, dict[str, Any], list[int]]:
    operation, lent, written, mirrored, dropped = message
    return operation, lent, written, mirrored, dropped


def _snapshot(container: Any, inner: list[Any]) -> tuple[Any, list[tuple[Any, Any]]]:
    """A container, and all that it holds with a copy of each."""
    return container, [(each, each.copy()) for each in inner]


def _same(now: Any, was: Any) -> bool:
    """Whether a container holds what it held, the same objects in the same order."""
    if hasattr(now, "tobytes"):  # an array
        return bool(now.shape == was.shape and now.tobytes() == was.tobytes())
    if len(now) != len(was):
        return False
    if isinstance(now, dict):
        return all(map(operator.is_, now, was)) and all(map(operator.is_, now.values(), was.values()))
    if isinstance(now, set):
        return bool(now == was)
    if isinstance(now, bytearray):
        return bool(now == was)
    return all(map(operator.is_, now, was))
