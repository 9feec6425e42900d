"""A mistake, and the commands that read each document of the sample folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Spoil = Callable[[Path], None]


def nothing(folder: Path) -> None:
    """Change nothing in the folder: the mistake is in the command line."""


@dataclass(frozen=True)
class Mistake:
    """A command line, and a change of the folder before it runs.

    Attributes:
        name: text on the mistake, for the report.
        command: arguments of `rlplan`; `{at}` stands for the folder.
        sure: whether the command must refuse it; else the drawn change may be harmless.
        spoil: changes files in the folder.
        file_bytes: bytes that the command may write into a file, as on a full disk; None: any number.
    """

    name: str
    command: tuple[str, ...]
    sure: bool
    spoil: Spoil = nothing
    file_bytes: int | None = None


TRACE = ("--trace", "{at}/lengths.jsonl")
SOLVE = ("solve", "{at}", *TRACE, "--mode", "sync", "-o", "{at}/new.yaml")
GROUP = ("solve", "{at}/workload.yaml", "-o", "{at}/new.yaml")
SHIPPED = ("profile", "{at}", "--shipped", "Qwen2.5-7B", "--out", "{at}/new.yaml")
SIMULATE = ("simulate", "{at}/plan.yaml", "--steps", "4", "--prompts", "64")
DRY_RUN = ("execute", "{at}/sync.yaml", "--dry-run", "--out", "{at}/other")
INIT = ("init", "{at}/mine", "--gpus", "1x8xH100", "--model", "Qwen2.5-7B")
COMPARE = (
    "compare", "{at}/job.yaml", *TRACE, "--mode", "sync", "--vary", "cluster.pools.h100.nodes=1", "--html",
    "{at}/new.html",
)  # fmt: skip
DIFF = ("diff", "{at}/sync.yaml", "{at}/plan.yaml")
STATUS = ("status", "{at}/together")
APPLY = ("apply", "{at}/groups.yaml", "--out", "{at}/together", "--dry-run")
"""Of groups that no driver runs, to the plan that they had: it is refused."""
EXPORT = ("export", "{at}/groups.yaml", "--to", "llm-d", "-o", "{at}/new.yaml")
REPORT, TUNE = ("report", "{at}/run"), ("tune", "{at}/run", "-o", "{at}/new.yaml")


def check(name: str) -> tuple[str, ...]:
    """`rlplan check` of a document."""
    return ("check", f"{{at}}/{name}")


def fmt(name: str) -> tuple[str, ...]:
    """`rlplan fmt` of a document."""
    return ("fmt", f"{{at}}/{name}")


READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "cluster.yaml": (SOLVE, SHIPPED, check("cluster.yaml"), fmt("cluster.yaml"), check("plan.yaml"), SIMULATE, DRY_RUN),
    "job.yaml": (SOLVE, SHIPPED, check("job.yaml"), fmt("job.yaml"), check("plan.yaml"), SIMULATE, DRY_RUN),
    "profile.yaml": (SOLVE, check("profile.yaml"), fmt("profile.yaml"), check("plan.yaml"), SIMULATE, DRY_RUN),
    "sync.yaml": (("show", "{at}/sync.yaml"), check("sync.yaml"), fmt("sync.yaml"), DIFF, DRY_RUN),
    "plan.yaml": (("show", "{at}/plan.yaml"), check("plan.yaml"), fmt("plan.yaml"), DIFF, SIMULATE),
    "lab.yaml": (GROUP, check("lab.yaml"), check("workload.yaml"), ("simulate", "{at}/groups.yaml")),
    "workload.yaml": (GROUP, check("workload.yaml"), fmt("workload.yaml"), ("simulate", "{at}/groups.yaml")),
    "groups.yaml": (
        ("show", "{at}/groups.yaml"), check("groups.yaml"), fmt("groups.yaml"), ("simulate", "{at}/groups.yaml"),
        ("diff", "{at}/groups.yaml", "none"), EXPORT,
    ),
    "team.policy.yaml": (
        check("team.policy.yaml"), ("check", "{at}/plan.yaml", "--policy", "{at}/team.policy.yaml"),
        fmt("team.policy.yaml"),
    ),
    "run/plan.yaml": (REPORT, TUNE),
}  # fmt: skip
"""By document, the command lines that read it."""

ROW_READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lengths.jsonl": (SOLVE, ("simulate", "{at}/plan.yaml", "--steps", "4", *TRACE)),
    "data.jsonl": (SOLVE, check("job.yaml"), DRY_RUN),
    "run/trace.jsonl": (REPORT, TUNE),
}
"""By file of rows, the command lines that read it."""
