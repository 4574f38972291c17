"""What the probe of NVML found, as it travels from the probe's process to the doctor: plain values, as JSON.

The probe runs in a child (``gpumon.doctor.probe``), because a driver that hangs must not hang the doctor. This end
starts it, waits for at most a deadline, and kills it; it never waits for a child that the kernel cannot end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from gpumon.host.interpreter import module_command, module_environment

PROBE_MODULE = "gpumon.doctor.probe"
OUT_OF_RANGE = "out of range"
ANSWER_MAX = 1 << 22
"""Bytes; a node of 16 GPUs needs 40 KiB."""


@dataclass(frozen=True, slots=True)
class CallError:
    """An NVML call that failed."""

    code: int
    name: str
    function: str


@dataclass(slots=True)
class GpuFacts:
    """One GPU, as far as it answered."""

    index: int
    uuid: str = ""
    name: str = ""
    pci_bus_id: str = ""
    architecture: str = ""
    activity: str = ""
    """gpm or utilization; empty while unknown."""
    mig_mode: str = ""
    mig_devices: int = 0
    xid_events: str = ""
    """yes, no, denied or failed; empty while unknown."""
    recovery_action: int = 0
    """NVML field 230; 0: none."""
    processes: int | None = None
    """Processes that hold it; None if the list could not be read."""
    pids: list[int] = field(default_factory=list)
    """Of these processes."""
    supported: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Neither answered nor refused for good, ``field: CODE``, or answered what cannot be, ``field: out of range``."""
    error: CallError | None = None
    """Why nothing more was read."""
    stuck: str = ""
    """Function that did not return in time."""


@dataclass(slots=True)
class NvmlFacts:
    """The driver and its GPUs, as far as they answered."""

    library: str = ""
    """File that was loaded; empty if none was."""
    open_s: float = 0.0
    """How long opening took."""
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""
    count: int | None = None
    gpus: list[GpuFacts] = field(default_factory=list)
    error: CallError | None = None
    """Why nothing could be read."""
    stuck: str = ""
    """Function that did not return in time."""
    died: str = ""
    """How the probe ended when it gave no answer: the library crashed, or the interpreter did not start."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> NvmlFacts:
        """The inverse of ``to_json``, in the same release."""
        fields: dict[str, Any] = json.loads(text)
        fields["error"] = _call_error(fields["error"])
        fields["gpus"] = [GpuFacts(**{**gpu, "error": _call_error(gpu["error"])}) for gpu in fields["gpus"]]
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What the probe is told."""

    answer_fd: int
    library: str
    open_s: float
    """Opening may take this long: without persistence mode the driver starts every GPU for it."""
    call_s: float
    """Everything that is asked of one GPU may take this long, before it counts as stuck."""
    procfs: str
    sysfs: str
    cgroupfs: str

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, argument: str) -> ProbeRequest:
        return cls(**json.loads(argument))

    @property
    def deadline_s(self) -> float:
        """The probe keeps its own limits; this is for a probe that cannot even do that."""
        return self.open_s + 2 * self.call_s + 5.0


def run_probe(request: ProbeRequest, environ: Mapping[str, str], interpreter: str = sys.executable) -> NvmlFacts:
    """Start the probe and wait for its answer, at most ``request.deadline_s``. ``answer_fd`` is filled in here."""
    ours, theirs = os.pipe()
    request = ProbeRequest(**{**asdict(request), "answer_fd": theirs})
    try:
        process = subprocess.Popen(
            [*module_command(PROBE_MODULE, interpreter), request.to_argument()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # libraries have been seen to print
            pass_fds=(theirs,),
            env=module_environment(environ),
            start_new_session=True,
        )
    except OSError as error:
        os.close(ours)
        return NvmlFacts(died=f"cannot start {interpreter}: {error.strerror or error}")
    finally:
        os.close(theirs)
    try:
        answer = _read_all(ours, time.monotonic() + request.deadline_s)
    finally:
        os.close(ours)
    status = _end(process)
    if answer:
        try:
            return NvmlFacts.from_json(answer.decode())
        except ValueError:
            return NvmlFacts(died="its answer was cut off")
    return NvmlFacts(died=status)


def _read_all(fd: int, until_s: float) -> bytes:
    parts: list[bytes] = []
    while (left_s := until_s - time.monotonic()) > 0 and select.select([fd], [], [], left_s)[0]:
        part = os.read(fd, 1 << 16)
        if not part or sum(map(len, parts)) > ANSWER_MAX:
            break
        parts.append(part)
    return b"".join(parts)


def _end(process: subprocess.Popen[bytes]) -> str:
    """End the probe and say how it ended."""
    try:
        status = process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it ends when its call returns
            process.wait(0.5)
        return "it gave no answer in time"
    if status < 0:
        return f"it died of {signal.Signals(-status).name}"
    return f"it ended with status {status} and no answer"


def _call_error(fields: dict[str, Any] | None) -> CallError | None:
    return None if fields is None else CallError(**fields)
