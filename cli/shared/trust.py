"""What a plan would run, read and write, and whether this user is asked before it is executed.

The rule. What decides which code runs are the plan, job.yaml, and for a reward function the Python beside both. A file
of these is a stranger's if neither this user nor root owns it, or if everybody may write to it. Of a stranger's file a
person is asked once; without a terminal the command says the digest of all these files, and `--trust DIGEST` stands for
the answer. Each file that was accepted is kept by path and content in the user's state folder, so that one that changes
is asked about again, and no other. Solving, checking and showing execute nothing of a document, so they ask nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...plans.check.solved_rules import input_files, input_path
from ...plans.files.reward_function import module_file
from ...plans.schema.job import RowSets
from ...plans.yaml.errors import InputError
from ...plans.yaml.yaml_doc import parse
from ...plans.yaml.yaml_io import sha256_file

if TYPE_CHECKING:
    from ...executor.prepare import Execution

ANY = "any"
"""What `--trust` takes in place of a digest: whatever it is."""
_COLUMNS = 8
MOST_FILES = 5000
"""Most files of Python that are looked at."""


class Reach(NamedTuple):
    """What is done (`reads`, `runs`, `loads`, `writes`) with what; `text`: the line for people, after the verb."""

    verb: str
    text: str

    def __str__(self) -> str:
        return f"{self.verb:{_COLUMNS}}{self.text}"


@dataclass(frozen=True)
class Trust:
    """What executions run: in lines; which files that decide it are a stranger's, and why; all files that decide it,
    which are read once their digest is asked for."""

    reach: list[Reach]
    strange: dict[Path, str]
    files: Sequence[Path]

    @cached_property
    def digest(self) -> str:
        """Of all files that decide what is run, by name and content."""
        told = json.dumps(sorted([path.name, _digest(path)] for path in self.files))
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def data(self) -> dict[str, Any]:
        """For --json."""
        rows = [each._asdict() for each in self.reach]
        return {"reach": rows, "digest": self.digest, "of_others": list(map(str, self.strange))}

    @property
    def lines(self) -> list[str]:
        """For people."""
        return [*map(str, self.reach), f"{'digest':{_COLUMNS}}{self.digest}"]


def trust_of(executions: Sequence[Execution], *further: Path) -> Trust:
    """What these executions run; `further`: documents beside their plans, such as a plan of groups."""
    reach = list(dict.fromkeys(each for execution in executions for each in _reach(execution)))
    files = {path.resolve() for execution in executions for path in _deciding(execution)}
    files |= {path.resolve() for path in further}
    found = [path for path in sorted(files) if path.is_file()]
    return Trust(reach, {path: why for path in found if (why := _why_strange(path)) is not None}, found)


def must_be_trusted(trust: Trust, accepted: str | None, plan: Path) -> None:
    """Ask whether what a stranger wrote is to be run, once; `accepted`: the digest of --trust. Raises InputError if it
    is not accepted, or if it is of something else than was accepted."""
    if accepted not in (None, ANY, trust.digest):
        raise InputError(
            f"--trust {accepted}: what it runs has digest {trust.digest} by now; read it again: --dry-run", str(plan)
        )
    if not trust.strange:
        return
    entries = {path: _entry(path) for path in trust.strange}
    kept = _kept()
    unknown = {path: why for path, why in trust.strange.items() if entries[path] not in kept}
    if not unknown:
        return
    if accepted is None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            path, why = next(iter(unknown.items()))
            raise InputError(
                f"is not run without a yes, since {path} {why}; read what it runs (rlplan execute {plan} --dry-run), "
                f"then add --trust {trust.digest}",
                str(plan),
            )
        click.echo("\n".join([*trust.lines, *(f"{path} {why}" for path, why in unknown.items())]), err=True)
        if not click.confirm("Run it?", err=True):
            raise InputError("is not run", str(plan))
    _keep(list(entries.values()))


def _entry(path: Path) -> str:
    """What is kept of a file that was accepted, where it lies and as it is."""
    return hashlib.sha256(f"{path}\0{_digest(path)}".encode()).hexdigest()


# ---- what is run ----


def _reach(execution: Execution) -> Iterator[Reach]:
    checked, paths = execution.checked, execution.checked.paths
    yield Reach("reads", _short(execution.plan_path))
    for _, input_file in input_files(execution.plan):
        yield Reach("reads", _short(input_path(input_file, execution.plan_path)))
    rows = paths.data
    sets = [path for _, path, _ in rows.sets] if isinstance(rows, RowSets) else [rows]
    for file in (*sets, paths.evaluation, paths.warm_start):
        if file is not None:
            yield Reach("reads", _short(file))
    for model in filter(None, (paths.model, paths.judge)):
        own = " (its own Python code is not run)" if _has_code(Path(model)) else ""
        yield Reach("loads", f"model {_short(Path(model)) if Path(model).is_dir() else f'{model} of the hub'}{own}")
    for part in checked.job.reward.parts:
        if part.function is not None:
            file = module_file(paths.reward_folder, part.function)
            where = "an installed module" if file is None else _short(file)
            yield Reach("runs", f"reward function {part.function} of {where}, as this user, without limits on files")
        if part.kind == "code":
            held = "in a sandbox" if part.sandbox == "required" else "in a sandbox, or without one where there is none"
            yield Reach("runs", f"the code of responses, {held} (reward.sandbox: {part.sandbox})")
        if part.environment:
            yield Reach("reads", f"of the environment {', '.join(part.environment)}, for reward {part.label}")
    yield Reach("writes", _short(execution.run_dir))


def _deciding(execution: Execution) -> Iterator[Path]:
    """Files that decide which code runs, or bear it."""
    yield from (execution.plan_path, execution.checked.job_path)
    functions = [part.function for part in execution.checked.job.reward.parts if part.function is not None]
    if functions:  # else nothing is imported from the folder
        folder = execution.checked.paths.reward_folder
        yield from filter(None, (module_file(folder, name) for name in functions))
        yield from itertools.islice(_importable(folder), MOST_FILES)


def _importable(folder: Path) -> Iterator[Path]:
    """Files below a folder that Python would import, but for those of virtual environments and hidden folders."""
    for place, folders, files in os.walk(folder):
        folders[:] = [] if "pyvenv.cfg" in files else sorted(each for each in folders if not each.startswith("."))
        yield from (Path(place) / each for each in sorted(files) if each.endswith((".py", ".so", ".pyc")))


def _digest(path: Path) -> str:
    """Of what stands at a path; that of a file that this user cannot read says so."""
    return sha256_file(path) if os.access(path, os.R_OK) else "unreadable"


def _why_strange(path: Path) -> str | None:
    """Why a file is a stranger's; None if it is this user's or root's."""
    try:
        found = path.stat()
    except OSError:
        return None  # whoever needs it says that it is gone
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (id {found.st_uid})"
    return "may be written by everybody" if found.st_mode & stat.S_IWOTH else None


def _has_code(model: Path) -> bool:
    """Whether a model's folder names Python code of its own."""
    try:
        return "auto_map" in (parse((model / "config.json").read_text(encoding="utf-8"), "").value or {})
    except (OSError, ValueError, TypeError, InputError):
        return False


def _short(path: Path) -> str:
    """A path from here, if it lies below."""
    full = Path(os.path.abspath(path))  # noqa: PTH100 - a link is what the user wrote
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else str(full)


# ---- what was accepted ----


def _store() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rlplan" / "trusted"


def _kept() -> set[str]:
    try:
        return set(_store().read_text(encoding="utf-8").split())
    except (OSError, ValueError, RuntimeError):
        return set()


def _keep(entries: Sequence[str]) -> None:
    try:
        store = _store()
        store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with store.open("a", encoding="utf-8") as file:
            file.writelines(f"{entry}\n" for entry in entries)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        click.echo(f"it is asked again next time, since the answer cannot be kept: {error}", err=True)
