"""The whole configuration of gpumon, as typed, frozen models: every key with its default, range and meaning.

Decides what may be configured and what a value must be; ``config_load`` brings the values from the file, the
environment and the flags. Seconds and bytes, as the names say. docs/CONFIGURATION.md is made from these models.
"""

from __future__ import annotations

import ipaddress
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

FLAGS = {
    "--listen": "http.listen",
    "--otlp-grpc": "otlp.grpc",
    "--otlp-http": "otlp.http",
    "--nvml-lib": "nvml.library",
    "--procfs": "host.procfs",
    "--sysfs": "host.sysfs",
    "--cgroupfs": "host.cgroupfs",
    "--log-format": "log.format",
    "--log-level": "log.level",
}
"""Command line flags and the keys they set."""
PROXY_FLAGS = {
    "--upstream": "proxy.upstream",
    "--listen": "proxy.listen",
    "--admin": "proxy.admin",
    "--otlp": "proxy.otlp",
    "--service-name": "proxy.service_name",
    "--inject": "proxy.inject",
    "--inject-seed": "proxy.inject_seed",
    "--ask-for-usage": "proxy.ask_for_usage",
    "--log-format": "log.format",
    "--log-level": "log.level",
}
"""Likewise those of `gpumon proxy`."""

ENVIRONMENT_PREFIX = "GPUMON_"
COMM_BYTES = 15
"""What the kernel keeps of a command name."""
_LABEL_KEY = re.compile(r"(?:[a-z0-9][a-z0-9.-]{0,252}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_CREDENTIALS = re.compile(
    r"(?:.*-)?(?:authorization|authentication|cookie2?|credentials?|jwt|assertion|oidc-data|passwd|password"
    r"|auth|secret|[a-z]*token|(?:api|access|auth|functions|license|private|secret|subscription)-?key)",
    re.ASCII | re.IGNORECASE,
)
_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}", re.ASCII)
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,252})")


class Address(NamedTuple):
    """Where to listen. Port 0: any free one."""

    host: str
    port: int


def parse_listen(text: str) -> Address:
    """``HOST:PORT``, ``[IPV6]:PORT``, or ``:PORT`` for every IPv4 address of the machine. Raises ValueError."""
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise ValueError("there is no port")
    if not (re.fullmatch(r"[0-9]{1,5}", port_text) and int(port_text) <= 65535):
        raise ValueError(f"port {shown(port_text)} is not a number from 0 to 65535")
    port = int(port_text)
    if not host:
        return Address("0.0.0.0", port)  # noqa: S104 - said so in the docstring and the docs
    if host.startswith("[") and host.endswith("]"):
        return Address(str(ipaddress.IPv6Address(host[1:-1])), port)
    if ":" in host:
        raise ValueError("an IPv6 address stands in brackets: [::1]:9450")
    if re.fullmatch(r"[0-9.]+", host):
        return Address(str(ipaddress.IPv4Address(host)), port)
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{shown(host)} is not a host name")
    return Address(host, port)


def _check_listen(text: str) -> str:
    parse_listen(text)
    return text


def _check_not_empty(text: object) -> object:
    if text == "":
        raise ValueError("it is empty")  # pathlib would take it for the working directory
    return text


