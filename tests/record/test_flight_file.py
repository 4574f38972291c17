"""``gpumon.record.flight_file`` and ``gpumon.record.flight_reader``: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import random
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumon import __version__, catalogue
from gpumon.model import GpuUuid, Sample
from gpumon.record.fast_past import FastPast
from gpumon.record.flight_file import RESERVE_BYTES, FlightFile, Stream, header
from gpumon.record.flight_reader import Flight, FlightError, read_flight, read_incidents
from gpumon.record.format import Writer
from gpumon.record.packing import Block, pack
from gpumon.record.past import Past, pack_table
from gpumon.sources.gpu_fast import Column
from gpumon.store import Store
from tests.record.flights import SM, UNIX_OFFSET_S, incident, row


def a_past(seconds: int, series: int = 1) -> Past:
    """A clock that falls, and processes whose values are noise."""
    store, past, noise = Store(), Past(memory_bytes=64 << 20, before_s=7200.0, pack_s=10.0), random.Random(1)
    for second in range(1, seconds + 1):
        samples = [Sample(catalogue.GPU_CLOCK, SM, 1980e6 - second)]
        samples += [
            Sample(catalogue.PROCESS_NUMA_RESIDENT, (str(pid), "", "", "", "", "0"), float(noise.getrandbits(50)))
            for pid in range(1, series)
        ]
        store.put("gpu", float(second), samples, 3.0)
        past.add(store.view(float(second)))
    past.seal()
    return past


def some_fast() -> FastPast:
    past = FastPast(seconds=10.0, fast_s=0.1)
    past.add(GpuUuid("GPU-3"), [row(1.0, SM_ACTIVE=0.5), row(1.1, SM_ACTIVE=0.25)])
    past.add(GpuUuid("GPU-4"), [row(1.0, ENERGY=1e9)])
    return past


def begun(path: Path, most_bytes: int = 20 << 20) -> FlightFile:
    return FlightFile(Writer.create(path, header(100.0, lambda at_s: at_s + UNIX_OFFSET_S)), most_bytes)


def clock_of(flight: Flight) -> list[tuple[float, float]]:
    (series,) = [one for one in flight.series if one.name == catalogue.GPU_CLOCK.name]
    assert (series.kind, series.unit) == ("gauge", "hertz")
    assert series.labels == (("gpu", "3"), ("uuid", "GPU-3"), ("domain", "sm"))
    return list(zip(series.times.tolist(), series.values.tolist(), strict=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one.flight"


def test_a_recording_comes_back_as_it_was_written(path: Path) -> None:
    past = a_past(60)
    file = begun(path)
    one = incident(at_s=50.0)
    file.incidents([one])
    chunks = past.chunks()
    file.begin(chunks[:3], some_fast().after({}), 15 << 20)
    file.go_on(chunks[3:], some_fast().after({GpuUuid("GPU-3"): 1.05, GpuUuid("GPU-4"): 9.0}))
    one.closed_s, one.traces, one.requests = 58.0, ("0af7651916cd43dd8448eb211c80319c",), 3
    file.incidents([one])
    file.end("complete", 60.0)
    flight = read_flight(path)
    assert (flight.version, flight.unix_offset_s, flight.started_s) == (__version__, UNIX_OFFSET_S, 100.0)
    assert (flight.end, flight.ended_s, flight.left_out, flight.truncated) == ("complete", 60.0, 0, "")
    assert clock_of(flight) == [(float(second), 1980e6 - second) for second in range(1, 61)]
    assert flight.columns == [column.name.lower() for column in Column]
    assert {uuid: rows.shape for uuid, rows in flight.fast.items()} == {"GPU-3": (3, 43), "GPU-4": (1, 43)}
    assert flight.fast["GPU-3"][:, 1 + Column.SM_ACTIVE].tolist() == [0.5, 0.25, 0.25]
    (record,) = flight.incidents
    assert (record.id, record.kind, record.entity, record.severity) == (one.id, one.kind, "gpu 3", "warning")
    assert (record.since_s, record.opened_s, record.closed_s) == (45.0, 50.0, 58.0)
    assert (record.traces, record.requests) == (["0af7651916cd43dd8448eb211c80319c"], 3)
    assert [(item.name, item.observed, item.baseline) for item in record.evidence] == [
        ("sm_clock", 1005e6, 1980e6),
        ("temperature", 90.0, None),
    ]
    assert read_incidents(path) == [record]


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    begun(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_oldest_part_is_left_out_of_a_file_that_would_be_too_large(path: Path) -> None:
    past = a_past(200, series=600)
    file = begun(path, most_bytes=1 << 20)
    file.incidents([incident(at_s=200.0)])
    file.begin(past.chunks(), some_fast().after({}), 600 << 10)
    file.end("complete", 200.0)
    assert path.stat().st_size <= 1 << 20
    flight = read_flight(path)
    assert flight.left_out > 0
    times = [at_s for at_s, _ in clock_of(flight)]
    assert times == [float(second) for second in range(int(times[0]), 201)]
    assert 10.0 < times[0] < 190.0


def test_what_follows_is_left_out_when_the_file_is_full_and_the_last_word_is_not(path: Path) -> None:
    past = a_past(200, series=600)
    file = begun(path, most_bytes=1 << 20)
    file.incidents([incident(at_s=10.0)])
    file.go_on(past.chunks(), [])
    one = incident(at_s=10.0)
    one.closed_s = 150.0
    file.incidents([one])
    file.end("complete", 200.0)
    assert (1 << 20) - 2 * RESERVE_BYTES < path.stat().st_size <= 1 << 20
    flight = read_flight(path)
    assert flight.left_out > 0
    assert clock_of(flight)[0][0] == 1.0
    assert flight.incidents[0].closed_s == 150.0


def test_a_file_cut_off_anywhere_gives_what_is_before_the_cut(path: Path, tmp_path: Path) -> None:
    file = begun(path)
    file.incidents([incident(at_s=50.0)])
    file.begin(a_past(60).chunks(), some_fast().after({}), 15 << 20)
    file.end("complete", 60.0)
    whole = path.read_bytes()
    cut = tmp_path / "cut.flight"
    seen = set()
    for size in range(0, len(whole), 7):
        cut.write_bytes(whole[:size])
        if size < whole.index(b"}") + 1:  # not even its header is there
            with pytest.raises(FlightError, match=re.escape(str(cut))):
                read_flight(cut)
            continue
        flight = read_flight(cut)
        assert flight.end == ""
        assert len(flight.series) in (0, 1)
        if flight.series:
            times = [at_s for at_s, _ in clock_of(flight)]
            assert times == [float(second) for second in range(1, len(times) + 1)]
            assert flight.ended_s == times[-1]
            seen.add(len(times))
    assert len(seen) > 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    stream=st.sampled_from(list(Stream)),
    payload=st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(zlib.compress), st.just(b'[{"id": 1}]')),
)
def test_a_payload_that_makes_no_sense_is_one_line(path: Path, stream: Stream, payload: bytes) -> None:
    path.unlink(missing_ok=True)
    writer = Writer.create(path, header(100.0, float))
    writer.write(stream, payload)
    writer.close()
    with pytest.raises(FlightError) as caught:
        read_flight(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def table(number: int, labels: int = 1) -> bytes:
    series = [(catalogue.HOST_PAGE_FAULTS, (kind,)) for kind in ("major", "minor")[:labels]]
    return number.to_bytes(4, "little") + pack_table(series)


def readings_of(number: int, columns: int = 1, at_s: float = 1.0) -> bytes:
    return pack([Block(number, np.array([[at_s, *[2.0] * columns]]))], [np.zeros(columns, np.intp)])


@pytest.mark.parametrize(
    "chunks",
    [
        [(Stream.PAST, readings_of(1))],
        [(Stream.TABLE, table(1, 2)), (Stream.PAST, readings_of(1))],
        [(Stream.TABLE, table(1)), (Stream.TABLE, table(1, 2))],
        [(Stream.TABLE, table(1)), (Stream.PAST, readings_of(1, at_s=float("nan")))],
        [(Stream.TABLE, (1).to_bytes(4, "little") + zlib.compress(json.dumps([["a", "b", "", ["x"], [[]]]]).encode()))],
        [(Stream.FAST, bytes([3]) + b"GPU" + readings_of(0, 2))],
        [(Stream.FAST, bytes([200]) + b"GPU")],
        [(Stream.END, b'{"reason": "complete", "ended_s": 1e400}')],
        [(Stream.INCIDENTS, b"\xff")],
    ],
)
def test_pieces_that_do_not_fit_together_are_refused(path: Path, chunks: list[tuple[Stream, bytes]]) -> None:
    writer = Writer.create(path, header(100.0, float))
    for stream, payload in chunks:
        writer.write(stream, payload)
    writer.close()
    with pytest.raises(FlightError, match="damaged"):
        read_flight(path)


def test_streams_of_later_versions_are_passed_over(path: Path) -> None:
    writer = Writer.create(path, header(100.0, float) | {"more": 1})
    writer.write(200, b"whatever")
    writer.write(Stream.TABLE, table(1))
    writer.write(Stream.PAST, readings_of(1))
    writer.close()
    (series,) = read_flight(path).series
    assert series.values.tolist() == [2.0]


@pytest.mark.parametrize("head", [{}, {"kind": "recording"}, {"kind": 1}, {"kind": "flight", "unix_offset_s": "x"}])
def test_other_files_of_this_container_are_no_flight_recordings(path: Path, head: dict[str, object]) -> None:
    Writer.create(path, head).close()
    for read in (read_flight, read_incidents):
        with pytest.raises(FlightError, match="not a flight recording"):
            read(path)


def test_a_foreign_file_is_none(path: Path) -> None:
    path.write_text("a diary\n")
    with pytest.raises(FlightError, match="not a file that gpumon wrote"):
        read_flight(path)


def test_series_of_two_tables_are_put_together(path: Path) -> None:
    writer = Writer.create(path, header(100.0, float))
    writer.write(Stream.TABLE, table(1))
    writer.write(Stream.TABLE, table(2, 2))
    writer.write(Stream.PAST, readings_of(2, 2, at_s=2.0))
    writer.write(Stream.PAST, readings_of(1, at_s=1.0))
    writer.close()
    flight = read_flight(path)
    assert [(one.labels, one.times.tolist()) for one in flight.series] == [
        ((("kind", "major"),), [1.0, 2.0]),
        ((("kind", "minor"),), [2.0]),
    ]
