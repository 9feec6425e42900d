"""Mistakes on the command line: bad values of every option, unknown options, and too many or too few arguments.

The options are read from the commands, so that a new option is tried without a change here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import click

from rlplan.cli.main import cli

from .mistake import (
    APPLY,
    COMPARE,
    DIFF,
    DRY_RUN,
    EXPORT,
    GROUP,
    INIT,
    REPORT,
    SHIPPED,
    SIMULATE,
    SOLVE,
    STATUS,
    TUNE,
    Mistake,
)

GOOD: dict[str, tuple[str, ...]] = {
    "init": INIT, "lengths": ("lengths", "show", "math-16k"), "rewards": ("rewards", "show", "code"),
    "compare": COMPARE, "refresh": ("refresh", "{at}/sync.yaml", "-o", "{at}/new.yaml"),
    "profile": SHIPPED, "solve": SOLVE, "check": ("check", "{at}/plan.yaml"), "diff": DIFF,
    "show": ("show", "{at}/plan.yaml"), "simulate": SIMULATE, "execute": DRY_RUN, "report": REPORT, "tune": TUNE,
    "export": EXPORT, "fmt": ("fmt", "--check", "{at}/plan.yaml"), "schema": ("schema", "plan"),
    "completion": ("completion", "bash"), "status": STATUS, "apply": APPLY,
}  # fmt: skip
"""For each command a correct command line; `init` without a model would train one."""

NO_NUMBERS = ("many", "", "1 000", "1,5", "1e", "0x10", "--", "nan", "1_0_", "½")
ODD_NUMBERS = ("-1", "0", "1e400", "inf", "-inf", "9" * 30, "9" * 5000, "1e-300", "0.5", "1.0", "+1", "１２")
NO_PATHS = (
    "nowhere.yaml",
    "nowhere/x",
    "",
    "n" * 300,
    "n/" * 2500,
    "/proc/self/mem",
    "/dev/zero",
    "{at}",
    "\udcff.yaml",
    "a\nb",
)
NO_WORDS = ("mäny", "", "SYNC", "syn", "--json", "0")
SETS = (
    "",
    "=",
    "x",
    "x=1",
    "plan=1",
    "plan.=1",
    ".=.",
    "plan.job=1",
    "job.rollout.prompts_per_step",
    "plan.job.rounds.9=1",
    "job.rollout.prompts_per_step=many",
    "job.rollout.prompts_per_step=1000000",
    "job.rollout.prompts_per_step=-1",
    "job.rollout.samples_per_prompt=10000000",
    "plan.job.rounds.short.rollout.engines=1000000000",
    "plan.job.rounds.short.issue.prompts=1000000000",
    "cluster.pools.h100.nodes=1000000000000",
    "profile.rollout.0.step_s=0",
    "profile.rollout.0.step_s=1e300",
    "profile.rollout.99.step_s=1",
    "profile.rollout=[]",
    "job.rollout.max_response_tokens=100000000000",
    "plan.job.rounds.short.cutoff_tokens=0",
    "job.name=!!int x",
    "plan.job.bias.mode=sync: 1",
    "plan.job.why.x=\udcff",
    "plan.predicted.step_s.mean=nan",
    "plan.rlplan=2",
)


def option_mistakes(rng: random.Random) -> Iterator[Mistake]:
    """Yield bad values of options, unknown options, and too many or too few arguments, without end."""
    while True:
        name = rng.choice(list(GOOD))
        good = GOOD[name]
        draw = rng.random()
        if draw < 0.08:
            yield Mistake(
                f"{name}: an option that is none", (*good, f"--{rng.choice(('speed', 'ouut', 'jsonn'))}"), True
            )
        elif draw < 0.16:
            sure = name not in ("check", "fmt", "execute")  # these take many files
            yield (
                Mistake(f"{name}: a word too many", (*good, "{at}/plan.yaml"), sure)
                if sure
                else Mistake(f"{name}: a file that is not there", (*good, "{at}/nowhere.yaml"), True)
            )
        elif draw < 0.2 and name != "init":
            yield Mistake(f"{name}: nothing to work on", (name,), True)
        elif draw < 0.24:
            yield Mistake("a command that is none", (rng.choice(("sovle", "plan", "", "-", "--", "--speed")),), True)
        elif draw < 0.4:
            yield Mistake("--set of what cannot be", (*SIMULATE, "--set", rng.choice(SETS)), False)
        else:
            yield _wrong_value(name, good, rng)


def _wrong_value(name: str, good: tuple[str, ...], rng: random.Random) -> Mistake:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, "GOOD names commands of rlplan only"
    options = [param for param in command.params if isinstance(param, click.Option)]
    if not options:
        return Mistake(f"{name}: an option that is none", (*good, "--json"), True)
    option = rng.choice(options)
    flag = option.opts[0]
    sure = True
    if option.is_flag:
        return Mistake(f"{name} {flag}=1", (*good, f"{flag}=1"), True)
    if isinstance(option.type, click.Choice):
        value = rng.choice(NO_WORDS)
    elif isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
        sure = rng.random() < 0.5
        value = rng.choice(NO_NUMBERS if sure else ODD_NUMBERS)
    elif isinstance(option.type, click.Path) and flag not in ("--out", "--html", "--timeline"):
        value = rng.choice(NO_PATHS)
        # A workload alone has a running plan; a shipped profile is of a cluster that is there.
    else:
        value, sure = rng.choice(NO_PATHS), False
    return Mistake(f"{name} {flag} {value[:20]!r}", (*good, flag, value), sure)


def word_mistakes() -> Iterator[Mistake]:
    """Yield command lines with options or files that do not go together."""
    for arguments in (
        (*DIFF, "--markdown", "--json"),
        (*SOLVE, "--objective", "usd_per_unit"),
        (*SOLVE, "--from", "{at}/groups.yaml"),
        (*SOLVE, "--no-moves"),
        (*GROUP, "--mode", "exact"),
        (*GROUP, "--no-moves"),
        (*GROUP, "--objective", "usd"),
        ("simulate", "{at}/groups.yaml", "--steps", "5"),
        ("diff", "none", "none"),
        ("diff", "{at}/plan.yaml", "{at}/groups.yaml"),
        ("diff", "nowhere:plan.yaml", "{at}/plan.yaml"),
        ("execute", "{at}/groups.yaml", "--dry-run"),
        ("tune", "{at}/plan.yaml"),
        ("report", "{at}/plan.yaml"),
        ("tune", "{at}"),
        ("report", "{at}/nowhere"),
        ("show", "{at}/job.yaml"),
        ("show", "{at}"),
        ("solve", "{at}/plan.yaml"),
        ("fmt", "{at}/notes.txt"),
        ("schema", "--out", "{at}/nowhere"),
        ("schema", "--out", "/proc"),
        ("init", "{at}"),
        ("init", "/proc/x"),
        ("init", "{at}/notes.txt"),
        ("init", "n" * 300),
        ("profile", "{at}", "--shipped", "GPT-5"),
        ("profile", "{at}", "--shipped", "Qwen2.5-7B", "--pool", "nowhere"),
        ("execute", "{at}/sync.yaml", "{at}/sync.yaml", "--dry-run"),
        ("execute", "{at}/sync.yaml", "--dry-run", "--out", "/proc"),
        ("execute", "{at}/sync.yaml", "--dry-run", "--out", "{at}/notes.txt"),
        ("execute", "{at}/sync.yaml", "--resume", "--dry-run"),
        ("execute", "{at}/sync.yaml", "--history", "{at}", "--dry-run"),
        ("execute", "{at}/sync.yaml", "--history", "{at}/sync.yaml", "--dry-run"),
        ("check", "{at}/plan.yaml", "--policy", "{at}/job.yaml"),
        ("check", "", "{at}/plan.yaml"),
        ("solve", "n" * 300),
        ("show", "n/" * 2500),
        ("tune", "n" * 300),
        ("report", "n" * 300),
        ("fmt", "n" * 300),
        ("simulate", "{at}/plan.yaml", "--trace", "{at}/plan.yaml"),
    ):
        yield Mistake(" ".join(arguments)[:60], arguments, True)
