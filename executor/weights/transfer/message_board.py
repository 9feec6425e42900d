"""How the parties of a transfer tell each other where they are: counters in one key-value store of torch.

The driver has the server; each party has a client. Invariants:
- who waits is told within LOOK_S of the end of the transfer, whoever ended it;
- nobody waits longer than the deadline of the transfer for one bucket.
Keys of a bucket are deleted when nobody needs them any more, so a store does not grow with the steps of a run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistError

LOOK_S = 0.5  # how often who waits looks whether the transfer was ended
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.005  # between two looks at what is waited for
CONNECT = timedelta(seconds=60)
ENDED = "ended"


class TransferBroken(RuntimeError):
    """The transfer did not come to its end; what was received of it must not be used. It may be tried again."""


class MessageBoard:
    """One party's view of the store at `host`:`port`; not to be used by two threads.

    The driver makes it with `port` 0 and `serves`; it then has a port of its own.
    """

    def __init__(self, host: str, port: int, deadline_s: float, *, serves: bool = False) -> None:
        self._deadline_s = deadline_s
        try:
            self._store = TCPStore(host, port, None, serves, CONNECT, False)
        except DistError as error:
            raise TransferBroken(f"no connection to the driver at {host}:{port}: {error}") from error

    @property
    def port(self) -> int:
        """Port of the server."""
        return int(self._store.port)

    def of(self, name: str) -> Store:
        """A part of the store in which others may keep keys."""
        return PrefixStore(name, self._store)

    def arrive(self, key: str, expected: int, then: Callable[[], None] = lambda: None) -> None:
        """Be one of `expected` parties that reach `key`; the last one calls `then` and frees who waits for it."""
        with self._lost():
            if self._store.add(key, 1) == expected:
                then()
                self._store.set(_all(key), "")

    def forget(self, key: str) -> None:
        """Delete a key for which nobody waits any more."""
        with self._lost():
            self._store.delete_key(key)
            self._store.delete_key(_all(key))

    def tell(self, key: str, text: str) -> None:
        """Leave a text for the one party that hears it."""
        with self._lost():
            self._store.set(f"{key}/text", text)
        self.arrive(key, 1)

    def hear(self, key: str, what: str) -> str:
        """Wait for the text that is left under `key`, and take it away. Raises TransferBroken as `wait` does."""
        self.wait(key, what)
        with self._lost():
            text = self._store.get(f"{key}/text").decode()
            self._store.delete_key(f"{key}/text")
        self.forget(key)
        return text

    def wait(self, key: str, what: str) -> None:
        """Wait until all have reached `key`. Raises TransferBroken; `what` says what was waited for."""
        # The store could wait itself, but then not for two keys, and it writes a warning whenever it does so in vain.
        began = looked = time.monotonic()
        pause_s = SHORTEST_PAUSE_S
        while not self._is_there(_all(key)):
            now = time.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                self.check()
            if now - began > self._deadline_s:
                raise TransferBroken(f"waited {self._deadline_s:.0f} s for {what}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _is_there(self, key: str) -> bool:
        with self._lost():
            return self._store.check([key])

    def end(self, why: str) -> None:
        """End the transfer for all parties, if nobody has ended it before."""
        with contextlib.suppress(TransferBroken), self._lost():  # a server that is gone ends it as well
            self._store.compare_set(ENDED, "", why)

    def check(self) -> None:
        """Raises TransferBroken if the transfer was ended."""
        with self._lost():
            if self._is_there(ENDED):
                raise TransferBroken(self._store.get(ENDED).decode())

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except DistError as error:
            raise TransferBroken(f"the driver's store is gone: {error}") from error


def _all(key: str) -> str:
    return f"{key}/all"
