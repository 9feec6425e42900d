"""vLLM's core and its only rank in one process, on a CPU.

On a CPU vLLM starts a rank as a process of its own even if it is the only one, since it binds the rank's threads
through that process's environment. The process costs a second import of vLLM at each start (7 CPU seconds), a second
copy of its libraries in memory, and in each decode step a message there and back, which takes a third of a small
model's step. A rank of one thread needs no environment: the thread binds itself.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroupGloo
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from .vllm_options import CORES


class OneProcessExecutor(UniProcExecutor):
    """vLLM's executor of one rank inside the core; the thread that decodes runs on the core named in `CORES`."""

    def _init_executor(self) -> None:
        if hasattr(os, "sched_setaffinity"):  # not on macOS
            os.sched_setaffinity(0, {int(os.environ[CORES])})  # 0: the calling thread alone
        share_gloo_device()
        super()._init_executor()


def share_gloo_device() -> None:
    """Make all gloo groups that this process creates from now on share one gloo device.

    vLLM creates some twenty groups even for a single rank, and torch a gloo device for each group: a thread that wakes
    a hundred times a second to look for messages. The threads of one idle engine take 3 % of a core, and interrupt
    whatever decodes there two thousand times a second. Only for a rank that has no other to talk to: between two ranks
    a shared device makes an all-reduce a fifth slower.
    """
    gloo: Any = ProcessGroupGloo
    create_group, devices = gloo.__init__, [gloo.create_default_device()]

    def create_on_device(group: Any, store: Any, rank: int, size: int, timeout: Any) -> None:
        options = timeout  # a group that brings options, as those of weight transfers do, has a device of its own
        if isinstance(timeout, timedelta):
            options = gloo._Options()
            options._devices, options._timeout = devices, timeout
        create_group(group, store, rank, size, options)

    gloo.__init__ = create_on_device
