"""The claim about the image: what its files weigh, and how long it takes from exec to the first page with every GPU.

The Dockerfile's own steps, carried out by scripts/image_steps.py; started as a pod of profile metrics is: uid 65534,
read-only, compiled beforehand, a pid namespace of its own; less what the same harness takes for /bin/true. Beside it,
turn by turn, the same gpumon from this interpreter's environment. Needs root, overlayfs and, to build, the network.
Usage: python -m benchmarks.image [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.common import environment, report, wait
from scripts.image_steps import Image
from tests.deploy.image import ImageDaemon, built
from tests.e2e.daemon import Daemon
from tests.fakenvml.controller import FakeNode

GPUS = 8
OPTIONS = {"GPUMON_HTTP__UI": "false", "GPUMON_NUMA__ENABLED": "false"}
MEGA = 1e6


def folder_mb(folder: Path) -> float:
    """Of the files in it, each counted once."""
    files = {
        (found.st_dev, found.st_ino): found.st_size
        for top, _, names in os.walk(folder)
        for found in (os.lstat(os.path.join(top, name)) for name in names)
    }
    return round(sum(files.values()) / MEGA, 1)


def sizes_mb(image: Image) -> dict[str, float]:
    """What the image adds to its base: the environment, and the base's standard library, compiled."""
    venv = image.layer / "root/opt/gpumon"
    compiled = sum(
        path.stat().st_size
        for part in ("usr", "local")
        for path in (image.layer / part).rglob("*.pyc")
        if path.is_file()
    )
    packages = next(venv.glob("lib/python*/site-packages"))
    largest = sorted(((folder_mb(path), path.name) for path in packages.iterdir() if path.is_dir()), reverse=True)
    return {
        "venv": folder_mb(venv),
        "standard_library_compiled": round(compiled / MEGA, 1),
        **{name: size for size, name in largest[:5]},
    }


def archive_mb(image: Image) -> float:
    """The environment as a registry keeps a layer: tar and gzip."""
    command = ["tar", "-C", str(image.layer / "root"), "-czf", "-", "opt/gpumon"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        size = 0
        while part := tar.stdout.read(1 << 20):
            size += len(part)
    return round(size / MEGA, 1)


def first_page_s(gpumon: Daemon, began_s: float) -> float:
    """Until a page has a reading of every GPU."""
    while gpumon.ask("/metrics").body.count(b"\ngpumon_gpu_utilization_ratio{") != GPUS:
        wait(0.01)
    return time.perf_counter() - began_s


def from_image_s(image: Image, node: FakeNode, folder: Path) -> float:
    """The mounts of the harness are not counted: those of a container runtime are not ours either."""
    began_s = time.perf_counter()
    subprocess.run(image.command([], entrypoint=["/bin/true"]), check=True)
    harness_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    with ImageDaemon(image, folder, node, options=OPTIONS) as gpumon:
        return first_page_s(gpumon, began_s) - harness_s


def from_environment_s(node: FakeNode, folder: Path) -> float:
    """As ``benchmarks.footprint`` does."""
    folder.mkdir(parents=True)
    began_s = time.perf_counter()
    flags = ("--procfs", "/proc", "--sysfs", "/sys", "--cgroupfs", "/sys/fs/cgroup")
    with Daemon(folder, *flags, env=environment(node), options=OPTIONS) as gpumon:
        return first_page_s(gpumon, began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    image = built()
    folder = Path(tempfile.mkdtemp(prefix="gpumon-benchmark-"))
    with FakeNode.create(folder / "node", profile="h200", count=GPUS) as node:
        from_environment_s(node, folder / "first")  # writes the compiled modules
        pairs = [
            (from_image_s(image, node, folder / f"image-{i}"), from_environment_s(node, folder / f"plain-{i}"))
            for i in range(rounds)
        ]
    of_image, of_environment = ([round(pair[i], 3) for pair in pairs] for i in (0, 1))
    report(
        "image",
        gpus=GPUS,
        rounds=rounds,
        size_mb=sizes_mb(image),
        venv_gzip_mb=archive_mb(image),
        start_s={"image": statistics.median(of_image), "environment": statistics.median(of_environment)},
        best_s={"image": min(of_image), "environment": min(of_environment)},
    )


if __name__ == "__main__":
    main()
