"""What gpumon sees of another user's process with the privileges of each profile of the chart, and with fewer.

The image's own files, uid, capabilities and pid namespace; this machine's /proc; a fake NVML; a /sys with two NUMA
nodes, since on one there is nothing to place. Each capability is there for something, and without it that is missing,
counted, and said once with the name of what would help.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from scripts.image_steps import Image, Profile
from tests.deploy.image import ImageDaemon, built, nvml_of
from tests.deploy.privileges import PYTHON, Holder, Pod, Seen, look
from tests.e2e.traces.gateway import OTLP
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc, ProcUtil
from tests.fakenvml.profiles import PCI_BUSES
from tests.fixtures.hosts import fixture_folder

pytestmark = pytest.mark.slow

METRICS, FULL = (Pod.of_chart({"profile": name}) for name in ("metrics", "full"))
NVML = {"gpumon_process_gpu_memory_bytes", "gpumon_process_gpu_sm_ratio"}
SIGHT = {
    "gpumon_process_cgroup_cpu_throttled_seconds",
    "gpumon_process_cpu_seconds",
    "gpumon_process_cpus_local_ratio",
    "gpumon_process_page_faults",
    "gpumon_process_resident_bytes",
    "gpumon_process_runqueue_wait_seconds",
    "gpumon_process_stopped_seconds",
    "gpumon_process_threads",
}
"""Need hostPID and no capability. Pressure stalls too, where the machine's cgroups count them."""
PRESSURE = {"gpumon_process_cgroup_pressure_stalled_seconds"}
PLACED = {"gpumon_process_numa_local_ratio", "gpumon_process_numa_resident_bytes"}
NO_PTRACE = {"binding", "numa", "servers"}
"""Sources that lack something without SYS_PTRACE; the last finds servers by their sockets."""
MOVE_PAGES = {"x86_64": 279, "aarch64": 239}[platform.machine()]
# As the default profiles of containerd and Docker: this one call is refused with EPERM.
REFUSE_MOVE_PAGES = f"""
import ctypes, os, struct, sys
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, {MOVE_PAGES}), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def image() -> Image:
    return built()


@pytest.fixture(scope="module")
def holder(image: Image) -> Iterator[Holder]:
    """Of uid 1234."""
    with Holder(image) as running:
        status = Path(f"/proc/{running.pid}/status").read_text()
        assert "Uid:\t1234\t1234\t1234\t1234" in status
        yield running


@pytest.fixture
def node(tmp_path: Path, holder: Holder) -> Iterator[FakeNode]:
    """Two H200; the process holds the first."""
    with FakeNode.create(tmp_path / "node", profile="h200", count=8) as fake:
        fake.gpu(0).set_processes([Proc(holder.pid, 2**33)])
        fake.gpu(0).set_process_utilization([ProcUtil(holder.pid, sm=60, mem=30)])
        yield fake


def seen(
    image: Image,
    folder: Path,
    node: FakeNode,
    holder: Holder,
    pod: Pod,
    denied: Collection[str],
    prefix: tuple[str, ...] = (),
) -> Seen:
    """By a gpumon in this pod, once these sources are denied something."""
    config, sysfs = folder / "config", folder / "sys"
    config.mkdir()
    (config / "gpumon.yaml").write_text(yaml.safe_dump(pod.config))
    shutil.copytree(fixture_folder("h200") / "sys", sysfs)
    gpu = sysfs / f"bus/pci/devices/0000:{PCI_BUSES[0]:02x}:00.0"
    gpu.mkdir()
    (gpu / "numa_node").write_text("0\n")
    (gpu / "local_cpulist").write_text("0-1\n")
    binds = {config: "/run/config", sysfs: "/run/sysfs", Path("/sys/fs/cgroup"): "/host/cgroup"}
    options = {**OTLP, "GPUMON_CADENCE__NUMA_S": "1", "GPUMON_STATE__FOLDER": ""}
    arguments = ("--config=/run/config/gpumon.yaml", "--sysfs=/run/sysfs")
    with ImageDaemon(
        image, folder, node, *arguments, profile=pod.profile, options=options, binds=binds, prefix=prefix
    ) as gpumon:
        return look(gpumon, holder, denied)


def without(pod: Pod, *capabilities: str) -> Pod:
    left = tuple(name for name in pod.profile.capabilities if name not in capabilities)
    return replace(pod, profile=replace(pod.profile, capabilities=left))


def test_profile_full_sees_everything(image: Image, tmp_path: Path, node: FakeNode, holder: Holder) -> None:
    found = seen(image, tmp_path, node, holder, FULL, ())
    assert found.families - PRESSURE == NVML | SIGHT | PLACED
    assert (found.denied, found.unbound) == (set(), "")


def test_without_sys_ptrace_pages_are_not_placed_and_senders_not_found(
    image: Image, tmp_path: Path, node: FakeNode, holder: Holder
) -> None:
    found = seen(image, tmp_path, node, holder, without(FULL, "sys_ptrace"), NO_PTRACE)
    assert found.families - PRESSURE == NVML | SIGHT
    assert (found.denied, found.unbound) == (NO_PTRACE, "denied")
    [line] = found.warnings(f"numa: pid {holder.pid} placement")
    assert f"proc/{holder.pid}/maps" in line
    assert "CAP_SYS_PTRACE" in line
    [line] = found.warnings("binding: owners of connections")
    assert "CAP_SYS_PTRACE" in line


def test_without_dac_read_search_senders_are_not_found(
    image: Image, tmp_path: Path, node: FakeNode, holder: Holder
) -> None:
    found = seen(image, tmp_path, node, holder, without(FULL, "dac_read_search"), {"binding"})
    assert found.families - PRESSURE == NVML | SIGHT | PLACED
    assert (found.denied, found.unbound) == ({"binding"}, "denied")
    [line] = found.warnings("binding: owners of connections")
    assert "CAP_DAC_READ_SEARCH" in line


@pytest.mark.parametrize("user", ["0:0", "65534:65534"])
def test_without_a_capability_root_and_nobody_see_the_same(
    image: Image, tmp_path: Path, node: FakeNode, holder: Holder, user: str
) -> None:
    pod = replace(FULL, profile=Profile(user, host_pid=True))
    found = seen(image, tmp_path, node, holder, pod, NO_PTRACE)
    assert found.families - PRESSURE == NVML | SIGHT
    assert (found.denied, found.unbound) == (NO_PTRACE, "denied")


def test_capabilities_that_are_added_for_another_user_than_root_are_none(
    image: Image, tmp_path: Path, node: FakeNode, holder: Holder
) -> None:
    pod = replace(FULL, profile=replace(FULL.profile, user="65534:65534"))
    found = seen(image, tmp_path, node, holder, pod, NO_PTRACE)
    assert found.families - PRESSURE == NVML | SIGHT
    assert found.denied == NO_PTRACE


def test_profile_metrics_sees_the_gpus_and_what_nvml_says_of_their_processes(
    image: Image, tmp_path: Path, node: FakeNode, holder: Holder
) -> None:
    found = seen(image, tmp_path, node, holder, METRICS, ())
    assert found.families == NVML
    assert found.denied == set()
    assert found.unbound in ("no_identity", "no_process")
    [line] = found.warnings("gpu_holders: gpu processes")
    assert "hostPID" in line


def test_a_seccomp_profile_as_runtimes_have_by_default_hides_the_placement_of_pages_alone(
    image: Image, tmp_path: Path, node: FakeNode, holder: Holder
) -> None:
    prefix = (PYTHON, "-c", REFUSE_MOVE_PAGES)
    found = seen(image, tmp_path, node, holder, FULL, {"numa"}, prefix)
    assert found.families - PRESSURE == NVML | SIGHT
    assert (found.denied, found.unbound) == ({"numa"}, "")
    [line] = found.warnings(f"numa: pid {holder.pid} placement")
    assert "seccomp" in line


def test_with_that_seccomp_profile_numa_maps_do_as_well(
    image: Image, tmp_path: Path, node: FakeNode, holder: Holder
) -> None:
    prefix = (PYTHON, "-c", REFUSE_MOVE_PAGES)
    pod = replace(FULL, config={**FULL.config, "numa": {"exact": True}})
    found = seen(image, tmp_path, node, holder, pod, (), prefix)
    assert found.families - PRESSURE == NVML | SIGHT | PLACED
    assert found.denied == set()


@pytest.mark.parametrize(
    ("profile", "lacking"),
    [
        (FULL.profile, {}),
        (without(FULL, "sys_ptrace").profile, {"page_placement": "SYS_PTRACE", "senders": "SYS_PTRACE"}),
        (without(FULL, "dac_read_search").profile, {"senders": "DAC_READ_SEARCH"}),
        (Profile(host_pid=True), {"page_placement": "SYS_PTRACE", "senders": "DAC_READ_SEARCH"}),
        (
            METRICS.profile,
            {"pid_namespace": "hostPID", "page_placement": "SYS_PTRACE", "senders": "SYS_PTRACE"},
        ),
    ],
    ids=["full", "no-ptrace", "no-dac", "none", "metrics"],
)
def test_the_doctor_names_what_is_missing(
    image: Image, tmp_path: Path, node: FakeNode, profile: Profile, lacking: dict[str, str]
) -> None:
    binds, variables = nvml_of(node, tmp_path)
    command = image.command(["doctor", "--json"], profile=profile, environment=variables, binds=binds)
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    checks = {check["id"]: check for check in json.loads(answer.stdout)["checks"]}
    asked = ("pid_namespace", "page_placement", "senders", "hidepid", "schedstat")
    assert {name for name in asked if checks[name]["status"] != "ok"} == set(lacking)
    for name, word in lacking.items():
        assert word in checks[name]["fix"], name
