"""``gpumon.record.diagnose_incident``: what a person, or a script, sees of an incident."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpumon import catalogue
from gpumon.config import Config, StateConfig
from gpumon.model import Sample
from gpumon.record.diagnose_incident import main
from gpumon.record.flight_folder import SUBFOLDER
from tests.record.flights import GPU, SM, START_S, UNIX_OFFSET_S, Node, clock_and_energy

WORKER = ("41403", "VLLM::W\x1b[31m", "", "vllm-0", "vllm")
OPENED_S = START_S + 100.0
IDS = [f"20261129T1710{number:02d}Z-thermal_throttle-gpu-3" for number in (1, 2, 3)]


@dataclass
class Printed:
    status: int
    out: str
    err: str


class Desk:
    """Where recordings are looked at."""

    def __init__(self, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = state
        self.folder = state / SUBFOLDER
        self._capsys = capsys

    def ask(
        self, wanted: str, *, json_output: bool = False, limit: int | None = 25, elsewhere: bool = False
    ) -> Printed:
        config = Config(state=StateConfig(folder=self.state.parent / "nowhere" if elsewhere else self.state))
        self._capsys.readouterr()
        status = main(config, wanted, self.folder if elsewhere else None, json_output, limit)
        return Printed(status, *self._capsys.readouterr())

    def refused(self, wanted: str) -> str:
        """The one line of an error."""
        printed = self.ask(wanted)
        assert (printed.status, printed.out) == (1, "")
        assert printed.err.startswith("gpumon: ")
        assert printed.err.count("\n") == 1
        return printed.err

    def data(self, wanted: str, limit: int | None = 25) -> dict[str, object]:
        printed = self.ask(wanted, json_output=True, limit=limit)
        assert (printed.status, printed.err) == (0, "")
        found = json.loads(printed.out)
        assert isinstance(found, dict)
        return found


def hot(at_s: float) -> list[Sample]:
    """A node whose clock falls and whose server faults while it is hot, from five seconds before the opening."""
    is_hot = OPENED_S - 5.0 <= at_s <= OPENED_S + 20.0
    return [
        *clock_and_energy(at_s)[1:],
        Sample(catalogue.GPU_CLOCK, SM, 1005e6 if is_hot else 1980e6),
        Sample(catalogue.GPU_TEMPERATURE, (*GPU, "gpu"), 90.0 if is_hot else 70.0),
        Sample(catalogue.PROCESS_PAGE_FAULTS, (*WORKER, "major"), 97.0 * max(0.0, at_s - OPENED_S)),
    ]


def recorded(state: Path) -> Node:
    """Three incidents in two files: the second shares the first one's."""
    node = Node(state / SUBFOLDER)
    node.values = hot
    node.run(100)
    first = node.open(1)
    first.traces, first.requests = ("0af7651916cd43dd8448eb211c80319c",), 1200
    node.run(5)
    node.open(2)
    node.run(15)
    node.close(first)
    node.run(30)
    node.open(3)
    node.run(80)
    return node


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    recorded(tmp_path / "state")
    return Desk(tmp_path / "state", capsys)


def test_an_incident_is_told_with_what_moved(desk: Desk) -> None:
    printed = desk.ask(IDS[0])
    assert (printed.status, printed.err) == (0, "")
    for text in (
        "thermal_throttle of gpu 3, warning\n",
        "SM clock 1980 → 1005 MHz at 90 °C\n",
        "Since 2026-11-18 11:24:55 UTC, until 2026-11-18 11:25:20 UTC, 25 s; found after 5 s.\n",
        "What to do: Look after the cooling.\n",
        "Requests touched: 1,200: 0af7651916cd43dd8448eb211c80319c\n",
        f"It also holds {IDS[1]}.\n",
        f"Recording: {desk.folder / IDS[0]}.flight\n",
    ):
        assert text in printed.out, text
    assert "\x1b" not in printed.out
    rows = [line.split() for line in printed.out.splitlines() if line.startswith(("gpu_", "process_", "sm clock"))]
    assert rows[0] == ["sm", "clock", "1,980", "MHz", "1,005", "MHz"]
    assert [row[0] for row in rows[1:]] == [
        "gpu_clock_hertz",  # its own GPU's, by how much they moved; then what else moved, and what did not
        "gpu_temperature_celsius",
        "process_page_faults_total",
        "gpu_energy_joules_total",
    ]
    assert " ".join(rows[1][1:]) == "{gpu=3, domain=sm} 1,980 MHz 1,005 MHz 1,980 MHz -49 % -49.2"
    assert rows[4][1:4] == ["{gpu=3}", "500", "W"]
    (fast,) = [line.split() for line in printed.out.splitlines() if line.startswith("fast sm_active")]
    assert fast[2:11] == ["{gpu=3}", "50", "%", "50", "%", "(50", "%", "to", "50"]


