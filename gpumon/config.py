"""The whole configuration of gpumon, as typed, frozen models: every key with its default, range and meaning.

Decides what may be configured and what a value must be, out of ``config_types``; ``config_load`` brings the values from
the file, the environment and the flags, and ``config_keys`` lists the keys. Seconds and bytes, as the names say.
docs/CONFIGURATION.md is made from these models.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpumon.config_proxy import ProxyConfig
from gpumon.config_types import (
    Address,
    Expect,
    FilePath,
    Headers,
    LabelKeys,
    Listen,
    Pattern,
    Ports,
    Section,
    ServerNames,
    in_order,
    parse_listen,
    parse_ports,
    parse_server,
)


class HttpConfig(Section):
    """The HTTP server: `/metrics`, health, and what else it offers."""

    listen: Listen = Field(
        default="0.0.0.0:9450",
        description="Where to serve. Port 0 takes a free one, which the log then names. `:9450` is every IPv4 address, "
        "`[::]:9450` every address.",
    )
    ui: bool = Field(
        default=True,
        description="Serve the JSON API and its docs page. Off saves about 16 MB: FastAPI is then never loaded.",
    )
    admin: bool = Field(
        default=False,
        description="Serve `POST /-/reload`, `/-/release-nvml` and `/-/acquire-nvml`. Whoever reaches the port may "
        "call them. SIGHUP reloads in any case.",
    )

    web_config: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None,
        description="A Prometheus `web-config.yml`: TLS, basic authentication and bearer tokens, for this server and "
        "the OTLP receivers.",
    )

    @property
    def address(self) -> Address:
        """``listen``, taken apart."""
        return parse_listen(self.listen)


class NvmlConfig(Section):
    """NVML, the NVIDIA driver's library."""

    enabled: bool = Field(default=True, description="Read NVML. Off leaves the host's own metrics.")
    library: Annotated[str | None, Expect("a path or library name, or null")] = Field(
        default=None,
        description="Library to load instead of `libnvidia-ml.so.1` from the usual places.",
        min_length=1,
        pattern=r"^[^\x00]+$",
    )
    stuck_after_s: float = Field(
        default=5.0,
        ge=0.5,
        le=600,
        description="A driver call on one GPU that takes longer marks that GPU as stuck; nothing else waits for it.",
    )
    restart_after_s: float = Field(
        default=30.0,
        ge=1,
        le=3600,
        description="A sampler process without a sign of life for longer is replaced, as when opening NVML hangs. "
        "At least `stuck_after_s`.",
    )
    retry_min_s: float = Field(
        default=1.0,
        ge=0.1,
        le=600,
        description="First wait before NVML or the sampler process is tried again; doubles with each failure.",
    )
    retry_max_s: float = Field(default=60.0, ge=0.1, le=3600, description="Longest such wait. At least `retry_min_s`.")

    @model_validator(mode="after")
    def _order(self) -> Self:
        in_order(self, "stuck_after_s", "restart_after_s")
        in_order(self, "retry_min_s", "retry_max_s")
        return self


class HostConfig(Section):
    """Where the host's files are. In a container with the host's folders mounted: below that mount."""

    procfs: FilePath = Field(default=Path("/proc"), description="The proc file system.")
    sysfs: FilePath = Field(default=Path("/sys"), description="The sys file system.")
    cgroupfs: FilePath = Field(
        default=Path("/sys/fs/cgroup"), description="The cgroup tree, version 1 or 2; the version is found out."
    )
    kernel_log: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=Path("/dev/kmsg"),
        description="Kernel log to read XID errors from. null does not read it; NVML events remain.",
    )


class CadenceConfig(Section):
    """How often things are read. Sub-second bursts are seen down to `fast_s`, whatever the scrape interval."""

    fast_s: float = Field(
        default=0.1,
        ge=0.02,
        le=5,
        description="GPU activity, clocks, throttling, power, memory. Every sample goes into the counters and "
        "histograms.",
    )
    publish_s: float = Field(
        default=1.0,
        ge=0.1,
        le=60,
        description="How often what is exposed is made anew. At least `fast_s`, at most the scrape interval.",
    )
    medium_s: float = Field(
        default=0.5, ge=0.1, le=60, description="Page faults, pressure, CPU and run-queue time of GPU processes."
    )
    slow_s: float = Field(
        default=5.0, ge=0.5, le=300, description="GPU processes, links, ECC, temperatures' limits, the host's NUMA."
    )
    inventory_s: float = Field(default=60.0, ge=1, le=3600, description="Identity, MIG layout, remapped rows.")
    servers_s: float = Field(default=2.0, ge=0.5, le=300, description="Metrics pages of inference servers.")
    numa_s: float = Field(default=10.0, ge=1, le=3600, description="Where the pages of GPU processes are.")

    @model_validator(mode="after")
    def _order(self) -> Self:
        in_order(self, "fast_s", "publish_s")
        return self


