"""The real sources on a replay say what they said when it was recorded, item for item."""

from __future__ import annotations

import random
import re

from gpumon.host.clock import ManualClock
from gpumon.host.files import Files
from gpumon.host.nvml import Event, GpmReading, Memory, Nvml, NvmlError, Utilization, UtilizationSample
from gpumon.host.pages import Pages
from gpumon.model import GpuProcess, GpuUuid, Pid, SourceError
from gpumon.record.entries import gpu_pass
from gpumon.record.mask import Mask
from gpumon.record.recording_nvml import RecordingNvml
from gpumon.record.recording_ports import RecordedSource, RecordingFiles, RecordingKernelLog, RecordingPages
from gpumon.record.replay_nvml import ReplayNvml
from gpumon.record.replay_ports import ReplayFiles, ReplayKernelLog, ReplayPages
from gpumon.record.timeline import Pass
from gpumon.runner import Source
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu import GpuSlow
from gpumon.sources.gpu_fast import GpuFast
from gpumon.sources.gpu_state import GpuState
from gpumon.sources.host import HostSource
from gpumon.sources.kernel_log import KernelLogSource
from gpumon.sources.numa import NumaSource
from gpumon.sources.processes import ProcessSource
from gpumon.sources.targets import Target, Workload
from gpumon.sources.xid_events import XidWatcher
from tests.fake_port import HEALTHY, FakeNvml, device
from tests.fakes import FakeFiles, FakeKernelLog, FakePages
from tests.fixtures.hosts import fixture_files
from tests.record.tapes import new_tape

GPU = "GPU-0a1b2c3d-1234-5678-9abc-def012345678"
TARGETS = [
    Target(
        Pid(41_001 + i, 90_100 + i),
        "VLLM::Worker_TP",
        Workload(container="c"),
        (GpuProcess(41_001 + i, str(i), GpuUuid(f"GPU-{i}"), 1e9, None),),
    )
    for i in range(4)
]
PCI = {GpuUuid("GPU-0"): "0000:18:00.0", GpuUuid("GPU-1"): "0000:2a:00.0"}


def sources(files: Files, pages: Pages, log: FakeKernelLog | RecordingKernelLog | ReplayKernelLog) -> dict[str, Source]:
    made: list[Source] = [
        HostSource(files),
        ProcessSource(files, lambda: TARGETS, slow_s=2.0),
        NumaSource(files, pages, lambda: TARGETS, lambda: PCI, page_bytes=4096, maps_s=4.0),
        KernelLogSource(log, lambda xid, at_s: None),
    ]
    return {source.name: source for source in made}


class Gpu:
    """The passes of one GPU's worker and of the XID thread."""

    def __init__(self, nvml: Nvml, uuid: str = GPU) -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._fast: GpuFast | None = None
        self._xids: XidWatcher | None = None

    def tick(self, at_s: float) -> list[object]:
        if self._fast is None:
            gpu = self._nvml.device_by_uuid(self._uuid)
            capabilities = Capabilities("gpu 0")
            self._fast = GpuFast(self._nvml, gpu, capabilities)
            self._slow = GpuSlow(self._nvml, gpu, ("0", self._uuid), capabilities, GpuState())
        try:
            return [self._fast.row(at_s), self._slow.read(at_s), self._fast.take_rejections()]
        except NvmlError as error:
            return [str(error)]

    def poll(self, at_s: float) -> list[object]:
        if self._xids is None:
            self._xids = XidWatcher(self._nvml, [self._nvml.device_by_uuid(self._uuid)], lambda gpu: False)
        return [*self._xids.poll(at_s, 500), *self._xids.take()]


def changing_host(rng: random.Random, clock: ManualClock) -> FakeFiles:
    """A host whose counters move and whose files fail now and then; every reading takes a millisecond."""
    files = FakeFiles(fixture_files("h200"))

    def on_read(path: str) -> None:
        clock.step(0.001)
        if path.endswith(("/stat", "vmstat", "schedstat", "numastat", "cpu.stat")) and rng.random() < 0.7:
            data = files.files.get(path, b"")
            numbers = list(re.finditer(rb"(?<= )\d{2,12}(?=[ \n])", data))
            if numbers and b"(" not in data:
                number = rng.choice(numbers)
                more = str(int(number[0]) + rng.randrange(1000)).encode()
                files.put(path, data[: number.start()] + more + data[number.end() :])
        files.denied.clear()
        if rng.random() < 0.01:
            files.deny(path)

    files.on_read = on_read
    return files


