"""One mistake in a process of its own, forked from this one: its exit code, its output, the files that it wrote.

A fork starts at once; a new process would import modules for a second. It may take 10 s of CPU, a minute in all, and
1 GB of memory beyond what it starts with. A process that takes longer is killed and counted as endless.
"""

from __future__ import annotations

import os
import re
import resource
import selectors
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from rlplan.cli.manual import PAGES

from .mistake import Mistake

LIMIT_CPU_S = 10
LIMIT_S = 60.0
LIMIT_BYTES = 10**9
_MOST_SAID = 1 << 20
_ASIDE = re.compile(r"(warning|note|solving|profile): ")
"""Lines on standard error that are allowed beside the error line."""


@dataclass(frozen=True)
class Outcome:
    """How a command answered a mistake; `faults` names each way in which that is not as documented."""

    mistake: Mistake
    code: int | None
    seconds: float
    peak_bytes: int  # beyond what the process starts with
    output: str
    faults: tuple[str, ...] = field(default=())

    @property
    def refused(self) -> bool:
        """Whether the command refused the mistake."""
        return self.code != 0


def documented(command: str) -> set[int]:
    """Exit codes that a command's manual names; 2 is bad input everywhere, 1 the machine's fault everywhere."""
    page = PAGES.get(command)
    return {0, 2} if page is None else {2, *map(int, re.findall(r"(?<!\d)(?:130|[0-3])(?= )", page.exits))}


def attempt(mistake: Mistake, ground: Path, home: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Make `mistake` in `home`, a temporary copy of the sample folder `ground`; its outcome."""
    shutil.copytree(ground, home, symlinks=True)
    try:
        mistake.spoil(home)
        before = _listing(home)
        arguments = [argument.replace("{at}", str(home)) for argument in mistake.command]
        status, out, err, seconds, peak = _forked(arguments, home, limit_s, mistake.file_bytes)
        code = None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        checked_bad = ""
        if code == 0 and arguments[0] == "solve" and (home / "new.yaml").is_file():
            again, check_text, _, _, _ = _forked(["check", str(home / "new.yaml")], home, limit_s, None)
            checked_bad = check_text if os.waitstatus_to_exitcode(again) else ""
        faults = tuple(_faults(mistake, arguments[0], status, code, out, err, seconds, peak, limit_s, checked_bad))
        if code != 0 and _listing(home) != before:
            faults = (*faults, "written")
        output = (err or out).strip().replace(str(home), "…")
        return Outcome(mistake, code, seconds, peak, (checked_bad.replace(str(home), "…") or output)[-600:], faults)
    finally:
        shutil.rmtree(home)


def _faults(
    mistake: Mistake, command: str, status: int, code: int | None, out: str, err: str, seconds: float, peak: int,
    limit_s: float, checked_bad: str,
) -> list[str]:  # fmt: skip
    faults = []
    if code is None:
        late = os.WTERMSIG(status) == signal.SIGXCPU or seconds >= limit_s
        return ["endless" if late else "killed"]
    if peak > LIMIT_BYTES:
        faults.append("memory")
    if "Traceback (most recent call last)" in err + out:
        return [*faults, "traceback"]
    if code not in documented(command):
        faults.append("exit code")
    lines = [line for line in err.splitlines() if line.strip() and not _ASIDE.match(line)]
    reports = command == "check" and bool(out.strip()) and not lines  # findings are check's result
    # Bad input has a line for each fault; an infeasible job has one line.
    told = lines and all(line.startswith("error: ") for line in lines)
    infeasible = len(lines) == 1 and lines[0].startswith("no feasible plan: ")
    if code in (2, 3) and not reports and not told and not infeasible:
        faults.append("not one line")
    if code == 0 and mistake.sure:
        faults.append("taken")
    if checked_bad:
        faults.append("checked bad")
    return faults


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below the folder: files with size and time of change, others with zeros."""
    listing = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        regular = path.is_file() and not path.is_symlink()
        listing[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns) if regular else (0, 0)
    return listing


def _forked(
    arguments: list[str], folder: Path, limit_s: float, file_bytes: int | None
) -> tuple[int, str, str, float, int]:
    """Run `rlplan ARGUMENTS` in a fork; (wait status, standard output, standard error, seconds, peak bytes).

    The peak is what the fork took beyond the memory that this process holds: a fork's own peak starts with that.
    """
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    started_with = _statm_bytes(1)
    child = os.fork()
    if not child:
        os.dup2(out_write, 1)
        os.dup2(err_write, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _run_and_exit(arguments, folder, file_bytes)
    os.close(out_write)
    os.close(err_write)
    outputs = _drained([out_read, err_read], child, began + limit_s)
    _, status, used = os.wait4(child, 0)
    seconds = time.monotonic() - began
    return (
        status,
        outputs[0].decode("utf-8", "replace"),
        outputs[1].decode("utf-8", "replace"),
        seconds,
        max(0, used.ru_maxrss * 1024 - started_with),
    )


def _drained(pipes: list[int], child: int, until: float) -> list[bytes]:
    """The bytes of each pipe until both are closed; at `until` (monotonic seconds) the child is killed."""
    chunks: dict[int, list[bytes]] = {pipe: [] for pipe in pipes}
    killed = False
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0 and not killed:
                os.kill(child, signal.SIGKILL)
                killed = True
            for key, _ in selector.select(max(0.05, left) if not killed else 1.0):
                chunk = os.read(key.fd, 1 << 16)
                if chunk and sum(map(len, chunks[key.fd])) < _MOST_SAID:
                    chunks[key.fd].append(chunk)
                if not chunk:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return [b"".join(chunks[pipe]) for pipe in pipes]


def _run_and_exit(arguments: list[str], folder: Path, file_bytes: int | None) -> None:
    """Run `rlplan ARGUMENTS` under the limits, and end this process."""
    from rlplan.cli.main import main

    code = 1
    try:
        os.chdir(folder)
        os.environ["COLUMNS"] = "200"
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_S, LIMIT_CPU_S + 1))
        resource.setrlimit(resource.RLIMIT_AS, (_statm_bytes(0) + LIMIT_BYTES, resource.RLIM_INFINITY))
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        # New streams as in a new process: the inherited ones remember the terminal of this process.
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.argv = ["rlplan", *arguments]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:  # noqa: BLE001 - the traceback is printed as Python would
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _statm_bytes(column: int) -> int:
    """Bytes that this process has mapped (column 0 of /proc/self/statm) or holds in memory (column 1)."""
    return int(Path("/proc/self/statm").read_text().split()[column]) * resource.getpagesize()
