"""``gpumon.record.flight_folder``."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpumon.record.flight_folder import FlightFolder, named_after, recordings
from gpumon.record.format import MAGIC

ID = "20261129T171001Z-thermal_throttle-gpu-3"


@pytest.fixture
def folder(tmp_path: Path) -> FlightFolder:
    made = FlightFolder(tmp_path / "state" / "flights", folder_bytes=1000, file_bytes=300)
    made.make()
    return made


def recording(folder: FlightFolder, name: str, size: int, at_s: int, content: bytes = MAGIC) -> Path:
    path = folder.path / name
    path.write_bytes(content[:size].ljust(size, b"\0"))
    os.utime(path, (at_s, at_s))
    return path


def test_the_folder_is_for_its_owner_alone(folder: FlightFolder) -> None:
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.make()


def test_the_oldest_leave_until_one_more_may_become_as_large_as_it_may(folder: FlightFolder) -> None:
    oldest = recording(folder, "z.flight", 300, 1)
    middle = recording(folder, "a.flight", 300, 2)
    newest = recording(folder, "m.flight", 300, 3)
    assert folder.size_bytes() == 900
    assert folder.make_room([]) == 1
    assert not oldest.exists()
    assert middle.exists()
    assert newest.exists()
    assert folder.make_room([]) == 0


def test_a_recording_that_runs_is_not_removed_and_its_room_is_set_apart(folder: FlightFolder) -> None:
    running = recording(folder, "running.flight", 100, 1)
    ended = [recording(folder, f"{number}.flight", 300, 2 + number) for number in range(2)]
    assert folder.make_room(["running.flight"]) == 1
    assert running.exists()
    assert [path.exists() for path in ended] == [False, True]


def test_files_of_others_are_neither_counted_nor_removed(folder: FlightFolder) -> None:
    elsewhere = folder.path.parent / "elsewhere"
    elsewhere.write_bytes(MAGIC.ljust(5000, b"\0"))
    (folder.path / "link.flight").symlink_to(elsewhere)
    (folder.path / "folder.flight").mkdir()
    os.mkfifo(folder.path / "pipe.flight")
    (folder.path / "notes.txt").write_bytes(bytes(5000))
    (folder.path / "sp ace.flight").write_bytes(bytes(5000))
    kept = sorted(folder.path.iterdir())
    assert folder.size_bytes() == 0
    assert folder.make_room([]) == 0
    foreign = recording(folder, "mine.flight", 5000, 1, b"a diary")
    assert folder.make_room([]) == 0
    assert foreign.exists()
    assert sorted({*kept, foreign}) == sorted(folder.path.iterdir())
    assert elsewhere.exists()


def test_what_a_crash_left_at_its_first_bytes_is_removed_too(folder: FlightFolder) -> None:
    torn = recording(folder, "torn.flight", 3, 1)
    recording(folder, "whole.flight", 900, 2)
    assert folder.make_room([]) == 2
    assert not torn.exists()


def test_a_second_recording_of_an_incident_has_a_name_of_its_own(folder: FlightFolder) -> None:
    assert folder.find(ID) == ""
    paths = []
    for number in range(9):
        paths.append(folder.free_path(ID))
        recording(folder, paths[-1].name, 10, number)
    assert [path.name for path in paths[:2]] == [f"{ID}.flight", f"{ID}~2.flight"]
    assert {named_after(path) for path in paths} == {ID}
    assert recordings(folder.path) == paths
    assert folder.find(ID) == f"{ID}.flight"
    with pytest.raises(FileExistsError):
        folder.free_path(ID)


def test_as_many_run_at_once_as_there_is_room_for(tmp_path: Path) -> None:
    sizes = {size: FlightFolder(tmp_path, folder_bytes=size, file_bytes=300).most_running for size in (300, 700, 9000)}
    assert sizes == {300: 1, 700: 2, 9000: 4}


def test_a_probe_leaves_nothing_and_tells_what_does_not_work(folder: FlightFolder, tmp_path: Path) -> None:
    folder.probe()
    assert list(folder.path.iterdir()) == []
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError):
        FlightFolder(file / "flights", folder_bytes=1000, file_bytes=300).probe()


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert recordings(tmp_path / "nowhere") == []
    assert FlightFolder(tmp_path / "nowhere", folder_bytes=1000, file_bytes=300).size_bytes() == 0
