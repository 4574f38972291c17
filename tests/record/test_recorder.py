from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpumon.host.clock import ManualClock
from gpumon.ingest.request import Signal
from gpumon.model import Item, Miss, Reason
from gpumon.record.chunks import EPOCH_S, Bounds
from gpumon.record.entries import COUNT, HEAD, NUMBER, READ, Batch, Failed, pack, read_batch
from gpumon.record.format import Reader, Writer
from gpumon.record.recorder import Recorder
from gpumon.record.recording_ports import RecordedSource
from gpumon.record.timeline import NOTHING, Pass, Recording, Request
from tests.record.tapes import STARTED_S, Tape, new_tape, now_ns

KEY = (NUMBER, "GPU-1", "energy")


def batches(tape: Tape) -> list[tuple[int, Batch]]:
    return [(chunk.stream, read_batch(chunk.payload[HEAD.size :])) for chunk in Reader(tape.path).chunks()]


def answers(tape: Tape) -> list[int]:
    return [len(block.answers) for _, batch in batches(tape) for block in batch.blocks]


def test_an_answer_that_is_the_same_again_is_not_written() -> None:
    with new_tape() as tape:
        for value in (1, 1, 2, 2, 1):
            tape.recorder.mark("gpu", tape.clock.now_s())
            tape.recorder.keep(KEY, pack(value), now_ns())
            tape.clock.step(1.0)
        tape.recorder.close()
        assert answers(tape) == [1, 0, 1, 0, 1]
        recording, clock = tape.replay()
        got = []
        for _ in range(5):
            got.append(recording.find(KEY, clock.now_s()))
            clock.step(1.0)
        assert got == [1, 1, 2, 2, 1]


def test_one_is_not_one_point_zero_and_an_error_is_no_answer() -> None:
    with new_tape() as tape:
        for value in (pack(1), pack(1.0), Failed(3, "call"), Failed(3, "call"), Failed(4, "call")):
            tape.recorder.keep((COUNT, "", ""), value, now_ns())
        tape.recorder.close()
        assert sum(answers(tape)) == 4


def test_the_same_question_in_two_passes_keeps_the_answer_of_each() -> None:
    """Two sources in two threads read the same file; the one that began first gets to it last."""
    with new_tape() as tape:
        late = threading.Event()
        early = threading.Event()

        def slow_pass() -> None:
            tape.recorder.mark("slow", STARTED_S)
            early.set()
            late.wait()
            tape.recorder.keep(KEY, pack(2), now_ns())

        thread = threading.Thread(target=slow_pass)
        thread.start()
        early.wait()
        tape.recorder.mark("quick", STARTED_S + 0.25)
        tape.recorder.keep(KEY, pack(1), now_ns())
        late.set()
        thread.join()
        tape.recorder.mark("quick", STARTED_S + 0.5)
        tape.recorder.keep(KEY, pack(2), now_ns())
        recording, clock = tape.replay()
        got = []
        for event in recording.passes():
            clock.move_to(event.at_s)
            got.append((event, recording.find(KEY, clock.now_s())))
        assert got == [
            (Pass(STARTED_S, "slow"), 2),
            (Pass(STARTED_S + 0.25, "quick"), 1),
            (Pass(STARTED_S + 0.5, "quick"), 2),
        ]


def test_a_pass_that_is_written_in_two_parts_is_one_pass() -> None:
    with new_tape() as tape:
        tape.recorder.mark("long", STARTED_S)
        tape.recorder.keep(KEY, pack(1), now_ns())
        tape.clock.step(3.0)
        tape.recorder.flush()
        tape.recorder.keep((COUNT, "", ""), pack(8), now_ns())
        recording, clock = tape.replay()
        assert len(batches(tape)) == 2
        assert list(recording.passes()) == [Pass(STARTED_S, "long")]
        recording, clock = tape.replay()
        assert recording.find((COUNT, "", ""), clock.now_s()) == 8, "at the time of its pass"


