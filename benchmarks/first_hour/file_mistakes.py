"""Mistakes about files: an input is no regular file, or a result cannot be written."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from .mistake import EXPORT, GROUP, READERS, REPORT, ROW_READERS, SHIPPED, SIMULATE, SOLVE, TUNE, Mistake


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 * 2**30)


def _socket(path: Path) -> None:
    # A socket's path may have 107 bytes, so the socket is bound by its name in its own folder.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "is missing": lambda path: None,
    "is a folder": lambda path: path.mkdir(),
    "is a pipe": lambda path: os.mkfifo(path),
    "leads to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "leads to /dev/null": lambda path: path.symlink_to("/dev/null"),
    "leads to /dev/random": lambda path: path.symlink_to("/dev/random"),
    "leads to itself": lambda path: path.symlink_to(path.name),
    "leads nowhere": lambda path: path.symlink_to("nowhere"),
    "leads to /proc/self/mem": lambda path: path.symlink_to("/proc/self/mem"),
    "is a socket": _socket,
    "has 20 GiB": _sparse,
}
"""Things that are no readable file, and how each is put at a path."""


def file_mistakes(rng: random.Random) -> Iterator[Mistake]:
    """Yield mistakes with something else in place of an input file, without end."""
    readers = {**READERS, **ROW_READERS}
    while True:
        name = rng.choice(list(readers))
        fault, make = rng.choice(list(NO_FILES.items()))
        yield replaced(name, fault, make, rng.choice(readers[name]))


def replaced(name: str, fault: str, make: Callable[[Path], None], command: tuple[str, ...]) -> Mistake:
    """The mistake that puts something else in place of the file `name` and runs `command`."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return Mistake(f"{name} {fault}", command, True, spoil)


LONG = "n" * 300
TARGETS: dict[str, str] = {
    "into a folder that is not there": "{at}/none/x",
    "onto a folder": "{at}/run",
    "into /proc": "/proc/x",
    "onto /proc": "/proc",
    "with a name of 300 bytes": f"{{at}}/{LONG}",
    "below a file": "{at}/notes.txt/x",
    "with a path of 5,000 bytes": "{at}/" + "n/" * 2500,
    "onto somebody's notes": "{at}/notes.txt",
    "onto an input": "{at}/job.yaml",
    "onto a document of another kind": "{at}/team.policy.yaml",
    "onto a device that is full": "/dev/full",
}
"""Targets that cannot, or must not, be written."""

_SHOW = ("show", "{at}/plan.yaml")
WRITERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (SOLVE, "--out"), (GROUP, "--out"), (SHIPPED, "--out"), (TUNE, "--out"), (EXPORT, "--out"), (_SHOW, "--html"),
    (_SHOW, "--timeline"), (SIMULATE, "--timeline"), (("show", "{at}/groups.yaml"), "--html"), (REPORT, "--html"),
)  # fmt: skip


def target_mistakes(rng: random.Random) -> Iterator[Mistake]:
    """Yield mistakes whose result cannot be written to its target, without end; full disks among them."""
    while True:
        command, option = rng.choice(WRITERS)
        if rng.random() < 0.15:
            arguments = command if option == "--out" else (*command, option, "{at}/new.out")
            yield Mistake("a full disk", arguments, True, file_bytes=rng.choice((0, 100, 5000)))
            continue
        fault, target = rng.choice(list(TARGETS.items()))
        yield Mistake(f"{option} {fault}", (*command, option, target), True)


def stdout_mistakes() -> Iterator[Mistake]:
    """Yield mistakes that send two results to standard output."""
    for command, option in WRITERS:
        yield Mistake(f"{option} - beside --json", (*command, option, "-", "--json"), True)
    yield Mistake("standard output for a folder", ("execute", "{at}/sync.yaml", "--dry-run", "--out", "-"), True)
