"""A replay finds what was found when it was recorded, whenever and wherever it runs, and says what it cannot read."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gpumon import catalogue
from gpumon.config import CadenceConfig, Config, DetectConfig, RequestsConfig, ServersConfig
from gpumon.detect.detectors import DetectConfigError
from gpumon.findings_text import as_json
from gpumon.ingest.request import Signal
from gpumon.record.format import MAGIC, VERSION, FormatError, Reader, Writer
from gpumon.replayed import Replay, main
from tests.e2e.page import Page
from tests.recorded import STARTED_S, UNIX_S, Studio, record
from tests.stories import FOUND, write_story

ROOT = Path(__file__).resolve().parent.parent
LENGTH_S = 24.0
HEADER = {"kind": "recording", "started_s": STARTED_S, "offset_s": UNIX_S - STARTED_S}


class Recorded(NamedTuple):
    """A recording and what was found while it was made."""

    path: Path
    findings: list[str]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    path = folder / "quick.rec"
    return Recorded(path, record(path, write_story(folder), LENGTH_S))


def replayed(path: Path, config: Config | None = None) -> Replay:
    """After it has gone through all of it."""
    replay = Replay(path, Config() if config is None else config)
    for _ in replay.run():
        continue
    return replay


def findings(replay: Replay) -> list[str]:
    return [as_json(incident, replay.clock.to_unix) for incident in replay.incidents()]


def with_header(path: Path, recorded: Recorded, **header: object) -> Path:
    """The recording under another header, whose checksum fits."""
    data = recorded.path.read_bytes()
    _, _, size, _ = struct.unpack_from("<8sHII", data)
    told = json.loads(data[18 : 18 + size]) | header
    body = json.dumps(told).encode()
    path.write_bytes(struct.pack("<8sHII", MAGIC, VERSION, len(body), zlib.crc32(body)) + body + data[18 + size :])
    return path


def test_it_finds_what_was_found_while_it_was_recorded(recorded: Recorded) -> None:
    assert [json.loads(line)["kind"] for line in recorded.findings] == [*FOUND]
    assert findings(replayed(recorded.path)) == recorded.findings


def test_twice_gives_the_same_findings_and_the_same_page(recorded: Recorded) -> None:
    first, second = replayed(recorded.path), replayed(recorded.path)
    assert findings(first) == findings(second)
    assert first.page() == second.page()


def test_the_page_is_that_of_a_daemon(recorded: Recorded) -> None:
    page = Page(replayed(recorded.path).page())
    page.finite()
    assert page.by("gpu", "gpumon_gpu_samples_total") == {"0": 239.0, "1": 239.0}  # the last is not published yet
    assert page.value("gpumon_incidents_total", kind="xid", severity="info") == 1.0
    assert page.select("gpumon_server_requests_running")
    assert page.select("gpumon_request_duration_seconds_count")
    assert page.select("gpumon_process_page_faults_total")


@pytest.mark.parametrize(("days", "hash_seed"), [(400, "0"), (-3000, "77")])
def test_another_day_another_process_and_other_hashes_give_the_same_bytes(
    recorded: Recorded, days: int, hash_seed: str
) -> None:
    code = (
        "import sys, time\n"
        f"real = time.time\ntime.time = lambda: real() + {days} * 86400\n"
        "from gpumon.cli import main\nraise SystemExit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "replay", str(recorded.path), "--json"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, "TZ": "Asia/Tokyo"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == "".join(f"{line}\n" for line in recorded.findings).encode()


def test_the_rest_of_the_configuration_is_the_one_given_here(recorded: Recorded) -> None:
    off = Config(detect=DetectConfig(off=("xid",)), cadence=CadenceConfig(fast_s=1.0, publish_s=5.0))
    replay = replayed(recorded.path, off)
    assert replay.node.config.cadence.fast_s == 0.1  # recorded so
    kinds = [json.loads(line)["kind"] for line in findings(replay)]
    assert kinds == [kind for kind in FOUND if kind != "xid"]


def test_servers_and_folders_of_this_machine_are_not_asked(recorded: Recorded, tmp_path: Path) -> None:
    here = Config(
        servers=ServersConfig(targets=("http://127.0.0.1:1/metrics",)),
        requests=RequestsConfig(nccl_inspector=tmp_path / "nccl"),
    )
    assert findings(replayed(recorded.path, here)) == recorded.findings


def test_time_passes_by_the_second(recorded: Recorded) -> None:
    told = list(Replay(recorded.path, Config()).run())
    assert told == sorted(told)
    assert len(told) == pytest.approx(LENGTH_S, abs=2)
    assert told[-1] <= STARTED_S + LENGTH_S


def test_a_driver_that_was_gone_is_gone_in_the_replay_for_as_long(tmp_path: Path) -> None:
    """Whatever pauses the replay's own sampler would make."""
    path = tmp_path / "x.rec"
    studio = Studio(path, write_story(tmp_path, "kind: driver_restart, at_s: 5.5, for_s: 6"))
    absent: list[float] = []
    for second in range(1, 31):
        studio.advance(second)
        if not list(studio.node.store.view(studio.clock.now_s()).family(catalogue.GPU_ENERGY)):
            absent.append(studio.clock.now_s())
    last = sorted(studio.node.store.view(studio.clock.now_s()).family(catalogue.GPU_ENERGY))
    assert studio.close() == findings(replayed(path))
    replay = Replay(path, Config())
    seconds = [at_s for at_s in replay.run() if not list(replay.node.store.view(at_s).family(catalogue.GPU_ENERGY))]
    assert len(absent) > 5
    assert seconds == pytest.approx(absent, abs=1.0)
    assert sorted(replay.node.store.view(replay.clock.now_s()).family(catalogue.GPU_ENERGY)) == last


