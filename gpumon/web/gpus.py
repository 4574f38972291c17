"""Every GPU as the JSON API says it: what it is, what it does now, what held it back in the last minute, who is on it.

Reads a view of the store and the open incidents. What a GPU, driver or kernel does not tell is null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pydantic import Field

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.model import Distribution, Metric
from gpumon.store import View
from gpumon.web.past import MINUTE_S, growth, rate
from gpumon.web.said import Said, Series, rounded

PROCESSES_MAX: Final = 16
_LINKS_S: Final = 10.0
_FAMILIES: Final[tuple[Metric, ...]] = tuple(
    metric
    for metric in catalogue.METRICS
    if metric.labels[:2] == catalogue.GPU and "pid" not in metric.labels and metric.kind.value in ("gauge", "counter")
)


class Reading(Said):
    """One series of a GPU."""

    metric: str = Field(description="Name as on /metrics.")
    labels: dict[str, str] = Field(description="Labels other than gpu and uuid.")
    value: float = Field(description="In the unit that the name of the metric ends with.")


class Direction(Said):
    """Of a link, bytes per second over the last ten seconds."""

    sent: float | None
    received: float | None


class Xid(Said):
    """An XID error that happened since gpumon started."""

    xid: str
    count: float
    last: float | None = Field(description="Unix seconds.")


class OpenIncident(Said):
    """An incident that is open, in a line; /api/v1/incidents/{id} tells all of it."""

    id: str
    kind: str
    title: str = Field(description="Of that kind, as people call it.")
    severity: str = Field(description="info, warning or critical: the worst so far.")
    since: float = Field(description="Unix seconds.")
    summary: str


class GpuProcess(Said):
    """A process on the GPU."""

    pid: str = Field(description="``other``: those past the limit of processes that are followed, summed.")
    process: str
    namespace: str
    pod: str
    container: str
    memory_bytes: float | None
    sm: float | None = Field(description="Its share of the SMs, 0 to 1.")


class Mig(Said):
    """A MIG instance."""

    uuid: str
    profile: str
    gpu_instance: str
    compute_instance: str
    name: str
    sm_active: float | None
    dram_active: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None


class Gpu(Said):
    """A GPU now. Shares are 0 to 1."""

    gpu: str = Field(description="NVML's index.")
    uuid: str
    name: str = Field(description="Of the board; empty until the first inventory.")
    present: bool = Field(description="False once it is lost or a call to it hangs.")
    info: dict[str, str] = Field(description="Labels of gpumon_gpu_info; empty until the first inventory.")
    utilization: float | None = Field(description="Share of time in which any kernel ran.")
    sm_active: float | None = Field(description="Needs GPM: Hopper and newer.")
    sm_occupancy: float | None
    tensor_active: float | None
    dram_active: float | None = Field(description="DRAM bandwidth used. Needs GPM.")
    power_watts: float | None
    power_limit_watts: float | None = Field(description="The one that acts.")
    sm_clock_hertz: float | None
    sm_clock_max_hertz: float | None
    memory_clock_hertz: float | None
    temperature_celsius: float | None
    memory_temperature_celsius: float | None
    temperature_margin_celsius: float | None = Field(description="Until it slows down for heat.")
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    throttled_by: list[str] | None = Field(description="Reasons that hold the clocks down now; null: not told.")
    throttled: dict[str, float] = Field(description="Share of the last minute by reason, those above 0.")
    bound: dict[str, float] | None = Field(description="Share of the last minute by what limited it; null without GPM.")
    pcie_bytes_per_second: Direction | None
    nvlink_bytes_per_second: Direction | None
    xids: list[Xid]
    incidents: list[OpenIncident] = Field(description="Open ones of this GPU.")
    processes: list[GpuProcess] = Field(description=f"The {PROCESSES_MAX} with most memory.")
    processes_left_out: int
    mig: list[Mig]
    history: Series | None = Field(default=None, description="Null unless asked for.")
    readings: list[Reading] = Field(default=[], description="Every series of the GPU on /metrics, if asked for.")


class Gpus(Said):
    """All GPUs of the node."""

    at: float = Field(description="Unix seconds.")
    gpus: list[Gpu] = Field(description="By index.")


class Wanted(NamedTuple):
    """What of GPUs is to be said."""

    uuid: str | None = None
    """None: all."""
    processes: bool = True
    readings: bool = False


def gpus(view: View, incidents: Iterable[Incident], to_unix: Callable[[float], float], wanted: Wanted) -> Gpus:
    """incidents: those that are kept, or the open ones."""
    families = _Families(view)
    by_uuid: dict[str, list[OpenIncident]] = defaultdict(list)
    for incident in incidents:
        if incident.is_open and incident.entity.uuid:
            by_uuid[incident.entity.uuid].append(open_incident(incident, to_unix))
    present = sorted(view.family(catalogue.GPU_PRESENT), key=lambda s: (len(s.labels[0]), s.labels))
    said = [
        _gpu(families, (gpu, uuid), value == 1.0, by_uuid.get(uuid, []), wanted)
        for _, (gpu, uuid), value in present
        if wanted.uuid in (None, uuid)
    ]
    return Gpus(at=to_unix(view.at_s), gpus=said)


def open_incident(incident: Incident, to_unix: Callable[[float], float]) -> OpenIncident:
    """In a line."""
    return OpenIncident(
        id=incident.id,
        kind=incident.kind,
        title=catalogue.TITLES[incident.kind],
        severity=incident.severity.value,
        since=to_unix(incident.since_s),
        summary=incident.summary,
    )


class _Families:
    """Values of a view by family and labels, each family looked through once."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._known: dict[Metric, dict[tuple[str, ...], float]] = {}

    def of(self, metric: Metric) -> Mapping[tuple[str, ...], float]:
        known = self._known.get(metric)
        if known is None:
            known = self._known[metric] = {
                sample.labels: sample.value
                for sample in self.view.family(metric)
                if not isinstance(sample.value, Distribution)
            }
        return known

    def get(self, metric: Metric, *labels: str) -> float | None:
        return self.of(metric).get(labels)

    def below(self, metric: Metric, labels: tuple[str, ...]) -> Sequence[tuple[tuple[str, ...], float]]:
        """Further labels and values of the series that begin with these labels."""
        width = len(labels)
        return [(of[width:], value) for of, value in self.of(metric).items() if of[:width] == labels]


