"""``gpumon.record.flight``: from an incident to its file, and what may go wrong on the way."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.health import Health
from gpumon.model import Reason, Sample
from gpumon.record.flight_file import MOST_INCIDENTS, Appender
from gpumon.record.flight_reader import Flight, read_flight
from gpumon.record.format import Writer
from tests.record.flights import GPU, START_S, Node, clock_and_energy, incident


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "flights")


def flight_of(node: Node, name: str) -> Flight:
    return read_flight(node.folder.path / name)


def times(flight: Flight) -> list[float]:
    """Of the GPU's clock, as seconds since the node began."""
    (series,) = [one for one in flight.series if one.name == catalogue.GPU_CLOCK.name]
    return [at_s - START_S for at_s in series.times.tolist()]


class FillingUp:
    """A file on a disk that is full from some moment on."""

    def __init__(self) -> None:
        self.is_full = False

    def create(self, path: Path, header: Mapping[str, object]) -> Appender:
        disk, out = self, Writer.create(path, header)

        class File:
            def write(self, stream: int, payload: bytes) -> int:
                if disk.is_full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return out.write(stream, payload)

            def size(self) -> int:
                return out.size()

            def close(self) -> None:
                out.close()

        return File()


def full_device(path: Path, header: Mapping[str, object]) -> Writer:
    """A file that the kernel says has no room."""
    return Writer(os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC))


# --- what is recorded -----------------------------------------------------------------------------------------------


def test_the_minutes_around_an_incident_are_in_its_file(node: Node) -> None:
    node.run(200)
    opened = node.open()
    node.run(100)
    assert node.files() == [opened.recording] == [f"{opened.id}.flight"]
    flight = flight_of(node, opened.recording)
    assert times(flight) == [float(second) for second in range(1, 261)]
    assert flight.end == "complete"
    fast = flight.fast[GPU[1]][:, 0] - START_S
    assert fast[0] == pytest.approx(201.0 - 119.9)
    assert fast[-1] == pytest.approx(260.0)
    assert len(fast) == 1200 + 590
    assert node.outcomes() == {"written": 1.0}
    assert node.value(catalogue.FLIGHT_OK) == 1.0


def test_it_ends_soon_after_the_incident_and_tells_its_final_state(node: Node) -> None:
    node.run(50)
    opened = node.open()
    node.run(20)
    opened.summary = "SM clock back at 1980 MHz"
    node.close(opened)
    node.run(20)
    flight = flight_of(node, opened.recording)
    assert times(flight)[-1] == 80.0
    (record,) = flight.incidents
    assert record.closed_s == START_S + 70.0
    assert record.summary == "SM clock back at 1980 MHz"
    assert node.outcomes() == {"written": 1.0}


def test_an_incident_that_goes_on_is_open_in_its_recording_until_it_closes(node: Node) -> None:
    node.run(50)
    opened = node.open()
    node.run(300)
    (record,) = flight_of(node, opened.recording).incidents
    assert record.closed_s is None
    assert opened.recording == f"{opened.id}.flight"
    opened.summary = "SM clock back at 1980 MHz"
    node.close(opened)
    node.run(9)
    assert flight_of(node, opened.recording).incidents[0].closed_s is None
    node.run(20)
    flight = flight_of(node, opened.recording)
    (record,) = flight.incidents
    assert (record.closed_s, record.summary) == (START_S + 350.0, "SM clock back at 1980 MHz")
    assert (flight.end, flight.ended_s) == ("complete", START_S + 360.0)
    found = times(flight)
    assert {float(second) for second in range(350, 361)} <= set(found), "what came after"
    assert not {float(second) for second in range(120, 260)} & set(found), "not all that was meanwhile"
    assert node.outcomes() == {"written": 1.0}
    size = (node.folder.path / opened.recording).stat().st_size
    node.run(100)
    assert (node.folder.path / opened.recording).stat().st_size == size, "told once"


