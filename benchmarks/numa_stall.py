"""Does NUMA sampling stall the process it looks at? Prints one line of JSON.

The watched process (numa_stall.c, compiled here with the C compiler) has 2 GiB of small pages and times mmap, touch
and munmap of 1 MiB in a loop, which needs the lock that page walks hold. In turns of the same run: nobody looks;
``NumaSource`` looks, pass after pass without a pause (in service: every 10 s); /proc/<pid>/numa_maps is read in a
loop, the baseline. Bar: sampling adds less than 1 ms to p99.9. Needs two CPUs, 3 GiB, a C compiler.
Usage: python -m benchmarks.numa_stall [--mib N] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gpumon.host.host_files import HostFiles
from gpumon.host.move_pages import MovePages
from gpumon.model import Pid, Sample
from gpumon.sources.numa import NumaSource
from gpumon.sources.procfs import parse_stat
from gpumon.sources.targets import Target

BAR_ADDED_P999_MS = 1.0
PHASES = ("quiet", "sampling", "numa_maps")


class TwoNodes:
    """The host's files with a second NUMA node claimed: on a single one the source has nothing to sample."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self.list = files.list
        self.link = files.link

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:
        if path == "sys/devices/system/node/online":
            return b"0-1\n"
        return self._files.read(path, keep=keep, limit=limit)


class Watched:
    """The watched process, on the first CPU."""

    def __init__(self, program: Path, mib: int, cpu: int) -> None:
        self._process = subprocess.Popen([program, str(mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        os.sched_setaffinity(self._process.pid, {cpu})
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        self.pid = self._process.pid
        self._answers.readline()

    def ask(self, order: str) -> str:
        self._orders.write(order + "\n")
        self._orders.flush()
        return self._answers.readline().strip()

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


def look_during(look: Callable[[], None], watched: Watched, order: str) -> int:
    """Look again and again while the process obeys; how often."""
    done = threading.Event()

    def wait() -> None:
        watched.ask(order)
        done.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    looks = 0
    while not done.is_set():
        look()
        looks += 1
    waiter.join()
    return looks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each phase in each round")
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "numa_stall"
        source = Path(__file__).with_suffix(".c")
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", program, source], check=True)
        watched = Watched(program, options.mib, cpus[0])
        os.sched_setaffinity(0, set(cpus[1:]) or set(cpus))
        files = HostFiles()
        start_ticks = parse_stat(files.read(f"proc/{watched.pid}/stat")).start_ticks
        target = Target(Pid(watched.pid, start_ticks), "numa_stall")
        numa = NumaSource(TwoNodes(files), MovePages(), lambda: [target], dict)
        at_s = 0.0

        def sample() -> None:
            nonlocal at_s
            at_s += 10.0
            assert any(isinstance(item, Sample) for item in numa.read(at_s))

        def read_numa_maps() -> None:
            files.read(f"proc/{watched.pid}/numa_maps")

        looks = dict.fromkeys(PHASES, 0)
        for _ in range(options.rounds):
            for number, phase in enumerate(PHASES):
                order = f"R {number} {options.seconds}"
                if phase == "quiet":
                    watched.ask(order)
                else:
                    look = sample if phase == "sampling" else read_numa_maps
                    looks[phase] += look_during(look, watched, order)
        result: dict[str, object] = {"benchmark": "numa_stall", "touched_mib": options.mib}
        p999_ms = {}
        seconds = options.rounds * options.seconds
        for number, phase in enumerate(PHASES):
            iterations, p50, p99, p999, most = watched.ask(f"P {number}").split()
            p999_ms[phase] = float(p999) / 1e3
            result[phase] = {
                "iterations_per_s": round(int(iterations) / seconds),
                "p50_ms": round(float(p50) / 1e3, 4),
                "p99_ms": round(float(p99) / 1e3, 4),
                "p999_ms": round(p999_ms[phase], 4),
                "max_ms": round(float(most) / 1e3, 4),
                "looks_per_s": round(looks[phase] / seconds, 1),
            }
        watched.close()
    added = p999_ms["sampling"] - p999_ms["quiet"]
    result["added_p999_ms"] = round(added, 4)
    result["bar_ms"] = BAR_ADDED_P999_MS
    result["ok"] = added < BAR_ADDED_P999_MS
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
