"""The slow link between two pools of network namespaces: what it is short of is said, and nothing of it stays."""

import shutil
import subprocess
import sys

import pytest

from rlplan.benchmarks.weight_parties import pools


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_a_machine_without_the_tools_says_which_one_it_lacks(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    assert pools.obstacle() == "tc is not installed"


def test_nodes_reach_each_other_through_the_slow_link_alone():
    reason = pools.obstacle()
    if reason is not None:
        pytest.skip(reason)
    before = namespaces()
    with pools.Pools({"t": True, "a": False, "b": False}, 50e6) as made:
        assert namespaces() != before
        quiet = made.crossed_bytes()
        for number, (node, to) in enumerate([("a", "b"), ("t", "a")]):
            pools.command(*made.within(node), sys.executable, "-c", SEND, made.address(node), made.address(to))
            crossed = made.crossed_bytes() - quiet
            assert (crossed > 1_000_000) == (number == 1), "inside a pool nothing crosses"
    assert namespaces() == before


SEND = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(1100):
    sender.sendto(bytes(1000), (sys.argv[2], 9))
    if number % 20 == 0:
        time.sleep(0.005)
"""
