"""Step: the tests that are marked gpu."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.gpu.common import OUT, Row, missing_modules, run

ROOT = Path(__file__).resolve().parents[2]


def measure() -> Iterator[Row]:
    lacking = missing_modules(["pytest"])
    if lacking:
        yield Row("gpu tests", "pytest is missing", "SKIP")
        return
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu/test_gpu.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (OUT / "gpu_tests.txt").write_text(done.stdout + done.stderr)
    last = done.stdout.strip().splitlines()[-1:] or ["pytest said nothing"]
    words = re.sub(r"=+ ?| ?=+", "", last[0])
    if done.returncode == 0 and "passed" not in words:
        skipped = re.search(r"^SKIPPED .*?: (.*)$", done.stdout, re.MULTILINE)
        yield Row("gpu tests", skipped.group(1) if skipped else words, "SKIP")
    else:
        yield Row("gpu tests", words, "OK" if done.returncode == 0 else "NO")


if __name__ == "__main__":
    sys.exit(run("gpu_tests", measure))
