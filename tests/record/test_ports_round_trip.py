from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.host.files import ReadError
from gpumon.host.http import HttpError
from gpumon.host.kmsg import KernelLine
from gpumon.model import Reason
from gpumon.record.chunks import LARGE, Bounds
from gpumon.record.recording_ports import RecordingFiles, RecordingHttp, RecordingKernelLog, RecordingPages
from gpumon.record.replay_ports import ReplayFiles, ReplayHttp, ReplayKernelLog, ReplayPages
from gpumon.record.timeline import Recording
from tests.fakes import FakeFiles, FakeKernelLog, FakePages
from tests.record.tapes import STARTED_S, Tape, new_tape

CONTENTS = st.one_of(st.binary(max_size=50), st.binary(min_size=LARGE - 1, max_size=LARGE + 60))
NAMES = st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=12)  # surrogates too
ERRORS = st.tuples(st.sampled_from(Reason), st.text(max_size=20))


class ListedFiles:
    """Files that answer what they are told to, whatever the path."""

    def __init__(self) -> None:
        self.answer: object = b""

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:
        return self._answer(path)  # type: ignore[return-value]

    def list(self, path: str) -> list[str]:
        return self._answer(path)  # type: ignore[return-value]

    def link(self, path: str) -> str:
        return self._answer(path)  # type: ignore[return-value]

    def _answer(self, path: str) -> object:
        if isinstance(self.answer, tuple):
            raise ReadError(path, *self.answer)
        return self.answer


class ListedHttp:
    def __init__(self) -> None:
        self.answer: bytes | tuple[Reason, str] = b""

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        if isinstance(self.answer, tuple):
            raise HttpError(*self.answer)
        return self.answer


def outcome(function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """The answer, or the reason and text of the error."""
    try:
        return function(*args, **kwargs)
    except (ReadError, HttpError) as error:
        return error.reason, error.detail


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(CONTENTS, ERRORS), min_size=1, max_size=6), st.sampled_from(["proc/1/stat", "cgroup/\udcff"]))
def test_every_content_and_error_of_a_file_comes_back_at_its_time(answers: list[object], path: str) -> None:
    with new_tape() as tape:
        inner = ListedFiles()
        files = RecordingFiles(inner, tape.recorder)
        for answer in answers:
            inner.answer = answer
            tape.recorder.mark("source", tape.clock.now_s())
            told = outcome(files.read, path)
            assert told == answer, "recording changes nothing"
            tape.clock.step(1.0)
        recording, clock = tape.replay()
        replay = ReplayFiles(recording, clock)
        for answer in answers:
            got = outcome(replay.read, path, limit=1 << 30)
            if isinstance(answer, tuple):
                assert got[0] is answer[0]
                assert got[1] == answer[1]
            else:
                assert got == answer
            clock.step(1.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(NAMES, max_size=5), NAMES)
def test_names_and_links_come_back_whatever_their_bytes(names: list[str], target: str) -> None:
    with new_tape() as tape:
        inner = ListedFiles()
        files = RecordingFiles(inner, tape.recorder)
        inner.answer = names
        assert files.list("proc") == names
        inner.answer = target
        assert files.link("proc/self") == target
        recording, clock = tape.replay()
        replay = ReplayFiles(recording, clock)
        assert replay.list("proc") == names
        assert replay.link("proc/self") == target


def test_a_large_file_is_written_as_what_changed_of_it() -> None:
    with new_tape() as tape:
        lines = [b"%012x-%012x r--p 00000000 fe:01 %d /lib/lib%d.so\n" % (i, i + 1, i * 7919, i) for i in range(5000)]
        host = FakeFiles({"proc/9/maps": b"".join(lines)})
        files = RecordingFiles(host, tape.recorder)
        sizes, contents = [], []
        for second in range(4):
            lines.insert(2500 + second, b"%012x-%012x rw-p %d [heap]\n" % (second, second, second))
            host.put("proc/9/maps", b"".join(lines))
            contents.append(files.read("proc/9/maps"))
            tape.recorder.flush()
            sizes.append(tape.path.stat().st_size)
            tape.clock.step(1.0)
        assert sizes[3] - sizes[0] < sizes[0] / 20
        recording, clock = tape.replay()
        replay = ReplayFiles(recording, clock)
        for content in contents:
            assert replay.read("proc/9/maps") == content
            clock.step(1.0)


@pytest.mark.parametrize("between", [b"small", (Reason.UNAVAILABLE, "gone")])
def test_a_large_file_comes_back_after_it_was_small_or_gone(between: object) -> None:
    with new_tape() as tape:
        inner = ListedFiles()
        files = RecordingFiles(inner, tape.recorder)
        answers = [b"a" * 9000 + b"1", between, b"a" * 9000 + b"2"]
        for answer in answers:
            inner.answer = answer
            outcome(files.read, "proc/9/maps")
            tape.clock.step(1.0)
        recording, clock = tape.replay()
        replay = ReplayFiles(recording, clock)
        for answer in answers:
            assert outcome(replay.read, "proc/9/maps") == answer
            clock.step(1.0)


