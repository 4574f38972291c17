"""Debian's Chromium, a demo to look at, and how much of the browser's memory a page has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from tests.e2e.daemon import Daemon
from tests.e2e.waiting import eventually, settle

CHROMIUM = "/usr/bin/chromium"
VIEWS = ("now", "latency", "bound", "why")
OTLP = {"GPUMON_OTLP__ENABLED": "true", "GPUMON_OTLP__GRPC": "127.0.0.1:0", "GPUMON_OTLP__HTTP": "127.0.0.1:0"}
HURRIED = """
const real = window.setTimeout;
window.setTimeout = (work, ms = 0, ...rest) => real(work, ms >= 1000 && ms <= 15000 ? ms / 60 : ms, ...rest);
window.heard = 0;
window.EventSource = class extends EventSource {
  constructor(...how) { super(...how); this.addEventListener("node", () => { window.heard += 1; }); }
};
"""
"""What views ask again every few seconds they ask 60 times as often; a page's patience (20 s) stays as it is. The page
counts the snapshots that it has heard."""
_COLLECT = 3
"""Elements are given back by JavaScript's collector and the browser's by turns."""
_LOOKS = 5
_BETWEEN_S = 0.3


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser; a context of it is a browser that was never used before."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def demo_of(folder: Path, what: str, path: str) -> Iterator[Daemon]:
    """A demo in whose story it has gone so far that the API tells this at this address."""
    with Daemon(folder, command="demo", options=OTLP) as demo:
        eventually(lambda: what in demo.ask(path).text, f"{what} at {path}", within_s=120.0, every_s=0.5)
        yield demo


class Size(NamedTuple):
    """Of a page, after everything that nobody holds was collected."""

    nodes: int
    listeners: int
    heap_bytes: int
    """JavaScript's."""
    embedder_bytes: int
    """The browser's own objects for the page."""


def await_heard(page: Page, snapshots: int) -> None:
    """Until the page, which is hurried, has heard so many."""
    eventually(lambda: page.evaluate("heard") >= snapshots, f"{snapshots} snapshots are heard", within_s=120)


def least_size(page: Page, devtools: CDPSession) -> Size:
    """The least of each over some looks: while a view is drawn anew it is there twice."""
    looks = []
    for _ in range(_LOOKS):
        looks.append(size(page, devtools))
        settle(_BETWEEN_S)
    return Size(*map(min, zip(*looks, strict=True)))


def size(page: Page, devtools: CDPSession) -> Size:
    """As the page is now, with the frame drawn that is due."""
    page.evaluate("new Promise(requestAnimationFrame)")
    for _ in range(_COLLECT):
        devtools.send("HeapProfiler.collectGarbage")
    counted, used = devtools.send("Memory.getDOMCounters"), devtools.send("Runtime.getHeapUsage")
    return Size(
        counted["nodes"], counted["jsEventListeners"], int(used["usedSize"]), int(used.get("embedderHeapUsedSize", 0))
    )


def lines_drawn(page: Page) -> int:
    """How many canvases of GPUs have a line above their ground, over a quarter of their width at least."""
    script = """all => all.filter((c) => {
      const pen = new OffscreenCanvas(c.width, c.height).getContext("2d");
      pen.drawImage(c, 0, 0);
      const {data} = pen.getImageData(0, 0, c.width, c.height - 4);
      let columns = 0;
      for (let x = 0; x < c.width; x += 1)
        for (let y = 0; y < c.height - 4; y += 1)
          if (data[4 * (y * c.width + x) + 3]) { columns += 1; break; }
      return columns > c.width / 4;
    }).length"""
    return int(page.locator("article[aria-label^='GPU '] canvas").evaluate_all(script))
