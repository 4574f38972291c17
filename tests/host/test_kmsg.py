"""Records of /dev/kmsg, the loop that drains it, and the device's life cycle on a stand-in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.files import ReadError
from gpumon.host.kmsg import MAX_RECORDS, DevKmsg, KernelLine, drain, parse_record
from gpumon.model import Reason

XID = b"4,1234,98765432,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"


def scripted(*answers: bytes | type[OSError]) -> Callable[[], bytes]:
    left = list(answers)

    def read_record() -> bytes:
        answer = left.pop(0) if left else BlockingIOError
        if isinstance(answer, bytes):
            return answer
        raise answer

    return read_record


def test_a_record_of_the_kernel_is_its_first_line_and_stamp() -> None:
    assert parse_record(XID) == KernelLine(
        98.765432, "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
    )


@pytest.mark.parametrize("priority", [8, 12, 14, 191])
def test_what_a_program_wrote_is_not_the_kernels(priority: int) -> None:
    assert parse_record(b"%d,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79" % priority) is None


@pytest.mark.parametrize("record", [b"", b";", b"x", b"4,1,2", b"4,1;x", b"4,1,-2,-;x", b"a,1,2,-;x", b"4,1,,-;x"])
def test_garbled_records_are_no_lines(record: bytes) -> None:
    assert parse_record(record) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_line_or_none(record: bytes) -> None:
    line = parse_record(record)
    assert line is None or 0 <= line.at_s < 1e13


def test_draining_stops_where_the_log_ends() -> None:
    assert [line.text for line in drain(scripted(b"6,1,1,-;a\n", b"6,2,2,-;b\n"))[0]] == ["a", "b"]


def test_overwritten_records_are_counted_and_the_rest_is_read() -> None:
    lines, overruns = drain(scripted(b"6,1,1,-;a\n", BrokenPipeError, b"6,9,9,-;z\n"))
    assert [line.text for line in lines] == ["a", "z"]
    assert overruns == 1


def test_a_flood_is_taken_in_bounded_parts() -> None:
    lines, _ = drain(lambda: b"6,1,1,-;flood\n")
    assert len(lines) == MAX_RECORDS


def test_the_log_is_read_from_its_end_on_and_again_after_close(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,1,-;before\n")
    log = DevKmsg(str(path))
    assert log.read() == []
    with path.open("ab") as kernel:
        kernel.write(b"6,2,2000000,-;after\n")
    assert log.read() == [KernelLine(2.0, "after")]
    log.close()
    assert log.read() == []
    log.close()


def test_no_device_is_unavailable_and_is_found_when_it_appears(tmp_path: Path) -> None:
    log = DevKmsg(str(tmp_path / "kmsg"))
    with pytest.raises(ReadError) as caught:
        log.read()
    assert caught.value.reason is Reason.UNAVAILABLE
    (tmp_path / "kmsg").write_bytes(b"")
    assert log.read() == []
    log.close()
