"""What the doctor makes of the host's files: each thing that can be missing, and the change that would bring it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.config import Config, HostConfig, NumaConfig, OtlpConfig
from gpumon.doctor.host_checks import CAPABILITIES, Self
from gpumon.doctor.report import Status
from gpumon.host.files import ReadError
from gpumon.host.podresources import Answer, PodResourcesError
from gpumon.model import Reason
from tests.doctor.machines import NONE, STAT, check, diagnose, healthy_around, healthy_files, status
from tests.fakes import FakeFiles
from tests.fixtures.hosts import NAMES, fixture_files

MISSING, DEGRADED, OK, UNSUPPORTED = Status.MISSING, Status.DEGRADED, Status.OK, Status.UNSUPPORTED


def own_status(text: str) -> FakeFiles:
    files = healthy_files()
    files.put("proc/self/status", text)
    return files


@pytest.mark.parametrize(
    ("gone", "id_", "status", "fix"),
    [
        ("proc/vmstat", "vmstat", MISSING, "--procfs"),
        ("proc/pressure", "pressure", MISSING, "psi=1"),
        ("sys/devices/system", "numa", MISSING, "--sysfs"),
        ("sys/devices/system/node", "numa", UNSUPPORTED, ""),
        ("proc/1", "hidepid", MISSING, "hidepid=0"),
        ("cgroup", "cgroups", MISSING, "--cgroupfs"),
        ("cgroup/init.scope", "cgroups", MISSING, "--cgroupfs"),
        ("proc/1/cgroup", "cgroups", DEGRADED, "hostPID"),
        ("proc/self/schedstat", "schedstat", UNSUPPORTED, ""),
        ("sys/devices/system/clocksource", "clock", UNSUPPORTED, ""),
    ],
)
def test_what_is_not_there(gone: str, id_: str, status: Status, fix: str) -> None:
    files = healthy_files()
    files.vanish(gone)
    found = check(diagnose(files), id_)
    assert found.status is status
    assert fix in found.fix


@pytest.mark.parametrize("id_", ["vmstat", "pressure", "numa", "schedstat", "cgroups"])
@pytest.mark.parametrize("content", ["", "\0\xff", "garbage " * 5000, "pgfault -1\npgmajfault nan\n"])
def test_a_file_full_of_rubbish_is_a_status_and_no_error(id_: str, content: str) -> None:
    files = healthy_files()
    paths = {
        "vmstat": "proc/vmstat",
        "pressure": "proc/pressure/memory",
        "numa": "sys/devices/system/node/online",
        "schedstat": "proc/self/schedstat",
        "cgroups": "proc/1/cgroup",
    }
    files.put(paths[id_], content)
    assert check(diagnose(files), id_).status in Status


def test_pressure_that_is_compiled_in_and_turned_off_names_the_boot_flag() -> None:
    files = healthy_files()
    files.deny("proc/pressure/memory", Reason.UNSUPPORTED)
    assert "psi=1" in check(diagnose(files), "pressure").fix


def test_no_run_queue_accounting_names_the_boot_flag() -> None:
    files = healthy_files()
    files.put("proc/self/schedstat", "0 0 0\n")
    assert "delayacct" in check(diagnose(files), "schedstat").fix


@pytest.mark.parametrize(
    ("links", "comms", "ns_pids", "expected"),
    [
        ({"proc/self/ns/pid": "pid:[4026531836]"}, {}, "77", OK),
        ({"proc/self/ns/pid": "pid:[4026532201]"}, {1: "python"}, "7", MISSING),
        ({"proc/self/ns/pid": "pid:[4026532201]"}, {2: "kthreadd"}, "77 7", MISSING),
        ({}, {2: "kthreadd"}, "77", OK),
        ({}, {1: "systemd"}, "77", OK),
        ({}, {1: "python"}, "77", DEGRADED),
    ],
)
def test_whose_pid_namespace_it_is(
    links: dict[str, str], comms: dict[int, str], ns_pids: str, expected: Status
) -> None:
    files = own_status(status(ns_pids=ns_pids))
    files.vanish("proc/1")
    files.vanish("proc/2")
    files.links = links
    for pid, comm in comms.items():
        files.put(f"proc/{pid}/stat", STAT.format(pid, comm))
    found = check(diagnose(files), "pid_namespace")
    assert found.status is expected
    assert ("hostPID" in found.fix) == (expected is not OK)


def test_hidden_processes_name_the_mount_option_and_the_capability() -> None:
    files = healthy_files()
    files.deny("proc/1/stat")
    files.put("proc/self/mounts", "proc /proc proc rw,nosuid,hidepid=invisible,gid=23 0 0\n")
    found = check(diagnose(files), "hidepid")
    assert (found.status, "hidepid=invisible" in found.detail) == (MISSING, True)
    assert "SYS_PTRACE" in found.fix


def test_hidepid_that_hides_nothing_from_us_is_no_problem() -> None:
    files = healthy_files()
    files.put("proc/self/mounts", "proc /proc proc rw,hidepid=2 0 0\n")
    assert check(diagnose(files), "hidepid").status is OK


def in_a_container() -> FakeFiles:
    """Of a cgroup namespace of its own, its folder two below the top of the host's tree."""
    files = healthy_files()
    files.links["proc/self/ns/cgroup"] = "cgroup:[4026532999]"
    files.put("proc/1/cgroup", "0::/../../init.scope\n")
    files.put("proc/self/cgroup", "0::/\n")
    for folder, processes in (("", "2\n"), ("kubepods/", ""), ("kubepods/us/", "77\n"), ("init.scope/", "1\n")):
        files.put(f"cgroup/{folder}cgroup.procs", processes)
    return files


