"""Calls to the Linux kernel that Python's library does not have, limits of a process, and calls that are refused.

What is refused are calls that no response needs and that have harmed hosts; the kernel answers them with EPERM. The
filter (seccomp) is a program for the kernel's packet filter (BPF) that sees a call's number and arguments
(Documentation/userspace-api/seccomp_filter.rst). It stays with all that the process starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
import struct

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
CLONE_NEWNET, CLONE_NEWIPC = 0x40000000, 0x08000000
PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 3, 4, 36, 38
CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 19, 21, 38
"""What lets root look into any process (the last two since Linux 6.14)."""
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


def adopt_orphans() -> None:
    """Have what processes below this one leave behind become children of this process."""
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def close_all_but(*kept: int) -> None:
    """Close all descriptors but the three standard ones and these; a negative one is none."""
    first = 3
    for each in sorted(each for each in kept if each >= first):
        os.closerange(first, each)
        first = each + 1
    os.closerange(first, 4096)


def killed_by(code: int) -> str:
    """`killed by SIGKILL` for the exit code of a process that a signal ended; "" for any other."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 and -code in signal.valid_signals() else ""


def gain_no_privileges() -> None:
    """No program that this process or its children execute gets more privileges than they have."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def hide_memory() -> None:
    """Forbid other processes of the user to trace this one and its later forks, or to read and write their memory."""
    check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def show_memory() -> None:
    """Take back `hide_memory`."""
    check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")


def hides_memory() -> bool:
    """Whether `hide_memory` was called in this process."""
    return bool(libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0)


def drop_capabilities(*only: int) -> None:
    """Give up capabilities, all if none is named; without new privileges no execve brings them back."""
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if only:
        check(libc.capget(ctypes.byref(header), ctypes.byref(sets)), "capget")
    for each in only:
        for kind in range(3):  # effective, permitted, inheritable: 32 of each, then the others
            sets[each // 32 * 3 + kind] &= ~(1 << each % 32)
    check(libc.capset(ctypes.byref(header), ctypes.byref(sets)), "capset")


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
        resource.RLIMIT_NOFILE: 32,
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


# ---- the filter ----

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, AND, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_BITS, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
AT_NUMBER, AT_ARCHITECTURE, AT_ARGUMENTS = 0, 4, 16
X32_CALLS = 0x40000000
"""x86-64 takes the same calls under a second set of numbers, from this one on; they would go round the filter."""
NEW_NAMESPACES = 0x7E020080
"""All CLONE_NEW… flags."""

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""By machine: the kernel's number for it, and the column below. Others have no filter here."""

# fmt: off
DENIED = {
    # other processes: their memory, descriptors, placement
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "perf_event_open": (298, 241),
    # file systems
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "inotify_init1": (294, 26),
    # namespaces
    "unshare": (272, 97), "setns": (308, 268),
    # large and rarely checked parts of the kernel
    "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # memory and objects that no limit of a process counts
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "vmsplice": (278, 75), "io_setup": (206, 0),
    # the host
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "delete_module": (176, 106),
    "finit_module": (313, 273), "reboot": (169, 142), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "vhangup": (153, 58), "personality": (135, 92),
}
# What changes a file that cannot be written: Landlock leaves all of it free but truncate, which it has since version 3.
OF_OTHERS_FILES = {
    "truncate": (76, 45), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchown": (93, 55),
    "fchownat": (260, 54), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}
OF_OTHERS_FILES_ON_X86 = {"chmod": 90, "chown": 92, "lchown": 94, "utime": 132, "utimes": 235, "futimesat": 261}
SET_UP = ("mount",)
CLONE, CLONE3, SOCKET, SOCKET_PAIR = (56, 220), (435, 435), (41, 198), (53, 199)
SET_SOCKET_OPTION, MMAP = (54, 208), (9, 222)
MAP_KIND, MAP_PRIVATE, MAP_ANONYMOUS = 0x0F, 0x02, 0x20
SIGNALS = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "pidfd_send_signal": (424, 424),
           "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)}
OLD_ON_X86 = {"iopl": 172, "ioperm": 173, "inotify_init": 253}
# fmt: on


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _deny(number: int) -> bytes:
    """The call of this number is refused; the number is what was loaded last, before and after."""
    return _step(JUMP_EQUAL, number, 0, 1) + _step(RETURN, ERRNO | errno.EPERM)


