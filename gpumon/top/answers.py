"""What ``gpumon top`` reads of the JSON API's answers: the fields that it shows, and no others.

Models of its own and not those of ``gpumon.web``, for a daemon may be older or newer than whoever looks at it: what it
does not tell is None or empty here, and what it tells beyond this is not looked at. Names and units are docs/API.md's.
"""

from __future__ import annotations

from pydantic import Field, RootModel

from gpumon.web.said import Said


class Nvml(Said):
    """gpumon's hold on the driver."""

    state: str = ""
    error: str | None = None


class GpuCount(Said):
    """GPUs of the node."""

    expected: int | None = None
    present: int | None = None
    lost: int | None = None


class Source(Said):
    """Where numbers come from."""

    source: str
    up: bool


class Node(Said):
    """The gpumon that answers."""

    name: str
    version: str
    demo: bool = False
    at: float
    uptime_seconds: float | None = None
    nvml: Nvml = Nvml()
    gpus: GpuCount = GpuCount()
    sources: tuple[Source, ...] = ()


class OpenIncident(Said):
    """Of a GPU or a server."""

    id: str
    severity: str = ""


class GpuProcess(Said):
    """On a GPU."""

    process: str = ""
    namespace: str = ""
    pod: str = ""


class Mig(Said):
    """An instance of a GPU."""

    profile: str = ""
    gpu_instance: str = ""
    compute_instance: str = ""
    sm_active: float | None = None
    dram_active: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None


class Gpu(Said):
    """A GPU now."""

    gpu: str
    uuid: str
    name: str = ""
    present: bool = True
    utilization: float | None = None
    sm_active: float | None = None
    dram_active: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_hertz: float | None = None
    sm_clock_max_hertz: float | None = None
    temperature_celsius: float | None = None
    temperature_margin_celsius: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    throttled_by: list[str] | None = None
    throttled: dict[str, float] = Field(default_factory=dict)
    bound: dict[str, float] | None = None
    incidents: tuple[OpenIncident, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    processes_left_out: int = 0
    mig: tuple[Mig, ...] = ()


class Gpus(Said):
    """All of them."""

    at: float
    gpus: list[Gpu]


class Latency(Said):
    """Of one to two minutes."""

    p99_seconds: float | None = None


class Page(Said):
    """A server's own metrics page."""

    server: str = ""
    endpoint: str = ""
    up: bool = True


class ServerGpu(Said):
    """A GPU that requests ran on."""

    gpu: str | None = None


class Server(Said):
    """A kind of server with a model."""

    server: str
    model: str
    tokens_per_second: float | None = None
    errors_per_second: float | None = None
    requests_open: float | None = None
    time_to_first_token: Latency = Latency()
    inter_token: Latency = Latency()
    pages: tuple[Page, ...] = ()
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    gpus: tuple[ServerGpu, ...] = ()
    late_seconds_per_second: float | None = None
    incidents: tuple[OpenIncident, ...] = ()


class Servers(Said):
    """All of them."""

    at: float
    servers: list[Server]


class Entity(Said):
    """What an incident is of."""

    name: str = ""


class Incident(OpenIncident):
    """One that is open."""

    kind: str
    entity: Entity = Entity()
    summary: str = ""
    action: str = ""
    since: float


class Incidents(RootModel[list[Incident]]):
    """Those that are open."""


class CauseLost(Said):
    """What one cause cost."""

    cause: str
    title: str = ""
    kind: str = ""
    seconds: float
    share: float
    fact: str = ""


class Lost(Said):
    """A diagnosis: what was late, and by which causes."""

    since: float
    known_since: float | None = None
    until: float
    requests: int
    slow_requests: int
    excess_seconds: float
    causes: list[CauseLost]
    verdict: tuple[str, ...] = ()


class Snapshot(Said):
    """What one look at a gpumon found; also what ``--json`` prints. A part without an answer is null."""

    url: str
    node: Node
    gpus: Gpus | None = None
    servers: Servers | None = None
    incidents: Incidents | None = None
    lost: Lost | None = None
    problems: dict[str, str] = Field(default_factory=dict)
    """By part: why there is no answer."""
