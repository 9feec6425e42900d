"""An event loop whose clock jumps to the next timer: what waits for nothing but time costs none of it."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from functools import update_wrapper
from typing import Any, TypeVar
from unittest import mock

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. While threads of `asyncio.to_thread` run, the clock goes as the wall's."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s, self._threads = 1000.0, 0
        self._wait, self._selector.select = self._selector.select, self._select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now_s

    def run_in_executor(self, *arguments: Any) -> Any:
        self._threads += 1
        future = super().run_in_executor(*arguments)
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: Any) -> None:
        self._threads -= 1

    async def shutdown_default_executor(self) -> None:
        self._threads += 1
        await super().shutdown_default_executor()

    def _select(self, timeout: float | None) -> Any:
        events = self._wait(0)
        if events or timeout == 0:
            return events
        if self._threads:
            events = self._wait(timeout)
        if not events:
            assert timeout is not None, "everybody waits, and nothing can happen any more"
            self._now_s = max(self._now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        return events


def now_s() -> float:
    """The running loop's time."""
    return asyncio.get_running_loop().time()


def played(scene: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine returns in a virtual loop, whose time all of this process's code reads meanwhile."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        now = runner.get_loop().time
        with mock.patch.multiple(time, monotonic=now, perf_counter=now):
            return runner.run(scene)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes `async def test(...)` a test in virtual time."""
    return _plain(test, lambda given: test(**given), inspect.signature(test).parameters)


def in_scene(
    scene: Callable[[dict[str, Any]], AbstractAsyncContextManager[Any]], needs: Iterable[str] = ()
) -> Callable[..., Callable[..., None]]:
    """Makes `async def test(it, ...)` a test in virtual time, within the scene `it`.

    `scene` gets the test's arguments by name, and the fixtures `needs` beside them."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        names = [*inspect.signature(test).parameters][1:]

        async def whole(given: dict[str, Any]) -> None:
            async with scene(given) as it:
                await test(it, **{name: given[name] for name in names})

        return _plain(test, whole, [*names, *needs])

    return decorate


def _plain(test: Any, body: Callable[[dict[str, Any]], Any], names: Iterable[str]) -> Callable[..., None]:
    def run(**given: Any) -> None:
        played(asyncio.wait_for(body(given), 10**6))

    update_wrapper(run, test)
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in dict.fromkeys(names)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
