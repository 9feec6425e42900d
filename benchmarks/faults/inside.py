"""What strikes from within: a copy of this file is the `sitecustomize` of all processes of a run under faults.

In each a thread waits for an order (a file `PID` in the folder that FOLDER names, its text `ORDER ARGUMENT`), carries
it out and writes `PID.done`. Imports the standard library alone, since it delays every start.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = "RLPLAN_FAULTS_FOLDER"
LOOK_S = 0.1

ERRORS = {
    "ecc": ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered"),
    "cublas": ("RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle )`"),
    "nccl": ("RuntimeError", "NCCL error in: ProcessGroupNCCL.cpp:1234, remote process exited or network error"),
    "oom": ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB of which 1 is free"),
}
"""By order: the error as torch raises it on GPUs, its class and text."""

WORK = ("executor/trainer/gradient_sum.py", "vllm/v1/engine/core.py")
"""Files whose code a thread must run for an error to strike it: the update of a rank, the loop of an engine's core."""


def raise_in_work(order: str) -> bool:
    """Raise an error of ERRORS in the thread that trains or decodes; whether there is one."""
    import torch

    name, text = ERRORS[order]
    kind: Any = getattr(torch, name, RuntimeError)
    # Python makes the error by calling a class without arguments.
    made = type("Order", (BaseException,), {"__new__": lambda cls: kind(text)})
    for thread, frame in sys._current_frames().items():
        while frame is not None:
            if frame.f_code.co_filename.endswith(WORK):
                return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(made)))
            frame = frame.f_back  # type: ignore[assignment]
    return False


def slow_disk(seconds: str) -> bool:
    """Let each sync of a file take a second, for so many seconds."""
    quick, until = os.fsync, time.monotonic() + float(seconds)

    def slow(file: int) -> None:
        time.sleep(max(0.0, min(1.0, until - time.monotonic())))
        quick(file)

    os.fsync = slow
    threading.Timer(float(seconds), lambda: setattr(os, "fsync", quick)).start()
    return True


def jump(seconds: str) -> bool:
    """Let the clock of this process jump."""
    true = time.time
    time.time = lambda: true() + float(seconds)
    return True


def fill_store(seconds: str) -> bool:
    """Fill Ray's object store for so many seconds: what has no room goes to disk."""
    import numpy as np
    import ray

    free = int(ray.available_resources().get("object_store_memory", 0))

    def fill() -> None:
        held = [ray.put(np.ones(16_000_000, np.uint8)) for _ in range(free // 16_000_000 + 1)]
        time.sleep(float(seconds))
        del held

    threading.Thread(target=fill, daemon=True).start()
    return True


ORDERS = {"slow-disk": slow_disk, "jump": jump, "fill-store": fill_store}


def _wait() -> None:
    order = Path(os.environ[FOLDER]) / str(os.getpid())
    while True:
        time.sleep(LOOK_S)
        try:
            name, _, argument = order.read_text().partition(" ")
            order.unlink()
        except OSError:
            continue
        try:
            did = raise_in_work(name) if name in ERRORS else ORDERS[name](argument)
        except Exception as error:  # noqa: BLE001 - told to who gave the order
            did = False
            print(f"order {name} failed: {error!r}", file=sys.stderr)
        order.with_suffix(".done").write_text(str(int(did)))


def _takes_orders() -> bool:
    """Whether this is the driver, an actor of Ray's, or a process that vLLM spawned."""
    command = " ".join(sys.orig_argv)
    return FOLDER in os.environ and any(
        name in command for name in ("rlplan.cli.main", "default_worker.py", "multiprocessing.spawn")
    )


if _takes_orders():
    threading.Thread(target=_wait, name="orders", daemon=True).start()
