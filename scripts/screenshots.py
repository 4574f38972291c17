"""Pictures of the live page for README and docs, of a demo that this starts: ``python scripts/screenshots.py``.

Needs Debian's Chromium. Takes a minute and a half: by then GPU 3 of the story is hot.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
VIEWS = ("now", "why")
STORY_S = 75.0
"""The throttling that begins at 40 s has its incident, and its requests are explained."""
_PORT = re.compile(rb"http=listening url=\S+?:(\d+)/metrics")


def main() -> int:
    """Writes the pictures."""
    command = [sys.executable, "-m", "gpumon", "demo", "--listen", "127.0.0.1:0"]
    command += ["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE) as demo:
        try:
            assert demo.stdout is not None
            port = next(int(found[1]) for line in demo.stdout if (found := _PORT.search(line)))
            time.sleep(STORY_S)
            _take(port)
        finally:
            demo.terminate()
    return 0


def _take(port: int) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        for view in VIEWS:
            page.goto(f"http://127.0.0.1:{port}/#/{view}")
            page.wait_for_timeout(4000)
            shot = Image.open(io.BytesIO(page.screenshot(full_page=True)))
            shot.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(FOLDER / f"page-{view}.png")
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
