"""Which files a process sees, reads and changes: a root directory of its own, and Landlock's rules.

The root directory holds the interpreter, the system's programs and libraries, a few devices, and nothing else of the
host; all of it can only be read. Landlock says the same once more, from now on and with all that the process starts.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from .kernel import (
    CAP_PERFMON,
    CAP_SYS_ADMIN,
    CAP_SYS_PTRACE,
    CLONE_NEWNS,
    check,
    drop_capabilities,
    gain_no_privileges,
    libc,
)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_NOATIME, MS_BIND, MS_REC, MS_PRIVATE = (
    1, 2, 4, 8, 32, 1024, 4096, 16384, 1 << 18,
)  # fmt: skip
MS_NODIRATIME, MS_RELATIME, MNT_DETACH = 2048, 1 << 21, 2
FOLDER_BYTES, FOLDER_FILES = 64 << 20, 4096
"""What a response may write in all, where it has a file system of its own; it lies in memory."""
SYSTEM = (
    "/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/libexec",
    "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Not /dev/zero: to map it is to share memory that no limit counts (`kernel`)."""
WORK = "/tmp/sandbox"

# Numbers of the calls are the same on every architecture (linux/landlock.h, since Linux 5.13).
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REFER, TRUNCATE, IOCTL = (1 << bit for bit in (0, 1, 2, 3, 13, 14, 15))
REFER_SINCE = 2
READS = EXECUTE | READ_FILE | READ_DIR
# Everything that changes the file system in Landlock's first version: write, remove, make (bits 1 and 4 to 12).
CHANGES_V1 = WRITE_FILE | sum(1 << bit for bit in range(4, 13))
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
TCP, SIGNALS_AND_SOCKETS = 0b11, 0b11
SIGNALS_SINCE = 6


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("fd", ctypes.c_int32)]


def landlock_version() -> int:
    """Landlock's version on this host. Raises `OSError` if it has none."""
    return check(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1), "landlock_create_ruleset")


def ruleset(readable: list[str], writable: list[str]) -> int:
    """A descriptor of rules: nothing is read but below `readable`, nothing changed but below `writable`.

    From version 4 on they also forbid to bind and connect TCP sockets; from 6 on signals and abstract sockets that
    lead out of the processes under these rules. Raises `OSError` if the host has no Landlock.
    """
    known = landlock_version()
    changes = CHANGES_V1 | (REFER if known >= REFER_SINCE else 0) | (TRUNCATE if known >= 3 else 0)
    handled = READS | changes | (IOCTL if known >= 5 else 0)
    rules = _Ruleset(handled, TCP if known >= 4 else 0, SIGNALS_AND_SOCKETS if known >= SIGNALS_SINCE else 0)
    fd = _ruleset(rules, 24 if known >= SIGNALS_SINCE else 16 if known >= 4 else 8)
    for paths, access in ((readable, READS), (writable, READS | changes)):
        for path in paths:
            wanted = access if os.path.isdir(path) else access & OF_FILES  # noqa: PTH112 - see the package: few imports
            _permit(fd, path, wanted & handled)
    return fd


def own_processes_only() -> None:
    """Forbid this process, and all that it starts, to look into processes that it did not start: their environment,
    memory, descriptors. Files stay as they are; no mounts are made and no program gains privileges from now on.

    Raises `OSError` if the host has no Landlock that leaves files alone (Linux 5.19).
    """
    if landlock_version() < REFER_SINCE:  # the first one forbids to move files between folders
        raise OSError("Landlock is too old")
    gain_no_privileges()
    fd = _ruleset(_Ruleset(REFER, 0, 0), 8)
    _permit(fd, "/", REFER)
    restrict(fd)
    os.close(fd)
    drop_capabilities(CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON)


def _ruleset(rules: _Ruleset, size: int) -> int:
    return check(libc.syscall(CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), 0), "landlock_create_ruleset")


def _permit(ruleset: int, path: str, access: int) -> None:
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = _PathBeneath(access, beneath)
    check(libc.syscall(ADD_RULE, ruleset, 1, ctypes.byref(rule), 0), "landlock_add_rule")
    os.close(beneath)


def restrict(fd: int) -> None:
    """Put this process under the rules. A second time nests: what is inside cannot signal or trace what is not."""
    check(libc.syscall(RESTRICT_SELF, fd, 0), "landlock_restrict_self")


