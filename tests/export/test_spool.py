"""The queue on disk: kills, torn and damaged files, full and read-only disks, bounds."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumon.catalogue import (
    FORWARD_QUEUE_BYTES,
    FORWARD_QUEUE_ITEMS,
    FORWARD_SENT,
    FORWARD_SPOOL_DAMAGED,
    FORWARD_SPOOL_OK,
)
from gpumon.export.forward import Disk, Forwarder
from gpumon.export.forward_send import Answer, Outcome
from gpumon.export.spool import Position, Spool, SpoolError
from gpumon.host.clock import ManualClock
from gpumon.ingest.request import Signal
from tests.export.otlp_requests import traces

ALL = 1 << 40


class Drops(Counter[tuple[str, str]]):
    """What the spool says it dropped, items by signal and reason."""

    def __call__(self, kind: str, items: int, reason: str) -> None:
        if items:
            self[kind, reason] += items


def opened(
    folder: Path, drops: Drops | None = None, *, max_bytes: int = 1 << 20, fsync_s: float | None = None
) -> Spool:
    spool = Spool(folder, max_bytes=max_bytes, fsync_s=fsync_s, dropped=Drops() if drops is None else drops)
    spool.open()
    return spool


def everything(spool: Spool) -> list[bytes]:
    """Takes and commits all there is."""
    out: list[bytes] = []
    while True:
        records, position = spool.take(ALL, ALL, ALL)
        if position is None:
            return out
        out += [record.data for record in records]
        spool.commit(position)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def test_what_goes_in_comes_out_in_order_and_once(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for number in range(10):
        spool.append("traces", b"%d" % number, number, float(number))
    assert spool.items == 45
    records, position = spool.take(ALL, ALL, 4.5)
    assert [(record.data, record.items, record.at_s) for record in records] == [(b"%d" % n, n, n) for n in range(5)]
    assert spool.next_at_s() == 5.0
    assert position is not None
    spool.commit(position)
    assert everything(spool) == [b"5", b"6", b"7", b"8", b"9"]
    assert spool.items == spool.size == 0


def test_takes_stay_within_their_bounds_and_one_signal(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for kind, size, items in (
        ("traces", 10, 1),
        ("traces", 10, 1),
        ("traces", 50, 9),
        ("logs", 10, 1),
        ("logs", 10, 5),
    ):
        spool.append(kind, bytes(size), items, 0.0)
    sizes = []
    while (found := spool.take(30, 5, ALL)[0]) != []:
        sizes.append([(record.signal, len(record.data)) for record in found])
    assert sizes == [[("traces", 10), ("traces", 10)], [("traces", 50)], [("logs", 10)], [("logs", 10)]]


def test_only_what_was_not_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for number in range(6):
        spool.append("logs", b"%d" % number, 1, 1e9)
    _, position = spool.take(ALL, 2, ALL)
    assert position is not None
    spool.commit(position)
    spool.take(ALL, 2, ALL)  # handed over and never committed
    spool.close()
    spool = opened(tmp_path)
    assert spool.items == 4
    assert spool.next_at_s() == 0.0, "steady times of a former life mean nothing"
    assert everything(spool) == [b"2", b"3", b"4", b"5"]
    spool.close()
    assert segments(tmp_path) == []


def test_delivered_segments_are_removed(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=10 << 20)
    positions: list[Position] = []
    for number in range(40):
        spool.append("traces", b"%04d" % number + bytes(100_000), 1, 0.0)
    assert len(segments(tmp_path)) > 5
    while (position := spool.take(1, 1, ALL)[1]) is not None:
        positions.append(position)
    spool.commit(positions[19])
    left = [int(path.stem) for path in segments(tmp_path)]
    assert left[0] in (positions[19][0], positions[20][0])
    spool.commit(positions[-1])
    assert len(segments(tmp_path)) <= 1
    spool.close()
    assert segments(tmp_path) == []


def test_the_oldest_go_when_the_bound_is_reached(tmp_path: Path) -> None:
    drops = Drops()
    spool = opened(tmp_path, drops, max_bytes=1 << 20)
    for number in range(400):
        spool.append("traces" if number % 2 else "logs", b"%03d" % number + bytes(10_000), 2, 0.0)
        assert sum(path.stat().st_size for path in segments(tmp_path)) <= 1 << 20
    kept = [int(data[:3]) for data in everything(spool)]
    assert kept == list(range(400 - len(kept), 400))
    assert drops["traces", "spool_full"] + drops["logs", "spool_full"] == 2 * (400 - len(kept))
    assert 80 < len(kept) <= 104


def test_what_is_handed_over_is_not_counted_as_dropped(tmp_path: Path) -> None:
    drops = Drops()
    spool = opened(tmp_path, drops, max_bytes=1 << 20)
    spool.append("traces", bytes(1000), 7, 0.0)
    _, position = spool.take(ALL, ALL, ALL)
    for _ in range(200):
        spool.append("traces", bytes(10_000), 1, 0.0)
    assert position is not None
    spool.commit(position)
    assert drops["traces", "spool_full"] + len(everything(spool)) == 200


def test_files_and_folders_are_for_the_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        spool = opened(tmp_path / "a" / "b")
        spool.append("traces", b"x", 1, 0.0)
    finally:
        os.umask(old)
    for path in (tmp_path / "a" / "b").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_two_processes_never_share_a_folder(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(SpoolError, match="another process"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_files_of_others_are_moved_aside(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "000000000007.seg").write_bytes(b"not a segment at all")
    (tmp_path / "000000000008.seg").mkdir()
    spool = opened(tmp_path)
    assert (spool.damage.foreign, spool.damage.corrupt) == (1, 2)
    assert (tmp_path / "aside" / "notes.txt").read_text() == "mine"
    spool.append("traces", b"x", 1, 0.0)
    assert everything(spool) == [b"x"]


def write_segments(folder: Path, records: int = 5, size: int = 100) -> list[bytes]:
    """A closed spool with these records in one segment."""
    spool = opened(folder)
    data = [b"%04d" % number + bytes(size) for number in range(records)]
    for entry in data:
        spool.append("traces", entry, 1, 0.0)
    spool.close()
    return data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(cut=st.integers(0, 700))
def test_a_torn_end_is_ignored_and_every_whole_record_is_there(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    data = write_segments(folder)
    path = segments(folder)[0]
    content = path.read_bytes()
    cut = min(cut, len(content))
    path.write_bytes(content[:cut])
    spool = opened(folder)
    whole = max(0, cut - 16) // 125
    assert everything(spool) == data[:whole]
    assert spool.damage.torn == (0 if cut >= 16 and (cut - 16) % 125 == 0 else 1)
    assert spool.damage.corrupt == 0
    spool.append("traces", b"more", 1, 0.0)
    assert everything(spool) == [b"more"]
    spool.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(at=st.integers(0, 640), flip=st.integers(1, 255))
def test_a_damaged_byte_never_gives_a_wrong_record(
    at: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    data = write_segments(folder)
    path = segments(folder)[0]
    content = bytearray(path.read_bytes())
    content[at] ^= flip
    path.write_bytes(content)
    drops = Drops()
    spool = opened(folder, drops)
    found = everything(spool)
    assert found == data[: len(found)]
    assert len(found) == max(0, at - 16) // 125
    assert spool.damage.corrupt + spool.damage.torn >= 1
    if spool.damage.corrupt:
        assert len(list((folder / "aside").iterdir())) == 1
    spool.append("traces", b"more", 1, 0.0)
    assert everything(spool) == [b"more"]
    spool.close()


def test_a_damaged_record_costs_the_rest_of_its_segment_alone(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=10 << 20)
    for number in range(30):
        spool.append("logs", b"%04d" % number + bytes(100_000), 3, 0.0)
    spool.close()
    first, *_ = segments(tmp_path)
    content = bytearray(first.read_bytes())
    content[150_000] ^= 1
    first.write_bytes(content)
    drops = Drops()
    spool = opened(tmp_path, drops, max_bytes=10 << 20)
    found = [int(data[:4]) for data in everything(spool)]
    assert found[0] == 0
    assert found[1:] == list(range(31 - len(found), 30))
    assert drops == {("logs", "spool_corrupt"): 3 * (30 - len(found))}
    assert (tmp_path / "aside" / first.name).exists()


@pytest.mark.parametrize("content", [b"", b"x", bytes(20), b"\xff" * 20, b"\x01" + bytes(30)])
def test_a_damaged_cursor_delivers_more_than_once_and_loses_nothing(content: bytes, tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for number in range(4):
        spool.append("traces", b"%d" % number, 1, 0.0)
    _, position = spool.take(ALL, 2, ALL)
    assert position is not None
    spool.commit(position)
    spool.close()
    (tmp_path / "cursor").write_bytes(content)
    assert everything(opened(tmp_path)) == [b"0", b"1", b"2", b"3"]


def test_a_cursor_that_points_into_a_record_is_not_believed(tmp_path: Path) -> None:
    data = write_segments(tmp_path)
    spool = opened(tmp_path)
    spool.commit((1, 77))
    spool.close()
    assert everything(opened(tmp_path)) == data


def test_a_record_that_can_never_fit_is_refused(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=100_000)
    spool.append("traces", b"x", 1, 0.0)
    with pytest.raises(SpoolError, match="larger"):
        spool.append("traces", bytes(100_000), 1, 0.0)
    assert everything(spool) == [b"x"]


# --- kills ------------------------------------------------------------------------------------------------------------

WRITER = """
import sys, zlib
from pathlib import Path
from gpumon.export.spool import Spool
spool = Spool(Path(sys.argv[1]), max_bytes=1 << 30, fsync_s=None, dropped=print)
spool.open()
print("ready", flush=True)
number = 0
while True:
    number += 1
    body = (b"%08d" % number) * (1 + number * 7919 % 20_000)
    spool.append("traces", body, number, 0.0)
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("lines", [1, 50, 311])
def test_every_record_written_before_a_kill_is_delivered(lines: int, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        for _ in range(lines):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        told = lines + sum(line.endswith("\n") for line in writer.stdout)
    found = everything(opened(tmp_path, max_bytes=1 << 30))
    assert len(found) in (told, told + 1), "written, and killed before it could say so"
    for number, data in enumerate(found, 1):
        assert data == (b"%08d" % number) * (1 + number * 7919 % 20_000)


FORWARDER = """
import sys
from pathlib import Path
from gpumon.export.forward import Disk, Forwarder
from gpumon.export.forward_send import Answer, Outcome
from gpumon.host.clock import SystemClock
from gpumon.ingest.request import Signal
from tests.export.otlp_requests import traces

class Away:
    def send(self, signal, body):
        return Outcome(Answer.RETRY)
    def close(self):
        pass

clock = SystemClock()
annotate = (lambda *_: [("gpumon.gpu.sm_active", 0.5)]) if sys.argv[2] == "settling" else None
forwarder = Forwarder(Away(), clock, annotate=annotate, disk=Disk(Path(sys.argv[1])))
forwarder.start()
number = 1
while True:
    forwarder.offer(Signal.TRACES, traces(number, 3).SerializeToString(), is_json=False, at_s=clock.now_s())
    assert forwarder.wait_stored(30.0)
    number += 3
    print(number, flush=True)
"""


class Taking:
    """A downstream that takes everything."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def send(self, kind: Signal, body: bytes) -> Outcome:
        self.bodies.append(body)
        return Outcome(Answer.ACCEPTED)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("mode", ["at once", "settling"])
def test_what_was_stored_when_the_forwarder_was_killed_is_forwarded_by_the_next(mode: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORWARDER, str(tmp_path), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        lines = [first.stdout.readline() for _ in range(60)]
        first.kill()
        lines += [line for line in first.stdout if line.endswith("\n")]
    stored = int(lines[-1])
    sender = Taking()
    forwarder = Forwarder(sender, ManualClock(), disk=Disk(tmp_path))
    forwarder.prepare()
    while forwarder.deliver() is not None:
        pass
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest.FromString(b"".join(sender.bodies))
    ids = {
        int.from_bytes(span.span_id, "big") for r in request.resource_spans for s in r.scope_spans for span in s.spans
    }
    assert ids >= set(range(1, stored))
    forwarder.close()


# --- disks that fail --------------------------------------------------------------------------------------------------


def samples(forwarder: Forwarder) -> dict[tuple[str, tuple[str, ...]], object]:
    return {(sample.metric.name, sample.labels): sample.value for sample in forwarder.samples()}


def unwritable(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "below"


def test_a_disk_that_cannot_be_used_leaves_memory_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, sender = ManualClock(), Taking()
    forwarder = Forwarder(sender, clock, disk=Disk(unwritable(tmp_path)))
    for number in range(3):
        forwarder.offer(Signal.TRACES, traces(number + 1).SerializeToString(), is_json=False, at_s=0.0)
        forwarder.prepare()
    assert samples(forwarder)[FORWARD_SPOOL_OK.name, ()] == 0
    assert samples(forwarder)[FORWARD_QUEUE_ITEMS.name, ("memory",)] == 3
    failed = [record.getMessage() for record in caplog.records if "state=failed" in record.getMessage()]
    assert len(failed) == len(set(failed)) == 2, "once for each of its two folders"
    (tmp_path / "file").unlink()
    clock.step(60.0)
    forwarder.offer(Signal.TRACES, traces(9).SerializeToString(), is_json=False, at_s=0.0)
    forwarder.prepare()
    assert samples(forwarder)[FORWARD_SPOOL_OK.name, ()] == 1
    assert samples(forwarder)[FORWARD_QUEUE_ITEMS.name, ("spool",)] == 1
    while forwarder.deliver() is not None:
        pass
    assert samples(forwarder)[FORWARD_SENT.name, ("traces",)] == 4
    assert samples(forwarder)[FORWARD_SPOOL_DAMAGED.name, ("corrupt",)] == 0
    forwarder.close()


def test_a_disk_that_cannot_be_read_now_keeps_what_it_holds(tmp_path: Path) -> None:
    clock, sender = ManualClock(), Taking()
    forwarder = Forwarder(sender, clock, disk=Disk(tmp_path))
    forwarder.offer(Signal.TRACES, traces(1, 2).SerializeToString(), is_json=False, at_s=0.0)
    forwarder.prepare()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))  # no file can be opened any more
    try:
        assert forwarder.deliver() is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert samples(forwarder)[FORWARD_SPOOL_OK.name, ()] == 0
    assert samples(forwarder)[FORWARD_QUEUE_ITEMS.name, ("spool",)] == 2
    forwarder.deliver()
    assert samples(forwarder)[FORWARD_SPOOL_OK.name, ()] == 1
    assert len(sender.bodies) == 1
    forwarder.close()


def test_a_segment_that_somebody_removed_is_counted(tmp_path: Path) -> None:
    drops = Drops()
    spool = opened(tmp_path, drops)
    spool.append("traces", b"x", 3, 0.0)
    segments(tmp_path)[0].unlink()
    assert everything(spool) == []
    assert drops == {("traces", "spool_corrupt"): 3}
    spool.append("traces", b"y", 1, 0.0)
    assert everything(spool) == [b"y"]


def test_what_is_found_damaged_at_the_start_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "ready"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    forwarder = Forwarder(Taking(), ManualClock(), disk=Disk(tmp_path))
    forwarder.prepare()
    assert "foreign=1" in caplog.text
    assert samples(forwarder)[FORWARD_SPOOL_DAMAGED.name, ("foreign",)] == 1
    forwarder.close()


FULL = """
import resource, signal, sys
from pathlib import Path
from gpumon.export.spool import Spool, SpoolError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(Path(sys.argv[1]), max_bytes=1 << 30, fsync_s=None, dropped=print)
spool.open()
spool.append("traces", b"a" * 10_000, 1, 0.0)
resource.setrlimit(resource.RLIMIT_FSIZE, (25_000, resource.RLIM_INFINITY))
spool.append("traces", b"b" * 10_000, 1, 0.0)
for body in (b"c" * 20_000, b"d" * 30_000):
    try:
        spool.append("traces", body, 1, 0.0)
    except SpoolError as error:
        print("refused", error)
spool.append("traces", b"e" * 4_000, 1, 0.0)
records, _ = spool.take(1 << 30, 100, 1e9)
print([(record.data[:1], len(record.data)) for record in records])
"""


def test_a_write_that_ends_half_way_leaves_no_half_record(tmp_path: Path) -> None:
    # A file that may not grow answers like a full disk: a short write first, then an error.
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    refused = [line for line in done.stdout.splitlines() if line.startswith("refused")]
    assert len(refused) == 2
    assert done.stdout.splitlines()[-1] == "[(b'a', 10000), (b'b', 10000), (b'e', 4000)]"
    assert [data[:1] for data in everything(opened(tmp_path))] == [b"a", b"b", b"e"]


def test_sync_waits_its_time_and_reaches_the_medium(tmp_path: Path) -> None:
    spool = opened(tmp_path, fsync_s=1.0)
    spool.append("traces", b"x", 1, 0.0)
    spool.sync(10.0)
    assert spool.unsynced
    spool.sync(10.9)
    assert spool.unsynced
    spool.sync(11.0)
    assert not spool.unsynced


def test_the_spool_of_a_forwarder_without_one_is_not_spoken_of() -> None:
    forwarder = Forwarder(Taking(), ManualClock())
    names = {name for name, _ in samples(forwarder)}
    assert FORWARD_SPOOL_OK.name not in names
    assert (FORWARD_QUEUE_BYTES.name, ("spool",)) not in samples(forwarder)


def test_what_a_former_configuration_left_on_disk_is_forwarded(tmp_path: Path) -> None:
    first = Forwarder(Taking(), ManualClock(), annotate=lambda *_: [], disk=Disk(tmp_path))
    first.offer(Signal.TRACES, traces(1, 2).SerializeToString(), is_json=False, at_s=1000.0)
    first.prepare()
    assert samples(first)[FORWARD_QUEUE_ITEMS.name, ("spool",)] == 2
    first.close()
    sender = Taking()
    second = Forwarder(sender, ManualClock(), disk=Disk(tmp_path))
    second.prepare()
    second.deliver()
    assert sender.bodies == [traces(1, 2).SerializeToString()]
    second.close()
