from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.ingest.request import Signal
from gpumon.record.ahead import AHEAD_S
from gpumon.record.entries import (
    HEAD,
    KERNEL_LINES,
    KIND,
    NUMBER,
    READ,
    Batch,
    Block,
    Body,
    Question,
    Splice,
    pack,
    read_batch,
    splice,
    spliced,
)
from gpumon.record.format import MAX_STREAM, FormatError, Reader, Writer
from gpumon.record.timeline import NOTHING, Pass, Recording, Request
from tests.record.tapes import STARTED_S, Tape, new_tape, now_ns

KEY = (NUMBER, "GPU-1", "energy")
HEADER = {"kind": KIND, "started_s": 0.0, "offset_s": 0.0}


def write_file(path: Path, payloads: Sequence[bytes], header: dict[str, object] = HEADER) -> Path:
    writer = Writer.create(path, header, overwrite=True)
    for payload in payloads:
        writer.write(0, payload)
    writer.close()
    return path


def payload(batch: object, first_s: float = 0.0, last_s: float = 0.0, written_s: float = 0.0) -> bytes:
    return HEAD.pack(first_s, last_s, written_s, 0.0) + pack(batch)


def block(at_s: float, answers: Sequence[tuple[int, int]], scope: str = "gpu", *, begins: bool = True) -> Block:
    return Block(at_s, scope, begins, [(number, 1, False, msgspec.Raw(pack(value))) for number, value in answers])


def batch(
    blocks: Sequence[Block] = (), questions: Sequence[Question] = (), *, writer: int = 1, fresh: bool = False
) -> Batch:
    return Batch(writer, fresh, list(questions), list(blocks), [], [])


QUESTION = Question("gpu", NUMBER, b"GPU-1", b"energy")


# --- order -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 9), st.integers(0, 3)), max_size=30))
def test_answers_are_those_of_a_plain_model_whatever_is_recorded_when(steps: list[tuple[int, int, int, int]]) -> None:
    """(process, tenths to wait, value, flush at 0) against a dict of what each pass was told."""
    with new_tape() as tape:
        recorders = [tape.recorder, tape.joined()]
        told: list[tuple[float, str, int]] = []
        for process, wait, value, flush in steps:
            tape.clock.step(wait / 10)
            name = f"source {process}"
            recorders[process].mark(name, tape.clock.now_s())
            recorders[process].keep(KEY, pack(value), now_ns())
            told.append((tape.clock.now_s(), name, value))
            if not flush:
                recorders[process].flush()
        recorders[1].close()
        recording, clock = tape.replay()
        got = []
        for event in recording.passes():
            assert isinstance(event, Pass)
            clock.move_to(event.at_s)
            got.append((event.at_s, event.name, recording.find(KEY, clock.now_s())))
        # Passes of one process in one moment are told from each other by nothing: the last answer counts.
        last = {(at_s, name): value for at_s, name, value in told}
        assert sorted(got) == sorted((at_s, name, last[at_s, name]) for at_s, name, _ in told)
        assert [at_s for at_s, _, _ in got] == sorted(at_s for at_s, _, _ in told)


def test_a_pass_that_took_half_a_minute_has_its_answers_at_its_beginning() -> None:
    with new_tape() as tape:
        other = tape.joined()
        tape.recorder.mark("slow", STARTED_S)
        for second in range(30):
            other.mark("gpu", tape.clock.now_s())
            other.keep(KEY, pack(second), now_ns())
            other.flush()
            tape.clock.step(1.0)
        tape.recorder.keep((NUMBER, "x", "y"), pack(99), now_ns())
        other.close()
        recording, _ = tape.replay()
        seen = [(event.at_s, recording.find((NUMBER, "x", "y"), event.at_s)) for event in recording.passes()]
        assert seen == [(STARTED_S, 99)] + [(STARTED_S + second, 99) for second in range(30)]