def test_the_same_as_data(desk: Desk) -> None:
    data = desk.data(IDS[0])
    assert data["id"] == IDS[0]
    assert data["since_unix_s"] == OPENED_S - 5.0 + UNIX_OFFSET_S
    assert data["closed_unix_s"] == OPENED_S + 20.0 + UNIX_OFFSET_S
    assert (data["duration_s"], data["is_closed"], data["requests"]) == (25.0, True, 1200)
    assert data["entity"] == {"scope": "gpu", "name": "gpu 3", "gpu": "3", "uuid": "GPU-3"}
    assert isinstance(data["recording"], dict)
    assert data["recording"]["incidents"] == IDS[:2]
    assert data["recording"]["end"] == "complete"
    signals = data["signals"]
    assert isinstance(signals, list)
    (clock,) = [signal for signal in signals if signal["name"] == catalogue.GPU_CLOCK.name]
    assert clock["labels"] == {"gpu": "3", "uuid": "GPU-3", "domain": "sm"}
    assert (clock["before"], clock["during"], clock["after"]) == (1980e6, 1005e6, 1980e6)
    assert (clock["unit"], clock["per_second"]) == ("hertz", False)


def test_only_so_many_signals_are_told_unless_all_are_asked_for(desk: Desk) -> None:
    assert "2 of 5 signals" in desk.ask(IDS[0], limit=2).out
    assert len(desk.data(IDS[0], limit=2)["signals"]) == 2  # type: ignore[arg-type]
    assert "signals, those" not in desk.ask(IDS[0], limit=None).out
    assert len(desk.data(IDS[0], limit=None)["signals"]) == 5  # type: ignore[arg-type]


def test_an_incident_is_found_by_its_id_its_beginning_or_as_the_latest(desk: Desk) -> None:
    assert desk.data(IDS[1])["id"] == IDS[1]  # in the file of another one
    assert desk.data("20261129T171002")["id"] == IDS[1]
    assert desk.data("latest")["id"] == IDS[2]
    assert desk.ask(IDS[2], elsewhere=True).status == 0


def test_an_incident_that_was_open_at_the_end_says_so(desk: Desk) -> None:
    assert "still open when the recording ended, after 65 s" in desk.ask(IDS[2]).out
    data = desk.data(IDS[2])
    assert (data["is_closed"], data["closed_unix_s"]) == (False, None)
    assert data["periods_unix_s"]["after"] is None  # type: ignore[index]


def test_a_beginning_that_several_share_names_them(desk: Desk) -> None:
    line = desk.refused("20261129T")
    assert "may be 3 incidents" in line
    assert all(id_ in line for id_ in IDS)


def test_an_id_that_nobody_has_names_the_newest_recording(desk: Desk) -> None:
    line = desk.refused("20250101T")
    assert "no recording of '20250101T'" in line
    assert f"{IDS[2]}.flight" in line
    assert "no recording of '../../etc/passwd'" in desk.refused("../../etc/passwd")


def test_no_recordings_no_folder_and_no_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(tmp_path / "state", capsys)
    assert "No such file or directory" in desk.refused("latest")
    desk.folder.mkdir(parents=True)
    assert "there are no recordings" in desk.refused("latest")
    assert main(Config(state=StateConfig(folder=None)), "latest", None, False, None) == 1
    assert capsys.readouterr().err == "gpumon: state.folder is null: there are no recordings\n"


def test_nothing_in_the_folder_that_nobody_named_tells_how_to_find_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path / "state", capsys)
    where = "in its log (state=folder path=PATH): --folder PATH/flights\n"
    assert desk.refused("latest").endswith(where)
    assert where not in desk.ask("latest", elsewhere=True).err
    desk.folder.mkdir(parents=True)
    assert desk.refused("latest").endswith(where)
    assert desk.ask("latest", elsewhere=True).err == f"gpumon: {desk.folder}: there are no recordings\n"


def test_a_damaged_file_is_one_line_and_hides_no_other(desk: Desk) -> None:
    (desk.folder / f"{IDS[2]}.flight").write_bytes(b"not what it was")
    assert "not a file that gpumon wrote" in desk.refused(IDS[2])
    assert desk.data("latest")["id"] == IDS[1]
    assert desk.data("20261129T171002")["id"] == IDS[1]
    assert "not a file that gpumon wrote" in desk.refused("20261129T171003")
    (desk.folder / f"{IDS[0]}.flight").write_bytes(b"nor this")
    assert "damaged" in desk.refused("latest")


def test_a_file_that_is_cut_off_tells_what_there_is(desk: Desk) -> None:
    path = desk.folder / f"{IDS[0]}.flight"
    path.write_bytes(path.read_bytes()[:-200])
    printed = desk.ask(IDS[0])
    assert printed.status == 0
    assert "Its end cannot be read: the chunk at byte" in printed.out
    assert desk.data(IDS[0])["recording"]["end"] == "interrupted"  # type: ignore[index]


def test_a_recording_that_still_runs_or_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(tmp_path / "state", capsys)
    node = Node(desk.folder)
    node.run(10)
    opened = node.open()
    node.run(20)
    assert "It was interrupted, or still runs." in desk.ask(opened.id).out
    node.recorder.stop(node.at_s)
    assert "It ends early: gpumon was stopped meanwhile." in desk.ask(opened.id).out
