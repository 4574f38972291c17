"""The live page in a real browser, Debian's Chromium, on a running demo: views have data, clicks lead to the cause.

Screenshots are kept in the folder that GPUMON_SCREENSHOTS names, if it names one.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from gpumon.catalogue import CAUSES, TITLES
from tests.e2e.browsers import CHROMIUM
from tests.e2e.daemon import Daemon
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.slow
SIZES = {"wide": (1280, 900, "light"), "phone": (400, 800, "dark")}
FIRST_S = 40.0
"""Until a GPU of the story has throttled and requests have ended that were slow by it."""
LATE_MS = 30_000
OTLP = {"GPUMON_OTLP__ENABLED": "true", "GPUMON_OTLP__GRPC": "127.0.0.1:0", "GPUMON_OTLP__HTTP": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("demo"), command="demo", options=OTLP) as daemon:
        eventually(
            lambda: [each for each in daemon.ask("/api/v1/incidents").text.split('"kind":') if "thermal" in each[:20]],
            "a GPU throttled",
            within_s=FIRST_S + 20,
        )
        eventually(
            lambda: '"cause":"thermal_throttle"' in daemon.ask("/api/v1/diagnose").text,
            "requests were slow by it",
            within_s=FIRST_S,
        )
        yield daemon


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Seen:
    """A page, and what its console said."""

    def __init__(self, context: BrowserContext, port: int) -> None:
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", lambda said: self._heard(said.type, said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.root = f"http://127.0.0.1:{port}/"
        self.page.on("request", lambda asked: self._asked(asked.url))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.root, "data:", "blob:")):
            self.elsewhere.append(url)

    def go(self, view: str) -> Page:
        self.page.goto(f"{self.root}#/{view}")
        return self.page

    def is_well(self) -> None:
        assert self.complaints == []
        assert self.elsewhere == []
        expect(self.page.locator("#trouble")).to_be_hidden()
        expect(self.page.locator(".problem")).to_be_hidden()
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert barriers(self.page) == []


def barriers(page: Page) -> list[tuple[str, str]]:
    """What axe finds: rule and the first element that breaks it."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate((importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in found["violations"]]


@pytest.fixture(params=SIZES)
def seen(request: pytest.FixtureRequest, browser: Browser, demo: Daemon) -> Iterator[Seen]:
    width, height, scheme = SIZES[request.param]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    context.set_default_timeout(LATE_MS)
    seen = Seen(context, demo.port)
    yield seen
    folder = os.environ.get("GPUMON_SCREENSHOTS")
    if folder:
        name = re.sub(r"\W+", "-", request.node.name).strip("-")
        seen.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
    context.close()


def inked(page: Page, selector: str) -> int:
    """How many of these canvases show more than their ground line."""
    script = "all => all.filter(c => { const copy = new OffscreenCanvas(c.width, c.height).getContext('2d'); \
        copy.drawImage(c, 0, 0); const d = copy.getImageData(0, 0, c.width, c.height).data; \
        let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n > 2 * c.width; }).length"
    return int(page.locator(selector).evaluate_all(script))


@pytest.mark.parametrize(
    "link", ["request/%E0%A4%A", "why/%", "request/%", "nothing", "toString", "latency/%FF?minutes=5"]
)
def test_a_link_that_cannot_be_read_leads_to_now_and_says_so(seen: Seen, link: str) -> None:
    page = seen.go("latency")
    expect(page.locator("h1")).to_have_text("Latency")
    page.evaluate("link => { location.hash = `#/${link}`; }", link)
    expect(page.locator(".lost")).to_contain_text("There is no view at the address")
    expect(page.locator("main")).to_have_attribute("data-view", "now")
    expect(page.locator("nav [aria-current]")).to_have_attribute("data-view", "now")
    page.reload()
    expect(page.locator(".lost")).to_be_visible()
    expect(page.locator("h1")).to_have_count(1)
    seen.is_well()
    page.evaluate("location.hash = '#/why'")
    expect(page.locator("main")).to_have_attribute("data-view", "why")
    expect(page.locator(".lost")).to_have_count(0)


def test_now_shows_every_gpu_and_server_with_lines(seen: Seen) -> None:
    page = seen.go("now")
    expect(page.locator("#live")).to_have_text("live", timeout=LATE_MS)
    expect(page.locator("article[aria-label^='GPU ']")).to_have_count(8)
    expect(page.locator("article[aria-label^='Server ']")).to_have_count(2)
    first = page.locator("article[aria-label^='GPU 0']")
    for name, form in (("SM", r"\d+ %"), ("Power", r"[\d.]+ of 700 W"), ("SM clock", "MHz"), ("Temperature", "°C")):
        stat = first.locator(".stat", has=page.get_by_text(name, exact=True))
        expect(stat.locator(".value")).to_have_text(re.compile(form))
    page.wait_for_function("document.querySelectorAll('.stat canvas').length === 60")
    eventually(lambda: inked(page, "article[aria-label^='GPU '] canvas") >= 40, "lines are drawn")
    expect(page.locator(".value", has_text=re.compile("tokens/s"))).to_have_count(2)
    seen.is_well()


