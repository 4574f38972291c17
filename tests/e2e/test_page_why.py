"""Why in a real browser, on a running demo: a stretch is chosen, small causes are seen, words are explained; and what
the modules that all views share make of figures and texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gpumon.catalogue import CAUSES
from tests.e2e.browsers import chromium, demo_of
from tests.e2e.daemon import Daemon

pytestmark = pytest.mark.slow
SIZES = {"desk": (1280, 800, "light"), "phone": (390, 844, "dark")}
CLOCK = r"\d\d:\d\d:\d\d"
PERIOD = re.compile(rf"({CLOCK}) to ({CLOCK}) UTC: ")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with demo_of(tmp_path_factory.mktemp("demo"), '"cause":"thermal_throttle"', "/api/v1/diagnose") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, browser: Browser, demo: Daemon) -> Iterator[Page]:
    width, height, scheme = SIZES[request.param]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        has_touch=request.param == "phone",
        base_url=f"http://127.0.0.1:{demo.port}/",
    )
    context.set_default_timeout(30_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    yield page
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert complaints == []
    context.close()


def go(page: Page, address: str) -> Page:
    page.goto(f"#/{address}")
    return page


def why(page: Page, parameters: str = "") -> Page:
    go(page, f"why{parameters}")
    expect(page.locator(".track.bars").first).to_be_visible()
    return page


def period(page: Page) -> tuple[str, str]:
    found = PERIOD.search(page.locator(".view > div > .dim").first.inner_text())
    assert found is not None
    return found[1], found[2]


@pytest.fixture(scope="module")
def modules(browser: Browser, demo: Daemon) -> Iterator[Page]:
    """A page whose modules are asked."""
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{demo.port}/")
    yield page
    page.close()


def of_module(page: Page, name: str, expression: str, given: Any) -> Any:
    """What an expression of a module of the page, m, and of what is given makes."""
    return page.evaluate(f"given => import('./static/{name}.js').then((m) => {expression})", given)


def test_every_cause_of_the_answer_has_a_row_of_its_own(page: Page, demo: Daemon) -> None:
    why(page)
    timeline = json.loads(demo.ask("/api/v1/diagnose").body)["timeline"]
    names = page.locator(".track.bars .name")
    assert names.count() >= 2 + len(timeline["by_cause"])
    expect(names.filter(has_text="GPU too hot")).to_have_count(1)
    expect(names.filter(has_text="Response time, P95")).to_have_count(1)


def test_rows_have_scales_of_their_own_or_one_for_all(page: Page) -> None:
    why(page)
    notes = page.locator(".track.bars small")

    def scales() -> list[str]:
        return [note.rpartition("scale to ")[2] for note in notes.all_inner_texts()[:-1]]

    assert len(set(scales())) > 1
    page.get_by_label("Scale").select_option("one")
    expect(page).to_have_url(re.compile("scale=one"))
    assert len(set(scales())) == 1
    page.reload()
    expect(page.get_by_label("Scale")).to_have_value("one")


def test_a_stretch_that_is_dragged_over_is_what_all_of_it_is_of(page: Page) -> None:
    why(page)
    row = page.locator(".track.bars canvas").nth(1)
    row.scroll_into_view_if_needed()
    box = row.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.25 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], y, steps=4)
    said = page.locator(".readout").inner_text()
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    found = re.match(rf"({CLOCK}) to ({CLOCK}): let go", said)
    assert found is not None
    expect(page.locator(".view > div > .dim").first).to_contain_text(f"{found[1]} to ")
    expect(page.get_by_label("From, time of day, UTC")).to_have_value(found[1])
    expect(page.locator("#range")).to_be_hidden()
    of_it = period(page)
    page.reload()
    expect(page.locator(".track.bars").first).to_be_visible()
    assert period(page) == of_it
    page.get_by_role("button", name="The last 30 minutes").click()
    expect(page).not_to_have_url(re.compile("from="))
    expect(page.locator("#range")).to_be_visible()
    page.go_back()
    expect(page.get_by_label("From, time of day, UTC")).to_have_value(of_it[0])


def test_a_stretch_can_be_given_by_two_times(page: Page) -> None:
    why(page)
    since, until = period(page)
    first, last = page.get_by_label("From, time of day, UTC"), page.get_by_label("To, time of day, UTC")
    first.fill(until)
    last.fill(since)
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator(".wrong")).to_contain_text("the first before the second")
    assert "from=" not in page.url
    first.fill("noon")
    last.press("Enter")
    expect(page.locator(".wrong")).not_to_be_empty()
    first.fill(since)
    last.fill(until)
    last.press("Enter")
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    expect(page.locator(".wrong")).to_be_empty()
    assert period(page) == (since, until)


@pytest.mark.parametrize("wrong", ["from=x&to=y", "from=5&to=1", "from=1e99&to=1e100", "from=&to=", "to=1796011000"])
def test_a_stretch_that_makes_no_sense_is_none(page: Page, wrong: str) -> None:
    why(page, f"?{wrong}")
    expect(page.locator("#range")).to_be_visible()
    expect(page.locator(".problem")).to_be_hidden()


def test_arrow_keys_go_from_time_to_time(page: Page) -> None:
    why(page)
    page.locator(".losses").focus()
    page.keyboard.press("ArrowRight")
    first = page.locator(".readout").inner_text()
    assert re.match(rf"{CLOCK} to {CLOCK}: .* lost", first)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".readout")).not_to_have_text(first)


def test_the_evidence_of_an_incident_is_in_sight_also_where_the_view_was_open_before(page: Page, demo: Daemon) -> None:
    incident = json.loads(demo.ask("/api/v1/incidents").body)[-1]["id"]
    why(page)
    go(page, "now")
    expect(page.locator("main")).to_have_attribute("data-view", "now")
    page.evaluate("id => { location.hash = `#/why?incident=${encodeURIComponent(id)}`; }", incident)
    card = page.locator(".incident.chosen")
    expect(card).to_have_attribute("data-id", incident)
    expect(card.locator("summary")).to_be_in_viewport()
    expect(card.locator("tbody").first).to_be_visible()


def test_a_word_is_explained_where_it_stands(page: Page) -> None:
    why(page)
    word = page.locator(".view > div > .dim .term")
    expect(page.locator(".help")).to_have_count(0)
    word.click()
    expect(page.locator(".help")).to_be_visible()
    expect(page.locator(".help")).to_contain_text("late by 30 %")
    expect(page.locator(".help")).to_be_in_viewport(ratio=1)
    page.keyboard.press("Escape")
    expect(page.locator(".help")).to_be_hidden()
    expect(word).to_be_focused()


def test_a_row_is_a_card_where_there_is_no_room_for_columns(page: Page) -> None:
    why(page)
    table = page.locator("section", has_text="Slow-token seconds by cause").locator("table").first
    is_phone = page.evaluate("innerWidth") < 700
    expect(table.locator("thead")).to_be_visible(visible=not is_phone)
    label = "getComputedStyle(document.querySelectorAll('table.rows td')[2], '::before').content"
    assert page.evaluate(label) == ('"Share "' if is_phone else "none")
    assert table.get_by_role("row").count() > 1


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(0.288, "+29 %"), (-0.03, "-3 %"), (130.08, "x 131"), (1653.27, "x 1,654"), (0, "0 %"), (None, "-")],
)
def test_what_grew_many_times_is_told_by_how_many(modules: Page, ratio: float | None, said: str) -> None:
    assert of_module(modules, "units", "m.change(given)", ratio) == said


def test_code_in_texts_is_code_and_nothing_else_is(modules: Page) -> None:
    make = "((box) => (box.append(...m.prose(given)), [box.textContent, [...box.children].map((e) => e.outerHTML)]))"
    make += "(document.createElement('p'))"
    text, children = of_module(modules, "dom", make, "run `gpumon doctor`, not <b>this</b> or `<i>`; a ` alone stays")
    assert text == "run gpumon doctor, not <b>this</b> or <i>; a ` alone stays"
    assert children == ["<code>gpumon doctor</code>", "<code>&lt;i&gt;</code>"]


@pytest.mark.parametrize("name", ["", "constructor", "__proto__", "a_new_cause"])
def test_a_cause_that_the_page_does_not_know_has_the_colour_of_none(modules: Page, name: str) -> None:
    assert of_module(modules, "colours", "m.causeColour(given)", name) == "#878787"
    assert name not in CAUSES


def test_names_are_called_as_an_answer_called_them_and_there_is_an_end_of_names(modules: Page) -> None:
    learn = "(m.learn(given), [m.called('a_b'), m.called('constructor'), m.called('n1999')])"
    those = [{"cause": "a_b", "title": "A, b"}, {"kind": "c"}, *({"kind": f"n{n}", "title": "N"} for n in range(2000))]
    assert of_module(modules, "names", learn, those) == ["A, b", "constructor", "n1999"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("00:00:10", 86_410), ("23:59:59", 86_399), ("0:01", 86_460), ("24:00:00", None), ("1:60", None), ("", None)],
)
def test_a_time_of_day_is_the_last_such_moment(modules: Page, text: str, seconds: int | None) -> None:
    assert of_module(modules, "stretch", "m.momentOf(given, 2 * 86400 - 43200)", text) == seconds
