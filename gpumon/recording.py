"""``gpumon record``: the daemon as it runs, with everything that its ports answer written to a file.

Wires ``record``'s ports around a machine's. The sampler process records its own part of the file: its entry is
``recorded_sampler``, which builds the same NVML behind a recording one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpumon.config import Config
from gpumon.host.clock import Clock
from gpumon.host.interpreter import module_command
from gpumon.ingest.request import Signal
from gpumon.machine import Machine, Ports
from gpumon.record.joining import to_options
from gpumon.record.mask import Mask
from gpumon.record.recorder import Recorder
from gpumon.record.recording_ports import (
    RecordedSource,
    RecordingFiles,
    RecordingHttp,
    RecordingKernelLog,
    RecordingPages,
    safe_url,
)
from gpumon.runner import Source

log = logging.getLogger(__name__)

SECTIONS = ("cadence", "processes", "numa", "store", "requests")
"""Of the configuration, what a replay needs to read the same things at the same times. None of it is secret."""
_SERVERS = {"discover", "ports", "exclude_ports"}
"""Likewise; the targets are told apart, without what may be secret in them."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be recorded."""

    path: Path
    mask: bool = False
    overwrite: bool = False
    limit_bytes: int | None = None
    """The recording ends when the file is this large, and gpumon goes on."""
    duration_s: float | None = None


class DaemonRecording:
    """One recording of one daemon. ``machine`` and ``source`` wrap; ``start``; ``close`` at the end."""

    def __init__(self, wish: Wish, config: Config, machine: Machine, clock: Clock, node_names: Sequence[str]) -> None:
        """Makes the file. Raises OSError, whose text is for a person."""
        self.path = wish.path
        mask = Mask(node_names, config.requests.tenant_attributes) if wish.mask else None
        try:
            self._recorder = Recorder.create(
                wish.path,
                clock,
                _say_stopped,
                _about(config, machine.ports, node_names),
                mask=mask,
                limit_bytes=wish.limit_bytes,
                overwrite=wish.overwrite,
            )
        except OSError as error:
            replaceable = isinstance(error, FileExistsError) and not wish.overwrite
            hint = "; --overwrite replaces it" if replaceable else ""
            raise OSError(f"cannot record to {wish.path}: {error.strerror or error}{hint}") from error
        self.machine = self._wrapped(machine, wish, mask)

    def source(self, source: Source) -> Source:
        """The source, with its passes marked."""
        return RecordedSource(source, self._recorder.mark)

    def body(self, signal: Signal, body: bytes, is_json: bool, peer: str, at_s: float) -> None:
        """An export request was taken."""
        self._recorder.request(signal, body, is_json, peer, at_s)

    def start(self) -> None:
        """Begin to write."""
        self._recorder.start()

    def close(self) -> None:
        """Write what is left, and say what there is. That recording ended by itself was said when it did."""
        self._recorder.close()
        dropped = ", ".join(f"{reason} {count}" for reason, count in self._recorder.dropped.items())
        log.info(
            "recording=ended path=%s bytes=%d%s",
            self.path,
            self.path.stat().st_size if self.path.exists() else 0,
            f" requests_not_recorded={dropped!r}" if dropped else "",
        )

    def _wrapped(self, machine: Machine, wish: Wish, mask: Mask | None) -> Machine:
        ports, recorder = machine.ports, self._recorder
        # What tells of pods is not recorded: their names are other people's, and a replay does without.
        recording = replace(
            ports,
            files=RecordingFiles(ports.files, recorder),
            pages=RecordingPages(ports.pages, recorder),
            kernel_log=RecordingKernelLog(ports.kernel_log, recorder) if ports.kernel_log is not None else None,
            http=RecordingHttp(ports.http, recorder),
        )
        options = machine.sampler_options | to_options(str(wish.path.resolve()), wish.limit_bytes, mask)
        sampler = module_command("gpumon.recorded_sampler") if machine.sampler is not None else None
        return replace(machine, ports=recording, sampler=sampler, sampler_options=options)


def _about(config: Config, ports: Ports, node_names: Sequence[str]) -> dict[str, object]:
    return {
        "node_names": list(node_names),
        # As what they answer is kept, without what may be secret in them.
        "server_urls": [safe_url(url) for url in (*ports.server_urls, *config.servers.targets)],
        "config": config.model_dump(mode="json", include={**dict.fromkeys(SECTIONS, True), "servers": _SERVERS}),
        "kernel_log": ports.kernel_log is not None,
    }


def _say_stopped(why: str) -> None:
    log.warning("recording=stopped detail=%r", why)
