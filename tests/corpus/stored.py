"""Stored digests of outputs: a file a part, a line an output, with a digest of each of its sections."""

import hashlib
from pathlib import Path

from .outputs import Outputs

HERE = Path(__file__).parent

Digests = dict[str, dict[str, str]]
"""By output and section the first 12 digits of the sha256 of its text."""


def digests(outputs: Outputs) -> Digests:
    """The digests of outputs."""
    return {
        name: {section: hashlib.sha256(text.encode()).hexdigest()[:12] for section, text in sections.items()}
        for name, sections in outputs.items()
    }


def file_of(part: str) -> Path:
    """Where a part is stored."""
    return HERE / f"{part}.txt"


def write(part: str, outputs: Outputs) -> None:
    """Store a part anew."""
    lines = (
        " ".join([name, *(f"{section}={digest}" for section, digest in found.items())])
        for name, found in sorted(digests(outputs).items())
    )
    file_of(part).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read(part: str) -> Digests:
    """What is stored of a part; nothing if it is not."""
    if not file_of(part).exists():
        return {}
    lines = (line.split(" ") for line in file_of(part).read_text(encoding="utf-8").splitlines())
    return {name: dict(section.rsplit("=", 1) for section in sections) for name, *sections in lines}


def differences(part: str, outputs: Outputs, only: str = "") -> list[str]:
    """Lines that say which sections of which outputs are not as stored."""
    was = {name: sections for name, sections in read(part).items() if name.startswith(only)}
    now = digests(outputs)
    lines = []
    for name in sorted(was.keys() | now.keys()):
        before, after = was.get(name, {}), now.get(name, {})
        marked = [
            f"{section}{'' if section in before and section in after else ' (gone)' if section in before else ' (new)'}"
            for section in {**before, **after}
            if before.get(section) != after.get(section)
        ]
        if marked:
            lines.append(f"{part}: {name}: {', '.join(marked)}")
    return lines


def write_full(folder: Path, part: str, outputs: Outputs) -> None:
    """Write the outputs themselves, a file an output, for `diff -r` with those of another checkout."""
    for name, sections in outputs.items():
        path = folder / part / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"## {section}\n{text.rstrip()}\n" for section, text in sections.items()))
