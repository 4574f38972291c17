"""``gpumon doctor``: look at everything once, say what works here, what is missing, and what would fix it.

Returns the exit status that ``report`` documents: 0 all this machine can have works, 1 a change would fix something,
3 no GPU can be read. NVML is asked in a process of its own with a deadline, so that a driver that hangs costs an
answer and not the doctor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

import click
from rich.console import Console

from gpumon.config import Config
from gpumon.doctor.facts import NvmlFacts, ProbeRequest, run_probe
from gpumon.doctor.gpu_checks import gpu_checks
from gpumon.doctor.host_checks import Self, host_checks, is_contained
from gpumon.doctor.own_checks import own_checks
from gpumon.doctor.render import render
from gpumon.doctor.report import Report
from gpumon.doctor.server_checks import find_servers, server_check
from gpumon.doctor.surroundings import Surroundings, gather
from gpumon.host.files import Files
from gpumon.host.host_files import HostFiles
from gpumon.host.http_client import HttpClient


def main(config: Config, json_output: bool) -> int:
    """Examine, print, and return the exit status."""
    host = config.host
    files = HostFiles(procfs=str(host.procfs), sysfs=str(host.sysfs), cgroupfs=str(host.cgroupfs))
    if sys.stderr.isatty() and not json_output:
        with Console(stderr=True).status("asking the driver"):
            report = examine(config, files, os.environ)
    else:
        report = examine(config, files, os.environ)
    if json_output:
        click.echo(report.as_json())
    else:
        render(report, sys.stdout)
    return report.exit_code


def examine(config: Config, files: Files, environ: Mapping[str, str]) -> Report:
    """Look at the machine."""
    facts = run_probe(probe_request(config), environ) if config.nvml.enabled else None
    hangs = facts is None or bool(facts.stuck or facts.died)
    around = gather(config, files, environ, open_driver=not hangs)
    pids = {pid for gpu in facts.gpus for pid in gpu.pids} if facts is not None else set()
    with closing(HttpClient()) as http:
        around = replace(around, servers=find_servers(config, files, http, sorted(pids)))
    return conclude(config, files, around, facts)


def probe_request(config: Config) -> ProbeRequest:
    """Limits as the daemon has them: a call counts as stuck after ``nvml.stuck_after_s``, opening may take longer."""
    nvml, host = config.nvml, config.host
    return ProbeRequest(
        answer_fd=-1,
        library=nvml.library or "",
        open_s=nvml.restart_after_s,
        call_s=nvml.stuck_after_s,
        procfs=str(host.procfs),
        sysfs=str(host.sysfs),
        cgroupfs=str(host.cgroupfs),
    )


def conclude(config: Config, files: Files, around: Surroundings, facts: NvmlFacts | None) -> Report:
    """From what was found to the report; reads nothing but ``files``."""
    own = Self.read(files)
    checks = (
        *gpu_checks(facts, files, around),
        *host_checks(config, files, own, around),
        server_check(config, around.servers),
        *own_checks(config, files, around),
    )
    return Report(
        checks=checks,
        gpus=tuple(facts.gpus) if facts is not None else (),
        uid=around.uid,
        capabilities=own.capabilities,
        container=is_contained(files, around),
        essential=("vmstat",) if facts is None else ("nvml", "gpus"),
    )
