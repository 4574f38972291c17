"""MovePages against the real kernel: the pages of this very test process."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path

import pytest

from gpumon.host.files import ReadError
from gpumon.host.move_pages import MAX_ADDRESSES, MovePages
from gpumon.model import Reason


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def reason(pages: MovePages, pid: int, addresses: list[int]) -> Reason:
    with pytest.raises(ReadError) as caught:
        pages.nodes(pid, addresses)
    return caught.value.reason


def test_touched_pages_have_a_node_and_untouched_ones_none() -> None:
    memory = mmap.mmap(-1, 64 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in (0, 3, 63):
        memory[page * mmap.PAGESIZE] = 1
    start = address_of(memory)
    nodes = MovePages().nodes(os.getpid(), [start + page * mmap.PAGESIZE for page in range(64)])
    assert {page for page, node in enumerate(nodes) if node is not None} == {0, 3, 63}
    assert all(node is None or node >= 0 for node in nodes)


def test_addresses_outside_of_every_mapping_have_no_node() -> None:
    assert MovePages().nodes(os.getpid(), [0, mmap.PAGESIZE, (1 << 64) - mmap.PAGESIZE]) == [None, None, None]


def test_no_addresses_is_no_question() -> None:
    assert MovePages().nodes(os.getpid(), []) == []


def test_a_process_that_ended_is_unavailable() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert reason(MovePages(), child.pid, [0]) is Reason.UNAVAILABLE


def test_a_zombie_is_unavailable_and_not_unsupported() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert reason(MovePages(), child.pid, [0]) is Reason.UNAVAILABLE
    child.wait()


@pytest.mark.parametrize("pid", [0, -1])
def test_pids_that_would_mean_gpumon_itself_are_refused(pid: int) -> None:
    assert reason(MovePages(), pid, [0]) is Reason.MALFORMED


def test_too_many_addresses_are_refused() -> None:
    assert reason(MovePages(), os.getpid(), [0] * (MAX_ADDRESSES + 1)) is Reason.MALFORMED


def test_pids_of_another_namespace_are_never_asked_about(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to("12345678")
    with pytest.raises(ReadError, match="hostPID") as caught:
        MovePages(str(tmp_path)).nodes(os.getpid(), [0])
    assert caught.value.reason is Reason.DENIED


def test_no_proc_is_unavailable(tmp_path: Path) -> None:
    assert reason(MovePages(str(tmp_path)), os.getpid(), [0]) is Reason.UNAVAILABLE
