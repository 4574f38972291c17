"""gpumon in a cgroup namespace of its own, as a pod's container has, and a server in another container beside it.

Real cgroups, of whichever version this machine has, and a real namespace. Needs root and a writable cgroup tree; where
the kernel refuses that, gpumon shares the namespace of the server, which has to give the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumon.host.host_files import HostFiles
from gpumon.sources.cgroup import locate
from gpumon.sources.procfs import parse_cgroup
from tests.e2e.conftest import Start
from tests.e2e.daemon import Daemon
from tests.e2e.waiting import eventually
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc

TREE = Path("/sys/fs/cgroup")
REAL = ("--procfs", "/proc", "--sysfs", "/sys", "--cgroupfs", str(TREE))
# Into the folders before the --, and, where that is allowed, into a namespace of which they are the root.
_ENTER = """
private=yes
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || private=; shift; done
shift
if [ "$private" ] && unshare --cgroup true; then exec unshare --cgroup "$@"; fi
exec "$@"
"""
_LOOK = """
import sys
from gpumon.host.host_files import HostFiles
from gpumon.sources.own_cgroup import OwnCgroup
from gpumon.sources.procfs import parse_cgroup
files = HostFiles()
data = files.read(f"proc/{sys.argv[1]}/cgroup")
sys.stdout.write(f"{data!r}\\n{OwnCgroup(files).locate(parse_cgroup(data), 0.0)!r}")
"""


class Containers:
    """Folders of a pod with two containers, in each hierarchy that can be written to. Ends with ``with``."""

    def __init__(self) -> None:
        unshared = subprocess.run(["unshare", "--cgroup", "true"], check=False, capture_output=True)
        self.allowed = unshared.returncode == 0
        self._made: list[Path] = []
        self._pods: list[Path] = []
        mounts = [TREE] if (TREE / "cgroup.procs").exists() else [TREE / "cpu", TREE / "unified"]
        for mount in mounts:
            pod = mount / f"kubepods-{os.getpid()}.slice" / "pod.slice"
            try:
                for folder in (pod.parent, pod, pod / "gpumon.scope", pod / "server.scope"):
                    folder.mkdir()
                    self._made.append(folder)
                if "cpu" in _words(mount / "cgroup.subtree_control"):
                    for folder in (pod.parent, pod):
                        (folder / "cgroup.subtree_control").write_text("+cpu")
                self._pods.append(pod)
            except OSError:
                self.allowed = False

    def __enter__(self) -> Containers:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in reversed(self._made):
            # A process that has just ended is still in it for a moment.
            eventually(lambda folder=folder: _rmdir(folder), f"{folder} to be empty")  # type: ignore[misc]

    def enter(self, container: str) -> list[str]:
        """The command before one that is to run in there."""
        folders = [str(pod / f"{container}.scope") for pod in self._pods]
        return ["sh", "-c", _ENTER, "sh", *folders, "--"]


def _words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
def containers() -> Iterator[Containers]:
    with Containers() as made:
        yield made


@pytest.fixture
def server(containers: Containers) -> Iterator[int]:
    """A process that waits in its container; its pid."""
    command = [*containers.enter("server"), sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.communicate(b"\n")


def test_the_folder_is_the_one_that_is_found_from_the_hosts_namespace(containers: Containers, server: int) -> None:
    command = [*containers.enter("gpumon"), sys.executable, "-c", _LOOK, str(server)]
    seen, found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    files = HostFiles()
    folders = locate(parse_cgroup(files.read(f"proc/{server}/cgroup")))
    assert found == repr(folders)
    assert ("/../server.scope" in seen) == containers.allowed
    if containers.allowed:
        assert str(server).encode() in files.read(f"{folders.cpu[0]}/cgroup.procs").split()


def test_a_page_from_a_container_has_all_of_the_servers_cgroup_that_one_from_the_host_has(
    containers: Containers, server: int, node: FakeNode, start: Start
) -> None:
    node.gpu(0).set_processes([Proc(server, 2**33)])
    inside, outside = start(node, *REAL, prefix=containers.enter("gpumon")), start(node, *REAL)
    assert _cgroup_series(inside, server) == _cgroup_series(outside, server)
    assert f'pid {server} cgroup"' not in inside.log
    inside.end()  # before its folder goes


def _cgroup_series(gpumon: Daemon, pid: int) -> set[tuple[str, ...]]:
    page = gpumon.await_series("gpumon_process_threads", pid=str(pid))
    names = [name for name in page.samples if name.startswith("gpumon_process_cgroup_")]
    return {
        (name, *(labels.get(key, "") for key in ("resource", "kind")))
        for name in names
        for labels, _ in page.select(name, pid=str(pid))
    }
