"""The command; see the package."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from rlplan.executor.rewards.sandbox.verdict import MEMORY_BYTES
from rlplan.executor.rewards.sandbox.warm_sandbox import SandboxError, WarmSandbox
from rlplan.plans.answers.code_tests import code_tests
from rlplan.plans.yaml.errors import RunFailed

from ..entry import as_json_option, run, tell
from .programs import FORMS, PROGRAMS, TESTS, WRONG, Program

# What the programs may harm, and whether they did.

DISK_BYTES = 256 << 20
"""Less free space than before by so much, on the disk of temporary files, counts as harm."""


MEMORY_MORE_BYTES = 512 << 20
"""What a program may take beyond its limit before it is seen, and other programs meanwhile."""
LOOK_S = 0.02


class Host:
    """Files, servers and a process of this user, as a context."""

    def __enter__(self) -> Host:
        self.folder = Path(tempfile.mkdtemp(prefix="rlplan-host-"))
        self.folder.chmod(0o755)
        self.secret, self.kept = self.folder / "secret", self.folder / "kept"
        self.secret.write_text("a secret\n")
        self.kept.write_text("kept\n")
        self.secret.chmod(0o644)
        self.kept.chmod(0o666)
        self.abstract = f"rlplan-{secrets.token_hex(8)}"
        self._contacts = 0
        self._servers = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        self._servers[1].bind(f"\0{self.abstract}")
        self._servers[1].listen()
        for server in self._servers:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        self.sleep = f"{90000 + os.getpid() % 1000}.{secrets.randbelow(10**6):06d}"
        self._start_victim()
        self.watch_memory()
        self._watching = True
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._watching = False
        self._watcher.join()
        for server in self._servers:
            server.close()
        self.victim.kill()
        self.victim.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def filled(self, source: str) -> str:
        """A program's source with this host's names in it."""
        for name, value in {
            "SECRET": self.secret, "KEPT": self.kept, "FOLDER": self.folder, "PORT": self._servers[0].getsockname()[1],
            "ABSTRACT": self.abstract, "VICTIM": self.victim.pid, "WORKER": os.getpid(), "SLEEP": self.sleep,
        }.items():  # fmt: skip
            source = source.replace(f"@{name}@", str(value))
        return source

    def state(self) -> dict[str, Any]:
        """What a program must not change."""
        return {
            "secret": self.secret.read_text(),
            "file": self.kept.read_text() if self.kept.exists() else "gone",
            "folder": sorted(path.name for path in self.folder.iterdir()),
            "shared memory": Path("/dev/shm/rlplan-left").exists(),
            "contacts": self._contacts,
            "victim": _letter(self.victim.pid) in "RSD",
            "memory beyond its limit": self._before_bytes - self._least_bytes > MEMORY_BYTES + MEMORY_MORE_BYTES,
            "disk full": shutil.disk_usage(tempfile.gettempdir()).free // DISK_BYTES == 0,
        }

    def watch_memory(self) -> None:
        """From now on, note how much of this host's memory is taken at once."""
        self._before_bytes = self._least_bytes = _free_bytes()

    def _watch(self) -> None:
        while self._watching:
            self._least_bytes = min(self._least_bytes, _free_bytes())
            time.sleep(LOOK_S)

    def left_behind(self, patience_s: float = 5.0) -> bool:
        """Whether a process that a program started is still there after a moment."""
        until = time.monotonic() + patience_s
        while _runs(self.sleep):
            if time.monotonic() > until:
                return True
            time.sleep(0.02)
        return False

    def repair(self) -> None:
        """Make all as it was, after a program that harmed it."""
        self.kept.write_text("kept\n")
        Path("/dev/shm/rlplan-left").unlink(missing_ok=True)
        if self.victim.poll() is not None or _letter(self.victim.pid) not in "RSD":
            self.victim.kill()
            self.victim.wait()
            self._start_victim()
        for pid in _running(self.sleep):
            os.kill(pid, signal.SIGKILL)

    def _start_victim(self) -> None:
        self.victim = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            self._contacts += 1
            connection.close()


