"""What this gpumon can see and what it cannot, part by part, as it is just after its start.

Decides nothing anew: of the host it takes the checks of ``gpumon doctor`` with their words and their advice, of GPUs,
servers and the kubelet what the store says, told to the same checks. Pure but for the port to the host's files. Of a
simulated node only what is simulated is told: rights and folders of this machine are no concern of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from gpumon import catalogue
from gpumon.config import Config
from gpumon.config_types import parse_listen
from gpumon.doctor.facts import CallError, GpuFacts, NvmlFacts
from gpumon.doctor.gpu_checks import gpu_checks
from gpumon.doctor.host_checks import Self, host_checks
from gpumon.doctor.own_checks import own_checks
from gpumon.doctor.report import PROBLEMS, Check, Status
from gpumon.doctor.server_checks import ServersFound, server_check
from gpumon.doctor.surroundings import Surroundings
from gpumon.host.files import Files
from gpumon.host.nvml import Code
from gpumon.host.podresources import PodResourcesError
from gpumon.model import Miss, Reason
from gpumon.store import View
from gpumon.web.node_state import nvml, sources

STATES: Final = ("yes", "partly", "waits", "no", "none", "off")
"""waits: it may come by itself. none: this machine does not have it, and no change would bring it."""


class Seen(NamedTuple):
    """One part."""

    part: str
    state: str
    """One of STATES."""
    detail: str
    fix: str = ""
    """What a person can do; only of ``no`` and ``partly``, and then always."""


class _Part(NamedTuple):
    """A part that the doctor's checks decide."""

    name: str
    checks: tuple[str, ...]
    gives: str
    """Told where all is well."""


_HOST: Final = (
    _Part("host", ("vmstat", "pressure", "numa"), "page faults, pressure stalls, memory by NUMA node"),
    _Part("processes", ("pid_namespace", "hidepid", "schedstat"), "page faults, CPU and waits for it, memory"),
    _Part("cgroups", ("cgroups",), "CPU quotas and pressure of containers"),
    _Part("NUMA pages", ("page_placement",), "on which socket the memory of a process is"),
    _Part("kernel log", ("kernel_log",), "XID errors that NVML does not tell"),
    _Part("senders", ("senders",), "which process, and so which GPUs, a trace is of"),
)


def look(
    config: Config, view: View, files: Files, around: Surroundings, receivers: Mapping[str, str], *, is_demo: bool
) -> list[Seen]:
    """Every part, in the order in which one would ask.

    ``receivers``: the addresses at which traces are taken, by protocol. ``around``: what ``view`` does not tell.
    """
    around = replace(around, kubelet=_refusal(view))
    own = Self.read(files)
    checks = gpu_checks(_facts(view), files, around)
    if not is_demo:
        checks += host_checks(config, files, own, around)
    by_id = {check.id: check for check in (*checks, *own_checks(config, files, around))}
    found = [_gpus(config, view, by_id)]
    found += [_told(part, by_id) for part in _HOST if not is_demo]
    found += [
        _traces(config, view, receivers),
        _servers(config, view, by_id),
        *_pods(view, by_id),
    ]
    return found if is_demo else [*found, _state(config, by_id)]


def _told(part: _Part, by_id: Mapping[str, Check]) -> Seen:
    """What several checks come to: as good as the first of them, which the others only add to."""
    checks = [by_id[id_] for id_ in part.checks if id_ in by_id]
    problems = [check for check in checks if check.status in PROBLEMS]
    if problems:
        state = "no" if checks[0].status is Status.MISSING else "partly"
        detail = "; ".join(
            check.detail if check is checks[0] else f"{check.title}: {check.detail}" for check in problems
        )
        return Seen(part.name, state, detail, "; ".join(dict.fromkeys(check.fix for check in problems)))
    if checks[0].status is Status.UNSUPPORTED:
        is_off = checks[0].detail.startswith("off: ")
        return Seen(part.name, "off" if is_off else "none", checks[0].detail.removeprefix("off: "))
    return Seen(part.name, "yes", part.gives)


# --- what the store knows -------------------------------------------------------------------------------------------


def _gpus(config: Config, view: View, by_id: Mapping[str, Check]) -> Seen:
    state = nvml(view).state
    if state == "starting" or (state == "off" and config.nvml.enabled):
        return Seen("GPUs", "waits", "the driver has not answered yet; the log says when it does")
    if state == "released":
        return Seen("GPUs", "off", "the driver is let go of, until POST /-/acquire-nvml")
    if "gpus" not in by_id:
        return _told(_Part("GPUs", ("nvml",), ""), by_id)
    gpus, activity = by_id["gpus"], by_id["activity"]
    return _told(_Part("GPUs", ("gpus", "activity"), f"{gpus.detail}; SM and DRAM activity {activity.detail}"), by_id)


