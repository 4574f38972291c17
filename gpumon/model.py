"""The vocabulary every other module speaks: metrics, samples, misses, identities.

Nothing here reads, decides or renders; this module imports nothing else of gpumon.

Time. ``at_s`` is always seconds on the node's steady clock (``CLOCK_MONOTONIC``), the one clock that
every process of the node shares and that nobody can step. ``host.clock`` converts from and to unix time
at the edges: exported ``_timestamp_seconds`` values on the way out, span times on the way in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, NewType

if TYPE_CHECKING:  # the sampler process has no use for numpy, which is 11 MB
    import numpy as np
    from numpy.typing import NDArray

GpuUuid = NewType("GpuUuid", str)
"""NVML's UUID of a GPU (``GPU-…``) or of a MIG instance (``MIG-…``): the one key of everything GPU."""


class Pid(NamedTuple):
    """A process, safe against pid reuse: the number alone names nobody."""

    number: int
    start_ticks: int
    """``/proc/<pid>/stat`` field 22, clock ticks since boot."""


class Kind(StrEnum):
    """Exposition type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class Unit(StrEnum):
    """Base units only; the value is the suffix of the metric's name."""

    NONE = ""
    SECONDS = "seconds"
    BYTES = "bytes"
    WATTS = "watts"
    JOULES = "joules"
    HERTZ = "hertz"
    CELSIUS = "celsius"
    RATIO = "ratio"
    TIMESTAMP = "timestamp_seconds"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One exported family, as data. Compared by identity: there is one object per family, in the catalogue."""

    stem: str
    kind: Kind
    unit: Unit
    labels: tuple[str, ...]
    help: str
    origin: str
    """Where the number is from: the NVML call or field, the kernel file, or the rule that derives it."""
    budget: int
    """Most series one node may export of this family; more are dropped and counted."""
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's finite buckets, ascending, in the metric's unit."""
    values: tuple[str, ...] = ()
    """The closed list of values of the last label, where it is closed. For docs, dashboards and zeros."""

    @property
    def family(self) -> str:
        """Name of the family without the type's suffix (OpenMetrics' family name)."""
        unit = f"_{self.unit.value}" if self.unit else ""
        return f"gpumon_{self.stem}{unit}"

    @property
    def name(self) -> str:
        """Name as written in PromQL (histograms: without ``_bucket``)."""
        suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")
        return self.family + suffix


class Exemplar(NamedTuple):
    """One observation of a histogram's bucket that can be looked up elsewhere."""

    trace_id: str
    """32 hex digits."""
    value: float
    """The observation, in the metric's unit; it lies in the bucket."""
    unix_s: float
    """When it was counted, unix seconds of this node."""


class Distribution(NamedTuple):
    """Value of a histogram sample: what Prometheus calls a classic histogram."""

    counts: tuple[int, ...]
    """Observations per bucket, not cumulative, one per bound of the metric plus the last for +Inf."""
    total: float
    """Sum of the observed values, in the metric's unit."""
    exemplars: tuple[Exemplar | None, ...] = ()
    """The newest observation of each bucket that came with a trace, in the order of counts; empty where none has."""


class Sample(NamedTuple):
    """One value of one series. A missing reading is no Sample at all: never NaN, never a sentinel."""

    metric: Metric
    labels: tuple[str, ...]
    """Label values, in ``metric.labels`` order."""
    value: float | Distribution


class Reason(StrEnum):
    """Why there is no reading. The values are label values of ``gpumon_source_errors_total``."""

    ENDED = "ended"  # a process that ended between two looks: the normal course of things, neither counted nor logged
    UNSUPPORTED = "unsupported"  # this device, driver or kernel does not have it: normal, never an alert
    DENIED = "denied"  # a permission, capability or mount is missing
    UNAVAILABLE = "unavailable"  # it should be there and is not: lost, gone, not running
    TIMEOUT = "timeout"  # the deadline passed
    MALFORMED = "malformed"  # it answered with what cannot be read
    OUT_OF_RANGE = "out_of_range"  # it answered with what cannot be true
    BUG = "bug"  # gpumon's own fault


class Miss(NamedTuple):
    """One thing that could not be read; its neighbours were."""

    what: str
    """A bounded name such as ``gpu 3 fan`` or ``pid 42 numa_maps``: for logs, never a label value."""
    reason: Reason
    detail: str = ""


class SourceError(Exception):
    """A source as a whole could not be read in this pass."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Rejection(NamedTuple):
    """A value that was read and cannot be true; counted in ``gpumon_samples_rejected_total``."""

    field: str
    """Short name of the field, from a closed list in the source: a label value."""
    reason: Reason


Item = Sample | Miss | Rejection
"""What a source yields."""


def apart(items: Iterable[Item]) -> tuple[list[Sample], list[Miss], list[Rejection]]:
    """The items by their kind, each in the order given."""
    samples: list[Sample] = []
    misses: list[Miss] = []
    rejections: list[Rejection] = []
    for item in items:
        if isinstance(item, Sample):
            samples.append(item)
        elif isinstance(item, Miss):
            misses.append(item)
        else:
            rejections.append(item)
    return samples, misses, rejections


class GpuProcess(NamedTuple):
    """A process that holds a GPU, as NVML tells it."""

    pid: int
    """In the pid namespace of the reader."""
    gpu: str
    """Index of the GPU, for display."""
    uuid: GpuUuid
    used_bytes: float | None
    sm_ratio: float | None


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a request ran; empty where nothing told."""

    how: str = "none"
    """What bound it: resource, peer, config, none."""
    pid: int | None = None
    container_id: str | None = None
    pod_uid: str | None = None
    gpus: tuple[GpuUuid, ...] = ()
    unbound: str = ""
    """Why there are no GPUs, where there are none: values of ``gpumon_requests_unbound_total``."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One inference request, assembled from all that was said about it. Durations in seconds; None: not told.

    Times are unix nanoseconds of the server's clock; ``arrived_s`` is our steady clock. Definitions: docs/TOKENS.md.
    """

    trace_id: bytes
    request_id: str
    server: str
    """Kind of server, from a closed list: vllm, sglang, tgi, triton, trtllm, dynamo, gpumon, genai."""
    model: str
    """Empty where nobody told."""
    arrived_s: float
    start_ns: int
    end_ns: int
    first_token_ns: int | None = None
    time_to_first_token_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    kv_sync_s: float | None = None
    token_ns: NDArray[np.int64] | None = None
    """Times of the decode steps, ascending, the first token's step first where it is known."""
    token_counts: NDArray[np.int32] | None = None
    """Tokens per step; None: one each."""
    per_token: bool = False
    """Whether token_ns are single tokens (inter-token latency) or steps of unknown size (step time only)."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    outcome: str = "ok"
    """ok, error, aborted, incomplete."""
    tenant: str = ""
    inference_id: str = ""
    prompt_hash: str = ""
    parameters: dict[str, float] = field(default_factory=dict)
    """temperature, top_p, top_k, max_tokens, frequency_penalty, presence_penalty, n, seed."""
    evaluations: dict[str, float] = field(default_factory=dict)
    concurrency: int = 0
    """Requests open on that server when this one arrived."""
    binding: Binding = Binding()
    rank_steps: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """Step end times by tensor-parallel rank, where ranks report."""
    span_id: bytes = b""
    """Of the request's own span; empty where that never came."""
