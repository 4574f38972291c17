"""An hour of the demo played to the page in seconds: it holds as much at the end as after a third of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browsers import HURRIED, VIEWS, await_heard, chromium, demo_of, least_size
from tests.e2e.daemon import Daemon
from tests.e2e.front import Event, Front, Hour, heard

pytestmark = pytest.mark.slow
SECONDS = 14_400
PER_S = {"now": None, "latency": 1200.0, "bound": 1200.0, "why": 1200.0}
"""As many as the page takes; where views ask again every few seconds, so that they do."""
RECORDED = 20
"""Seconds of the demo that are played again and again."""
HEAP_BYTES = {"now": 128_000, "latency": 128_000, "bound": 4_000_000, "why": 4_000_000}
"""One object of one number for each of the seconds between the two looks is twice the least of them. Plotly keeps the
sizes of texts that it has drawn, up to 10,000."""
NODES = 50
LISTENERS = 5


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with demo_of(tmp_path_factory.mktemp("demo"), '"p99_seconds":', "/api/v1/heatmap") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def events(demo: Daemon) -> list[Event]:
    return heard(demo, RECORDED)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_is_left_open_does_not_grow(browser: Browser, demo: Daemon, events: list[Event], view: str) -> None:
    hour = Hour(events, per_s=PER_S[view])
    complaints: list[str] = []
    with Front(demo, hour, kept_s=math.inf) as front:
        context = browser.new_context()
        context.add_init_script(HURRIED)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"http://127.0.0.1:{front.port}/#/{view}")
        await_heard(page, hour.play(SECONDS // 3))
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("main")).to_have_attribute("data-view", view)
        devtools = context.new_cdp_session(page)
        before = least_size(page, devtools)
        await_heard(page, hour.play(SECONDS - SECONDS // 3))
        after = least_size(page, devtools)
        context.close()
    assert complaints == []
    assert after.nodes <= before.nodes + NODES
    assert after.listeners <= before.listeners + LISTENERS
    assert after.heap_bytes <= before.heap_bytes + HEAP_BYTES[view]


def test_going_from_view_to_view_leaves_nothing_behind(browser: Browser, demo: Daemon) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{demo.port}/")
    devtools = context.new_cdp_session(page)

    def round_trip(times: int) -> None:
        for _ in range(times):
            for view in (*VIEWS[1:], VIEWS[0]):
                page.evaluate("view => { location.hash = `#/${view}`; }", view)
                page.locator(f"main[data-view='{view}'] h1").wait_for()

    round_trip(10)
    page.locator("article[aria-label^='GPU ']").first.wait_for()
    before = least_size(page, devtools)
    round_trip(40)
    page.locator("article[aria-label^='GPU ']").first.wait_for()
    after = least_size(page, devtools)
    context.close()
    assert after.nodes <= before.nodes + NODES
    assert after.listeners <= before.listeners + LISTENERS
