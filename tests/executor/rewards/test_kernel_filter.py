"""Which system calls a sandbox's filters refuse: the programs are run here, on numbers from the kernel's headers."""

import errno
import re
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlplan.executor.rewards.sandbox import kernel

HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
ALLOWED, REFUSED, UNKNOWN = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
PRIVATE, SHARED, ANONYMOUS = 2, 1, 0x20


@pytest.fixture(params=HEADERS)
def call(request, monkeypatch):
    """Makes the verdict of a program on a call, on this machine or as if on the other."""
    header = Path("/usr/include") / HEADERS[request.param]
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    numbers = {
        name: int(value) for name, value in re.findall(r"define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    }
    machine = request.param
    monkeypatch.setattr(kernel.os, "uname", lambda: SimpleNamespace(machine=machine))

    def verdict(program, name, *arguments, machine=machine, offset=0):
        number = numbers[name] + offset if isinstance(name, str) else name
        words = [number, kernel.ARCHITECTURES[machine][0], 0, 0, *(w for a in arguments for w in (a, 0)), *[0] * 12]
        data, at, value = struct.pack(f"={len(words)}I", *words), 0, 0
        steps = list(struct.iter_unpack("=HBBI", program))
        while True:
            code, if_true, if_false, k = steps[at]
            at += 1
            if code == 0x20:
                value = struct.unpack_from("=I", data, k)[0]
            elif code == 0x54:
                value &= k
            elif code == 0x06:
                return k
            else:
                holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]
                at += if_true if holds else if_false

    verdict.machine = machine
    return verdict


def test_calls_that_no_response_needs_are_refused_and_others_are_not(call):
    program = kernel.program(own_network=True)
    for name in sorted({*kernel.DENIED} - {*kernel.SET_UP}):
        assert call(program, name) == REFUSED, name
    for name in ("read", "write", "openat", "execve", "exit_group", "futex", "mount", "getpid", "kill"):
        assert call(program, name) == ALLOWED, name
    assert call(program, "clone3") == UNKNOWN, "the C library takes clone instead"
    other = next(machine for machine in HEADERS if machine != call.machine)
    assert call(program, "read", machine=other) == REFUSED, "calls of other architectures"
    if call.machine == "x86_64":
        assert call(program, "read", offset=0x40000000) == REFUSED, "the same calls by other numbers"
        assert {call(program, name) for name in ("iopl", "ioperm", "inotify_init")} == {REFUSED}


def test_only_private_memory_and_sockets_that_limits_count_are_to_be_had(call):
    program, alone = kernel.program(own_network=True), kernel.program(own_network=False)
    for flags, verdict in (
        (PRIVATE | ANONYMOUS, ALLOWED), (SHARED | ANONYMOUS, REFUSED), (PRIVATE, ALLOWED), (SHARED, ALLOWED)
    ):  # fmt: skip
        assert call(program, "mmap", 0, 4096, 3, flags) == verdict, flags
    for family, isolated, shared in (
        (socket.AF_INET, ALLOWED, REFUSED), (socket.AF_INET6, ALLOWED, REFUSED), (socket.AF_UNIX, REFUSED, REFUSED),
        (socket.AF_NETLINK, REFUSED, REFUSED),
    ):  # fmt: skip
        assert (call(program, "socket", family, 1), call(alone, "socket", family, 1)) == (isolated, shared), family
    for arguments, verdict in (
        ((socket.AF_UNIX, socket.SOCK_STREAM), ALLOWED), ((socket.AF_UNIX, socket.SOCK_DGRAM), REFUSED),
        ((socket.AF_INET, socket.SOCK_STREAM), REFUSED),
    ):  # fmt: skip
        assert call(program, "socketpair", *arguments) == verdict, arguments
    for level, option, verdict in (
        (socket.SOL_SOCKET, socket.SO_SNDBUF, REFUSED), (socket.SOL_SOCKET, socket.SO_RCVBUF, REFUSED),
        (socket.SOL_SOCKET, socket.SO_REUSEADDR, ALLOWED), (socket.IPPROTO_TCP, socket.SO_SNDBUF, ALLOWED),
    ):  # fmt: skip
        assert call(program, "setsockopt", 3, level, option) == verdict, (level, option)


def test_testers_make_namespaces_no_more_and_signals_stay_at_home(call, monkeypatch):
    program = kernel.set_up_only()
    assert (call(program, "mount"), call(program, "read"), call(program, "clone", 0x11)) == (REFUSED, ALLOWED, ALLOWED)
    for flag in (kernel.CLONE_NEWNS, kernel.CLONE_NEWUSER, kernel.CLONE_NEWNET, kernel.CLONE_NEWIPC, 0x80):
        assert call(program, "clone", flag | 0x11) == REFUSED, hex(flag)
    monkeypatch.setattr(kernel.os, "getpid", lambda: 7)
    program = kernel.own_signals_only()
    for name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        assert (call(program, name, 7), call(program, name, 8)) == (ALLOWED, REFUSED), name
    assert (call(program, "pidfd_send_signal", 7), call(program, "read")) == (REFUSED, ALLOWED)
    monkeypatch.setattr(kernel.os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    with pytest.raises(OSError, match="calls on riscv64 are not known"):
        kernel.program(own_network=True)