def _check_path(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path has no NUL character")
    return path


def _parse_server(text: str) -> re.Pattern[str]:
    """A command name, or between slashes a pattern of whole command names; as a pattern. Raises ValueError."""
    if not text.startswith("/"):
        if not 0 < len(text) <= 200:
            raise ValueError("a command name has 1 to 200 characters")
        return re.compile(re.escape(text.encode()[:COMM_BYTES].decode(errors="ignore")))
    if not 3 <= len(text) <= 200 or not text.endswith("/"):
        raise ValueError(f"{shown(text)} is not a pattern of 1 to 198 characters between slashes")
    return _pattern(text[1:-1], text)


def _pattern(pattern: str, text: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd patterns are the user's right
            return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as err:
        raise ValueError(f"{shown(text)} is not a regular expression: {err}") from err


def _check_pattern(text: str) -> str:
    _pattern(text, text)
    return text


def _check_server(text: str) -> str:
    _parse_server(text)
    return text


def _in_order(section: BaseModel, low: str, high: str) -> None:
    low_value, high_value = getattr(section, low), getattr(section, high)
    if low_value > high_value:
        raise ValueError(f"{low} = {low_value:g} is above {high} = {high_value:g}: expected it at or below")


def holds_credentials(name: str) -> bool:
    """Whether a header of this name is there to let somebody in: its value is shown nowhere."""
    return _CREDENTIALS.fullmatch(name) is not None


def _check_no_credentials(name: str) -> str:
    if holds_credentials(name):
        raise ValueError("it holds credentials, and what it says would be sent with every trace")
    return name


def _check_fields(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"{shown(name)} is not the name of a header")
        if not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"the value of {name} is not one line of printable Latin-1")
    return headers


class _Expect(NamedTuple):
    """What a value must look like, in words, for errors and docs."""

    words: str


class _Secret(NamedTuple):
    """Marks a value that errors do not show."""


def parse_ports(text: str) -> range:
    """One port, or a range of them such as ``30000-30010``. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,5}(?:-[0-9]{1,5})?", text):
        raise ValueError(f"{shown(text)} is neither a port nor a range of ports")
    first, _, last = text.partition("-")
    ports = range(int(first), int(last or first) + 1)
    if not 1 <= ports.start < ports.stop <= 65_536:
        raise ValueError(f"{shown(text)} is not from 1 to 65535, the lower first")
    return ports


def _port_as_text(value: object) -> object:
    return str(value) if type(value) is int else value  # YAML reads a single port as a number


def _check_ports(text: str) -> str:
    parse_ports(text)
    return text


def _check_label_key(text: str) -> str:
    if not _LABEL_KEY.fullmatch(text):
        raise ValueError(f"{shown(text)} is not the key of a label")
    return text


_Listen = Annotated[str, AfterValidator(_check_listen), _Expect("HOST:PORT, [IPV6]:PORT or :PORT")]
_Path = Annotated[
    Path, Field(strict=False), BeforeValidator(_check_not_empty), AfterValidator(_check_path), _Expect("a path")
]
_Server = Annotated[str, AfterValidator(_check_server)]
_Fields = Annotated[dict[str, str], AfterValidator(_check_fields), _Secret(), _Expect("a map of texts")]
_LabelKeys = Annotated[
    tuple[Annotated[str, AfterValidator(_check_label_key)], ...],
    Field(strict=False, max_length=32),
    _Expect("a list of at most 32 keys of labels"),
]
_Servers = Annotated[
    tuple[_Server, ...],
    Field(strict=False, max_length=64),
    _Expect("a list of at most 64 command names or /regular expressions/"),
]


_Ports = Annotated[
    tuple[Annotated[str, BeforeValidator(_port_as_text), AfterValidator(_check_ports)], ...],
    Field(strict=False, max_length=64),
    _Expect("a list of at most 64 ports or ranges such as 30000-30010"),
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, str_max_length=4096)


class HttpConfig(_Section):
    """The HTTP server: `/metrics`, health, and what else it offers."""

    listen: _Listen = Field(
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

    web_config: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=None,
        description="A Prometheus `web-config.yml`: TLS, basic authentication and bearer tokens, for this server and "
        "the OTLP receivers.",
    )

    @property
    def address(self) -> Address:
        """``listen``, taken apart."""
        return parse_listen(self.listen)


class NvmlConfig(_Section):
    """NVML, the NVIDIA driver's library."""

    enabled: bool = Field(default=True, description="Read NVML. Off leaves the host's own metrics.")
    library: Annotated[str | None, _Expect("a path or library name, or null")] = Field(
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
        _in_order(self, "stuck_after_s", "restart_after_s")
        _in_order(self, "retry_min_s", "retry_max_s")
        return self


class HostConfig(_Section):
    """Where the host's files are. In a container with the host's folders mounted: below that mount."""

    procfs: _Path = Field(default=Path("/proc"), description="The proc file system.")
    sysfs: _Path = Field(default=Path("/sys"), description="The sys file system.")
    cgroupfs: _Path = Field(
        default=Path("/sys/fs/cgroup"), description="The cgroup tree, version 1 or 2; the version is found out."
    )
    kernel_log: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=Path("/dev/kmsg"),
        description="Kernel log to read XID errors from. null does not read it; NVML events remain.",
    )


class CadenceConfig(_Section):
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
        _in_order(self, "fast_s", "publish_s")
        return self


class ProcessesConfig(_Section):
    """Processes that are followed."""

    limit: int = Field(
        default=64,
        ge=1,
        le=256,
        description="Most processes followed. Those with the most GPU memory stay, the rest is summed as `other`.",
    )
    servers: _Servers = Field(
        default=(),
        description="Also follow processes that hold no GPU and have one of these command names (`/proc/<pid>/comm`, "
        "which the kernel cuts at 15 bytes): exact, or between slashes a regular expression of the whole name, such as "
        "`/VLLM.*/`.",
    )

    @property
    def server_patterns(self) -> tuple[re.Pattern[str], ...]:
        """``servers`` as ``sources.targets`` takes them: patterns of whole command names."""
        return tuple(_parse_server(text) for text in self.servers)


class NumaConfig(_Section):
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


class KubernetesConfig(_Section):
    """Which pods hold the GPUs, and the names of pods and containers. The kubelet's socket is root's."""

    pod_resources: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        description="The kubelet's pod-resources socket; in a container mount its folder. The default is used only "
        "where that folder is there at start. null: the kubelet is not asked.",
    )
    log_folder: Annotated[_Path | None, _Expect("a path or null")] = Field(
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
    labels: _LabelKeys = Field(
        default=(),
        description="Keys of pod labels that become `gpumon_pod_label_info`, for pods that hold a GPU. Needs `api`.",
    )

    @model_validator(mode="after")
    def _labels_need_the_api(self) -> Self:
        if self.labels and not self.api:
            raise ValueError("labels need api: true")
        return self


class StoreConfig(_Section):
    """Memory for samples."""

    max_series: int = Field(
        default=50_000, ge=100, le=1_000_000, description="Most series held; more are dropped and counted."
    )
    history_points: int = Field(default=240, ge=2, le=10_000, description="Newest values kept of each series.")


class OtlpConfig(_Section):
    """Receivers of OTLP: traces of inference servers, and what else they send, to be forwarded."""

    enabled: bool = Field(default=True, description="Receive OTLP. Off saves about 20 MB.")
    grpc: Annotated[_Listen | None, _Expect("HOST:PORT, or null")] = Field(
        default="0.0.0.0:4317", description="Where to serve OTLP/gRPC. null: nowhere, which saves about 10 MB."
    )
    http: Annotated[_Listen | None, _Expect("HOST:PORT, or null")] = Field(
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
        _in_order(self, "body_bytes", "queue_bytes")
        return self


class RequestsConfig(_Section):
    """Requests and tokens, assembled from traces."""

    models: Annotated[dict[str, str], _Expect("a map of texts")] = Field(
        default={},
        description="Model by `service.name`, or by kind of server (`vllm`, `sglang`, …), for servers whose spans do "
        "not name it. vLLM's do not.",
    )
    gpus: Annotated[
        dict[Annotated[str, AfterValidator(_check_pattern)], Annotated[tuple[str, ...], Field(strict=False)]],
        _Expect("a map of regular expressions to lists of GPU UUIDs"),
    ] = Field(
        default={},
        description="GPUs by `service.name` or pod name, a regular expression of the whole name, for servers that "
        "cannot be bound to GPUs otherwise.",
    )
    tenant_attributes: Annotated[tuple[str, ...], Field(strict=False), _Expect("a list of texts")] = Field(
        default=("tenant.id", "x-tenant-id"), description="Span or resource attributes that name the tenant, in order."
    )
    max_tenants: int = Field(
        default=0, ge=0, le=256, description="Most tenants counted apart; the rest is `other`. 0 counts none."
    )
    nccl_inspector: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=None, description="Folder of NCCL Inspector's logs (`NCCL_INSPECTOR_DUMP_DIR`) to follow."
    )
    max_models: int = Field(
        default=8, ge=1, le=32, description="Most pairs of server and model told apart; the rest is model `other`."
    )


class EndpointConfig(_Section):
    """An OTLP receiver to send to."""

    endpoint: Annotated[str | None, _Expect("http(s)://host:port, or null")] = Field(
        default=None, description="Where to send. null: nowhere.", pattern=r"^https?://[^\s/]+(/\S*)?$"
    )
    protocol: Literal["grpc", "http"] = Field(default="grpc", description="OTLP/gRPC or OTLP/HTTP.")
    headers: _Fields = Field(default={}, description="Sent with every request, such as `authorization`.")
    gzip: bool = Field(default=True, description="Compress what is sent.")
    ca: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=None, description="Certificate authorities for an https endpoint; null: the system's."
    )
    certificate: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=None, description="gpumon's own certificate, for a receiver that asks for one."
    )
    key: Annotated[_Path | None, _Expect("a path or null")] = Field(
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
    spool: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=None, description="Folder in which what waits outlives an outage and gpumon itself. null: memory only."
    )
    spool_bytes: int = Field(
        default=1 << 30, ge=1 << 20, le=1 << 40, description="Size of the folder; the oldest goes first."
    )


