"""What is seen, told on a screen, in lines and in a record: it fits, and nothing in it can move a cursor."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import pty
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import logs
from gpumon.sight.look import STATES, Seen
from gpumon.sight.telling import tell_seen
from gpumon.sight.told import HEIGHT, WIDTH, Place, block, fields, summary

PLACE = Place("gpu-1", 65534, "http://127.0.0.1:9450/", has_page=True, is_demo=False)
GPUS = Seen(
    "GPUs", "no", "NVML: LIBRARY_NOT_FOUND", "install the driver (any of 535 to 610), or name it with --nvml-lib"
)
HOST = Seen("host", "yes", "page faults, pressure stalls")
TRACES = Seen("traces", "waits", "none yet: send OTLP to port 4317 (gRPC)")
LONG = [Seen(f"part {n}", "partly", "what is found " * 30, "what to do (somehow) " * 30) for n in range(11)]


def test_a_part_is_a_line_and_its_fix_is_below_it() -> None:
    assert block([GPUS, HOST, TRACES], PLACE).splitlines()[2:7] == [
        "GPUs        no      NVML: LIBRARY_NOT_FOUND",
        "                    fix: install the driver (any of 535 to 610), or name it with",
        "                    --nvml-lib",
        "host        yes     page faults, pressure stalls",
        "traces      waits   none yet: send OTLP to port 4317 (gRPC)",
    ]


def test_it_says_where_the_page_is_or_the_metrics_where_there_is_none() -> None:
    assert "Page: http://127.0.0.1:9450/ " in block([HOST], PLACE)
    assert "Metrics: http://127.0.0.1:9450/metrics " in block([HOST], PLACE._replace(has_page=False))
    assert "gpumon doctor" in block([HOST], PLACE)


def test_a_demo_says_that_it_is_one_and_not_who_runs_it() -> None:
    text = block([HOST], PLACE._replace(is_demo=True))
    assert "simulated" in text
    assert "uid" not in text


def test_where_all_is_wrong_the_screen_still_fits_and_the_first_part_is_whole() -> None:
    first = Seen("GPUs", "no", "one two three " * 8, "do this " * 8)
    lines = block([first, *LONG[:6]], PLACE).splitlines()
    assert len(lines) == HEIGHT
    told = " ".join(line[20:] for line in lines[2:])
    assert (told.count("one two three"), told.count("do this")) == (8, 8)
    assert [line[:20].split()[-1] for line in lines[2:-2] if line[:20].strip()] == ["no", *["partly"] * 6]
    assert lines[-1].startswith("Page: ")


def test_every_part_comes_before_any_fix() -> None:
    lines = block(LONG, PLACE).splitlines()
    assert [line[:12].strip() for line in lines[2:-2] if line[:20].strip()] == [each.part for each in LONG]
    assert sum("fix: " in line for line in lines) == HEIGHT - 4 - len(LONG)


def test_what_is_in_brackets_is_left_out_where_room_is_short() -> None:
    assert "(any of 535 to 610)" in block([GPUS, HOST], PLACE)
    assert "(any of 535 to 610)" not in block([GPUS, *LONG], PLACE)


@given(
    st.lists(
        st.builds(Seen, st.text(max_size=30), st.sampled_from(STATES), st.text(max_size=500), st.text(max_size=500)),
        max_size=30,
    ),
    st.text(max_size=300),
)
def test_whatever_is_told_it_is_one_screen_of_printable_text(seen: list[Seen], node: str) -> None:
    text = block(seen, PLACE._replace(node=node))
    lines = text.removesuffix("\n").split("\n")
    assert len(lines) <= HEIGHT
    assert all(len(line) <= WIDTH and line.isprintable() for line in lines)


def test_the_record_has_every_part_by_name() -> None:
    assert fields([GPUS, HOST]) == {
        "GPUs": {"state": "no", "detail": GPUS.detail, "fix": GPUS.fix},
        "host": {"state": "yes", "detail": HOST.detail},
    }
    assert summary([GPUS, HOST, TRACES, HOST]) == "yes=2 waits=1 no=1"
    assert summary([]) == ""


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """INFO is told, and the loggers are left as they were."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    logging.captureWarnings(capture=False)


def test_a_log_of_text_has_a_line_for_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("text", "info")
    tell_seen([GPUS, Seen("kernel log", "yes", "XIDs")], PLACE, "text")
    one, two = capsys.readouterr().err.splitlines()
    assert one.endswith(f"sees=GPUs state=no detail='NVML: LIBRARY_NOT_FOUND' fix={GPUS.fix!r}")
    assert two.endswith("sees=kernel_log state=yes detail='XIDs'")


def test_a_log_of_json_has_one_record(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("json", "info")
    tell_seen([GPUS, HOST], PLACE, "json")
    record = json.loads(capsys.readouterr().err)
    assert record["message"] == "sees=told yes=1 no=1"
    assert record["sees"]["GPUs"]["fix"] == GPUS.fix
    assert record["level"] == "info"


def test_a_terminal_has_the_screen_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        tell_seen([GPUS, HOST], PLACE, "text")
    text = os.read(ours, 1 << 16).decode().replace("\r\n", "\n")
    os.close(ours)
    assert text == "\n" + block([GPUS, HOST], PLACE)


class Gone(io.StringIO):
    """A terminal that hung up between being asked and being written to."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        raise OSError(errno.EIO, text)


def test_a_terminal_that_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Gone()
    with pytest.raises(OSError, match="sees:"):
        gone.write(block([HOST], PLACE))
    monkeypatch.setattr(sys, "stderr", gone)
    tell_seen([GPUS, HOST], PLACE, "text")
