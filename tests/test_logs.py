"""The log: one record one line, and a state told once, when it changes."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.logs import TEXT_LIMIT, JsonFormatter, TextFormatter, Transitions, setup
from gpumon.model import Reason

pytestmark = pytest.mark.usefixtures("root_logger_as_before")


def record(message: str, *args: object) -> logging.LogRecord:
    made = logging.LogRecord("gpumon.app", logging.WARNING, __file__, 1, message, args, None)
    made.created = 1_800_000_000.0625
    return made


def test_a_text_line_has_time_level_logger_and_the_message_as_written() -> None:
    line = TextFormatter().format(record('source=%s fix="add SYS_PTRACE"', "gpu"))
    assert line == '2027-01-15T08:00:00.062Z WARNING gpumon.app source=gpu fix="add SYS_PTRACE"'


def test_a_json_line_has_the_same() -> None:
    assert json.loads(JsonFormatter().format(record("source=%s", "gpu"))) == {
        "time": "2027-01-15T08:00:00.062Z",
        "level": "warning",
        "logger": "gpumon.app",
        "message": "source=gpu",
    }


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_foreign_text_can_never_make_a_second_line_or_move_the_cursor(text: str) -> None:
    line = TextFormatter().format(record("name=%s", text))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert len(JsonFormatter().format(record("name=%s", text)).splitlines()) == 1


def test_an_endless_message_is_cut_and_says_so() -> None:
    line = TextFormatter().format(record("x" * 100_000))
    assert len(line) < TEXT_LIMIT + 100
    assert line.endswith("… (100000 characters)")


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_traceback_is_kept(style: str) -> None:
    stream = io.StringIO()
    setup(style, "info", stream)
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        logging.getLogger("gpumon.x").exception("what=division")
    text = stream.getvalue()
    assert "what=division" in text
    assert "ZeroDivisionError: division by zero" in text
    if style == "json":
        assert "ZeroDivisionError" in json.loads(text)["traceback"]


def test_setting_up_again_replaces_what_was_set_up() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup("text", "debug", first)
    setup("json", "warning", second)
    logging.getLogger("gpumon.x").info("quiet=1")
    logging.getLogger("gpumon.x").warning("loud=1")
    assert first.getvalue() == ""
    assert [json.loads(line)["message"] for line in second.getvalue().splitlines()] == ["loud=1"]


def test_a_stream_that_is_gone_stops_nobody() -> None:
    stream = io.StringIO()
    setup("text", "info", stream)
    stream.close()
    logging.getLogger("gpumon.x").warning("lost=1")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Level and message of what ``transitions`` logs."""
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(f"{record.levelname} {record.getMessage()}")

    log = logging.getLogger("gpumon.test_transitions")
    handler = Keep()
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield seen
    log.removeHandler(handler)


LOG = logging.getLogger("gpumon.test_transitions")


def test_failing_is_said_once_and_recovery_once(lines: list[str]) -> None:
    transitions = Transitions(LOG)
    transitions.ok("numa")
    for _ in range(3):
        transitions.failing("numa", Reason.DENIED, "pid 42", fix="add SYS_PTRACE")
    transitions.ok("numa")
    transitions.ok("numa")
    assert lines == [
        'WARNING what=numa state=failing reason=denied detail="pid 42" fix="add SYS_PTRACE"',
        "INFO what=numa state=ok was=denied",
    ]


def test_another_reason_is_a_change_and_another_detail_is_not(lines: list[str]) -> None:
    transitions = Transitions(LOG)
    transitions.failing("gpu", Reason.TIMEOUT, "5.0 s")
    transitions.failing("gpu", Reason.TIMEOUT, "5.1 s")
    transitions.failing("gpu", Reason.UNAVAILABLE)
    assert [line.split(" detail")[0] for line in lines] == [
        "WARNING what=gpu state=failing reason=timeout",
        "WARNING what=gpu state=failing reason=unavailable",
    ]


def test_what_is_not_supported_is_for_debugging_only(lines: list[str]) -> None:
    transitions = Transitions(LOG)
    transitions.failing("fan", Reason.UNSUPPORTED)
    transitions.ok("fan")
    assert [line.split()[0] for line in lines] == ["DEBUG", "DEBUG"]


def test_keys_are_told_apart(lines: list[str]) -> None:
    transitions = Transitions(LOG)
    transitions.failing(("gpu", 1), Reason.TIMEOUT)
    transitions.failing(("gpu", 2), Reason.TIMEOUT)
    assert len(lines) == 2


def test_a_forgotten_key_recovers_in_silence_and_may_fail_anew(lines: list[str]) -> None:
    transitions = Transitions(LOG)
    transitions.failing("pid 1", Reason.DENIED)
    transitions.forget("pid 1")
    transitions.ok("pid 1")
    transitions.failing("pid 1", Reason.DENIED)
    assert [line.split()[0] for line in lines] == ["WARNING", "WARNING"]


def test_past_the_limit_it_says_so_once_and_holds_no_more(lines: list[str]) -> None:
    transitions = Transitions(LOG, limit=2)
    for _ in range(2):
        for pid in range(100):
            transitions.failing(pid, Reason.DENIED)
    assert lines[2:] == ["WARNING failing=2 further failures are not logged until some recover"]
    transitions.ok(0)
    transitions.failing(99, Reason.DENIED)
    assert lines[-1] == "WARNING what=99 state=failing reason=denied"


@pytest.mark.parametrize(
    ("detail", "shown"),
    [("plain", "plain"), ("two words", '"two words"'), ('a"b', '"a\\"b"'), ("k=v", '"k=v"'), ("x\ny", '"x\\ny"')],
)
def test_a_value_in_a_pair_ends_where_it_ends(lines: list[str], detail: str, shown: str) -> None:
    Transitions(LOG).failing("a", Reason.DENIED, detail)
    assert lines == [f"WARNING what=a state=failing reason=denied detail={shown}"]
