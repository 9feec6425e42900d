"""`diff`: what changes between two plans, by meaning, and its cost; `rlplan diff OLD NEW` calls it.

An operand may be a plan in git, `REV:PATH`, which is read with the plan's inputs into a temporary folder. The folder
has the paths of the repository, so that a plan finds its inputs. An input outside the repository, or one that the
revision does not have, is missing there, which is no error.
"""

from __future__ import annotations

import posixpath
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..planner.reprice import reprice
from ..plans.diff.groups_diff import diff_groups
from ..plans.diff.groups_report import groups_report, one_groups_report
from ..plans.diff.input_diff import InputFiles, NamedFigures, inputs_of
from ..plans.diff.job_diff import diff_jobs
from ..plans.diff.job_report import job_report, one_job_report
from ..plans.diff.review import MAX_LINES, Report, one_plan_dict
from ..plans.diff.review import markdown as rendered
from ..plans.schema.groups_plan import GroupsPlan, load_groups_plan
from ..plans.schema.plan import Plan, load_plan
from ..plans.yaml.errors import InputError
from ..plans.yaml.yaml_io import document_kind, sha256_file
from .given_documents import File, name_of

_TIMEOUT_S = 120.0


@contextmanager
def plan_file(operand: str) -> Iterator[Path]:
    """Yields the path of the plan that `operand` names: a file, or `REV:PATH` of the current git repository.

    `REV:PATH` is relative to the root of the repository, `REV:./PATH` to the current folder, as in git. A file whose
    name is `operand` has precedence. Raises InputError.
    """
    revision, colon, path = operand.partition(":")
    if Path(operand).exists() or not (colon and revision and path):
        yield Path(operand)
        return
    with tempfile.TemporaryDirectory(prefix="rlplan-diff-") as folder:
        yield _checked_out(operand, revision, path, Path(folder))


def without_revision(operand: str) -> str:
    """The path of an operand without its revision."""
    revision, colon, path = operand.partition(":")
    return path if not Path(operand).exists() and colon and revision and path else operand


def _checked_out(operand: str, revision: str, path: str, folder: Path) -> Path:
    root = Path(_git(operand, "rev-parse", "--show-toplevel"))
    if revision.startswith("-"):
        raise InputError(f"'{revision}' is no revision", operand)
    commit = _git(operand, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if path.startswith(("./", "../")):
        prefix = _git(operand, "rev-parse", "--show-prefix")
        path = prefix + path
    path = posixpath.normpath(path)
    if not _take(root, commit, path, folder):
        raise InputError(
            f"revision '{revision}' has no file '{path}'; paths are from the root of the repository, and for a plan "
            "that is new write none",
            operand,
        )
    for name in _inputs(folder / path):
        _take(root, commit, posixpath.normpath(posixpath.join(posixpath.dirname(path), name)), folder)
    return folder / path


def _inputs(plan_path: Path) -> list[str]:
    """Paths of a plan's inputs, relative to it. Raises InputError for what is no plan."""
    return [file.path for file in inputs_of(_plan(plan_path)).values() if not isinstance(file, NamedFigures)]


def _plan(path: Path) -> Plan | GroupsPlan:
    return load_groups_plan(path) if document_kind(path) == "rlplan_groups" else load_plan(path)


def _take(root: Path, commit: str, path: str, folder: Path) -> bool:
    """Copy a file of a commit to the same path below `folder`; False if there is none."""
    target = folder / path
    if path.startswith(("../", "/")) or path == "..":
        return False
    done = _run("-C", str(root), "cat-file", "blob", f"{commit}:{path}")
    if done.returncode:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(done.stdout)
    return True


def _git(operand: str, *arguments: str) -> str:
    done = _run(*arguments)
    if done.returncode == 0:
        return done.stdout.decode(errors="surrogateescape").rstrip("\n")
    if "--verify" in arguments:
        revision = operand.partition(":")[0]
        raise InputError(
            f"no such file, and git knows no revision '{revision}'; fetch it first (in CI: fetch-depth: 0)", operand
        )
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    raise InputError(f"no such file, and git says: {lines[0] if lines else 'failed'}", operand)


def _run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, check=False, timeout=_TIMEOUT_S)
    except FileNotFoundError:
        raise InputError("git is not installed, and REV:PATH needs it; name files instead") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"git {arguments[0]} took longer than {_TIMEOUT_S:g} s") from None


