"""The machine that is watched, behind its ports: the real one or a simulated one."""

from __future__ import annotations

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
from gpumon.host.move_pages import MovePages
from gpumon.host.pages import Pages

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
    return Machine(Ports(files, MovePages(str(host.procfs)), kernel_log, HttpClient()), sampler, options)


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
