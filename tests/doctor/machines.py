"""Machines for the doctor: the files of a healthy host, facts of healthy GPUs, and a way to look at one check."""

from __future__ import annotations

from gpumon.config import Config
from gpumon.doctor.examination import conclude
from gpumon.doctor.facts import CallError, GpuFacts, NvmlFacts
from gpumon.doctor.report import Check, Report
from gpumon.doctor.surroundings import DeviceNode, Surroundings
from gpumon.host.nvml import Code
from tests.fakes import FakeFiles

STAT = "{} ({}) S 0 0 0 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
ALL_CAPABILITIES = "000001ffffffffff"
NONE = "0000000000000000"
MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build  (builder)\nGCC version: 12\n"
)


def status(capabilities: str = ALL_CAPABILITIES, ns_pids: str = "77", seccomp: int = 0) -> str:
    return f"Name:\tpython\nNSpid:\t{ns_pids}\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}\n"


def healthy_files() -> FakeFiles:
    """A node of one H200 as root on the host sees it: cgroup v2, two NUMA nodes."""
    bus = "sys/bus/pci/devices/0000:3b:00.0"
    return FakeFiles(
        {
            "proc/vmstat": "pgfault 100\npgmajfault 3\n",
            "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
            "proc/self/status": status(),
            "proc/self/schedstat": "123456 100 3\n",
            "proc/self/mounts": "proc /proc proc rw,nosuid 0 0\n",
            "proc/1/stat": STAT.format(1, "systemd"),
            "proc/1/cgroup": "0::/init.scope\n",
            "proc/2/stat": STAT.format(2, "kthreadd"),
            "proc/driver/nvidia/version": MODULE,
            "sys/devices/system/node/online": "0-1\n",
            "sys/devices/system/cpu/online": "0-95\n",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
            f"{bus}/vendor": "0x10de\n",
            f"{bus}/class": "0x030200\n",
            "cgroup/cgroup.controllers": "cpu memory\n",
            "cgroup/init.scope/cpu.stat": "usage_usec 1\n",
        },
        {"proc/self/ns/pid": "pid:[4026531836]", "proc/self/ns/cgroup": "cgroup:[4026531835]"},
    )


def healthy_gpu(index: int = 0) -> GpuFacts:
    return GpuFacts(
        index,
        uuid=f"GPU-{index}",
        name="NVIDIA H200",
        architecture="hopper",
        activity="gpm",
        mig_mode="disabled",
        xid_events="yes",
        processes=1,
        supported=["utilization", "power_average"],
        unsupported=["fan"],
    )


def healthy_nvml(*gpus: GpuFacts) -> NvmlFacts:
    gpus = gpus or (healthy_gpu(),)
    return NvmlFacts(
        library="/usr/lib/libnvidia-ml.so.1",
        open_s=0.3,
        driver_version="590.48.01",
        nvml_version="13.590.48.01",
        cuda_version="13.1",
        count=len(gpus),
        gpus=list(gpus),
    )


def failing_nvml(code: Code, function: str = "nvmlInitWithFlags") -> NvmlFacts:
    return NvmlFacts(error=call_error(code, function))


def call_error(code: Code, function: str = "nvmlDeviceGetHandleByIndex_v2") -> CallError:
    return CallError(code, code.name, function)


def healthy_around(**changes: object) -> Surroundings:
    nodes = (DeviceNode("nvidia0", usable=True), DeviceNode("nvidiactl", usable=True))
    return Surroundings(**{"device_nodes": nodes, "bindings": "13.615.71", **changes})  # type: ignore[arg-type]


def diagnose(
    files: FakeFiles | None = None,
    facts: NvmlFacts | None = None,
    around: Surroundings | None = None,
    config: Config | None = None,
) -> Report:
    """The report on a machine that is healthy but for what is given."""
    config = config or Config()
    if config.nvml.enabled:
        facts = facts or healthy_nvml()
    return conclude(config, files or healthy_files(), around or healthy_around(), facts)


def check(report: Report, id_: str) -> Check:
    return next(check for check in report.checks if check.id == id_)