def _free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _letter(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def _running(argument: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument in path.read_bytes().decode(errors="replace").split("\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # it ended while we looked
    return found


def _runs(argument: str) -> bool:
    return bool(_running(argument))


DEADLINE_S = 3.0
LATE_S = 10.0
"""A program that holds the worker so much longer than its deadline harms it."""
SPACED_S = 0.02
PACKAGES = ("numpy", "pytest")
CASE, MORE_CASES = "print(int(input()) ** 2)\n", 20
RIGHT = "def f(x): return x * x\n"
SHORT = (
    RIGHT,
    "from collections import Counter\ndef f(x): return Counter('a' * x * x)['a']\n",
    "import re\ndef f(x): return len(re.findall('a', 'a' * x * x))\n",
    "def f(x): return sum(range(20_000)) * 0 + x * x\n",
)
"""Right solutions that take less than a few milliseconds."""
BARE = "import sys\ntext = sys.stdin.read().split('\\0')\nexec(text[0]); exec(text[1]); print('PASSED')\n"


@click.command()
@click.option("--repeats", type=click.IntRange(4, 10_000), default=100, show_default=True)
@as_json_option
def main(repeats: int, as_json: bool) -> None:
    """Try hostile programs against the sandbox, and measure what it costs."""
    sandbox = WarmSandbox()
    try:
        sandbox.start()
        with Host() as host:
            rows = [_tried(sandbox, host, program) for program in PROGRAMS]
            with closing(WarmSandbox(packages=PACKAGES)) as with_packages:
                rows += [_tried(with_packages if each.packages else sandbox, host, each) for each in FORMS]
            controls = _controls(host)
        overhead = _overhead(sandbox, repeats) | {"ms_case": _ms_case(sandbox, repeats)}
    except SandboxError as error:
        raise RunFailed(str(error)) from error
    finally:
        sandbox.close()
    result = {
        "programs": len(rows),
        "harmful": sum(bool(row["harm"]) for row in rows),
        "verdict_forged": sum(row["forged"] for row in rows),
        **overhead,
        "controls": controls,
        "stopped": {row["name"]: row["stopped"] for row in rows},
        "harm": {row["name"]: row["harm"] for row in rows if row["harm"]},
        "notes": list(sandbox.notes),
    }
    tell(result, as_json, _table)


def _tried(sandbox: WarmSandbox, host: Host, program: Program) -> dict[str, Any]:
    """Run one program; what stopped it, and what it harmed."""
    row = _tried_once(sandbox, host, program)
    if len(row["harm"]) == 1 and row["harm"][0].startswith("memory"):
        # Other programs of this host take memory too: what is not seen again was theirs.
        row = _tried_once(sandbox, host, program)
    return row


def _tried_once(sandbox: WarmSandbox, host: Host, program: Program) -> dict[str, Any]:
    host.watch_memory()
    before = host.state()
    began = time.monotonic()
    ran = sandbox.run(host.filled(program.source), code_tests(program.tests), DEADLINE_S)
    took_s = time.monotonic() - began
    after = host.state()
    harm = [f"{what}: {before[what]!r} became {after[what]!r}" for what in before if before[what] != after[what]]
    if "HARM" in ran.detail:
        harm.append(ran.detail)
    if took_s > DEADLINE_S + LATE_S:
        harm.append(f"held the worker for {took_s:.1f} s")
    if host.left_behind():
        harm.append("a process of its runs on")
    if not sandbox.run(RIGHT, TESTS, 20.0).passed or sandbox.run(WRONG, TESTS, 20.0).passed:
        harm.append("the worker no longer tells right from wrong")
    if harm:
        host.repair()
    name = f"{program.category}: {program.name}"
    return {"name": name, "harm": harm, "forged": ran.passed, "stopped": ran.detail or "nothing: judged right"}


def _controls(host: Host) -> dict[str, bool | None]:
    """By category, whether a program reaches its aim where nothing holds it."""
    found: dict[str, bool | None] = {}
    for program in PROGRAMS:
        if not program.tried_bare:
            found.setdefault(program.category, None)
        elif not found.get(program.category):
            # Twice at most: beside other work of this host a program may fail to start another.
            found[program.category] = _reached_bare(host, program) or _reached_bare(host, program)
    return found


def _reached_bare(host: Host, program: Program) -> bool:
    """Whether a program reaches its aim in a plain interpreter, once; the host is repaired then."""
    host.watch_memory()
    before = host.state()
    # Not pipes: what a program leaves behind would hold them open.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as told:
        ran = subprocess.run(
            [sys.executable, "-I", "-S", "-c", BARE], input=f"{host.filled(program.source)}\0{program.tests}",
            stdout=subprocess.DEVNULL, stderr=told, text=True, timeout=60, cwd=folder,
        )  # fmt: skip
        told.seek(0)
        # A plain harness takes exit code 0 for success.
        reached = "HARM" in told.read() or (program.category == "verdict" and ran.returncode == 0)
    reached = reached or host.state() != before or host.left_behind(0.5)
    host.repair()
    return reached


def _overhead(sandbox: WarmSandbox, repeats: int) -> dict[str, float]:
    """Milliseconds beyond a program's own time, median of the repeats, ways in turns."""
    extra: dict[str, list[float]] = {"ms_overhead": [], "ms_overhead_spaced": [], "ms_new_interpreter": []}
    for turn in range(-len(SHORT), repeats):  # the first ones are not counted
        source = SHORT[turn % len(SHORT)]
        own_s = _seconds(lambda source=source: _in_this_process(source))
        # Not measured: the next one is to follow at once on a test.
        sandbox.run(source, TESTS, DEADLINE_S)
        times = {"ms_overhead": _seconds(lambda source=source: _in_sandbox(sandbox, source))}
        time.sleep(SPACED_S)
        times["ms_overhead_spaced"] = _seconds(lambda source=source: _in_sandbox(sandbox, source))
        times["ms_new_interpreter"] = _seconds(lambda source=source: _in_new_interpreter(source))
        if turn >= 0:
            for name, seconds in times.items():
                extra[name].append(1000 * (seconds - own_s))
    return {name: round(statistics.median(values), 3) for name, values in extra.items()}


def _ms_case(sandbox: WarmSandbox, repeats: int) -> float:
    """Milliseconds of one more case of input and output, median of the repeats."""
    one, many = (code_tests([{"input": "3", "output": "9"}] * count) for count in (1, 1 + MORE_CASES))
    extra = [
        _seconds(lambda: sandbox.run(CASE, many, 60.0)) - _seconds(lambda: sandbox.run(CASE, one, 60.0))
        for _ in range(max(4, repeats // 10))
    ]
    return round(1000 * statistics.median(extra) / MORE_CASES, 3)


def _seconds(act: Any) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _in_this_process(source: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(source, "response.py", "exec"), names)
    exec(compile(TESTS, "tests.py", "exec"), names)


def _in_sandbox(sandbox: WarmSandbox, source: str) -> None:
    ran = sandbox.run(source, TESTS, 20.0)
    assert ran.passed, ran.detail


def _in_new_interpreter(source: str) -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", BARE], input=f"{source}\0{TESTS}", text=True, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip


def _table(result: dict[str, Any]) -> str:
    width = max(map(len, result["stopped"]))
    lines = [f"{'program':{width}}  stopped by"]
    lines += [f"{name:{width}}  {why[:100]}" for name, why in result["stopped"].items()]
    lines += [f"HARM {name}: {'; '.join(harm)}" for name, harm in result["harm"].items()]
    lines += [f"note: {note}" for note in result["notes"]]
    reached = [name for name, done in result["controls"].items() if done]
    lines.append(f"without a sandbox these categories reach their aim: {', '.join(reached)}")
    lines.append(
        f"{result['programs']} programs, {result['harmful']} harmful, {result['verdict_forged']} verdicts forged; "
        f"a short test takes {result['ms_overhead']:.1f} ms more at once after another, "
        f"{result['ms_overhead_spaced']:.1f} after a pause, a new interpreter {result['ms_new_interpreter']:.1f} ms; "
        f"one more case of input and output {result['ms_case']:.1f} ms"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
