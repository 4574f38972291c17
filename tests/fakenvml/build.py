"""Compiles the fake ``libnvidia-ml.so.1``, once per content, safe under concurrent test workers.

The symbols come from the installed pynvml: whatever it looks up is exported. Those that the C
sources do not define become counted stubs answering NOT_SUPPORTED. ``missing`` leaves symbols out
at link time, so that ``dlsym`` fails as it does with an older driver. Needs gcc on PATH.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.fakenvml import layout

HERE = Path(__file__).parent
SOURCES = ("core.c", "device.c", "memory.c", "telemetry.c", "process.c", "events.c")
HEADERS = ("state.h", "internal.h")
SONAME = "libnvidia-ml.so.1"
CFLAGS = ("-std=gnu11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror")

# Entry points of the real library that pynvml never looks up.
UNLISTED = ("nvmlInit", "nvmlInit_v2", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")

# Not exported by these driver releases although pynvml 13.615 knows them.
MISSING_ON_610 = (
    "nvmlEventSetWait_v3",
    "nvmlEventSetGetContextCount_v1",
    "nvmlEventSetGetContextData_v1",
    "nvmlEventSetGetContextInfo_v1",
    "nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1",
    "nvmlEventSetRegisterGpuOperationalEvents_v1",
    "nvmlDeviceGetGpuFabricInfo_v4",
    "nvmlDeviceGetMemoryLimits_v1",
    "nvmlDeviceSetMemoryLimits_v1",
    "nvmlDeviceGetNvLinkTelemetrySamples_v1",
    "nvmlDeviceGetAdaptiveTgpModeInfo_v1",
    "nvmlDeviceSetAdaptiveTgpMode_v1",
    "nvmlDevicePerfMetricsGetSamples_v1",
    "nvmlDeviceGetBankRemapperStatus_v1",
)
MISSING_ON_590 = (
    *MISSING_ON_610,
    "nvmlDeviceGetRemappedRows_v2",
    "nvmlDeviceGetBBXTimeData_v1",
    "nvmlDeviceGetAccountingStats_v2",
    "nvmlSystemGetCPER_v1",
    "nvmlDeviceGetVgpuSchedulerState_v2",
    "nvmlDeviceGetVgpuSchedulerLog_v2",
    "nvmlDeviceSetVgpuSchedulerState_v2",
    "nvmlGpuInstanceGetVgpuSchedulerState_v2",
    "nvmlGpuInstanceGetVgpuSchedulerLog_v2",
    "nvmlGpuInstanceSetVgpuSchedulerState_v2",
)
# Drivers before 535 have only the "throttle" names and none of the versioned temperature calls.
MISSING_BEFORE_535 = (
    *MISSING_ON_590,
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetNumaNodeId",
)

_DEFINITION = re.compile(
    r"^(?:nvmlReturn_t |const char \*|[A-Z][A-Z0-9_]*\()(nvml[A-Z]\w+)", re.MULTILINE
)


class BuildError(Exception):
    """gcc refused, or pynvml is not installed."""


@functools.cache
def function_names() -> tuple[str, ...]:
    """Every exported NVML symbol; its position is the function id in the scenario."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise BuildError("pynvml (nvidia-ml-py) is not installed")
    text = Path(spec.origin).read_text(encoding="utf-8")
    looked_up = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml[A-Z]\w+)"\)', text))
    names = tuple(sorted(looked_up | set(UNLISTED) | set(_implemented())))
    if len(names) > layout.FUNCS:
        raise BuildError(f"{len(names)} functions, room for {layout.FUNCS}")
    return names


@functools.cache
def layout_hash() -> int:
    """Identifies struct layout and numbering: library and scenario must have the same."""
    digest = hashlib.sha256((HERE / "state.h").read_bytes())
    digest.update(repr((function_names(), layout.SIGNALS, layout.LINK_LINES)).encode())
    return int.from_bytes(digest.digest()[:8], "little")


def build_library(
    missing: Iterable[str] = (), out_dir: Path | None = None, *, sanitize: bool = False
) -> Path:
    """The path of a library named ``libnvidia-ml.so.1``, alone in its directory."""
    left_out = tuple(sorted(set(missing)))
    unknown = set(left_out) - set(function_names())
    if unknown:
        raise BuildError(f"no such NVML functions: {', '.join(sorted(unknown))}")
    root = out_dir if out_dir is not None else _cache_root()
    root.mkdir(parents=True, exist_ok=True)
    target = root / _content_hash(left_out, sanitize)
    library = target / SONAME
    if library.exists():
        return library
    # The lock only saves work; the rename alone would be safe.
    with (root / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(root, target, left_out, sanitize)
    return library


def _compile(root: Path, target: Path, missing: tuple[str, ...], sanitize: bool) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="building-", dir=root))
    try:
        (scratch / "generated.h").write_text(_generated_header())
        (scratch / "stubs.c").write_text(_stubs())
        (scratch / "symbols.map").write_text(_version_script(missing))
        flags = list(CFLAGS)
        if sanitize:
            flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
        command = [
            "gcc", *flags, "-shared", f"-I{scratch}", f"-I{HERE}",
            f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={scratch / 'symbols.map'}",
            "-o", str(scratch / SONAME),
            *(str(HERE / name) for name in SOURCES), str(scratch / "stubs.c"),
            "-lpthread", "-lm",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(done.stderr)
        try:
            scratch.rename(target)
        except OSError:
            if not (target / SONAME).exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _implemented() -> tuple[str, ...]:
    found: set[str] = set()
    for source in SOURCES:
        found.update(_DEFINITION.findall((HERE / source).read_text()))
    return tuple(sorted(found))


def _generated_header() -> str:
    lines = ["#pragma once", f"#define FNV_LAYOUT_HASH {layout_hash():#x}ULL"]
    for prefix, names in (
        ("FN_", function_names()),
        ("SIG_", layout.SIGNALS),
        ("LINK_", layout.LINK_LINES),
        ("MIG_", layout.MIG_LINES),
    ):
        lines.append("enum {")
        lines += [f"    {prefix}{name}," for name in names]
        lines.append("};")
    return "\n".join(lines) + "\n"


def _stubs() -> str:
    implemented = set(_implemented())
    lines = [
        '#include "internal.h"',
        "nvmlReturn_t fakenvml_stub(uint32_t function, handle_t first);",
        "const char *fakenvml_function(uint32_t id);",
        "static const char *const names[] = {",
        *(f'    "{name}",' for name in function_names()),
        "};",
        "const char *fakenvml_function(uint32_t id)",
        '{ return id < sizeof names / sizeof *names ? names[id] : ""; }',
    ]
    lines += [
        f"nvmlReturn_t {name}(handle_t first) {{ return fakenvml_stub(FN_{name}, first); }}"
        for name in function_names()
        if name not in implemented
    ]
    return "\n".join(lines) + "\n"


def _version_script(missing: tuple[str, ...]) -> str:
    hidden = "".join(f" {name};" for name in missing)
    return "{ global: nvml*; fakenvml_*; local:" + hidden + " *; };\n"


def _content_hash(missing: tuple[str, ...], sanitize: bool) -> str:
    digest = hashlib.sha256()
    for name in (*HEADERS, *SOURCES):
        digest.update((HERE / name).read_bytes())
    digest.update(repr((_generated_header(), _stubs(), CFLAGS, missing, sanitize)).encode())
    return digest.hexdigest()[:16]


def _cache_root() -> Path:
    chosen = os.environ.get("GPUMON_BUILD_DIR")
    if chosen:
        return Path(chosen)
    return Path(tempfile.gettempdir()) / f"fakenvml-{os.getuid()}"