@pytest.mark.parametrize("contents_bytes", [25_000, 1 << 20])
def test_no_more_large_contents_are_remembered_than_there_is_room_for(contents_bytes: int) -> None:
    with new_tape(bounds=Bounds(contents_bytes=contents_bytes)) as tape:
        host = FakeFiles({f"proc/{pid}/maps": random.Random(pid).randbytes(9000).hex() for pid in range(5)})
        files = RecordingFiles(host, tape.recorder)
        told = []
        for turn in range(3):
            for path in list(host.files):
                host.put(path, host.files[path] + b"%d" % turn)
                told.append((path, files.read(path)))
            tape.clock.step(1.0)
        recording, clock = tape.replay()
        replay = ReplayFiles(recording, clock)
        for number, (path, content) in enumerate(told):
            assert replay.read(path) == content
            if number % 5 == 4:
                clock.step(1.0)
        whole = 9000 * 5  # about what one turn takes: hex digits of noise
        assert (tape.path.stat().st_size > 2 * whole) == (contents_bytes < 1 << 20)


def test_a_smaller_limit_refuses_what_was_recorded() -> None:
    with new_tape() as tape:
        RecordingFiles(FakeFiles({"proc/stat": "x" * 100}), tape.recorder).read("proc/stat")
        recording, clock = tape.replay()
        with pytest.raises(ReadError, match="malformed: larger than 99 bytes"):
            ReplayFiles(recording, clock).read("proc/stat", limit=99)


def test_page_answers_of_a_pass_come_in_their_order() -> None:
    with new_tape() as tape:
        pages = RecordingPages(FakePages(lambda address: None if address == 3 else address % 2), tape.recorder)
        for questions in ([[1, 2, 3], [4]], [[5, 5]]):
            tape.recorder.mark("numa", tape.clock.now_s())
            for addresses in questions:
                pages.nodes(7, addresses)
            tape.clock.step(10.0)
        recording, clock = tape.replay()
        replay = ReplayPages(recording, clock)
        assert replay.nodes(7, [0, 0, 0]) == [1, 0, None]
        assert replay.nodes(7, [0]) == [0]
        clock.step(10.0)
        with pytest.raises(ReadError, match="1 pages asked for, 2 recorded"):
            replay.nodes(7, [0])
        with pytest.raises(ReadError, match="not in the recording"):
            replay.nodes(7, [0])


def test_page_answers_left_over_do_not_reach_the_next_pass() -> None:
    with new_tape() as tape:
        pages = RecordingPages(FakePages(lambda address: address), tape.recorder)
        for node in (1, 2):
            tape.recorder.mark("numa", tape.clock.now_s())
            pages.nodes(7, [node])
            pages.nodes(7, [node])
            tape.clock.step(1.0)
        recording, clock = tape.replay()
        replay = ReplayPages(recording, clock)
        assert replay.nodes(7, [0]) == [1]
        clock.step(1.0)
        assert replay.nodes(7, [0]) == [2]


def test_a_refused_page_query_is_refused_again() -> None:
    with new_tape() as tape:
        inner = FakePages(lambda address: 0)
        inner.error = ReadError("move_pages 7", Reason.DENIED, "no ptrace")
        with pytest.raises(ReadError):
            RecordingPages(inner, tape.recorder).nodes(7, [1])
        recording, clock = tape.replay()
        with pytest.raises(ReadError) as error:
            ReplayPages(recording, clock).nodes(7, [1])
        assert (error.value.reason, error.value.detail) == (Reason.DENIED, "no ptrace")


def xid(number: int) -> str:
    return f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=7, name=python3"


def test_kernel_lines_are_told_once_and_states_last() -> None:
    with new_tape() as tape:
        inner = FakeKernelLog()
        log = RecordingKernelLog(inner, tape.recorder)
        inner.write(xid(1), 0.5)
        inner.write(xid(2), 0.75)
        seen = []
        for turn in range(5):
            tape.recorder.mark("kernel_log", tape.clock.now_s())
            inner.overruns = turn // 2
            inner.error = ReadError("/dev/kmsg", Reason.DENIED, "Operation not permitted") if turn == 3 else None
            seen.append((outcome(log.read), log.overruns))
            if turn == 1:
                inner.write(xid(3), 2.0)
            tape.clock.step(1.0)
        assert [answer for answer, _ in seen] == [
            [KernelLine(0.5, xid(1)), KernelLine(0.75, xid(2))],
            [],
            [KernelLine(2.0, xid(3))],
            (Reason.DENIED, "Operation not permitted"),
            [],
        ]
        recording, clock = tape.replay()
        replay = ReplayKernelLog(recording, clock)
        for answer, overruns in seen:
            assert outcome(replay.read) == answer
            if isinstance(answer, list):
                assert replay.overruns == overruns
            clock.step(1.0)