class ExportConfig(EndpointConfig):
    """gpumon's own metrics as OTLP, beside `/metrics`: under OpenTelemetry's names where there are any."""

    interval_s: float = Field(default=15.0, ge=1, le=3600, description="How often.")


class ServersConfig(_Section):
    """Metrics pages of inference servers: queue, running batch, KV cache, preemptions."""

    targets: Annotated[tuple[str, ...], Field(strict=False), _Expect("a list of http(s) URLs")] = Field(
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
    ports: _Ports = Field(
        default=("8000-8010", "8080-8089", "30000-30010", "3000", "80", "9000"),
        description="Ports that are asked, the first in the list first: those that servers have unless told otherwise. "
        "`1-65535` asks all that GPU processes listen on. Among those are sockets of NCCL, Gloo and PyTorch's store, "
        "which trust whoever connects and have been seen to fail when a stranger does: name single ports instead.",
    )
    exclude_ports: _Ports = Field(default=(), description="Of those, ports that are never asked.")

    @property
    def asked(self) -> tuple[range, ...]:
        """``ports``, as numbers."""
        return tuple(map(parse_ports, self.ports))

    @property
    def excluded(self) -> tuple[range, ...]:
        """``exclude_ports``, as numbers."""
        return tuple(map(parse_ports, self.exclude_ports))


class DetectConfig(_Section):
    """Detectors and the incidents they open; docs/DETECTORS.md."""

    enabled: bool = Field(default=True, description="Look for incidents.")
    every_s: float = Field(default=1.0, ge=0.5, le=60, description="How often every detector looks.")
    off: Annotated[tuple[str, ...], Field(strict=False), _Expect("a list of kinds of incidents")] = Field(
        default=(), description="Kinds of incidents that are not looked for."
    )
    thresholds: Annotated[dict[str, dict[str, float]], _Expect("a map of kinds to maps of numbers")] = Field(
        default={},
        description="Other thresholds than the detectors' own, by kind and name: "
        "`{thermal_throttle: {share: 0.1}}`. Names, units and defaults are in docs/DETECTORS.md.",
    )


class ExplainConfig(_Section):
    """Why tokens were slow; docs/EXPLAINING.md. Needs `otlp.enabled` and `detect.enabled`."""

    enabled: bool = Field(default=True, description="Explain slow tokens.")
    delay_s: float = Field(
        default=8.0,
        ge=2,
        le=60,
        description="How long after its end a request is explained: what ran beside it has ended by then, and counters "
        "that are read every 5 s have been read.",
    )


class StateConfig(_Section):
    """What outlives a restart: counters of incidents, flight recordings."""

    folder: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=Path("/var/lib/gpumon"),
        description="Where to keep it; made if it is not there. null: nowhere. `gpumon demo` takes a folder of its own "
        "below the system's one for temporary files unless this is set.",
    )


