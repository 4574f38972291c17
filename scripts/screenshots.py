"""Pictures of the live page for README and docs, of a demo that this starts: ``python scripts/screenshots.py``.

Needs Debian's Chromium. Takes a minute and a half: by then GPU 3 of the story is hot. ``page-*`` are views as they are;
``alert-*`` are what each click of docs/FROM_ALERT_TO_CAUSE.md leads to, the clicks that tests/e2e/test_walk.py makes.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
HOT_S = 60.0
"""Of the story: GPU 3 is throttled by heat, from 49 to 79 s."""
EXPLAINED_S = 22.0
"""Later: what that cost is known, and nothing else has happened yet."""
BRIGHT = """async () => {
  const get = async (what) => (await fetch(`api/v1/${what}`)).json();
  const cells = (await get("heatmap")).cells.sort((one, other) => other.p99_seconds - one.p99_seconds);
  for (const {id} of cells) {
    const {requests} = await get(`requests?cell=${encodeURIComponent(id)}&limit=20`);
    if (requests.some((each) => each.cause === "thermal_throttle")) return id;
  }
}"""
"""The brightest cell that has requests which were slow by heat."""
HEIGHT_MAX = 1500
"""Of a picture, in pixels: what is below is more of the same."""
_SETTLE_MS = 4000
_PORT = re.compile(rb"http=listening url=\S+?:(\d+)/metrics")


def main() -> int:
    """Writes the pictures."""
    command = [sys.executable, "-m", "gpumon", "demo", "--listen", "127.0.0.1:0"]
    command += ["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE) as demo:
        try:
            assert demo.stdout is not None
            port = next(int(found[1]) for line in demo.stdout if (found := _PORT.search(line)))
            time.sleep(HOT_S)
            _take(f"http://127.0.0.1:{port}/")
        finally:
            demo.terminate()
    return 0


def _take(root: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{root}#/now")
        _keep(page, "page-now")
        time.sleep(EXPLAINED_S)
        page.goto(f"{root}#/why")
        _keep(page, "page-why")
        _walk(page, root)
        browser.close()


def _walk(page: Page, root: str) -> None:
    page.goto(f"{root}#/latency")
    page.locator(".heat button").first.wait_for()
    _keep(page, "alert-2-latency")
    page.locator(f".heat button[data-cell='{page.evaluate(BRIGHT)}']").click()
    request = page.locator("tbody tr", has_text="GPU too hot").locator("a").first
    request.wait_for()
    _keep(page, "alert-3-cell")
    request.click()
    page.locator("section", has_text="Slow gaps").wait_for()
    _keep(page, "alert-4-request")
    page.get_by_role("link", name=re.compile("^GPU too hot, gpu 3")).click()
    card = page.locator(".incident", has_text="GPU too hot: gpu 3").first
    card.wait_for()
    page.wait_for_timeout(_SETTLE_MS)
    _write(card.screenshot(), "alert-5-cause")


def _keep(page: Page, name: str) -> None:
    page.wait_for_timeout(_SETTLE_MS)
    end = page.evaluate("document.querySelector('footer').getBoundingClientRect().bottom + scrollY")
    _write(page.screenshot(full_page=True), name, int(end) + 8)


def _write(png: bytes, name: str, end: int = HEIGHT_MAX) -> None:
    shot = Image.open(io.BytesIO(png))
    cut = shot.crop((0, 0, shot.width, min(shot.height, end, HEIGHT_MAX)))
    cut.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    sys.exit(main())
