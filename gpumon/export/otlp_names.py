"""The OTLP name, unit and attributes of every family, as data.

Names are those of OpenTelemetry's semantic conventions where they have one: ``hw.*`` (core v1.44.0) for GPUs,
``gen_ai.server.*`` (v1.41.1) for requests; both are in development there. Everything else is ``gpumon.`` and the
stem, its first word set off where it is one of ``NAMESPACES``, with ``.time`` for seconds counted, ``.io`` for bytes
counted and the like, so that no two families share a name. ``ADDITIONAL`` holds the conventions' metrics that are
part of a family, or a sum of one.

``gen_ai.server.time_per_output_token`` holds one observation per token, not one mean per request: its sum over its
count is what the convention means, its quantiles show the slow tokens as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpumon import catalogue
from gpumon.model import Kind, Metric, Unit

Attributes = tuple[tuple[str, str], ...]


class Instrument(StrEnum):
    """Type of the OTLP metric."""

    GAUGE = "gauge"
    COUNTER = "counter"  # monotonic, cumulative sum
    UP_DOWN_COUNTER = "up_down_counter"  # sum that is not monotonic
    HISTOGRAM = "histogram"  # explicit bounds, cumulative


@dataclass(frozen=True, slots=True)
class OtlpName:
    """How a family is spelled."""

    name: str
    unit: str
    """UCUM."""
    instrument: Instrument
    constant: Attributes = ()
    """Attributes that every point has."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Attribute of a label, where it is not the one in ``LABELS``."""
    values: Mapping[tuple[str, str], Attributes] = field(default_factory=dict)
    """By (label, value): the attributes that stand for it."""
    identity: tuple[str, ...] = ()
    """Labels whose values together are ``hw.id``, where the uuid alone would not tell parts apart."""


class Take(StrEnum):
    """How an additional metric is made of the series of a family."""

    SELECT = "select"  # those with the value
    SUM = "sum"  # of all values of the last label
    SHARE = "share"  # of those with the value in that sum


@dataclass(frozen=True, slots=True)
class Additional:
    """A metric of the conventions that is part of a family."""

    spelled: OtlpName
    metric: Metric
    take: Take
    value: str = ""
    """Of the family's last label, which the points do not have."""


LABELS = {
    "uuid": "hw.id",
    "parent_uuid": "hw.parent",
    "pid": "process.pid",
    "process": "process.executable.name",
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "container": "k8s.container.name",
    "server": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "version": "service.version",
    "tenant": "tenant.id",
    "gpu": "gpumon.gpu.index",
}
"""Attribute of a label, in every family; ``gpumon.`` and the label for all others."""

NAMESPACES = frozenset(
    {
        *("gpu", "mig", "process", "host", "request", "tenant", "collective"),
        *("otlp", "forward", "source", "nvml", "sampler", "history", "config", "self"),
    }
)
"""First words of stems that are things with several metrics."""

UNITS = {
    Unit.NONE: "1",
    Unit.SECONDS: "s",
    Unit.BYTES: "By",
    Unit.WATTS: "W",
    Unit.JOULES: "J",
    Unit.HERTZ: "Hz",
    Unit.CELSIUS: "Cel",
    Unit.RATIO: "1",
    Unit.TIMESTAMP: "s",
}

_INSTRUMENTS = {
    Kind.GAUGE: Instrument.GAUGE,
    Kind.INFO: Instrument.GAUGE,
    Kind.COUNTER: Instrument.COUNTER,
    Kind.HISTOGRAM: Instrument.HISTOGRAM,
}
_ENDINGS = {
    (Kind.COUNTER, Unit.SECONDS): ".time",
    (Kind.COUNTER, Unit.BYTES): ".io",
    (Kind.GAUGE, Unit.BYTES): ".usage",
    (Kind.GAUGE, Unit.TIMESTAMP): ".timestamp",
    (Kind.INFO, Unit.NONE): ".info",
}
_GPU: Attributes = (("hw.type", "gpu"),)
# Required by the convention, which has no word for what a server does to a prompt, whatever its API is called.
_SERVING: Attributes = (("gen_ai.operation.name", "inference"),)
_ON_GPU: Attributes = (("hw.sensor_location", "gpu"),)

