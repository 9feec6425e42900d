"""One browser for all tests of pages, and what they look at: a plan, a plan of groups, reports of runs."""

import base64
import json
import os
import re
import shutil
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rlplan.plans.facts.compared_plans import ComparedPoint
from rlplan.plans.page.page_of_audit import audit_page
from rlplan.plans.page.page_of_compare import comparison_page
from rlplan.plans.page.page_of_groups import groups_page
from rlplan.plans.page.page_of_plan import plan_page
from rlplan.plans.page.page_of_run import run_page
from rlplan.plans.schema.groups_plan import GroupsPlan
from rlplan.plans.schema.plan import Plan
from rlplan.plans.schema.predicted import Predicted
from rlplan.plans.yaml.yaml_io import loads
from rlplan.traces.kept_samples import samples_file, write_samples
from rlplan.traces.report import report

from ...frameworks.logs.over_sampling import Oversampled
from ...traces.kept import kept
from ..conftest import GROUPS, PLAN_TEXT, with_values
from .runs import write_run

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")  # playwright keeps an event loop running in this thread meanwhile
def browser():
    path = os.environ.get("RLPLAN_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        message = f"no Chromium: set RLPLAN_CHROMIUM, or install one of {', '.join(NAMES)}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # CI is root
        opened.new_context(offline=True).new_page()  # decodes pictures
        yield opened
        opened.close()


@dataclass
class Opened:
    """A page that was opened, and what it did."""

    page: Any
    said: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def charts(self):
        """The pictures of charts by the ids of their figures."""
        whole = pixels(self.page)
        return {
            key: whole[round(top) : round(bottom), round(left) : round(right)].astype(np.int16)
            for key, left, top, right, bottom in self.page.evaluate(BOXES)
        }


@pytest.fixture
def opened(browser, tmp_path):
    """Open HTML from a file without a network, or an address of this machine, at a width; wait until it is drawn."""
    contexts = []

    def opened_(html, width=1280, scheme="light", url=None):
        file = tmp_path / f"page-{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(
            offline=url is None, viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        found = Opened(page)
        page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: found.said.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("dialog", lambda dialog: (found.dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(url or file.as_uri())
        page.wait_for_selector("body[data-drawn]", state="attached", timeout=30_000)
        return found

    yield opened_
    for context in contexts:
        context.close()


# As page.css has them in the light theme.
LIGHT = {"#010101": "#1a2230", "#020202": "#5b6676", "#030303": "#e8ebf0", "#040404": "#ffffff", "#050505": "#e2e6ec"}


def payloads(html):
    """The charts' data."""
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)]


DECODE = """async (png) => {
    const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + png)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const bytes = context.getImageData(0, 0, image.width, image.height).data;
    let text = '';
    for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
    return [image.width, image.height, btoa(text)];
}"""


def pixels(page):
    """(height, width, 3) of a whole page, each from 0 to 255. The browser decodes its own PNG."""
    reader = page.context.browser.contexts[0].pages[0]  # about:blank, beside the pages that are looked at
    width, height, text = reader.evaluate(DECODE, base64.b64encode(page.screenshot(full_page=True)).decode())
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)[:, :, :3]


BOXES = """() => [...document.querySelectorAll('.chart')].map(box => {
    const at = box.getBoundingClientRect();
    return [box.parentElement.id, at.left + scrollX, at.top + scrollY, at.right + scrollX, at.bottom + scrollY];
})"""


def colours_of(figure):
    """Colours of a chart's areas, and of its lines and dots, as they look on a white panel; stand-ins for text colours
    are not among them, since axes are drawn in these as well."""
    areas, marks = set(), set()
    for trace in figure["data"]:
        marker, line, mode = trace.get("marker", {}), trace.get("line", {}), trace.get("mode", "")
        if trace["type"] == "bar":
            along = "x" if trace.get("orientation") == "h" else "y"
            low, high = figure["layout"][f"{along}axis"]["range"]
            # What is a line's width on any screen may be the width of no pixel.
            if "pattern" not in marker and max(trace[along]) > 0.02 * (high - low):
                areas.add(marker["color"])
        elif trace.get("fill") == "toself":
            areas.add(trace["fillcolor"])
        elif "lines" in mode and line.get("width", 1) >= 2:
            marks.add(line["color"])
        elif "markers" in mode and marker.get("line", {}).get("width", 0) >= 2:
            marks.add(marker["line"]["color"])
    return {_seen(c) for c in areas if c not in LIGHT}, {_seen(c) for c in marks if c not in LIGHT}


