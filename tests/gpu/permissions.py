"""Step: what NVML refuses to whom: root, root without any capability, and uid 65534.

Each is a process of its own that loads everything first, gives up its rights, and only then opens NVML.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpumon.host.files import ReadError
from gpumon.host.kmsg import DevKmsg
from tests.gpu.common import LIBRARY, Row, run, timed, write

NOBODY = 65534
MODES = ("root", "no_capabilities", "nobody")
_CAPABILITY_VERSION_3 = 0x20080522
_GPM_METRICS = (2, 10)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def measure() -> Iterator[Row]:
    if os.geteuid() != 0:
        yield Row("permissions", "the other users can only be tried by root", "SKIP")
        return
    results: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.permissions", mode],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        results[mode] = json.loads(done.stdout) if done.returncode == 0 else {"died": done.stderr[-2000:]}
    write("permissions.json", results)
    for mode, answers in results.items():
        if "died" in answers:
            yield Row(f"as {mode}", f"the probe ended: {answers['died'].strip().splitlines()[-1:]}", "ERROR")
            continue
        refused = [name for name, code in answers["codes"].items() if code == 4]
        other = [f"{name} {code}" for name, code in answers["codes"].items() if code not in (0, 3, 4, 6, 10)]
        told = [f"NO_PERMISSION: {', '.join(refused)}"] if refused else []
        told += [f"other: {', '.join(other)}"] if other else []
        told += [] if answers["kernel_log"] == "" else [f"kernel log: {answers['kernel_log']}"]
        yield Row(f"as {mode}", "; ".join(told) or "nothing refused")


def give_up(mode: str) -> None:
    """Become the one that is to be tried."""
    if mode == "nobody":
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    elif mode == "no_capabilities":
        header = _Header(_CAPABILITY_VERSION_3, 0)
        data = (_Data * 2)()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.capset(ctypes.byref(header), ctypes.byref(data)) != 0:
            raise OSError(ctypes.get_errno(), "capset")


def answers() -> dict[str, Any]:
    """Return code of each question, asked as whoever this process now is."""
    import pynvml as p

    codes: dict[str, int] = {}
    _, codes["init"], _ = timed(p.nvmlInit)
    if codes["init"] == 0:
        handle, codes["handle"], _ = timed(partial(p.nvmlDeviceGetHandleByIndex, 0))
        if codes["handle"] == 0:
            for name, question in _questions(p, handle).items():
                codes[name] = timed(question)[1]
            codes |= _gpm(p, handle)
            codes |= _events(p, handle)
        p.nvmlShutdown()
    return {"uid": os.geteuid(), "codes": codes, "kernel_log": _kernel_log(), "devices": _devices()}


def _questions(p: Any, h: Any) -> dict[str, Callable[[], object]]:
    return {
        "utilization": partial(p.nvmlDeviceGetUtilizationRates, h),
        "power": partial(p.nvmlDeviceGetPowerUsage, h),
        "energy": partial(p.nvmlDeviceGetTotalEnergyConsumption, h),
        "memory": partial(p.nvmlDeviceGetMemoryInfo, h),
        "fields": partial(p.nvmlDeviceGetFieldValues, h, [83, 186, 74, 197]),
        "reasons": partial(p.nvmlDeviceGetCurrentClocksEventReasons, h),
        "samples": partial(p.nvmlDeviceGetSamples, h, 1, 0),
        "processes": partial(p.nvmlDeviceGetComputeRunningProcesses, h),
        "process_utilization": partial(p.nvmlDeviceGetProcessUtilization, h, 0),
        "processes_utilization": partial(p.nvmlDeviceGetProcessesUtilizationInfo, h, 0),
        "ecc": partial(p.nvmlDeviceGetTotalEccErrors, h, 0, 0),
        "remapped_rows": partial(p.nvmlDeviceGetRemappedRows, h),
        "mig_mode": partial(p.nvmlDeviceGetMigMode, h),
        "mig_device": partial(p.nvmlDeviceGetMigDeviceHandleByIndex, h, 0),
        "accounting": partial(p.nvmlDeviceGetAccountingMode, h),
        "serial": partial(p.nvmlDeviceGetSerial, h),
    }


def _gpm(p: Any, h: Any) -> dict[str, int]:
    _, query, _ = timed(partial(p.nvmlGpmQueryDeviceSupport, h))
    samples = []
    codes = {"gpm_query": query}
    for name in ("gpm_sample_1", "gpm_sample_2"):
        sample, code, _ = timed(p.nvmlGpmSampleAlloc)
        if code != 0:
            return codes | {"gpm_alloc": code}
        samples.append(sample)
        codes[name] = timed(partial(p.nvmlGpmSampleGet, h, sample))[1]
        time.sleep(0.15)
    request = p.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = 1, len(_GPM_METRICS)
    request.sample1, request.sample2 = samples
    for i, metric in enumerate(_GPM_METRICS):
        request.metrics[i].metricId = metric
    codes["gpm_metrics"] = timed(partial(p.nvmlGpmMetricsGet, request))[1]
    for i, metric in enumerate(_GPM_METRICS):
        codes[f"gpm_metric_{metric}"] = int(request.metrics[i].nvmlReturn)
    for sample in samples:
        timed(partial(p.nvmlGpmSampleFree, sample))
    return codes


def _events(p: Any, h: Any) -> dict[str, int]:
    event_set, code, _ = timed(p.nvmlEventSetCreate)
    codes = {"event_set": code}
    mask, codes["event_types"], _ = timed(partial(p.nvmlDeviceGetSupportedEventTypes, h))
    if code != 0 or not isinstance(mask, int):
        return codes
    for bit in (b for b in range(20) if mask >> b & 1):
        codes[f"event_{1 << bit:#x}"] = timed(partial(p.nvmlDeviceRegisterEvents, h, 1 << bit, event_set))[1]
    codes["event_wait"] = timed(partial(p.nvmlEventSetWait_v2, event_set, 100))[1]
    timed(partial(p.nvmlEventSetFree, event_set))
    return codes


def _kernel_log() -> str:
    log = DevKmsg()
    try:
        log.read()
    except ReadError as error:
        return str(error)
    finally:
        log.close()
    return ""


def _devices() -> dict[str, bool]:
    names = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
    return {name: os.access(f"/dev/{name}", os.R_OK | os.W_OK) for name in names}


def main() -> int:
    """Without an argument the step, with a mode one of its processes."""
    if len(sys.argv) == 1:
        return run("permissions", measure)
    import pynvml  # noqa: F401 - all that is needed is loaded while it may be read

    ctypes.CDLL(LIBRARY)
    give_up(sys.argv[1])
    print(json.dumps(answers()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
