"""Calls to the Linux kernel that Python's library does not have, and limits of a process."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
CLONE_NEWNET, CLONE_NEWIPC = 0x40000000, 0x08000000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
CLONE_CALL = {"x86_64": 56, "aarch64": 220}
CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)
# Keeps the interpreter's lock during the call, as a fork must.
_locked_libc = ctypes.PyDLL(None, use_errno=True)


def check(result: int, call: str) -> int:
    """Raise OSError with errno's reason if a C call failed; else pass its result on."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")
    return result


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that dies."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def gain_no_privileges() -> None:
    """No program that this process or its children execute gets more privileges than they have."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def hide_memory() -> None:
    """Forbid other processes of the user to trace this one and its later forks, or to read and write their memory."""
    check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def drop_capabilities() -> None:
    """Give up all capabilities; without new privileges no execve brings them back."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    check(libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


def fork_into(flags: int) -> int:
    """`os.fork` whose child is the first process of new namespaces (`CLONE_NEW…`); call with one thread only."""
    if not flags:
        return os.fork()
    call = CLONE_CALL.get(os.uname().machine)
    if call is None:
        raise OSError(f"clone's number on {os.uname().machine} is not known here")
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = int(_locked_libc.syscall(call, ctypes.c_ulong(flags | signal.SIGCHLD), None, None, None, None))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        error = ctypes.get_errno()
        python.PyOS_AfterFork_Parent()
        ctypes.set_errno(error)
    return check(pid, "clone")


def lower(which: int, value: int, hard_more: int = 0) -> None:
    """Lower a resource limit of this process to `value`, and its hard limit to `hard_more` above it."""
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    most = value + hard_more
    resource.setrlimit(which, (value, most if hard == resource.RLIM_INFINITY else min(most, hard)))


def limit(cpu_s: int, memory_bytes: int, file_bytes: int, own_ids: bool) -> None:
    """Set the resource limits of this process and of all that it starts; `own_ids`: it is in a user namespace."""
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    if own_ids:
        # Only in a user namespace of its own: elsewhere the limit counts all of the user's processes, Ray's included.
        limits[resource.RLIMIT_NPROC] = 64
    for which, value in limits.items():
        # The hard CPU limit kills what ignores the soft one's SIGXCPU.
        lower(which, value, hard_more=1 if which == resource.RLIMIT_CPU else 0)
