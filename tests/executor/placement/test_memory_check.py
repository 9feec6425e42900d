"""Whether what sleeps on nodes fits into the memory that they have free."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from rlplan.executor.placement.live_nodes import LeasedNode, NodeFacts
from rlplan.executor.placement.memory_check import Sleeping, free_host_bytes, lacking


def node(node_id, address="10.0.0.1"):
    return LeasedNode(node_id, NodeFacts(address, "host", (0,), (), ()))


def test_states_of_all_nodes_that_one_machine_stands_for_sleep_in_the_same_memory():
    asleep = [Sleeping("h20", node("a"), 30e9), Sleeping("h800", node("a"), 50e9), Sleeping("h20", node("b"), 70e9)]
    assert lacking(asleep, {"a": 80 * 10**9, "b": 70 * 10**9}) is None
    text = lacking(asleep, {"a": 79 * 10**9, "b": 70 * 10**9})
    assert text.startswith("node 10.0.0.1 (pool 'h20', 'h800') has 79 GB of host memory free") and "80 GB" in text
    assert "\n" not in text and "rules.group_cap" in text


def test_a_platform_that_does_not_tell_is_believed(tmp_path):
    assert free_host_bytes(tmp_path / "none", tmp_path) is None
    assert lacking([Sleeping("h20", node("a"), 1e15)], {"a": None}) is None


def test_a_container_has_what_its_control_group_leaves_it(tmp_path):
    memory, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    memory.write_text("MemTotal:       64000 kB\nMemAvailable:   50000 kB\nHugePages_Total:  0\n")
    assert free_host_bytes(memory, cgroup) == 1024 * 50_000, "no control group"
    cgroup.mkdir()
    (cgroup / "memory.max").write_text("max\n")
    assert free_host_bytes(memory, cgroup) == 1024 * 50_000, "one without a limit"
    (cgroup / "memory.max").write_text("9000000\n")
    (cgroup / "memory.current").write_text("7000000\n")
    (cgroup / "memory.stat").write_text("anon 4000000\ninactive_file 1500000\n")
    assert free_host_bytes(memory, cgroup) == 3_500_000
    (cgroup / "memory.current").write_text("19000000\n")
    assert free_host_bytes(memory, cgroup) == 0


def test_this_machine_tells_what_it_has_free():
    free = free_host_bytes()
    assert free is None or free > 0
