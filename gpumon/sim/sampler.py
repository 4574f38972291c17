"""Entry of the sampler process over the simulated node: ``python -m gpumon.sim.sampler '{...}'``."""

from __future__ import annotations

import os
import sys

from gpumon.host.clock import SystemClock
from gpumon.sampler.child import serve
from gpumon.sampler.handover import Handover
from gpumon.sim.files import SimFiles
from gpumon.sim.nvml import SimNvml
from gpumon.sim.world import World


def main() -> int:
    """Serve until told to stop."""
    handover = Handover.from_argument(sys.argv[1])
    options = handover.options
    clock = SystemClock()
    world = World(int(options["seed"]), int(options["gpus"]), started_at_s=float(options["started_at_s"]))
    return serve(SimNvml(world, clock), SimFiles(world, clock), handover)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
