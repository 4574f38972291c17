"""HostFiles on real files, real /proc and a real FIFO."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumon.host.errnos import reason_of
from gpumon.host.files import ReadError
from gpumon.host.host_files import HostFiles
from gpumon.model import Reason


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for root in ("proc", "sys", "cgroup"):
        (tmp_path / root).mkdir()
    return tmp_path


@pytest.fixture
def files(tree: Path) -> Iterator[HostFiles]:
    opened = HostFiles(str(tree / "proc"), str(tree / "sys"), str(tree / "cgroup"), max_kept=4)
    yield opened
    opened.close()


def reason(files: HostFiles, path: str, *, keep: bool = False, limit: int = 1 << 20) -> Reason:
    with pytest.raises(ReadError) as caught:
        files.read(path, keep=keep, limit=limit)
    assert caught.value.path == path
    return caught.value.reason


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def take_all(taken: list[int]) -> None:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))


def test_reads_a_file_of_each_root(files: HostFiles, tree: Path) -> None:
    for root in ("proc", "sys", "cgroup"):
        (tree / root / "x").write_bytes(root.encode())
        assert files.read(f"{root}/x") == root.encode()


def test_a_kept_file_shows_its_new_content_at_the_next_read(files: HostFiles, tree: Path) -> None:
    (tree / "proc" / "x").write_bytes(b"one")
    assert files.read("proc/x", keep=True) == b"one"
    with (tree / "proc" / "x").open("r+b") as rewritten:
        rewritten.write(b"two, longer")
    assert files.read("proc/x", keep=True) == b"two, longer"
    assert files.kept == 1


def test_a_missing_file_is_unavailable(files: HostFiles) -> None:
    assert reason(files, "proc/nothing") is Reason.UNAVAILABLE


def test_a_file_below_a_file_is_unavailable(files: HostFiles, tree: Path) -> None:
    (tree / "proc" / "x").write_bytes(b"")
    assert reason(files, "proc/x/y") is Reason.UNAVAILABLE


@pytest.mark.parametrize(
    "path", ["proc/../secret", "proc/./x", "proc//x", "/etc/passwd", "etc/passwd", "proc/a\0b", "", "proc/"]
)
def test_paths_that_are_not_below_a_root_are_refused(files: HostFiles, tree: Path, path: str) -> None:
    (tree / "secret").write_bytes(b"secret")
    assert reason(files, path) is Reason.UNAVAILABLE


def test_links_of_proc_out_of_proc_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(b"root")
    files = HostFiles()
    with (tmp_path / "passwd").open() as held:
        for path in (f"proc/self/root{tmp_path}/passwd", f"proc/self/fd/{held.fileno()}", "proc/self/cwd/README.md"):
            assert reason(files, path) is Reason.UNAVAILABLE


def test_links_to_descriptors_are_read_and_not_followed(tmp_path: Path) -> None:
    host = HostFiles()
    with (tmp_path / "f").open("w") as held:
        assert host.link(f"proc/{os.getpid()}/fd/{held.fileno()}") == str(tmp_path / "f")
    for path in (
        f"proc/{os.getpid()}/fd/x",
        f"proc/{os.getpid()}/fd/..",
        "proc/self/fd/0",
        f"proc/{os.getpid()}/fd/0/x",
    ):
        with pytest.raises(ReadError):
            host.link(path)


def test_a_file_that_is_a_link_is_not_followed(files: HostFiles, tree: Path) -> None:
    (tree / "secret").write_bytes(b"secret")
    (tree / "sys" / "link").symlink_to(tree / "secret")
    assert reason(files, "sys/link") is Reason.UNAVAILABLE
    assert files.link("sys/link") == str(tree / "secret")


def test_folders_that_are_links_are_followed_as_sysfs_needs(files: HostFiles, tree: Path) -> None:
    (tree / "sys" / "devices" / "gpu").mkdir(parents=True)
    (tree / "sys" / "devices" / "gpu" / "numa_node").write_bytes(b"1\n")
    (tree / "sys" / "bus").symlink_to("devices")
    assert files.read("sys/bus/gpu/numa_node") == b"1\n"


def test_a_fifo_never_blocks_and_is_refused(files: HostFiles, tree: Path) -> None:
    os.mkfifo(tree / "proc" / "fifo")
    before = open_descriptors()
    assert reason(files, "proc/fifo") is Reason.MALFORMED
    assert open_descriptors() == before


def test_a_folder_is_no_file(files: HostFiles, tree: Path) -> None:
    (tree / "proc" / "x").mkdir()
    assert reason(files, "proc/x") is Reason.MALFORMED


def test_a_file_over_the_limit_is_malformed_and_one_at_it_is_read(files: HostFiles, tree: Path) -> None:
    (tree / "proc" / "big").write_bytes(b"x" * 100_000)
    assert reason(files, "proc/big", limit=99_999) is Reason.MALFORMED
    assert files.read("proc/big", limit=100_000) == b"x" * 100_000


def test_failed_reads_leave_no_descriptor_behind(files: HostFiles, tree: Path) -> None:
    (tree / "proc" / "big").write_bytes(b"x" * 100)
    before = open_descriptors()
    for _ in range(10):
        assert reason(files, "proc/big", limit=10) is Reason.MALFORMED
    assert open_descriptors() == before


def test_kept_descriptors_stay_within_the_bound(files: HostFiles, tree: Path) -> None:
    before = open_descriptors()
    for i in range(20):
        (tree / "proc" / str(i)).write_bytes(str(i).encode())
    for _ in range(2):
        for i in range(20):
            assert files.read(f"proc/{i}", keep=True) == str(i).encode()
    assert files.kept == 4
    assert open_descriptors() == before + 4
    files.close()
    assert open_descriptors() == before


def test_a_descriptor_that_nobody_reads_any_more_is_closed_while_others_are_read(tree: Path) -> None:
    for name in ("ended", "alive"):
        (tree / "proc" / name).write_bytes(b"1")
    files = HostFiles(str(tree / "proc"), idle_s=0.02)
    before = open_descriptors()
    files.read("proc/ended", keep=True)
    time.sleep(0.03)
    files.read("proc/alive", keep=True)
    assert files.kept == 1
    assert open_descriptors() == before + 1
    (tree / "proc" / "ended").write_bytes(b"2")
    assert files.read("proc/ended", keep=True) == b"2"
    files.close()
    assert open_descriptors() == before


def test_the_bound_leaves_half_of_the_descriptor_limit_to_others() -> None:
    names = [name for name in os.listdir("/proc/sys/kernel") if os.access(f"/proc/sys/kernel/{name}", os.R_OK)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        files = HostFiles(max_kept=4096)
    finally:  # at once: whoever runs these tests may have more open than that
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for name in names:
        with contextlib.suppress(ReadError):
            files.read(f"proc/sys/kernel/{name}", keep=True)
    assert files.kept == 32
    files.close()


def test_running_out_of_descriptors_gives_kept_ones_back_and_reads_on(files: HostFiles, tree: Path) -> None:
    for i in range(5):
        (tree / "proc" / str(i)).write_bytes(b"x")
    for i in range(4):
        files.read(f"proc/{i}", keep=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 8, hard))
        with pytest.raises(OSError, match="Too many open files"):
            take_all(taken)
        assert files.read("proc/4") == b"x"
        assert files.kept == 0
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_seq_file_longer_than_a_page_is_read_to_its_end() -> None:
    # Of a process of its own: this one's has grown beyond all limits by the end of a whole run.
    python = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(python, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        text = HostFiles().read(f"proc/{child.pid}/smaps")
        child.communicate(b"\n")
    assert len(text) > 20_000
    assert text.endswith(b"\n")
    assert b"[stack]" in text


def test_a_process_that_ended_is_unavailable_and_its_descriptor_is_closed() -> None:
    files = HostFiles()
    before = open_descriptors()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    path = f"proc/{child.pid}/stat"
    assert files.read(path, keep=True).startswith(str(child.pid).encode())
    child.communicate()
    for _ in range(2):
        assert reason(files, path, keep=True) is Reason.UNAVAILABLE
    assert files.kept == 0
    assert open_descriptors() == before


def test_a_reborn_name_is_opened_anew_after_the_old_one_answered_gone(files: HostFiles, tree: Path) -> None:
    (tree / "proc" / "x").write_bytes(b"old")
    files.read("proc/x", keep=True)
    files.close()
    (tree / "proc" / "x").unlink()
    assert reason(files, "proc/x", keep=True) is Reason.UNAVAILABLE
    (tree / "proc" / "x").write_bytes(b"new")
    assert files.read("proc/x", keep=True) == b"new"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.EACCES, Reason.DENIED),
        (errno.EPERM, Reason.DENIED),
        (errno.EOPNOTSUPP, Reason.UNSUPPORTED),
        (errno.EINVAL, Reason.UNSUPPORTED),
        (errno.ESRCH, Reason.UNAVAILABLE),
        (errno.ENODEV, Reason.UNAVAILABLE),
        (errno.EIO, Reason.MALFORMED),
        (None, Reason.MALFORMED),
    ],
)
def test_errno_has_one_meaning(code: int | None, expected: Reason) -> None:
    assert reason_of(OSError(code, "")) is expected


def test_lists_a_folder_sorted_and_names_what_cannot_be_listed(files: HostFiles, tree: Path) -> None:
    for name in ("b", "a", "10", "9"):
        (tree / "proc" / name).write_bytes(b"")
    assert files.list("proc") == ["10", "9", "a", "b"]
    for path in ("proc/nothing", "proc/a"):
        with pytest.raises(ReadError) as caught:
            files.list(path)
        assert caught.value.reason is Reason.UNAVAILABLE


def test_threads_share_one_instance_without_mixing_files(files: HostFiles, tree: Path) -> None:
    contents = {f"proc/{i}": str(i).encode() * 500 for i in range(12)}  # three times what may be kept
    for path, content in contents.items():
        (tree / path).write_bytes(content)
    wrong: list[str] = []

    def read_all() -> None:
        for _ in range(200):
            wrong.extend(path for path, content in contents.items() if files.read(path, keep=True) != content)

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    before = open_descriptors() - files.kept
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert files.kept <= 4
    assert open_descriptors() == before + files.kept
