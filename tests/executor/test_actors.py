"""How Ray is started, and what a driver imports of torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("ray")

from rlplan.executor.actors import LATE, RAY_STARTS, on_a_busy_machine
from rlplan.plans.yaml.errors import RunFailed


def test_rays_processes_are_started_again_when_they_answer_too_late_and_other_errors_are_told():
    tries = []

    def late(times: int):
        tries.append(None)
        if len(tries) <= times:
            raise Exception(f"The current node {LATE}. This could happen because")
        return "node"

    assert on_a_busy_machine(lambda: late(RAY_STARTS - 1)) == "node" and len(tries) == RAY_STARTS
    tries.clear()
    with pytest.raises(RunFailed, match="set RAY_ADDRESS"):
        on_a_busy_machine(lambda: late(RAY_STARTS))
    assert len(tries) == RAY_STARTS
    with pytest.raises(OSError, match="no socket"):
        on_a_busy_machine(lambda: (_ for _ in ()).throw(OSError("no socket")))


def test_a_driver_imports_neither_what_trainers_nor_what_engines_need():
    drivers = "rlplan.executor.run", "rlplan.executor.groups.member_process", "rlplan.executor.groups.group_run"
    seldom = "vllm", "transformers", "torch.distributed.tensor", "torch.distributed.fsdp", "torch._dynamo"
    imported = f"[name for name in {seldom} if name in sys.modules]"
    program = f"import sys; [__import__(name) for name in {drivers}]; print({imported})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
