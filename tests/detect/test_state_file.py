"""What outlives a restart: round trips, files that are no good, folders that cannot be written, and being killed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.catalogue import INCIDENT_KINDS, SEVERITIES
from gpumon.detect.detector import Severity
from gpumon.detect.state_file import (
    CORRUPT_KEPT,
    RETRY_S,
    SIZE_MAX,
    ForeignError,
    Memory,
    Remembered,
    StateFile,
    parse_memory,
    render_memory,
)
from gpumon.model import Miss, Reason, Sample
from tests.detect.findings import Book, finding

OPEN = Remembered(
    "20261129T171047Z-thermal_throttle-gpu-3",
    *("thermal_throttle", "warning", "gpu", "gpu 3", "3", "GPU-0003"),
    since_unix_s=1_795_972_240.25,
    opened_unix_s=1_795_972_247.5,
    seen_unix_s=1_795_972_300.0,
)
MEMORY = Memory({"thermal_throttle": {"warning": 7, "critical": 1}}, [OPEN])


def state_of(file: StateFile, at_s: float) -> tuple[float | None, list[Miss]]:
    """gpumon_state_folder_ok, and what it misses."""
    items = list(file.read(at_s))
    samples = [item for item in items if isinstance(item, Sample)]
    assert all(sample.metric is catalogue.STATE_OK for sample in samples)
    value = samples[0].value if samples else None
    assert value is None or isinstance(value, float)
    return value, [item for item in items if isinstance(item, Miss)]


# --- content ----------------------------------------------------------------------------------------------------------

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
_times = st.floats(0, 1e11)
_remembered = st.builds(
    Remembered,
    st.from_regex(r"\A[A-Za-z0-9_-]{1,120}\Z"),
    st.sampled_from(INCIDENT_KINDS),
    st.sampled_from(SEVERITIES),
    *(_texts, _texts, _texts, _texts, _times, _times, _times),
)
_memories = st.builds(
    Memory,
    st.dictionaries(
        st.sampled_from(INCIDENT_KINDS), st.dictionaries(st.sampled_from(SEVERITIES), st.integers(0, 1 << 53))
    ),
    st.lists(_remembered, max_size=5),
)


@given(_memories)
def test_what_is_written_is_read(memory: Memory) -> None:
    assert parse_memory(render_memory(memory)) == memory


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_foreign_bytes_raise_nothing_else(data: bytes) -> None:
    with contextlib.suppress(ForeignError):
        parse_memory(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_byte_raises_nothing_else(position: int, byte: int) -> None:
    data = bytearray(render_memory(MEMORY))
    data[position % len(data)] = byte
    try:
        memory = parse_memory(bytes(data))
    except ForeignError:
        return
    assert set(memory.counts) <= set(INCIDENT_KINDS)


def changed(**told: Any) -> bytes:
    """A good file, but for these."""
    tree = json.loads(render_memory(MEMORY))
    return json.dumps(tree | told).encode()


def with_open(**told: Any) -> bytes:
    return changed(open=[msgspec.to_builtins(OPEN) | told])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        render_memory(MEMORY)[:-20],
        changed(version=2),
        changed(version="1"),
        changed(counts=[]),
        changed(counts={"xid": {"warning": -1}}),
        changed(counts={"xid": {"warning": 1.5}}),
        changed(counts={"xid": {"warning": 1 << 60}}),
        changed(open=[1]),
        changed(open=[msgspec.to_builtins(OPEN)] * 2000),
        with_open(id="../../etc/passwd"),
        with_open(id="good\n"),
        with_open(id=""),
        with_open(id="x" * 121),
        with_open(name="n" * 201),
        with_open(seen_unix_s=-1),
        with_open(seen_unix_s=1e300),
        with_open(seen_unix_s=None),
        changed().replace(b"1795972300.0", b"1e999"),
        changed().replace(b"1795972300.0", b"NaN"),
    ],
)
def test_what_is_not_a_file_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(ForeignError):
        parse_memory(data)


def test_kinds_and_severities_that_this_version_does_not_know_are_left_out() -> None:
    newer = changed(
        counts={"xid": {"warning": 2, "fatal": 1}, "sunspot": {"warning": 9}},
        open=[msgspec.to_builtins(OPEN) | {"kind": "sunspot"}, msgspec.to_builtins(OPEN) | {"severity": "fatal"}],
        more=[1, 2],
    )
    assert parse_memory(newer) == Memory({"xid": {"warning": 2}}, [])


def test_the_largest_state_fits_in_a_file() -> None:
    large = Remembered(
        "x" * 120, "tenant_interference", "critical", "t" * 200, "é" * 200, "g" * 200, "u" * 200, 1e11, 1e11, 1e11
    )
    counts = {kind: dict.fromkeys(SEVERITIES, 1 << 53) for kind in INCIDENT_KINDS}
    assert len(render_memory(Memory(counts, [large] * 256))) < SIZE_MAX


# --- files ------------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_there_in_the_next_life(tmp_path: Path) -> None:
    folder = tmp_path / "var" / "gpumon"
    file = StateFile(folder)
    assert file.load() == Memory()
    assert state_of(file, 1000.0) == (None, [])
    file.keep(MEMORY)
    assert not folder.exists(), "only a pass writes"
    assert state_of(file, 1001.0) == (1.0, [])
    assert StateFile(folder).load() == MEMORY
    assert [path.name for path in folder.iterdir()] == ["incidents.json"]
    assert folder.stat().st_mode & 0o777 == 0o750
    assert (folder / "incidents.json").stat().st_mode & 0o137 == 0, "nobody else reads it"


def test_a_pass_without_news_writes_nothing(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.keep(MEMORY)
    state_of(file, 1000.0)
    (tmp_path / "incidents.json").unlink()
    assert state_of(file, 1001.0) == (1.0, [])
    assert not (tmp_path / "incidents.json").exists()


def test_the_newest_of_several_is_written(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.keep(Memory())
    file.keep(MEMORY)
    file.flush()
    assert StateFile(tmp_path).load() == MEMORY


def make_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere" / "loop")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"{"),
        lambda path: path.write_bytes(changed(version=2)),
        lambda path: path.write_bytes(b" " * (SIZE_MAX + 1)),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
        make_socket,
    ],
    ids=["torn", "other version", "huge", "pipe", "folder", "socket"],
)
def test_what_cannot_be_read_is_moved_aside_and_reported(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "incidents.json"
    make(path)
    file = StateFile(tmp_path)
    assert file.load() == Memory()
    assert [each.name for each in tmp_path.iterdir()] == ["incidents.json.corrupt-1"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"state=corrupt path='{path}' moved_to='{path}.corrupt-1'" in record.getMessage()
    file.keep(MEMORY)
    assert state_of(file, 1000.0) == (1.0, [])
    assert StateFile(tmp_path).load() == MEMORY


def test_a_link_that_leads_nowhere_is_no_file_and_is_replaced(tmp_path: Path) -> None:
    make_link(tmp_path / "incidents.json")
    file = StateFile(tmp_path)
    assert file.load() == Memory()
    file.keep(MEMORY)
    assert state_of(file, 1000.0) == (1.0, [])
    assert not (tmp_path / "incidents.json").is_symlink()


def test_only_the_newest_bad_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "incidents.json.corrupt-1").mkdir()
    (tmp_path / "incidents.json.corrupt-zzz").write_text("somebody else's")
    for number in range(9):
        (tmp_path / "incidents.json").write_text(f"bad {number}")
        StateFile(tmp_path).load()
    numbered = sorted(path.name for path in tmp_path.iterdir() if path.is_file() and path.name[-1].isdigit())
    assert len(numbered) == CORRUPT_KEPT
    newest = max(tmp_path.glob("incidents.json.corrupt-[0-9]*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))
    assert newest.read_text() == "bad 8"
    assert (tmp_path / "incidents.json.corrupt-zzz").exists()


def test_a_folder_that_cannot_be_is_no_corrupt_file_and_the_first_write_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    file = StateFile(tmp_path / "file" / "state")
    assert file.load() == Memory()
    assert not caplog.text
    file.keep(MEMORY)
    ok, (miss,) = state_of(file, 1000.0)
    assert ok == 0.0
    assert miss.reason is Reason.UNAVAILABLE
    assert miss.detail == os.strerror(errno.ENOTDIR)


def test_a_folder_that_cannot_be_written_is_tried_again_and_recovers_with_the_newest(tmp_path: Path) -> None:
    blocked = tmp_path / "state"
    blocked.write_text("a file where the folder should be")
    file = StateFile(blocked)
    file.keep(Memory())
    ok, misses = state_of(file, 1000.0)
    assert (ok, len(misses)) == (0.0, 1)
    blocked.unlink()
    file.keep(MEMORY)
    assert state_of(file, 1000.0 + RETRY_S - 1)[0] == 0.0, "not at every pass"
    assert state_of(file, 1000.0 + RETRY_S) == (1.0, [])
    assert StateFile(blocked).load() == MEMORY


def test_a_file_system_that_takes_no_files_is_told_of() -> None:
    file = StateFile(Path("/proc/self/gpumon"))
    file.keep(MEMORY)
    ok, (miss,) = state_of(file, 1000.0)
    assert ok == 0.0
    assert miss.reason in (Reason.DENIED, Reason.UNAVAILABLE)


def test_nothing_is_written_through_a_link_of_somebody_elses(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "incidents.json.new").symlink_to(victim)
    file = StateFile(folder)
    file.keep(MEMORY)
    assert state_of(file, 1000.0)[0] == 0.0
    assert victim.read_text() == "precious"


def test_an_incident_and_its_counter_outlive_a_restart_through_the_file(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    first = Book(state=file)
    first.step(finding())
    state_of(file, 1001.0)
    first.step(finding(severity=Severity.CRITICAL))
    first.ledger.close(1002.0)
    file.flush()
    second = Book(state=StateFile(tmp_path))
    second.stage.at_s = 1100.0
    second.step(finding(since_s=1099.0))
    assert (second.only.id, second.only.restored) == (first.only.id, True)
    assert second.only.severity is Severity.CRITICAL
    assert second.counted() == first.counted()


_WRITER = """
import sys
from pathlib import Path
from gpumon.detect.state_file import Memory, StateFile
file = StateFile(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    file.keep(Memory({"xid": {"warning": number}, "ecc": {"warning": number}}, []))
    file.flush()
    if number == 20:
        print("ready", flush=True)
"""


def test_being_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    before = 0
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait(10)
        writer.stdout.close()
        counts = StateFile(tmp_path).load().counts
        assert counts["xid"] == counts["ecc"]
        assert counts["xid"]["warning"] >= 20
        before += counts["xid"]["warning"]
    assert before >= 60
    assert not list(tmp_path.glob("*corrupt*"))
