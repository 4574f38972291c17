"""Other processes' cgroups seen from a container, in every runtime's tree: the same as from the host."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model import Reason
from gpumon.sources.cgroup import CgroupFolders, below, locate
from gpumon.sources.own_cgroup import OwnCgroup
from gpumon.sources.procfs import CgroupLine, parse_cgroup
from tests.fakes import FakeFiles

US, SERVER, INIT = 7001, 7002, 1
A, B = "a" * 64, "b" * 64
UID, UID_ = "1f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6", "1f4e2a90_3c11_4d5e_9f00_a1b2c3d4e5f6"
UNIFIED = {"cgroup": "0:"}
HYBRID = {"cgroup/cpu,cpuacct": "4:cpu,cpuacct", "cgroup/unified": "0:"}
BURSTABLE, BEST_EFFORT = "kubepods.slice/kubepods-burstable.slice", "kubepods.slice/kubepods-besteffort.slice"
KIND = "kubelet.slice/kubelet-kubepods.slice"
NODES = {
    "containerd": (
        f"{BEST_EFFORT}/kubepods-besteffort-pod{UID_}.slice/cri-containerd-{A}.scope",
        f"{BURSTABLE}/kubepods-burstable-pod{UID_}.slice/cri-containerd-{B}.scope",
        "init.scope",
    ),
    "containerd, guaranteed": (
        f"kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{A}.scope",
        f"kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{B}.scope",
        "init.scope",
    ),
    "containerd, cgroupfs": (f"kubepods/besteffort/pod{UID}/{A}", f"kubepods/burstable/pod{UID}/{B}", "init.scope"),
    "cri-o": (
        f"{BURSTABLE}/kubepods-burstable-pod{UID_}.slice/crio-{A}.scope/container",
        f"{BURSTABLE}/kubepods-burstable-pod{UID_}.slice/crio-{B}.scope/container",
        "init.scope",
    ),
    "kind": (
        f"{KIND}/kubelet-kubepods-besteffort.slice/pod{UID_}.slice/cri-containerd-{A}.scope",
        f"{KIND}/kubelet-kubepods-pod{UID_}.slice/cri-containerd-{B}.scope",
        "init.scope",
    ),
    "kind under the whole tree": (
        f"system.slice/docker-{A}.scope/{KIND}/pod{UID_}.slice/cri-containerd-{A}.scope",
        f"system.slice/docker-{A}.scope/{KIND}/pod{UID_}.slice/cri-containerd-{B}.scope",
        f"system.slice/docker-{A}.scope/init.scope",
    ),
    "a server on the host": (f"docker/{A}", "user.slice/user-0.slice/session-3.scope", ""),
    "a server at the top": (f"docker/{A}", "", "init.scope"),
}
"""Our container's folder, that of the server's and that of the first process."""


def seen(folder: str, root: str) -> str:
    """The path of a folder as the kernel tells it in the namespace with this root."""
    there, here = [part for part in folder.split("/") if part], [part for part in root.split("/") if part]
    while there and here and there[0] == here[0]:
        del there[0], here[0]
    return "/" + "/".join([".."] * len(here) + there)


def node(
    processes: Mapping[int, str], root: str = "", hierarchies: Mapping[str, str] = UNIFIED, own: int = US
) -> FakeFiles:
    """The host's tree and /proc, read in the namespace with this root by process ``own``."""
    files = FakeFiles({"proc/self/status": f"Name:\tgpumon\nNSpid:\t{own}\n"})
    for mount in hierarchies:
        for folder in processes.values():
            parts = [part for part in folder.split("/") if part]
            for depth in range(len(parts) + 1):
                add_folder(files, "/".join((mount, *parts[:depth])))
        for pid, folder in processes.items():
            path = "/".join(part for part in (mount, folder, "cgroup.procs") if part)
            files.put(path, files.files[path] + b"%d\n" % pid)
    for pid, folder in processes.items():
        lines = "".join(f"{name}:{seen(folder, root)}\n" for name in hierarchies.values())
        files.put(f"proc/{pid}/cgroup", lines)
        if pid == own:
            files.put("proc/self/cgroup", lines)
    return files


def add_folder(files: FakeFiles, path: str) -> None:
    for name in ("cgroup.procs", "cgroup.controllers", "cpu.stat", "memory.max", "tasks"):
        files.files.setdefault(f"{path}/{name}", b"")


def lines_of(files: FakeFiles, pid: int) -> list[CgroupLine]:
    return parse_cgroup(files.read(f"proc/{pid}/cgroup"))


def looked(files: FakeFiles) -> int:
    """Folders whose processes were read."""
    return sum(path.endswith("/cgroup.procs") for path in files.reads)


