"""The frame of the live page, Now and Bound, in a real browser: what closed lately, gpumon that is silent or another
than before, links that are too old, labels and words that are explained, keys' focus, and the width of a phone."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from tests.e2e.browsers import OTLP, chromium
from tests.e2e.daemon import Daemon
from tests.e2e.front import Event, Front, Listener, heard
from tests.e2e.waiting import eventually
from tests.stories import write_story

pytestmark = pytest.mark.slow
LATE_MS = 45_000
PHONE: ViewportSize = {"width": 390, "height": 844}
SILENT = re.compile(r"^gpumon does not answer, last heard \d\d:\d\d:\d\d UTC\. ")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One in whose story an incident has closed."""
    folder = tmp_path_factory.mktemp("demo")
    with Daemon(folder, "--scenario", str(write_story(folder)), command="demo", options=OTLP) as daemon:
        closed = "/api/v1/incidents?state=closed&kind=hw_slowdown"
        eventually(lambda: '"closed"' in daemon.ask(closed).text, "an incident has closed", within_s=120.0)
        yield daemon


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(color_scheme="light")
    made.set_default_timeout(LATE_MS)
    yield made
    made.close()


def opened(context: BrowserContext, port: int, view: str = "now") -> Page:
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{port}/#/{view}")
    return page


def go(page: Page, view: str) -> None:
    page.evaluate("view => { location.hash = `#/${view}`; }", view)