def _unless_arguments(number: int, allowed: dict[int, tuple[int, ...]]) -> bytes:
    """The call is refused unless each of these arguments (counted from 0) is one of those values."""
    inside = b""
    for argument, values in allowed.items():
        tests = b"".join(_step(JUMP_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values))
        inside += _step(LOAD, AT_ARGUMENTS + 8 * argument) + tests + _step(RETURN, ERRNO | errno.EPERM)
    inside += _step(RETURN, ALLOW)
    return _step(JUMP_EQUAL, number, 0, len(inside) // 8) + inside


def _no_shared_memory(number: int) -> bytes:
    """Memory that a process shares with those that it forks stays taken when they no longer map it, uncounted."""
    inside = _step(LOAD, AT_ARGUMENTS + 8 * 3) + _step(JUMP_BITS, MAP_ANONYMOUS, 0, 3) + _step(AND, MAP_KIND)
    inside += _step(JUMP_EQUAL, MAP_PRIVATE, 1, 0) + _step(RETURN, ERRNO | errno.EPERM) + _step(RETURN, ALLOW)
    return _step(JUMP_EQUAL, number, 0, len(inside) // 8) + inside


def _no_larger_buffers(number: int) -> bytes:
    """What a socket holds counts for no process; its buffers stay as large as they are."""
    inside = _step(LOAD, AT_ARGUMENTS + 8) + _step(JUMP_EQUAL, socket.SOL_SOCKET, 0, 4)
    inside += _step(LOAD, AT_ARGUMENTS + 16) + _step(JUMP_EQUAL, socket.SO_SNDBUF, 1, 0)
    inside += _step(JUMP_EQUAL, socket.SO_RCVBUF, 0, 1) + _step(RETURN, ERRNO | errno.EPERM) + _step(RETURN, ALLOW)
    return _step(JUMP_EQUAL, number, 0, len(inside) // 8) + inside


def _head(architecture: int) -> bytes:
    """Refuse calls of other architectures; then load the number."""
    head = _step(LOAD, AT_ARCHITECTURE) + _step(JUMP_EQUAL, architecture, 1, 0) + _step(RETURN, ERRNO | errno.EPERM)
    return head + _step(LOAD, AT_NUMBER)


def program(own_network: bool, own_files: bool = True) -> bytes:
    """The filter for this machine, but for what `set_up_only` adds.

    `own_network`: the process has a network namespace, so Internet sockets lead nowhere; else there are none to be had.
    `own_files`: it has a file system of its own; else no file's mode, owner, times or attributes can be changed.
    Of Unix sockets there are pairs of streams only: one of datagrams holds much more than its buffer.
    Raises `OSError` on a machine whose calls are not known here.
    """
    architecture, column = _machine()
    text = _head(architecture)
    if column == 0:
        text += _step(JUMP_AT_LEAST, X32_CALLS, 0, 1) + _step(RETURN, ERRNO | errno.EPERM)
        text += b"".join(map(_deny, OLD_ON_X86.values()))
    text += b"".join(_deny(numbers[column]) for name, numbers in DENIED.items() if name not in SET_UP)
    if not own_files:
        text += b"".join(_deny(numbers[column]) for numbers in OF_OTHERS_FILES.values())
        text += b"".join(map(_deny, OF_OTHERS_FILES_ON_X86.values() if column == 0 else ()))
    # Its flags lie in memory, which a filter cannot read. ENOSYS makes the C library take `clone` instead.
    text += _step(JUMP_EQUAL, CLONE3[column], 0, 1) + _step(RETURN, ERRNO | errno.ENOSYS)
    families = (int(socket.AF_INET), int(socket.AF_INET6)) * own_network
    text += _unless_arguments(SOCKET[column], {0: families})
    stream, modes = int(socket.SOCK_STREAM), (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK)
    kinds = (*(stream | mode for mode in modes), stream | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    text += _unless_arguments(SOCKET_PAIR[column], {0: (int(socket.AF_UNIX),), 1: kinds})
    text += _no_shared_memory(MMAP[column]) + _no_larger_buffers(SET_SOCKET_OPTION[column])
    return text + _step(RETURN, ALLOW)


def set_up_only() -> bytes:
    """A filter of the calls that a tester makes before it forks the response's process, and nobody after that."""
    architecture, column = _machine()
    text = _head(architecture) + b"".join(_deny(DENIED[name][column]) for name in SET_UP)
    clone = _step(LOAD, AT_ARGUMENTS) + _step(JUMP_BITS, NEW_NAMESPACES, 0, 1) + _step(RETURN, ERRNO | errno.EPERM)
    clone += _step(RETURN, ALLOW)
    text += _step(JUMP_EQUAL, CLONE[column], 0, len(clone) // 8) + clone
    return text + _step(RETURN, ALLOW)


def own_signals_only() -> bytes:
    """A filter by which this process signals itself only; for hosts without process-id namespaces."""
    architecture, column = _machine()
    text = _head(architecture)
    for name, numbers in SIGNALS.items():
        text += (
            _deny(numbers[column])
            if name.startswith("pidfd")
            else _unless_arguments(numbers[column], {0: (os.getpid(),)})
        )
    return text + _step(RETURN, ALLOW)


def install(text: bytes) -> None:
    """Put this process under a filter, for ever. Raises `OSError` if the host has no seccomp."""
    buffer = ctypes.create_string_buffer(text, len(text))
    filter_ = _Program(len(text) // 8, ctypes.addressof(buffer))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0), "seccomp")


def _machine() -> tuple[int, int]:
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(f"the numbers of system calls on {machine} are not known here")
    return ARCHITECTURES[machine]
