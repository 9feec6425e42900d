"""The host that this process runs on: its processor, as documents name it, and its place in the cluster."""

from __future__ import annotations

import platform
import socket
from pathlib import Path


def cpu_name() -> str:
    """Model name of the processor, or its architecture if the platform has no name for it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    return platform.machine()


def node_key() -> str:
    """Ray's id of the node that this process runs on; outside of Ray the host's name."""
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else socket.gethostname()


def node_address() -> str:
    """The address under which other nodes reach this process."""
    import ray

    if not ray.is_initialized():
        return socket.gethostbyname(socket.gethostname())
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