def test_incidents_that_closed_lately_lead_to_their_evidence(context: BrowserContext, demo: Daemon) -> None:
    page = opened(context, demo.port)
    line = page.locator(".closed li", has_text="SM clock").first
    expect(line.locator(".when")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d, [\d.]+ (s|min).*$"))
    line.get_by_role("link", name=re.compile("^Evidence of .*gpu 1")).click()
    expect(page.locator("h1")).to_have_text("Why")
    expect(page.locator(".incident.chosen")).to_have_count(1)
    expect(page.locator(".lost")).to_have_count(0)


def test_a_silent_gpumon_is_told_across_the_page_and_a_new_one_says_that_it_is(
    context: BrowserContext, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with Daemon(tmp_path / "one", command="demo", options=OTLP) as one:
        page = opened(context, one.port)
        expect(page.locator("article[aria-label^='GPU ']")).to_have_count(8)
        assert page.locator(".view").evaluate("view => getComputedStyle(view).opacity") == "1"
        expect(page.locator("#node")).to_contain_text("simulated node")
        one.end(signal.SIGKILL)
        expect(page.locator("#silence")).to_have_text(SILENT, timeout=LATE_MS)
        eventually(
            lambda: float(page.locator(".view").evaluate("view => getComputedStyle(view).opacity")) < 0.7, "dimmed"
        )
        go(page, "why")
        expect(page.locator(".problem")).to_have_text("gpumon does not answer.")
        expect(page.locator("#silence")).to_be_visible()
        assert not any(heading.is_visible() for heading in page.locator(".view h2").all()), "no heading of nothing"
        assert "api/v1" not in page.locator("main").inner_text()
        with Daemon(tmp_path / "other", "--listen", f"127.0.0.1:{one.port}", command="demo", options=OTLP):
            expect(page.locator("#silence")).to_be_hidden(timeout=LATE_MS)
            expect(page.locator(".view.unanswered")).to_have_count(0)
            said = page.locator("#restart")
            expect(said).to_contain_text(re.compile(r"started anew at \S+ \S+ UTC, after this page was opened"))
            said.get_by_role("button", name="Dismiss").click()
            expect(said).to_be_hidden()
            go(page, "now")
            expect(page.locator("article[aria-label^='GPU ']")).to_have_count(8)
            expect(said).to_be_hidden()


def test_a_link_tells_its_run_and_one_of_another_run_says_so(context: BrowserContext, demo: Daemon) -> None:
    (incident, *_) = json.loads(demo.ask("/api/v1/incidents").body)
    link = f"why?incident={incident['id']}"
    page = opened(context, demo.port, link)
    expect(page).to_have_url(re.compile(r"incident=.*&run=\d+$"))
    expect(page.locator("#restart")).to_be_hidden()
    page.reload()
    expect(page.locator("#node")).to_contain_text("simulated node")
    expect(page.locator("#restart")).to_be_hidden()
    go(page, f"{link}&run=1")
    expect(page.locator("#restart")).to_contain_text("after this link was made")
    go(page, "now")
    expect(page.locator("#restart")).to_be_hidden()
    expect(page).to_have_url(re.compile("#/now$"))


@pytest.mark.parametrize("wanted", ["nothing", "a/b", "x" * 300, "%3Cb%3E"])
def test_an_incident_that_is_not_known_is_said_not_to_be(context: BrowserContext, demo: Daemon, wanted: str) -> None:
    page = opened(context, demo.port, f"why?incident={wanted}")
    expect(page.locator(".lost")).to_contain_text("No incident has the id ")
    expect(page.locator(".lost")).to_contain_text("since gpumon started")
    assert len(page.locator(".lost").inner_text()) < 300
    expect(page.locator("#trouble")).to_be_hidden()


@pytest.mark.parametrize(
    ("margin", "told"), [(-1.0, "88 °C, 1 °C over limit"), (0.0, "88 °C, at its limit"), (None, "88 °C")]
)
def test_a_gpu_beyond_its_thermal_limit_is_said_to_be_over_it(
    context: BrowserContext, demo: Daemon, margin: float | None, told: str
) -> None:
    whole = json.loads(next(each.data for each in heard(demo, 1) if each.name == "node"))
    whole["gpus"][0] |= {"temperature_celsius": 88.0, "temperature_margin_celsius": margin}

    def play(listener: Listener) -> None:
        listener.accept()
        listener.send(Event("node", json.dumps(whole).encode()).line)
        listener.front.ended.wait()

    with Front(demo, play) as front:
        page = opened(context, front.port)
        stat = page.locator("article[aria-label^='GPU 0'] .stat", has_text="Temperature")
        expect(stat.locator(".value")).to_have_text(told)


def test_words_are_explained_where_they_stand(context: BrowserContext, demo: Daemon) -> None:
    page = opened(context, demo.port)
    for word, meaning in (("balanced", "neither of them limits"), ("tokens late by", "than is usual")):
        page.get_by_role("button", name=word, exact=True).click()
        expect(page.locator(".help")).to_contain_text(meaning)
        expect(page.locator(".help")).to_be_visible()
        page.keyboard.press("Escape")


def test_gpus_on_bound_are_told_apart_by_labels_and_in_either_theme(context: BrowserContext, demo: Daemon) -> None:
    page = opened(context, demo.port, "bound")
    expect(page.locator(".scatterlayer .textpoint").first).to_be_attached(timeout=LATE_MS)
    told = set(page.locator(".scatterlayer .textpoint").all_text_contents()) - {""}
    assert told <= {"0", "1", "0, 1"}
    assert told
    for theme, dark in (("dark", "rgb(230, 230, 230)"), ("light", "rgb(34, 34, 34)")):
        page.keyboard.press("t")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        for words in (".annotation text >> nth=0", ".scatterlayer .textpoint text >> nth=0"):
            expect(page.locator(words)).to_have_css("fill", dark)
        expect(page.locator(".shapelayer path >> nth=0")).to_have_css("stroke", dark)


def test_labels_are_over_no_other_label(context: BrowserContext, demo: Daemon) -> None:
    page = opened(context, demo.port)
    made = page.evaluate("""async () => {
      const {labelled, runs, together} = await import("./points.js".replace("./", "./static/"));
      const gpu = (name, x) => ({gpu: name, at: [1, 2], sm_active: [x, x], dram_active: [0.5, 0.5],
        inter_token_p95_seconds: [null, Number(name)]});
      const alike = Array.from({length: 200}, (_, n) => ({x: 0.5, y: 0.5, name: String(n)}));
      return {
        runs: [["0", "1", "2", "3"], ["0", "1", "5"], ["7"], [], ["0:1", "0:2"]].map(runs),
        together: together([gpu("0", 0.2), gpu("1", 0.201), gpu("2", 0.9)])
          .map(({at, name, worst}) => [at, name, worst]),
        told: labelled(alike, 400, 300).filter(({text}) => text).length,
        edge: labelled([{x: 1, y: 1, name: "0-7"}], 400, 300)[0].side,
        none: labelled([], 400, 300).length,
      };
    }""")
    assert made == {
        "runs": ["0-3", "0, 1, 5", "7", "", "0:1, 0:2"],
        "together": [[2, "0, 1", 1], [2, "2", 2], [1, "0, 1", None], [1, "2", None]],
        "told": 4,
        "edge": "middle left",
        "none": 0,
    }


@pytest.mark.parametrize("view", ["now", "bound"])
def test_a_phone_needs_no_scrolling_sideways_and_the_tools_are_in_one_row(
    browser: Browser, demo: Daemon, view: str
) -> None:
    context = browser.new_context(viewport=PHONE)
    page = opened(context, demo.port, view)
    expect(page.locator("#live")).to_have_text("live", timeout=LATE_MS)
    if view == "bound":
        expect(page.locator(".scatterlayer .point").first).to_be_attached(timeout=LATE_MS)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    tops = page.locator(".tools button, .tools select >> visible=true").evaluate_all(
        "all => all.filter(each => each.offsetParent).map(each => Math.round(each.getBoundingClientRect().top))"
    )
    assert len(tops) == (3 if view == "bound" else 2)
    assert max(tops) - min(tops) <= 4
    context.close()


def test_after_a_change_of_view_the_focus_is_at_its_beginning(context: BrowserContext, demo: Daemon) -> None:
    page = opened(context, demo.port)
    expect(page.locator("#live")).to_have_text("live")
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    page.keyboard.press("3")
    expect(page.locator("h1:focus")).to_have_text("Bound")
    page.keyboard.press("Tab")
    expect(page.locator("main :focus")).to_have_count(1)
    page.go_back()
    expect(page.locator("h1:focus")).to_have_text("Now")
    page.keyboard.press("3")
    page.locator("#range select").focus()
    page.locator("#range select").select_option("5")
    expect(page).to_have_url(re.compile("minutes=5"))
    expect(page.locator("#range select")).to_be_focused()
