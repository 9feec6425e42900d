"""Two pools of nodes as network namespaces: a switch for each pool, and between the switches a link of bounded speed.

Linux alone, as root; `obstacle` says why it cannot be done here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence

NETWORK = "10.97.41"
TRAINER_LINK, ENGINE_LINK = "slow-t", "slow-e"
"""Both ends of the slow link; bytes leave the trainer's pool by the first one."""


def ip(*words: str) -> str:
    """Run `ip`. Raises RuntimeError with its words."""
    return command("ip", *words)


def command(*words: str) -> str:
    """Run a command; returns its output. Raises RuntimeError with what it says when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def obstacle() -> str | None:
    """Why there can be no such pools on this machine; None if there can."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    name = f"rlplan-try-{os.getpid()}"
    try:
        ip("netns", "add", name)
    except RuntimeError as error:
        return f"network namespaces are not permitted: {error}"
    try:
        ip("-n", name, "link", "add", "switch", "type", "bridge")
        ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "other")
        command("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "one", "root", *_tbf(1e8))
    except RuntimeError as error:
        return f"links cannot be shaped: {error}"
    finally:
        ip("netns", "del", name)
    return None


def _tbf(bits_per_s: float) -> list[str]:
    return ["tbf", "rate", f"{bits_per_s:.0f}bit", "burst", "256kb", "latency", "50ms"]


class Pools:
    """Namespaces for `nodes` by name of the node: whether it is in the trainer's pool. A context manager.

    Args:
        nodes: name and whether it belongs to the trainer's pool.
        bits_per_s: of the link between the pools, in each direction.
    """

    def __init__(self, nodes: dict[str, bool], bits_per_s: float) -> None:
        self._nodes, self._bits_per_s = nodes, bits_per_s
        self._tag = f"rlplan-{os.getpid()}"
        self._made: list[str] = []

    def __enter__(self) -> Pools:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        between = self._add("between")
        for switch in ("trainer", "engines"):
            ip("-n", between, "link", "add", switch, "type", "bridge")
            ip("-n", between, "link", "set", switch, "up")
        ip("-n", between, "link", "add", TRAINER_LINK, "type", "veth", "peer", "name", ENGINE_LINK)
        for end, switch in ((TRAINER_LINK, "trainer"), (ENGINE_LINK, "engines")):
            self._plug(between, end, switch)
            command("ip", "netns", "exec", between, "tc", "qdisc", "add", "dev", end, "root", *_tbf(self._bits_per_s))
        for number, (node, of_trainer) in enumerate(self._nodes.items()):
            own = self._add(node)
            port = f"port{number}"
            ip("-n", between, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", own)
            self._plug(between, port, "trainer" if of_trainer else "engines")
            ip("-n", own, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", own, "link", "set", device, "up")

    def _add(self, name: str) -> str:
        full = f"{self._tag}-{name}"
        ip("netns", "add", full)
        self._made.append(full)
        return full

    def _plug(self, between: str, link: str, switch: str) -> None:
        ip("-n", between, "link", "set", link, "master", switch)
        ip("-n", between, "link", "set", link, "up")

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            ip("netns", "del", name)

    def address(self, node: str) -> str:
        """The address of a node."""
        return f"{NETWORK}.{list(self._nodes).index(node) + 1}"

    def within(self, node: str) -> Sequence[str]:
        """The words with which a command runs on a node."""
        return ("ip", "netns", "exec", f"{self._tag}-{node}")

    def crossed_bytes(self) -> int:
        """Bytes that have left the trainer's pool over the slow link, headers included."""
        found = json.loads(ip("-n", f"{self._tag}-between", "-s", "-j", "link", "show", TRAINER_LINK))
        return int(found[0]["stats64"]["tx"]["bytes"])
