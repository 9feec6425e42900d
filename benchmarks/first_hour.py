"""The first hour of a new user: three jobs planned as the README says, and N mistakes.

    python -m benchmarks.first_hour [--mistakes N] [--seed N] [--skip-way] [--json]

    {"minutes_of_commands": …, "commands": …, "mistakes": …, "tracebacks": 0, "endless": 0, "solved_but_checked_bad": 0,
     "wrong_exit_codes": 0, "not_one_line": 0, "written": 0, "too_much_memory": 0, "taken_silently": 0, …}

`minutes_of_commands`: time of all commands for the three jobs, one after the other, compiling the simulator included.
A mistake is made in a copy of the shipped examples. It is right if its command ends within 10 s of a core (60 s in
all) and 4 GB of address space with a documented exit code and, where it refuses, lines `error: ` on standard error and
nothing written.
`taken_silently`: certain mistakes that no command refused. `solved_but_checked_bad`: plans that `solve` wrote and
`check` rejects, of the jobs and of the mistakes. Exit code 1 if any count is not 0.
"""

from __future__ import annotations

import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from rlplan.cli.main import PAGES

from .entry import as_json_option, run, tell

EXAMPLES = Path(__file__).parents[1] / "plans" / "examples"
JOBS = (
    ("Qwen2.5-32B", 8, "math", "math-16k"),
    ("Qwen2.5-7B", 2, "code", "code-16k"),
    ("Qwen3-30B-A3B", 4, "math", "math-16k"),
)
"""The three jobs: model, nodes of 8 H100s, kind of reward, shipped lengths."""

RLPLAN = (sys.executable, "-m", "rlplan.cli.main")
LIMIT_CPU_S, LIMIT_S, LIMIT_BYTES = 10, 60.0, 4 * 10**9
FAULTS = {
    "traceback": "tracebacks", "endless": "endless", "checked bad": "solved_but_checked_bad",
    "exit code": "wrong_exit_codes", "not one line": "not_one_line", "written": "written", "memory": "too_much_memory",
    "taken": "taken_silently", "killed": "killed",
}  # fmt: skip
"""Faults of an answer to a mistake, each with the JSON key that counts it."""


# ---- the way of a new user ----


def commands(home: Path, model: str, nodes: int, reward: str, lengths: str) -> list[tuple[str, ...]]:
    """Command lines from `rlplan init` to plans that were checked, shown, diffed, simulated and compared."""
    at, plan, plain = str(home), f"{home}/plan.yaml", f"{home}/sync.yaml"
    fewer = f"cluster.pools.h100.nodes={nodes // 2},{nodes}"
    return [
        ("init", at, "--gpus", f"{nodes}x8xH100", "--model", model, "--reward", reward),
        ("profile", at, "--shipped", model),
        ("check", f"{at}/cluster.yaml", f"{at}/job.yaml", f"{at}/profile.yaml"),
        ("lengths", "show", lengths),
        ("solve", at, "--lengths", lengths, "--mode", "sync", "-o", plain),
        ("solve", at, "--lengths", lengths),
        ("check", plan, plain),
        ("show", plan, "--html", f"{at}/plan.html"),
        ("diff", plain, plan),
        ("simulate", plan, "--steps", "20"),
        ("compare", f"{at}/job.yaml", "--lengths", lengths, "--vary", fewer, "--html", f"{at}/compare.html"),
    ]


def walk(home: Path, notify: Callable[[str], None]) -> dict[str, Any]:
    """Run the commands of all three jobs below `home`, each in a process of its own: counts, seconds, failures."""
    seconds: Counter[str] = Counter()
    found = Counter(dict.fromkeys(("commands", "tracebacks", "endless", "solved_but_checked_bad"), 0))
    failed: list[str] = []
    for model, nodes, reward, lengths in JOBS:
        for arguments in commands(home / model, model, nodes, reward, lengths):
            began = time.perf_counter()
            try:
                done = subprocess.run([*RLPLAN, *arguments], capture_output=True, text=True, check=False, timeout=600)
            except subprocess.TimeoutExpired:
                found["endless"] += 1
                break
            took = time.perf_counter() - began
            seconds[f"{model} {arguments[0]}"] += round(took, 2)
            notify(f"{model}: {arguments[0]} {took:.1f} s, exit {done.returncode}")
            found["commands"] += 1
            found["tracebacks"] += "Traceback (most recent call last)" in done.stderr
            found["solved_but_checked_bad"] += arguments[0] == "check" and done.returncode != 0
            if done.returncode:
                failed.append(f"{model}: {arguments[0]}: {(done.stderr or done.stdout).strip()[-300:]}")
    minutes = round(sum(seconds.values()) / 60, 2)
    return {"minutes_of_commands": minutes, **found, "seconds": dict(seconds), "failed": failed}


