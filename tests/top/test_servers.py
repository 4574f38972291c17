"""Servers on the screen."""

from __future__ import annotations

import pytest

from gpumon.top.answers import Server
from gpumon.top.servers import server_lines
from tests.top.answered import HOSTILE, plain, server


def lines(*servers: Server, width: int = 140) -> list[str]:
    return plain(server_lines(servers, width), width)


def cell(title: str, found: Server) -> str:
    """Of a column of figures."""
    titles, line = lines(found)[:2]
    end = titles.index(title) + len(title)
    return line[:end].split("  ")[-1].strip()


def test_a_server_is_a_line_of_figures() -> None:
    found = server(
        server="vllm",
        model="llama",
        tokens_per_second=1234.5,
        time_to_first_token={"p99_seconds": 0.3},
        inter_token={"p99_seconds": 0.0319},
        requests_open=7,
        waiting=2,
        kv_usage=0.5,
        late_seconds_per_second=0.25,
        gpus=[{"gpu": str(index)} for index in (0, 1, 2, 3, 7)],
    )
    assert lines(found) == [
        "server      tokens/s  TTFT P99  gap P99  open  wait    KV  late s/s  on GPUs",
        "llama vllm     1,234    300 ms  31.9 ms     7     2  50 %      0.25  0-3, 7",
    ]


def test_what_is_not_known_is_a_dash() -> None:
    assert lines(Server(server="vllm", model=""))[1].split() == ["no", "model", "vllm", *["-"] * 7]


def test_a_page_that_names_no_model_is_known_by_its_kind() -> None:
    assert lines(server(server="vllm", model="", pages=[{"server": "vllm", "endpoint": "a"}]))[1].startswith("vllm ")


@pytest.mark.parametrize(
    ("requests_open", "running", "waiting", "said"),
    [(5, 1, 1, "5"), (None, 3, 4, "7"), (None, 3, None, "-"), (None, None, None, "-"), (0, None, None, "0")],
)
def test_open_are_those_that_are_known_or_that_run_and_wait(
    requests_open: float | None, running: float | None, waiting: float | None, said: str
) -> None:
    assert cell("open", server(requests_open=requests_open, running=running, waiting=waiting)) == said


def test_errors_have_a_column_where_there_are_any() -> None:
    assert "errors/s" not in lines(server(errors_per_second=0.0))[0]
    assert cell("errors/s", server(errors_per_second=0.5)) == "0.5"


def test_a_page_that_cannot_be_read_is_named() -> None:
    page = {"server": "vllm", "endpoint": "10.0.0.7:8000", "up": False}
    assert lines(server(pages=[page, page]))[2:] == ["vllm at 10.0.0.7:8000: its metrics page cannot be read"]


def test_an_open_incident_is_marked() -> None:
    assert lines(server(incidents=[{"id": "x", "severity": "warning"}]))[1].startswith("! ")


def test_names_of_gpus_that_are_no_numbers_are_told_as_they_are() -> None:
    assert lines(server(gpus=[{"gpu": "x"}, {"gpu": "2"}, {"gpu": None}, {"gpu": "1"}]))[1].endswith("x, 1-2")


def test_hostile_answers_stay_on_their_line() -> None:
    pages = [{"server": HOSTILE, "endpoint": HOSTILE, "up": False}]
    found = server(server=HOSTILE, model=HOSTILE, tokens_per_second=-1e308, kv_usage=1e308, pages=pages)
    for width in (20, 60, 80, 140):
        assert len(lines(found, width=width)) == 3


def test_the_kind_is_that_of_the_page_where_the_traces_name_none() -> None:
    page = {"server": "vllm", "endpoint": "10.0.0.7:8000"}
    assert lines(server(server="gpumon", model="llama", pages=[page, page]))[1].startswith("llama vllm ")
    assert lines(server(server="sglang", model="llama", pages=[page]))[1].startswith("llama sglang ")
    assert lines(server(server="gpumon", model="llama", pages=[]))[1].startswith("llama gpumon ")
