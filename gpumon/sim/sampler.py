"""Entry of the sampler process over a simulated node: ``python -m gpumon.sim.sampler '{...}'``.

Options: ``scenario`` (the name of a built-in one, or a path), ``seed``, ``started_at_s``. The world is built anew in
this process: the same options make the same one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from gpumon.host.clock import Clock, SystemClock
from gpumon.sampler.child import serve
from gpumon.sampler.handover import Handover
from gpumon.sim.builtin import find_scenario
from gpumon.sim.files import SimFiles
from gpumon.sim.nvml import SimNvml
from gpumon.sim.world import World


def main() -> int:
    """Serve until told to stop."""
    handover = Handover.from_argument(sys.argv[1])
    nvml, files = ports(handover.options, SystemClock())
    return serve(nvml, files, handover)


def ports(options: Mapping[str, str], clock: Clock) -> tuple[SimNvml, SimFiles]:
    """NVML and files of the simulated node."""
    scenario = find_scenario(options["scenario"])
    world = World(scenario, started_at_s=float(options["started_at_s"]), seed=int(options["seed"]))
    return SimNvml(world, clock), SimFiles(world, clock)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