def test_the_hosts_cgroup_tree_is_enough_in_a_cgroup_namespace_of_ones_own() -> None:
    found = check(diagnose(in_a_container()), "cgroups")
    assert (found.status, found.fix) == (OK, "")
    assert "own namespace" in found.detail


@pytest.mark.parametrize("gone", ["cgroup/kubepods", "cgroup/init.scope"])
def test_a_cgroup_namespace_of_ones_own_needs_the_hosts_whole_tree(gone: str) -> None:
    files = in_a_container()
    files.vanish(gone)
    found = check(diagnose(files), "cgroups")
    assert found.status is MISSING
    assert "mount the host's whole /sys/fs/cgroup" in found.fix


def test_a_container_that_sees_nobody_else_needs_the_hosts_processes_too() -> None:
    files = in_a_container()
    files.put("proc/1/cgroup", "0::/\n")
    found = check(diagnose(files), "cgroups")
    assert found.status is MISSING
    assert "hostPID" in found.fix
    assert "/sys/fs/cgroup" in found.fix


def test_a_nested_node_whose_tree_is_its_own_is_whole() -> None:
    files = healthy_files()
    files.links["proc/self/ns/cgroup"] = "cgroup:[4026532999]"
    assert check(diagnose(files), "cgroups").status is OK


@pytest.mark.parametrize(
    ("tree", "lines", "words"),
    [
        ({"cgroup/cpu,cpuacct/cpu.stat": ""}, "4:cpu,cpuacct:/\n", "version 1"),
        (
            {"cgroup/cpu/cpu.stat": "", "cgroup/unified/cgroup.controllers": ""},
            "4:cpu:/\n0::/\n",
            "version 1 and 2",
        ),
    ],
)
def test_versions_of_cgroups(tree: dict[str, str], lines: str, words: str) -> None:
    files = healthy_files()
    files.vanish("cgroup")
    for path, content in tree.items():
        files.put(path, content)
    files.put("proc/1/cgroup", lines)
    found = check(diagnose(files), "cgroups")
    assert (found.status, found.detail) == (OK, words)


def test_page_placement_without_the_capability_works_for_our_own_user_only() -> None:
    found = check(diagnose(own_status(status(NONE))), "page_placement")
    assert found.status is DEGRADED
    assert "SYS_PTRACE" in found.fix


def test_page_placement_that_seccomp_refuses_is_not_blamed_on_a_capability() -> None:
    refused = ReadError("move_pages 7", Reason.DENIED, "Operation not permitted")
    found = check(
        diagnose(own_status(status(seccomp=2)), around=healthy_around(page_placement=refused)), "page_placement"
    )
    assert (found.status, "seccomp" in found.fix, "numa.exact" in found.fix) == (MISSING, True, True)


def test_page_placement_in_another_pid_namespace() -> None:
    refused = ReadError("move_pages 7", Reason.DENIED, "/host/proc shows another pid namespace; hostPID needed")
    found = check(diagnose(around=healthy_around(page_placement=refused)), "page_placement")
    assert (found.status, "hostPID" in found.fix) == (MISSING, True)


@pytest.mark.parametrize(
    ("mask", "lacks"),
    [
        (NONE, {"SYS_PTRACE", "DAC_READ_SEARCH"}),
        (f"{1 << 19:016x}", {"DAC_READ_SEARCH"}),
        (f"{1 << 2:016x}", {"SYS_PTRACE"}),
        (f"{1 << 19 | 1 << 2:016x}", set()),
    ],
)
def test_owners_of_connections_need_two_capabilities(mask: str, lacks: set[str]) -> None:
    found = check(diagnose(own_status(status(mask))), "senders")
    assert found.status is (DEGRADED if lacks else OK)
    assert {name for name in ("SYS_PTRACE", "DAC_READ_SEARCH") if f"capability {name} " in found.fix} == lacks


def test_owners_of_connections_do_not_matter_without_traces() -> None:
    config = Config(otlp=OtlpConfig(enabled=False))
    assert check(diagnose(config=config), "senders").status is UNSUPPORTED