def test_a_pass_goes_on_after_a_writing_that_ended_with_another() -> None:
    with new_tape() as tape:
        begun, written = threading.Event(), threading.Event()

        def slow_pass() -> None:
            tape.recorder.mark("slow", STARTED_S)
            tape.recorder.keep(KEY, pack(1), now_ns())
            begun.set()
            written.wait()
            tape.recorder.keep((COUNT, "", ""), pack(8), now_ns())

        thread = threading.Thread(target=slow_pass)
        thread.start()
        begun.wait()
        tape.recorder.mark("quick", STARTED_S + 1.0)
        tape.recorder.keep(KEY, pack(2), now_ns())
        tape.recorder.flush()
        written.set()
        thread.join()
        tape.recorder.close()
        blocks = [(block.scope, block.at_s, block.begins) for _, batch in batches(tape) for block in batch.blocks]
        assert sorted(blocks[:2]) == [("quick", STARTED_S + 1.0, True), ("slow", STARTED_S, True)]
        assert blocks[2:] == [("slow", STARTED_S, False)]


def test_answers_outside_of_any_pass_bear_their_own_time_and_are_no_pass() -> None:
    with new_tape() as tape:
        tape.clock.step(1.0)
        tape.recorder.keep(KEY, pack(1), now_ns())
        recording, clock = tape.replay()
        assert recording.find(KEY, clock.now_s()) is NOTHING
        assert recording.find(KEY, clock.now_s() + 1.0) == 1
        recording, _ = tape.replay()
        assert list(recording.passes()) == []


def test_everything_is_written_anew_in_every_epoch() -> None:
    with new_tape() as tape:
        for _ in range(3):
            tape.recorder.mark("gpu", tape.clock.now_s())
            tape.recorder.keep(KEY, pack(7), now_ns())
            tape.recorder.flush()
            tape.clock.step(EPOCH_S / 2)
        tape.recorder.close()
        assert [batch.fresh for _, batch in batches(tape)] == [True, False, True]
        # An answer that came before the first writing of an epoch is written in it, and once more.
        assert answers(tape) == [1, 1, 0]
        recording, clock = tape.replay()
        for _ in range(8):
            assert recording.find(KEY, clock.now_s()) == 7
            clock.step(EPOCH_S / 4)


def test_what_nobody_asks_any_more_is_forgotten_in_a_replay() -> None:
    with new_tape() as tape:
        other = (NUMBER, "GPU-1", "fans")
        tape.recorder.mark("gpu", tape.clock.now_s())
        tape.recorder.keep(other, pack(1), now_ns())
        tape.recorder.flush()
        for _ in range(4):
            tape.clock.step(EPOCH_S + 1)
            tape.recorder.flush()
            tape.recorder.mark("gpu", tape.clock.now_s())
            tape.recorder.keep(KEY, pack(7), now_ns())
            tape.recorder.flush()
        recording, _ = tape.replay()
        found = [(recording.find(other, event.at_s), recording.find(KEY, event.at_s)) for event in recording.passes()]
        assert found[0] == (1, NOTHING)
        assert found[-1] == (NOTHING, 7)
        assert recording.find(other, STARTED_S + 10 * EPOCH_S) is NOTHING


def test_an_epoch_ends_when_questions_are_too_many() -> None:
    with new_tape(bounds=Bounds(questions=50)) as tape:
        for number in range(200):
            tape.recorder.keep((NUMBER, f"GPU-{number}", "fans"), pack(number), now_ns())
            if number % 10 == 9:
                tape.recorder.flush()
        recording, clock = tape.replay()
        assert [batch.fresh for _, batch in batches(tape)].count(True) == 4
        assert [recording.find((NUMBER, f"GPU-{n}", "fans"), clock.now_s()) for n in range(200)] == list(range(200))


def test_much_at_once_is_several_chunks() -> None:
    with new_tape(bounds=Bounds(chunk_bytes=2000)) as tape:
        tape.recorder.mark("gpu", STARTED_S)
        for number in range(200):
            tape.recorder.keep((NUMBER, f"GPU-{number}", "fans"), pack(number), now_ns())
        for number in range(20):
            tape.recorder.request(Signal.TRACES, b"", is_json=False, peer="", at_s=STARTED_S + number)
        recording, clock = tape.replay()
        assert len(batches(tape)) > 4
        assert [recording.find((NUMBER, f"GPU-{n}", "fans"), clock.now_s()) for n in range(200)] == list(range(200))
        recording, _ = tape.replay()
        assert [type(event) for event in recording.passes()] == [Pass, *[Request] * 20]


def test_a_full_disk_ends_the_recording_and_is_said_once() -> None:
    stops: list[str] = []
    full = Recorder(Writer(os.open("/dev/full", os.O_WRONLY)), 0, ManualClock(), stops.append)
    for number in range(3):
        full.mark("gpu", 1.0)
        full.keep(KEY, pack(number), now_ns())
        full.add(KEY, pack(number), now_ns())
        full.request(Signal.TRACES, b"", is_json=False, peer="", at_s=0.0)
        full.flush()
    full.close()
    assert stops == ["No space left on device"]
    assert full.stopped == "No space left on device"


