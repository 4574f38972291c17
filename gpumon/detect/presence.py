"""GPUs that do not answer any more, and a driver that does not fit its library.

From ``gpumon_gpu_present``, the state of NVML and the return code it failed with. A GPU that is lost while NVML runs is
found within seconds. Where NVML itself is unavailable or stuck, no GPU answers, and that is one incident of the node,
after a time in which a driver is restarted; while it was released on purpose, or starts, nothing is said, and neither
on a node on which no GPU ever answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.detector import Entity, Evidence, Finding, IncidentKind, Severity, gpu_entity
from gpumon.detect.hysteresis import Held
from gpumon.detect.scene import Scene
from gpumon.model import Unit

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""

MISMATCH: Final = "LIB_RM_VERSION_MISMATCH"
_NODE: Final = Entity("host", "all GPUs")
_DRIVER: Final = Entity("host", "driver")


class GpuLost:
    """A GPU that answered and does not any more."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "gpu_lost",
            "A GPU that answered before is lost, or a call to it hangs, for `on_s` while NVML runs; or NVML has been "
            "unavailable or stuck for `all_s`, for another reason than a mismatch of versions.",
            (Severity.CRITICAL,),
            "Drain the node. Look for XID 79 or 119 in the kernel log (dmesg | grep -i xid); try a reset of the GPU "
            "(nvidia-smi --gpu-reset -i GPU), then a power cycle: a warm reboot often does not bring it back. Have it "
            "replaced if it happens again.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "on_s": "Lost for this long while NVML runs; seconds. One hung call of the driver takes less.",
        "all_s": "NVML unavailable or stuck for this long; seconds. Loading another driver takes 5 to 15.",
    }

    def __init__(self, *, on_s: float = 3.0, all_s: float = 20.0) -> None:
        self._lost: Held[Gpu] = Held(on_s=on_s, off_s=0.0)
        self._all: Held[Entity] = Held(on_s=all_s, off_s=0.0)

    def step(self, scene: Scene) -> Iterator[Finding]:
        present = scene.values(catalogue.GPU_PRESENT)
        state = _state(scene)
        is_down = state in ("unavailable", "stuck") and bool(present) and MISMATCH not in _codes(scene)
        since_s = self._all.feed(_NODE, is_down, scene.at_s)
        if since_s is not None:
            yield Finding(
                "gpu_lost",
                _NODE,
                Severity.CRITICAL,
                since_s,
                f"NVML is {state}: none of {len(present)} GPUs answers{''.join(f', {code}' for code in _codes(scene))}",
                (Evidence("gpus_answering", 0.0, Unit.NONE, float(len(present))),),
            )
        self._lost.keep(present)
        if state != "running":
            return  # then every GPU is told absent, and that says nothing of one
        answering = float(sum(value > 0 for value in present.values()))
        for gpu, value in present.items():
            since_s = self._lost.feed(gpu, value <= 0, scene.at_s)
            if since_s is not None:
                yield _lost(scene, gpu, since_s, answering, float(len(present)))


class DriverMismatch:
    """The kernel's driver is of another version than the library."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "driver_mismatch",
            "NVML has been unavailable for `on_s` because the driver in the kernel and its library are of different "
            "versions.",
            (Severity.CRITICAL,),
            "The driver was upgraded under a running system (often by unattended upgrades): what runs goes on, nothing "
            "new can start. Drain the node and reboot it, or stop all users of the GPUs and reload the nvidia modules. "
            "Hold back the driver's packages on GPU nodes.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "on_s": "For this long; seconds. In the middle of an upgrade the two differ for a few.",
    }

    def __init__(self, *, on_s: float = 20.0) -> None:
        self._held: Held[Entity] = Held(on_s=on_s, off_s=0.0)

    def step(self, scene: Scene) -> Iterator[Finding]:
        is_true = _state(scene) == "unavailable" and MISMATCH in _codes(scene)
        since_s = self._held.feed(_DRIVER, is_true, scene.at_s)
        if since_s is not None:
            yield Finding(
                "driver_mismatch",
                _DRIVER,
                Severity.CRITICAL,
                since_s,
                "the driver in the kernel and its library are of different versions: no GPU can be opened",
                (Evidence("unavailable", scene.at_s - since_s, Unit.SECONDS),),
            )


def _state(scene: Scene) -> str:
    """NVML's; empty where nobody tells."""
    return next((labels[0] for labels, value in scene.values(catalogue.NVML_STATE).items() if value > 0), "")


def _codes(scene: Scene) -> list[str]:
    """NVML's return code, where it is unavailable for one: one or none."""
    return [labels[0] for labels in scene.values(catalogue.NVML_ERROR)]


def _lost(scene: Scene, gpu: Gpu, since_s: float, answering: float, known: float) -> Finding:
    # What the kernel log or an event told of it before tells more than that it is gone.
    last = max(
        ((value, labels[2]) for labels, value in scene.values(catalogue.GPU_XID_LAST).items() if labels[:2] == gpu),
        default=None,
    )
    evidence = [Evidence("gpus_answering", answering, Unit.NONE, known)]
    text = f"GPU {gpu[0]} does not answer"
    if last is not None:
        text += f"; its last XID was {last[1]}"
        if last[1].isdecimal():
            evidence.append(Evidence("last_xid", float(last[1]), Unit.NONE))
    return Finding("gpu_lost", gpu_entity(gpu), Severity.CRITICAL, since_s, text, tuple(evidence))