def test_an_incident_that_opens_again_is_not_told_as_closed(node: Node) -> None:
    node.run(50)
    opened = node.open()
    node.run(100)
    node.close(opened)
    node.run(5)
    opened.closed_s = None
    node.run(100)
    assert flight_of(node, opened.recording).incidents[0].closed_s is None
    node.close(opened)
    node.run(11)
    assert flight_of(node, opened.recording).incidents[0].closed_s == START_S + 255.0


def test_what_is_added_to_a_recording_makes_room_for_itself(tmp_path: Path) -> None:
    node = Node(tmp_path / "flights", after_s=20.0, file_bytes=1 << 20, folder_bytes=(1 << 20) + 1000)
    node.run(10)
    opened = node.open(1)
    node.run(30)
    old = node.folder.path / "20261129T170000Z-xid-gpu-1.flight"
    old.write_bytes((node.folder.path / opened.recording).read_bytes())
    os.utime(old, (0, 0))
    node.close(opened)
    node.run(11)
    assert node.files() == [opened.recording]
    assert flight_of(node, opened.recording).incidents[0].closed_s is not None
    assert node.outcomes() == {"written": 1.0, "removed": 1.0}


def test_nothing_is_made_of_a_recording_that_is_gone_when_its_incident_closes(node: Node) -> None:
    node.run(50)
    opened = node.open()
    node.run(100)
    (node.folder.path / opened.recording).unlink()
    node.close(opened)
    node.run(30)
    assert node.files() == []
    assert node.misses == []
    assert node.outcomes() == {"written": 1.0}


def test_a_closing_that_cannot_be_written_is_a_miss_until_writing_works(tmp_path: Path) -> None:
    def no_room(path: Path) -> Writer:
        return full_device(path, {})

    node = Node(tmp_path / "flights", reopen=no_room)
    node.run(50)
    opened = node.open()
    node.run(100)
    node.close(opened)
    node.run(11)
    assert node.value(catalogue.FLIGHT_OK) == 0.0
    assert flight_of(node, opened.recording).incidents[0].closed_s is None
    node.run(40)
    assert node.value(catalogue.FLIGHT_OK) == 1.0


def test_a_file_is_never_larger_than_it_may_be_however_many_incidents_join(tmp_path: Path) -> None:
    """Each with a hundred traces of noise, which do not compress."""
    node = Node(tmp_path / "flights", file_bytes=1 << 20, folder_bytes=1 << 20, after_s=100.0)
    noise = random.Random(5)
    node.run(50)
    opened: list[Incident] = []
    for number in range(1, MOST_INCIDENTS + 1):
        opened.append(node.open(number))
        for one in opened:
            one.traces = tuple(f"{noise.getrandbits(128):032x}" for _ in range(100))
        node.run(1)
    node.run(200)
    path = node.folder.path / opened[0].recording
    assert path.stat().st_size <= 1 << 20
    for one in opened:
        node.close(one)
        node.run(12)
        assert path.stat().st_size <= 1 << 20
    flight = read_flight(path)
    assert flight.truncated == ""
    assert len(flight.incidents) == MOST_INCIDENTS
    assert flight.end == "complete"


def test_one_that_was_over_when_it_was_found_is_recorded_too(node: Node) -> None:
    node.run(50)
    opened = node.open()
    node.close(opened)
    node.run(20)
    flight = flight_of(node, opened.recording)
    assert times(flight)[-1] == 60.0
    assert flight.incidents[0].closed_s == START_S + 50.0


def test_incidents_of_the_same_moments_share_a_recording_that_lasts_for_all(node: Node) -> None:
    node.run(50)
    first = node.open(1)
    node.run(8)
    second = node.open(2)
    node.run(100)
    assert node.files() == [f"{first.id}.flight"]
    assert first.recording == second.recording == f"{first.id}.flight"
    flight = flight_of(node, first.recording)
    assert [record.id for record in flight.incidents] == [first.id, second.id]
    assert times(flight)[-1] == 118.0
    assert node.outcomes() == {"written": 1.0}