def test_page_placement_that_the_kernel_lacks_or_nobody_wants() -> None:
    lacking = ReadError("move_pages 7", Reason.UNSUPPORTED, "Function not implemented")
    assert check(diagnose(around=healthy_around(page_placement=lacking)), "page_placement").status is UNSUPPORTED
    config = Config(numa=NumaConfig(enabled=False))
    assert check(diagnose(config=config), "page_placement").status is UNSUPPORTED


@pytest.mark.parametrize(
    ("reason", "capabilities", "fix"),
    [
        (Reason.DENIED, NONE, "SYSLOG"),
        (Reason.DENIED, f"{1 << CAPABILITIES.index('SYSLOG'):016x}", "DAC_READ_SEARCH"),
        (Reason.UNAVAILABLE, NONE, "host.kernel_log: null"),
    ],
)
def test_the_kernel_log_names_what_keeps_it_closed(reason: Reason, capabilities: str, fix: str) -> None:
    around = healthy_around(kernel_log=ReadError("/dev/kmsg", reason, "why"))
    found = check(diagnose(own_status(status(capabilities)), around=around), "kernel_log")
    assert (found.status, found.detail) == (MISSING, "/dev/kmsg: why")
    assert fix in found.fix


def test_a_kernel_log_that_is_not_wanted_is_no_problem() -> None:
    config = Config(host=HostConfig(kernel_log=None))
    assert check(diagnose(config=config), "kernel_log").status is UNSUPPORTED


def test_capabilities_by_name() -> None:
    assert Self.parse(b"CapEff:\t000001ffffffffff\n").capabilities == CAPABILITIES
    assert Self.parse(b"CapEff:\t0000000400080000\n").capabilities == ("SYS_PTRACE", "SYSLOG")


@given(st.binary(max_size=300))
def test_any_status_file_is_understood_or_left_out(data: bytes) -> None:
    own = Self.parse(data)
    assert set(own.capabilities) <= set(CAPABILITIES)


@pytest.mark.parametrize("content", ["CapEff: zz\n", "CapEff:\n", "NSpid\n", ""])
def test_a_status_that_says_nothing_claims_nothing(content: str) -> None:
    assert Self.parse(content.encode()) == Self()
    files = healthy_files()
    files.vanish("proc/self/status")
    assert Self.read(files) == Self()


@pytest.mark.parametrize(
    ("changes", "id_", "expected"),
    [
        ({"open_files": 256}, "open_files", DEGRADED),
        ({"open_files": -1}, "open_files", OK),
        ({"listen": "Address already in use"}, "listen", MISSING),
        ({"listen": "Address already in use", "already_running": True}, "listen", OK),
    ],
)
def test_what_gpumon_itself_needs(changes: dict[str, object], id_: str, expected: Status) -> None:
    assert check(diagnose(around=healthy_around(**changes)), id_).status is expected


@pytest.mark.parametrize(("source", "expected"), [("hpet", DEGRADED), ("tsc", OK), ("kvm-clock", OK)])
def test_a_slow_clock_is_told(source: str, expected: Status) -> None:
    files = healthy_files()
    files.put("sys/devices/system/clocksource/clocksource0/current_clocksource", f"{source}\n")
    assert check(diagnose(files), "clock").status is expected


def test_what_the_configuration_changes_is_listed() -> None:
    assert check(diagnose(), "configuration").detail == "all defaults"
    config = Config(numa=NumaConfig(sample_pages=64))
    assert check(diagnose(config=config), "configuration").detail == "sets numa.sample_pages"


@pytest.mark.parametrize("name", NAMES)
def test_every_fixture_host_gets_a_whole_report(name: str) -> None:
    report = diagnose(FakeFiles(fixture_files(name)))
    assert len({found.id for found in report.checks}) == len(report.checks)
    assert report.exit_code in (0, 1)


DENIED_SOCKET = PodResourcesError(Reason.DENIED, "kubelet.sock: Permission denied")


@pytest.mark.parametrize(
    ("around", "status", "said"),
    [
        ({"kubelet": Answer((), 31, "v1")}, OK, "v1: 31 pods, 0 with devices"),
        ({"kubelet": DENIED_SOCKET}, MISSING, "uid 0"),
        ({"kubelet": PodResourcesError(Reason.UNAVAILABLE, "no socket")}, MISSING, "mount the folder"),
        ({"kubelet": PodResourcesError(Reason.TIMEOUT, "no answer")}, MISSING, "kubelet's log"),
        ({"environ": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}}, MISSING, "mount the folder"),
    ],
)
def test_pods_by_the_kubelets_answer(around: dict[str, object], status: Status, said: str) -> None:
    found = check(diagnose(around=healthy_around(**around)), "pods")
    assert found.status is status
    assert said in f"{found.detail} {found.fix}"


def test_a_machine_without_kubernetes_is_not_asked_for_pods() -> None:
    assert "pods" not in {check.id for check in diagnose().checks}
