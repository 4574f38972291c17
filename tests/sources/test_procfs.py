"""Parsers of /proc: the formats, what is hostile in them, and that nothing but their own error leaves them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model import Reason, SourceError
from gpumon.sources import procfs
from gpumon.sources.procfs import CgroupLine, Pressure, SchedStat, Vma

STAT = "%d (%s) %s 1 1 1 0 -1 4194560 %d 11 %d 13 %d %d 5 6 20 0 %d 0 %d 1 2 3"


def stat(comm: str = "python", state: str = "S", minor: int = 1, major: int = 2, start: int = 99) -> bytes:
    return (STAT % (42, comm, state, minor, major, 30, 12, 7, start)).encode()


PARSERS: dict[str, Callable[[bytes], object]] = {
    "stat": procfs.parse_stat,
    "family": procfs.parse_family,
    "statm": procfs.parse_statm,
    "status": procfs.parse_status,
    "schedstat": procfs.parse_schedstat,
    "counters": lambda data: procfs.parse_counters(data, ("pgfault", "numa_hit"), "vmstat"),
    "pressure": procfs.parse_pressure,
    "cgroup": procfs.parse_cgroup,
    "cpulist": procfs.parse_cpulist,
    "meminfo": procfs.parse_meminfo,
    "maps": procfs.parse_maps,
    "numa_maps": procfs.parse_numa_maps,
}
VALID = {
    "stat": stat(),
    "family": stat("a) (b"),
    "statm": b"100 50 3 2 0 1 0\n",
    "status": b"Name:\tx\nNSpid:\t4 1\nVmRSS:\t12 kB\nHugetlbPages:\t0 kB\nCpus_allowed_list:\t0-3,8\n",
    "schedstat": b"12 34 5\n",
    "counters": b"numa_hit 3\npgfault 18446744073709551615\n",
    "pressure": b"some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=4\n",
    "cgroup": b"4:memory:/a\n0::/b\n",
    "cpulist": b"0-3,8,10-11\n",
    "meminfo": b"Node 0 MemTotal:  12 kB\nNode 0 MemFree:  1 kB\n",
    "maps": b"00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/x y\n7ffc-7ffd rw-p 00000000 00:00 0 \n",
    "numa_maps": b"7f00 default anon=3 N0=2 N1=1 kernelpagesize_kB=4\n",
}


def numbers(value: object) -> list[float]:
    if isinstance(value, bool | str | bytes) or value is None:
        return []
    if isinstance(value, int | float):
        return [value]
    if isinstance(value, dict):
        return [n for item in (*value.keys(), *value.values()) for n in numbers(item)]
    assert isinstance(value, tuple | list | frozenset)
    return [n for item in value for n in numbers(item)]


def outcome(parse: Callable[[bytes], object], data: bytes) -> object:
    try:
        return parse(data)
    except SourceError as err:
        return err


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid file with a few bytes replaced, removed or put in: deeper into the parser than noise alone."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(
            st.sampled_from(
                [b"", b" ", b"\n", b"-", b"-1", b"nan", b"inf", b"1e999", b"_", b"9" * 30, b")", b"\xff", b":"]
            )
        )
    return bytes(data)


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_whatever_comes_is_a_value_in_range_or_malformed(name: str, data: st.DataObject) -> None:
    text = data.draw(st.binary(max_size=300) | damaged(VALID[name]))
    value = outcome(PARSERS[name], text)
    if isinstance(value, SourceError):
        assert value.reason is Reason.MALFORMED
        assert len(value.detail) < 400
    else:
        assert all(0 <= number < 2**80 for number in numbers(value))


@pytest.mark.parametrize("name", PARSERS)
def test_the_valid_example_is_read(name: str) -> None:
    assert PARSERS[name](VALID[name])


@pytest.mark.parametrize("name", sorted(PARSERS.keys() - {"counters", "cpulist", "cgroup", "maps", "numa_maps"}))
def test_an_empty_file_is_malformed(name: str) -> None:
    with pytest.raises(SourceError):
        PARSERS[name](b"")


@pytest.mark.parametrize("comm", ["python", "tmux: server", "a) R (b 1 2) R", ")", "", "((", "x\ny"])
def test_a_name_may_hold_anything(comm: str) -> None:
    found = procfs.parse_stat(stat(comm=comm, minor=5, major=6, start=77))
    assert (found.state, found.minor_faults, found.major_faults, found.cpu_ticks) == ("S", 5, 6, 42)
    assert (found.threads, found.start_ticks) == (7, 77)


@given(st.text(max_size=15), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_stat_round_trips_under_every_name(comm: str, minor: int, start: int) -> None:
    data = (STAT % (42, "\0", "R", minor, 2, 30, 12, 7, start)).encode()
    found = procfs.parse_stat(data.replace(b"\0", comm.encode("utf-8", "replace")))
    assert (found.minor_faults, found.start_ticks, found.state) == (minor, start, "R")
    assert found.comm.isprintable()


def test_control_characters_do_not_reach_labels() -> None:
    assert procfs.parse_stat(stat(comm="a\x1b[31m\n")).comm == "a\ufffd[31m\ufffd"


def test_a_stat_cut_short_is_malformed() -> None:
    whole = stat()
    for end in range(whole.rindex(b" 99 ")):
        with pytest.raises(SourceError):
            procfs.parse_stat(whole[:end])


@pytest.mark.parametrize(
    "text", [b"-1", b"+1", b" 1", b"1_0", b"0x1", b"1.0", b"", b"18446744073709551616", b"1" * 5000]
)
def test_only_plain_64_bit_decimals_are_numbers(text: bytes) -> None:
    with pytest.raises(SourceError):
        procfs.parse_uint(text, "x")


def test_the_largest_counter_is_a_number() -> None:
    assert procfs.parse_uint(b"18446744073709551615", "x") == 2**64 - 1


def test_status_of_a_kernel_thread_has_no_resident_size() -> None:
    status = procfs.parse_status(b"Name:\tkthreadd\nNSpid:\t2\nCpus_allowed_list:\t0-1\n")
    assert status.resident_bytes is None
    assert status.hugetlb_bytes is None
    assert status.ns_pids == (2,)
    assert status.cpus_allowed == {0, 1}


def test_status_of_a_container_tells_the_pid_in_each_namespace() -> None:
    status = procfs.parse_status(b"Name:\tx\nNSpid:\t41000\t17\t1\nVmRSS:\t    2048 kB\nHugetlbPages:\t 4096 kB\n")
    assert status.ns_pids == (41000, 17, 1)
    assert status.resident_bytes == 2 << 20
    assert status.hugetlb_bytes == 4 << 20


def test_schedstat_is_nanoseconds_on_a_cpu_and_waiting() -> None:
    assert procfs.parse_schedstat(b"100 200 3\n") == SchedStat(100, 200)


def test_counters_that_the_kernel_lacks_are_absent() -> None:
    assert procfs.parse_counters(
        b"pgfault 7\nxpgmajfault 3\npgmajfault_x 4\n", ("pgfault", "pgmajfault"), "vmstat"
    ) == {"pgfault": 7}


def test_pressure_lines_may_be_missing_one_by_one() -> None:
    assert procfs.parse_pressure(b"some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\n") == Pressure(2.5, None)
    assert procfs.parse_pressure(b"full avg10=1.00 avg60=0.00 avg300=0.00 total=1\n") == Pressure(None, 1e-6)


def test_cgroup_paths_may_hold_colons() -> None:
    assert procfs.parse_cgroup(b"5:cpu,cpuacct:/a\n1:name=systemd:/s.slice:cri-containerd:x\n0::/\n") == [
        CgroupLine(5, ("cpu", "cpuacct"), "/a"),
        CgroupLine(1, ("name=systemd",), "/s.slice:cri-containerd:x"),
        CgroupLine(0, (), "/"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}), (b"\n", set()), (b"", set()), (b"5", {5}), (b"65535", {65535})],
)
def test_cpulist(text: bytes, expected: set[int]) -> None:
    assert procfs.parse_cpulist(text) == expected


@pytest.mark.parametrize("text", [b"3-1", b"0-", b"-1", b"a", b"0,,1", b"0-4294967295", b"99999999999", b"0-3-5"])
def test_a_list_that_is_none_or_huge_is_malformed(text: bytes) -> None:
    with pytest.raises(SourceError):
        procfs.parse_cpulist(text)


@given(st.frozensets(st.integers(0, 1023)))
def test_cpulist_round_trips(cpus: frozenset[int]) -> None:
    assert procfs.parse_cpulist(",".join(map(str, sorted(cpus))).encode()) == cpus


def test_meminfo_of_the_host_and_of_a_node_read_alike() -> None:
    expected = {"MemTotal": 2048, "MemFree": 1024}
    assert procfs.parse_meminfo(b"MemTotal:   2 kB\nMemFree:   1 kB\nHugePages_Total:  3\n") == expected
    assert procfs.parse_meminfo(b"Node 12 MemTotal:   2 kB\nNode 12 MemFree:   1 kB\n") == expected


def test_maps_keep_paths_with_spaces() -> None:
    assert procfs.parse_maps(VALID["maps"]) == [
        Vma(0x400000, 0x452000, "r-xp", "/usr/bin/x y"),
        Vma(0x7FFC, 0x7FFD, "rw-p", ""),
    ]


def test_numa_maps_adds_up_bytes_by_the_page_size_of_each_line() -> None:
    data = (
        b"7f00 default anon=3 dirty=3 N0=2 N1=1 kernelpagesize_kB=4\n"
        b"8000 bind:1 file=/x/N0=9 huge anon=1 N1=1 kernelpagesize_kB=2048\n"
        b"9000 default\n"
    )
    assert procfs.parse_numa_maps(data) == {0: 8192, 1: 4096 + (2 << 20)}


def test_numa_maps_without_a_page_size_is_malformed() -> None:
    with pytest.raises(SourceError):
        procfs.parse_numa_maps(b"7f00 default N0=2\n")


def test_the_files_of_this_very_process_are_read() -> None:
    proc = Path("/proc/self")
    found = procfs.parse_stat((proc / "stat").read_bytes())
    assert found.state == "R"
    assert found.threads >= 1
    assert procfs.parse_family((proc / "stat").read_bytes()) == (os.getppid(), os.getpgrp())
    assert procfs.parse_statm((proc / "statm").read_bytes()) > 100
    status = procfs.parse_status((proc / "status").read_bytes())
    assert status.cpus_allowed
    assert (status.resident_bytes or 0) > 1 << 20
    assert procfs.parse_schedstat((proc / "schedstat").read_bytes()).run_ns > 0
    vmas = procfs.parse_maps((proc / "maps").read_bytes())
    assert any(vma.path == "[stack]" for vma in vmas)
    counters = procfs.parse_counters(Path("/proc/vmstat").read_bytes(), ("pgfault", "pgmajfault"), "vmstat")
    assert counters["pgfault"] >= counters["pgmajfault"]
