"""Which processes are watched: by GPU, by name, hidden, gone, in another pid namespace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpumon.model import GpuProcess, GpuUuid, Pid, Reason
from gpumon.sources.targets import NOBODY, Occupant, Selection, Workload, newest_start_s, select_targets
from tests.fakes import FakeFiles
from tests.fixtures.hosts import fixture_files, fixture_host

A = GpuUuid("GPU-a")
B = GpuUuid("GPU-b")


def on_gpu(pid: int, uuid: GpuUuid = A, used_bytes: float | None = 1e9) -> GpuProcess:
    return GpuProcess(pid, "0" if uuid == A else "1", uuid, used_bytes, None)


def numbers(selection: Selection) -> list[int]:
    return [target.pid.number for target in selection.targets]


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles(fixture_files("h200"))


def test_a_process_on_two_gpus_is_one_target_that_holds_both(files: FakeFiles) -> None:
    held = (on_gpu(41_001, A, 3e9), on_gpu(41_001, B, None))
    selection = select_targets(held, files)
    assert selection.misses == ()
    (target,) = selection.targets
    assert target.pid == Pid(41_001, 90_100)
    assert target.held == held
    assert target.gpu_bytes == 3e9
    assert target.labels == ("41001", "VLLM::Worker_TP", "", "", "ec8207a3dde6")


def test_servers_are_found_by_name_in_a_real_tree() -> None:
    selection = select_targets((), fixture_host("h200"), [re.compile("vllm"), re.compile("VLLM::.*")])
    assert numbers(selection) == list(range(41_000, 41_009))


def test_a_name_is_never_looked_for_on_the_command_line(files: FakeFiles) -> None:
    files.put("proc/41000/cmdline", "python\0-m\0llama-server\0")
    assert numbers(select_targets((), files, [re.compile("llama-server")])) == []
    assert not any(path.endswith("cmdline") for path in files.reads)


def test_without_names_proc_is_not_walked(files: FakeFiles) -> None:
    select_targets([on_gpu(41_001)], files)
    assert {path.split("/")[1] for path in files.reads} <= {"41001", "self"}


def test_a_process_found_both_ways_is_one_target(files: FakeFiles) -> None:
    selection = select_targets([on_gpu(41_000)], files, [re.compile("vllm")])
    assert numbers(selection) == [41_000]
    assert selection.targets[0].held


def test_a_pid_that_proc_does_not_show_is_a_miss_that_names_hostpid(files: FakeFiles) -> None:
    selection = select_targets([on_gpu(7), on_gpu(41_001)], files)
    assert numbers(selection) == [41_001]
    (miss,) = selection.misses
    assert (miss.what, miss.reason) == ("gpu processes", Reason.UNAVAILABLE)
    assert "hostPID" in miss.detail


def test_a_pid_that_was_found_before_and_is_gone_has_ended_which_is_no_miss(files: FakeFiles) -> None:
    selection = select_targets([on_gpu(7), on_gpu(41_001)], files, seen={7})
    assert numbers(selection) == [41_001]
    assert selection.misses == ()


def test_many_pids_that_proc_does_not_show_are_one_miss(files: FakeFiles) -> None:
    selection = select_targets([on_gpu(number) for number in range(7, 27)], files)
    (miss,) = selection.misses
    assert miss.detail.startswith("20 ")


def test_pids_are_not_looked_up_in_the_proc_of_another_namespace(files: FakeFiles) -> None:
    # Our own pid has two numbers there: this /proc belongs to a namespace above ours, where 41001 is someone else.
    files.put("proc/self/status", "Name:\tgpumon\nNSpid:\t5000\t1\n")
    selection = select_targets([on_gpu(41_001)], files)
    assert selection.targets == ()
    (miss,) = selection.misses
    assert miss.reason is Reason.UNAVAILABLE
    assert "hostPID" in miss.detail


def test_named_servers_are_still_found_in_the_proc_of_another_namespace(files: FakeFiles) -> None:
    files.put("proc/self/status", "Name:\tgpumon\nNSpid:\t5000\t1\n")
    assert numbers(select_targets([on_gpu(41_001)], files, [re.compile("vllm")])) == [41_000]


def test_a_hidden_process_is_denied_and_its_neighbours_are_found(files: FakeFiles) -> None:
    files.deny("proc/41002")
    selection = select_targets([on_gpu(41_001), on_gpu(41_002), on_gpu(41_003)], files)
    assert numbers(selection) == [41_001, 41_003]
    assert [(miss.what, miss.reason) for miss in selection.misses] == [("pid 41002", Reason.DENIED)]


def test_a_denied_cgroup_leaves_the_container_unknown(files: FakeFiles) -> None:
    files.deny("proc/41001/cgroup")
    selection = select_targets([on_gpu(41_001)], files)
    assert selection.targets[0].workload == Workload()
    assert [(miss.what, miss.reason) for miss in selection.misses] == [("pid 41001 cgroup", Reason.DENIED)]


def test_ended_and_garbled_processes_are_no_targets() -> None:
    selection = select_targets((), fixture_host("sick"), [re.compile(".*")])
    assert numbers(selection) == [500, 502]
    assert selection.targets[1].process == "a) R (b) c"


def test_a_process_that_ends_between_two_reads_costs_only_its_container(files: FakeFiles) -> None:
    def end(path: str) -> None:
        if path == "proc/41001/cgroup":
            files.vanish("proc/41001")

    files.on_read = end
    selection = select_targets([on_gpu(41_001), on_gpu(41_002)], files)
    assert numbers(selection) == [41_001, 41_002]
    assert [miss.what for miss in selection.misses] == ["pid 41001 cgroup"]


def test_the_lookup_is_told_of_all_processes_at_once_and_names_their_pods(files: FakeFiles) -> None:
    asked: list[Occupant] = []

    def lookup(occupants: Sequence[Occupant]) -> list[Workload | None]:
        asked.extend(occupants)
        return [Workload("serving", "vllm-0", "server"), None, Workload("serving", "vllm-0")]

    held = [on_gpu(41_001), on_gpu(41_002, B), on_gpu(41_003)]
    first, second, third = select_targets(held, files, lookup=lookup).targets
    assert asked[1] == Occupant(second.pid, second.identity, (B,))
    assert asked[0].identity.pod_uid == "1f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6"
    assert first.labels == ("41001", "VLLM::Worker_TP", "serving", "vllm-0", "server")
    assert second.labels[2:] == ("", "", "ec8207a3dde6")
    assert third.labels[2:] == ("serving", "vllm-0", "ec8207a3dde6")


def test_the_newest_start_is_of_those_who_hold_a_gpu_in_a_pod(files: FakeFiles) -> None:
    assert newest_start_s(()) is None
    targets = select_targets([on_gpu(41_001)], files, [re.compile("vllm")]).targets
    assert newest_start_s(targets) == pytest.approx(901.01)
    assert newest_start_s([replace(each, identity=NOBODY) for each in targets]) is None