def test_the_limit_of_the_file_ends_the_recording_and_what_is_there_can_be_read(tmp_path: Path) -> None:
    stops: list[str] = []
    clock = ManualClock(STARTED_S)
    recording = Recorder.create(tmp_path / "tape", clock, stops.append, {}, limit_bytes=4000)
    for _ in range(100):
        recording.keep(KEY, pack(os.urandom(200)), now_ns())
        recording.flush()
        clock.step(1.0)
    recording.close()
    assert stops == ["the file would be larger than its limit of 4000 bytes"]
    assert (tmp_path / "tape").stat().st_size <= 4000
    found = Recording(tmp_path / "tape")
    assert found.truncated == ""
    assert found.ended_s > STARTED_S + 5


def eventually(true: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Whether it becomes true in time."""
    passing = threading.Event()
    end_s = time.monotonic() + within_s
    while not true() and time.monotonic() < end_s:
        passing.wait(0.005)
    return true()


def test_a_disk_that_does_not_keep_up_ends_the_recording() -> None:
    with new_tape(bounds=Bounds(flush_bytes=1000, pending_bytes=10_000)) as tape:
        for number in range(1000):
            tape.recorder.keep(KEY, pack(number), now_ns())
        assert tape.stops == ["the disk does not keep up"]
        tape.recorder.flush()
        assert batches(tape) == []


def test_requests_that_cannot_be_recorded_are_counted() -> None:
    with new_tape(bounds=Bounds(pending_bytes=1000, body_bytes=50)) as tape:
        big = b'{"resourceSpans":[{"scopeSpans":[{"scope":{"name":"' + b"x" * 100 + b'"}}]}]}'
        for body, is_json in ((b"no protobuf", False), (b"[]", True), (big, True), (b"{}", True), (bytes(2000), False)):
            tape.recorder.request(Signal.TRACES, body, is_json, "10.0.0.1:5", 1001.0)
        recording, _ = tape.replay()
        assert tape.recorder.dropped == {"behind": 1, "unreadable": 2, "too_large": 1}
        [event] = recording.passes()
        assert isinstance(event, Request)
        assert tape.stops == []


def test_requests_that_come_while_others_are_written_leave_no_bytes_behind() -> None:
    with new_tape(bounds=Bounds(flush_bytes=1 << 30, pending_bytes=20_000)) as tape:
        body = b'{"resourceSpans":[]}'
        taken = 4 * 500

        def intake() -> None:
            for _ in range(500):
                tape.recorder.request(Signal.TRACES, body, True, "", 1001.0)

        threads = [threading.Thread(target=intake) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            tape.recorder.flush()
        tape.recorder.flush()
        late = tape.recorder.dropped.get("behind", 0)
        for _ in range(1000):  # all that fits at once, so nothing of before still counts
            tape.recorder.request(Signal.TRACES, body, True, "", 1002.0)
        assert tape.recorder.dropped.get("behind", 0) == late
        recording, _ = tape.replay()
        assert sum(isinstance(event, Request) for event in recording.passes()) == taken - late + 1000


def test_a_recording_that_ends_while_it_is_written_ends_quietly() -> None:
    """One thread has more to say than may wait, while another one writes what there was."""
    stops: list[str] = []

    class Flooded(Writer):
        def write(self, stream: int, payload: bytes) -> int:
            flood = threading.Thread(target=lambda: recorder.add(KEY, bytes(2 << 20), now_ns()))
            flood.start()
            flood.join()
            return super().write(stream, payload)

    bounds = Bounds(flush_bytes=1 << 30, pending_bytes=1 << 20, chunk_bytes=1000)
    recorder = Recorder(Flooded(os.open("/dev/null", os.O_WRONLY)), 0, ManualClock(), stops.append, bounds=bounds)
    for number in range(3000):
        recorder.keep(KEY, pack(number), now_ns())
    recorder.flush()
    recorder.close()
    assert stops == ["the disk does not keep up"]


def test_a_recorded_source_marks_its_passes_before_it_reads() -> None:
    with new_tape() as tape:

        class Counting:
            name = "counting"

            def read(self, at_s: float) -> Iterator[Item]:
                tape.recorder.keep(KEY, pack(int(at_s)), now_ns())
                yield Miss("item", Reason.DENIED)

        source = RecordedSource(Counting(), tape.recorder.mark)
        assert source.name == "counting"
        assert list(source.read(1001.0)) == [Miss("item", Reason.DENIED)]
        recording, _ = tape.replay()
        [event] = recording.passes()
        assert event == Pass(1001.0, "counting")
        assert recording.find(KEY, 1001.0) == 1001


def test_the_writing_thread_writes_what_there_is_and_ends() -> None:
    with new_tape() as tape:
        tape.recorder.start()
        tape.recorder.add((READ, "proc/1/maps", ""), bytes(Bounds().flush_bytes + 1), now_ns())
        empty = tape.path.stat().st_size
        assert eventually(lambda: tape.path.stat().st_size > empty)
        tape.recorder.keep(KEY, pack(3), now_ns())
        recording, clock = tape.replay()
        assert recording.find(KEY, clock.now_s()) == 3
        tape.recorder.close()
        tape.recorder.keep(KEY, pack(4), now_ns())
        assert tape.recorder.stopped == "closed"


def test_many_threads_record_at_once_and_nothing_is_lost() -> None:
    with new_tape() as tape:
        tape.recorder.start()

        def source(name: str) -> None:
            for number in range(500):
                tape.recorder.mark(name, STARTED_S + number / 100)
                tape.recorder.keep((NUMBER, name, "x"), pack(number), now_ns())
                if number % 50 == 0:
                    tape.recorder.flush()

        threads = [threading.Thread(target=source, args=(f"source {i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recording, _ = tape.replay()
        found: dict[str, list[object]] = {}
        for event in recording.passes():
            assert isinstance(event, Pass)
            answer = recording.find((NUMBER, event.name, "x"), event.at_s)
            found.setdefault(event.name, []).append(answer)
        assert found == {f"source {i}": list(range(500)) for i in range(6)}


CHILD = """
import sys
from gpumon.host.clock import ManualClock
from gpumon.record.entries import NUMBER, pack
from gpumon.record.recorder import Recorder
clock = ManualClock(1000.0)
recorder = Recorder.join(sys.argv[1], 1, clock, print)
for number in range(200):
    recorder.mark("gpu/1", clock.now_s())
    recorder.keep((NUMBER, "GPU-1", "energy"), pack(number), 0)
    clock.step(0.1)
    if number % 5 == 0:
        recorder.flush()
recorder.close()
"""


def test_two_processes_record_into_one_file() -> None:
    with new_tape() as tape:
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tape.path)])
        for number in range(200):
            tape.recorder.mark("host", tape.clock.now_s())
            tape.recorder.keep((NUMBER, "host", "x"), pack(number), now_ns())
            tape.clock.step(0.1)
            if number % 5 == 0:
                tape.recorder.flush()
        assert child.wait() == 0
        recording, _ = tape.replay()
        assert {stream for stream, _ in batches(tape)} == {0, 1}
        last_s = 0.0
        seen = {"host": 0, "gpu/1": 0}
        for event in recording.passes():
            assert isinstance(event, Pass)
            assert event.at_s >= last_s
            last_s = event.at_s
            key = (NUMBER, "host", "x") if event.name == "host" else KEY
            assert recording.find(key, event.at_s) == seen[event.name]
            seen[event.name] += 1
        assert seen == {"host": 200, "gpu/1": 200}


@pytest.mark.parametrize(
    ("about", "kept"),
    [
        ({"config": {"requests": {"tenant_attributes": ["acme.customer"]}}}, "acme.customer"),
        ({"config": {"requests": None}}, "tenant.id"),
        ({}, "tenant.id"),
    ],
)
def test_tenants_are_recorded_by_the_attributes_of_the_configuration(about: dict[str, object], kept: str) -> None:
    with new_tape(None, None, **about) as tape:
        attributes = [{"key": key, "value": {"stringValue": f"of {key}"}} for key in ("acme.customer", "tenant.id")]
        span = {"traceId": "01" * 16, "spanId": "02" * 8, "attributes": attributes}
        body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
        tape.recorder.request(Signal.TRACES, body, True, "", 1001.0)
        recording, _ = tape.replay()
        [event] = recording.passes()
        assert isinstance(event, Request)
        assert [key for key in ("acme.customer", "tenant.id") if f"of {key}".encode() in event.body] == [kept]
