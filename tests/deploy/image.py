"""What the Dockerfile's steps make, carried out once for the same files, and gpumon from it as a pod would start it.

Needs root, overlayfs and, the first time, the network.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.image_steps import METRICS, ROOT, Image, Profile, build
from tests.e2e.daemon import ALONE, FAST, Daemon
from tests.fakenvml.controller import FakeNode

INPUTS = ("Dockerfile", ".dockerignore", "LICENSE", "README.md", "pyproject.toml", "gpumon", "deploy/image")
SCRIPTS = ("scripts/dockerfile.py", "scripts/image_steps.py", "scripts/sbom.py")
LIBRARY, STATE = "/run/fakenvml", "/run/fakenvml-state"
"""Where the fake NVML and its node are in the image."""


def built() -> Image:
    """The image of the tree as it is; only the newest is kept."""
    folder = Path(tempfile.gettempdir()) / f"gpumon-image-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    target = folder / _digest()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not (target / "image.json").exists():
            for old in folder.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            build(target)
        return Image.load(target)


def _digest() -> str:
    digest = hashlib.sha256()
    for name in (*INPUTS, *SCRIPTS):
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def nvml_of(node: FakeNode, folder: Path) -> tuple[dict[Path, str], dict[str, str]]:
    """Folders to bind and variables to set for a gpumon of any user to find the fake node, as the NVIDIA runtime would
    put the driver's library there."""
    library = folder / "nvml"
    shutil.copytree(node.library.parent, library)
    library.chmod(0o755)
    state = Path(node.scenario.path)
    state.chmod(0o666)  # the library notes in it what it was asked
    state.parent.chmod(0o755)
    variables = {"LD_LIBRARY_PATH": LIBRARY, "FAKENVML_STATE": f"{STATE}/{state.name}"}
    return {library: LIBRARY, state.parent: STATE}, variables


class ImageDaemon(Daemon):
    """gpumon from the image, on a port that the system picks."""

    def __init__(
        self,
        image: Image,
        folder: Path,
        node: FakeNode,
        *arguments: str,
        profile: Profile = METRICS,
        options: Mapping[str, str] | None = None,
        binds: Mapping[Path, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """prefix: a program of the image that starts the entry point in its own place."""
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "gpumon.log"
        bound, variables = nvml_of(node, folder)
        command = image.command(
            ["run", "--listen", "127.0.0.1:0", *arguments],
            profile=profile,
            environment={**ALONE, **FAST, **variables, **(options or {})},
            binds={**bound, **(binds or {})},
            entrypoint=[*prefix, *image.stage.entrypoint],
        )
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
        self.port = 0
        self.await_start()

    @property
    def pid(self) -> int:
        """gpumon's own, as this machine numbers it."""
        pid = self.process.pid
        [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def end_gracefully(self, within_s: float = 15.0) -> int:
        """Send SIGTERM, as a kubelet does; the exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(within_s)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            try:
                self.end_gracefully()
            except subprocess.TimeoutExpired:
                os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