@pytest.mark.parametrize("hierarchies", [UNIFIED, HYBRID])
@pytest.mark.parametrize("name", NODES)
def test_the_folders_are_those_that_a_reader_in_the_hosts_namespace_finds(
    name: str, hierarchies: dict[str, str]
) -> None:
    ours, servers, init = NODES[name]
    processes = {US: ours, SERVER: servers, INIT: init}
    host = node(processes, "", hierarchies)
    expected = locate(lines_of(host, SERVER))
    inside = node(processes, ours, hierarchies)
    own = OwnCgroup(inside)
    assert "/.." in lines_of(inside, SERVER)[0].path
    assert own.locate(lines_of(inside, SERVER), 0.0) == expected
    assert own.locate(lines_of(inside, US), 0.0) == locate(lines_of(host, US))


@pytest.mark.parametrize("name", NODES)
def test_in_the_hosts_namespace_nothing_is_walked(name: str) -> None:
    ours, servers, init = NODES[name]
    files = node({US: ours, SERVER: servers, INIT: init})
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0) == locate(lines_of(files, SERVER))
    assert looked(files) == 0


def test_gpumon_below_the_root_of_its_namespace_knows_that_it_is() -> None:
    files = node({US: "kubepods/a/gpumon.service", SERVER: "kubepods/b", INIT: "init.scope"}, "kubepods/a")
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0).cpu == ("cgroup/kubepods/b",)


def test_gpumon_that_was_moved_out_of_its_namespace_finds_nobody() -> None:
    files = node({US: "kubepods/c", SERVER: "kubepods/b", INIT: "init.scope"}, "kubepods/a")
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0) == CgroupFolders((), ())


def test_processes_are_numbered_as_our_own_pid_namespace_does() -> None:
    files = node({US: "kubepods/a", SERVER: "kubepods/b", INIT: ""}, "kubepods/a")
    files.put("proc/self/status", "Name:\tgpumon\nNSpid:\t31000\t7001\n")
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0).cpu == ("cgroup/kubepods/b",)


def test_the_tree_of_the_namespace_itself_shows_what_is_below_it_and_no_more() -> None:
    processes = {US: "", SERVER: "server", INIT: ""}
    files = node(processes)
    files.put("proc/1/cgroup", "0::/../../init.scope\n")
    own = OwnCgroup(files)
    assert own.locate(lines_of(files, SERVER), 0.0).cpu == ("cgroup/server",)
    assert own.locate(parse_cgroup(b"0::/../../kubepods/x\n"), 0.0) == CgroupFolders((), ())
    assert looked(files) == 1


def test_a_hidden_first_process_does_not_matter() -> None:
    files = node({US: "kubepods/a", SERVER: "kubepods/b", INIT: ""}, "kubepods/a")
    files.deny("proc/1")
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0).cpu == ("cgroup/kubepods/b",)


def test_the_tree_is_walked_once() -> None:
    files = node({US: "kubepods/a", SERVER: "kubepods/b", INIT: ""}, "kubepods/a")
    own = OwnCgroup(files)
    own.locate(lines_of(files, SERVER), 0.0)
    once = looked(files)
    for at_s in (0.0, 30.0, 1e6):
        assert own.locate(lines_of(files, SERVER), at_s).cpu == ("cgroup/kubepods/b",)
    assert looked(files) == once > 0


@pytest.mark.parametrize("lost", ["proc/self/status", "proc/self/cgroup", "cgroup", "cgroup/kubepods/a"])
def test_what_was_not_found_is_looked_for_again_after_a_while(lost: str) -> None:
    files = node({US: "kubepods/a", SERVER: "kubepods/b", INIT: ""}, "kubepods/a")
    whole = dict(files.files)
    files.vanish(lost)
    own = OwnCgroup(files, retry_s=600.0)
    lines = lines_of(files, SERVER)
    assert own.locate(lines, 0.0) == CgroupFolders((), ())
    files.files = whole
    before = looked(files)
    assert own.locate(lines, 599.0) == CgroupFolders((), ())
    assert looked(files) == before
    assert own.locate(lines, 600.0).cpu == ("cgroup/kubepods/b",)


def test_what_is_kubes_is_looked_into_before_all_else() -> None:
    ours = "kubepods.slice/pod/a"
    others = {100 + i: f"app.slice/{i}.service" for i in range(50)}
    files = node({US: ours, SERVER: "kubepods.slice/pod/b", INIT: "init.scope", **others}, ours)
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0).cpu == ("cgroup/kubepods.slice/pod/b",)
    assert looked(files) == 5  # the top, as if it were ours, and then the way from there