class ProcessesConfig(Section):
    """Processes that are followed."""

    limit: int = Field(
        default=64,
        ge=1,
        le=256,
        description="Most processes followed. Those with the most GPU memory stay, the rest is summed as `other`.",
    )
    servers: ServerNames = Field(
        default=(),
        description="Also follow processes that hold no GPU and have one of these command names (`/proc/<pid>/comm`, "
        "which the kernel cuts at 15 bytes): exact, or between slashes a regular expression of the whole name, such as "
        "`/VLLM.*/`.",
    )

    @property
    def server_patterns(self) -> tuple[re.Pattern[str], ...]:
        """``servers`` as ``sources.targets`` takes them: patterns of whole command names."""
        return tuple(parse_server(text) for text in self.servers)


class NumaConfig(Section):
    """Memory placement of GPU processes. Needs CAP_SYS_PTRACE for processes of other users."""

    enabled: bool = Field(default=True, description="Find out on which NUMA node the pages of GPU processes are.")
    sample_pages: int = Field(
        default=1024,
        ge=16,
        le=16384,
        description="Pages asked for in each process and pass, by `move_pages(2)`, which does not disturb it.",
    )
    exact: bool = Field(
        default=False,
        description="Count every page through `numa_maps` instead. The kernel holds up the process' memory calls "
        "meanwhile, for tens of milliseconds in a large one.",
    )
    exact_limit_bytes: int = Field(
        default=1 << 30,
        ge=0,
        le=1 << 44,
        description="Resident memory above which a process is sampled even when `exact` is on.",
    )


class KubernetesConfig(Section):
    """Which pods hold the GPUs, and the names of pods and containers. The kubelet's socket is root's."""

    pod_resources: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        description="The kubelet's pod-resources socket; in a container mount its folder. The default is used only "
        "where that folder is there at start. null: the kubelet is not asked.",
    )
    log_folder: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=Path("/var/log"),
        description="Folder with the kubelet's `pods` and `containers`, whose names tell which uid and which id is "
        "whose; nothing in them is opened. The default is used only where one of them is there at start. null: not "
        "listed.",
    )
    every_s: float = Field(
        default=10.0,
        ge=2,
        le=300,
        description="How often the kubelet is asked. It is asked sooner, at most every 2 s, when a process on a GPU is "
        "newer than what it last told.",
    )
    api: bool = Field(
        default=False,
        description="Watch this node's pods at the API server, with the pod's service account, for their names and "
        "`labels`. Needs `get`, `list` and `watch` of pods, and NODE_NAME in the environment.",
    )
    labels: LabelKeys = Field(
        default=(),
        description="Keys of pod labels that become `gpumon_pod_label_info`, for pods that hold a GPU. Needs `api`.",
    )

    @model_validator(mode="after")
    def _labels_need_the_api(self) -> Self:
        if self.labels and not self.api:
            raise ValueError("labels need api: true")
        return self


class StoreConfig(Section):
    """Memory for samples."""

    max_series: int = Field(
        default=50_000, ge=100, le=1_000_000, description="Most series held; more are dropped and counted."
    )
    history_points: int = Field(default=240, ge=2, le=10_000, description="Newest values kept of each series.")


class OtlpConfig(Section):
    """Receivers of OTLP: traces of inference servers, and what else they send, to be forwarded."""

    enabled: bool = Field(default=True, description="Receive OTLP. Off saves about 20 MB.")
    grpc: Annotated[Listen | None, Expect("HOST:PORT, or null")] = Field(
        default="0.0.0.0:4317", description="Where to serve OTLP/gRPC. null: nowhere, which saves about 10 MB."
    )
    http: Annotated[Listen | None, Expect("HOST:PORT, or null")] = Field(
        default="0.0.0.0:4318",
        description="Where to serve OTLP/HTTP: `/v1/traces`, `/v1/metrics`, `/v1/logs`. null: nowhere.",
    )
    body_bytes: int = Field(
        default=64 << 20, ge=1 << 10, le=1 << 30, description="Largest request, as sent and after decompression."
    )
    queue_bytes: int = Field(
        default=128 << 20,
        ge=1 << 10,
        le=1 << 34,
        description="Memory for requests being read or waiting; more are refused with a request to come again. "
        "At least `body_bytes`.",
    )
    connections: int = Field(default=512, ge=1, le=65_536, description="Open connections of each receiver.")

    @model_validator(mode="after")
    def _order(self) -> Self:
        in_order(self, "body_bytes", "queue_bytes")
        return self


