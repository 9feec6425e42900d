"""Minutes of the groups example through the real actor on three Ray nodes: its decisions are the simulator's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

import rlplan

ROOT = Path(rlplan.__file__).parent
WAIT_S = 600


@pytest.mark.timeout(WAIT_S)
def test_the_actor_decides_what_the_simulator_does_bit_for_bit_though_it_is_killed():
    command = [sys.executable, "-m", "benchmarks.coexecution", "--parts", "replay", "--virtual-s", "900", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)["replay"]
    assert result["identical"], done.stderr[-2000:]
    assert result["nodes"] == 3 and set(result["groups"]) == {"g1", "g2"}
    for group in result["groups"].values():
        assert group["identical"] and group["kills"] == 1 and group["decisions"] > 8
