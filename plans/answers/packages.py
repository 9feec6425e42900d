"""Packages that a job states for its sandbox (`reward.packages`): their files, and the modules that they have."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata

from ..yaml.errors import InputError
from .code_tests import CodeTests

_MODULES = {
    "beautifulsoup4": "bs4", "opencv-python": "cv2", "opencv-python-headless": "cv2", "pillow": "PIL", "pycryptodome":
    "Crypto", "python-dateutil": "dateutil", "pyyaml": "yaml", "scikit-image": "skimage", "scikit-learn": "sklearn",
}  # fmt: skip
"""Modules of packages that are called otherwise, for where they are not installed."""
_DISTRIBUTIONS = {module: name for name, module in reversed(_MODULES.items())}


def package_files(names: Sequence[str]) -> dict[str, str]:
    """The files and folders of these distributions and of all that they require, by name of a top-level module or of a
    description (`….dist-info`). Raises `InputError` for one that is not installed here."""
    found: dict[str, str] = {}
    waiting, seen = [(name, True) for name in names], set[str]()
    while waiting:
        name, is_stated = waiting.pop()
        if (key := re.sub(r"[-_.]+", "-", name).lower()) in seen:
            continue
        seen.add(key)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if is_stated:
                raise InputError(
                    f"reward.packages: {name} is not installed here; run: pip install {name}, or remove it"
                ) from None
            continue  # what other machines need, as colorama on Windows
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "/", "__pycache__")}:
            if not top.endswith(".pth"):
                module = top.partition(".")[0] if top.endswith((".py", ".so")) else top
                found[module] = os.path.realpath(str(package.locate_file(top)))
        for line in package.requires or ():
            if "extra ==" not in line and (required := re.match(r"[\w.-]+", line)):
                waiting.append((required[0], False))
    return found


@lru_cache(maxsize=8)
def modules_of(names: tuple[str, ...]) -> frozenset[str]:
    """Top-level modules that these distributions bring; by their names alone where they are not installed."""
    found: set[str] = set()
    for name in names:
        try:
            found |= {each for each in package_files([name]) if each.isidentifier()}
        except InputError:
            found.add(_MODULES.get(name.lower(), name.lower().replace("-", "_")))
    return frozenset(found)


def unstated(tests: CodeTests, packages: Sequence[str]) -> str:
    """Why tests cannot run with these packages, in one line: what they import that is not stated; "" if they can."""
    missing = sorted(tests.packages - modules_of(tuple(packages)))
    if not missing:
        return ""
    names = [_DISTRIBUTIONS.get(each, each) for each in missing]
    listed = ", ".join(dict.fromkeys([*packages, *names]))
    return (
        f"the tests need {', '.join(missing)}, which the sandbox lacks; write packages: [{listed}] in the reward "
        "section, or remove the row (what the response defines is in the module solution)"
    )
