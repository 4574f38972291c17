"""XID lines of the kernel log: their forms, their forgeries, and the source around the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.files import ReadError
from gpumon.model import Miss, Reason, SourceError
from gpumon.sources.kernel_log import KernelLogSource, KernelXid, parse_xid
from tests.fakes import FakeKernelLog


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", ("3b", 79)),
        ("NVRM: Xid (PCI:0000:3B:00): 31, pid=1, name=python3, Ch 00000008, MMU Fault", ("3b", 31)),
        ("NVRM: Xid (0000:03:00): 13, Graphics Exception", ("03", 13)),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:02): 43, pid=9, name=x", ("3b", 43)),
        ("NVRM: Xid (PCI:00000000:3b:00): 119, Timeout after 45s of waiting for RPC response", ("3b", 119)),
        ("NVRM: Xid (PCI:0000:3b:00.0): 45", ("3b", 45)),
        ("[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 48", ("3b", 48)),
        ("NVRM: Xid (PCI:0000:3b:00): 0, x", ("3b", 0)),
    ],
)
def test_lines_of_every_driver(text: str, expected: tuple[str, int]) -> None:
    assert parse_xid(text) == KernelXid(f"0000:{expected[0]}:00.0", expected[1])


def test_a_domain_keeps_its_value() -> None:
    assert parse_xid("NVRM: Xid (PCI:000f:01:00): 79") == KernelXid("000f:01:00.0", 79)
    assert parse_xid("NVRM: Xid (PCI:00010000:01:00): 79") == KernelXid("10000:01:00.0", 79)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "NVRM: Xid (PCI:0000:3b:00): ",
        "NVRM: Xid (PCI:0000:3b:00) 79",
        "NVRM: Xid (PCI:0000:3b:00): -79",
        "NVRM: Xid (PCI:zzzz:3b:00): 79",
        "NVRM: Xid (PCI:0000:3b:00): 99999999999999999999",
        "NVRM: GPU at PCI:0000:3b:00: GPU-1",
        "oom-kill: task=NVRM: Xid (PCI:0000:3b:00): 79",
        "NVRM: Xid (PCI:0000:3b:00): ٧٩",
    ],
)
def test_what_is_no_xid_line_is_none(text: str) -> None:
    assert parse_xid(text) is None


def test_a_process_name_cannot_add_an_xid() -> None:
    text = "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=NVRM: Xid (PCI:0000:18:00): 79, x"
    assert parse_xid(text) == KernelXid("0000:3b:00.0", 31)


@given(st.text(max_size=200) | st.text(max_size=40).map(lambda tail: "NVRM: Xid (PCI:0000:3b:00): 7" + tail))
def test_any_text_is_an_xid_or_none(text: str) -> None:
    found = parse_xid(text)
    assert found is None or 0 <= found.xid < 10**9


def read(log: FakeKernelLog, at_s: float = 50.0) -> tuple[list[tuple[KernelXid, float]], list[object]]:
    told: list[tuple[KernelXid, float]] = []
    source = KernelLogSource(log, lambda xid, when_s: told.append((xid, when_s)))
    return told, list(source.read(at_s))


def test_xids_are_told_in_order_with_the_time_of_reading() -> None:
    log = FakeKernelLog()
    log.write("NVRM: Xid (PCI:0000:3b:00): 79, x", at_s=3.0)
    log.write("usb 1-1: new device")
    log.write("NVRM: Xid (PCI:0000:18:00): 31, y", at_s=3.1)
    told, items = read(log)
    assert told == [(KernelXid("0000:3b:00.0", 79), 50.0), (KernelXid("0000:18:00.0", 31), 50.0)]
    assert items == []


def test_lost_records_are_a_miss_once() -> None:
    log = FakeKernelLog()
    source = KernelLogSource(log, lambda xid, when_s: None)
    log.overruns = 2
    (miss,) = source.read(0.0)
    assert isinstance(miss, Miss)
    assert (miss.what, miss.reason) == ("kernel log", Reason.UNAVAILABLE)
    assert list(source.read(1.0)) == []


def test_a_denied_log_names_the_capability() -> None:
    log = FakeKernelLog()
    log.error = ReadError("/dev/kmsg", Reason.DENIED, "Operation not permitted")
    with pytest.raises(SourceError, match="CAP_SYSLOG") as caught:
        read(log)
    assert caught.value.reason is Reason.DENIED
