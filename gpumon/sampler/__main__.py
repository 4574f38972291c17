"""Entry of the sampler process over the machine's NVML: ``python -m gpumon.sampler '{...}'``, started by ``link``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from gpumon.host.host_files import HostFiles
from gpumon.host.nvml_driver import NvmlDriver
from gpumon.sampler.child import serve
from gpumon.sampler.handover import Handover


def main() -> int:
    """Serve until told to stop."""
    handover = Handover.from_argument(sys.argv[1])
    nvml, files = ports(handover.options)
    return serve(nvml, files, handover)


def ports(options: Mapping[str, str]) -> tuple[NvmlDriver, HostFiles]:
    """The machine's own NVML and files."""
    files = HostFiles(procfs=options["procfs"], sysfs=options["sysfs"], cgroupfs=options["cgroupfs"])
    return NvmlDriver(options["library"] or None), files


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Not sys.exit: it would wait for a thread that hangs in the driver.
    os._exit(status)
