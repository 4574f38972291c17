"""How a part of gpumon is run as a process of its own: by this interpreter, from this very gpumon."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import gpumon


def module_command(module: str, interpreter: str = sys.executable) -> list[str]:
    """Command line that runs a module, without the caller's directory on its path."""
    return [interpreter, "-P", "-m", module]


def module_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, with this very gpumon first on the path: from a source tree, a new one would not find it."""
    root = str(Path(gpumon.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH", ""))))
    return {**environ, "PYTHONPATH": path}
