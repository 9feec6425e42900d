"""What holds a sample's processes: entered once by the starter, completed by each tester before it forks the response.

A host may permit less than all of it. What it lacks is left out and told (`lacks`), and whether the rest still holds a
response is said by `unconfined`; what was there when the starter tried it must be there for each sample, or the sample
is not run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from . import kernel, visible_files
from .kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    PR_SET_DUMPABLE,
    adopt_orphans,
    check,
    die_with_parent,
    drop_capabilities,
    fork_into,
    gain_no_privileges,
    hide_memory,
    libc,
)

NOBODY = 65534
ROOT, USER, NETWORK, IPC, FILES, PROCESSES, LANDLOCK, SIGNALS, CALLS = (
    "root", "user", "network", "ipc", "files", "processes", "landlock", "signals", "calls",
)  # fmt: skip
TOLD = {
    ROOT: "responses run as root, without its privileges; the kernel does not limit how many processes they start",
    USER: "there is no user namespace of its own; the kernel does not limit how many processes a response starts",
    NETWORK: "the network is not isolated, so that Internet sockets are refused",
    IPC: "System V memory and semaphores are not isolated",
    FILES: "there is no file system of its own: a response writes to this host's disk",
    PROCESSES: "process ids are not isolated",
    LANDLOCK: "files are not protected by Landlock",
    SIGNALS: "signals to other processes are not forbidden by Landlock",
    CALLS: "system calls are not filtered",
}
"""By part of the isolation, what is so where a host lacks it."""


def unconfined(lacks: dict[str, str], root: bool) -> str | None:
    """Why a host that lacks these parts of the isolation cannot hold a response, and what to do, in one line; None if
    it can. `root`: reward workers run as root.

    What holds it is a file system of its own; or Landlock, which keeps files from being read and written, with the
    filter of calls, which keeps their modes, owners, times and attributes (`kernel.OF_OTHERS_FILES`). Without these it
    reads or changes what the user can. What else a host lacks leaves files and verdicts safe, and is told alone.
    """
    missing = {LANDLOCK: "no Landlock", CALLS: "no filter of system calls"}
    without = [f"{what} ({lacks[part]})" for part, what in missing.items() if part in lacks]
    if FILES not in lacks or not without:
        return None
    whose = "root, if without its privileges," if root and ROOT in lacks else "this user"
    return (
        f"this host can hold no response: there is no file system of its own ({lacks[FILES]}), and "
        f"{' and '.join(without)}, so that its code would read or change what {whose} can; permit user namespaces "
        "(user.max_user_namespaces, a container's seccomp profile), or run reward workers on Linux 5.13 or later with "
        "Landlock and seccomp, or write sandbox: optional"
    )


class Isolation:
    """The parts of the isolation that this host has; made in the starter, whose forks inherit it.

    Args:
        folder: a new folder of the host, for the root directory or, where there can be none, for the working folders.
        without: parts to leave out, as if the host lacked them; for tests.
        packages: files and folders of installed packages that can be read, by name.
    """

    def __init__(
        self, folder: str, without: frozenset[str] = frozenset(), packages: dict[str, str] | None = None
    ) -> None:
        self._folder, self._without = folder, without
        self._packages = sorted((packages or {}).values())
        self.processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self._rules = -1
        self._filter = b""
        self.lacks: dict[str, str] = {}
        with open("/proc/self/statm") as file:  # noqa: PTH123
            self.own_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        """Address space of an interpreter with all that it finds imported."""

    def has(self, part: str) -> bool:
        """Whether a part was there when it was tried."""
        return part not in self.lacks

    def notes(self) -> list[str]:
        """One line for each part that this host lacks, with its reason."""
        told = TOLD if self.has(CALLS) else TOLD | {NETWORK: "the network is not isolated"}
        return [f"sandbox: {told[part]} ({reason})" for part, reason in self.lacks.items()]

    def enter(self) -> None:
        """In the starter: enter what all samples share. Ends in another root directory where the host permits it."""
        gain_no_privileges()
        root = os.getuid() == 0
        if root:
            self._try(FILES, lambda: visible_files.private_root(self._folder, self._packages))
            self._try(ROOT, self._leave_root)
        self._try(USER, self._new_user)
        die_with_parent()  # after what changes the user, which may cancel it
        self._try(NETWORK, lambda: _unshare(CLONE_NEWNET))
        self._try(IPC, lambda: _unshare(CLONE_NEWIPC))
        if not root or not self.has(FILES):
            self._try(FILES, lambda: visible_files.private_root(self._folder, self._packages))
        self._try(PROCESSES, _probe_process_ids)
        work = "/tmp" if self.has(FILES) else self._folder
        readable = ["/"] if self.has(FILES) else [*visible_files.needed(), *visible_files.DEVICES, *self._packages]
        self._try(LANDLOCK, lambda: self._set_rules(readable, [work, *visible_files.DEVICES[:2]]))
        if self.has(LANDLOCK):
            self._try(SIGNALS, _landlock_signals)
        else:
            self.lacks[SIGNALS] = self.lacks[LANDLOCK]
        self._try(CALLS, self._set_filter)
        if self.has(PROCESSES):
            self.lacks.pop(SIGNALS, None)  # process ids of others are not to be had
        adopt_orphans()
        hide_memory()

    def new_process(self) -> int:
        """`os.fork`, into a process-id namespace and a view of the files of its own where the host has them."""
        return fork_into((CLONE_NEWPID if self.has(PROCESSES) else 0) | (CLONE_NEWNS if self.has(FILES) else 0))

    def new_file_system(self) -> None:
        """In the tester: an empty file system for the sample's working folder, where the host permits it."""
        if self.has(FILES):
            visible_files.mount_work()

    def new_folder(self, number: int) -> str:
        """In the tester: the path of sample `number`'s working folder, which is new."""
        if self.has(FILES):
            return visible_files.WORK
        # Not before the sample's turn comes: the response before it could reach this folder.
        path = f"{self._folder}/{number}"
        os.mkdir(path, 0o700)  # noqa: PTH102 - see the package: few imports
        return path

    def remove_folder(self, number: int) -> None:
        """Remove sample `number`'s working folder, which lies on the host's disk."""
        visible_files.clear(f"{self._folder}/{number}")

    def close_in(self) -> None:
        """In the tester, which the response's process is forked from then: give up what the starter may do."""
        if self.has(LANDLOCK):
            visible_files.restrict(self._rules)
        drop_capabilities()
        if self.has(CALLS):
            kernel.install(self._filter)

    def close_in_response(self) -> None:
        """In the process that runs the response's code, on top: nothing of the tester is in reach."""
        if self.has(LANDLOCK):
            visible_files.restrict(self._rules)
            os.close(self._rules)
        if not self.has(PROCESSES) and self.has(CALLS):
            kernel.install(kernel.own_signals_only())

    def keep(self) -> tuple[int, ...]:
        """Descriptors that are needed to close a process in."""
        return (self._rules,) if self._rules >= 0 else ()

    def _try(self, part: str, act: Callable[[], None]) -> None:
        if part in self._without:
            self.lacks[part] = "left out"
            return
        self.lacks.pop(part, None)
        try:
            act()
        except OSError as error:
            self.lacks[part] = error.strerror or str(error)

    def _new_user(self) -> None:
        uid, gid = os.getuid(), os.getgid()
        # Files of a process that hides its memory are root's, and these two must be written.
        check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")
        _unshare(CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
            file = os.open(f"self/{name}", os.O_WRONLY, dir_fd=self.processes)
            os.write(file, text.encode())
            os.close(file)

    def _leave_root(self) -> None:
        """Become nobody, whose processes are counted and who owns no file; not where nobody could do less than root."""
        if USER in self._without:
            raise OSError("there is no user namespace")
        pid = os.fork()
        if pid == 0:
            try:
                _become_nobody()
                for path in (os.__file__, os.path.realpath(sys.executable)):
                    os.close(os.open(path, os.O_RDONLY))
                _unshare(CLONE_NEWUSER)
                os._exit(0)
            except OSError:
                os._exit(1)
        if os.waitpid(pid, 0)[1]:
            raise OSError("another user may not read Python's library, or has no user namespaces")
        if os.path.isdir(self._folder):  # noqa: PTH112
            os.chown(self._folder, NOBODY, NOBODY)
        _become_nobody()

    def _set_rules(self, readable: list[str], writable: list[str]) -> None:
        self._rules = visible_files.ruleset(readable, [path for path in writable if os.path.exists(path)])  # noqa: PTH110

    def _set_filter(self) -> None:
        """Put the starter, and so all that it forks, under the large filter, and make the small one for testers."""
        self._filter = kernel.set_up_only()
        kernel.install(kernel.program(self.has(NETWORK), self.has(FILES)))


def _landlock_signals() -> None:
    if visible_files.landlock_version() < visible_files.SIGNALS_SINCE:
        raise OSError(f"Landlock version {visible_files.landlock_version()}; 6 forbids them")


def _unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _probe_process_ids() -> None:
    pid = fork_into(CLONE_NEWPID)
    if pid == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    if os.waitpid(pid, 0)[1]:
        raise OSError("the first process of a new namespace is not process 1")
