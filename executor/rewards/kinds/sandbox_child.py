"""The program under which a response's code and the row's tests run; `code` starts it, nobody imports it.

Run as `python -I -S -B sandbox_child.py STATUS_FD` with an empty environment, a temporary folder as working directory
and one JSON object on stdin: `response`, `tests`, `token` (strings), `cpu_s`, `memory_bytes`, `file_bytes` (integers).

Three processes, because each can do what the others cannot:
- this one moves into new user, network, IPC and process-id namespaces where that is permitted;
- its child is process 1 of the process-id namespace: when it ends, the kernel ends whatever the response left behind,
  also what has escaped from the process group;
- its grandchild takes on the limits and runs the code.

On STATUS_FD it writes `{"notes": [...]}` and a newline when all is in place (before that, a failure is not the
response's), and `token` once the tests have ended without an exception. The exit code alone would prove nothing: a
response may call `os._exit(0)`. A response that hunts for the token in its own process can find it; this holds back a
policy that stumbles on a shortcut, not an attacker.

Standard library only, and little of it: every scored sample pays for these imports.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
import types

CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWIPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
# Numbers of the Landlock calls are the same on every architecture (linux/landlock.h, since Linux 5.13).
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
FS_WRITE_FILE, FS_TRUNCATE = 1 << 1, 1 << 14
# Everything that changes the file system in Landlock's first version: write, remove, make (bits 1 and 4 to 12).
FS_CHANGES_V1 = FS_WRITE_FILE | sum(1 << bit for bit in range(4, 13))
FS_REFER = 1 << 13

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, call: str) -> int:
    """Raise OSError with errno's reason if a C call failed; else pass its result on."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")
    return result


def put(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - pathlib costs more to import than this whole file
        file.write(text)


def isolate() -> list[str]:
    """Enter new namespaces; return the notes on what was not possible."""
    uid, gid = os.getuid(), os.getgid()
    try:
        check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC), "unshare")
    except OSError as error:
        return [f"sandbox: network and process ids are not isolated ({error.strerror})"]
    try:
        put("/proc/self/setgroups", "deny")
        # Not mapped to 0: a user other than root loses all capabilities of the namespace on exec and gets none back.
        put("/proc/self/uid_map", f"1000 {uid} 1")
        put("/proc/self/gid_map", f"1000 {gid} 1")
    except OSError as error:
        return [f"sandbox: user ids are not mapped ({error.strerror})"]
    return []


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that dies."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


class Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("fd", ctypes.c_int32)]


def lock_files(folder: str) -> list[str]:
    """Forbid by Landlock to change files outside `folder` (/dev/null aside); return notes on what was not possible."""
    version = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return [f"sandbox: files outside the temporary folder are not protected ({os.strerror(ctypes.get_errno())})"]
    truncate = FS_TRUNCATE if version >= 3 else 0
    changes = FS_CHANGES_V1 | (FS_REFER if version >= 2 else 0) | truncate
    # From version 4 also TCP bind and connect, from 6 also signals and abstract sockets that lead out of the sandbox.
    rules = Ruleset(changes, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    fd = check(
        libc.syscall(LANDLOCK_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), 0), "landlock_create_ruleset"
    )
    for path, access in ((folder, changes), ("/dev/null", FS_WRITE_FILE | truncate)):
        beneath = PathBeneath(access, os.open(path, os.O_PATH | os.O_CLOEXEC))
        check(libc.syscall(LANDLOCK_ADD_RULE, fd, 1, ctypes.byref(beneath), 0), "landlock_add_rule")
        os.close(beneath.fd)
    check(libc.syscall(LANDLOCK_RESTRICT_SELF, fd, 0), "landlock_restrict_self")
    os.close(fd)
    return []


def lower(which: int, value: int, hard_more: int = 0) -> None:
    """Lower a resource limit of this process to `value`, and its hard limit to `hard_more` above it."""
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value + hard_more))


def limit(cpu_s: int, memory_bytes: int, file_bytes: int, own_ids: bool) -> None:
    """Set the resource limits of this process and of all that it starts."""
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    if own_ids:
        # Only in a user namespace of its own: elsewhere the limit counts all of the user's processes, Ray's included.
        limits[resource.RLIMIT_NPROC] = 64
    for which, value in limits.items():
        # The hard CPU limit kills what ignores the soft one's SIGXCPU.
        lower(which, value, hard_more=1 if which == resource.RLIMIT_CPU else 0)


def run(response: str, tests: str, token: str, status: int) -> None:
    """Run the response, then the tests, in one module; never returns."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    code = 1
    try:
        exec(compile(response, "response.py", "exec"), module.__dict__)
        exec(compile(tests, "tests.py", "exec"), module.__dict__)
        os.write(status, token.encode())
        code = 0
    except SystemExit as error:
        print(f"SystemExit: {error.code} before the tests ended", file=sys.stderr)
    except BaseException:  # noqa: BLE001 - whatever the response raises is an answer, not an error of this program
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def mirror(pid: int) -> None:
    """Wait for `pid` and end as it ended: its exit code, or 128 + the signal that killed it."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def main() -> None:
    status = int(sys.argv[1])
    job = json.loads(sys.stdin.buffer.read())
    notes = isolate()
    own_ids = not notes
    die_with_parent()
    if first := os.fork():
        mirror(first)
    die_with_parent()
    if runner := os.fork():
        mirror(runner)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    notes += lock_files(".")
    limit(job["cpu_s"], job["memory_bytes"], job["file_bytes"], own_ids)
    os.write(status, json.dumps({"notes": notes}).encode() + b"\n")
    run(job["response"], job["tests"], job["token"], status)


if __name__ == "__main__":
    main()