NONE = "none"


@dataclass(frozen=True, repr=False)
class Difference:
    """What differs between two plans.

    Attributes:
        old, new: the plans as they were named; `none` where there is none.
        same: whether nothing differs that counts.
        report: the difference as title, verdict, tables and remarks.
        figures: everything with numbers; keys as in `rlplan diff --json`.
    """

    old: str
    new: str
    same: bool
    report: Report
    figures: dict[str, Any]

    @property
    def verdict(self) -> str:
        """The difference in one line."""
        return self.report.verdict

    def as_dict(self) -> dict[str, Any]:
        """What `rlplan diff --json` prints."""
        return {"old": self.old, "new": self.new, "verdict": self.verdict, **self.figures}

    def markdown(self, most_lines: int | None = MAX_LINES) -> str:
        """GitHub markdown for a pull request; None: however long it is."""
        return rendered(self.report, most_lines)

    def _repr_markdown_(self) -> str:
        return self.markdown()  # Jupyter draws it as tables

    def __repr__(self) -> str:
        return f"<Difference {self.report.title}: {self.verdict}>"


def diff(
    old: File | Plan | GroupsPlan | None,
    new: File | Plan | GroupsPlan | None,
    *,
    full: bool = False,
    began: Callable[[], None] = lambda: None,
) -> Difference:
    """What changes from one plan to another, by meaning, and the cost of the changes.

    Args:
        old, new: both plans of one job, or both plans of groups: objects, files, or `REV:PATH` as in git, which is read
            with its inputs from that revision. None (or `none`): there is no such plan.
        full: the report has all rows, also of what did not change.
        began: called before the old decisions are simulated with the new inputs, where these differ.

    Raises InputError.
    """
    with ExitStack() as stack:
        sides = _side(old, stack), _side(new, stack)
        report, figures, same = _difference(sides[0], sides[1], full, began)
    names = [side.named if side else NONE for side in sides]
    return Difference(names[0], names[1], same, report, figures)


@dataclass(frozen=True)
class _Side:
    """One of the two plans: as given, its path but without a revision, the file to read, the digest of its bytes."""

    plan: Plan | GroupsPlan
    named: str
    name: str
    path: Path
    sha256: str


def _side(given: File | Plan | GroupsPlan | None, stack: ExitStack) -> _Side | None:
    """The plan that an argument names; None for None and `none`."""
    if given is None or given == NONE:
        return None
    operand = name_of(given)
    path = stack.enter_context(plan_file(operand))
    return _Side(_plan(path), operand, without_revision(operand), path, sha256_file(path))


def _difference(
    old: _Side | None, new: _Side | None, full: bool, began: Callable[[], None]
) -> tuple[Report, dict[str, Any], bool]:
    """The report to show, the difference as data, and whether the plans are the same."""
    if old is None or new is None:
        side = new or old
        if side is None:
            raise InputError("none on both sides: name a plan")
        plan, about = side.plan, (side.name, new is not None, InputFiles(side.path.parent))
        report = one_groups_report(plan, *about) if isinstance(plan, GroupsPlan) else one_job_report(plan, *about)
        return report, one_plan_dict(plan, new is not None), False
    title = new.name if old.name == new.name else f"{old.name} -> {new.name}"
    files = InputFiles(old.path.parent), InputFiles(new.path.parent)
    if isinstance(old.plan, Plan) and isinstance(new.plan, Plan):
        job = diff_jobs(old.plan, new.plan, *files, reprice(old.plan, new.plan, new.path, began))
        return job_report(job, new.name, title, full), job.as_dict(), job.same
    if isinstance(old.plan, GroupsPlan) and isinstance(new.plan, GroupsPlan):
        groups = diff_groups(old.plan, new.plan, *files, old_sha256=old.sha256)
        return groups_report(groups, new.name, title, full), groups.as_dict(), groups.same
    kinds = {True: "a plan of one job", False: "a plan of groups"}
    raise InputError(
        f"{old.name} is {kinds[isinstance(old.plan, Plan)]} and {new.name} is {kinds[isinstance(new.plan, Plan)]}; "
        "compare two of one kind"
    )