def private_root(root: str, packages: list[str]) -> None:
    """Enter a mount namespace whose root directory is made at `root`, an empty folder. Raises `OSError`.

    `packages`: files and folders of installed packages that are there too.
    """
    check(libc.unshare(CLONE_NEWNS), "unshare")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount(b"tmpfs", root, b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m,mode=755")
    shown = needed()
    for path in shown + list(DEVICES):
        _show(path, root + path)
    hides = _packages_in(shown)
    for hidden in hides:
        mount(b"tmpfs", root + hidden, b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m,mode=755")
    for path in packages:
        _show(path, root + path)
    for hidden in hides:
        mount(None, root + hidden, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.makedirs(f"{root}{WORK}", 0o700, exist_ok=True)  # noqa: PTH103
    os.mkdir(f"{root}/.host")  # noqa: PTH102
    check(libc.syscall(_PIVOT_ROOT[os.uname().machine], root.encode(), f"{root}/.host".encode()), "pivot_root")
    os.chdir("/")
    check(libc.umount2(b"/.host", MNT_DETACH), "umount2")
    os.rmdir("/.host")  # noqa: PTH106
    mount(None, "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def mount_work() -> None:
    """An empty file system in memory at `WORK`, in a mount namespace of its own. Raises `OSError`."""
    options = f"size={FOLDER_BYTES},nr_inodes={FOLDER_FILES},mode=700".encode()
    mount(b"tmpfs", WORK, b"tmpfs", MS_NOSUID | MS_NODEV, options)


def needed() -> list[str]:
    """Files and folders of the host that running Python needs; none of them lies below another."""
    own = (f"{sys.base_prefix}/lib", os.path.realpath(sys.executable))
    libraries = {os.path.dirname(line.split()[-1]) for line in _maps() if ".so" in line}  # noqa: PTH120
    found: list[str] = []
    for path in sorted({*SYSTEM, *own, *libraries}):
        real = os.path.realpath(path)
        # A link, /bin to usr/bin, is shown as such; what it leads to is in the list itself.
        shown = path if os.path.islink(path) else real  # noqa: PTH114
        if os.path.exists(real) and not any(shown == p or shown.startswith(p + "/") for p in found):  # noqa: PTH110
            found.append(shown)
    return found


def _maps() -> list[str]:
    with open("/proc/self/maps") as file:  # noqa: PTH123
        return [line for line in file if "/" in line]


def _packages_in(paths: list[str]) -> list[str]:
    """Folders of installed packages below `paths`: no response needs them."""
    found = []
    for path in {p for p in sys.path if p.startswith("/")}:
        for name in ("site-packages", "dist-packages"):
            if os.path.isdir(f"{path}/{name}") and any(path.startswith(p) for p in paths):  # noqa: PTH112
                found.append(f"{path}/{name}")
    return sorted(found)


class PackageFinder:
    """Finds the modules of the stated packages, and no others that are installed beside them.

    Args:
        files: by name of a top-level module or of a package's description (`….dist-info`), where it is.
    """

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The import system's question."""
        from importlib.machinery import ModuleSpec
        from importlib.util import spec_from_file_location

        found = self._files.get(name) if path is None else None
        if found is None or not os.path.isdir(found):  # noqa: PTH112
            return spec_from_file_location(name, found) if found else None
        if os.path.exists(f"{found}/__init__.py"):  # noqa: PTH110
            return spec_from_file_location(name, f"{found}/__init__.py", submodule_search_locations=[found])
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [found]
        return spec

    def find_distributions(self, context: Any) -> Any:
        """What `importlib.metadata` asks."""
        from importlib.metadata import PathDistribution
        from pathlib import Path

        wanted = (context.name or "").lower().replace("-", "_")
        for name, path in self._files.items():
            if name.endswith("-info") and (not wanted or name.lower().startswith(wanted + "-")):
                yield PathDistribution(Path(path))

    def invalidate_caches(self) -> None:
        """Nothing is cached."""


def _show(path: str, target: str) -> None:
    """Make the host's `path` visible at `target`, to be read only."""
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    if os.path.islink(path):  # noqa: PTH114
        os.symlink(os.readlink(path), target)  # noqa: PTH115, PTH211
        return
    if os.path.isdir(path):  # noqa: PTH112
        os.mkdir(target)  # noqa: PTH102
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    mount(path.encode(), target, None, MS_BIND | MS_REC)
    if path not in DEVICES:
        # What is locked on the host's mount must be asked for again.
        mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | _locked(target))


def _locked(path: str) -> int:
    of_mount = os.statvfs(path).f_flag
    pairs = (
        (os.ST_NODEV, MS_NODEV), (os.ST_NOEXEC, MS_NOEXEC), (os.ST_NOATIME, MS_NOATIME),
        (os.ST_NODIRATIME, MS_NODIRATIME), (os.ST_RELATIME, MS_RELATIME),
    )  # fmt: skip
    return sum(flag for bit, flag in pairs if of_mount & bit)


def mount(source: bytes | None, target: str, kind: bytes | None, flags: int, options: bytes | None = None) -> None:
    """mount(2). Raises `OSError`."""
    result = libc.mount(source, target.encode(), kind, ctypes.c_ulong(flags), options)
    check(result, f"mount {target}")


def clear(path: str) -> None:
    """Remove a folder and all below it, however deep that is; what cannot be removed stays.

    No process may be there that moves folders meanwhile. `shutil.rmtree` calls itself for each level, and gives up.
    """
    try:
        here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        waiting = [_only_folders(here)]  # by level, from `path` down to `here`
        while waiting:
            if waiting[-1]:
                name, inner = waiting[-1][-1], here
                os.chmod(name, 0o700, dir_fd=inner)
                here = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inner)
                os.close(inner)
                waiting.append(_only_folders(here))
            elif not waiting.pop() and waiting:
                inner, here = here, os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
                os.close(inner)
                os.rmdir(waiting[-1].pop(), dir_fd=here)
        os.rmdir(path)  # noqa: PTH106
    except OSError:
        return  # a disk that is broken, or full of what another user owns
    finally:
        os.close(here)


def _only_folders(folder: int) -> list[str]:
    """Remove what is no folder from the folder of this descriptor; the names of what is left."""
    found = []
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            found.append(entry.name)
        else:
            os.unlink(entry.name, dir_fd=folder)
    return found
