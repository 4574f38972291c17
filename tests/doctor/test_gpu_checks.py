"""What the doctor makes of NVML's answers: status, detail and advice of each check, from facts alone."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.config import Config, NvmlConfig
from gpumon.doctor.driver_checks import module_version
from gpumon.doctor.facts import NvmlFacts
from gpumon.doctor.report import Status
from gpumon.doctor.surroundings import DeviceNode
from gpumon.host.nvml import Code
from gpumon.sampler.child import ADVICE
from tests.doctor.machines import (
    call_error,
    check,
    diagnose,
    failing_nvml,
    healthy_around,
    healthy_files,
    healthy_gpu,
    healthy_nvml,
)


def test_a_healthy_machine_has_no_problem() -> None:
    report = diagnose()
    assert report.problems == ()
    assert report.exit_code == 0
    assert {check.status for check in report.checks} == {Status.OK}


@pytest.mark.parametrize("code", ADVICE)
def test_nvml_that_does_not_open_gives_the_samplers_own_advice_and_exit_code_3(code: Code) -> None:
    report = diagnose(facts=failing_nvml(code))
    found = check(report, "nvml")
    assert (found.status, found.detail) == (Status.MISSING, f"nvmlInitWithFlags: {code.name}")
    assert found.fix.startswith(ADVICE[code])
    assert report.exit_code == 3


def test_nvml_that_opens_and_has_no_gpu_that_answers_is_exit_code_3() -> None:
    gpus = [healthy_gpu(index) for index in range(2)]
    gpus[0].error = call_error(Code.GPU_IS_LOST)
    assert diagnose(facts=healthy_nvml(*gpus)).exit_code == 1
    gpus[1].stuck = "nvmlDeviceGetName"
    assert diagnose(facts=healthy_nvml(*gpus)).exit_code == 3
    none = healthy_nvml()
    none.count, none.gpus = 0, []
    assert diagnose(facts=none).exit_code == 3


def test_a_code_without_advice_still_says_where_to_look() -> None:
    assert "NVRM" in check(diagnose(facts=failing_nvml(Code.MEMORY)), "nvml").fix


def test_a_driver_that_hangs_is_named_with_the_function_it_hangs_in() -> None:
    report = diagnose(facts=NvmlFacts(stuck="nvmlInitWithFlags"))
    assert "stuck in nvmlInitWithFlags" in check(report, "nvml").detail
    assert report.exit_code == 3


def test_a_probe_that_crashed_says_how() -> None:
    assert "SIGSEGV" in check(diagnose(facts=NvmlFacts(died="it died of SIGSEGV")), "nvml").detail


def test_nvml_turned_off_is_no_problem_and_the_host_decides() -> None:
    off = Config(nvml=NvmlConfig(enabled=False))
    report = diagnose(config=off)
    assert check(report, "nvml").status is Status.UNSUPPORTED
    assert report.exit_code == 0
    files = healthy_files()
    files.vanish("proc/vmstat")
    assert diagnose(files, config=off).exit_code == 3


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        ("NVIDIA_VISIBLE_DEVICES", "void", "hides every GPU"),
        ("NVIDIA_VISIBLE_DEVICES", "", "hides every GPU"),
        ("NVIDIA_DRIVER_CAPABILITIES", "compute", "without utility"),
    ],
)
def test_a_container_that_hides_the_driver_is_told_which_variable_does(variable: str, value: str, hint: str) -> None:
    around = healthy_around(environ={variable: value})
    fix = check(diagnose(facts=failing_nvml(Code.LIBRARY_NOT_FOUND), around=around), "nvml").fix
    assert variable in fix
    assert hint in fix


def test_variables_that_hide_nothing_are_not_blamed() -> None:
    around = healthy_around(environ={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"})
    fix = check(diagnose(facts=failing_nvml(Code.LIBRARY_NOT_FOUND), around=around), "nvml").fix
    assert fix == ADVICE[Code.LIBRARY_NOT_FOUND]


def test_a_machine_without_a_gpu_on_its_bus_is_told_how_to_do_without() -> None:
    files = healthy_files()
    files.put("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x8086\n")
    fix = check(diagnose(files, failing_nvml(Code.LIBRARY_NOT_FOUND)), "nvml").fix
    assert "nvml.enabled: false" in fix


def test_a_driver_container_is_pointed_at() -> None:
    around = healthy_around(driver_root=True)
    assert (
        "/run/nvidia/driver" in check(diagnose(facts=failing_nvml(Code.LIBRARY_NOT_FOUND), around=around), "nvml").fix
    )


def test_a_slow_opening_asks_for_persistence() -> None:
    facts = healthy_nvml()
    facts.open_s = 4.2
    found = check(diagnose(facts=facts), "nvml")
    assert (found.status, "4.2 s" in found.detail) == (Status.DEGRADED, True)
    assert "nvidia-persistenced" in found.fix


def test_a_library_of_another_release_than_the_kernel_module() -> None:
    facts = healthy_nvml()
    facts.nvml_version = "13.595.10"
    found = check(diagnose(facts=facts), "driver_versions")
    assert (found.status, found.detail) == (Status.DEGRADED, "kernel module 590.48.01, library 595.10")
    assert found.fix == ADVICE[Code.LIB_RM_VERSION_MISMATCH]


def test_a_mismatch_that_nvml_refuses_over_is_missing() -> None:
    report = diagnose(facts=failing_nvml(Code.LIB_RM_VERSION_MISMATCH))
    assert check(report, "driver_versions").status is Status.MISSING
    files = healthy_files()
    files.vanish("proc/driver/nvidia/version")
    assert (
        check(diagnose(files, failing_nvml(Code.LIB_RM_VERSION_MISMATCH)), "driver_versions").status is Status.MISSING
    )


def test_no_word_of_the_kernel_module_is_no_check() -> None:
    files = healthy_files()
    files.vanish("proc/driver/nvidia/version")
    assert "driver_versions" not in {check.id for check in diagnose(files).checks}


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Jun 10 2025\n", "535.261.03"),
        (b"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95  Release Build\n", "580.95"),
        (b"NVRM version: garbage\n", None),
        (b"", None),
        (b"\xff\xfe NVRM version: x 590.48.01 y", None),
    ],
)
def test_version_of_the_kernel_module(data: bytes, version: str | None) -> None:
    assert module_version(data) == version


@given(st.binary(max_size=400))
def test_any_version_file_gives_a_version_or_none(data: bytes) -> None:
    version = module_version(data)
    assert version is None or version.replace(".", "").isdigit()


def test_device_nodes_that_cannot_be_opened_are_named() -> None:
    around = healthy_around(device_nodes=(DeviceNode("nvidia0", usable=True), DeviceNode("nvidiactl", usable=False)))
    found = check(diagnose(facts=failing_nvml(Code.UNKNOWN), around=around), "gpu_devices")
    assert (found.status, found.detail) == (Status.MISSING, "no access to /dev/nvidiactl")
    assert found.fix == ADVICE[Code.NO_PERMISSION]


def test_no_device_nodes_matter_only_while_nvml_does_not_answer() -> None:
    around = healthy_around(device_nodes=())
    assert check(diagnose(around=around), "gpu_devices").status is Status.OK
    assert check(diagnose(facts=failing_nvml(Code.UNKNOWN), around=around), "gpu_devices").status is Status.MISSING


def test_gpus_that_are_lost_stuck_or_want_a_reset_are_named_each() -> None:
    lost, stuck, reset = healthy_gpu(1), healthy_gpu(2), healthy_gpu(3)
    lost.error = call_error(Code.GPU_IS_LOST)
    stuck.stuck = "nvmlDeviceGetMemoryInfo_v2"
    reset.recovery_action = 2
    report = diagnose(facts=healthy_nvml(healthy_gpu(0), lost, stuck, reset))
    found = check(report, "gpus")
    assert found.status is Status.DEGRADED
    for words in ("GPU 1 is lost", "GPU 2 is stuck in nvmlDeviceGetMemoryInfo_v2", "GPU 3 wants recovery"):
        assert words in found.detail
    assert ADVICE[Code.GPU_IS_LOST] in found.fix
    assert "reboot the node" in found.fix
    assert report.exit_code == 1


def test_a_gpu_that_answers_reset_required_wants_recovery_and_is_told_of_once() -> None:
    gpu = healthy_gpu()
    gpu.failed = ["utilization: RESET_REQUIRED"]
    report = diagnose(facts=healthy_nvml(gpu, healthy_gpu(1)))
    assert "GPU 0 wants recovery" in check(report, "gpus").detail
    assert check(report, "gpu_fields").status is Status.OK


def test_every_gpu_dead_is_missing() -> None:
    gpu = healthy_gpu()
    gpu.error = call_error(Code.GPU_IS_LOST)
    report = diagnose(facts=healthy_nvml(gpu))
    assert check(report, "gpus").status is Status.MISSING
    assert check(report, "activity").status is Status.UNSUPPORTED


def test_fewer_gpus_than_the_bus_shows_is_a_lost_gpu_or_a_container_that_hides_some() -> None:
    files = healthy_files()
    for name in ("vendor", "class"):
        files.put(f"sys/bus/pci/devices/0000:86:00.0/{name}", {"vendor": "0x10de", "class": "0x030200"}[name])
    assert check(diagnose(files), "gpus").fix == ADVICE[Code.GPU_IS_LOST]
    around = healthy_around(environ={"NVIDIA_VISIBLE_DEVICES": "0"})
    found = check(diagnose(files, around=around), "gpus")
    assert (found.status, found.detail.partition(" (")[0]) == (Status.DEGRADED, "the PCI bus shows 2, NVML 1")
    assert "NVIDIA_VISIBLE_DEVICES is '0'" in found.fix


def test_no_gpu_at_all_is_missing() -> None:
    files = healthy_files()
    files.vanish("sys/bus/pci/devices")
    facts = healthy_nvml()
    facts.count, facts.gpus = 0, []
    assert check(diagnose(files, facts), "gpus").status is Status.MISSING


def test_gpm_that_is_denied_names_the_capability() -> None:
    gpu = healthy_gpu()
    gpu.denied, gpu.activity = ["gpm"], "utilization"
    report = diagnose(facts=healthy_nvml(gpu))
    found = check(report, "activity")
    assert found.status is Status.DEGRADED
    assert "CAP_SYS_ADMIN" in found.fix
    assert check(report, "gpu_fields").status is Status.OK


def test_a_chip_without_gpm_is_no_problem() -> None:
    gpu = healthy_gpu()
    gpu.activity, gpu.architecture = "utilization", "ampere"
    report = diagnose(facts=healthy_nvml(gpu))
    assert "Ampere" in check(report, "activity").detail
    assert check(report, "activity").status is Status.UNSUPPORTED
    assert report.exit_code == 0


def test_fields_that_are_denied_fail_or_cannot_be_true_are_told_apart() -> None:
    gpu = healthy_gpu()
    gpu.failed = ["clock_max: out of range"]
    found = check(diagnose(facts=healthy_nvml(gpu)), "gpu_fields")
    assert (found.status, found.detail) == (
        Status.OK,
        "2 supported; refused as impossible: clock_max; not here: fan",
    )
    gpu.failed = ["bar1: UNKNOWN"]
    assert check(diagnose(facts=healthy_nvml(gpu)), "gpu_fields").status is Status.DEGRADED
    gpu.denied = ["process_utilization"]
    found = check(diagnose(facts=healthy_nvml(gpu)), "gpu_fields")
    assert (found.status, found.fix) == (Status.DEGRADED, ADVICE[Code.NO_PERMISSION])


def test_mig_instances_that_are_hidden_name_the_mount() -> None:
    gpu = healthy_gpu()
    gpu.mig_mode, gpu.denied = "enabled", ["mig_devices:0"]
    found = check(diagnose(facts=healthy_nvml(gpu)), "mig")
    assert found.status is Status.MISSING
    assert "NVIDIA_MIG_MONITOR_DEVICES=all" in found.fix


@pytest.mark.parametrize(
    ("mode", "instances", "status", "words"),
    [
        ("enabled", 7, Status.OK, "7 instances"),
        ("disabled", 0, Status.OK, "disabled"),
        ("unsupported", 0, Status.UNSUPPORTED, "none"),
        ("enabling", 0, Status.DEGRADED, "changing"),
    ],
)
def test_modes_of_mig(mode: str, instances: int, status: Status, words: str) -> None:
    gpu = dataclasses.replace(healthy_gpu(), mig_mode=mode, mig_devices=instances)
    found = check(diagnose(facts=healthy_nvml(gpu)), "mig")
    assert found.status is status
    assert words in found.detail


def test_xid_events_that_nvml_refuses_point_at_the_kernel_log() -> None:
    denied = dataclasses.replace(healthy_gpu(1), xid_events="denied")
    found = check(diagnose(facts=healthy_nvml(healthy_gpu(), denied)), "xid_events")
    assert (found.status, found.detail) == (Status.DEGRADED, "NVML will not register GPU 1")
    assert "kernel log" in found.fix
    without = dataclasses.replace(healthy_gpu(), xid_events="no")
    assert check(diagnose(facts=healthy_nvml(without)), "xid_events").status is Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("bindings", "namesake", "status"),
    [
        ("13.615.71", None, Status.OK),
        ("13.615.71", "13.0.1", Status.OK),
        ("13.615.71", "11.5.0", Status.DEGRADED),
        ("13.615.71", "8.0.4", Status.DEGRADED),
        (None, None, Status.MISSING),
    ],
)
def test_the_other_package_called_pynvml(bindings: str | None, namesake: str | None, status: Status) -> None:
    found = check(diagnose(around=healthy_around(bindings=bindings, namesake=namesake)), "pynvml")
    assert found.status is status
    assert ("nvidia-ml-py" in found.fix) == (status is not Status.OK)


def test_indices_are_told_shortly() -> None:
    gpus = [healthy_gpu(i) for i in range(8)]
    assert check(diagnose(facts=healthy_nvml(*gpus)), "activity").detail == "by GPM on GPUs 0-7"
    gpus[3].activity = "utilization"
    assert check(diagnose(facts=healthy_nvml(*gpus)), "activity").detail == (
        "by GPM on GPUs 0, 1, 2, 4, 5, 6, 7, busy time on GPU 3"
    )
