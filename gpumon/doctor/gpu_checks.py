"""Checks of the GPUs: from what the probe found and the PCI bus to statuses and advice.

Pure: values in, checks out. What only one chip generation has is ``unsupported`` elsewhere, never a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpumon import catalogue
from gpumon.catalogue import GROUPS
from gpumon.doctor.driver_checks import GPU_METRICS, SHOW_DEVICES, driver_checks, is_readable
from gpumon.doctor.facts import OUT_OF_RANGE, GpuFacts, NvmlFacts
from gpumon.doctor.report import Check, Status, checker, listed
from gpumon.doctor.surroundings import Surroundings
from gpumon.host.files import Files, ReadError
from gpumon.host.nvml import DEVICE_GONE, Code, code_name
from gpumon.sampler.child import ADVICE
from gpumon.sources.gpu_inventory import expected_gpus

_OFF = "off: nvml.enabled is false"
_GPM_METRICS = (
    catalogue.GPU_SM_ACTIVE,
    catalogue.GPU_DRAM_ACTIVE,
    catalogue.GPU_TENSOR_ACTIVE,
    catalogue.GPU_SM_ACTIVE_SECONDS,
    catalogue.GPU_DRAM_ACTIVE_SECONDS,
    catalogue.GPU_BOUND_SECONDS,
)
_RECOVERY = {  # NVML field 230
    1: "reset the GPU (nvidia-smi --gpu-reset)",
    2: "reboot the node",
    3: "drain the processes that use peer-to-peer memory",
    4: "drain the node and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the GPU's bus",
    7: "reboot the system",
}


def gpu_checks(facts: NvmlFacts | None, files: Files, around: Surroundings) -> list[Check]:
    """All checks of the section ``gpu``. ``facts``: None where the configuration turns NVML off."""
    if facts is None:
        return [Check("nvml", "gpu", "NVML", Status.UNSUPPORTED, _OFF, gives=GPU_METRICS)]
    checks = driver_checks(facts, files, around)
    if is_readable(facts):
        answering = [gpu for gpu in facts.gpus if gpu.error is None and not gpu.stuck]
        checks.append(_gpus(facts, files, around))
        checks += [look(answering) for look in (_activity, _fields, _mig, _xid_events, _processes)]
    return checks


def _gpus(facts: NvmlFacts, files: Files, around: Surroundings) -> Check:
    check = checker("gpus", "gpu", "GPUs", GPU_METRICS)
    count = facts.count or 0
    try:
        expected: int | None = expected_gpus(files)
    except ReadError:
        expected = None
    troubles: list[str] = []
    fixes: list[str] = []

    def trouble(text: str, fix: str) -> None:
        troubles.append(text)
        if fix not in fixes:
            fixes.append(fix)

    for gpu in facts.gpus:
        if gpu.stuck:
            trouble(f"GPU {gpu.index} is stuck in {gpu.stuck}", "look for Xid lines; drain the node, reset the GPU")
        elif gpu.error is not None:
            lost = gpu.error.code in DEVICE_GONE
            fix = ADVICE[Code.GPU_IS_LOST] if lost else ADVICE.get(gpu.error.code, "look for Xid lines of it")  # type: ignore[call-overload]
            trouble(f"GPU {gpu.index} {'is lost' if lost else f'answers {gpu.error.name}'}", fix)
        elif _wants_recovery(gpu):
            trouble(f"GPU {gpu.index} wants recovery", _RECOVERY.get(gpu.recovery_action, _RECOVERY[1]))
    if expected is not None and expected > count:
        visible = around.environ.get("NVIDIA_VISIBLE_DEVICES")
        hidden = visible is not None and visible != "all"
        fix = f"NVIDIA_VISIBLE_DEVICES is {visible!r}: {SHOW_DEVICES}" if hidden else ADVICE[Code.GPU_IS_LOST]
        trouble(f"the PCI bus shows {expected}, NVML {count}", fix)
    elif count == 0:
        trouble("NVML counts none", SHOW_DEVICES)
    dead = sum(1 for gpu in facts.gpus if gpu.error is not None or gpu.stuck)
    kinds = _counted(gpu.name or "unknown" for gpu in facts.gpus if gpu.name)
    if not troubles:
        return check(Status.OK, kinds or f"{count}")
    status = Status.MISSING if dead == count else Status.DEGRADED
    return check(status, listed(troubles, "; ") + (f" ({kinds} answer)" if kinds else ""), "; ".join(fixes))


def _wants_recovery(gpu: GpuFacts) -> bool:
    return gpu.recovery_action > 0 or any(failure.endswith(code_name(Code.RESET_REQUIRED)) for failure in gpu.failed)


def _activity(gpus: Sequence[GpuFacts]) -> Check:
    check = checker("activity", "gpu", "SM and DRAM activity", _GPM_METRICS)
    denied = [gpu for gpu in gpus if "gpm" in gpu.denied]
    if denied:
        return check(
            Status.DEGRADED,
            f"GPM is denied on {_indices(denied)}: only NVML's busy time is left",
            "run as root or with CAP_SYS_ADMIN, or load the module with NVreg_RestrictProfilingToAdminUsers=0",
        )
    with_gpm = [gpu for gpu in gpus if gpu.activity == "gpm"]
    if not gpus:
        return check(Status.UNSUPPORTED, "no GPU answers")
    if not with_gpm:
        return check(
            Status.UNSUPPORTED, f"no GPM on {_architectures(gpus)} (data center GPUs from Hopper on): busy time instead"
        )
    rest = (
        f", busy time on {_indices([gpu for gpu in gpus if gpu not in with_gpm])}" if len(with_gpm) < len(gpus) else ""
    )
    return check(Status.OK, f"by GPM on {_indices(with_gpm)}{rest}")


def _fields(gpus: Sequence[GpuFacts]) -> Check:
    check = checker("gpu_fields", "gpu", "GPU fields", (catalogue.GPU_FIELD_SUPPORTED,))
    if not gpus:
        return check(Status.UNSUPPORTED, "no GPU answers")
    denied = sorted({name for gpu in gpus for name in gpu.denied if name != "gpm" and not name.startswith("mig")})
    unsupported = sorted({name for gpu in gpus for name in gpu.unsupported})
    failed = [
        f"GPU {gpu.index} {failure}"
        for gpu in gpus
        if not _wants_recovery(gpu)  # told by the check of the GPUs
        for failure in gpu.failed
        if not failure.endswith(OUT_OF_RANGE)
    ]
    impossible = sorted(
        {failure.partition(":")[0] for gpu in gpus for failure in gpu.failed if OUT_OF_RANGE in failure}
    )
    notes = [f"{max(len(gpu.supported) for gpu in gpus)} supported"]
    if impossible:  # what a chip says wrongly no change would fix; gpumon_samples_rejected_total counts it
        notes.append(f"refused as impossible: {listed(impossible)}")
    if unsupported:
        notes.append(f"not here: {listed(unsupported)}")
    known = "; ".join(notes)
    if denied:
        return check(Status.DEGRADED, f"denied: {listed(denied)}; {known}", ADVICE[Code.NO_PERMISSION])
    if failed:
        fix = "look for Xid lines of the GPU; run doctor again: a value that fails once may be passing"
        return check(Status.DEGRADED, f"{listed(failed)}; {known}", fix)
    return check(Status.OK, known)


def _mig(gpus: Sequence[GpuFacts]) -> Check:
    check = checker("mig", "gpu", "MIG", GROUPS["MIG"])
    enabled = [gpu for gpu in gpus if gpu.mig_mode in ("enabled", "disabling")]
    if any(name.startswith(("mig_", "mig ")) for gpu in enabled for name in gpu.denied):
        return check(
            Status.MISSING,
            f"enabled on {_indices(enabled)}, and its instances are hidden",
            "in a container: NVIDIA_MIG_MONITOR_DEVICES=all with CAP_SYS_ADMIN; else give gpumon read access to "
            "/proc/driver/nvidia/capabilities/mig/monitor",
        )
    changing = [gpu for gpu in gpus if gpu.mig_mode in ("enabling", "disabling")]
    if changing:
        fix = "reset the GPU (nvidia-smi --gpu-reset) for the change of mode to take effect"
        return check(Status.DEGRADED, f"mode is changing on {_indices(changing)}", fix)
    if enabled:
        instances = sum(gpu.mig_devices for gpu in enabled)
        return check(Status.OK, f"enabled on {_indices(enabled)}, {instances} instances")
    possible = any(gpu.mig_mode == "disabled" for gpu in gpus)
    return check(Status.OK if possible else Status.UNSUPPORTED, "disabled" if possible else "these GPUs have none")


def _xid_events(gpus: Sequence[GpuFacts]) -> Check:
    check = checker("xid_events", "gpu", "XID events", (catalogue.GPU_XID_ERRORS, catalogue.GPU_XID_LAST))
    refused = [gpu for gpu in gpus if gpu.xid_events in ("denied", "failed")]
    if refused:
        fix = f"{ADVICE[Code.NO_PERMISSION]}; until then the kernel log tells of XIDs (see there)"
        return check(Status.DEGRADED, f"NVML will not register {_indices(refused)}", fix)
    registered = [gpu for gpu in gpus if gpu.xid_events == "yes"]
    if not registered:
        return check(Status.UNSUPPORTED, "no GPU has them: the kernel log remains")
    return check(Status.OK, f"registered for {_indices(registered)}")


def _processes(gpus: Sequence[GpuFacts]) -> Check:
    check = checker("gpu_processes", "gpu", "GPU processes", (catalogue.PROCESS_GPU_MEMORY, catalogue.PROCESS_GPU_SM))
    known = [gpu.processes for gpu in gpus if gpu.processes is not None]
    if gpus and not known:
        return check(Status.UNSUPPORTED, "NVML does not list them here")
    if not known:
        return check(Status.UNSUPPORTED, "no GPU answers")
    return check(Status.OK, f"{sum(known)} hold a GPU now")


# --- words ------------------------------------------------------------------------------------------------------------


def _indices(gpus: Sequence[GpuFacts]) -> str:
    numbers = [gpu.index for gpu in gpus]
    if len(numbers) == 1:
        return f"GPU {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"GPUs {numbers[0]}-{numbers[-1]}"
    return f"GPUs {listed(map(str, numbers), most=16)}"


def _architectures(gpus: Sequence[GpuFacts]) -> str:
    return " and ".join(sorted({gpu.architecture.capitalize() or "an unknown architecture" for gpu in gpus}))


def _counted(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
