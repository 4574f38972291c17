"""The views Latency and One request in a real browser: what a cell and a request say of themselves, and what of those
that are gone.

Where the demo's story does not bring a case by itself, its answers are changed on their way to the page.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.e2e.browsers import chromium, demo_of
from tests.e2e.daemon import Daemon
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.slow
LATE_MS = 30_000
SIZES = {"wide": (1280, 800, "light"), "phone": (390, 844, "dark")}
MINUTE = r"\d\d:\d\d(:\d\d)?"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with demo_of(tmp_path_factory.mktemp("demo"), '"cause":"thermal_throttle"', "/api/v1/diagnose") as daemon:
        eventually(lambda: hot_request(daemon), "a request was slow by heat", within_s=60.0)
        yield daemon


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    width, height, scheme = SIZES[request.param]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    context.set_default_timeout(LATE_MS)
    errors: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.unroute_all(behavior="ignoreErrors")
    assert errors == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    context.close()


def hot_request(demo: Daemon) -> str | None:
    """Trace id of one that heat made slow and that can be looked at."""
    told = json.loads(demo.ask("/api/v1/requests?cause=thermal_throttle&limit=100").body)
    return next((str(each["trace_id"]) for each in told["requests"] if each["detailed"]), None)


def go(page: Page, demo: Daemon, view: str) -> Page:
    page.goto(f"http://127.0.0.1:{demo.port}/#/{view}")
    return page


def change(page: Page, path: str, make: Callable[[dict[str, Any]], object]) -> list[dict[str, list[str]]]:
    """Answers of this path are changed in place. Returns what was asked, as it grows."""
    asked: list[dict[str, list[str]]] = []

    def answer(route: Route) -> None:
        asked.append(parse_qs(urlsplit(route.request.url).query))
        reply = route.fetch()
        told = reply.json()
        make(told)
        route.fulfill(response=reply, json=told)

    page.route(re.compile(rf"/api/v1/{path}(\?|$)"), answer)
    return asked


def cells(page: Page) -> Locator:
    return page.locator(".heat button")


def choose(page: Page) -> Locator:
    """A cell in the middle of those there are."""
    cells(page).first.wait_for()
    cell = cells(page).nth(cells(page).count() // 2)
    cell.click()
    return cell


def test_the_chosen_cell_stands_beside_its_list_with_name_and_value(page: Page, demo: Daemon) -> None:
    go(page, demo, "latency")
    label = choose(page).get_attribute("aria-label") or ""
    assert re.match(rf"{MINUTE}.{MINUTE}, \S+ open requests: P99 [\d.]+ \S+, P50 [\d.]+ \S+, [\d,]+ gaps$", label)
    expect(page.get_by_role("heading", name="Slowest requests of the cell")).to_be_visible()
    name, _, _ = label.partition(": P99")
    expect(page.locator(".cell")).to_have_text(
        re.compile(rf"^\d{{4}}-\d\d-\d\d {re.escape(name)}: P99 [\d.]+ m?s, P50")
    )
    page.get_by_label("quantile").select_option("p50_seconds")
    expect(page.locator(".cell")).to_have_text(re.compile(": P50 "))
    expect(page.locator("tbody a").first).to_be_visible()


def test_rows_are_ranges_and_columns_are_the_time_there_is(page: Page, demo: Daemon) -> None:
    go(page, demo, "latency?by=context")
    rows = page.locator(".heat tbody th")
    rows.first.wait_for()
    assert all(re.fullmatch(r"<1k|\d+k.\d+k|256k\+", text) for text in rows.all_inner_texts())
    expect(page.locator(".heat thead th")).to_have_text("context length, tokens")
    node = json.loads(demo.ask("/api/v1/node").body)
    columns = int(page.locator(".heat").evaluate("table => table.style.getPropertyValue('--columns')"))
    assert (node["at"] - node["started"]) / 60 - 1 <= columns <= (node["at"] - node["started"]) / 60 + 3
    expect(page.locator(".hint", has_text="when gpumon started")).to_be_visible()


def test_the_ends_of_a_row_and_its_cells_are_reached_by_keys(page: Page, demo: Daemon) -> None:
    go(page, demo, "latency")
    choose(page)
    place = "[document.activeElement.dataset.x, document.activeElement.dataset.y].map(Number)"
    _, row = page.evaluate(place)
    of_row = f"[...document.querySelectorAll(\".heat button[data-y='{row}']\")].map((each) => Number(each.dataset.x))"
    for key, end in (("Home", min), ("End", max)):
        page.keyboard.press(key)
        assert page.evaluate(place) == [end(page.evaluate(of_row)), row]
    page.keyboard.press("PageUp")
    assert page.evaluate(place)[1] == row


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("inter_token.concurrency.3.1600000000000", "is no longer known: cells are kept for an hour"),
        ("ttft.context.2.{before}", "is no longer known: gpumon has started since, at "),
        ("inter_token.concurrency.6.{soon}", "holds nothing that was measured"),
        ("nothing.at.all", "The address names a cell that cannot be read"),
        (HOSTILE, "The address names a cell that cannot be read"),
        ("inter_token.concurrency.3." + 5000 * "1", "The address names a cell that cannot be read"),
    ],
    ids=["old", "before", "empty", "no-cell", "hostile", "huge"],
)
def test_a_cell_that_is_not_there_says_why(page: Page, demo: Daemon, cell: str, said: str) -> None:
    started = json.loads(demo.ask("/api/v1/node").body)["started"]
    cell = cell.format(before=round(1e3 * (started - 600)), soon=round(1e3 * (started + 7200)))
    go(page, demo, f"latency?cell={cell}")
    expect(page.locator(".view .lost")).to_contain_text(said)
    expect(page.locator("#trouble")).to_be_hidden()
    kind = "ttft" if cell.startswith("ttft") else "inter_token"
    expect(page.get_by_label("Latency of")).to_have_value(kind)
    choose(page)
    expect(page.locator(".view .lost")).to_have_count(0)


def test_a_request_whose_tokens_are_gone_is_no_link_and_says_so(page: Page, demo: Daemon) -> None:
    def forget(told: dict[str, Any]) -> None:
        told["requests"] = told["requests"][:3]
        for row in told["requests"][:2]:
            row["detailed"] = False
        told["requests"][0]["model"] = HOSTILE

    change(page, "requests", forget)
    go(page, demo, "latency")
    choose(page)
    gone = page.locator(".gone")
    expect(gone).to_have_count(2)
    expect(gone.first).to_have_text(re.compile("^[0-9a-f]{12} not kept$"))
    expect(gone.first).to_have_attribute("title", re.compile("^[0-9a-f]{32}.*no longer kept"))
    expect(gone.locator("xpath=ancestor-or-self::a")).to_have_count(0)
    expect(page.locator("tbody a")).to_have_count(1)
    expect(page.get_by_text("Where it says “not kept” there is no link.")).to_be_visible()
    expect(page.get_by_text(HOSTILE)).to_be_visible()


def test_requests_are_those_of_the_chosen_model(page: Page, demo: Daemon) -> None:
    asked = change(page, "requests", lambda told: None)
    go(page, demo, "latency")
    choose(page)
    page.locator("tbody a").first.wait_for()
    model = page.get_by_label("of", exact=True)
    model.select_option(index=1)
    server, name = model.input_value().split("\n")
    eventually(lambda: asked[-1].get("model") == [name] and asked[-1].get("server") == [server], "the model is asked")


def test_odd_cells_are_drawn(page: Page, demo: Daemon) -> None:
    def oddly(told: dict[str, Any]) -> None:
        told["buckets"][0] = HOSTILE
        for number, cell in enumerate(told["cells"]):
            cell["bucket"] = told["buckets"][number % len(told["buckets"])]
            value = (0.0, 1e-9, 1e9)[number % 3]
            cell |= {"p50_seconds": value, "p95_seconds": value, "p99_seconds": value, "count": 10**15}

    change(page, "heatmap", oddly)
    go(page, demo, "latency")
    cells(page).first.wait_for()
    expect(page.locator(".heat tbody th", has_text="onerror")).to_have_count(1)
    expect(page.locator("#trouble")).to_be_hidden()


def test_a_scale_stays_where_it_is_and_leaves_calm_times_dark(page: Page, demo: Daemon) -> None:
    go(page, demo, "latency")
    cells(page).first.wait_for()
    found = page.evaluate(
        """async () => {
      const {scaleOf} = await import("./static/heat.js");
      const told = [];
      for (let usual = 1e-6; usual < 1e4; usual *= 1.37) {
        const one = scaleOf([usual, usual, usual]);
        const after = [0.85, 1, 1.25].map((by) => scaleOf([by * usual], one));
        const {ticks, share} = one;
        told.push({
          usual, ticks, lowest: after.map((each) => each.lowest - one.lowest),
          shares: [0, ticks[0], usual, 2 * usual, 10 * usual, ticks.at(-1), 1e9].map(share),
        });
      }
      return told;
    }"""
    )
    assert len(found) > 50
    for each in found:
        assert each["lowest"] == [0, 0, 0]
        assert each["shares"] == sorted(each["shares"])
        nothing, least, usual, double, tenfold, most, all_of_it = each["shares"]
        assert (nothing, least, most, all_of_it) == pytest.approx((0.0, 0.0, 1.0, 1.0))
        assert 0.05 < usual < 0.4
        assert double - usual == pytest.approx(0.177, abs=0.02)
        assert tenfold > 0.6
        ticks = each["ticks"]
        assert all(1.9 < high / low < 2.6 for low, high in itertools.pairwise(ticks))


def test_a_request_says_when_it_began_where_it_ran_and_which_gpu_is_hot(page: Page, demo: Daemon) -> None:
    go(page, demo, f"request/{hot_request(demo)}")
    facts = page.locator("dl.facts")
    expect(facts.locator("div", has_text="Began")).to_have_text(re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"))
    expect(facts.locator("div", has_text="GPUs")).to_contain_text("0, 1, 2, 3")
    expect(facts.locator("div", has_text="Processes")).to_contain_text(re.compile(r"VLLM::\w+ \d+(, \d+){3}"))
    row = page.locator("section", has_text="Late by").locator("tbody tr", has_text="GPU too hot")
    expect(row).to_contain_text(re.compile(r"GPU 3 (held down \d+ % of this time, up to \d+ °C|by the incident)"))
    for part in ("Filled: late by", "GPU too hot", "unhealthy"):
        expect(page.locator(".legend")).to_contain_text(part)


def test_the_gap_that_is_looked_at_is_in_the_address(page: Page, demo: Daemon) -> None:
    go(page, demo, f"request/{hot_request(demo)}")
    whole = page.get_by_role("button", name="Whole request")
    expect(whole).to_be_disabled()
    page.locator("section", has_text="Slow gaps").locator("tbody button").nth(1).click()
    expect(page).to_have_url(re.compile(r"[?&]gap=[\d.]+"))
    expect(whole).to_be_enabled()
    told = page.locator(".readout").inner_text()
    assert "after its start" in told
    page.reload()
    expect(page.locator(".readout")).to_have_text(told)
    whole.click()
    expect(page).not_to_have_url(re.compile("gap="))
    expect(whole).to_be_disabled()
    page.go_back()
    expect(whole).to_be_enabled()


@pytest.mark.parametrize("gap", ["123456789", "nothing", HOSTILE], ids=["late", "no-number", "hostile"])
def test_a_gap_that_there_is_not_shows_the_whole_request(page: Page, demo: Daemon, gap: str) -> None:
    go(page, demo, f"request/{hot_request(demo)}?gap={gap}")
    expect(page.locator(".view .lost")).to_have_text(
        "The address names no slow gap of this request: it is shown whole."
    )
    expect(page.get_by_role("button", name="Whole request")).to_be_disabled()


def test_what_a_stretch_was_late_by_is_not_said_of_one_token(page: Page, demo: Daemon) -> None:
    def stretch(told: dict[str, Any]) -> None:
        (request,) = told["requests"][:1]
        told["requests"] = [request]
        fields = {"cause": "thermal_throttle", "shares": [], "expected_seconds": 0.1}
        late = {"start": request["start"], "start_ms": 0.0, "duration_seconds": request["duration_seconds"]}
        within = {"start": request["start"] + 1.0, "start_ms": 1000.0, "duration_seconds": 0.5}
        request["first_token"]["excess_seconds"] = 0.0
        request["slow_gaps"] = [
            late | fields | {"tokens": 40, "excess_seconds": 0.9},
            within | fields | {"tokens": 1, "excess_seconds": 0.4},
        ]

    change(page, "explain", stretch)
    trace = hot_request(demo)
    readout = page.locator(".readout")
    go(page, demo, f"request/{trace}?gap=0")
    expect(readout).to_contain_text(re.compile(r"In a slow stretch of 40 tokens and .+ all of it together 900 ms"))
    go(page, demo, f"request/{trace}?gap=1000")
    expect(readout).to_contain_text("That is 400 ms late, most by GPU too hot.")


def test_a_trace_that_is_not_known_leads_to_places_of_the_page(page: Page, demo: Daemon) -> None:
    go(page, demo, "request/" + 32 * "0")
    lost = page.locator(".view .lost")
    expect(lost).to_contain_text("of this trace")
    expect(lost).not_to_contain_text("/api/")
    lost.get_by_role("link", name="the slowest of each minute").click()
    expect(page.locator("h1")).to_have_text("Latency")
    page.go_back()
    lost.get_by_role("link", name="those of each cause").click()
    expect(page.locator("h1")).to_have_text("Why")


@pytest.mark.parametrize("refuses", [False, True], ids=["allowed", "refused"])
def test_a_trace_id_can_be_copied_whole(page: Page, demo: Daemon, refuses: bool) -> None:
    # Browsers have no clipboard for pages that come without TLS from another host.
    text = "null" if refuses else "{writeText: async (text) => { window.copied = text; }}"
    page.add_init_script(f"Object.defineProperty(navigator, 'clipboard', {{value: {text}}})")
    trace = hot_request(demo)
    go(page, demo, f"request/{trace}")
    page.get_by_role("button", name="Copy").click()
    copied = "getSelection().toString()" if refuses else "window.copied"
    eventually(lambda: page.evaluate(copied) == trace, "the id is copied or selected")
    assert page.locator("code.id").inner_text() == trace


LANE = """async ([values, bound]) => {
  const {laneTrack} = await import("./static/lanes.js");
  const lane = {name: "margin", title: "margin", unit: "celsius", gpu: "0", uuid: "GPU-0", start: 1e9,
    step_seconds: 1, values, bound, high_is_bad: false};
  const {canvas, element, draw} = laneTrack([lane], {});
  const place = document.createElement("div");
  place.className = "tracks";
  place.append(element);
  document.getElementById("main").append(place);
  draw({from: 1e9, to: 1e9 + values.length}, null, {text: "#000", band: "#ff0", faint: "#eee"});
  const note = element.querySelector("small").textContent;
  draw({from: 1e9, to: 1e9 + values.length}, 1e9 + values.length / 2, {text: "#000", band: "#ff0", faint: "#eee"});
  const told = element.querySelector("small").textContent;
  draw({from: 1e9, to: 1e9 + values.length}, null, {text: "#000", band: "#ff0", faint: "#eee"});
  const {width, height} = canvas;
  const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
  let inked = 0;
  for (let x = 0; x < width; x += 1)
    for (let y = 0; y < height; y += 1) {
      const at = 4 * (y * width + x);
      if (data[at + 3] > 100 && data[at] + data[at + 1] + data[at + 2] < 200) { inked += 1; break; }
    }
  return {note, told, share: inked / width};
}"""
"""Draws a lane; how it is labelled, what it tells at its middle, and in which share of its columns there is a line."""


@pytest.mark.parametrize(
    ("values", "least", "note", "told"),
    [
        ([-1.0] * 20, 0.9, "-1 °C to 1 °C, unhealthy below 0 °C, GPU 0", "-1 °C"),
        ([float(n - 10) for n in range(20)], 0.9, "-10 °C to 10 °C, unhealthy below 0 °C, GPU 0", "0 °C"),
        ([4.0 if n % 5 == 0 else None for n in range(41)], 0.9, "0 to 4 °C, unhealthy below 0 °C, GPU 0", "4 °C"),
        ([1979.0] * 20, 0.9, "0 to 2,000 °C, unhealthy below 0 °C, GPU 0", "1,979 °C"),
        ([None] * 20, 0.0, "0 to 1 °C, unhealthy below 0 °C, GPU 0", "-"),
        ([1e300, -1e300] * 10, 0.5, "", ""),
        ([0.0] * 20, 0.9, "0 to 1 °C, unhealthy below 0 °C, GPU 0", "0 °C"),
    ],
    ids=["below-zero", "through-zero", "seldom-read", "round-top", "nothing", "huge", "zero"],
)
def test_a_lane_is_drawn_whole_on_a_round_scale(
    page: Page, demo: Daemon, values: list[float | None], least: float, note: str, told: str
) -> None:
    go(page, demo, "latency")
    cells(page).first.wait_for()
    found = page.evaluate(LANE, [values, 0.0])
    assert found["share"] >= least
    if note:
        assert (found["note"], found["told"]) == (note, told)
    if all(value is None for value in values):
        assert found["share"] == 0.0
