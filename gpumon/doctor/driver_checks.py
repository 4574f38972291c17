"""Checks of the way to the driver: the bindings, the library, its answer, the device nodes, the kernel module.

Pure: values in, checks out. Advice for a state of NVML is the sampler's own (``sampler.child.ADVICE``), so that the
doctor and the daemon's log say the same.
"""

from __future__ import annotations

import re

from gpumon.catalogue import GROUPS
from gpumon.doctor.facts import CallError, NvmlFacts
from gpumon.doctor.report import Check, Status, checker, listed
from gpumon.doctor.surroundings import Surroundings
from gpumon.host.files import Files, ReadError
from gpumon.host.nvml import DRIVER_ROOT, Code
from gpumon.sampler.child import ADVICE
from gpumon.sources.gpu_inventory import expected_gpus

GPU_METRICS = tuple(
    metric
    for group in ("activity", "clocks and throttling", "power and heat", "memory", "links", "faults")
    for metric in GROUPS[group]
)
SHOW_DEVICES = "give the container every GPU: runtimeClassName nvidia, NVIDIA_VISIBLE_DEVICES=all"
_SLOW_OPEN_S = 2.0
_MODULE_VERSION = re.compile(r"^NVRM version: .*?\s(\d{3,4}\.\d+(?:\.\d+)?)\s", re.MULTILINE)


def driver_checks(facts: NvmlFacts, files: Files, around: Surroundings) -> list[Check]:
    """The checks in the order in which one would look."""
    checks = [_bindings(around), _nvml(facts, files, around), _device_nodes(facts, around)]
    if (module := _module(facts, files)) is not None:
        checks.append(module)
    return checks


def is_readable(facts: NvmlFacts) -> bool:
    """Whether NVML as a whole answered."""
    return facts.error is None and not facts.stuck and not facts.died


def module_version(data: bytes) -> str | None:
    """Version of the loaded kernel module, from /proc/driver/nvidia/version; None if it does not say."""
    found = _MODULE_VERSION.search(data.decode("utf-8", "replace"))
    return found.group(1) if found else None


def _bindings(around: Surroundings) -> Check:
    check = checker("pynvml", "gpu", "NVML bindings", GPU_METRICS)
    install = "pip install --force-reinstall 'nvidia-ml-py<14'"
    if around.bindings is None:
        return check(Status.MISSING, "the package nvidia-ml-py is not installed", install)
    if around.namesake is not None and _major(around.namesake) < 12:
        return check(
            Status.DEGRADED,
            f"the package pynvml {around.namesake} puts its own module over nvidia-ml-py {around.bindings}",
            f"pip uninstall -y pynvml && {install}",
        )
    beside = f"; pynvml {around.namesake} beside it does no harm" if around.namesake else ""
    return check(Status.OK, f"nvidia-ml-py {around.bindings}{beside}")


def _nvml(facts: NvmlFacts, files: Files, around: Surroundings) -> Check:
    check = checker("nvml", "gpu", "NVML", GPU_METRICS)
    if facts.stuck:
        return check(
            Status.MISSING,
            f"stuck in {facts.stuck}: the driver does not return",
            "look for Xid lines in the kernel log; drain and reboot the node. gpumon itself goes on without the GPUs",
        )
    if facts.died:
        fix = "look into the kernel log; a library of another driver release, or a broken one, may be on the path"
        return check(Status.MISSING, f"reading it failed: {facts.died}", fix)
    if facts.error is not None:
        detail = f"{facts.error.function}: {facts.error.name}"
        return check(Status.MISSING, detail, _advice(facts.error, files, around))
    versions = f"driver {facts.driver_version or '?'}, CUDA {facts.cuda_version or '?'}, {facts.library or '?'}"
    if facts.open_s > _SLOW_OPEN_S:
        return check(
            Status.DEGRADED,
            f"{versions}; took {facts.open_s:.1f} s to open",
            "keep the driver loaded: run nvidia-persistenced, or nvidia-smi -pm 1",
        )
    return check(Status.OK, versions)


def _advice(error: CallError, files: Files, around: Surroundings) -> str:
    """What to do about NVML as a whole not answering."""
    advice = ADVICE.get(error.code, "look into the kernel log (NVRM lines)")  # type: ignore[call-overload]
    hints = []
    if error.code == Code.LIBRARY_NOT_FOUND:
        if around.driver_root:
            hints.append(f"{DRIVER_ROOT} holds a driver's files: mount it, or name the library below it")
        try:
            if expected_gpus(files) == 0:
                hints.append("the PCI bus shows no NVIDIA GPU: where there is none, set nvml.enabled: false")
        except ReadError:
            pass  # without the bus there is no hint from it
    visible = around.environ.get("NVIDIA_VISIBLE_DEVICES")
    if visible in ("", "void", "none"):
        hints.append(f"NVIDIA_VISIBLE_DEVICES is {visible!r}, which hides every GPU")
    capabilities = around.environ.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities and not {"all", "utility"} & set(capabilities.split(",")):
        hints.append(f"NVIDIA_DRIVER_CAPABILITIES is {capabilities!r}, without utility")
    return "; ".join([advice, *hints])


def _device_nodes(facts: NvmlFacts, around: Surroundings) -> Check:
    check = checker("gpu_devices", "gpu", "Device nodes", GPU_METRICS)
    nodes = around.device_nodes
    closed = [node.name for node in nodes if not node.usable]
    if is_readable(facts) and not closed:
        numbered = sum(node.name[6:].isdigit() for node in nodes)
        return check(Status.OK, f"/dev/nvidiactl and {numbered} GPUs" if nodes else "none, and NVML answers without")
    if closed:
        status = Status.DEGRADED if is_readable(facts) else Status.MISSING
        names = listed(f"/dev/{name}" for name in closed)
        return check(status, f"no access to {names}", ADVICE[Code.NO_PERMISSION])
    if not nodes:
        fix = f"load the driver (modprobe nvidia; nvidia-modprobe makes the nodes); in a container: {SHOW_DEVICES}"
        return check(Status.MISSING, "there is no /dev/nvidia*", fix)
    return check(Status.OK, f"{len(nodes)} nodes can be opened")


def _module(facts: NvmlFacts, files: Files) -> Check | None:
    """The kernel module against the library; None where the kernel does not say and NVML works without it."""
    check = checker("driver_versions", "gpu", "Driver versions", GPU_METRICS)
    mismatch = ADVICE[Code.LIB_RM_VERSION_MISMATCH]
    mismatched = facts.error is not None and facts.error.code == Code.LIB_RM_VERSION_MISMATCH
    try:
        module = module_version(files.read("proc/driver/nvidia/version"))
    except ReadError:
        module = None
    if module is None:
        return check(Status.MISSING, "library and kernel module differ", mismatch) if mismatched else None
    # NVML's own version is the CUDA major before the library's release: 13.590.48.01.
    library = facts.nvml_version.partition(".")[2]
    if mismatched:
        return check(Status.MISSING, f"kernel module {module}, library of another release", mismatch)
    if library and library != module:
        return check(Status.DEGRADED, f"kernel module {module}, library {library}", mismatch)
    return check(Status.OK, f"kernel module {module}" + (", library the same" if library else ""))


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0