def test_a_masked_recording_gives_the_same_findings_of_things_with_other_names(
    recorded: Recorded, tmp_path: Path
) -> None:
    path = tmp_path / "masked.rec"
    studio = Studio(path, write_story(tmp_path), mask=True)
    world = studio.machine.world
    assert world is not None
    studio.advance(LENGTH_S)
    studio.close()
    masked = [json.loads(line) for line in findings(replayed(path))]
    plain = [json.loads(line) for line in recorded.findings]
    assert [row | {"uuid": bool(row["uuid"])} for row in masked] == [row | {"uuid": bool(row["uuid"])} for row in plain]
    uuids = {row["uuid"] for row in masked} - {None}
    assert len(uuids) == 2
    assert not uuids & {row["uuid"] for row in plain}
    reader = Reader(path)
    held = json.dumps(reader.header).encode() + b"".join(chunk.payload for chunk in reader.chunks())
    names = ["gpu-box-17", *(board.uuid for board in world.boards)]
    for pod in world.pods.values():
        names += [pod.uid, pod.uid.replace("-", "_"), pod.container_id, pod.container_id[:12]]
    assert len(names) > 6
    for name in names:
        assert name.encode() not in held, name


# --- files that are not what they should be --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"gpumon: 1\n", "not a file that gpumon wrote"),
        (b"\x1f\x8b\x08" + bytes(40), "not a file that gpumon wrote"),
        (MAGIC, "cut short in its header"),
        (struct.pack("<8sHII", MAGIC, VERSION + 1, 2, 0) + b"{}", "written by a later gpumon (format 2; this one"),
        (struct.pack("<8sHII", MAGIC, VERSION, 2, 1) + b"{}", "its header is damaged"),
        (struct.pack("<8sHII", MAGIC, VERSION, 2, zlib.crc32(b"{}")) + b"{}", "a file of gpumon, but no recording"),
    ],
    ids=["empty", "text", "gzip", "short", "later", "damaged", "other"],
)
def test_a_foreign_file_is_one_clear_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.rec"
    path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        Replay(path, Config())
    assert str(caught.value).startswith(f"{path}: {said}")
    assert "\n" not in str(caught.value)