def changing_gpu(rng: random.Random) -> FakeNvml:
    readings = iter(range(10_000))
    answers = HEALTHY | {
        "utilization": lambda: Utilization(rng.randrange(101), rng.randrange(101)),
        "memory": lambda: Memory(100 << 30, rng.randrange(50) << 30, 1 << 30, 1 << 20),
        "temperature": lambda: rng.randrange(30, 90),
        "reasons": lambda: rng.choice([0, 4, 8]),
        "utilization_samples": lambda since: [UtilizationSample(since + 100 + i, rng.randrange(101)) for i in range(3)],
        "gpm.read": lambda handle, metrics: (
            GpmReading(tuple(rng.random() for _ in metrics), (0,) * len(metrics), 0.1) if next(readings) else None
        ),
        "clock_sm": lambda: rng.randrange(200, 2000),
        "power_usage": 300_000,
        f"device:{GPU}": lambda: device(),
        "uuid": GPU,
        "events.register": True,
        "events.wait": lambda *_: Event(GPU, 8, rng.choice([13, 79])) if rng.random() < 0.2 else None,
    }
    for name in ("clock_graphics", "clock_memory", "clock_video"):
        answers[name] = 1000
    nvml = FakeNvml(answers, {82: 50, 83: 1000, 185: 400_000, 186: 410_000})
    nvml.generation = 0
    return nvml


def told_by(source: Source, at_s: float) -> str:
    try:
        return repr(list(source.read(at_s)))
    except SourceError as error:
        return str(error)


def record_and_replay(mask: Mask | None) -> tuple[list[tuple[str, float, str]], list[tuple[str, float, str]]]:
    """What every pass said, when it was recorded and in the replay."""
    rng = random.Random(11)
    with new_tape(mask) as tape:
        clock, recorder = tape.clock, tape.recorder
        sampler = tape.joined()
        log = FakeKernelLog()
        pages = FakePages(lambda address: rng.choice([0, 0, 0, 1, None]))
        live = {
            name: RecordedSource(source, recorder.mark)
            for name, source in sources(
                RecordingFiles(changing_host(rng, clock), recorder),
                RecordingPages(pages, recorder),
                RecordingKernelLog(log, recorder),
            ).items()
        }
        nvml = RecordingNvml(changing_gpu(rng), sampler, clock)
        nvml.open()
        gpu = Gpu(nvml)
        said: list[tuple[str, float, str]] = []
        for turn in range(40):
            at_s = clock.now_s()
            sampler.mark(gpu_pass(GPU), at_s)
            said.append((gpu_pass(GPU), at_s, repr(gpu.tick(at_s))))
            clock.step(0.001)
            if rng.random() < 0.2:
                log.write(f"NVRM: Xid (PCI:0000:18:00): {turn}, pid=1")
            for name, source in live.items():
                if turn % (4 if name == "numa" else 1) == 0:
                    at_s = clock.now_s()
                    said.append((name, at_s, told_by(source, at_s)))
            clock.step(0.25)
            if turn % 7 == 0:
                recorder.flush()
            if turn % 5 == 0:
                sampler.flush()
        sampler.close()
        recording, replay_clock = tape.replay()
        again = sources(
            ReplayFiles(recording, replay_clock),
            ReplayPages(recording, replay_clock),
            ReplayKernelLog(recording, replay_clock),
        )
        replay_nvml = ReplayNvml(recording, replay_clock)
        replayed_gpu = Gpu(replay_nvml, GPU if mask is None else mask.text(GPU))
        heard: list[tuple[str, float, str]] = []
        for event in recording.passes():
            assert isinstance(event, Pass)
            replay_clock.move_to(event.at_s)
            if event.name == "nvml.open":
                replay_nvml.open()
            elif event.name.startswith("gpu/"):
                heard.append((event.name, event.at_s, repr(replayed_gpu.tick(event.at_s))))
            else:
                heard.append((event.name, event.at_s, told_by(again[event.name], event.at_s)))
        return said, heard


def test_every_pass_says_the_same_again() -> None:
    said, heard = record_and_replay(None)
    assert len(said) > 150
    assert sum("Miss" in text for _, _, text in said) > 3, "some things failed"
    assert heard == said


def test_every_pass_of_a_masked_recording_says_the_same_up_to_names() -> None:
    mask = Mask(["h200"])
    said, heard = record_and_replay(mask)
    assert [(mask.text(name), at_s, mask.text(text)) for name, at_s, text in said] == heard


def test_events_come_again_when_they_came() -> None:
    rng = random.Random(3)
    with new_tape() as tape:
        nvml = RecordingNvml(changing_gpu(rng), tape.recorder, tape.clock)
        nvml.open()
        gpu = Gpu(nvml)
        said = []
        for _ in range(40):
            polled = gpu.poll(tape.clock.now_s())
            said += [(tape.clock.now_s(), event) for event in polled]
            tape.clock.step(0.5)
        recording, clock = tape.replay()
        replay = ReplayNvml(recording, clock)
        replayed = Gpu(replay)
        heard = []
        for event in recording.passes():
            clock.move_to(event.at_s)
            assert isinstance(event, Pass)
            if event.name == "nvml.open":
                replay.open()
            else:
                heard += [(event.at_s, told) for told in replayed.poll(event.at_s)]
        assert said
        assert heard == said
