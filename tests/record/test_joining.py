from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpumon.host.clock import ManualClock
from gpumon.record.entries import TEXT
from gpumon.record.joining import join, to_options
from gpumon.record.mask import Mask
from tests.record.tapes import Tape, now_ns

KEY = (TEXT, "GPU-1", "name")


def test_the_sampler_masks_like_the_main_process(tmp_path: Path) -> None:
    mask = Mask(["gpu-worker-17"])
    tape = Tape(tmp_path / "tape", mask)
    sampler = join(to_options(str(tape.path), None, mask), tape.clock, tape.stops.append)
    assert sampler is not None
    for recorder, key in ((tape.recorder, KEY), (sampler, (TEXT, "GPU-2", "name"))):
        recorder.keep(key, b"of gpu-worker-17", now_ns())
    sampler.close()
    recording, clock = tape.replay()
    assert recording.find(KEY, clock.now_s()) == f"of {mask.name('gpu-worker-17')}".encode()
    assert recording.find((TEXT, "GPU-2", "name"), clock.now_s()) == recording.find(KEY, clock.now_s())
    assert tape.stops == []


def test_the_limit_holds_for_the_sampler_too(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "tape")
    sampler = join(to_options(str(tape.path), 10, None), tape.clock, tape.stops.append)
    assert sampler is not None
    sampler.keep(KEY, b"x", now_ns())
    sampler.close()
    tape.recorder.close()
    assert tape.stops == ["the file would be larger than its limit of 10 bytes"]


def test_without_a_recording_or_with_one_that_is_gone_nothing_is_recorded(tmp_path: Path) -> None:
    stops: list[str] = []
    assert join({"library": ""}, ManualClock(), stops.append) is None
    assert stops == []
    assert join(to_options(str(tmp_path / "gone"), None, None), ManualClock(), stops.append) is None
    (tmp_path / "text").write_text("hello")
    assert join(to_options(str(tmp_path / "text"), None, None), ManualClock(), stops.append) is None
    assert stops == ["No such file or directory", f"{tmp_path / 'text'}: not a file that gpumon wrote"]


def test_the_sampler_loads_neither_numpy_nor_protobuf_nor_asyncio_to_record() -> None:
    code = """
import sys
import gpumon.record.joining, gpumon.record.recording_nvml, gpumon.record.recording_ports
print([name for name in ("numpy", "google.protobuf", "asyncio", "opentelemetry") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