def _gpu(
    families: _Families, of: tuple[str, str], is_present: bool, incidents: list[OpenIncident], wanted: Wanted
) -> Gpu:
    get = families.get
    info = next((labels for labels, _ in families.below(catalogue.GPU_INFO, of)), ())
    named = dict(zip(catalogue.GPU_INFO.labels[2:], info, strict=True)) if info else {}
    power = get(catalogue.GPU_POWER, *of, "instant")
    processes = _processes(families, of) if wanted.processes else []
    return Gpu(
        gpu=of[0],
        uuid=of[1],
        name=named.get("name", ""),
        present=is_present,
        info=named,
        utilization=rounded(get(catalogue.GPU_UTILIZATION, *of), 4),
        sm_active=rounded(get(catalogue.GPU_SM_ACTIVE, *of), 4),
        sm_occupancy=rounded(get(catalogue.GPU_SM_OCCUPANCY, *of), 4),
        tensor_active=rounded(get(catalogue.GPU_TENSOR_ACTIVE, *of), 4),
        dram_active=rounded(get(catalogue.GPU_DRAM_ACTIVE, *of), 4),
        power_watts=power if power is not None else get(catalogue.GPU_POWER, *of, "average"),
        power_limit_watts=get(catalogue.GPU_POWER_LIMIT, *of, "enforced"),
        sm_clock_hertz=get(catalogue.GPU_CLOCK, *of, "sm"),
        sm_clock_max_hertz=get(catalogue.GPU_CLOCK_MAX, *of, "sm"),
        memory_clock_hertz=get(catalogue.GPU_CLOCK, *of, "memory"),
        temperature_celsius=get(catalogue.GPU_TEMPERATURE, *of, "gpu"),
        memory_temperature_celsius=get(catalogue.GPU_TEMPERATURE, *of, "memory"),
        temperature_margin_celsius=get(catalogue.GPU_TEMPERATURE_MARGIN, *of),
        memory_used_bytes=get(catalogue.GPU_MEMORY, *of, "used"),
        memory_total_bytes=_total(families, catalogue.GPU_MEMORY, of),
        throttled_by=_throttled_by(families, of),
        throttled=_throttled(families, of),
        bound=bound_shares(families.view, of, MINUTE_S),
        pcie_bytes_per_second=_link(families, catalogue.GPU_PCIE_BYTES, of),
        nvlink_bytes_per_second=_link(families, catalogue.GPU_NVLINK_BYTES, of),
        xids=_xids(families, of),
        incidents=incidents,
        processes=processes[:PROCESSES_MAX],
        processes_left_out=max(0, len(processes) - PROCESSES_MAX),
        mig=_mig(families, of),
        readings=_readings(families, of) if wanted.readings else [],
    )