def test_kernel_lines_wait_for_a_reader_that_comes_late() -> None:
    with new_tape() as tape:
        inner = FakeKernelLog()
        log = RecordingKernelLog(inner, tape.recorder)
        for number in range(3):
            inner.write(xid(number))
            log.read()
            tape.clock.step(1.0)
        recording, clock = tape.replay()
        clock.step(1.5)
        replay = ReplayKernelLog(recording, clock)
        assert [line.text for line in replay.read()] == [xid(0), xid(1)]
        clock.step(5.0)
        assert [line.text for line in replay.read()] == [xid(2)]
        assert replay.read() == []


def test_of_the_kernel_log_only_what_tells_an_xid_is_in_the_file() -> None:
    others = (
        "e1000e 0000:00:1f.6 eth0: MAC 3c:ec:ef:12:34:56",
        "usb 1-2: SerialNumber: 4C530001",
        "nfs: server files.example.org not responding",
        "NVRM: GPU at 0000:3b:00.0 has software scheduler DISABLED",
        "python3[7]: NVRM: Xid (PCI:0000:3b:00): 79 said a process",
    )
    with new_tape() as tape:
        inner = FakeKernelLog()
        log = RecordingKernelLog(inner, tape.recorder)
        for text in (*others, xid(79), *others):
            inner.write(text)
        assert len(log.read()) == 11, "whoever reads the log is told everything"
        recording, clock = tape.replay()
        for text in others:
            assert text.encode() not in tape.unpacked()
        assert [line.text for line in ReplayKernelLog(recording, clock).read()] == [xid(79)]


def test_a_page_of_a_server_comes_back_and_so_does_its_failure() -> None:
    with new_tape() as tape:
        inner = ListedHttp()
        http = RecordingHttp(inner, tape.recorder)
        answers = [b"a 1\n", (Reason.TIMEOUT, "after 1 s"), b"a 2\n" * LARGE, b"a 3\n" + b"a 2\n" * (LARGE - 1)]
        for answer in answers:
            inner.answer = answer  # type: ignore[assignment]
            assert outcome(http.get, "http://h:1/metrics", timeout_s=1.0, limit=1 << 20) == answer
            tape.clock.step(1.0)
        recording, clock = tape.replay()
        replay = ReplayHttp(recording, clock)
        for answer in answers:
            assert outcome(replay.get, "http://h:1/metrics", timeout_s=1.0, limit=1 << 20) == answer
            clock.step(1.0)
        with pytest.raises(HttpError, match="larger than 10 bytes"):
            replay.get("http://h:1/metrics", timeout_s=1.0, limit=10)


def test_credentials_and_queries_of_an_address_are_not_recorded() -> None:
    with new_tape() as tape:
        http = RecordingHttp(ListedHttp(), tape.recorder)
        url = "http://user:hunter2@[fd00::1]:8000/metrics?token=s3cret#frag"
        http.get(url, timeout_s=1.0, limit=10)
        http.get("http://[broken:hunter2", timeout_s=1.0, limit=10)
        recording, clock = tape.replay()
        for word in (b"user", b"hunter2", b"s3cret", b"token", b"frag"):
            assert word not in tape.unpacked()
        replay = ReplayHttp(recording, clock)
        assert replay.get(url, timeout_s=1.0, limit=10) == b""
        assert replay.get("http://[broken:hunter2", timeout_s=1.0, limit=10) == b""
        assert outcome(replay.get, url.replace("s3cret", "other"), timeout_s=1.0, limit=10)[0] is Reason.UNAVAILABLE


def test_what_was_never_asked_is_unavailable(tmp_path: Path) -> None:
    recording, clock = Tape(tmp_path / "tape").replay()
    files = ReplayFiles(recording, clock)
    for ask in (files.read, files.list, files.link):
        assert outcome(ask, "proc/stat") == (Reason.UNAVAILABLE, "not in the recording")
    assert outcome(ReplayPages(recording, clock).nodes, 1, [1])[0] is Reason.UNAVAILABLE
    assert outcome(ReplayKernelLog(recording, clock).read)[0] is Reason.UNAVAILABLE
    assert outcome(ReplayHttp(recording, clock).get, "http://h/", timeout_s=1.0, limit=1)[0] is Reason.UNAVAILABLE


def test_before_the_recording_began_nothing_is_known() -> None:
    with new_tape() as tape:
        RecordingFiles(FakeFiles({"proc/stat": "x"}), tape.recorder).read("proc/stat")
        recording, clock = tape.replay()
        earlier = type(clock)(STARTED_S - 1.0)
        assert outcome(ReplayFiles(recording, earlier).read, "proc/stat")[0] is Reason.UNAVAILABLE
        assert isinstance(recording, Recording)
        assert ReplayFiles(recording, clock).read("proc/stat") == b"x"
