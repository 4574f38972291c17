"""The machine that is watched, behind its ports: the real one or a simulated one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumon.config import Config
from gpumon.host.clock import Clock
from gpumon.host.files import Files
from gpumon.host.host_files import HostFiles
from gpumon.host.http import Http
from gpumon.host.http_client import HttpClient
from gpumon.host.interpreter import module_command
from gpumon.host.kmsg import DevKmsg, KernelLog
from gpumon.host.kube_api import KubeApi
from gpumon.host.log_names import LogFolder, LogNames
from gpumon.host.move_pages import MovePages
from gpumon.host.pages import Pages
from gpumon.host.podresources import PodResources

if TYPE_CHECKING:
    from gpumon.sim.world import World


@dataclass(frozen=True, slots=True)
class Ports:
    """What the sources of the main process may ask."""

    files: Files
    pages: Pages
    kernel_log: KernelLog | None
    http: Http
    server_urls: tuple[str, ...] = ()
    """Metrics pages of servers that are there besides the configured ones: a simulated node's."""
    pod_resources: PodResources | None = None
    """The kubelet of the node; None without one."""
    log_names: LogNames | None = None
    """The kubelet's log folders; None without them."""
    kube_api: KubeApi | None = None
    """The API server; None where it is not to be asked."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and how to start the sampler on it."""

    ports: Ports
    sampler: list[str] | None
    """Command of the sampler process; None without NVML."""
    sampler_options: dict[str, str] = field(default_factory=dict)
    world: World | None = None
    """The simulated node behind it; its traces have to be sent."""


def real_machine(config: Config) -> Machine:
    """The machine as it is."""
    host, nvml = config.host, config.nvml
    options = {
        "library": nvml.library or "",
        "procfs": str(host.procfs),
        "sysfs": str(host.sysfs),
        "cgroupfs": str(host.cgroupfs),
    }
    files = HostFiles(procfs=str(host.procfs), sysfs=str(host.sysfs), cgroupfs=str(host.cgroupfs))
    kernel_log = DevKmsg(str(host.kernel_log)) if host.kernel_log is not None else None
    sampler = module_command("gpumon.sampler") if nvml.enabled else None
    ports = Ports(
        files,
        MovePages(str(host.procfs)),
        kernel_log,
        HttpClient(),
        pod_resources=pod_resources(config),
        log_names=_log_names(config),
        kube_api=_kube_api(config, os.environ),
    )
    return Machine(ports, sampler, options)


def pod_resources(config: Config) -> PodResources | None:
    """The kubelet, where it is configured, or has its usual folder here."""
    kubernetes = config.kubernetes
    path = kubernetes.pod_resources
    if path is None or not ("pod_resources" in kubernetes.model_fields_set or os.path.isdir(path.parent)):
        return None
    from gpumon.host.podresources_client import KubeletSocket  # 20 MB that only a node of Kubernetes needs

    return KubeletSocket(str(path))


def _log_names(config: Config) -> LogNames | None:
    kubernetes = config.kubernetes
    if kubernetes.log_folder is None:
        return None
    folder = LogFolder(str(kubernetes.log_folder))
    return folder if "log_folder" in kubernetes.model_fields_set or folder.is_there else None


def _kube_api(config: Config, environ: Mapping[str, str]) -> KubeApi | None:
    if not config.kubernetes.api:
        return None
    from gpumon.host.kube_api_client import InCluster  # http.client and ssl, which most do without

    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
    address = (host, int(port)) if host and port.isdecimal() else None
    return InCluster(address, environ.get("NODE_NAME", ""))


def simulated_machine(clock: Clock, scenario: str = "demo") -> Machine:
    """A node that serves, as a scenario has it: the name of a built-in one or the path of a file.

    Raises ScenarioError.
    """
    from gpumon.sim.builtin import find_scenario
    from gpumon.sim.world import World

    started_at_s = clock.now_s()
    world = World(find_scenario(scenario), started_at_s=started_at_s)
    options = {"scenario": scenario, "seed": str(world.seed), "started_at_s": repr(started_at_s)}
    return Machine(simulated_ports(world, clock), module_command("gpumon.sim.sampler"), options, world)


def simulated_ports(world: World, clock: Clock) -> Ports:
    """The faces of a simulated node."""
    from gpumon.sim.files import SimFiles
    from gpumon.sim.http import SimHttp, server_urls
    from gpumon.sim.kmsg import SimKernelLog
    from gpumon.sim.pages import SimPages

    return Ports(
        SimFiles(world, clock),
        SimPages(world, clock),
        SimKernelLog(world, clock),
        SimHttp(world, clock),
        server_urls(world),
    )