def _facts(view: View) -> NvmlFacts | None:
    """What the sampler found, as the doctor's probe would tell it. None: NVML is switched off."""
    told = nvml(view)
    if told.state == "off":
        return None
    if told.state == "stuck":
        return NvmlFacts(stuck="a call of NVML")
    if told.state == "unavailable":
        if told.error is None:
            return NvmlFacts(died="see the log")
        return NvmlFacts(error=CallError(_code(told.error), told.error, "NVML"))
    gpus = [*_present(view), *_lost(view)]
    gpus.sort(key=lambda gpu: gpu.index)
    return NvmlFacts(
        driver_version=told.driver_version or "",
        nvml_version=told.nvml_version or "",
        cuda_version=told.cuda_version or "",
        count=len(gpus),
        gpus=gpus,
    )


def _present(view: View) -> Iterator[GpuFacts]:
    for sample in view.family(catalogue.GPU_INFO):
        told = dict(zip(catalogue.GPU_INFO.labels, sample.labels, strict=True))
        yield GpuFacts(
            _index(told["gpu"]),
            uuid=told["uuid"],
            name=told["name"],
            architecture=told["architecture"],
            activity=told["activity_source"],
        )


def _lost(view: View) -> Iterator[GpuFacts]:
    for sample in view.family(catalogue.GPU_PRESENT):
        if sample.value == 0.0:
            gpu, uuid = sample.labels
            yield GpuFacts(_index(gpu), uuid=uuid, error=CallError(Code.GPU_IS_LOST, Code.GPU_IS_LOST.name, "NVML"))


def _index(gpu: str) -> int:
    return int(gpu) if gpu.isdecimal() else -1


def _code(name: str) -> int:
    return Code[name] if name in Code.__members__ else Code.UNKNOWN


def _traces(config: Config, view: View, receivers: Mapping[str, str]) -> Seen:
    if not config.otlp.enabled:
        return Seen("traces", "off", "otlp.enabled is off")
    if not receivers:
        return Seen("traces", "off", "otlp.grpc and otlp.http are null")
    names = {"grpc": "gRPC", "http": "HTTP"}
    where = " or ".join(f"{parse_listen(receivers[key]).port} ({names[key]})" for key in names if key in receivers)
    servers = sorted({sample.labels[0] for sample in view.family(catalogue.REQUESTS)})
    if servers:
        return Seen("traces", "yes", f"of {', '.join(servers)}, by OTLP at {where}")
    return Seen("traces", "waits", f"none yet: send OTLP to port {where}")


def _servers(config: Config, view: View, by_id: Mapping[str, Check]) -> Seen:
    targets = config.servers.targets
    up, misses = [], []
    for sample in view.family(catalogue.SERVER_UP):
        server, endpoint = sample.labels
        is_told = any(f"//{endpoint}/" in f"{target}/" for target in targets)
        if sample.value == 1.0:
            up.append((server, endpoint, is_told))
        else:
            misses.append(Miss(f"server {endpoint}", Reason.UNAVAILABLE, "its page cannot be read"))
    if not up and not misses and config.servers.discover:
        # What finds senders by their sockets finds servers, too.
        is_all = "senders" not in by_id or by_id["senders"].status not in PROBLEMS
        found = "no metrics page found yet" if is_all else "no page of this user's found"
        return Seen("servers", "waits", f"{found}; servers.targets names one")
    check = server_check(config, ServersFound(tuple(up), tuple(misses)))
    return _told(_Part("servers", ("servers",), check.detail), {"servers": check})


def _refusal(view: View) -> PodResourcesError | None:
    """Why the kubelet does not answer, as the source that asks it counted; None where it does, or is not asked."""
    for source in sources(view):
        if source.source == "kubelet" and not source.up:
            reason = next((reason for reason, count in source.errors.items() if count), Reason.UNAVAILABLE.value)
            return PodResourcesError(Reason(reason), "the kubelet does not say who holds which GPU")
    return None


def _pods(view: View, by_id: Mapping[str, Check]) -> Iterator[Seen]:
    """Nothing on a machine without Kubernetes."""
    if "pods" in by_id:
        yield _told(_Part("pods", ("pods",), ""), by_id)
    elif any(source.source == "kubelet" for source in sources(view)):
        yield Seen("pods", "yes", "the kubelet says who holds which GPU")


def _state(config: Config, by_id: Mapping[str, Check]) -> Seen:
    if "state_folder" not in by_id:
        key = "state.folder is null" if config.detect.enabled else "detect.enabled is off"
        return Seen("state", "off", key)
    return _told(_Part("state", ("state_folder",), f"{config.state.folder}, which outlives a restart"), by_id)
