"""The checks of dashboards, on made-up answers, and on a small dashboard and a real Prometheus."""

from __future__ import annotations

import http.server
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.prometheus import Job, Prometheus
from tests.e2e.story.checks import Excuse, columns, complaints
from tests.e2e.story.queries import Answer, Series, Span, Target, ask, load, seconds, substitute
from tests.e2e.waiting import eventually

EXAMPLE = Path(__file__).parent / "example.json"
SPAN = Span(1000, 1300, 2)
TRACE = "0af7651916cd43dd8448eb211c80319c"
PAGE = f"""\
# TYPE app_latency_seconds histogram
app_latency_seconds_bucket{{le="0.1"}} 3 # {{trace_id="{TRACE}"}} 0.05
app_latency_seconds_bucket{{le="1.0"}} 3
app_latency_seconds_bucket{{le="+Inf"}} 5
app_latency_seconds_count 5
app_latency_seconds_sum 4.2
# EOF
""".encode()


def answer(*series: Series, legend: str = "", kind: str = "timeseries", form: str = "time_series") -> Answer:
    return Answer(Target("board", "Panel", "A", "x", kind, form, legend), list(series))


def series(*values: float, **labels: str) -> Series:
    return Series(labels, dict(enumerate(values)))


def histogram(*counts: float) -> list[Series]:
    bounds = (*map(str, range(len(counts) - 1)), "+Inf")
    return [series(count, le=bound) for bound, count in zip(bounds, counts, strict=True)]


def wrong(*answers: Answer, excused: tuple[Excuse, ...] = ()) -> list[str]:
    """Without the place and the query."""
    return [each.removeprefix("board, Panel, A: ").removesuffix(": x") for each in complaints(answers, excused)]


@pytest.mark.parametrize(
    ("expr", "sent"),
    [
        ('x{node=~"$node"}', 'x{node=~".*"}'),
        ('x{node=~"${node}"} + y{node=~"${node:regex}"}', 'x{node=~".*"} + y{node=~".*"}'),
        ('x{node=~"[[node]]"}', 'x{node=~".*"}'),
        ("rate(x[$__rate_interval])", "rate(x[8s])"),
        ("increase(x[$__range]) / $__range_s", "increase(x[300s]) / 300"),
        ("avg_over_time(x[${__interval}])", "avg_over_time(x[5s])"),
        ('label_replace(x, "a", "$1", "b", "(.+)")', 'label_replace(x, "a", "$1", "b", "(.+)")'),
    ],
)
def test_variables_are_replaced_as_grafana_does(expr: str, sent: str) -> None:
    assert substitute(expr, {"node": ".*"}, SPAN, 5) == sent


def test_a_rate_interval_is_the_step_and_a_scrape_where_that_is_more_than_four_scrapes() -> None:
    assert substitute("$__rate_interval", {}, SPAN, 60) == "62s"


def test_a_variable_that_nobody_defines_is_an_error() -> None:
    with pytest.raises(KeyError, match="gpu"):
        substitute('x{gpu="$gpu"}', {"node": ".*"}, SPAN, 5)


@pytest.mark.parametrize(("text", "long"), [("60s", 60), ("1m", 60), (">1h30m", 5400), ("250ms", 0.25), ("", 0)])
def test_durations_are_read(text: str, long: float) -> None:
    assert seconds(text) == long


def test_a_good_answer_is_no_complaint() -> None:
    assert wrong(answer(series(1, math.nan, gpu="0"), series(2, gpu="1"), legend="GPU {{gpu}}")) == []
    outside = answer(series(1, gpu="0"), legend="{{gpu}} {{namespace}}/{{pod}} {{how}}")
    told = outside._replace(target=outside.target._replace(expr='x or label_replace(y, "how", "so", "", "")'))
    assert complaints([told]) == []
    assert wrong(answer(*histogram(1, 1, 4), legend="{{le}}", kind="heatmap", form="heatmap")) == []
    rows = [series(1, concurrency=bucket) for bucket in ("1", "2-3", "64+")]
    assert wrong(answer(*rows, legend="{{concurrency}}", kind="heatmap")) == []
    assert wrong(Answer(Target("board", "variable node", "node", "x"), [], options=("a",))) == []


@pytest.mark.parametrize("values", [(), (math.nan, math.nan), (-1.0, -2.0)])
def test_nothing_and_no_number_and_only_reasons_for_no_number_are_no_data(values: tuple[float, ...]) -> None:
    assert wrong(answer(series(*values))) == ["no data"]