def test_a_pass_that_took_longer_than_is_waited_for_comes_late_and_in_order() -> None:
    with new_tape() as tape:
        other = tape.joined()
        tape.recorder.mark("slow", STARTED_S)
        for _ in range(int(AHEAD_S) + 30):
            other.mark("gpu", tape.clock.now_s())
            other.flush()
            tape.clock.step(1.0)
        tape.recorder.keep(KEY, pack(99), now_ns())
        other.close()
        recording, _ = tape.replay()
        events = list(recording.passes())
        assert [event.at_s for event in events] == sorted(event.at_s for event in events)
        assert events[0].at_s == STARTED_S
        assert len(events) == int(AHEAD_S) + 31
        assert recording.find(KEY, STARTED_S + 1000) == 99


def test_passes_and_requests_come_in_the_order_of_time() -> None:
    with new_tape() as tape:
        for second in (3, 1, 2):
            tape.recorder.request(Signal.LOGS, b"", is_json=False, peer="", at_s=STARTED_S + second)
        for second in (1, 2, 3):
            tape.recorder.mark("host", STARTED_S + second + 0.5)
        recording, _ = tape.replay()
        events = [(event.at_s - STARTED_S, type(event)) for event in recording.passes()]
        assert events == [(1, Request), (1.5, Pass), (2, Request), (2.5, Pass), (3, Request), (3.5, Pass)]


def test_times_and_the_clocks_offset_are_known_from_the_start() -> None:
    with new_tape() as tape:
        offset_s = tape.clock.to_unix(0.0)
        tape.recorder.mark("host", STARTED_S)
        tape.recorder.flush()
        tape.clock.step(10.0)
        tape.clock.set_offset(offset_s + 0.0005)  # what two processes may differ by
        tape.recorder.mark("host", tape.clock.now_s())
        tape.recorder.flush()
        tape.clock.step(10.0)
        tape.clock.set_offset(offset_s - 3600.0)
        tape.recorder.mark("host", tape.clock.now_s())
        recording, _ = tape.replay()
        assert (recording.started_s, recording.ended_s) == (STARTED_S, STARTED_S + 20.0)
        assert [recording.offset(STARTED_S + at_s) - offset_s for at_s in (-5, 0, 10, 19.9, 20, 100)] == [
            0, 0, 0, 0, -3600.0, -3600.0,
        ]  # fmt: skip


def test_the_past_is_not_gone_back_to() -> None:
    with new_tape() as tape:
        for value in (1, 2):
            tape.recorder.mark("gpu", tape.clock.now_s())
            tape.recorder.keep(KEY, pack(value), now_ns())
            tape.clock.step(1.0)
        recording, _ = tape.replay()
        assert recording.find(KEY, STARTED_S + 5) == 2
        assert recording.find(KEY, STARTED_S) == 2


def test_a_sampler_process_that_was_replaced_goes_on_in_the_same_stream() -> None:
    with new_tape() as tape:
        for value in (1, 2, 3):
            sampler = tape.joined()
            sampler.mark("gpu/1", tape.clock.now_s())
            sampler.keep((NUMBER, f"GPU-{value}", "a"), pack(value), now_ns())
            sampler.keep(KEY, pack(value), now_ns())
            sampler.close()
            tape.clock.step(1.0)
        recording, _ = tape.replay()
        assert [recording.find(KEY, event.at_s) for event in recording.passes()] == [1, 2, 3]


# --- files that are cut or were made by others -----------------------------------------------------------------------


def test_a_file_that_was_cut_is_used_up_to_there(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "tape")
    for value in range(5):
        tape.recorder.mark("gpu", tape.clock.now_s())
        tape.recorder.keep(KEY, pack(value), now_ns())
        tape.recorder.flush()
        tape.clock.step(1.0)
    tape.recorder.close()
    whole = tape.path.read_bytes()
    seen = set()
    for size in range(len(whole) - 400, len(whole)):
        tape.path.write_bytes(whole[:size])
        try:
            recording = Recording(tape.path)
        except FormatError:
            continue
        found = [recording.find(KEY, event.at_s) for event in recording.passes()]
        assert found == list(range(len(found)))
        assert recording.ended_s == (STARTED_S + len(found) - 1 if found else STARTED_S)
        seen.add((len(found), bool(recording.truncated)))
    assert {(4, True), (4, False), (3, True)} <= seen