class RequestsConfig(Section):
    """Requests and tokens, assembled from traces."""

    models: Annotated[dict[str, str], Expect("a map of texts")] = Field(
        default={},
        description="Model by `service.name`, or by kind of server (`vllm`, `sglang`, …), for servers whose spans do "
        "not name it. vLLM's do not.",
    )
    gpus: Annotated[
        dict[Pattern, Annotated[tuple[str, ...], Field(strict=False)]],
        Expect("a map of regular expressions to lists of GPU UUIDs"),
    ] = Field(
        default={},
        description="GPUs by `service.name` or pod name, a regular expression of the whole name, for servers that "
        "cannot be bound to GPUs otherwise.",
    )
    tenant_attributes: Annotated[tuple[str, ...], Field(strict=False), Expect("a list of texts")] = Field(
        default=("tenant.id", "x-tenant-id"), description="Span or resource attributes that name the tenant, in order."
    )
    max_tenants: int = Field(
        default=0, ge=0, le=256, description="Most tenants counted apart; the rest is `other`. 0 counts none."
    )
    nccl_inspector: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None, description="Folder of NCCL Inspector's logs (`NCCL_INSPECTOR_DUMP_DIR`) to follow."
    )
    max_models: int = Field(
        default=8, ge=1, le=32, description="Most pairs of server and model told apart; the rest is model `other`."
    )


class EndpointConfig(Section):
    """An OTLP receiver to send to."""

    endpoint: Annotated[str | None, Expect("http(s)://host:port, or null")] = Field(
        default=None, description="Where to send. null: nowhere.", pattern=r"^https?://[^\s/]+(/\S*)?$"
    )
    protocol: Literal["grpc", "http"] = Field(default="grpc", description="OTLP/gRPC or OTLP/HTTP.")
    headers: Headers = Field(default={}, description="Sent with every request, such as `authorization`.")
    gzip: bool = Field(default=True, description="Compress what is sent.")
    ca: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None, description="Certificate authorities for an https endpoint; null: the system's."
    )
    certificate: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None, description="gpumon's own certificate, for a receiver that asks for one."
    )
    key: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None, description="Private key of the certificate."
    )


class ForwardConfig(EndpointConfig):
    """Passing on what the receivers took, to a collector or a tracing back end."""

    annotate: bool = Field(
        default=True, description="Add to request spans what their GPUs and processes did meanwhile (docs/TOKENS.md)."
    )
    keep: Literal["all", "slow", "ratio"] = Field(
        default="all", description="Which traces: all, those with a slow request, or a share."
    )
    ratio: float = Field(default=0.1, ge=0, le=1, description="The share, where `keep` is `ratio`.")
    slow_first_token_s: float = Field(
        default=2.0, ge=0.001, le=3600, description="A longer time to first token is slow, where `keep` is `slow`."
    )
    slow_inter_token_s: float = Field(
        default=0.5, ge=0.001, le=3600, description="A longer gap between tokens is slow."
    )
    slow_duration_s: float = Field(default=60.0, ge=0.001, le=86_400, description="A longer request is slow.")
    queue_bytes: int = Field(default=64 << 20, ge=1 << 16, le=1 << 34, description="Memory for what waits to be sent.")
    spool: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None, description="Folder in which what waits outlives an outage and gpumon itself. null: memory only."
    )
    spool_bytes: int = Field(
        default=1 << 30, ge=1 << 20, le=1 << 40, description="Size of the folder; the oldest goes first."
    )


class ExportConfig(EndpointConfig):
    """gpumon's own metrics as OTLP, beside `/metrics`: under OpenTelemetry's names where there are any."""

    interval_s: float = Field(default=15.0, ge=1, le=3600, description="How often.")