def test_a_variable_without_a_value_is_no_data() -> None:
    target = Target("board", "Panel", "A", "x")
    assert wrong(Answer(target, []), Answer(target, [], options=("",))) == ["no data"] * 2


def test_what_prometheus_refuses_is_told() -> None:
    assert wrong(Answer(Target("board", "Panel", "A", "x"), [], error="parse error")) == ["parse error"]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (answer(series(1, math.inf)), "has values without end"),
        (answer(series(1, gpu="0"), legend="{{gpu}} {{model}}"), "no series has the label model of the legend"),
        (answer(series(1, model=""), legend="{{model}}"), "no series has the label model of the legend"),
        (
            answer(series(1, gpu="0", node="a"), series(1, gpu="0", node="b"), legend="{{gpu}}"),
            "2 series have one name, '0'",
        ),
        (answer(series(1), kind="heatmap", form="heatmap"), "a heatmap of buckets without the label le"),
        (
            answer(*histogram(1, 3, 2), kind="heatmap", form="heatmap"),
            "less up to inf than up to 1.0: no cumulative counts",
        ),
        (
            answer(series(1, le="0.5"), series(1, le="1.0"), kind="heatmap", form="heatmap"),
            "a histogram of the buckets [0.5, 1.0]",
        ),
        (
            answer(
                *histogram(1, 2), *(Series(each.labels | {"gpu": "1"}, each.values) for each in histogram(1, 2)),
                kind="heatmap", form="heatmap",
            ),
            "2 histograms in one heatmap",
        ),
        (
            answer(series(1, context="<1k"), series(1, context="1k"), legend="{{context}}", kind="heatmap"),
            "rows that begin with no number, ['<1k'], and so in no order",
        ),
        (
            answer(*histogram(1, 2))._replace(target=Target("board", "Panel", "A", "x", "graph", "table", "", True)),
            "has no exemplar with a trace_id",
        ),
    ],
)  # fmt: skip
def test_what_a_panel_could_not_show_is_told(bad: Answer, complaint: str) -> None:
    assert wrong(bad) == [complaint]


def test_an_excuse_covers_an_empty_target_and_must_be_true() -> None:
    never = Excuse("board", "Panel", "A", "no such hardware")
    sometimes = never._replace(sometimes=True)
    empty, full, odd = answer(), answer(series(1)), answer(series(math.inf))
    for excuse in (never, sometimes, never._replace(target="*")):
        assert wrong(empty, excused=(excuse,)) == []
    assert wrong(full, excused=(sometimes,)) == []
    assert wrong(full, excused=(never,)) == ["has data, and is said to have none"]
    assert wrong(odd, excused=(sometimes,)) == ["has values without end"]
    assert wrong(empty, excused=(never._replace(target="B"),)) == [
        "no data",
        "board, Panel, B: is excused, and not there",
    ]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    """It scrapes one page, with an exemplar, which stays as it is."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        jobs = [Job("app", server.server_address[1], 1)]
        with Prometheus(tmp_path, jobs, flags=["--enable-feature=exemplar-storage"]) as made:
            yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_every_query_of_a_dashboard_is_asked_of_a_real_prometheus(prometheus: Prometheus) -> None:
    eventually(lambda: prometheus.query("rate(app_latency_seconds_count[5s])"), "two scrapes")
    now_s = time.time()
    board = load(EXAMPLE)
    told = ask(prometheus, board, Span(now_s - 60, now_s, 1))
    assert [answer.target.where.removeprefix("example, ") for answer in told] == [
        "variable job, job",
        "variable instance, instance",
        "variable color, color",
        "annotation Ups, expr",
        "Up, A",
        "Latency, A",
        "Table, A",
        "Broken, A",
        "Broken, B",
        "Broken, C",
    ]
    job, instance = (answer.options for answer in told[:2])
    assert job == ("app",)
    assert len(instance) == 1
    latency = told[5]
    assert latency.traces == (TRACE,)
    assert {one.labels["le"] for one in latency.series} == {"0.1", "1.0", "+Inf"}
    found = [line.partition(": ") for line in complaints(told)]
    assert [(where, what.split(":")[0]) for where, _, what in found] == [
        ("example, variable color, color", "no data"),
        ("example, Broken, A", "no data"),
        ("example, Broken, B", "'node'"),
        ("example, Broken, C", "query_range {'query'"),
    ]
    assert "parse error" in found[-1][2]
    assert columns(board, told) == ["example, Table: no query brings 'nodes'"]
    assert columns(board, told, [Excuse("example", "Table", "A", "")]) == []
