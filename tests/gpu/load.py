"""The load: a process that runs matrix products, copies or decode-like steps for as long as it is told.

``python -m tests.gpu.load`` reads lines ``KIND SECONDS`` and answers each with one line of JSON: iterations, their
duration's percentiles, and what they must have cost the hardware (FLOP/s, bytes/s). ``Load`` is the other end.

With LOAD=cpu the same loop turns on the CPU, for a rehearsal without a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

KINDS = ("matmul", "copy", "decode", "pcie")


class Work(NamedTuple):
    """One iteration, and what it costs."""

    step: Callable[[], object]
    finish: Callable[[], object]
    flop: float
    moved_bytes: float


class Load:
    """The load's process, told what to do."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hello = self._answer()
        """Device and versions; raises RuntimeError if there is nothing to run on."""

    def start(self, kind: str, seconds: float) -> None:
        """Begin; ``result`` waits for the end."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {seconds}\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """What was done since ``start``."""
        return self._answer()

    def run(self, kind: str, seconds: float) -> dict[str, Any]:
        """Start and wait."""
        self.start(kind, seconds)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the load ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.close()
            raise RuntimeError(answer["error"])
        return answer


def _cuda_works() -> tuple[dict[str, object], dict[str, Callable[[], Work]]]:
    import torch  # type: ignore[import-not-found,unused-ignore]  # there is none without a GPU

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device")
    device = torch.device("cuda", 0)
    hello = {
        "load": "cuda",
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    sync = torch.cuda.synchronize

    def matmul() -> Work:
        n = 8192
        a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
        b = torch.randn(n, n, device=device, dtype=torch.bfloat16)
        out = torch.empty_like(a)
        return Work(lambda: torch.matmul(a, b, out=out), sync, 2.0 * n**3, 0.0)

    def copy() -> Work:
        count = 1 << 30  # 4 GiB of floats: far past every cache
        a = torch.ones(count, device=device)
        b = torch.empty_like(a)
        return Work(lambda: b.copy_(a), sync, 0.0, 8.0 * count)

    def decode() -> Work:
        # A token of a model of 8 GB: every weight is read once and used once, as in decoding one sequence.
        layers = [torch.randn(16384, 8192, device=device, dtype=torch.bfloat16) for _ in range(30)]
        x = torch.randn(8192, 1, device=device, dtype=torch.bfloat16)

        def token() -> None:
            for weights in layers:
                torch.matmul(weights, x)

        weights_bytes = 2.0 * sum(layer.numel() for layer in layers)
        return Work(token, sync, weights_bytes, weights_bytes)

    def pcie() -> Work:
        count = 1 << 28
        host = torch.empty(count, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(count, device=device, dtype=torch.uint8)
        return Work(lambda: there.copy_(host, non_blocking=True), sync, 0.0, float(count))

    return hello, {"matmul": matmul, "copy": copy, "decode": decode, "pcie": pcie}


def _cpu_works() -> tuple[dict[str, object], dict[str, Callable[[], Work]]]:
    data = bytearray(1 << 20)

    def work() -> Work:
        return Work(lambda: bytes(data), lambda: None, 0.0, 2.0 * len(data))

    return {"load": "cpu"}, dict.fromkeys(KINDS, work)


def _measure(work: Work, seconds: float) -> dict[str, Any]:
    """Iterations of about 10 ms and more, each waited for: what a user of the GPU would feel."""
    work.step()
    work.finish()
    began = time.perf_counter()
    work.step()
    work.finish()
    once_s = max(time.perf_counter() - began, 1e-6)
    batch = max(1, int(0.01 / once_s))
    durations: list[float] = []
    began = now = time.perf_counter()
    while now - began < seconds:
        for _ in range(batch):
            work.step()
        work.finish()
        before, now = now, time.perf_counter()
        durations.append(now - before)
    took = now - began
    iterations = len(durations) * batch
    durations.sort()
    return {
        "iterations": iterations,
        "seconds": took,
        "per_second": iterations / took,
        "batch": batch,
        "batch_ms": {
            "p50": 1e3 * durations[len(durations) // 2],
            "p99": 1e3 * durations[min(len(durations) - 1, int(0.99 * len(durations)))],
        },
        "flop_per_second": work.flop * iterations / took,
        "bytes_per_second": work.moved_bytes * iterations / took,
    }


def main() -> int:
    """Serve until the other end closes."""
    try:
        hello, makers = _cpu_works() if os.environ.get("LOAD", "cuda") == "cpu" else _cuda_works()
    except (ImportError, OSError, RuntimeError) as error:
        print(json.dumps({"error": f"no CUDA load: {error}"}), flush=True)
        return 1
    print(json.dumps(hello), flush=True)
    kept: dict[str, Work] = {}
    for line in sys.stdin:
        kind, seconds = line.split()
        try:
            if kind not in kept:
                kept[kind] = makers[kind]()
            print(json.dumps({"kind": kind, **_measure(kept[kind], float(seconds))}), flush=True)
        except RuntimeError as error:  # torch's own: out of memory and its like
            print(json.dumps({"error": f"{kind}: {error}"}), flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
