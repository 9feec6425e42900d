"""What the last run of the tests took: seconds, tests and engine starts.

    python -m benchmarks.suite [--json]

Read from pytest's reports of `make test` or `make test-all`, whichever ran last, in build/tests/. Seconds are those of
pytest's sessions, with their fixtures. A part that began and left no report, since it was killed, is an error.

JSON: {"pure_tests", "pure_s", "engine_tests", "engine_s", "test_lines", "engine_starts", "failed", "parts": {PART:
{"tests", "seconds"}}}. Tests count if they were not skipped; `test_lines`: of all Python files below tests/.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import click

from rlplan.plans.yaml.errors import InputError

from ..entry import as_json_option, run, tell
from .changed import tracked_files

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "build" / "tests"
PARTS = {"pure": ("pure", "search"), "engine": ("walk", "engines")}
"""Names of the Makefile's parts, which their reports bear: without engines, with engines."""


def part_figures(report: Path) -> dict[str, float]:
    """Tests, failed ones, seconds and engine starts of one pytest process. Raises InputError if it is no report."""
    try:
        root = ElementTree.parse(report).getroot()
    except ElementTree.ParseError as error:
        raise InputError(f"is no report of pytest: {error}; run make test again", str(report)) from None
    figures = {"tests": 0.0, "failed": 0.0, "seconds": 0.0, "engine_starts": 0.0}
    for suite in root.iter("testsuite"):
        counts = {key: int(suite.get(key, 0)) for key in ("tests", "skipped", "failures", "errors")}
        figures["tests"] += counts["tests"] - counts["skipped"]
        figures["failed"] += counts["failures"] + counts["errors"]
        figures["seconds"] += float(suite.get("time", 0.0))
        for found in suite.iter("property"):
            if found.get("name") == "engine_starts":
                figures["engine_starts"] += int(found.get("value", 0))
    return figures


def suite_figures(reports: Path = REPORTS) -> dict[str, object]:
    """The figures of the last run. Raises InputError if there are no reports."""
    for begun in sorted(reports.glob("*.begun")):
        if not begun.with_suffix(".xml").exists():
            raise InputError(f"the part {begun.stem} began and left no report; run it again", str(reports))
    parts = {path.stem: part_figures(path) for path in sorted(reports.glob("*.xml"))}
    if not parts:
        raise InputError("no tests ran here; run make test first", str(reports))

    def total(key: str, names: tuple[str, ...]) -> float:
        return sum(parts[name][key] for name in names if name in parts)

    tests = [path for path in tracked_files(ROOT) if path.startswith("tests/") and path.endswith(".py")]
    result: dict[str, object] = {}
    for kind, names in PARTS.items():
        result[f"{kind}_tests"] = int(total("tests", names))
        result[f"{kind}_s"] = round(total("seconds", names), 1)
    result["test_lines"] = sum(len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in tests)
    every = tuple(parts)
    result |= {"engine_starts": int(total("engine_starts", every)), "failed": int(total("failed", every))}
    result["parts"] = {
        name: {"tests": int(figures["tests"]), "seconds": round(figures["seconds"], 1)}
        for name, figures in parts.items()
    }
    return result


@click.command()
@as_json_option
def main(as_json: bool) -> None:
    """Print what the last run of the tests took."""
    figures = suite_figures()
    lines = [f"{kind:7} {figures[f'{kind}_tests']:5} tests in {figures[f'{kind}_s']} s" for kind in PARTS]
    lines.append(f"{figures['engine_starts']} engines started, {figures['failed']} tests failed")
    tell(figures, as_json, [*lines, f"{figures['test_lines']} lines of tests"])


if __name__ == "__main__":
    run(main)
