"""Which source reads what, and how often: one list for the daemon, for a stepped simulation and for a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpumon.config import Config
from gpumon.detect.detectors import build_detectors
from gpumon.detect.engine import Detection
from gpumon.detect.incident import IncidentListener
from gpumon.detect.ledger import Ledger, State
from gpumon.detect.scene import SceneMaker
from gpumon.explain.engine import Explanation
from gpumon.explain.witnesses.all import make_witnesses
from gpumon.host.files import Files
from gpumon.host.http import Http
from gpumon.machine import Ports
from gpumon.model import GpuProcess
from gpumon.node import Node
from gpumon.requests.listening import ListeningServers
from gpumon.runner import Source
from gpumon.sampler.handover import Plan
from gpumon.sources.gpu_holders import GpuHolders
from gpumon.sources.host import HostSource
from gpumon.sources.kernel_log import KernelLogSource
from gpumon.sources.kube_names import Names
from gpumon.sources.kubelet import KubeletSource
from gpumon.sources.numa import NumaSource
from gpumon.sources.pod_labels import PodLabels
from gpumon.sources.pod_map import PodMap
from gpumon.sources.pod_names import PodNames
from gpumon.sources.pods import PodSource, pods_on_gpus
from gpumon.sources.processes import ProcessSource
from gpumon.sources.server_discovery import Discovery
from gpumon.sources.servers import ServerSource
from gpumon.sources.targets import Target, newest_start_s, no_lookup
from gpumon.store import View

DISCOVERY_S = 2.0
KERNEL_LOG_S = 1.0
SERVER_TIMEOUT_S = 1.0
PODS_S = 2.0
KUBELET_STUCK_S = 45.0
"""List, what is offered and a few single pods may each take the client's 10 s."""
KUBE_API_STUCK_S = 30.0
"""A list and the begin of a watch, likewise."""


class Scheduled(NamedTuple):
    """A source and its cadence."""

    source: Source
    every_s: float
    deadline_s: float | None = None
    """A longer pass is stuck; None: the runner's own rule."""


def host_sources(config: Config, ports: Ports, node: Node) -> list[Scheduled]:
    """Sources of the main process that ask the machine, in the order in which a reader should meet them."""
    cadence = config.cadence
    node.believe_processes_for(3 * cadence.slow_s)
    pods = _PodSources(config, ports, node, lambda: holders.targets())
    holders = GpuHolders(
        node.holders,
        ports.files,
        config.processes.server_patterns,
        config.processes.limit,
        pods.names.lookup if pods.names is not None else no_lookup,
    )
    found = [
        Scheduled(HostSource(ports.files), cadence.medium_s),
        Scheduled(holders, min(DISCOVERY_S, cadence.slow_s)),
        Scheduled(
            ProcessSource(ports.files, holders.targets, config.processes.limit, slow_s=cadence.slow_s),
            cadence.medium_s,
        ),
    ]
    if config.numa.enabled:
        numa = NumaSource(
            ports.files,
            ports.pages,
            holders.targets,
            node.gpu_pci,
            sample_pages=config.numa.sample_pages,
            exact=config.numa.exact,
            exact_limit_bytes=config.numa.exact_limit_bytes,
        )
        found.append(Scheduled(numa, cadence.numa_s))
    if ports.kernel_log is not None:
        found.append(Scheduled(KernelLogSource(ports.kernel_log, node.xids.kernel_event), KERNEL_LOG_S))
    found.append(Scheduled(node.xids, cadence.publish_s))
    found += pods.scheduled
    if ports.server_urls or config.servers.targets or config.servers.discover:
        servers = server_source(config, ports.files, ports.http, node.holders, ports.server_urls)
        found.append(Scheduled(servers, cadence.servers_s))
    return found


def server_source(
    config: Config, files: Files, http: Http, holders: Callable[[], Sequence[GpuProcess]], urls: Sequence[str] = ()
) -> ServerSource:
    """The source of servers' pages. holders: processes that hold GPUs now. urls: pages besides the configured ones."""
    urls = (*urls, *config.servers.targets)
    discovery = None
    if config.servers.discover:
        listening = ListeningServers(files, holders, config.servers.asked, config.servers.excluded)
        discovery = Discovery(listening, urls)
    timeout_s = min(SERVER_TIMEOUT_S, config.cadence.servers_s)
    return ServerSource(http, urls, timeout_s=timeout_s, discovery=discovery)


