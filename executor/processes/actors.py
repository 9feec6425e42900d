"""Ray actors and calls to them: how Ray is started, how an actor is called, waited for and killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import psutil
import ray

from ...plans.yaml.errors import InputError, RunFailed
from .faults import ActorFailed, ErrorClass, classify
from .host import cluster_address

# Ray must not reserve cores, for the plan places actors, and must not restart them: their state is gone with them.
ACTOR_OPTIONS = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}

CONNECT_S = 20.0
Started = TypeVar("Started")

RAY_SETTINGS = {
    # Ray runs its workers at niceness 15: whatever else runs on a shared host would starve the engines.
    "RAY_worker_niceness": "0",
    # Ray would start a worker for each core in advance, while engines start. Actors here have an environment of their
    # own, so that each gets a new process, and those in advance would stay idle.
    "RAY_prestart_worker_first_driver": "0",
}
"""Environment of Ray's own processes, where this tool starts them."""

OVERRIDE = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
"""Ray's environment variable: with 0 it leaves an actor that was given no GPU its CUDA_VISIBLE_DEVICES."""


RAY_STARTS = 3
"""Times that a start of Ray's own processes is tried."""

LATE = "timed out during startup"
"""What Ray says, in an error without a class of its own, of processes that did not answer within its 30 s."""


def on_a_busy_machine(start: Callable[[], Started]) -> Started:
    """Call `start`, which starts processes of Ray on this machine, and return its result; where they answer too late,
    end them and try again, RAY_STARTS times in all. Raises RunFailed."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    for _ in range(RAY_STARTS):
        try:
            return start()
        except Exception as error:
            if LATE not in str(error):
                raise
            ray.shutdown()
            late = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
            for child in late:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(late)
    raise RunFailed(
        f"Ray did not start on this machine within {RAY_STARTS} times 30 s; stop other programs, or set RAY_ADDRESS to "
        "a cluster that runs"
    )


STORE_BYTES = 256 * 1024**2
"""Of Ray's object store on this machine, for all but the tokens of a step."""
TOKEN_BYTES = 16
"""Of a step's token in the store: 8 as engines report it and 8 as trainers take it, token and log-probability."""


def _store_bytes(tokens: int) -> int:
    """Room for a step of so many tokens, within half of the shared memory that is free: files of the store take memory
    only as they are written, and Ray writes what has no room to disk."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        free = 0
    return max(STORE_BYTES, min(STORE_BYTES + TOKEN_BYTES * tokens, free // 2))


def store_lack(tokens: int) -> str | None:
    """What the object store of this node lacks for a step of so many tokens; None where Ray does not say, or nothing.
    Ray must be connected."""
    own = ray.get_runtime_context().get_node_id()
    held = next((node["Resources"].get("object_store_memory") for node in ray.nodes() if node["NodeID"] == own), None)  # type: ignore[no-untyped-call]
    needed = TOKEN_BYTES * tokens
    if held is None or held >= needed:
        return None
    return (
        f"Ray's object store on this node has {held / 1e9:.2g} GB, and the tokens of a step may take "
        f"{needed / 1e9:.2g} GB: Ray writes the rest to disk; start Ray there with "
        f"--object-store-memory={needed + STORE_BYTES}"
    )


def start_ray(tokens: int = 0) -> bool:
    """Connect to the cluster in RAY_ADDRESS, or start Ray on this machine, with room in its object store for a step of
    so many tokens. Does nothing if already connected.

    Returns whether Ray runs for this process alone, on this machine. Raises InputError if RAY_ADDRESS is no address,
    RunFailed if nobody answers there, or Ray does not start.
    """
    address = cluster_address()
    if ray.is_initialized():
        return address is None
    os.environ.setdefault(OVERRIDE, "0")
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    _keep_standard_output_clean()
    # Ray's logs and dashboards are not this tool's output.
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is not None:
        _must_answer(address)
        try:
            ray.init(address=address, **quiet)
        except ValueError as error:
            raise InputError(f"RAY_ADDRESS: Ray refuses {address!r}: {error}; write HOST:PORT of its head") from None
        except (ConnectionError, RuntimeError) as error:  # RuntimeError: no Ray, or another version
            # The first sentence; the next ones name options of Ray's own commands.
            raise RunFailed(
                f"RAY_ADDRESS is {address!r}, and Ray says: {str(error).split('. ')[0]}; start a cluster, write "
                "HOST:PORT of its head, or unset RAY_ADDRESS to run on this machine alone"
            ) from None
    else:
        # "local": without it Ray connects to whatever cluster runs on this machine.
        local: dict[str, Any] = {
            "address": "local",
            "include_dashboard": False,
            "object_store_memory": _store_bytes(tokens),
        }
        on_a_busy_machine(lambda: ray.init(**local, **quiet))
    return address is None


def _must_answer(address: str) -> None:
    """Raise RunFailed if nobody listens at `host:port`, for which Ray itself would wait for minutes."""
    if address == "auto":  # Ray resolves it
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: of a name that no host can have
        why = getattr(error, "strerror", None) or error
        raise RunFailed(
            f"no Ray cluster answers at {address} (RAY_ADDRESS): {why}; start its head there, or "
            "unset RAY_ADDRESS to run on this machine alone"
        ) from None


def _keep_standard_output_clean() -> None:
    """Send to the log what Ray prints on standard output when a node dies: output is this tool's, perhaps JSON."""
    from ray._private import worker  # no option of Ray does it

    def log(data: dict[str, Any], ignore_prefix: bool) -> None:
        logging.getLogger(__name__).info("Ray: %s", "\n".join(map(str, data.get("lines", ()))))

    worker.print_to_stdstream = log


def visible_gpus(gpus: Sequence[str]) -> dict[str, str]:
    """Environment of an actor that sees these GPUs and no others, though Ray was asked for none."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), OVERRIDE: "0"}


def end_actor(actor: Any) -> None:
    """Kill an actor at once, even if it is busy."""
    ray.kill(actor, no_restart=True)


def track(call: Any) -> asyncio.Future[Any]:
    """The future of a Ray call; asyncio reports no error of it, even if nobody awaits it."""
    return retrieved(asyncio.wrap_future(call.future()))


def retrieved(future: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """Returns `future`; asyncio reports no error of it, even if nobody awaits it."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


async def within(deadline_s: float, awaitable: Any, actor: str) -> Any:
    """Await with a deadline. Raises ActorFailed, with the name of the actor, when the deadline passes."""
    try:
        return await asyncio.wait_for(awaitable, deadline_s)
    except TimeoutError:
        raise ActorFailed(actor, f"no answer within {deadline_s:.0f} s") from None


class UnawaitedCalls:
    """Calls to actors that nobody waits for."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, call: Coroutine[Any, Any, None], failed: Callable[[Exception], None] | None = None) -> None:
        """Make a call. `failed` hears of an error, but of no death of the actor's process, which supervision tells."""
        task = asyncio.create_task(self._made(call, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _made(self, call: Coroutine[Any, Any, None], failed: Callable[[Exception], None] | None) -> None:
        try:
            await call
        except Exception as error:  # noqa: BLE001 - whatever it is, `failed` hears of it
            if failed is not None and classify(error) is not ErrorClass.ACTOR:
                failed(error)

    async def settle(self, seconds: float | None) -> None:
        """Wait for calls that are under way, so long at most; None: until all have ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
