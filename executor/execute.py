"""Executes one or several plans of one job: starts engines, reward workers and trainers, takes the steps, ends cleanly.

Several plans take their steps in turns on the same engines, so that all of them see the same machine; each has its own
trainer, folder, trace and checkpoints. The caller shows progress through a `Watcher`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil  # of the executor's extra: without it the command ends here, before it looks at any folder

from ..traces.groups.groups_folder import requests
from .prepare import Execution, Options, PlanSwitch
from .processes.host import cluster_address
from .records.execution_folder import check_folder, run_lock
from .records.plan_changes import PlanRefusal, must_be_same_job

if TYPE_CHECKING:
    from .groups.member_task import MemberTask
    from .turns import Watcher


def execute(
    executions: Sequence[Execution], options: Options, watcher: Watcher, member: MemberTask | None = None
) -> bool:
    """Run all plans for `options.steps` steps each, in turns; `member`: the run's task in a co-execution group.

    A run that is asked to go on by another plan (`rlplan apply`) does so after its step; a plan that cannot be started
    is refused, and the run goes on by the plan that it had.

    Returns True when all steps are done, False when a signal ended the run before, with checkpoints.
    Raises InputError for data that does not fit the job, a folder that another process runs in or a RAY_ADDRESS that is
    no address, RunFailed when the infrastructure failed for good.
    """
    cluster_address()  # refused now, and not after folders were made
    with contextlib.ExitStack() as locks:
        for execution in executions:
            locks.enter_context(run_lock(execution.run_dir))
            # Once more: another driver may have begun or ended here since `prepare`.
            check_folder(execution.run_dir, options.resume)
            if options.resume:
                must_be_same_job(execution.run_dir, execution.plan_path, execution.checked)
        from .session import NotStarted, run_session  # here, since it imports Ray and torch

        for execution in executions:  # what nobody waits for any more
            for request in requests(execution.run_dir):
                request.unlink(missing_ok=True)
        began_s = psutil.Process().create_time()
        switch: PlanSwitch | None = None
        refusal: PlanRefusal | None = None
        while True:
            try:
                ended = asyncio.run(run_session(executions, options, watcher, member, began_s, refusal))
            except NotStarted as failure:
                if switch is None:
                    raise failure.reason from None
                # It cannot be started by the plan that it was asked to go on by: it goes on as it was.
                refusal = PlanRefusal(switch.request_id, str(switch.execution.plan_path), str(failure))
                executions, switch, began_s = [switch.running], None, time.time()
                watcher.plan_changed(executions[0].name, executions[0].plan)
                continue
            if isinstance(ended, bool):
                return ended
            switch, executions = ended, [ended.execution]
            options, began_s, refusal = replace(options, resume=True, history=None, readmit=False), time.time(), None
            watcher.plan_changed(executions[0].name, executions[0].plan)
