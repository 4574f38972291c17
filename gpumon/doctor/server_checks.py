"""The doctor's look at inference servers: which metrics pages there are, found or configured, and which ports are not.

Asks as the daemon does, with its very source and its limits, for a few passes: what is found here is found there. Needs
the pids of the processes on GPUs; without them only what is configured is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpumon import catalogue
from gpumon.config import Config
from gpumon.doctor.report import Check, Status, checker, listed
from gpumon.host.files import Files
from gpumon.host.http import Http
from gpumon.model import GpuProcess, GpuUuid, Miss, Reason, Sample, apart
from gpumon.sources.server_discovery import Port
from gpumon.wiring import server_source

PASSES = 6
_GIVES = (catalogue.SERVER_UP, catalogue.SERVER_RUNNING, catalogue.SERVER_WAITING, catalogue.SERVER_KV_USAGE)
_NO_ANSWER = ("no_server", "no_answer", "waiting", "left_out")


@dataclass(frozen=True, slots=True)
class ServersFound:
    """What one look showed."""

    up: tuple[tuple[str, str, bool], ...] = ()
    """Server, endpoint, and whether it is configured."""
    misses: tuple[Miss, ...] = ()
    ports: tuple[Port, ...] = ()


def find_servers(config: Config, files: Files, http: Http, pids: Sequence[int]) -> ServersFound:
    """Look around. pids: of processes on GPUs."""
    holders = [GpuProcess(pid, "", GpuUuid(""), None, None) for pid in pids]
    servers = server_source(config, files, http, lambda: holders)
    samples: list[Sample] = []
    misses: list[Miss] = []
    for turn in range(PASSES):  # the second one reads what the first has found
        samples, misses, _ = apart(servers.read(float(turn)))
        if turn and not any(port.state == "waiting" for port in servers.ports):
            break
    found = [each.labels for each in samples if each.metric is catalogue.SERVER_UP and each.value == 1.0]
    discovered = {port.detail for port in servers.ports if port.state == "scraped"}
    up = [(server, endpoint, not any(f"//{endpoint}/" in url for url in discovered)) for server, endpoint in found]
    return ServersFound(tuple(up), tuple(misses), tuple(servers.ports))


def server_check(config: Config, found: ServersFound) -> Check:
    """The check ``servers``."""
    check = checker("servers", "host", "Inference servers", _GIVES)
    if not config.servers.discover and not config.servers.targets:
        return check(Status.UNSUPPORTED, "off: servers.discover is false and servers.targets is empty")
    is_up = [f"{server} at {where} ({'configured' if told else 'found'})" for server, where, told in found.up]
    details = [listed(is_up)] if is_up else []
    refused = [f"{port.door.host}:{port.door.port} ({port.detail or port.state})" for port in found.ports]
    refused = [text for text, port in zip(refused, found.ports, strict=True) if port.state in _NO_ANSWER]
    if refused:
        details.append(f"no server's page: {listed(refused)}")
    problems = [f"{miss.what}: {miss.detail or miss.reason}" for miss in found.misses]
    if problems:
        return check(Status.DEGRADED, "; ".join([*details, *problems[:6]]), _fix(found.misses))
    return check(Status.OK, "; ".join(details) or "no process on a GPU listens on a port in servers.ports")


def _fix(misses: Sequence[Miss]) -> str:
    if any(miss.reason is Reason.DENIED and not miss.what.startswith("server ") for miss in misses):
        return (
            "add the capabilities SYS_PTRACE and DAC_READ_SEARCH (systemd: AmbientCapabilities=; in a pod only uid 0 "
            "gets them), or name the pages in servers.targets"
        )
    if any(miss.what.startswith("port ") for miss in misses):
        return "let the server listen on its pod's address, or keep its port out of it: servers.exclude_ports"
    if any(miss.what.startswith("server ") for miss in misses):
        return "correct servers.targets, or start the server"
    return "name the ports in servers.ports"
