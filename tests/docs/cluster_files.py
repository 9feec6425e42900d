"""What the tests of docs/cluster share: the files, and stand-ins for the commands of Slurm on a path of their own."""

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
while [ "${1#--}" != "$1" ]; do
  case $1 in --nodes=*) nodes=${1#--nodes=} ;; esac
  shift
done
trap 'touch "${0%/*}/ended"; kill $children' TERM
for _ in $(seq "$nodes"); do "$@" & children="$children $!"; done
for child in $children; do wait "$child" || status=1; done
for child in $children; do wait "$child" || status=1; done
exit $status
"""
"""As srun: runs the command once on each of its nodes, all of which are this machine, and hands SIGTERM on."""

SCONTROL = f'[ "$1" = show ] && printf "%s\\n" {" ".join(HOSTS)} | head -n "$3"; exit 0'
"""As scontrol, for a list of nodes that is their number."""

WAITS = 'for _ in $(seq 600); do [ -e "${0%/*}/ended" ] && exit; /bin/sleep 0.1; done'
"""Until srun is told to end: a signal that comes between fork and exec is lost, the file is not."""

NOTE = """#!/bin/sh
words=%s
for word in "$@"; do words="$words\037$word"; done
printf '%%s\036%%s\035' "$words" "$(env | grep ^RAY_)" >>%s
"""


class Commands:
    """A folder of stand-ins, each of which notes its name, arguments and variables RAY_* when it is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        folder.mkdir()
        self.calls.touch()

    def add(self, name: str, body: str = "") -> None:
        """A command `name` that notes its call, then runs `body` (of sh, which starts at once)."""
        path = self.folder / name
        path.write_text(NOTE % (name, self.calls) + body, encoding="utf-8")
        path.chmod(0o755)

    def made(self, name: str) -> list[list[str]]:
        """The arguments of each call of `name` so far."""
        return [arguments for (called, *arguments), _ in self._calls() if called == name]

    def environment(self, name: str) -> dict[str, str]:
        """The variables RAY_* of the last call of `name`."""
        lines = [environment for (called, *_), environment in self._calls() if called == name][-1].splitlines()
        return dict(line.split("=", 1) for line in lines)

    def _calls(self) -> list[tuple[list[str], str]]:
        calls = self.calls.read_text(encoding="utf-8").split("\035")[:-1]
        return [(words.split("\037"), env) for words, env in (call.split("\036") for call in calls)]

    def run(self, *words: str | Path, env: dict[str, str]) -> subprocess.Popen[str]:
        """Start `words` with the stand-ins first on the path, then this Python's commands; RAY_* are of `env`."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SLURM_", "RLPLAN_"))}
        path = f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.Popen(
            [str(word) for word in words], env={**own, "PATH": path, **env}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def ended(self, *words: str | Path, env: dict[str, str]) -> tuple[int, str]:
        """Run `words` to their end: exit code and output."""
        running = self.run(*words, env=env)
        output, _ = running.communicate(timeout=60)
        return running.returncode, output


def until(happened: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something has happened. Raises TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not happen within {seconds:.0f} s")
        time.sleep(0.01)
