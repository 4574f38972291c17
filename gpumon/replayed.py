"""``gpumon replay``: a recording through the same sources, receivers' decoding, detectors and page as the daemon's.

Every pass that was recorded runs at its recorded time and gets its recorded answers; what asks no port (statistics,
detection) runs on its own grid. Nothing depends on when or where it is replayed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from gpumon.config import Config
from gpumon.detect.incident import Incident
from gpumon.export.prometheus import Exposition
from gpumon.export.text import Format
from gpumon.findings_text import as_json, as_text
from gpumon.host.clock import ManualClock
from gpumon.host.garbage import few_collections
from gpumon.machine import Ports
from gpumon.record.entries import NVML_CLOSE, NVML_OPEN, gpu_pass
from gpumon.record.format import FormatError
from gpumon.record.replay_nvml import ReplayNvml
from gpumon.record.replay_ports import ReplayFiles, ReplayHttp, ReplayKernelLog, ReplayPages
from gpumon.record.timeline import Pass, Recording, Request
from gpumon.recording import SECTIONS
from gpumon.stepped import SteppedNode

_PORT_SOURCES = ("host", "gpu_holders", "processes", "numa", "kernel_log", "servers", "binding")
"""Sources that ask a port: a recording has their passes."""
_GPU = gpu_pass("")
GAP_S = 3600.0
"""Longest time without a pass that is believed."""
_STRIDE_S = 1.0


class Replay:
    """One recording, once. ``run`` yields the steady time reached, about once a second of it."""

    def __init__(self, path: Path, config: Config) -> None:
        """Raises OSError and FormatError."""
        self._path = path
        self.recording = Recording(path)
        header = self.recording.header
        self.clock = ManualClock(self.recording.started_s, 0.0)
        self.clock.set_offset(self.recording.offset(self.recording.started_s))
        ports = Ports(
            ReplayFiles(self.recording, self.clock),
            ReplayPages(self.recording, self.clock),
            ReplayKernelLog(self.recording, self.clock) if header.get("kernel_log") else None,
            ReplayHttp(self.recording, self.clock),
            _texts(header.get("server_urls")),
        )
        by_hand = frozenset({"gpu_fast", *_PORT_SOURCES})
        nvml = ReplayNvml(self.recording, self.clock)
        self.node = SteppedNode(
            _config_of(header, config, path),
            ports,
            nvml,
            self.clock,
            node_names=_texts(header.get("node_names")) or ("node",),
            by_hand=by_hand,
        )

    def run(self) -> Iterator[float]:
        """Go through it."""
        told_s = self.clock.now_s()
        for event in self.recording.passes():
            if event.at_s - self.clock.now_s() > GAP_S:
                # Every second of it would be gone through, and no gpumon was silent for so long.
                gap_s = event.at_s - self.clock.now_s()
                raise FormatError(f"{self._path}: a gap of {gap_s:.3g} s in it: not what a recorder wrote")
            self.clock.set_offset(self.recording.offset(event.at_s))
            self.node.advance(event.at_s)
            if isinstance(event, Request):
                self.node.offer(event.body, signal=event.signal, is_json=event.is_json, peer=event.peer)
            else:
                self._pass(event)
            if event.at_s - told_s >= _STRIDE_S:
                told_s = event.at_s
                yield told_s

    def incidents(self) -> list[Incident]:
        """Found so far, the earliest opening first."""
        return sorted(self.node.detection.incidents(), key=lambda each: (each.opened_s, each.id))

    def page(self) -> bytes:
        """What /metrics would say now, in Prometheus' text format."""
        return Exposition().render(self.node.store.view(self.clock.now_s())).body(Format.TEXT)

    def _pass(self, event: Pass) -> None:
        sampler = self.node.sampler
        if event.name.startswith(_GPU):
            assert sampler is not None
            sampler.tick(event.at_s, event.name.removeprefix(_GPU))
        elif event.name == NVML_OPEN:
            assert sampler is not None
            sampler.open_now(event.at_s)
        elif event.name == NVML_CLOSE:
            assert sampler is not None
            sampler.close_now(event.at_s)
        else:
            self.node.run(event.name, event.at_s)


def main(path: Path, config: Config, speed: float | None, *, json_output: bool, page: Path | None) -> int:
    """The command. speed: times real time; None: as fast as it goes. Raises OSError and FormatError."""
    replay = Replay(path, config)
    recording = replay.recording
    if recording.truncated:
        click.echo(f"gpumon: {path}: the end is left out: {recording.truncated}", err=True)
    pace = _Pace(speed, recording.started_s)
    progress = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with few_collections(), progress:
        task = progress.add_task(path.name, total=recording.ended_s - recording.started_s)
        for at_s in replay.run():
            progress.update(task, completed=at_s - recording.started_s)
            pace.wait(at_s)
    if replay.node.undecodable:
        click.echo(f"gpumon: {path}: requests in it that could not be read: {replay.node.undecodable}", err=True)
    to_unix = replay.clock.to_unix
    incidents = replay.incidents()
    for incident in incidents:
        click.echo(as_json(incident, to_unix) if json_output else as_text(incident, to_unix, recording.started_s))
    if not json_output:
        recorded_s = recording.ended_s - recording.started_s
        click.echo(f"{len(incidents)} incident{'s' if len(incidents) != 1 else ''} in {recorded_s:.0f} s", err=True)
    if page is not None:
        page.write_bytes(replay.page())
    return 0


class _Pace:
    """Lets real time pass along with the recording's."""

    def __init__(self, speed: float | None, started_s: float) -> None:
        self._speed = speed
        self._started_s = started_s
        self._began_s = time.monotonic()

    def wait(self, at_s: float) -> None:
        if self._speed is not None:
            due_s = self._began_s + (at_s - self._started_s) / self._speed
            time.sleep(max(0.0, due_s - time.monotonic()))


def _config_of(header: Mapping[str, object], config: Config, path: Path) -> Config:
    """The recorded sections, and of the rest what is given here."""
    told = header.get("config")
    names = (*SECTIONS, *(["servers"] if isinstance(told, dict) and "servers" in told else []))
    wanted = {key: told[key] for key in names if key in told} if isinstance(told, dict) else {}
    try:
        recorded = Config.model_validate_json(json.dumps(wanted))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise FormatError(f"{path}: its configuration cannot be taken: {where}: {problem['msg']}") from error
    return config.model_copy(update={name: getattr(recorded, name) for name in names})


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()
