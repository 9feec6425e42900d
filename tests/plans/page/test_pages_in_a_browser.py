"""Pages as a browser shows them: offline, silent, drawn, and no wider than the screen."""

import time

import numpy as np
import pytest

from rlplan.cli.watch import PageServer
from rlplan.plans.page.page_of_plan import plan_page
from rlplan.plans.page.page_of_run import run_page
from rlplan.traces.kept_samples import samples_file, write_samples
from rlplan.traces.report import report
from rlplan.traces.watched_runs import WatchedRuns

from ...traces.kept import kept
from ..conftest import PLAN_TEXT
from .conftest import BOXES, changed, payloads, pixels, undrawn
from .runs import write_run

KINDS = ("plan", "groups", "run", "compare", "audit")
CHARTS = {
    "plan": {"timeline", "phases", "front", "lengths", "memory"},
    "compare": {"steps", "speed-cost", "shares"},
    "audit": {"lengths", "steps", "prompts"},
    "groups": {"costs", "slowdowns", "memory", "timeline-g1"},
    "run": {"reward", "step-seconds", "step-lengths", "lengths", "comparison", "waste"}
    | {f"{c}-{i}" for c in ("steps", "phases") for i in range(3)}
    | {"shape-0", "shape-2"},
}  # fmt: skip


CUT_TEXTS = """() => [...document.querySelectorAll('.chart')].flatMap(box => {
    const a = box.getBoundingClientRect();
    return [...box.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()]).filter(([_, b]) =>
        b.width > 0 && (b.left < a.left - 1 || b.right > a.right + 1 || b.top < a.top - 1 || b.bottom > a.bottom + 1)
    ).map(([text, _]) => box.parentElement.id + ': ' + text.textContent);
})"""