class ServersConfig(Section):
    """Metrics pages of inference servers: queue, running batch, KV cache, preemptions."""

    targets: Annotated[tuple[str, ...], Field(strict=False), Expect("a list of http(s) URLs")] = Field(
        default=(),
        description="Pages to read, such as `http://127.0.0.1:8000/metrics`. Which server it is, is found out.",
        max_length=16,
    )
    discover: bool = Field(
        default=True,
        description="Also find servers of this node: of each process that works with a GPU, ports in `ports` that it "
        "listens on get a `GET /metrics`, once, and where that is no server's again after minutes. Nothing else is "
        "asked, and nothing on other machines.",
    )
    ports: Ports = Field(
        default=("8000-8010", "8080-8089", "30000-30010", "3000", "80", "9000"),
        description="Ports that are asked, the first in the list first: those that servers have unless told otherwise. "
        "`1-65535` asks all that GPU processes listen on. Among those are sockets of NCCL, Gloo and PyTorch's store, "
        "which trust whoever connects and have been seen to fail when a stranger does: name single ports instead.",
    )
    exclude_ports: Ports = Field(default=(), description="Of those, ports that are never asked.")

    @property
    def asked(self) -> tuple[range, ...]:
        """``ports``, as numbers."""
        return tuple(map(parse_ports, self.ports))

    @property
    def excluded(self) -> tuple[range, ...]:
        """``exclude_ports``, as numbers."""
        return tuple(map(parse_ports, self.exclude_ports))


class DetectConfig(Section):
    """Detectors and the incidents they open; docs/DETECTORS.md."""

    enabled: bool = Field(default=True, description="Look for incidents.")
    every_s: float = Field(default=1.0, ge=0.5, le=60, description="How often every detector looks.")
    off: Annotated[tuple[str, ...], Field(strict=False), Expect("a list of kinds of incidents")] = Field(
        default=(), description="Kinds of incidents that are not looked for."
    )
    thresholds: Annotated[dict[str, dict[str, float]], Expect("a map of kinds to maps of numbers")] = Field(
        default={},
        description="Other thresholds than the detectors' own, by kind and name: "
        "`{thermal_throttle: {share: 0.1}}`. Names, units and defaults are in docs/DETECTORS.md.",
    )


class ExplainConfig(Section):
    """Why tokens were slow; docs/EXPLAINING.md. Needs `otlp.enabled` and `detect.enabled`."""

    enabled: bool = Field(default=True, description="Explain slow tokens.")
    delay_s: float = Field(
        default=8.0,
        ge=2,
        le=60,
        description="How long after its end a request is explained: what ran beside it has ended by then, and counters "
        "that are read every 5 s have been read.",
    )


class StateConfig(Section):
    """What outlives a restart: counters of incidents, flight recordings."""

    folder: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=Path("/var/lib/gpumon"),
        description="Where to keep it; made if it is not there. null: nowhere. `gpumon demo` takes a folder of its own "
        "below the system's one for temporary files unless this is set.",
    )


class RecorderConfig(Section):
    """The flight recorder: when an incident opens, the minutes around it go to `state.folder`."""

    enabled: bool = Field(default=True, description="Record them.")
    before_s: float = Field(default=1800.0, ge=10, le=7200, description="How far back, at one value a second.")
    full_rate_s: float = Field(default=120.0, ge=1, le=600, description="How far back at the fast cadence.")
    after_s: float = Field(default=60.0, ge=1, le=600, description="How long it goes on after an incident's opening.")
    memory_bytes: int = Field(
        default=8 << 20, ge=1 << 20, le=1 << 30, description="Memory for the past, compressed; the oldest goes first."
    )
    file_bytes: int = Field(default=20 << 20, ge=1 << 20, le=1 << 30, description="Largest recording.")
    folder_bytes: int = Field(
        default=512 << 20,
        ge=1 << 20,
        le=1 << 40,
        description="Size of all recordings together; the oldest goes first. At least `file_bytes`.",
    )

    @model_validator(mode="after")
    def _order(self) -> Self:
        in_order(self, "file_bytes", "folder_bytes")
        return self


class LogConfig(Section):
    """gpumon's own log, on standard error."""

    format: Literal["text", "json"] = Field(default="text", description="One line of text or of JSON per record.")
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level written. Tracebacks of unexpected errors need debug."
    )


class Config(Section):
    """Everything that can be configured."""

    http: HttpConfig = HttpConfig()
    nvml: NvmlConfig = NvmlConfig()
    host: HostConfig = HostConfig()
    cadence: CadenceConfig = CadenceConfig()
    processes: ProcessesConfig = ProcessesConfig()
    numa: NumaConfig = NumaConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    store: StoreConfig = StoreConfig()
    otlp: OtlpConfig = OtlpConfig()
    requests: RequestsConfig = RequestsConfig()
    forward: ForwardConfig = ForwardConfig()
    export: ExportConfig = ExportConfig()
    servers: ServersConfig = ServersConfig()
    detect: DetectConfig = DetectConfig()
    explain: ExplainConfig = ExplainConfig()
    state: StateConfig = StateConfig()
    recorder: RecorderConfig = RecorderConfig()
    proxy: ProxyConfig = ProxyConfig()
    log: LogConfig = LogConfig()
