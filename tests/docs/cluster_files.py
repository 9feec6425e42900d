"""What the tests of docs/cluster share: the files, and stand-ins for the commands of Slurm on a path of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import rlplan

ROOT = Path(rlplan.__file__).parent
FILES = ROOT / "docs" / "cluster"
BATCH, TRAIN = FILES / "ray.sbatch", FILES / "train.sh"
HOSTS = ("node1", "node2", "node3")

SRUN = """
nodes = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("--nodes="))
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
children = [subprocess.Popen(words) for _ in range(nodes)]
signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in children])
sys.exit(max(child.wait() for child in children) and 1)
"""
"""As srun: runs the command once on each of its nodes, all of which are this machine, and hands SIGTERM on."""

SCONTROL = f"""
if sys.argv[1:3] == ["show", "hostnames"]:
    print(*{HOSTS}[: int(sys.argv[3])], sep="\\n")
"""
"""As scontrol, for a list of nodes that is their number."""


class Commands:
    """A folder of stand-ins, each of which notes its name, arguments and variables RAY_* when it is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls.jsonl"
        folder.mkdir()
        self.calls.touch()

    def add(self, name: str, body: str = "") -> None:
        """A command `name` that notes its call, then runs `body` (Python)."""
        path = self.folder / name
        path.write_text(
            f"#!{sys.executable}\n"
            "import json, os, signal, subprocess, sys, time\n"
            f"call = [{name!r}, sys.argv[1:], {{k: v for k, v in os.environ.items() if k.startswith('RAY_')}}]\n"
            f"with open({str(self.calls)!r}, 'a') as file:\n"
            "    file.write(json.dumps(call) + chr(10))\n" + body,
            encoding="utf-8",
        )
        path.chmod(0o755)

    def made(self, name: str) -> list[list[str]]:
        """The arguments of each call of `name` so far."""
        return [arguments for called, arguments, _ in self._lines() if called == name]

    def environment(self, name: str) -> dict[str, str]:
        """The variables RAY_* of the last call of `name`."""
        return [environment for called, _, environment in self._lines() if called == name][-1]

    def _lines(self) -> list[tuple[str, list[str], dict[str, str]]]:
        return [tuple(json.loads(line)) for line in self.calls.read_text(encoding="utf-8").splitlines()]

    def run(self, *words: str | Path, env: dict[str, str]) -> subprocess.Popen[str]:
        """Start `words` with the stand-ins first on the path, then this Python's commands; RAY_* are of `env`."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SLURM_", "RLPLAN_"))}
        path = f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.Popen(
            [str(word) for word in words],
            env={**own, "PATH": path, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def until(happened: Callable[[], bool], seconds: float) -> None:
    """Wait until something has happened. Raises TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not happen within {seconds:.0f} s")
        time.sleep(0.05)