UNDRAWN = """() => [...document.querySelectorAll('.chart')].filter(
    box => !box.querySelector('.trace path')).map(box => box.parentElement.id)"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_opens_offline_and_shows_each_chart_at_both_widths(kind, width, html, opened):
    text = html[kind]
    found = opened(text, width)
    assert found.said == [] and found.dialogs == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:"))] == []
    assert found.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert {key for key, *_ in found.page.evaluate(BOXES)} == CHARTS[kind]
    assert undrawn(found, payloads(text)) == {}
    # What stands in a chart stands in it wholly.
    assert found.page.evaluate(CUT_TEXTS) == []


def test_a_training_phase_is_seen_on_its_node(html, opened):
    picture = opened(html["groups"]).charts()["timeline-g1"]
    # Rows: the two halves of node 0, then the node that trains.
    row = picture[round(0.6 * picture.shape[0])]
    coloured = (np.ptp(row, axis=1) > 60).mean()
    assert coloured > 0.4, "bars of 150 of 200 s"


def test_the_dark_theme_is_dark_and_drawn_in_its_own_colours(html, opened):
    found = opened(html["plan"], scheme="dark")
    picture = pixels(found.page)
    assert picture.mean() < 70
    # Text and grid of the charts have the theme's colours, not their stand-ins.
    assert "rgb(1, 1, 1)" not in found.page.evaluate("document.querySelector('.chart').innerHTML")


def test_hostile_text_is_shown_and_not_run(plan, tmp_path, opened):
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    hostile = changed(plan, **{"cutoff_tokens": f"{evil} </script> & \"quoted\" 'text'"})
    found = opened(plan_page(hostile, title=f"{evil}"))
    assert found.dialogs == [] and found.said == []
    assert evil in found.page.inner_text("body")
    assert found.page.inner_text("h1") == evil
    name = "<img src=x onerror=alert(1)>"
    write_run(tmp_path / "evil" / name, PLAN_TEXT, "exact", steps=8, killed=True)
    texts = {"response": f"{evil} \x1b[31m[bold]</pre></details>", "prompt_text": evil, "prompt": evil}
    rows = [kept(number, sample, **texts) for number in (1, 2) for sample in range(2)]
    for number in (1, 2):
        write_samples(samples_file(tmp_path / "evil" / name, number), rows)
    found = opened(run_page(report(tmp_path / "evil"), title="evil"))
    assert found.page.inner_text("details[open] > pre") == f"{evil}  [31m[bold]</pre></details>"
    assert f"several steps: {evil}" in found.page.inner_text("body")
    assert found.dialogs == [] and found.said == [] and found.page.evaluate(UNDRAWN) == []
    assert name in found.page.inner_text("body") and "</script><script>alert(2)" in found.page.inner_text("body")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_that_follows_a_run_leaves_the_reader_in_place(width, tmp_path, opened):
    whole = write_run(tmp_path / "whole", PLAN_TEXT, "exact", steps=8, full=True)
    events = (whole / "trace.jsonl").read_text().splitlines(keepends=True)
    ends = [place for place, line in enumerate(events) if '"event": "step"' in line]
    home = tmp_path / "run"
    home.mkdir()
    (home / "plan.yaml").write_text((whole / "plan.yaml").read_text())
    (home / "trace.jsonl").write_text("".join(events[: ends[3] + 1]))
    for number in (1, 2, 3):
        write_samples(samples_file(home, number), [kept(number, sample) for sample in range(4)])
    watched = WatchedRuns([home])
    with PageServer(watched, None, "run") as server:
        found = opened("", width, url=server.url)
        page = found.page
        page.evaluate("""() => {
            document.querySelectorAll('details').forEach((each, place) => { each.open = place % 3 === 1; });
            document.querySelector('#reward .chart').dataset.mine = 1;
            document.querySelector('#reward').scrollIntoView();
        }""")
        top = page.evaluate(REWARD_TOP)
        opened_before = page.evaluate(OPEN_DETAILS)
        until(page, "document.querySelector('.live').innerText.includes('step 4 of 40')")
        assert "4 of 40" in page.inner_text(".card")
        with (home / "trace.jsonl").open("a") as file:
            file.write("".join(events[ends[3] + 1 : ends[7] + 1]))
        watched.look()
        server.wake()
        until(page, "document.querySelector('.card').innerText.includes('8 of 40')")
        until(page, "document.querySelector('.live').innerText.includes('step 8 of 40')")
        assert page.evaluate("document.querySelector('#reward .chart').dataset.mine") == "1"
        assert page.evaluate(REWARD_TOP) == pytest.approx(top, abs=2) and page.evaluate("scrollY") > 200
        assert page.evaluate(OPEN_DETAILS) == opened_before and "1" in opened_before
        # The charts are those of the new content, drawn.
        until(page, "document.querySelector('#reward .chart').data[0].x.length === 8")
        assert {key for key, *_ in page.evaluate(BOXES)} >= {"reward", "evaluations", "step-lengths", "steps-0"}
        assert page.evaluate(UNDRAWN) == [] and page.evaluate(CUT_TEXTS) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert found.said == [] and {url.split("/")[2] for url in found.requests} <= {f"127.0.0.1:{server.port}", ""}
        (home / "trace.jsonl").write_text("".join(events))
        watched.look()
        server.wake()
        until(page, "document.querySelector('.live').innerText === 'ended'")
    page.wait_for_timeout(200)
    assert page.inner_text(".live") == "ended", "the server said that it goes"


def until(page, script):
    """Wait until a script gives true; the page's policy does not let Playwright's own waiting in."""
    deadline = time.monotonic() + 30
    while not page.evaluate(script):
        assert time.monotonic() < deadline, script
        page.wait_for_timeout(50)


REWARD_TOP = "document.querySelector('#reward').getBoundingClientRect().top"
OPEN_DETAILS = "[...document.querySelectorAll('details')].map((each) => +each.open).join('')"


def test_a_page_is_printed_light_and_as_wide_as_the_paper(html, opened):
    found = opened(html["plan"], scheme="dark")
    dark = found.page.evaluate("getComputedStyle(document.querySelector('.chart text')).fill")
    found.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    found.page.wait_for_function("[...document.querySelectorAll('.main-svg')].every(s => s.clientWidth < 700)")
    assert found.page.evaluate("getComputedStyle(document.querySelector('.chart text')).fill") != dark
    found.page.evaluate("dispatchEvent(new Event('afterprint'))")
    found.page.wait_for_function("[...document.querySelectorAll('.wide .main-svg')].every(s => s.clientWidth > 1000)")
    assert found.page.evaluate("getComputedStyle(document.querySelector('.chart text')).fill") == dark
    assert found.page.pdf(prefer_css_page_size=True).startswith(b"%PDF") and found.said == []