class RecorderConfig(_Section):
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
        _in_order(self, "file_bytes", "folder_bytes")
        return self


_HeaderName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9-]{1,64}$"),
    AfterValidator(_check_no_credentials),
    _Expect("the name of a header"),
]


class ProxyConfig(_Section):
    """`gpumon proxy`, the token-timing pass-through; docs/PROXY.md. `gpumon run` takes no notice of it."""

    upstream: Annotated[str | None, _Expect("http(s)://HOST:PORT, perhaps with a path")] = Field(
        default=None, description="The inference server behind.", pattern=r"^https?://[^\s/]+(/\S*)?$"
    )
    listen: _Listen = Field(
        default="127.0.0.1:9460",
        description="Where clients connect. Whoever reaches it reaches the server: only this machine unless said "
        "otherwise.",
    )
    admin: Annotated[_Listen | None, _Expect("HOST:PORT, or null")] = Field(
        default="0.0.0.0:9461", description="Where to serve the proxy's own `/metrics` and `/-/healthy`. null: nowhere."
    )
    otlp: Annotated[str | None, _Expect("http(s)://host:port, or null")] = Field(
        default="http://127.0.0.1:4318",
        description="gpumon's OTLP/HTTP receiver, for the traces. null: none are sent.",
        pattern=r"^https?://[^\s/]+(/\S*)?$",
    )
    otlp_headers: _Fields = Field(default={}, description="Sent with every batch of traces, such as `authorization`.")
    otlp_ca: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=None, description="Certificate authorities for an https receiver; null: the system's."
    )
    service_name: Annotated[str, _Expect("a text of 1 to 128 characters")] = Field(
        default="gpumon-proxy", description="`service.name` of the traces.", min_length=1, max_length=128
    )
    upstream_ca: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=None, description="Certificate authorities for an https server; null: the system's."
    )
    web_config: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=None,
        description="A Prometheus `web-config.yml`: TLS for both ports, users and tokens for the admin port. Clients' "
        "own credentials are the server's to check.",
    )
    inject: Annotated[tuple[str, ...], Field(strict=False, max_length=16), _Expect("a list of at most 16 rules")] = (
        Field(default=(), description="Delays to put in on purpose, such as `token:20ms`; docs/PROXY.md.")
    )
    inject_seed: Annotated[int | None, _Expect("a whole number or null")] = Field(
        default=None, description="The same seed, the same delays. null: another at each start, which the log names."
    )
    ask_for_usage: bool = Field(
        default=False,
        description="Add `stream_options.include_usage` to streaming requests that do not say anything of it. Their "
        "clients then get one more event.",
    )
    tenant_header: _HeaderName = Field(default="x-tenant-id", description="Request header that names the tenant.")
    inference_header: _HeaderName = Field(
        default="x-inference-id", description="Request header with an id to which evaluations refer."
    )
    prompt_salt_file: Annotated[_Path | None, _Expect("a path or null")] = Field(
        default=None,
        description="File with the salt of prompt hashes, 16 bytes at least: proxies that share it give equal prompts "
        "equal hashes. null: a salt of its own at each start.",
    )
    peek_bytes: int = Field(
        default=1 << 20,
        ge=1 << 10,
        le=64 << 20,
        description="Largest request body that is looked at for model and parameters. Larger ones pass all the same.",
    )
    connections: int = Field(default=4096, ge=1, le=32_768, description="Most connections of clients.")
    connect_timeout_s: float = Field(default=10.0, ge=0.1, le=600, description="For connecting to the server.")
    idle_timeout_s: float = Field(
        default=600.0,
        ge=1,
        le=86_400,
        description="A request under way in which nothing moves for so long is given up. A long prompt computes for "
        "minutes before its first token.",
    )
    upstream_keep_alive_s: float = Field(
        default=4.0,
        ge=0,
        le=600,
        description="How long an idle connection to the server is kept. Below the server's own limit: uvicorn's, so "
        "vLLM's and SGLang's, is 5 s.",
    )
    drain_s: float = Field(
        default=30.0, ge=0, le=3600, description="For requests under way when the proxy is asked to end."
    )


