"""A fake node by hand: creates the scenario and prints what to put into the environment.

python -m tests.fakenvml --profile h200 --count 8 --state /tmp/node --waveform
python -m tests.fakenvml --profile sick8 --state /tmp/node -- nvitop -1
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.fakenvml import build, profiles, waveforms
from tests.fakenvml.controller import FakeNode

_DRIVERS = {
    "newest": (),
    "610": build.MISSING_ON_610,
    "590": build.MISSING_ON_590,
    "before-535": build.MISSING_BEFORE_535,
}


def main(arguments: list[str]) -> int:
    own, command = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        own, command = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.fakenvml", description=__doc__)
    parser.add_argument("--profile", default="h200", choices=[*profiles.PROFILES, "sick8"])
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--state", type=Path, required=True, help="the scenario file to create")
    parser.add_argument("--waveform", action="store_true", help="play a serving workload")
    parser.add_argument("--driver", default="newest", choices=_DRIVERS, help="symbols it lacks")
    options = parser.parse_args(own)

    node = FakeNode.create(
        options.state, options.profile, options.count, missing=_DRIVERS[options.driver]
    )
    for name, value in node.variables().items():
        print(f"export {name}={value}", flush=True)
    if options.waveform:
        # On the sick node a waveform would paint over the illnesses.
        healthy = profiles.SICK_HEALTHY if options.profile == "sick8" else ()
        gpus = [node.gpu(slot) for slot in healthy]
        node.play(waveforms.serving(node, pids=[os.getpid()], gpus=gpus))
    if command:
        with node:
            return subprocess.run(command, env=node.env(), check=False).returncode
    if options.waveform:
        print("# playing; end with Ctrl-C", flush=True)
        with node:
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
