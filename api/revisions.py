"""Plans in git: `REV:PATH` as an operand, read with the plan's inputs into a temporary folder.

The folder has the paths of the repository, so that a plan finds its inputs. An input outside the repository, or one
that the revision does not have, is missing there, which is no error.
"""

from __future__ import annotations

import posixpath
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..plans.yaml.errors import InputError

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
    from ..plans.diff.input_diff import NamedFigures, inputs_of
    from ..plans.schema.groups_plan import load_groups_plan
    from ..plans.schema.plan import load_plan
    from ..plans.yaml.yaml_io import document_kind

    plan = load_groups_plan(plan_path) if document_kind(plan_path) == "rlplan_groups" else load_plan(plan_path)
    return [file.path for file in inputs_of(plan).values() if not isinstance(file, NamedFigures)]


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