def test_a_cell_of_the_heatmap_leads_to_a_request_and_to_the_cause_of_its_gaps(seen: Seen, demo: Daemon) -> None:
    page = seen.go("latency?of=inter_token&by=concurrency")
    cells = json.loads(demo.ask("/api/v1/heatmap").body)["cells"]
    worst = max(cells, key=lambda cell: cell["p99_seconds"])
    cell = page.locator(f".heat button[data-cell='{worst['id']}']")
    assert re.search(r": P99 [\d.]+ \S+, P50 .* gaps$", cell.get_attribute("aria-label") or "")
    cell.click()
    expect(cell).to_have_attribute("aria-pressed", "true")
    page.locator("tbody tr", has_text=re.compile(r"\d %")).locator("a").first.click()
    expect(page).to_have_url(re.compile("#/request/[0-9a-f]{32}"))
    eventually(lambda: inked(page, ".track.tokens canvas") == 1, "the tokens are drawn")
    for lane in ("SM activity", "DRAM activity", "SM clock", "temperature", "requests running"):
        expect(page.locator(".track .name", has_text=re.compile(f"^{lane}")).first).to_be_visible()
    gap = page.locator("section", has_text="Slow gaps").locator("tbody tr").first
    assert gap.locator("td").nth(1).inner_text().strip() in [TITLES[cause] for cause in CAUSES]
    gap.locator("button").click()
    expect(page.locator(".readout")).to_contain_text("after its start")
    page.go_back()  # to the whole request
    page.go_back()
    expect(cell).to_have_attribute("aria-pressed", "true")
    expect(page.locator("tbody a").first).to_be_visible()
    seen.is_well()


def test_arrow_keys_go_from_cell_to_cell(seen: Seen) -> None:
    page = seen.go("latency?by=context")
    page.locator(".heat button[tabindex='0']").focus()
    before = page.locator(".heat button:focus").get_attribute("data-cell")
    for key in ("ArrowUp", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.locator(".heat button:focus")).not_to_have_attribute("data-cell", before or "")
    page.keyboard.press("Enter")
    expect(page.locator(".heat button[aria-pressed=true]")).to_be_focused()
    seen.is_well()


def test_the_heatmap_goes_by_context_and_first_token_too(seen: Seen) -> None:
    page = seen.go("latency")
    page.get_by_label("Latency of").select_option("ttft")
    page.get_by_label("by", exact=True).select_option("context")
    expect(page.locator(".heat caption")).to_contain_text("context length")
    label = page.locator(".heat button").first.get_attribute("aria-label") or ""
    assert "first tokens" in label
    assert "of=ttft&by=context" in page.url
    seen.is_well()


def test_bound_shows_both_plots_and_the_shares_of_every_gpu(seen: Seen) -> None:
    page = seen.go("bound")
    expect(page.locator(".plot .scatterlayer .textpoint", has_text=re.compile("0-3"))).not_to_have_count(0)
    expect(page.locator(".plot .barlayer .trace").first).to_be_attached()
    assert page.locator(".scatterlayer .point").count() > 8
    expect(page.locator("section", has_text="Share of this time").locator("tbody tr")).to_have_count(8)
    page.get_by_label("Coloured by").select_option("latency")
    expect(page.locator(".hint")).to_contain_text("P95 between tokens")
    seen.is_well()


def test_why_names_the_cause_the_incident_its_evidence_and_what_to_do(seen: Seen) -> None:
    page = seen.go("why")
    expect(page.locator("section", has_text="Slow-token seconds by cause")).to_contain_text("GPU too hot")
    expect(page.locator(".verdict p").first).to_contain_text(re.compile("requests (?:was|were) slow"))
    eventually(lambda: inked(page, ".track.bars canvas") >= 3, "what was lost is drawn")
    card = page.locator(".incident", has_text="GPU too hot: gpu 3")
    expect(card).to_contain_text("What to do")
    card.locator("summary").click()
    expect(card.locator("tbody")).to_contain_text("MHz")
    for heading in ("Before and after the worst stretch", "What was different", "Correlation"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
    seen.is_well()


def test_what_goes_wrong_is_said_on_the_page(browser: Browser, demo: Daemon) -> None:
    context = browser.new_context()
    seen = Seen(context, demo.port)
    page = seen.go("request/" + "0" * 32)
    expect(page.locator(".view .lost")).to_contain_text("of this trace")
    expect(page.locator("#trouble")).to_be_hidden()
    page.evaluate("setTimeout(() => { throw new Error('a bug') })")
    expect(page.locator("#trouble")).to_contain_text("a bug")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator("#trouble")).to_be_hidden()
    context.close()