def _seen(colour):
    if colour.startswith("#"):
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return red, green, blue
    red, green, blue, share = map(float, colour.removeprefix("rgba(").removesuffix(")").split(","))
    return tuple(round(255 + share * (part - 255)) for part in (red, green, blue))


def undrawn(found, figures):
    """By chart, the colours of its data of which its picture has hardly a pixel; charts that have all are not named."""
    result = {}
    for (key, picture), figure in zip(found.charts().items(), figures, strict=True):
        areas, marks = colours_of(figure)
        assert areas or marks, f"{key} has no colour of its own"
        missing = [colour for colour in sorted(areas) if _squares(picture, colour) < 4]
        missing += [colour for colour in sorted(marks) if _near(picture, colour).sum() < 6]
        if missing:
            result[key] = missing
    return result


def _near(picture, colour):
    return abs(picture - np.array(colour, np.int16)).max(axis=2) <= 24


def _squares(picture, colour):
    """Squares of four pixels of a colour: the edges of letters pass through many greys, but have none."""
    near = _near(picture, colour)
    return int((near[1:, 1:] & near[1:, :-1] & near[:-1, 1:] & near[:-1, :-1]).sum())


# -- what is looked at: made once, since nobody changes it -----------------------------------------------------------


@pytest.fixture(scope="session")
def plan():
    return loads(PLAN_TEXT, Plan)


@pytest.fixture(scope="session")
def groups():
    return loads(GROUPS, GroupsPlan)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder of three runs: planned, race (killed in a step), and plain."""
    home = tmp_path_factory.mktemp("runs")
    for name, mode, killed in (("plan", "exact", False), ("race", "race", True), ("sync", "sync", False)):
        write_run(home / name, PLAN_TEXT, mode, steps=20, killed=killed)
    for number in range(1, 21):
        rows = [kept(number, sample, prompt="p1", response="no_space" * 99 + "\n so" * 20) for sample in range(4)]
        write_samples(samples_file(home / "plan", number), rows)
    return home


@pytest.fixture(scope="session")
def html(plan, groups, runs):
    """A page of each kind by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the torn line
        run_report = report(runs)
    return {
        "plan": plan_page(plan, title="plan.yaml"),
        "groups": groups_page(groups, title="groups.yaml"),
        "run": run_page(run_report, title="runs"),
        "compare": comparison_page(points(plan), job="toy", title="3 plans compared"),
        "audit": audit_page(Oversampled(16, 24, 30, rows=60).audit(), title="What dumps dropped"),
    }


def points(plan):
    """A comparison: a plan, one that is twice as fast for more money, and none."""
    changes = {"step_s.mean": 3.2, "seconds_per_sample": 0.025, "usd_per_1k_samples": 0.002085}
    fast = Predicted.model_validate(with_values(plan.predicted.model_dump(mode="json"), changes))
    key, faster = "cluster.pools.main.nodes", plan.model_copy(update={"predicted": fast})
    return [
        ComparedPoint({key: "1"}, plan),
        ComparedPoint({key: "4"}, faster, notes=("the length trace holds few samples",)),
        ComparedPoint({key: "64"}, None, reason="the data has 8 prompts <and> a step trains 16"),
    ]


def as_text(html):
    """The page without plotly.js, which is most of it."""
    return re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)


def changed(plan, **whys):
    """The plan with other reasons."""
    return plan.model_copy(update={"job": plan.job.model_copy(update={"why": whys})})