def test_a_later_incident_has_a_recording_of_its_own_while_there_is_room(tmp_path: Path) -> None:
    node = Node(tmp_path / "flights", after_s=100.0)
    node.run(50)
    opened = []
    for number in range(1, 7):
        opened.append(node.open(number))
        node.run(12)
    assert [one.recording for one in opened[:4]] == [f"{one.id}.flight" for one in opened[:4]]
    assert opened[4].recording == opened[5].recording == opened[3].recording  # four run: it is in the newest
    node.run(120)
    assert len(node.files()) == 4
    newest = flight_of(node, opened[3].recording)
    assert [record.id for record in newest.incidents] == [one.id for one in opened[3:]]
    assert times(newest)[-1] == 50.0 + 5 * 12.0 + 100.0
    assert node.outcomes() == {"written": 4.0}


def test_a_recording_is_never_longer_than_twice_its_time(tmp_path: Path) -> None:
    node = Node(tmp_path / "flights", after_s=20.0, file_bytes=1 << 20, folder_bytes=1 << 20)  # one at a time
    node.run(50)
    first = node.open(1)
    for number in range(2, 8):
        node.run(6)
        node.open(number)
    node.run(60)
    assert times(flight_of(node, first.recording))[-1] == 51.0 + 40.0


def test_more_incidents_than_a_recording_lists_are_counted(node: Node) -> None:
    node.run(10)
    opened = [node.open(number) for number in range(1, MOST_INCIDENTS + 4)]
    node.run(100)
    assert len(flight_of(node, opened[0].recording).incidents) == MOST_INCIDENTS
    assert [one.recording for one in opened[-3:]] == ["", "", ""]
    assert node.outcomes() == {"written": 1.0, "skipped": 3.0}


def test_more_incidents_than_anybody_can_note_are_counted(node: Node) -> None:
    node.run(1)
    for number in range(300):
        node.recorder.opened(incident(number, at_s=node.at_s), node.at_s)
    node.run(100)
    assert node.outcomes() == {"written": 1.0, "skipped": 300.0 - MOST_INCIDENTS}


def test_an_incident_found_again_after_a_restart_keeps_its_recording(tmp_path: Path) -> None:
    before = Node(tmp_path / "flights")
    before.run(10)
    opened = before.open()
    before.run(5)  # and it is killed
    after = Node(tmp_path / "flights")
    after.run(10)
    again = incident(at_s=after.at_s)
    again.restored = True
    after.recorder.opened(again, after.at_s)
    after.run(100)
    assert again.id == opened.id
    assert again.recording == opened.recording
    assert after.files() == [opened.recording]
    assert after.outcomes() == {}


def test_an_incident_found_again_without_a_recording_gets_one(node: Node) -> None:
    node.run(10)
    again = incident(at_s=node.at_s)
    again.restored, again.opened_s = True, node.at_s - 200.0
    node.recorder.opened(again, node.at_s)
    node.run(100)
    assert times(flight_of(node, again.recording))[-1] == 70.0


def test_a_kill_leaves_what_was_written(tmp_path: Path) -> None:
    node = Node(tmp_path / "flights")
    node.run(50)
    opened = node.open()
    node.run(45)
    flight = flight_of(node, opened.recording)
    assert flight.end == ""
    assert times(flight)[-1] >= 50.0 + 45.0 - 10.0
    assert [record.id for record in flight.incidents] == [opened.id]


def test_when_gpumon_ends_so_do_its_recordings(node: Node) -> None:
    node.run(50)
    opened = node.open()
    node.run(5)
    node.recorder.stop(node.at_s)
    flight = flight_of(node, opened.recording)
    assert flight.end == "stopped"
    assert times(flight)[-1] == 55.0
    node.recorder.stop(node.at_s)


# --- bounds ---------------------------------------------------------------------------------------------------------


