"""The probe of NVML, in a process of its own: ``python -m gpumon.doctor.probe '{...}'``, started by ``facts``.

Reads every GPU once through the very sources that ``gpumon run`` uses, so that the doctor calls supported what the
daemon will export. One thread opens the driver, one thread per GPU asks it; whoever is inside a call for too long is
reported as stuck in that function and left behind. The answer is one JSON document on a descriptor of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from gpumon.catalogue import GPU_FIELD_SUPPORTED, GPU_INFO, GPU_RECOVERY_ACTION
from gpumon.doctor.facts import OUT_OF_RANGE, CallError, GpuFacts, NvmlFacts, ProbeRequest
from gpumon.host.files import Files
from gpumon.host.host_files import HostFiles
from gpumon.host.nvml import DRIVER_GONE, NEVER, UUID, CallTimes, Code, Device, Nvml, NvmlError, code_name
from gpumon.host.nvml_driver import NvmlDriver
from gpumon.model import Item, Miss, Reason, Rejection, Sample
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu import GpuSlow
from gpumon.sources.gpu_fast import GpuFast
from gpumon.sources.gpu_inventory import GpuInventory
from gpumon.sources.gpu_processes import GpuProcesses
from gpumon.sources.gpu_state import GpuState
from gpumon.sources.mig import Mig

GPM_S = 0.15
"""Between two GPM samples; the driver wants more than 0.1 s."""
POLL_S = 0.02
LOADING = "loading the library"


def examine(nvml: Nvml, files: Files, open_s: float, call_s: float) -> NvmlFacts:
    """Everything NVML tells, in at most ``open_s`` for opening and as much again for the GPUs."""
    facts = NvmlFacts(stuck=LOADING)  # until the opener is past each call that may hang
    devices: list[tuple[Device, GpuFacts]] = []
    opener = _start(lambda: _open(nvml, facts, devices), "open")
    if not _wait(opener, open_s):
        return facts
    facts.stuck = ""
    if facts.error is not None:
        return facts
    threads = [(_start(_asking(nvml, files, device, gpu), f"gpu-{gpu.index}"), device, gpu) for device, gpu in devices]
    until_s = time.monotonic() + open_s
    for thread, device, gpu in threads:
        while thread.is_alive():
            name = _stuck_in(device.calls, call_s)
            if name or time.monotonic() > until_s:
                gpu.stuck = name or device.calls.name or "no single call"
                break
            thread.join(POLL_S)
    if not any(gpu.stuck for gpu in facts.gpus):
        with suppress(NvmlError):  # the answer is known; a driver that will not be shut down changes nothing
            nvml.close()
    return facts


def _open(nvml: Nvml, facts: NvmlFacts, devices: list[tuple[Device, GpuFacts]]) -> None:
    began_s = time.monotonic()
    try:
        nvml.open()
        facts.open_s = round(time.monotonic() - began_s, 3)
        facts.stuck = "nvmlSystemGetDriverVersion"
        driver = nvml.driver()
        facts.driver_version = driver.driver_version or ""
        facts.nvml_version = driver.nvml_version or ""
        facts.cuda_version = driver.cuda_version or ""
        facts.stuck = "nvmlDeviceGetCount_v2"
        count = nvml.device_count()
        facts.count = count
        for index in range(min(count, 64)):
            gpu = GpuFacts(index)
            facts.gpus.append(gpu)
            facts.stuck = f"nvmlDeviceGetHandleByIndex_v2 of GPU {index}"
            try:
                device = nvml.device(index)
                gpu.uuid = nvml.text(device, UUID)
                devices.append((device, gpu))
            except NvmlError as error:
                if error.code in DRIVER_GONE:
                    raise
                gpu.error = _call_error(error)
    except NvmlError as error:
        facts.error = _call_error(error)


def _asking(nvml: Nvml, files: Files, device: Device, gpu: GpuFacts) -> Callable[[], None]:
    def ask() -> None:
        try:
            _read_gpu(nvml, files, device, gpu)
        except NvmlError as error:
            gpu.error = _call_error(error)

    return ask


def _read_gpu(nvml: Nvml, files: Files, device: Device, gpu: GpuFacts) -> None:
    """One pass of every source of this GPU. Raises NvmlError when the GPU or the driver is gone."""
    at_s = time.monotonic()
    labels = (str(device.index), gpu.uuid)
    capabilities = Capabilities("gpu")
    state = GpuState()
    fast = GpuFast(nvml, device, capabilities)
    mig = Mig(nvml, device, labels, capabilities, state)
    inventory = GpuInventory(nvml, device, labels, capabilities, files)
    slow = GpuSlow(nvml, device, labels, capabilities, state)
    try:
        fast.row(at_s)
        time.sleep(GPM_S)
        fast.row(at_s)
        _take(gpu, [*inventory.read(at_s), *fast.take_rejections()])
        _take(gpu, slow.read(at_s))
        _take(gpu, mig.read(at_s))
        gpu.mig_devices = len(mig.instances())
        processes, problems = GpuProcesses(nvml, device, labels, capabilities, mig.instances).read_processes(at_s)
        # No list at all looks like an empty one: the capability tells them apart.
        gpu.pids = sorted({process.pid for process in processes})
        gpu.processes = len(processes) if capabilities.supported("processes:compute") or gpu.mig_devices else None
        _take(gpu, [*problems, *capabilities.take()])
        _take(gpu, capabilities.samples(labels))
        gpu.xid_events = _xid_events(nvml, device)
    finally:
        for part in (fast, mig):
            with suppress(NvmlError):  # the GPU may have gone meanwhile; then nothing is left to free
                part.close()


def _take(gpu: GpuFacts, items: Iterable[Item]) -> None:
    for item in items:
        if isinstance(item, Sample):
            _take_sample(gpu, item)
        elif isinstance(item, Rejection):
            _note(gpu.failed, f"{item.field}: {OUT_OF_RANGE}")
        elif isinstance(item, Miss):
            what = item.what.split(" ", 2)[-1] if item.what.startswith("gpu ") else item.what
            if item.reason is Reason.DENIED:
                _note(gpu.denied, what)
            elif item.reason is not Reason.UNSUPPORTED and not what.endswith("numa_node"):
                _note(gpu.failed, f"{what}: {item.detail}")


def _take_sample(gpu: GpuFacts, sample: Sample) -> None:
    if sample.metric is GPU_INFO:
        labels = dict(zip(GPU_INFO.labels, sample.labels, strict=True))
        gpu.name, gpu.pci_bus_id = labels["name"], labels["pci_bus_id"]
        gpu.architecture, gpu.mig_mode = labels["architecture"], labels["mig_mode"]
        gpu.activity = labels["activity_source"]
    elif sample.metric is GPU_FIELD_SUPPORTED:
        _note(gpu.supported if sample.value else gpu.unsupported, sample.labels[2])
    elif sample.metric is GPU_RECOVERY_ACTION and isinstance(sample.value, float):
        gpu.recovery_action = int(sample.value)


def _note(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def _xid_events(nvml: Nvml, device: Device) -> str:
    try:
        events = nvml.events()
    except NvmlError as error:
        return "no" if error.code in NEVER else "failed"
    try:
        return "yes" if events.register(device) else "no"
    except NvmlError as error:
        if error.code in NEVER:
            return "no"
        return "denied" if error.code == Code.NO_PERMISSION else "failed"
    finally:
        with suppress(NvmlError):  # ends with the process
            events.close()


def _start(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _wait(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()


def _stuck_in(calls: CallTimes, call_s: float) -> str | None:
    name, started_ns = calls.name, calls.started_ns
    return name if name is not None and time.monotonic() - started_ns / 1e9 > call_s else None


def _call_error(error: NvmlError) -> CallError:
    return CallError(error.code, code_name(error.code), error.function)


def _loaded_library() -> str:
    """File behind the loaded NVML, from this process's own mappings."""
    try:
        with open("/proc/self/maps") as maps:
            paths = [line.split(None, 5)[5].strip() for line in maps if "libnvidia-ml" in line]
    except (OSError, IndexError):
        return ""
    return paths[0] if paths else ""


def main() -> None:
    """Answer and end at once: a thread that hangs in the driver must not be waited for."""
    request = ProbeRequest.from_argument(sys.argv[1])
    files = HostFiles(procfs=request.procfs, sysfs=request.sysfs, cgroupfs=request.cgroupfs)
    facts = examine(NvmlDriver(request.library or None), files, request.open_s, request.call_s)
    facts.library = _loaded_library()
    if facts.stuck == LOADING and facts.library:
        facts.stuck = "nvmlInitWithFlags"
    with os.fdopen(request.answer_fd, "w") as answer:
        answer.write(facts.to_json())
    os._exit(0)


if __name__ == "__main__":
    main()
