"""Comparison with files in tests/golden/, byte for byte.

GPUMON_UPDATE_GOLDEN=1 writes them instead; read what changed as a diff.
"""

import os
from pathlib import Path

_FOLDER = Path(__file__).parent / "golden"


def golden(name: str, actual: bytes) -> None:
    """Fail unless tests/golden/<name> holds exactly these bytes."""
    path = _FOLDER / name
    if os.environ.get("GPUMON_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(actual)
    assert path.exists(), f"no golden file {name}; GPUMON_UPDATE_GOLDEN=1 writes it"
    assert actual.decode() == path.read_bytes().decode(), f"differs from golden file {name}"