# ---- mistakes ----


@dataclass(frozen=True)
class Mistake:
    """A command line, in which `{at}` stands for the folder, and a change of the folder before it runs.

    `sure`: whether the command must refuse it; else the drawn change may be harmless.
    """

    name: str
    command: tuple[str, ...]
    sure: bool
    spoil: Callable[[Path], object] = lambda folder: None


SOLVE = ("solve", "{at}/cpu-demo", "--mode", "sync", "-o", "{at}/new.yaml")
GROUP = ("solve", "{at}/groups/workload.yaml", "-o", "{at}/new.yaml")
DRY_RUN = ("execute", "{at}/cpu-demo.yaml", "--dry-run", "--out", "{at}/run")
SIMULATE = ("simulate", "{at}/cpu-demo.yaml", "--steps", "4")
DIFF = ("diff", "{at}/cpu-demo.yaml", "{at}/math-32b.yaml")
READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "cpu-demo/cluster.yaml": (SOLVE, DRY_RUN, ("check", "{at}/cpu-demo.yaml"), ("check", "{at}/cpu-demo/cluster.yaml")),
    "cpu-demo/job.yaml": (SOLVE, SIMULATE, ("check", "{at}/cpu-demo/job.yaml")),
    "cpu-demo/profile.yaml": (SOLVE, SIMULATE, ("check", "{at}/cpu-demo/profile.yaml")),
    "cpu-demo.yaml": (("show", "{at}/cpu-demo.yaml"), ("check", "{at}/cpu-demo.yaml"), DIFF, SIMULATE, DRY_RUN),
    "groups/workload.yaml": (("check", "{at}/groups/workload.yaml"),),
    "groups.yaml": (("show", "{at}/groups.yaml"), ("check", "{at}/groups.yaml"), ("simulate", "{at}/groups.yaml")),
    "cpu-demo/data.jsonl": (DRY_RUN, ("check", "{at}/cpu-demo/job.yaml")),
    "cpu-demo/profile.lengths.jsonl": (SOLVE, SIMULATE),
}
"""By document, the command lines that read it."""

GOOD = (SOLVE, GROUP, DRY_RUN, SIMULATE, DIFF, ("show", "{at}/cpu-demo.yaml"), ("check", "{at}/cpu-demo.yaml"))
NUMBERS = ((*SOLVE, "--mode"), (*SOLVE, "--max-nodes"), (*SIMULATE, "--steps"), (*SIMULATE, "--seed"))
Change = Callable[[str, random.Random], str | bytes]


def _number(text: str, rng: random.Random, new: Callable[[str], str]) -> str:
    """The text with one of its numbers replaced."""
    hit = rng.choice(list(re.finditer(r"(?<=: )-?\d+(\.\d+)?(e[+-]?\d+)?(?=[,}\s])", text)))
    return text[: hit.start()] + new(hit[0]) + text[hit.end() :]


def _swapped(text: str, rng: random.Random) -> str:
    hit = rng.choice(list(re.finditer(r"(?<=[\s{\"])[a-z][a-z_0-9]{3,}(?=\"?:\s)", text)))
    index = hit.start() + rng.randrange(len(hit[0]) - 1)
    return text[:index] + text[index + 1] + text[index] + text[index + 2 :]


def _without_a_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    del lines[rng.randrange(1, len(lines))]
    return "".join(lines)


SURE: dict[str, Change] = {
    "an unknown key": lambda t, r: t + "surprise: 1\n",
    "text for a number": lambda t, r: _number(t, r, lambda n: "many"),
    "a unit behind a number": lambda t, r: _number(t, r, lambda n: n + r.choice(("GB", " s", "ms", "%", "k"))),
    "a list for a number": lambda t, r: _number(t, r, lambda n: f"[{n}, {n}]"),
    "a tab for indentation": lambda t, r: t + "surprise:\n\tx: 1\n",
    "conflict markers": lambda t, r: "<<<<<<< HEAD\n" + t + "=======\n>>>>>>> theirs\n",
    "no UTF-8": lambda t, r: t.encode() + b"\xff\xfe",
    "UTF-16": lambda t, r: t.encode("utf-16"),
    "an empty file": lambda t, r: "",
    "notes": lambda t, r: "call the landlord\n",
}
"""Changes that certainly make a document wrong."""

