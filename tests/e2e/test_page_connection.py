"""The live page while gpumon goes and comes, is silent, refuses, or says what it never should."""

from __future__ import annotations

import itertools
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsers import OTLP, VIEWS, chromium, lines_drawn, size
from tests.e2e.daemon import Daemon
from tests.e2e.front import Event, Front, Listener, Play, heard
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.slow
LATE_MS = 45_000
TIMES = 3
LINES = 24
"""Clock, temperature and memory of eight GPUs are never near 0."""
AWAY = re.compile(r"^not connected since \d\d:\d\d:\d\d; trying again$")
IMPATIENT = """
window.delays = [];
window.times = 1;
const real = window.setTimeout;
window.setTimeout = (work, ms = 0, ...rest) => { delays.push(ms); return real(work, ms / window.times, ...rest); };
"""
"""Waits are noted, and shorter by ``times``."""
FETCHED = "performance.getEntriesByType('resource').map((each) => each.name).join() + ','"
SCRIPTS = (*VIEWS, "request", "different", "plot", "tracks")
UNSEEN = 'Object.defineProperty(document, "hidden", {get: () => window.away ?? false});'
"""A tab that is told whether it is seen: without a screen all are."""
AN_HOUR_OFF = """
const real = Date;
window.Date = class extends real {
  constructor(...how) { super(...(how.length ? how : [real.now() - 3600e3])); }
  static now() { return real.now() - 3600e3; }
};
"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("demo"), command="demo", options=OTLP) as daemon:
        daemon.await_ready()
        eventually(lambda: '"server":' in daemon.ask("/api/v1/servers").text, "servers are known")
        eventually(lambda: '"sm_active":null' not in daemon.ask("/api/v1/gpus").text, "GPUs are known")
        yield daemon


@pytest.fixture(scope="module")
def events(demo: Daemon) -> list[Event]:
    return heard(demo, 3)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@contextmanager
def opened(browser: Browser, port: int, *scripts: str) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(LATE_MS)
    for script in scripts:
        context.add_init_script(script)
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{port}/")
    yield page
    context.close()


@contextmanager
def told(browser: Browser, demo: Daemon, play: Play, *scripts: str) -> Iterator[tuple[Page, Front]]:
    """A page on a stream of the test's."""
    with Front(demo, play) as front, opened(browser, front.port, *scripts) as page:
        yield page, front


def snapshot(events: list[Event]) -> bytes:
    return next(each.data for each in events if each.name == "node")


def later(data: bytes, by_s: float) -> bytes:
    whole = json.loads(data)
    return Event("node", json.dumps(whole | {"at": whole["at"] + by_s}).encode()).line


def see(page: Page, *, is_seen: bool) -> None:
    page.evaluate("away => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); }", not is_seen)


def test_a_page_says_that_gpumon_has_gone_and_finds_it_again(browser: Browser, tmp_path: Path) -> None:
    errors: list[str] = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with Daemon(tmp_path / "one", command="demo", options=OTLP) as one, opened(browser, one.port) as page:
        page.on("pageerror", lambda error: errors.append(str(error)))
        strips = page.locator("article[aria-label^='GPU ']")
        expect(page.locator("#live")).to_have_text("live")
        expect(strips).to_have_count(8)
        eventually(lambda: all(f"/{view}.js" in page.evaluate(FETCHED) for view in SCRIPTS), "all is there")
        one.end(signal.SIGKILL)
        expect(page.locator("#live")).to_have_text(AWAY, timeout=LATE_MS)
        expect(page.locator("#live")).to_have_attribute("data-state", "waiting")
        page.evaluate("location.hash = '#/latency'")
        expect(page.locator("h1")).to_have_text("Latency")
        expect(page.locator(".problem")).to_contain_text("gpumon does not answer")
        with Daemon(tmp_path / "other", "--listen", f"127.0.0.1:{one.port}", command="demo", options=OTLP):
            expect(page.locator("#live")).to_have_text("live", timeout=LATE_MS)
            expect(page.locator(".problem")).to_be_hidden(timeout=LATE_MS)
            page.evaluate("location.hash = '#/now'")
            moment = page.locator("#gpus-title small")
            before = moment.inner_text()
            expect(moment).not_to_have_text(before)
            expect(strips).to_have_count(8)
            assert page.locator("#trouble li").all_inner_texts() == []
    assert errors == []


