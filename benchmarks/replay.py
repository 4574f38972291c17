"""The claim about replays: a recording goes through the same sources and detectors at least 200 times as fast as it was
made, and finds the same every time.

Records the node of ``busy_node`` in fast mode through the ports that ``gpumon record`` uses, with the passes marked as
in the daemon, then replays the file twice. One JSON line: CPU time of this process, which has one thread while it
replays; bytes of an hour of recording; whether the findings were those of the recording, and the same twice, with a
hash of them and of the page at the end.
Usage: python -m benchmarks.replay [--seconds N]
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.busy_node import GPUS, config, scenario
from benchmarks.common import report
from gpumon.findings_text import as_json
from gpumon.host.garbage import few_collections
from gpumon.replayed import Replay
from tests.recorded import Studio

BAR = 200.0
HOUR_S = 3600.0


def record(path: Path, seconds: float) -> list[str]:
    """Record so much of the node; findings meanwhile."""
    told = path.with_suffix(".yaml")
    told.write_text(yaml.safe_dump(scenario().model_dump(mode="json", exclude_none=True)))
    studio = Studio(path, told, config=config())
    studio.advance(seconds)
    return studio.close()


def replay(path: Path) -> tuple[float, float, list[str], bytes]:
    """CPU seconds to open it and to go through it, findings, and the page at the end."""
    began = time.process_time()
    replayed = Replay(path, config())
    opened = time.process_time()
    with few_collections():  # as the command does
        for _ in replayed.run():
            pass
    spent = time.process_time() - opened
    to_unix = replayed.clock.to_unix
    return opened - began, spent, [as_json(incident, to_unix) for incident in replayed.incidents()], replayed.page()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="to record")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node.gpumon"
        recorded = record(path, seconds)
        size = path.stat().st_size
        runs = [replay(path) for _ in range(2)]
    spent = min(opening + running for opening, running, _, _ in runs)
    hashes = [hashlib.sha256("\n".join(found).encode() + page).hexdigest() for _, _, found, page in runs]
    report(
        "replay",
        gpus=GPUS,
        recorded_s=seconds,
        times_real_time=round(seconds / spent, 1),
        bar=BAR,
        cpu_ms_per_recorded_s=round(1e3 * spent / seconds, 2),
        opening_ms=round(1e3 * min(run[0] for run in runs), 1),
        bytes=size,
        bytes_per_hour=round(size / seconds * HOUR_S),
        incidents=len(recorded),
        same_findings=all(found == recorded for _, _, found, _ in runs),
        same_twice=hashes[0] == hashes[1],
        sha256=hashes[0],
    )


if __name__ == "__main__":
    main()
