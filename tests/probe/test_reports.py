"""What is told of a run: in sentences, in a table, as JSON that stays the same, and in a page that asks for nothing."""

from __future__ import annotations

import base64
import hashlib
import io
import re

import pytest
from rich.console import Console

from gpumon.probe.climbing import State
from gpumon.probe.collapse import collapses
from gpumon.probe.lag import Lag
from gpumon.probe.measured import rung, slowest
from gpumon.probe.model import SCHEMA, CauseSeconds, Report, Spent
from gpumon.probe.report_html import page
from gpumon.probe.report_text import render
from gpumon.probe.words import verdict
from gpumon.terminal import console_for
from tests.diagnoses import HOSTILE
from tests.golden_file import golden
from tests.probe.answers import answered, climbed, conditions, failed
from tests.test_diagnosis_html import Read

GAPS = [0.02] * 15
CAUSE = CauseSeconds(cause="kv_pressure", title="KV cache full", seconds=2.5)


def report(name: str = "small", **changed: object) -> Report:
    """A ladder that collapses, with everything that there can be. name: of all that comes from outside."""
    errors = [failed("timeout"), failed("http_500", name)]
    made = [
        climbed(1024, [answered(0.1, GAPS, prompt=1024, trace="1" * 32) for _ in range(5)]),
        climbed(2048, [answered(0.9, GAPS, prompt=2000, trace="2" * 32) for _ in range(5)]),
        climbed(4096, [answered(2.0, GAPS, prompt=5000), *errors], state=State.PARTIAL),
        climbed(8192, [failed("context_too_long")], state=State.TOO_LONG),
        climbed(16384, [], state=State.NOT_TRIED),
    ]
    seen = [conditions(kv_usage=0.3), conditions(), None, None, None]
    rungs = [rung(each, known, [CAUSE] if known else []) for each, known in zip(made, seen, strict=True)]
    found = Report(
        schema_version=SCHEMA,
        version="1.2.3",
        started=1_796_000_000.0,
        duration_seconds=42.0,
        endpoint="http://127.0.0.1:8000/v1",
        interface="completions",
        model=name,
        max_tokens=16,
        cached=False,
        lengths_from="usage",
        tokens_from="usage",
        ended="done",
        failure="",
        budget=Spent(tokens=10**6, seconds=None, spent_tokens=20_000, planned_requests=25, planned_tokens=30_000),
        gpumon="http://127.0.0.1:9450",
        rungs=rungs,
        collapses=collapses(rungs, made),
        slowest=slowest(made),
        notes=[name],
    )
    return found.model_copy(update=changed)


def text(said: Report, command: str = "gpumon explain", width: int = 80) -> str:
    stream = io.StringIO()
    console = console_for(stream)
    console.width = width
    render(console, said, command)
    return stream.getvalue()


# --- text -------------------------------------------------------------------------------------------------------------


def test_the_collapse_comes_first_with_what_was_different_there() -> None:
    lines = text(report())
    assert lines.startswith(
        "Collapse from 1k to 2k tokens: P95 of time to first token grows 9 times, 100 ms \n→ 900 ms, for 1.95 times"
    )
    assert re.search(r"^KV cache +30 % +97 %$", lines, re.M)
    assert re.search(r"^1k +5 +100 ms +100 ms +100 ms +20 ms +20 ms +20 ms", lines, re.M)
    assert "\n4k (5,000): 1 http_500, 1 timeout; cut short\n8k: does not fit the context\n16k: not tried\n" in lines
    assert "Prompts of 8k tokens do not fit the server's context." in lines
    assert "2.5 s KV cache full" in " ".join(lines.split())
    assert f"gpumon explain {'2' * 32}  2k: 900 ms, 1.2 s" in lines


@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_it_fits_any_terminal(width: int) -> None:
    lines = text(report(), width=width).splitlines()
    assert max(map(len, lines)) <= width


def test_nothing_from_outside_is_more_than_text() -> None:
    said = text(report(HOSTILE))
    assert "\x1b" not in said
    assert all(line.isprintable() for line in said.splitlines())


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ("budget_tokens", "The budget of tokens is used up"),
        ("budget_s", "The time is up"),
        ("interrupted", "Interrupted"),
        ("server_gone", "The server is gone (connect: Connection refused)."),
        ("refused", "The server refuses (connect: Connection refused)."),
    ],
)
def test_why_it_ended_comes_before_all_else(ended: str, told: str) -> None:
    failure = "connect: Connection refused" if ended in ("server_gone", "refused") else ""
    assert verdict(report(ended=ended, failure=failure))[0].startswith(told)


