"""Entry of the sampler process while it records: ``python -m gpumon.recorded_sampler '{...}'``, started by ``link``.

The same as ``gpumon.sampler`` or ``gpumon.sim.sampler``, by its options, with the answers written to the recording
that the main process made.
"""

from __future__ import annotations

import os
import sys

from gpumon.host.clock import SystemClock
from gpumon.host.files import Files
from gpumon.host.nvml import Nvml
from gpumon.model import GpuUuid
from gpumon.record.entries import gpu_pass
from gpumon.record.joining import join
from gpumon.record.recording_nvml import RecordingNvml
from gpumon.record.recording_ports import RecordingFiles
from gpumon.sampler import __main__ as real
from gpumon.sampler.child import serve
from gpumon.sampler.handover import Handover

INVENTORY = "inventory"
"""Name of the passes of the supervisor's own inventory."""


def main() -> int:
    """Serve until told to stop."""
    handover = Handover.from_argument(sys.argv[1])
    options = handover.options
    clock = SystemClock()
    nvml: Nvml
    files: Files
    if "scenario" in options:
        from gpumon.sim import sampler as simulated

        nvml, files = simulated.ports(options, clock)
    else:
        nvml, files = real.ports(options)
    recorder = join(options, clock, _say_stopped)
    if recorder is None:
        return serve(nvml, files, handover)

    def began(uuid: GpuUuid | None, at_s: float) -> None:
        recorder.mark(INVENTORY if uuid is None else gpu_pass(uuid), at_s)

    try:
        return serve(RecordingNvml(nvml, recorder, clock), RecordingFiles(files, recorder), handover, began)
    finally:
        recorder.close()


def _say_stopped(why: str) -> None:
    sys.stderr.write(f"recording=stopped part=sampler detail={why!r}\n")


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