MAYBE: dict[str, Change] = {
    "another number": lambda t, r: _number(t, r, lambda n: str(float(n) * r.choice((1e3, 1e9, 1e12, 1e-3, -1, 10)))),
    "junk for a number": lambda t, r: _number(t, r, lambda n: r.choice(("-1", "null", "[]", ".nan", "9" * 5000))),
    "a misspelt key": _swapped,
    "a line that is missing": _without_a_line,
    "a file that ends too early": lambda t, r: t[: r.randrange(len(t))],
    "CRLF": lambda t, r: t.replace("\n", "\r\n"),
}
"""Changes after which a document may still be valid."""


def document_mistakes(rng: random.Random) -> Iterator[Mistake]:
    """Yield mistakes in documents and in files of rows, and files that are none, without end."""
    while True:
        name = rng.choice(list(READERS))
        command = rng.choice(READERS[name])
        if rng.random() < 0.15:
            yield Mistake(f"{name} is missing", command, True, lambda at, name=name: (at / name).unlink())
            continue
        kind = rng.choice((SURE, MAYBE, MAYBE))
        fault = rng.choice(list(kind))
        seed = rng.randrange(2**31)

        def spoil(at: Path, name: str = name, change: Change = kind[fault], seed: int = seed) -> None:
            new = change((at / name).read_text(encoding="utf-8"), random.Random(seed))
            (at / name).write_bytes(new.encode() if isinstance(new, str) else new)

        yield Mistake(f"{name}: {fault}", command, kind is SURE, spoil)


def option_mistakes(rng: random.Random) -> Iterator[Mistake]:
    """Yield bad values of options, misspelt options and commands, and results that cannot be written, without end."""
    while True:
        good = rng.choice(GOOD)
        target = rng.choice(("{at}/none/x", "{at}/cpu-demo", "/proc/x", "{at}/cpu-demo/job.yaml"))
        yield rng.choice((
            Mistake("a word for a number", (*rng.choice(NUMBERS), "many"), True),
            Mistake(f"{good[0]}: a misspelt option", (*good, rng.choice(("--speed", "--ouut", "--jsonn"))), True),
            Mistake(f"{good[0]}: nothing to work on", good[:1], True),
            Mistake("a misspelt command", (rng.choice(("sovle", "plan", "")), *good[1:]), True),
            Mistake(f"a result onto {target}", (*rng.choice((SOLVE, GROUP)), "--out", target), True),
            Mistake("--set of no key", (*SIMULATE, "--set", rng.choice(("", "x=1", "job.name", "plan.job=1"))), True),
        ))  # fmt: skip


WORDS: tuple[tuple[str, ...], ...] = (
    (*DIFF, "--markdown", "--json"), (*GROUP, "--mode", "exact"), (*SOLVE, "--objective", "usd_per_unit"),
    ("diff", "{at}/cpu-demo.yaml", "{at}/groups.yaml"), ("show", "{at}/cpu-demo/job.yaml"), ("tune", "{at}"),
    ("report", "{at}/nowhere"), ("solve", "{at}/cpu-demo.yaml"), ("init", "{at}"),
    ("profile", "{at}", "--shipped", "X"), ("check", "{at}/cpu-demo.yaml", "--policy", "{at}/cpu-demo/job.yaml"),
)  # fmt: skip
"""Options and files that do not go together."""