def test_a_folder_with_processes_is_not_opened_before_the_others() -> None:
    full = {100 + i: f"kubepods/full/{i}" for i in range(50)}
    files = node({US: "kubepods/z/a", SERVER: "kubepods/z/b", INIT: "", 9: "kubepods/full", **full}, "kubepods/z/a")
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0).cpu == ("cgroup/kubepods/z/b",)
    assert looked(files) == 6


def test_a_folder_below_one_with_processes_is_found_after_the_others() -> None:
    files = node({US: "nested/inner/a", SERVER: "nested/inner/b", INIT: "nested"}, "nested/inner/a")
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0).cpu == ("cgroup/nested/inner/b",)


def test_a_tree_without_end_is_walked_to_the_limit() -> None:
    wide = {1000 + i: f"x/{i}/y" for i in range(300)}
    files = node({US: "x/zz/y", SERVER: "x/1/y", INIT: "", **wide}, "x/zz/y")
    lines = lines_of(files, SERVER)
    assert OwnCgroup(files, max_folders=100).locate(lines, 0.0) == CgroupFolders((), ())
    assert looked(files) <= 102  # and the top, twice
    deep = "/".join("d" * 40)
    files = node({US: deep, SERVER: "b", INIT: ""}, deep)
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0) == CgroupFolders((), ())
    assert looked(files) < 20


def test_a_folder_that_may_not_be_read_costs_its_neighbours_nothing() -> None:
    files = node({US: "kubepods/z/a", SERVER: "kubepods/z/b", 9: "kubepods/locked", INIT: ""}, "kubepods/z/a")
    files.deny("cgroup/kubepods/locked")
    files.deny("cgroup/kubepods/z/cgroup.procs", Reason.UNSUPPORTED)  # a threaded one
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0).cpu == ("cgroup/kubepods/z/b",)


@pytest.mark.parametrize("status", ["", "\0\xff", "Name:\tgpumon\n", "Name:\tx\nNSpid:\t-1\n"])
def test_a_status_of_rubbish_finds_nobody(status: str) -> None:
    files = node({US: "kubepods/a", SERVER: "kubepods/b", INIT: ""}, "kubepods/a")
    files.put("proc/self/status", status)
    assert OwnCgroup(files).locate(lines_of(files, SERVER), 0.0) == CgroupFolders((), ())


@pytest.mark.parametrize("path", ["/../../../x", "/../x/../../y", "/x/../y", "/../x/./y", "/../..//../x"])
def test_a_path_that_leads_above_the_top_or_up_from_below_is_refused(path: str) -> None:
    files = node({US: "kubepods/a", INIT: ""}, "kubepods/a")
    assert OwnCgroup(files).locate(parse_cgroup(f"0::{path}\n".encode()), 0.0) == CgroupFolders((), ())


_NAMES = st.text("abk.-", min_size=1, max_size=3).filter(lambda name: name not in {".", ".."})
_FOLDERS = st.lists(_NAMES | st.just("kubepods"), max_size=5).map("/".join)


@given(_FOLDERS, st.lists(_NAMES, max_size=2), st.lists(_FOLDERS, max_size=6))
def test_in_any_tree_the_folder_is_in_the_tree_and_that_of_the_hosts_reader(
    root: str, deeper: list[str], others: list[str]
) -> None:
    ours = "/".join(part for part in (root, *deeper) if part)
    processes = {INIT: "init.scope", US: ours, **{100 + i: folder for i, folder in enumerate(others)}}
    inside, host = node(processes, root), node(processes)
    own = OwnCgroup(inside)
    for pid in processes:
        found = own.locate(lines_of(inside, pid), 0.0)
        assert found == locate(lines_of(host, pid))
        assert inside.list(found.cpu[0])


@given(st.lists(_NAMES, max_size=4), st.text("/.ab\0\n", max_size=30) | st.text(max_size=30))
def test_no_path_leads_out_of_the_tree(base: list[str], path: str) -> None:
    folder = below(tuple(base), path)
    assert folder is None or {"", ".", ".."}.isdisjoint(folder)
    assert folder is None or all("/" not in name for name in folder)


@given(st.binary(max_size=60) | st.text("/.ab", max_size=20).map(lambda path: f"0::/../{path}".encode()))
def test_whatever_proc_says_the_folders_are_in_the_tree(data: bytes) -> None:
    files = node({US: "kubepods/a", INIT: ""}, "kubepods/a")
    files.put("proc/self/cgroup", data)
    for line in ("0::/../b", "0::/../../b"):
        found = OwnCgroup(files).locate(parse_cgroup(line.encode()), 0.0)
        for folder in found.cpu:
            assert folder in {"cgroup/b", "cgroup/kubepods/b"}