@pytest.mark.parametrize("answer", [lambda _: None, lambda listener: listener.refuse(503)], ids=["none", "refusal"])
def test_the_longer_nobody_answers_the_longer_it_waits(
    browser: Browser, demo: Daemon, events: list[Event], answer: Callable[[Listener], None]
) -> None:
    well = True

    def play(listener: Listener) -> None:
        if not well:
            answer(listener)
            return
        listener.accept()
        listener.send(later(snapshot(events), listener.front.listened))

    with told(browser, demo, play, IMPATIENT) as (page, _):
        expect(page.locator("article[aria-label^='GPU ']")).to_have_count(8)
        well = False
        page.evaluate("window.times = 100; window.delays = []")
        eventually(lambda: page.evaluate("delays").count(24e3) >= 4, "it tries again and again")
        tries = [ms for ms in page.evaluate("delays") if ms in (3e3, 6e3, 12e3, 24e3, 48e3)]
        assert tries[-4:] == [24e3] * 4
        assert tries[: tries.index(24e3)][-2:] == [6e3, 12e3]
        expect(page.locator("#live")).to_have_text(AWAY)
        well = True
        page.evaluate("window.delays = []")
        eventually(lambda: 3e3 in page.evaluate("delays"), "it is patient no more")


def test_a_stream_on_which_nothing_comes_any_more_is_left(browser: Browser, demo: Daemon, events: list[Event]) -> None:
    def play(listener: Listener) -> None:
        listener.accept()
        if listener.front.listened == 1:
            listener.send(later(snapshot(events), 1.0))
        listener.front.ended.wait()

    with told(browser, demo, play, IMPATIENT, "window.times = 20;") as (page, front):
        expect(page.locator("#live")).to_have_text(AWAY)
        eventually(lambda: front.listened >= 3, "it listens again")


@pytest.mark.parametrize(
    "event",
    [
        b"event: node\ndata: {not json\n\n",
        b"event: node\ndata: null\n\n",
        b'event: node\ndata: {"at":"now","gpus":[],"servers":[]}\n\n',
        b'event: node\ndata: {"at":1,"gpus":{},"servers":[]}\n\n',
        b"event: incident\ndata: 7\n\n",
        b'event: incident\ndata: {"id":"a","state":"open","since":null}\n\n',
        b"event: node\ndata: " + b"[" * 100_000 + b"\n\n",
        b'event: node\ndata: "' + b"x" * 10_000_000 + b'"\n\n',
        b"event: node\ndata\n\n",
        b"\xff\xfe\x00\n\n",
        b"event: other\ndata: {}\n\n",
    ],
    ids=["no-json", "null", "no-moment", "no-list", "number", "no-since", "deep", "huge", "empty", "bytes", "other"],
)
def test_what_is_no_event_is_told_and_the_next_one_counts(
    browser: Browser, demo: Daemon, events: list[Event], event: bytes
) -> None:
    def play(listener: Listener) -> None:
        listener.accept()
        for _ in range(TIMES):
            listener.send(event)
        listener.send(later(snapshot(events), 1.0))
        listener.front.ended.wait()

    with told(browser, demo, play) as (page, _):
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("article[aria-label^='GPU ']")).to_have_count(8)
        if event.startswith((b"event: node\ndata: ", b"event: incident")):
            expect(page.locator("#trouble li")).to_have_count(1)
            expect(page.locator("#trouble li")).to_contain_text(f"({TIMES} times)")
            assert len(page.locator("#trouble li").inner_text()) < 400


