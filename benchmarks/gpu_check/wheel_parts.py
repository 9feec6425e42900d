"""A folder of wheels that can be carried in pieces: large files in parts, sums of all, a script that installs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CHUNK = 2**22

INSTALL = """\
#!/bin/sh
# Verifies what was carried here, joins the parts of large wheels, and installs all of them; reaches no network.
#   sh install.sh [PYTHON]
set -eu
cd "$(dirname "$0")"
python=${1:-python3}
sha256sum --quiet --check carried.sha256
while read -r name; do
  [ -f "wheels/$name" ] && continue
  cat "wheels/$name".part-* > joining.tmp
  mv joining.tmp "wheels/$name"
done < split.txt
sha256sum --quiet --check wheels.sha256
exec "$python" -m pip install --no-index --no-deps wheels/*.whl
"""


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def split(path: Path, part_bytes: int) -> list[Path]:
    """Replace a file by parts of fewer than `part_bytes` bytes beside it, whose names sort in their order."""
    most = part_bytes - 1
    assert most > 0, part_bytes
    parts = []
    with path.open("rb") as file:
        while chunk := file.read(min(CHUNK, most)):
            part = path.with_name(f"{path.name}.part-{len(parts):03d}")
            parts.append(part)
            with part.open("wb") as target:
                left = most
                while chunk:
                    target.write(chunk)
                    left -= len(chunk)
                    chunk = file.read(min(CHUNK, left)) if left else b""
    path.unlink()
    return parts


def prepare(folder: Path, part_bytes: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Make the folder `wheels` in `folder` fit to be carried: every file has fewer than `part_bytes` bytes.

    Writes beside it `install.sh`; `carried.sha256`, sums of the files as they are carried; `wheels.sha256`, sums of the
    wheels when they are joined; `split.txt`, the names of those in parts; and `manifest.json` with all of that and
    `facts`. Returns the manifest.
    """
    wheels = sorted((folder / "wheels").glob("*.whl"))
    sums = {f"wheels/{path.name}": sha256(path) for path in wheels}
    carried: dict[str, str] = {}
    sizes: dict[str, int] = {}
    in_parts = []
    for path in wheels:
        parts = [path]
        if path.stat().st_size >= part_bytes:
            in_parts.append(path.name)
            parts = split(path, part_bytes)
        for part in parts:
            name = f"wheels/{part.name}"
            carried[name] = sha256(part) if len(parts) > 1 else sums[name]
            sizes[name] = part.stat().st_size
    _write_sums(folder / "carried.sha256", carried)
    _write_sums(folder / "wheels.sha256", sums)
    (folder / "split.txt").write_text("".join(f"{name}\n" for name in in_parts), encoding="utf-8")
    (folder / "install.sh").write_text(INSTALL, encoding="utf-8")
    manifest = {**facts, "bytes": sum(sizes.values()), "largest": max(sizes.values(), default=0), "split": in_parts,
                "files": {name: {"bytes": sizes[name], "sha256": carried[name]} for name in carried}}  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _write_sums(path: Path, sums: Mapping[str, str]) -> None:
    """Write sums as `sha256sum --check` reads them."""
    lines: Sequence[str] = [f"{digest}  {name}\n" for name, digest in sums.items()]
    path.write_text("".join(lines), encoding="utf-8")