def test_without_gpus_and_explanation_every_view_says_what_there_is_not(browser: Browser, tmp_path: Path) -> None:
    off = {"GPUMON_NVML__ENABLED": "false", "GPUMON_DETECT__ENABLED": "false"}
    context = browser.new_context()
    with Daemon(tmp_path, options=off) as blind:
        seen = Seen(context, blind.port)
        page = seen.go("now")
        expect(page.locator("main")).to_contain_text("No GPU is known: NVML off")
        expect(page.locator("main")).to_contain_text("No server has sent traces")
        expect(page.locator("#node")).to_contain_text("off: ")
        seen.go("latency")
        expect(page.locator("main")).to_contain_text("No request ended in the last 60 minutes")
        seen.go("bound")
        expect(page.locator("main")).to_contain_text("needs GPM")
        seen.go("why")
        expect(page.locator("main")).to_contain_text(re.compile("otlp.enabled|explain"))
        expect(page.locator("main")).to_contain_text("None since gpumon started")
        expect(page.locator("#trouble")).to_be_hidden()
        # Which the browser says of every answer that is 404.
        assert [said for said in seen.complaints if "404" not in said] == []
    context.close()


def test_keys_switch_views_theme_and_pause(browser: Browser, demo: Daemon) -> None:
    context = browser.new_context(color_scheme="light")
    page = Seen(context, demo.port).go("now")
    expect(page.locator("#live")).to_have_text("live")
    page.keyboard.press("p")
    expect(page.locator("#live")).to_have_text("paused")
    moment = page.locator("h2", has_text="GPUs").locator("small").inner_text()
    page.wait_for_timeout(2500)
    assert page.locator("h2", has_text="GPUs").locator("small").inner_text() == moment
    page.keyboard.press("p")
    expect(page.locator("h2", has_text="GPUs").locator("small")).not_to_have_text(moment)
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("4")
    expect(page.get_by_role("heading", level=1)).to_have_text("Why")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    context.close()


def test_the_first_view_is_painted_within_a_second(browser: Browser, demo: Daemon) -> None:
    context = browser.new_context()
    page = Seen(context, demo.port).go("now")
    page.locator("article[aria-label^='GPU 0']").wait_for()
    assert page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") < 1000
    context.close()


FAST_STREAM = """
window.EventSource = class extends EventTarget {
  constructor() { super(); window.source = this; setTimeout(() => this.dispatchEvent(new Event("open"))); }
  close() {}
};
window.pass = async (seconds) => {
  const get = async (what) => (await fetch(`api/v1/${what}`)).json();
  window.known ??= {nvml: (await get("node")).nvml, incidents: 0, ...await get("gpus"), ...await get("servers")};
  for (let n = 0; n < seconds; n += 1) {
    window.known.at += 1;
    source.dispatchEvent(new MessageEvent("node", {data: JSON.stringify(window.known)}));
    if (n % 10 === 0) await new Promise(requestAnimationFrame);
  }
};
"""
"""A stream that tells of as many seconds as it is asked for, as fast as the page takes them."""


def test_a_page_that_is_left_open_does_not_grow(browser: Browser, demo: Daemon) -> None:
    context = browser.new_context()
    context.add_init_script(FAST_STREAM)
    seen = Seen(context, demo.port)
    page = seen.go("now")
    page.wait_for_function("window.source")
    devtools = context.new_cdp_session(page)

    def size() -> tuple[float, float]:
        page.evaluate("new Promise(requestAnimationFrame)")  # the one that is due
        for _ in range(3):  # elements are given back by JavaScript's collector and the browser's by turns
            devtools.send("HeapProfiler.collectGarbage")
        counted, used = devtools.send("Memory.getDOMCounters"), devtools.send("Runtime.getHeapUsage")
        return counted["nodes"] + counted["jsEventListeners"], used["usedSize"]

    page.evaluate("pass(300)")
    expect(page.locator("article[aria-label^='GPU ']")).to_have_count(8)
    elements, heap_bytes = size()
    page.evaluate("pass(3600)")
    later_elements, later_heap_bytes = size()
    assert later_elements <= elements + 20
    assert later_heap_bytes <= 1.1 * heap_bytes
    assert seen.complaints == []
    context.close()