def _total(families: _Families, metric: Metric, of: tuple[str, ...]) -> float | None:
    parts = [value for _, value in families.below(metric, of)]
    return sum(parts) if len(parts) == len(metric.values) else None


def _throttled_by(families: _Families, of: tuple[str, str]) -> list[str] | None:
    reasons = families.below(catalogue.GPU_THROTTLE_ACTIVE, of)
    return [labels[0] for labels, value in reasons if value == 1.0] if reasons else None


def _throttled(families: _Families, of: tuple[str, str]) -> dict[str, float]:
    shares = {}
    for (reason,), seconds in families.below(catalogue.GPU_THROTTLED_SECONDS, of):
        # A counter at 0 has not grown; most are.
        share = rate(families.view, catalogue.GPU_THROTTLED_SECONDS, (*of, reason)) if seconds > 0.0 else None
        if share is not None and share > 0.0:
            shares[reason] = round(min(share, 1.0), 4)
    return shares


def bound_shares(view: View, of: tuple[str, str], over_s: float) -> dict[str, float] | None:
    """Share of the last seconds by what limited a GPU, of the time that was sampled; None where nothing was."""
    grown = {}
    for state in catalogue.BOUND_STATES:
        points = view.window(catalogue.GPU_BOUND_SECONDS, (*of, state), view.at_s - over_s)
        if (known := growth(points)) is None:
            return None
        grown[state] = known[0]
    sampled_s = sum(grown.values())
    return {state: round(seconds / sampled_s, 4) for state, seconds in grown.items()} if sampled_s > 0.0 else None


def _link(families: _Families, metric: Metric, of: tuple[str, str]) -> Direction | None:
    sent, received = (rate(families.view, metric, (*of, direction), _LINKS_S) for direction in ("tx", "rx"))
    return (
        None if sent is None and received is None else Direction(sent=rounded(sent, 0), received=rounded(received, 0))
    )


def _xids(families: _Families, of: tuple[str, str]) -> list[Xid]:
    found = [(labels[0], count) for labels, count in families.below(catalogue.GPU_XID_ERRORS, of) if count > 0.0]
    return [Xid(xid=xid, count=count, last=families.get(catalogue.GPU_XID_LAST, *of, xid)) for xid, count in found]


def _processes(families: _Families, of: tuple[str, str]) -> list[GpuProcess]:
    memory = dict(families.below(catalogue.PROCESS_GPU_MEMORY, of))
    shares = dict(families.below(catalogue.PROCESS_GPU_SM, of))
    ordered = sorted(memory.keys() | shares.keys(), key=lambda labels: (-memory.get(labels, 0.0), labels))
    return [
        GpuProcess(
            pid=labels[0],
            process=labels[1],
            namespace=labels[2],
            pod=labels[3],
            container=labels[4],
            memory_bytes=memory.get(labels),
            sm=rounded(shares.get(labels), 4),
        )
        for labels in ordered
    ]


def _mig(families: _Families, of: tuple[str, str]) -> list[Mig]:
    found = []
    for labels in families.of(catalogue.MIG_INFO):
        said = dict(zip(catalogue.MIG_INFO.labels, labels, strict=True))
        if said["parent_uuid"] == of[1]:
            instance = labels[: len(catalogue.MIG)]
            found.append(
                Mig(
                    uuid=said["uuid"],
                    profile=said["profile"],
                    gpu_instance=said["gpu_instance"],
                    compute_instance=said["compute_instance"],
                    name=said["name"],
                    sm_active=rounded(families.get(catalogue.MIG_SM_ACTIVE, *instance), 4),
                    dram_active=rounded(families.get(catalogue.MIG_DRAM_ACTIVE, *instance), 4),
                    memory_used_bytes=families.get(catalogue.MIG_MEMORY, *instance, "used"),
                    memory_total_bytes=_total(families, catalogue.MIG_MEMORY, instance),
                )
            )
    return sorted(found, key=lambda mig: (mig.gpu_instance, mig.compute_instance))


def _readings(families: _Families, of: tuple[str, str]) -> list[Reading]:
    return [
        Reading(metric=metric.name, labels=dict(zip(metric.labels[2:], labels, strict=True)), value=value)
        for metric in _FAMILIES
        for labels, value in families.below(metric, of)
    ]