STATED: dict[Metric, OtlpName] = {
    catalogue.GPU_UTILIZATION: OtlpName(
        "hw.gpu.utilization", "1", Instrument.GAUGE, (*_GPU, ("hw.gpu.task", "general"))
    ),
    catalogue.GPU_CODEC_UTILIZATION: OtlpName(
        "hw.gpu.utilization", "1", Instrument.GAUGE, _GPU, renamed={"engine": "hw.gpu.task"}
    ),
    catalogue.GPU_ENERGY: OtlpName("hw.energy", "J", Instrument.COUNTER, _GPU),
    catalogue.GPU_TEMPERATURE: OtlpName(
        "hw.temperature", "Cel", Instrument.GAUGE, _GPU, renamed={"sensor": "hw.sensor_location"}
    ),
    catalogue.GPU_TEMPERATURE_LIMIT: OtlpName(
        "hw.temperature.limit",
        "Cel",
        Instrument.GAUGE,
        _GPU,
        values={
            ("limit", "shutdown"): (("hw.limit_type", "high.critical"), *_ON_GPU),
            ("limit", "slowdown"): (("hw.limit_type", "throttled"), *_ON_GPU),
            ("limit", "gpu_max"): (("hw.limit_type", "max"), *_ON_GPU),
            ("limit", "memory_max"): (("hw.limit_type", "max"), ("hw.sensor_location", "memory")),
        },
    ),
    catalogue.GPU_FAN: OtlpName(
        "hw.fan.speed_ratio",
        "1",
        Instrument.GAUGE,
        (("hw.type", "fan"),),
        renamed={"uuid": "hw.parent", "fan": "hw.name"},
        identity=("uuid", "fan"),
    ),
    catalogue.GPU_PCIE_BYTES: OtlpName(
        "hw.gpu.io",
        "By",
        Instrument.COUNTER,
        _GPU,
        values={
            ("direction", "tx"): (("network.io.direction", "transmit"),),
            ("direction", "rx"): (("network.io.direction", "receive"),),
        },
    ),
    catalogue.REQUEST_DURATION: OtlpName("gen_ai.server.request.duration", "s", Instrument.HISTOGRAM, _SERVING),
    catalogue.REQUEST_FIRST_TOKEN: OtlpName("gen_ai.server.time_to_first_token", "s", Instrument.HISTOGRAM, _SERVING),
    catalogue.INTER_TOKEN: OtlpName("gen_ai.server.time_per_output_token", "s", Instrument.HISTOGRAM, _SERVING),
}

ADDITIONAL: tuple[Additional, ...] = (
    Additional(
        OtlpName("hw.gpu.memory.usage", "By", Instrument.UP_DOWN_COUNTER, _GPU),
        catalogue.GPU_MEMORY,
        Take.SELECT,
        "used",
    ),
    Additional(OtlpName("hw.gpu.memory.limit", "By", Instrument.UP_DOWN_COUNTER, _GPU), catalogue.GPU_MEMORY, Take.SUM),
    Additional(
        OtlpName("hw.gpu.memory.utilization", "1", Instrument.GAUGE, _GPU), catalogue.GPU_MEMORY, Take.SHARE, "used"
    ),
    Additional(OtlpName("hw.power", "W", Instrument.GAUGE, _GPU), catalogue.GPU_POWER, Take.SELECT, "average"),
    Additional(
        OtlpName("hw.errors", "{error}", Instrument.COUNTER, _GPU, renamed={"kind": "error.type"}),
        catalogue.GPU_ECC_ERRORS,
        Take.SELECT,
        "volatile",
    ),
)

STATUS = OtlpName("hw.status", "1", Instrument.UP_DOWN_COUNTER, _GPU, renamed={"state": "hw.state"})
STATES = ("ok", "degraded", "predicted_failure", "failed")
"""Values of ``hw.state``: 1 for the GPU's, 0 for the others. failed: lost (gpumon_gpu_present 0); predicted_failure:
a memory row could not be replaced; degraded: the driver asks for a reset or a row waits for one."""


def spelled(metric: Metric) -> OtlpName:
    """How a family of the catalogue, or any other, is spelled."""
    stated = STATED.get(metric)
    if stated is not None:
        return stated
    namespace, _, rest = metric.stem.partition("_")
    stem = f"{namespace}.{rest}" if rest and namespace in NAMESPACES else metric.stem
    name = f"gpumon.{stem}{_ENDINGS.get((metric.kind, metric.unit), '')}"
    return OtlpName(name, UNITS[metric.unit], _INSTRUMENTS[metric.kind], _GPU if "uuid" in metric.labels else ())


def attributes(name: OtlpName, labels: tuple[str, ...], values: tuple[str, ...]) -> dict[str, str | int]:
    """The attributes of a point; labels without a value have none."""
    out: dict[str, str | int] = dict(name.constant)
    for label, value in zip(labels, values, strict=True):
        stands_for = name.values.get((label, value))
        if stands_for is not None:
            out.update(stands_for)
        elif value:
            attribute = name.renamed.get(label) or LABELS.get(label) or f"gpumon.{label}"
            out[attribute] = int(value) if label == "pid" and value.isdecimal() else value
    if name.identity:
        known = dict(zip(labels, values, strict=True))
        out["hw.id"] = "/".join(known[label] for label in name.identity)
    return out
