"""``gpumon diagnose --html``: a page that is whole, safe whatever the names in it, and readable without its plots."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from gpumon.catalogue import CAUSES
from gpumon.diagnosis_figures import colours, figures
from gpumon.diagnosis_html import page
from gpumon.explain.causes import LOAD, is_fault
from gpumon.explain.diagnosis.model import Change, Diagnosis
from gpumon.report_page import plotly_script
from tests.diagnoses import HOSTILE, SINCE, TRACE, full, nothing

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Read(HTMLParser):
    """A page taken apart: elements, their attributes, and the text outside of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        elif "style" not in self.open:
            self.text += data
            if {"td", "th"} & {*self.open}:
                self.rows[-1][-1] += data

    @property
    def policy(self) -> str:
        (found,) = [a["content"] for tag, a in self.elements if tag == "meta" and "http-equiv" in a]
        assert found is not None
        return found

    @property
    def figures(self) -> Any:
        (found,) = [text for attributes, text in self.scripts if attributes.get("type") == "application/json"]
        return json.loads(found, parse_constant=lambda text: 1 / 0)


@pytest.fixture(scope="module")
def read() -> Read:
    return Read(page(full(), "gpumon explain"))


@pytest.fixture(scope="module")
def hostile() -> Read:
    return Read(page(hostile_diagnosis(), "gpumon explain"))


def hostile_diagnosis() -> Diagnosis:
    """Every text that may come from outside, and a few that may not, is an attack."""
    told = json.loads(full(HOSTILE, HOSTILE).model_dump_json())
    told |= {"node": HOSTILE, "version": HOSTILE, "verdict": [HOSTILE], "notes": [HOSTILE]}
    told["causes"][0] |= {"cause": HOSTILE, "title": HOSTILE, "fact": HOSTILE}
    told["matrix"][0] |= {"title": HOSTILE, "healthy": HOSTILE, "unit": HOSTILE}
    told["before_during"]["changes"][0] |= {"title": HOSTILE, "unit": HOSTILE}
    told["timeline"]["by_cause"][HOSTILE] = told["timeline"]["excess"]
    told["slowest"][0] |= {"trace_id": HOSTILE, "cause": HOSTILE}
    told["engines"][0] |= {"place": HOSTILE, "gpus": [HOSTILE], "cause": HOSTILE}
    told["incidents"][0] |= {"kind": HOSTILE, "entity": HOSTILE, "summary": HOSTILE, "causes": [HOSTILE]}
    told["correlations"][0] |= {"x": HOSTILE, "y": HOSTILE}
    told["contexts"][0]["rows"][0]["bucket"] = told["contexts"][0]["cliff"] = HOSTILE
    told["quality"][0] |= {"prompts": HOSTILE, "evaluation": HOSTILE}
    told["surface"]["x"] |= {"name": HOSTILE, "labels": [HOSTILE] * 3}
    told["surface"]["measure"] = HOSTILE
    told["actions"][0] |= {"text": HOSTILE, "cause": HOSTILE, "title": HOSTILE, "reason": HOSTILE}
    return Diagnosis.model_validate_json(json.dumps(told))


# --- whole ------------------------------------------------------------------------------------------------------------


def test_every_element_is_closed(read: Read) -> None:
    assert read.open == []


def test_the_verdict_and_every_part_are_told(read: Read) -> None:
    assert "vllm/llama-70b lost 310 s of token time, 93 % of it because a GPU was too hot." in read.text
    assert "30 min from 2027-01-15 08:00:00 UTC on" in read.text
    assert "Look at fans and air flow. (GPU too hot: 3 min 50 s of the worst stretch, 4 min 48 s in all)" in read.text
    assert sum(tag == "h2" for tag, _ in read.elements) == 15
    assert "NVLink is not watched: no NVLink on this node." in read.text


@pytest.mark.parametrize(
    "row",
    [
        ["GPU too hot", "4 min 48 s", "93 %", "110", "fault; sm_clock 1.005 GHz, usually 1.41 GHz"],
        ["SM clock over its maximum", "> 70 %", "50.8 %", "100 %", "-", "-0.83", "1,200", "bad"],
        ["waiting in the queue", "12 s", "4 %", "110", "load; until first tokens; 300 ms a minute in calm ones"],
        ["P95 gap", "45 ms", "255 ms", "+467 %"],
        ["sm clock", "inter token p95 of vllm/llama-70b", "-0.91", "+1 s", "120", "1 s", "1e-12"],
        ["acme", "400", "41", "-6.5", "-0.80", "bad"],
        ["rare", "34", "350 ms", "900 ms", "-"],
        ["128k", "100", "7 s", "14 s", "3.5 s", "x 3.2", "40", "20"],
        ["acme", "1 s", "1.4 s", ""],
        ["vllm/llama-70b", "5f3a", "relevance", "40", "0.71", "38", "+0.66", "suspect"],
    ],
)
def test_what_is_drawn_is_in_a_table_as_well(read: Read, row: list[str]) -> None:
    assert row in read.rows