def cuts(size: int) -> Iterator[int]:
    """Lengths of a file that was cut short: everywhere in its header and its first chunk, and here and there."""
    yield from range(0, 1500, 23)
    yield from range(1500, size, size // 25)
    yield size - 1


def test_a_file_that_was_cut_short_gives_what_is_whole_in_it(recorded: Recorded, tmp_path: Path) -> None:
    data = recorded.path.read_bytes()
    path = tmp_path / "cut.rec"
    lengths: list[float] = []
    refusals: list[str] = []
    for size in cuts(len(data)):
        path.write_bytes(data[:size])
        try:
            replay = replayed(path)
        except FormatError as error:
            refusals.append(str(error))
            continue
        assert "\n" not in replay.recording.truncated
        lengths.append(replay.clock.now_s() - STARTED_S)
    assert len(refusals) > 20  # in the header
    assert {text.removeprefix(f"{path}: ") for text in refusals} == {"the file is empty", "cut short in its header"}
    assert lengths == sorted(lengths)
    assert lengths[-1] > LENGTH_S - 2
    # Half a recording: what it needs nothing but GPUs for is found in it all the same.
    path.write_bytes(data[: len(data) * 3 // 4])
    assert json.loads(findings(replayed(path))[0])["kind"] == "hw_slowdown"


def test_a_damaged_chunk_ends_it_and_is_said(
    recorded: Recorded, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(recorded.path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path = tmp_path / "damaged.rec"
    path.write_bytes(data)
    assert main(path, Config(), None, json_output=True, page=None) == 0
    out, err = capfd.readouterr()
    assert err.startswith(f"gpumon: {path}: the end is left out: the chunk at byte ")
    assert len(err.splitlines()) == 1
    assert all(json.loads(line) for line in out.splitlines())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"cadence": {"fast_s": 0}}, "cadence.fast_s: Input should be greater than or equal to 0.02"),
        ({"cadence": {"fast_s": "soon"}}, "cadence.fast_s: Input should be a valid number"),
        ({"cadence": {"no_such": 1}}, "cadence.no_such: Extra inputs are not permitted"),
        ({"processes": [1]}, "processes: Input should be an object"),
    ],
)
def test_a_configuration_that_cannot_be_taken_is_named(
    recorded: Recorded, config: object, said: str, tmp_path: Path
) -> None:
    path = with_header(tmp_path / "x.rec", recorded, config=config)
    with pytest.raises(FormatError) as caught:
        Replay(path, Config())
    assert str(caught.value) == f"{path}: its configuration cannot be taken: {said}"


@pytest.mark.parametrize("config", [None, [], "x", {}, {"http": {"listen": "0.0.0.0:80"}, "forward": 7}])
def test_what_a_header_need_not_say_has_its_default(recorded: Recorded, config: object, tmp_path: Path) -> None:
    path = with_header(tmp_path / "x.rec", recorded, config=config)
    assert findings(replayed(path)) == recorded.findings


@pytest.mark.parametrize("value", [None, 7, "x", {"a": 1}, [1, None, ["x"]]])
def test_a_hostile_header_is_no_crash(recorded: Recorded, value: object, tmp_path: Path) -> None:
    path = with_header(tmp_path / "x.rec", recorded, node_names=value, server_urls=value, kernel_log=value)
    assert [json.loads(line)["kind"] for line in findings(replayed(path))]


@pytest.mark.parametrize("value", [None, "x", 1e300, []])
def test_a_header_without_its_times_is_refused(recorded: Recorded, value: object, tmp_path: Path) -> None:
    path = with_header(tmp_path / "x.rec", recorded, started_s=value)
    with pytest.raises(FormatError, match="its header does not say started_s"):
        Replay(path, Config())


def test_a_gap_that_nobody_would_wait_through_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.rec"
    studio = Studio(path, write_story(tmp_path))
    studio.advance(3)
    studio.recording.body(Signal.TRACES, b"", False, "127.0.0.1", STARTED_S + 1e9)
    studio.close()
    with pytest.raises(FormatError, match=rf"{path}: a gap of 1e\+09 s in it"):
        replayed(path)


def test_a_recording_in_which_nothing_was_recorded_has_no_findings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.rec"
    Writer.create(path, HEADER).close()
    assert main(path, Config(), None, json_output=False, page=None) == 0
    assert capfd.readouterr() == ("", "0 incidents in 0 s\n")


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Replay(tmp_path / "nowhere.rec", Config())


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_tells_the_findings_and_writes_the_page(
    recorded: Recorded, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.prom"
    assert main(recorded.path, Config(), None, json_output=True, page=page) == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == recorded.findings
    assert err == ""
    assert page.read_bytes() == replayed(recorded.path).page()


def test_the_command_tells_a_person_how_much_there_was(recorded: Recorded, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(recorded.path, Config(), None, json_output=False, page=None) == 0
    out, err = capfd.readouterr()
    assert "hw_slowdown" in out
    assert err == f"{len(FOUND)} incidents in {LENGTH_S:.0f} s\n"


def test_a_speed_lets_real_time_pass_and_changes_no_finding(
    recorded: Recorded, capfd: pytest.CaptureFixture[str]
) -> None:
    began_s = time.monotonic()
    assert main(recorded.path, Config(), 40.0, json_output=True, page=None) == 0
    assert time.monotonic() - began_s >= (LENGTH_S - 2) / 40.0
    assert capfd.readouterr().out.splitlines() == recorded.findings


def test_thresholds_that_cannot_be_taken_raise(recorded: Recorded) -> None:
    with pytest.raises(DetectConfigError, match=r'detect\.off\[0\] = "no_such"'):
        Replay(recorded.path, Config(detect=DetectConfig(off=("no_such",))))
