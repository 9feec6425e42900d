"""Makes the pictures of README.md and docs/index.md: `python docs/pictures.py [RUN]`.

docs/show.png is what `rlplan show` prints of the 64-GPU example. docs/report.png is the top of the page that
`rlplan report` writes of RUN (`runs/demo` after `make demo`); without RUN it is left as it is. Needs Chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
LINES, COLUMNS = 31, 100


def rlplan(*arguments: str) -> str:
    """The output of an rlplan command, in colours."""
    command = [sys.executable, "-m", "rlplan.cli.main", *arguments]
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def screenshot(page: Path, image: Path, width: int, height: int, scale: float) -> None:
    """Write the top left of a page, `width` x `height` CSS pixels, as PNG."""
    browsers = (os.environ.get("RLPLAN_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in browsers if name and (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("no Chromium is on the path; name one in RLPLAN_CHROMIUM")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--force-device-scale-factor={scale}"]
    size = f"--window-size={width},{height}"
    subprocess.run([browser, *options, size, f"--screenshot={image}", page.as_uri()], check=True, capture_output=True)


def picture_of_show(folder: Path) -> None:
    """docs/show.png: the first lines of `rlplan show`, as a terminal draws them."""
    plan = "plans/examples/math-32b.yaml"
    lines = rlplan("show", plan).split("\n")[:LINES]
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi("\n".join(lines)), no_wrap=True, crop=False)
    svg = console.export_svg(title=f"rlplan show {Path(plan).name}", font_aspect_ratio=0.61)
    width, height = (float(number) for number in svg.partition('viewBox="0 0 ')[2].partition('"')[0].split())
    page = folder / "show.html"
    page.write_text(f'<body style="margin:0"><div style="width:880px">{svg}</div></body>', encoding="utf-8")
    screenshot(page, ROOT / "docs" / "show.png", 880, round(880 * height / width), 1)


def picture_of_report(folder: Path, run: str) -> None:
    """docs/report.png: tiles, table of runs and the first charts of `rlplan report`."""
    page = folder / "report.html"
    rlplan("report", run, "--html", str(page))
    screenshot(page, ROOT / "docs" / "report.png", 1200, 1010, 0.75)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        picture_of_show(Path(name))
        if len(sys.argv) > 1:
            picture_of_report(Path(name), sys.argv[1])