def test_requests_to_look_at_come_with_the_command() -> None:
    assert f"gpumon explain {TRACE}" in Read(page(full(), "gpumon explain")).text
    alone = Read(page(full(), "")).text
    assert TRACE in alone
    assert "gpumon explain" not in alone


def test_every_plot_has_its_place_and_every_place_its_plot(read: Read) -> None:
    places = [attributes["id"] for tag, attributes in read.elements if attributes.get("class") == "plot"]
    assert sorted(map(str, places)) == sorted(read.figures)
    assert {*places} == {
        "plot-causes",
        "plot-timeline",
        "plot-before-during",
        "plot-correlations",
        "plot-tenants-0",
        "plot-contexts-0",
        "plot-surface",
    }


def test_where_nothing_was_asked_there_is_no_plot_and_no_script() -> None:
    empty = Read(page(nothing(), "gpumon explain"))
    assert empty.scripts == []
    assert "script-src 'none'" in empty.policy
    assert "No requests ended in this time." in empty.text


def test_a_period_of_which_less_is_known_says_since_when() -> None:
    text = Read(page(full().model_copy(update={"known_since": SINCE + 1560.0}), "")).text
    assert "4 min from 2027-01-15 08:26:00 UTC on: of the 30 min asked for no more is known" in text


def test_wide_plots_and_tables_scroll_within_a_narrow_page(read: Read) -> None:
    inside: list[str] = []
    last: dict[str, str | None] = {}
    for tag, attributes in read.elements:
        if tag == "table" or attributes.get("class") == "plot":
            inside.append(str(last.get("class")))
        last = attributes
    assert len(inside) > 15
    assert set(inside) == {"scroll"}


def test_figures_of_what_is_drawn_are_behind_a_summary_and_open_without_a_plot() -> None:
    assert "3 signals in figures" in Read(page(full(), "")).text
    alone = Read(page(full(), "", script=""))
    assert "signals in figures" not in alone.text
    assert ["P95 gap", "45 ms", "255 ms", "+467 %"] in alone.rows


def test_a_worst_stretch_without_a_before_says_so_and_keeps_its_figures_behind_a_summary() -> None:
    during = full().before_during
    assert during is not None
    found = full().model_copy(update={"before_during": during.model_copy(update={"before": None})})
    told = Read(page(found, "", script="")).text
    assert "There is no quiet time before it to compare with." in told
    assert "3 signals in figures" in told


def test_the_same_diagnosis_is_the_same_page() -> None:
    assert page(full(), "gpumon explain") == page(full(), "gpumon explain")