class LogConfig(_Section):
    """gpumon's own log, on standard error."""

    format: Literal["text", "json"] = Field(default="text", description="One line of text or of JSON per record.")
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level written. Tracebacks of unexpected errors need debug."
    )


class Config(_Section):
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


class Key(NamedTuple):
    """One key of the configuration, for docs, flags and errors."""

    section: str
    name: str
    field: FieldInfo

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return f"{ENVIRONMENT_PREFIX}{self.section}__{self.name}".upper()

    @property
    def flag(self) -> str | None:
        return next((flag for flag, path in FLAGS.items() if path == self.path), None)

    @property
    def secret(self) -> bool:
        """Whether errors must not show the value."""
        return any(isinstance(item, _Secret) for item in self.field.metadata)

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        return _expected(self.field)


def keys() -> Iterator[Key]:
    """All keys, in the order of the models."""
    for section, section_field in Config.model_fields.items():
        model = section_field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from (Key(section, name, field) for name, field in model.model_fields.items())


def shown(value: object) -> str:
    """A foreign value in an error: on one line, in ASCII, not long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


def _expected(field: FieldInfo) -> str:
    words = next((item.words for item in field.metadata if isinstance(item, _Expect)), None)
    if words is not None:
        return words
    if get_origin(field.annotation) is Literal:
        return "one of " + ", ".join(get_args(field.annotation))
    if field.annotation is bool:
        return "true or false"
    least = next((item.ge for item in field.metadata if isinstance(item, Ge)), None)
    most = next((item.le for item in field.metadata if isinstance(item, Le)), None)
    return f"{'a whole number' if field.annotation is int else 'a number'} from {least} to {most}"