def test_a_node_that_was_huge_is_forgotten(browser: Browser, demo: Daemon, events: list[Event]) -> None:
    whole = json.loads(snapshot(events))
    many = [whole["gpus"][0] | {"uuid": f"GPU-{number}", "gpu": str(number)} for number in range(300)]
    is_looked_at = threading.Event()

    def play(listener: Listener) -> None:
        listener.accept()
        listener.send(Event("node", json.dumps(whole | {"gpus": many, "at": whole["at"] + 1}).encode()).line)
        is_looked_at.wait()
        listener.send(later(snapshot(events), 2.0))
        listener.front.ended.wait()

    with told(browser, demo, play) as (page, _):
        strips = page.locator("article[aria-label^='GPU ']")
        expect(strips).to_have_count(300)
        devtools = page.context.new_cdp_session(page)
        before = size(page, devtools)
        is_looked_at.set()
        expect(strips).to_have_count(8)
        after = size(page, devtools)
        assert after.nodes < before.nodes / 4
        assert after.heap_bytes < before.heap_bytes


def test_lines_go_on_when_the_clock_of_gpumon_was_set_back(browser: Browser, demo: Daemon, events: list[Event]) -> None:
    def play(listener: Listener) -> None:
        listener.accept()
        listener.send(later(snapshot(events), 0.0))
        is_seen.wait()
        for second in itertools.count():
            listener.send(later(snapshot(events), second - 86_400.0))
            if listener.front.ended.wait(0.02):
                return

    is_seen = threading.Event()
    with told(browser, demo, play) as (page, _):
        moment = page.locator("#gpus-title small")
        expect(moment).to_contain_text("at ")
        before = moment.inner_text()
        is_seen.set()
        expect(moment).not_to_have_text(before)
        eventually(lambda: lines_drawn(page) >= LINES, "lines are drawn")


def test_tabs_that_nobody_looks_at_leave_the_connections_to_the_others(browser: Browser, demo: Daemon) -> None:
    context = browser.new_context()
    context.add_init_script(UNSEEN)
    tabs = [context.new_page() for _ in range(8)]
    for tab in tabs:
        tab.goto(f"http://127.0.0.1:{demo.port}/")
        expect(tab.locator("#live")).to_have_text("live", timeout=LATE_MS)
        expect(tab.locator("article[aria-label^='GPU ']")).to_have_count(8)
        see(tab, is_seen=False)
    first = tabs[0]
    moment = first.locator("#gpus-title small").inner_text()
    see(first, is_seen=True)
    expect(first.locator("#gpus-title small")).not_to_have_text(moment)
    expect(first.locator("#live")).to_have_text("live")
    eventually(lambda: lines_drawn(first) >= LINES, "with the lines of what it missed")
    context.close()


def test_a_tab_that_nobody_looks_at_listens_when_it_is_looked_at(
    browser: Browser, demo: Daemon, events: list[Event]
) -> None:
    def play(listener: Listener) -> None:
        listener.accept()
        listener.send(later(snapshot(events), listener.front.listened))
        listener.front.ended.wait()

    with told(browser, demo, play, UNSEEN, "window.away = true;") as (page, front):
        expect(page.locator("h1")).to_have_text("Now")
        page.keyboard.press("p")
        see(page, is_seen=True)
        expect(page.locator("#live")).to_have_text("paused")
        assert front.listened == 0
        page.keyboard.press("p")
        expect(page.locator("article[aria-label^='GPU ']")).to_have_count(8)
        assert front.listened == 1


@pytest.mark.parametrize("view", VIEWS)
def test_a_browser_whose_clock_is_an_hour_off_shows_the_time_of_gpumon(
    browser: Browser, demo: Daemon, view: str
) -> None:
    errors: list[str] = []
    with opened(browser, demo.port, AN_HOUR_OFF) as page:
        page.on("pageerror", lambda error: errors.append(str(error)))
        now = json.loads(demo.ask("/api/v1/gpus").body)["at"]
        expect(page.locator("#gpus-title small")).to_have_text(re.compile(r"^at \d\d:\d\d:\d\d$"))
        hours, minutes, seconds = map(int, page.locator("#gpus-title small").inner_text()[3:].split(":"))
        assert (3600 * hours + 60 * minutes + seconds - now + 60) % 86_400 < 180
        eventually(lambda: lines_drawn(page) >= LINES, "lines are drawn")
        page.evaluate("view => { location.hash = `#/${view}`; }", view)
        expect(page.locator("main")).to_have_attribute("data-view", view)
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("#trouble")).to_be_hidden()
    assert errors == []
