"""Plays scenarios: each output as text, cut into sections."""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from pathlib import Path
from unittest import mock

import yaml

from ..cli.command_line import rlplan
from ..cli.few_candidates import few_candidates
from .scenarios import Ask, scenarios

Sections = dict[str, str]
Outputs = dict[str, Sections]
"""By the output's name its sections, each as text."""


class Today(datetime):
    """The day on which `check` looks at profiles, whose age it tells."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 28, tzinfo=tz)


def played(parts: Sequence[str], jobs: int = 1, only: str = "") -> dict[str, Outputs]:
    """The outputs of these parts, by part. `only`: of scenarios whose name begins so."""
    chosen = [scenario.name for scenario in scenarios() if scenario.name.startswith(only)]
    found: dict[str, Outputs] = {part: {} for part in parts}
    if not parts:
        return found
    if jobs == 1:
        results = list(map(_played, chosen, [tuple(parts)] * len(chosen)))
    else:
        with ProcessPoolExecutor(jobs) as workers:
            results = list(workers.map(_played, chosen, [tuple(parts)] * len(chosen)))
    for result in results:
        for part, name, sections in result:
            found[part][name] = sections
    return found


def _played(name: str, parts: tuple[str, ...]) -> list[tuple[str, str, Sections]]:
    (scenario,) = (each for each in scenarios() if each.name == name)
    asks = [ask for ask in scenario.asks if ask.part in (*parts, "planner")]
    for variable in ("RLPLAN_WRITE_GOLDEN", "GITHUB_WORKSPACE", "RAY_ADDRESS", "FORCE_COLOR", "NO_COLOR"):
        os.environ.pop(variable, None)
    os.environ["COLUMNS"] = "120"
    with (
        tempfile.TemporaryDirectory(prefix="rlplan-corpus-") as home,
        mock.patch("rlplan.api.check_files.datetime", Today),
    ):
        folder = Path(home) / "work"
        folder.mkdir()
        scenario.prepare(folder)
        if scenario.coarse:
            with few_candidates():
                results = [(ask, _asked(ask, folder)) for ask in asks]
        else:
            results = [(ask, _asked(ask, folder)) for ask in asks]
    return [(ask.part, f"{scenario.name}/{ask.name}", sections) for ask, sections in results if ask.part in parts]


def _asked(ask: Ask, folder: Path) -> Sections:
    """What a command leaves: its exit code and errors, its standard output, the files that it writes."""
    result = rlplan(*ask.words, folder=folder)
    for name in ask.files:
        _still(folder / name)
    here = str(folder)
    sections = {"exit": f"{result.returncode}\n{result.stderr}".replace(here, "{folder}")}
    if ask.standard:
        sections |= _sections("", result.stdout.replace(here, "{folder}"))
    for name in ask.files:
        path = folder / name
        sections |= _sections(f"{name}:", path.read_text().replace(here, "{folder}") if path.exists() else "")
    return sections


def _still(path: Path) -> None:
    """Give a written plan a fixed time, so that what is made of it (digests, pages) is the same each time."""
    if path.suffix == ".yaml" and path.exists():
        text = re.sub(r"\b(solved_at: )\S+", r'\1"2026-11-28T00:00:00Z"', path.read_text())
        path.write_text(re.sub(r"\b(solve_s: )[0-9.e-]+", r"\g<1>1.0", text))


CLOCK = (
    (r'("quiet_s": )[0-9.]+', r"\g<1>1.0"),
    (r"This page was written [-0-9: ]+", "This page was written now "),
    (r"(workload\.points/[^,]*, sha256: )[0-9a-f]{64}", r"\1POINT"),
)
"""What depends on the day: how long a trace has been quiet, when a page was written, and digests of plans that `solve`
writes of a workload's jobs, whose `volatile` block says when."""


def _sections(prefix: str, text: str) -> Sections:
    """A document's sections; other text is one section. Of YAML also the text as it is, without what is volatile."""
    for pattern, replacement in CLOCK:
        text = re.sub(pattern, replacement, text)
    if prefix.endswith(".yaml:"):
        lines = list(_without_volatile(text.splitlines()))
        sections = {f"{prefix}bytes": "\n".join(lines)}
        return sections | dict(_parts(prefix, yaml.load("\n".join(lines), yaml.CSafeLoader) or {}))
    try:
        document = json.loads(text)
    except ValueError:
        return {f"{prefix}text": text}
    return dict(_parts(prefix, document)) if isinstance(document, dict) else {f"{prefix}text": text}


def _without_volatile(lines: Sequence[str]) -> Iterator[str]:
    """The lines of a YAML document but for its top-level key `volatile`."""
    within = False
    for line in lines:
        if line[:1] not in (" ", ""):
            within = line.startswith("volatile:")
        if not within:
            yield line


def _parts(prefix: str, document: dict) -> Iterator[tuple[str, str]]:
    """Each top-level key's value as JSON lines; `job`, `predicted`, `groups` and `rounds` are cut once more."""
    for key, value in document.items():
        if key == "volatile":
            continue
        if key in ("job", "predicted", "groups") and isinstance(value, dict):
            for name, part in value.items():
                yield f"{prefix}{key}.{name}", json.dumps(part, indent=1)
        else:
            yield f"{prefix}{key}", json.dumps(value, indent=1)