def noise(seed: int, at_s: float) -> list[Sample]:
    made = random.Random(f"{seed} {at_s}")
    labels = [(str(pid), "", "", "", "", "0") for pid in range(200)]
    return [
        *clock_and_energy(at_s),
        *(Sample(catalogue.PROCESS_NUMA_RESIDENT, label, float(made.getrandbits(48))) for label in labels),
    ]


def test_the_folder_stays_within_its_bound_and_the_oldest_leave(tmp_path: Path) -> None:
    folder_bytes = 2 << 20
    node = Node(tmp_path / "flights", after_s=20.0, file_bytes=1 << 20, folder_bytes=folder_bytes)
    node.values = lambda at_s: noise(1, at_s)
    node.folder.make()
    foreign = node.folder.path / "notes.txt"
    foreign.write_text("mine")
    node.run(300)
    opened = []
    for number in range(1, 6):
        opened.append(node.open(number))
        node.run(30)
        assert node.folder.size_bytes() <= folder_bytes
    assert node.outcomes()["written"] == 5.0
    assert node.outcomes()["removed"] >= 1.0
    kept = [one.recording for one in opened][int(node.outcomes()["removed"]) :]
    assert node.files() == [*kept, "notes.txt"]
    assert node.value(catalogue.FLIGHT_BYTES, "folder") == float(node.folder.size_bytes())
    assert node.value(catalogue.FLIGHT_BYTES, "memory") == float(node.past.size_bytes + node.fast_past.size_bytes)


def test_a_file_stays_within_its_bound(tmp_path: Path) -> None:
    node = Node(tmp_path / "flights", file_bytes=1 << 20)
    node.values = lambda at_s: noise(1, at_s)
    node.run(1000)
    opened = node.open()
    node.run(100)
    path = node.folder.path / opened.recording
    assert path.stat().st_size <= 1 << 20
    flight = read_flight(path)
    assert flight.end == "complete"
    assert flight.left_out > 0
    assert node.outcomes() == {"written": 1.0}


def test_detection_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def create(path: Path, header: Mapping[str, object]) -> Writer:
        hangs.set()
        goes_on.wait(30.0)
        return Writer.create(path, header)

    node = Node(tmp_path / "flights", create=create)
    node.run(5)
    first = node.open(1)
    writing = threading.Thread(target=node.recorder.read, args=(node.at_s,))
    writing.start()
    assert hangs.wait(30.0)
    second = node.open(2)  # returns, as do the memory's passes
    node.close(second)
    node.memory.read(node.at_s)
    assert second.recording == ""
    goes_on.set()
    writing.join(30.0)
    node.run(2)
    assert second.recording == first.recording


# --- failures -------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_counted_told_once_and_got_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    creates = [full_device, full_device]
    node = Node(
        tmp_path / "flights",
        after_s=20.0,
        create=lambda path, header: (creates.pop() if creates else Writer.create)(path, header),
    )
    health = Health(lambda at_s: at_s)

    def run(seconds: int) -> None:
        """As the runner does."""
        for _ in range(seconds):
            node.run(1)
            health.succeeded(node.recorder.name, node.at_s, 0.0, node.misses)

    with caplog.at_level(logging.INFO):
        run(10)
        assert node.value(catalogue.FLIGHT_OK) == 1.0
        for number in (1, 2):
            failed = node.open(number)
            run(2)
            assert failed.recording == ""
        assert node.value(catalogue.FLIGHT_OK) == 0.0
        assert [(miss.reason, miss.detail) for miss in node.misses] == [(Reason.UNAVAILABLE, "No space left on device")]
        good = node.open(3)
        run(40)
    assert node.outcomes() == {"failed": 2.0, "written": 1.0}
    assert node.value(catalogue.FLIGHT_OK) == 1.0
    assert node.misses == []
    assert node.files() == [good.recording]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert "No space left on device" in said[0]