def test_a_file_of_another_kind_is_refused_in_one_line(tmp_path: Path) -> None:
    for header, said in [
        ({"kind": "incident", "started_s": 0.0, "offset_s": 0.0}, "no recording"),
        ({}, "no recording"),
        ({"kind": KIND, "offset_s": 0.0}, "started_s"),
        ({"kind": KIND, "started_s": "soon", "offset_s": 0.0}, "started_s"),
        ({"kind": KIND, "started_s": 0.0}, "offset_s"),
        ({"kind": KIND, "started_s": 0.0, "offset_s": 1e300}, "offset_s"),
    ]:
        with pytest.raises(FormatError, match=said) as error:
            Recording(write_file(tmp_path / "file", [], header))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("written", [b"", b"x" * 31, HEAD.pack(0.0, 0.0, math.nan, 0.0), HEAD.pack(math.inf, 0, 0, 0)])
def test_a_chunk_without_times_is_refused(tmp_path: Path, written: bytes) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        Recording(write_file(tmp_path / "file", [written]))


HOSTILE = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "another shape": pack([1, 2]),
    "a number that no question has": pack(batch([block(0.0, [(7, 1)])])),
    "a negative number": pack(batch([block(0.0, [(-1, 1)])])),
    "a kind that there is not": pack(batch([block(0.0, [(0, 1)])], [Question("gpu", 9999, b"", b"")])),
    "an answer of another type": pack(batch([block(0.0, [(0, "text")])], [QUESTION])),  # type: ignore[list-item]
    "a change of nothing": pack(batch([block(0.0, [(0, Splice(9, 9, b""))])], [Question("gpu", READ, b"", b"")])),  # type: ignore[list-item]
    "a question that is no text": pack(batch([], [Question("gpu", NUMBER, b"\xff\xff", b"")])),
    "a time that is none": pack(batch([block(math.nan, [])])),
    "a time far away": pack(batch([block(1e300, [])])),
    "a request at no time": pack(Batch(1, True, [], [], [Body(math.nan, "traces", False, "", 0, b"")], [])),
    "a signal that there is not": pack(Batch(1, True, [], [], [Body(0.0, "sounds", False, "", 0, b"")], [])),
    "nested": b"\x91" * 200_000,
    "nested inside": pack(batch([])).replace(b"\x90", b"\x91" * 100_000, 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_recorder_wrote_is_refused_and_nothing_else_happens(tmp_path: Path, name: str) -> None:
    data = HEAD.pack(0.0, 0.0, 0.0, 0.0) + HOSTILE[name]
    recording = Recording(write_file(tmp_path / "file", [data]))

    def replay() -> None:
        for event in recording.passes():
            recording.find(KEY, event.at_s)
        assert recording.find((READ, "", ""), 1e9) is NOTHING

    if name == "a change of nothing":
        replay()
    else:
        with pytest.raises(FormatError, match="cannot be read") as error:
            replay()
        assert "\n" not in str(error.value)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_payload_is_read_or_refused(data: st.DataObject) -> None:
    with new_tape() as tape:
        tape.recorder.mark("gpu", STARTED_S)
        tape.recorder.keep(KEY, pack(1), now_ns())
        tape.recorder.keep((READ, "proc/stat", ""), b"content", now_ns())
        tape.recorder.add((KERNEL_LINES, "", ""), pack([(1.0, "line")]), now_ns())
        tape.recorder.request(Signal.METRICS, b"", is_json=False, peer="", at_s=STARTED_S)
        tape.recorder.close()
        [chunk] = Reader(tape.path).chunks()
        at = data.draw(st.integers(HEAD.size, len(chunk.payload) - 1))
        changed = chunk.payload[:at] + data.draw(st.binary(min_size=1, max_size=3)) + chunk.payload[at + 1 :]
        write_file(tape.path, [changed])
        recording = Recording(tape.path)
        try:
            for event in recording.passes():
                recording.find(KEY, event.at_s)
            recording.find(KEY, 1e11)
            recording.take(KERNEL_LINES, 1e11)
        except FormatError:
            return


def test_all_of_a_hostile_file_is_not_read_ahead(tmp_path: Path) -> None:
    """Every chunk claims to be needed at once; only as much is held as there is room for."""
    big = Question("gpu", READ, b"x", b"")
    chunks = []
    for number in range(12):
        content = bytes([number]) * (30 << 20)
        one = Block(float(number), "gpu", True, [(0, 1, False, msgspec.Raw(pack(content)))])
        chunks.append(payload(batch([one], [big], fresh=True, writer=number), first_s=-1e9))
    recording = Recording(write_file(tmp_path / "file", chunks))
    for event in recording.passes():
        found = recording.find((READ, "x", ""), event.at_s)
        assert isinstance(found, bytes)
        assert found[0] == int(event.at_s)


def test_streams_that_nobody_takes_are_bounded(tmp_path: Path) -> None:
    lines = Question("gpu", KERNEL_LINES, b"", b"")
    many = [(0, [(0.0, "")])] * 70_000
    data = payload(batch([block(0.0, many)], [lines], fresh=True))  # type: ignore[arg-type]
    recording = Recording(write_file(tmp_path / "file", [data]))
    count = 0
    while recording.take(KERNEL_LINES, 1.0) is not NOTHING:
        count += 1
    assert count == 65_536


def test_many_writers_of_one_stream_are_bounded(tmp_path: Path) -> None:
    chunks = [
        payload(batch([block(float(n), [(0, n)])], [QUESTION], writer=n, fresh=True), first_s=n) for n in range(99)
    ]
    recording = Recording(write_file(tmp_path / "file", chunks))
    assert [recording.find(KEY, event.at_s) for event in recording.passes()] == list(range(99))


def test_close_lets_go_of_the_file() -> None:
    with new_tape() as tape:
        for second in range(3):
            tape.recorder.mark("gpu", STARTED_S + second)
            tape.recorder.flush()
        recording, _ = tape.replay()
        events = recording.passes()
        next(events)
        recording.close()
        assert list(events) == []
        assert recording.find(KEY, 1e9) is NOTHING


# --- contents --------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_a_change_makes_the_new_out_of_the_old(begin: bytes, old: bytes, new: bytes, end: bytes) -> None:
    before, now = begin + old + end, begin + new + end
    change = splice(before, now)
    if change is None:
        assert len(now) > 2 * (len(begin) + len(end)) or not now
    else:
        assert spliced(before, change) == now
        assert len(change.middle) <= len(now) // 2 + 1


@pytest.mark.parametrize("change", [Splice(-1, 0, b""), Splice(0, -1, b""), Splice(3, 3, b"")])
def test_a_change_that_does_not_fit_is_refused(change: Splice) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        spliced(b"12345", change)


def test_a_batch_is_what_it_was_after_packing() -> None:
    whole = batch([block(1.5, [(0, 2**64 - 1)])], [QUESTION], fresh=True)
    again = read_batch(pack(whole))
    assert json.loads(msgspec.json.encode(again.questions)) == [["gpu", NUMBER, "R1BVLTE=", "ZW5lcmd5"]]
    assert bytes(again.blocks[0].answers[0][3]) == pack(2**64 - 1)
    assert again.blocks[0].at_s == 1.5
    assert zlib.crc32(pack(again)) == zlib.crc32(pack(whole))
    assert MAX_STREAM == 255