def test_a_ladder_without_collapse_says_how_far_it_went() -> None:
    assert verdict(report(collapses=[]))[0] == "No collapse up to 4k tokens: P95 grows no faster than the work."
    assert verdict(report(collapses=[], rungs=report().rungs[:1])) == ["One rung alone tells of no collapse."]
    assert verdict(report(collapses=[], rungs=[])) == []


def test_without_gpumon_the_trace_ids_stand_alone() -> None:
    assert f"trace {'2' * 32}  2k" in text(report(), "")


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_the_json_is_read_back_as_it_was() -> None:
    assert Report.model_validate_json(report().model_dump_json()) == report()


def test_the_json_has_the_fields_that_it_had() -> None:
    """Whoever changes the meaning of a field, or takes one away, gives SCHEMA another number."""
    schema = Report.model_json_schema()
    models = {**schema["$defs"], "Report": schema}
    fields = [f"{name}.{each}" for name, model in sorted(models.items()) for each in sorted(model["properties"])]
    golden("probe-report.txt", f"schema {SCHEMA}\n{chr(10).join(fields)}\n".encode())


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def read() -> Read:
    return Read(page(report(), "gpumon explain"))


def test_the_page_is_whole_and_tells_the_same(read: Read) -> None:
    assert read.open == []
    assert "Collapse from 1k to 2k tokens" in read.text
    assert ["KV cache", "30 %", "97 %"] in read.rows
    assert any(row[:4] == ["2k", "1", "5", "900 ms"] for row in read.rows)
    assert {"plot-first", "plot-gaps", "plot-rate"} == set(read.figures)


def test_nothing_in_the_page_refers_elsewhere(read: Read) -> None:
    for tag, attributes in read.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "a"), tag
        assert not {"src", "href", "srcset", "action", "onload", "onclick"} & set(attributes)
    own = [body for attributes, body in read.scripts if "Plotly.newPlot(document" in body]
    assert len(own) == 1
    assert "http" not in own[0]


def test_the_policy_lets_those_two_scripts_run_and_nothing_else(read: Read) -> None:
    scripts = [body for attributes, body in read.scripts if attributes.get("type") != "application/json"]
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" for body in scripts}
    policy = dict(part.strip().partition(" ")[::2] for part in read.policy.split(";"))
    assert policy["default-src"] == "'none'"
    assert set(policy["script-src"].split()) == hashes


def test_names_from_outside_are_text_in_the_page() -> None:
    hostile = Read(page(report(HOSTILE), HOSTILE, script=""))
    harmless = Read(page(report("harmless"), "harmless", script=""))
    assert hostile.open == []
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    assert hostile.scripts == []


def test_without_plotly_the_tables_tell_it() -> None:
    plain = Read(page(report(), "", script=""))
    assert plain.scripts == []
    assert "script-src 'none'" in plain.policy
    assert not any(attributes.get("class") == "plot" for _, attributes in plain.elements)


def test_a_run_without_anything_measured_is_a_page_too() -> None:
    empty = page(report(rungs=[], collapses=[], slowest=[], notes=[], ended="refused", failure="http_401"), "")
    assert Read(empty).scripts == []
    assert "The server refuses (http_401)." in empty


def test_a_row_stands_out_where_it_collapses() -> None:
    stream = io.StringIO()
    render(Console(file=stream, force_terminal=True, color_system="standard", width=100), report(), "")
    assert re.search(r"\x1b\[1;31m2k", stream.getvalue())


# --- the probe's own lag ----------------------------------------------------------------------------------------------


def test_a_probe_that_is_late_itself_says_so() -> None:
    lag = Lag(lambda: 0)
    assert lag.note() == ""
    for _ in range(100):
        lag.add(300_000)
    assert lag.note() == ""
    for _ in range(10):
        lag.add(8_000_000)
    assert "came 8 ms late (P99)" in lag.note()


def test_several_concurrencies_have_a_column_and_a_heading_of_their_own() -> None:
    made = report()
    made.rungs[0].concurrency = made.rungs[1].concurrency = made.collapses[0].concurrency = 8
    lines = text(made, width=110)
    assert "\nAt 1k and 2k, 8 at a time\n" in lines
    assert re.search(r"^1k +8 +5 +100 ms", lines, re.M)
    assert "\n8k, 1 at a time: does not fit the context\n" in lines