class _PodSources:
    """What tells of pods, as far as there is a kubelet, a log folder or an API server to tell."""

    def __init__(self, config: Config, ports: Ports, node: Node, targets: Callable[[], Sequence[Target]]) -> None:
        self.names: PodNames | None = None
        self.scheduled: list[Scheduled] = []
        mapped: Callable[[], PodMap | None] = lambda: None  # noqa: E731 - one of two
        told: Callable[[], Names | None] = lambda: None  # noqa: E731
        if ports.pod_resources is not None:
            kubelet = KubeletSource(
                ports.pod_resources, lambda: newest_start_s(targets()), every_s=config.kubernetes.every_s
            )
            pods = PodSource(kubelet.listing, lambda: kubelet.state, node.gpu_devices, targets, node.to_unix)
            mapped = pods.mapped
            self.scheduled += [Scheduled(kubelet, PODS_S, KUBELET_STUCK_S), Scheduled(pods, PODS_S)]
        if ports.kube_api is not None:
            labels = PodLabels(ports.kube_api, config.kubernetes.labels, lambda: pods_on_gpus(mapped(), targets()))
            told = labels.names
            self.scheduled.append(Scheduled(labels, PODS_S, KUBE_API_STUCK_S))
        if ports.kube_api is not None or ports.log_names is not None:
            self.names = PodNames(ports.log_names, told)
        if self.names is not None and ports.log_names is not None:
            self.scheduled.append(Scheduled(self.names, PODS_S))


def build_detection(
    config: Config,
    to_unix: Callable[[float], float],
    view: Callable[[float], View],
    *,
    listeners: Sequence[IncidentListener] = (),
    state: State | None = None,
    explanation: Explanation | None = None,
) -> Detection:
    """Every detector that is not off, the ledger behind them, and what they see.

    to_unix: of steady seconds. state: where counters of incidents outlive a restart. explanation: looks at the same
    scenes. Raises DetectConfigError.
    """
    built = build_detectors(config.detect)
    scenes = SceneMaker(lambda unix_ns: unix_ns / 1e9 - to_unix(0.0))
    after = explanation.look if explanation is not None else None
    return Detection(built.detectors, Ledger(built.kinds, to_unix, listeners, state), scenes, view, after)


def why_unexplained(config: Config) -> str:
    """Which keys keep slow tokens from being explained; empty where they are."""
    needed = {
        "explain.enabled": config.explain.enabled,
        "detect.enabled": config.detect.enabled,
        "otlp.enabled": config.otlp.enabled,
    }
    off = [key for key, is_on in needed.items() if not is_on]
    return f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off" if off else ""


def why_off(config: Config) -> tuple[tuple[str, str], ...]:
    """Parts that are switched off, each with the key that switches it on."""
    parts = (
        ("gpus", "nvml.enabled", config.nvml.enabled),
        ("traces", "otlp.enabled", config.otlp.enabled),
        ("incidents", "detect.enabled", config.detect.enabled),
        ("explanation", "explain.enabled", config.explain.enabled),
        ("flight recorder", "recorder.enabled", config.recorder.enabled),
        ("numa", "numa.enabled", config.numa.enabled),
    )
    off = [(part, f"{key} is off") for part, key, is_on in parts if not is_on]
    if config.recorder.enabled and config.detect.enabled and config.state.folder is None:
        off.append(("flight recorder", "state.folder is null"))
    if config.forward.endpoint is None:
        off.append(("forwarding", "forward.endpoint is null"))
    return tuple(off)


def build_explanation(config: Config) -> Explanation | None:
    """What explains slow tokens; None where that is off, or no tokens can come."""
    if why_unexplained(config):
        return None
    return Explanation(make_witnesses(), delay_s=config.explain.delay_s, models=config.requests.max_models)


def sampler_plan(config: Config) -> Plan:
    """How often the sampler reads what."""
    cadence, nvml = config.cadence, config.nvml
    return Plan(
        fast_s=cadence.fast_s,
        mig_s=cadence.publish_s,
        slow_s=cadence.slow_s,
        inventory_s=cadence.inventory_s,
        stuck_after_s=nvml.stuck_after_s,
        retry_min_s=nvml.retry_min_s,
        retry_max_s=nvml.retry_max_s,
    )