# --- safe -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["read", "hostile"])
def test_no_script_runs_but_those_whose_hashes_are_in_the_policy(name: str, request: pytest.FixtureRequest) -> None:
    found: Read = request.getfixturevalue(name)
    run = [text for attributes, text in found.scripts if attributes.get("type") != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert len(found.scripts) == 3
    assert found.policy.split("; ") == [
        "default-src 'none'",
        "script-src " + " ".join(f"'sha256-{digest}'" for digest in hashes),
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


@pytest.mark.parametrize("name", ["read", "hostile"])
def test_nothing_is_loaded_and_no_element_has_a_handler(name: str, request: pytest.FixtureRequest) -> None:
    found: Read = request.getfixturevalue(name)
    tags = {tag for tag, _ in found.elements}
    assert not tags & {"img", "link", "iframe", "object", "embed", "form", "a", "base"}
    for _, attributes in found.elements:
        assert not [each for each in attributes if each.startswith("on") or each in ("src", "href")]


def test_names_from_outside_are_text(hostile: Read) -> None:
    assert '</script><img src=x onerror="alert(1)">[red]\ufffd[31m$&' in hostile.text
    assert not any(character in hostile.text for character in "\x1b\x00")
    assert hostile.open == []


def test_names_in_plots_are_no_markup_of_plotly(hostile: Read) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for key, each in value.items() if key != "texttemplate" for text in texts(each)]
        if isinstance(value, list):
            return [text for each in value for text in texts(each)]
        return [value] if isinstance(value, str) else []

    told = texts(hostile.figures)
    assert any("&lt;/script&gt;&lt;img" in text for text in told)
    assert not any("<" in text or "\x1b" in text for text in told)


def test_the_data_cannot_end_their_script() -> None:
    text = page(hostile_diagnosis(), "gpumon explain")
    (data,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    assert "<" not in data
    assert "&" not in data


def test_a_command_with_quotes_stays_text() -> None:
    found = Read(page(full(), 'gpumon explain --url http://x/"><b>'))
    assert 'gpumon explain --url http://x/"><b> ' + TRACE in found.text


# --- plots ------------------------------------------------------------------------------------------------------------


def test_plots_are_of_the_figures() -> None:
    drawn = figures(full())
    assert drawn["plot-causes"]["data"][0]["x"] == [10.0, 12.0, 288.0]
    named, rest, response = drawn["plot-timeline"]["data"]
    assert (named["name"], sum(named["y"])) == ("GPU too hot", pytest.approx(288.0))
    assert (rest["name"], sum(rest["y"])) == ("the rest", pytest.approx(22.0))
    assert named["x"][0] == "2027-01-15 08:00:30"
    assert response["y"][-1] is None
    assert drawn["plot-surface"]["data"][0]["z"] == [[1.0, 1.4, None], [1.1, 1.3, 2.9]]
    assert drawn["plot-correlations"]["data"][0]["z"] == [[-0.91], [0.8]]
    assert drawn["plot-contexts-0"]["data"][0]["y"] == [2.0, 4.4, 14.0]
    assert drawn["plot-tenants-0"]["data"][0]["y"] == ["none named", "acme"]


def test_a_change_beyond_the_axis_is_told_by_its_figure() -> None:
    bar = figures(full())["plot-before-during"]["data"][0]
    assert bar["x"] == [300.0, -49.0]
    assert bar["text"][0] == "45 ms → 255 ms (+467 %)"


def test_there_is_room_for_figures_beside_the_bars_of_either_side() -> None:
    during = full().before_during
    assert during is not None
    clock, gap, _ = during.changes

    def room(*changes: Change) -> list[float]:
        found = full().model_copy(update={"before_during": during.model_copy(update={"changes": changes})})
        return [*figures(found)["plot-before-during"]["layout"]["xaxis"]["range"]]

    assert room(clock, gap) == [-49.0 - 349.0, 300.0 + 349.0]
    assert room(gap) == [0.0, 600.0]
    assert room(clock) == [-98.0, 0.0]
    assert room(clock.model_copy(update={"change": 0.0})) == [0.0, 0.0]


def test_axes_of_names_take_no_name_for_a_number_or_a_date() -> None:
    for drawn in figures(full(tenant="2026-01-01")).values():
        for axis in ("xaxis", "yaxis"):
            values = [value for trace in drawn["data"] for value in trace.get(axis[0], [])]
            if any(isinstance(value, str) for value in values):
                assert drawn["layout"][axis]["type"] in ("category", "date")
    assert figures(full(tenant="2026-01-01"))["plot-tenants-0"]["layout"]["yaxis"]["type"] == "category"


def test_faults_and_load_never_have_the_same_colour_and_the_dearest_causes_differ() -> None:
    shades = colours(CAUSES)
    faults = {shades[cause] for cause in CAUSES if is_fault(cause)}
    assert not faults & {shades[cause] for cause in CAUSES if not is_fault(cause)}
    assert colours(["unexplained", "of a later version"]) == dict.fromkeys(
        ("unexplained", "of a later version"), shades["unexplained"]
    )
    dearest = [*[cause for cause in CAUSES if is_fault(cause)][-6:], *LOAD, "unexplained"]
    assert len({*colours(dearest).values()}) == 12


def test_incidents_are_marked_where_time_was_lost_those_of_one_cell_together() -> None:
    said = full()
    (first,) = said.incidents
    more = [
        first.model_copy(update={"opened": at, "title": title})
        for at, title in ((SINCE + 610, "GPU lost"), (SINCE - 9, "a"))
    ]
    layout = figures(said.model_copy(update={"incidents": (*more, first)}))["plot-timeline"]["layout"]
    assert [each["text"] for each in layout["annotations"]] == ["GPU too hot and 1 more"]
    assert [(each["x0"], each["x1"]) for each in layout["shapes"]] == [("2027-01-15 08:10:01",) * 2]


def test_dimensions_that_were_not_different_are_behind_a_summary(read: Read) -> None:
    assert "1 that were as on the other requests, 1 that are not known" in read.text
    known = full().model_copy(update={"matrix": full().matrix[:-1]})
    assert "1 that were as on the other requests" in Read(page(known, "")).text
    assert "not known" not in Read(page(known, "", script="")).text
    page_text = page(full(), "", script="")
    before, _, after = page_text.partition("<details>")
    assert "SM clock over its maximum" in before
    assert "major page faults" not in before
    assert "major page faults" in after.partition("</details>")[0]


def test_plotlys_script_is_the_one_of_its_package_and_ends_no_element() -> None:
    file = importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
    assert plotly_script() == file.read_text("utf-8")
    assert "\r" not in plotly_script()


def test_without_plotlys_script_the_tables_are_told() -> None:
    text = page(full(), "gpumon explain", script="")
    found = Read(text)
    assert len(text) < 100_000
    assert found.scripts == []
    assert not [attributes for _, attributes in found.elements if attributes.get("class") == "plot"]
    assert ["P95 gap", "45 ms", "255 ms", "+467 %"] in found.rows
