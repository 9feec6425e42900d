"""Executes one or several plans of one job: starts engines, reward workers and trainers, takes the steps, ends cleanly.

Several plans take their steps in turns on the same engines, so that all of them see the same machine; each has its own
trainer, folder, trace and checkpoints. The caller shows progress through a `Watcher`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psutil  # of the executor's extra: without it the command ends here, before it looks at any folder

from .prepare import Execution, Options
from .processes.host import cluster_address
from .records.execution_folder import check_folder, run_lock

if TYPE_CHECKING:
    from .groups.member_task import MemberTask
    from .turns import Watcher


def execute(
    executions: Sequence[Execution], options: Options, watcher: Watcher, member: MemberTask | None = None
) -> bool:
    """Run all plans for `options.steps` steps each, in turns; `member`: the run's task in a co-execution group.

    Returns True when all steps are done, False when a signal ended the run before, with checkpoints.
    Raises InputError for data that does not fit the job, a folder that another process runs in or a RAY_ADDRESS that is
    no address, RunFailed when the infrastructure failed for good.
    """
    cluster_address()  # refused now, and not after folders were made
    with contextlib.ExitStack() as locks:
        for execution in executions:
            locks.enter_context(run_lock(execution.run_dir))
            # Once more: another driver may have begun or ended here since `prepare`.
            check_folder(execution.run_dir, execution.plan_path, options.resume)
        from .session import run_session  # here, since it imports Ray and torch

        return asyncio.run(run_session(executions, options, watcher, member, psutil.Process().create_time()))