def mistakes(count: int, seed: int) -> list[Mistake]:
    """`count` mistakes, the same for the same seed: those of `WORDS` first, then two of three in documents."""
    rng = random.Random(seed)
    drawn = [Mistake(" ".join(words)[:60], words, True) for words in WORDS[: count // 2]]
    sources = ((document_mistakes(random.Random(rng.random())), 2), (option_mistakes(random.Random(rng.random())), 1))
    while len(drawn) < count:
        for source, share in sources:
            drawn += islice(source, share)
    return drawn[:count]


# ---- one mistake in a process of its own ----


@dataclass(frozen=True)
class Outcome:
    """How a command answered a mistake: its exit code, and each way in which that is not as documented."""

    mistake: Mistake
    code: int
    seconds: float
    output: str
    faults: tuple[str, ...]


def attempt(mistake: Mistake, ground: Path, home: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Make `mistake` in `home`, a temporary copy of the folder `ground`; its outcome."""
    shutil.copytree(ground, home)
    try:
        mistake.spoil(home)
        before = _listing(home)
        arguments = [argument.replace("{at}", str(home)) for argument in mistake.command]
        began = time.monotonic()
        code, said = answer(arguments, home, limit_s)
        seconds = time.monotonic() - began
        faults = list(_faults(mistake, code, said))
        if code == 0 and arguments[0] == "solve" and (home / "new.yaml").is_file():
            again, findings = answer(["check", str(home / "new.yaml")], home, limit_s)
            if again:
                faults, said = [*faults, "checked bad"], findings
        if code != 0 and _listing(home) != before:
            faults.append("written")
        return Outcome(mistake, code, seconds, said.strip().replace(str(home), "…")[-600:], tuple(faults))
    finally:
        shutil.rmtree(home)


def answer(arguments: list[str], folder: Path, limit_s: float) -> tuple[int, str]:
    """Run `rlplan ARGUMENTS` in `folder` under the limits: its exit code (negative: the signal), and its output."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_S, LIMIT_CPU_S + 1))
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))

    command = [*RLPLAN, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, cwd=folder, timeout=limit_s, stdin=subprocess.DEVNULL,
            preexec_fn=limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -signal.SIGXCPU, ""
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def _faults(mistake: Mistake, code: int, said: str) -> Iterator[str]:
    if code < 0:
        yield "endless" if code == -signal.SIGXCPU else "killed"
        return
    if "Traceback (most recent call last)" in said:
        yield "traceback"
        return
    if code == 1 and re.match("error: .*memory", said):
        yield "memory"
    page = PAGES.get(mistake.command[0])
    if code not in {0, 2, *map(int, re.findall(r"(?<!\d)(?:130|[0-3])(?= )", page.exits if page else ""))}:
        yield "exit code"
    lines = [line for line in said.splitlines() if line and not re.match(r"(warning|note|solving|profile): ", line)]
    # Bad input has a line for each fault; an infeasible job has one line; findings are check's result.
    refuses = all(line.startswith(("error: ", "no feasible plan: ")) for line in lines) and bool(lines)
    if code in (2, 3) and not refuses and not (mistake.command[0] == "check" and lines):
        yield "not one line"
    if code == 0 and mistake.sure:
        yield "taken"


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


# ---- the command ----


def make(count: int, seed: int, notify: Callable[[str], None]) -> dict[str, Any]:
    """Make `count` mistakes, one after the other: counts of mistakes, of refusals and of each fault."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="rlplan-first-hour-") as folder:
        # A first solve compiles the simulator, and the cache on the disk serves the others.
        if count:
            warm = [*RLPLAN, "solve", str(EXAMPLES / "cpu-demo"), "--mode", "sync", "-o", f"{folder}/warm.yaml"]
            subprocess.run(warm, capture_output=True, check=True)
        for number, mistake in enumerate(mistakes(count, seed), 1):
            outcomes.append(attempt(mistake, EXAMPLES, Path(folder) / "here"))
            if found := outcomes[-1].faults:
                notify(f"{number}: {', '.join(found)}: {mistake.name}: {mistake.command}: {outcomes[-1].output}")
    faults = Counter(fault for outcome in outcomes for fault in outcome.faults)
    return {
        "mistakes": count,
        "refused": sum(outcome.code != 0 for outcome in outcomes),
        **{key: faults[fault] for fault, key in FAULTS.items()},
        "longest_s": round(max((outcome.seconds for outcome in outcomes), default=0.0), 2),
    }


@click.command()
@click.option("--mistakes", "count", type=click.IntRange(min=0), default=500, show_default=True, help="How many.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the mistakes.")
@click.option("--skip-way", is_flag=True, help="Only mistakes, without the commands for the three jobs.")
@as_json_option
def main(count: int, seed: int, skip_way: bool, as_json: bool) -> None:
    """The commands of a new user's first hour, and mistakes; exit code 1 if any answer has a fault."""

    def notify(text: str) -> None:
        click.echo(text, err=True)

    way: dict[str, Any] = {}
    if not skip_way:
        with tempfile.TemporaryDirectory(prefix="rlplan-way-") as folder:
            way = walk(Path(folder), notify)
    answers = make(count, seed, notify)
    totals = {key: way.get(key, 0) + answers[key] for key in ("tracebacks", "endless", "solved_but_checked_bad")}
    result = {**way, **answers, **totals}
    tell(result, as_json)
    if any(result[key] for key in FAULTS.values()) or way.get("failed"):
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
