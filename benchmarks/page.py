"""The live page in Debian's Chromium on a demo: how soon it is painted, and whether an hour of it makes it grow.

``first_view_ms``: from the navigation on, in a browser that was never used before (nothing is cached): ``painted``, the
first content; ``shown``, a frame after every GPU's strip is there. Beside it, in turns: ``empty``, gpumon's shortest
page (what the browser itself takes), and the page of a real Prometheus. ``very_first_view_ms``: of a gpumon that has
just started, which loads the API's code only then. ``hour``: an hour of the demo's own snapshots, 60 a second, and what
is asked again and again 60 times as often, moments moved along (tests/e2e/front.py); heap and elements after everything
was collected, at a third of the hour, two thirds and its end. ``switched``: from view to view 200 times. ``unseen``: a
tab that nobody looks at. One JSON line.
Usage: python -m benchmarks.page [--loads N] [--seconds S] [--switches N]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, CDPSession, Page

from benchmarks.common import percentiles, report, wait
from tests.e2e.browsers import HURRIED, OTLP, VIEWS, Size, await_heard, chromium, demo_of, least_size, size
from tests.e2e.daemon import Daemon
from tests.e2e.front import Event, Front, Hour, heard
from tests.e2e.prometheus import Prometheus
from tests.e2e.waiting import eventually

SPEED = 60.0
RECORDED = 30
"""Seconds of the demo that are played again and again."""
UNSEEN_S = 30.0
STARTS = 5
BARS = {"first_view_ms": 1000.0, "heap_growth_bytes": 128_000, "heap_growth_bytes_of_plots": 4_000_000}
"""Of plots: plotly keeps the sizes of texts that it has drawn, up to 10,000 of them, and then begins anew."""
SHOWN = """
new MutationObserver((_, watching) => {
  if (document.querySelectorAll("article[aria-label^='GPU ']").length < 8) return;
  watching.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.shownMs = performance.now(); }));
}).observe(document, {childList: true, subtree: true});
"""
PAINTED = """new Promise((resolve) => new PerformanceObserver((list) => {
  for (const each of list.getEntries()) if (each.name === "first-contentful-paint") resolve(each.startTime);
}).observe({type: "paint", buffered: true}))"""
UNSEEN = """
Object.defineProperty(document, "hidden", {get: () => window.away ?? false});
"""


class Peer(Prometheus):
    """And its page."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/graph"


def first_views(browser: Browser, demo: Daemon, peer: Peer, loads: int) -> dict[str, Any]:
    """In turns."""
    took: dict[str, list[float]] = defaultdict(list)
    for _ in range(loads):
        look(browser, f"http://127.0.0.1:{demo.port}/", took, "page")
        look(browser, f"http://127.0.0.1:{demo.port}/-/healthy", took, "empty", has_strips=False)
        look(browser, peer.url, took, "prometheus", has_strips=False)
    return summed(took)


def very_first_views(browser: Browser, folder: Path, starts: int) -> dict[str, Any]:
    """Of gpumons that nobody has asked for anything but whether they are ready."""
    took: dict[str, list[float]] = defaultdict(list)
    for number in range(starts):
        own = folder / f"start-{number}"
        own.mkdir()
        with Daemon(own, command="demo", options=OTLP) as demo:
            demo.await_ready()
            look(browser, f"http://127.0.0.1:{demo.port}/", took, "page")
    return summed(took)


def look(browser: Browser, url: str, took: dict[str, list[float]], name: str, *, has_strips: bool = True) -> None:
    """In a browser that was never used."""
    context, page, _ = opened(browser, url, SHOWN)
    took[f"{name}_painted"].append(page.evaluate(PAINTED))
    if has_strips:
        took[f"{name}_shown"].append(eventually(lambda: page.evaluate("window.shownMs"), "every strip is there"))
    context.close()


def summed(took: dict[str, list[float]]) -> dict[str, Any]:
    """By name."""
    return {name: percentiles(times) | {"max": round(max(times), 1)} for name, times in took.items()}


def told(sizes: list[Size]) -> dict[str, Any]:
    """At a third, two thirds and the end."""
    first, *_, last = sizes
    return {name: [each._asdict()[name] for each in sizes] for name in Size._fields} | {
        "heap_growth_bytes": last.heap_bytes - first.heap_bytes
    }


def hour(browser: Browser, demo: Daemon, events: list[Event], view: str, seconds: int) -> dict[str, Any]:
    """One view that is left open."""
    play = Hour(events, per_s=SPEED)
    with Front(demo, play, kept_s=math.inf) as front:
        context, page, devtools = opened(browser, f"http://127.0.0.1:{front.port}/#/{view}", HURRIED)
        sizes = []
        for _ in range(3):
            await_heard(page, play.play(seconds // 3))
            sizes.append(least_size(page, devtools))
        context.close()
    return told(sizes) | {"asked": front.asked}


def switched(browser: Browser, demo: Daemon, switches: int) -> dict[str, Any]:
    """From view to view."""
    context, page, devtools = opened(browser, f"http://127.0.0.1:{demo.port}/")
    sizes = []
    for number in range(switches):
        view = VIEWS[(number + 1) % len(VIEWS)]
        page.evaluate("view => { location.hash = `#/${view}`; }", view)
        page.locator(f"main[data-view='{view}'] h1").wait_for()
        if (number + 1) % (switches // 3) == 0:
            page.evaluate("location.hash = '#/now'")
            page.locator("article[aria-label^='GPU ']").first.wait_for()
            sizes.append(least_size(page, devtools))
    context.close()
    return told(sizes)


def unseen(browser: Browser, demo: Daemon) -> dict[str, Any]:
    """What is asked of gpumon in half a minute."""
    context, page, devtools = opened(browser, f"http://127.0.0.1:{demo.port}/", UNSEEN)
    page.locator("article[aria-label^='GPU ']").first.wait_for()
    asked: list[str] = []
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    sizes = [size(page, devtools)]
    page.on("request", lambda each: asked.append(each.url))
    wait(UNSEEN_S)
    sizes.append(size(page, devtools))
    context.close()
    return told(sizes) | {"asked": len(asked)}


def opened(browser: Browser, url: str, *scripts: str) -> tuple[BrowserContext, Page, CDPSession]:
    """A page that was never there before."""
    context = browser.new_context()
    for script in scripts:
        context.add_init_script(script)
    page = context.new_page()
    page.goto(url)
    return context, page, context.new_cdp_session(page)


def slowest(demo: Daemon) -> str:
    """The address of a request of which something is told."""
    (each, *_) = json.loads(demo.ask("/api/v1/requests?sort=slowest&limit=1").body)["requests"]
    return f"request/{each['trace_id']}"


def main() -> None:
    """Prints the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=3600, help="of the demo, played in a sixtieth of it, per view")
    parser.add_argument("--switches", type=int, default=200)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpumon-benchmark-"))
    with demo_of(folder, '"cause":"thermal_throttle"', "/api/v1/diagnose") as demo, chromium() as browser:
        with Peer(folder / "prometheus") as peer:
            first = first_views(browser, demo, peer, arguments.loads)
        events = heard(demo, RECORDED)
        views = (*VIEWS, slowest(demo))
        report(
            "page",
            cores=len(os.sched_getaffinity(0)),
            first_view_ms=first,
            very_first_view_ms=very_first_views(browser, folder, STARTS),
            hour={view.partition("/")[0]: hour(browser, demo, events, view, arguments.seconds) for view in views},
            switched=switched(browser, demo, arguments.switches),
            unseen=unseen(browser, demo),
            bars=BARS,
        )


if __name__ == "__main__":
    main()