def test_a_disk_that_becomes_full_leaves_what_is_written_so_far(tmp_path: Path) -> None:
    disk = FillingUp()
    node = Node(tmp_path / "flights", create=disk.create)
    node.run(50)
    opened = node.open()
    node.run(30)
    disk.is_full = True
    node.run(40)
    assert node.outcomes() == {"failed": 1.0}
    flight = flight_of(node, opened.recording)
    assert flight.end == ""
    assert times(flight)[0] == 1.0
    assert times(flight)[-1] >= 70.0
    disk.is_full = False
    again = node.open(2)
    node.run(80)
    assert flight_of(node, again.recording).end == "complete"
    assert node.value(catalogue.FLIGHT_OK) == 1.0


def test_a_file_without_a_word_in_it_is_not_left_behind(tmp_path: Path) -> None:
    disk = FillingUp()
    disk.is_full = True
    node = Node(tmp_path / "flights", create=disk.create)
    node.run(10)
    opened = node.open()
    node.run(5)
    assert node.files() == []
    assert opened.recording == ""
    assert node.outcomes() == {"failed": 1.0}


def test_a_failing_recording_does_not_take_its_neighbours_along(tmp_path: Path) -> None:
    disk = FillingUp()
    creates = [Writer.create, disk.create]
    node = Node(tmp_path / "flights", create=lambda path, header: creates.pop()(path, header))
    node.run(20)
    failing = node.open(1)
    node.run(15)
    good = node.open(2)
    disk.is_full = True
    node.run(100)
    assert node.outcomes() == {"failed": 1.0, "written": 1.0}
    assert flight_of(node, failing.recording).end == ""
    assert flight_of(node, good.recording).end == "complete"


def test_a_folder_that_cannot_be_is_known_from_the_start_and_tried_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("a file where a folder belongs")
    node = Node(state / "flights", after_s=10.0)
    node.run(1)
    assert node.value(catalogue.FLIGHT_OK) == 0.0
    assert node.outcomes() == {}
    node.open(1)
    node.run(5)
    assert node.outcomes() == {"failed": 1.0}
    state.unlink()
    node.run(40)
    assert node.value(catalogue.FLIGHT_OK) == 1.0
    opened = node.open(2)
    node.run(20)
    assert node.files() == [opened.recording]
    assert node.outcomes() == {"failed": 1.0, "written": 1.0}


def test_a_denied_folder_is_told_as_denied(tmp_path: Path) -> None:
    def create(path: Path, header: Mapping[str, object]) -> Writer:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    node = Node(tmp_path / "flights", create=create)
    node.run(1)
    node.open()
    node.run(1)
    assert [(miss.what, miss.reason, miss.detail) for miss in node.misses] == [
        (str(node.folder.path), Reason.DENIED, "Read-only file system")
    ]


def test_a_folder_that_vanishes_fails_its_recordings_and_is_made_anew(tmp_path: Path) -> None:
    node = Node(tmp_path / "state" / "flights", after_s=20.0)
    node.run(10)
    node.open(1)
    node.run(3)
    shutil.rmtree(tmp_path / "state")
    node.run(30)
    assert node.outcomes() == {"failed": 1.0}
    opened = node.open(2)
    node.run(30)
    assert node.files() == [opened.recording]
    assert node.outcomes() == {"failed": 1.0, "written": 1.0}
    assert node.value(catalogue.FLIGHT_OK) == 1.0


def test_every_outcome_exists_at_zero(node: Node) -> None:
    node.run(1)
    for outcome in catalogue.FLIGHT_RECORDINGS.values:
        assert node.value(catalogue.FLIGHT_RECORDINGS, outcome) == 0.0
    assert node.value(catalogue.FLIGHT_BYTES, "folder") == 0.0


def test_its_samples_are_those_of_the_catalogue(node: Node) -> None:
    node.run(1)
    node.open()
    node.run(1)
    node.store.put("flight_files", node.at_s, [item for item in node.items if isinstance(item, Sample)], 5.0)
    assert node.store.view(node.at_s).value(catalogue.FLIGHT_RECORDINGS, ("written",)) == 0.0
    assert all(
        sample.value == 0.0 for sample in node.store.self_samples(node.at_s) if sample.metric.stem == "series_dropped"
    )
