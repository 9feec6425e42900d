"""Check that a path is the folder of a run; the error for another path says what to give instead."""

from __future__ import annotations

import os
from pathlib import Path

from ..yaml.errors import InputError
from ..yaml.yaml_io import document_kind, kind_of_mark

_GIVE = "give the --out of rlplan execute"


def must_be_run_folder(path: Path) -> None:
    """Raise InputError unless `path` is a folder; for a file, the message names its kind. The folder's content is not
    checked."""
    if os.path.isdir(path):  # noqa: PTH112 (pathlib raises for what can be no path)
        return
    if not os.path.exists(path):  # noqa: PTH110
        raise InputError(f"no such run folder; {_GIVE}", str(path))
    try:
        mark = document_kind(path)
    except InputError:
        mark = None  # not a text file
    kind = kind_of_mark(mark) if mark else ""
    if kind == "plan":
        raise InputError(f"is a plan, and the folder of a run is needed; execute the plan, then {_GIVE}", str(path))
    article = f"a {kind} document" if kind else "a file"
    raise InputError(f"is {article}, and the folder of a run is needed; {_GIVE}", str(path))
