"""Step: what the machine is, what is missing on it, and which of NVML's functions its library has."""

from __future__ import annotations

import ctypes
import importlib.metadata
import inspect
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.gpu.common import LIBRARY, LOAD, NEEDED_BY_APP, OUT, SCALE, Row, missing_modules, run, write

_FILES = (
    *("/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/proc/version", "/proc/cmdline"),
    *("/proc/self/status", "/proc/self/cgroup", "/sys/devices/system/node/online"),
)


def measure() -> Iterator[Row]:
    OUT.mkdir(parents=True, exist_ok=True)
    missing = missing_modules([*NEEDED_BY_APP, "pytest", "torch"])
    symbols = _symbols()
    document = {
        "python": sys.version,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "uid": os.geteuid(),
        "load": LOAD,
        "scale": SCALE,
        "missing_modules": missing,
        "packages": {
            name: _version(name) for name in ("nvidia-ml-py", "pynvml", "torch", "numpy", "uvicorn", "pydantic")
        },
        "devices": sorted(name for name in os.listdir("/dev") if name.startswith("nvidia")),
        "files": {path: _read(path) for path in _FILES},
        "symbols": symbols,
    }
    write("environment.json", document)
    _nvidia_smi()
    yield Row("python modules missing", ", ".join(missing) or "none", "INFO" if not missing else "SKIP")
    if isinstance(symbols, dict):
        absent = symbols["absent"]
        yield Row("NVML functions", f"{len(symbols['present'])} there, {len(absent)} of pynvml's not")
    else:
        yield Row("NVML library", str(symbols), "ERROR")
    yield from _doctor()


def _symbols() -> dict[str, list[str]] | str:
    """pynvml's functions that this library exports, and those it does not."""
    if missing_modules(["pynvml"]):
        return "nvidia-ml-py is not importable"
    import pynvml

    names = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', inspect.getsource(pynvml))))
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return str(error)
    present = [name for name in names if hasattr(library, name)]
    return {"present": present, "absent": [name for name in names if name not in present]}


def _doctor() -> Iterator[Row]:
    lacking = missing_modules([name for name in NEEDED_BY_APP if name not in ("uvicorn", "uvloop", "fastapi")])
    if lacking:
        yield Row("gpumon doctor", f"cannot be started: {', '.join(lacking)} missing", "SKIP")
        return
    command = [sys.executable, "-m", "gpumon", "doctor", "--json", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    report = json.loads(done.stdout)
    write("doctor.json", report)
    problems = [check["id"] for check in report["checks"] if check["fix"]]
    yield Row("gpumon doctor", f"exit status {done.returncode}; {', '.join(problems) or 'no problem'}")


def _nvidia_smi() -> None:
    if shutil.which("nvidia-smi") is None:
        return
    done = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, timeout=30, check=False)
    (OUT / "nvidia-smi.txt").write_text(done.stdout + done.stderr)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace")[:20_000]
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(run("environment", measure))
