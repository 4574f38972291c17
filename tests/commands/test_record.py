"""``gpumon record``, ``replay`` and ``simulate``: arguments, exit codes, and one line when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpumon.recording import Wish
from tests.command_line import App, Invoke, program
from tests.stories import write_story


@pytest.mark.parametrize(
    ("arguments", "scenario", "wish"),
    [
        ("x.rec", None, Wish(Path("x.rec"), limit_bytes=1 << 30)),
        (
            "x.rec --for 25 --limit 7 --mask --overwrite",
            None,
            Wish(Path("x.rec"), mask=True, overwrite=True, limit_bytes=7 << 20, duration_s=25.0),
        ),
        ("x.rec --demo --scenario y.yaml", "y.yaml", Wish(Path("x.rec"), limit_bytes=1 << 30)),
    ],
)
def test_record_hands_over_what_is_to_be_recorded(
    invoke: Invoke, app: App, arguments: str, scenario: str | None, wish: Wish
) -> None:
    assert invoke("record", *arguments.split())[0] == 7
    assert app.calls[0][1:] == (scenario, wish)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["record", "x", "--scenario", "demo"], "--scenario is of a simulated node: expected --demo with it"),
        (["record", "x", "--for", "0.5"], "'--for': 0.5 is not in the range"),
        (["record", "x", "--limit", "0"], "'--limit': 0 is not in the range"),
        (["record"], "Missing argument 'FILE'"),
        (["replay", "x", "--speed", "0"], "--speed: '0': expected max, or a number from 0.01 to 1000000"),
        (["replay", "x", "--speed", "-1"], "--speed: '-1': expected max"),
        (["replay", "x", "--speed", "nan"], "--speed: 'nan': expected max"),
        (["replay", "x", "--speed", "inf"], "--speed: 'inf': expected max"),
        (["replay", "x", "--speed", "fast"], "--speed: 'fast': expected max"),
        (["replay", "x", "--speed", "9" * 50], "--speed: '9999999999999999999999999999999999999999': expected max"),
        (["replay", "/tmp"], "'/tmp' is a directory"),
        (["simulate", "demo", "--seed", "-1"], "'--seed': -1 is not in the range"),
        (["simulate", "demo", "--for", "nan"], "'--for': nan is not in the range"),
        (["record", "x", "--for", "nan"], "'--for': nan is not in the range"),
        (["simulate"], "Missing argument 'SCENARIO'"),
    ],
)
def test_wrong_values_of_arguments_are_exit_code_2(invoke: Invoke, app: App, arguments: list[str], said: str) -> None:
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert app.calls == []


@pytest.mark.parametrize("speed", ["max", "500", "1e3", " 500 "])
def test_replay_tells_what_was_found(invoke: Invoke, recorded: Path, speed: str) -> None:
    code, out, err = invoke("replay", str(recorded), "--json", "--speed", speed)
    assert (code, err) == (0, "")
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["hw_slowdown", "xid"]


def test_replay_logs_nothing_beside_the_findings_unless_it_is_told_to(invoke: Invoke, recorded: Path) -> None:
    assert invoke("replay", str(recorded))[2] == "2 incidents in 12 s\n"
    _, _, err = invoke("replay", str(recorded), "--log-level", "info", "--log-format", "json")
    messages = [json.loads(line)["message"] for line in err.splitlines()[:-1]]
    assert any(message.startswith("incident=opened") for message in messages)


@pytest.mark.parametrize("command", ["replay", "diagnose"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"hello", "not a file that gpumon wrote"),
        (b"\x89gpumon\n\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00", "written by a later gpumon (format 2; this one "),
        (b"\x89gpumon\n\x01\x00", "cut short in its header"),
    ],
)
def test_a_file_that_is_no_recording_is_one_line_and_exit_code_1(
    invoke: Invoke, command: str, content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.rec"
    path.write_bytes(content)
    code, out, err = invoke(command, str(path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"gpumon: {path}: {said}")


@pytest.mark.parametrize("command", ["replay", "diagnose"])
def test_a_recording_that_is_not_there_is_one_line_and_exit_code_1(invoke: Invoke, command: str) -> None:
    code, out, err = invoke(command, "/nowhere.rec")
    assert (code, out) == (1, "")
    assert err == "gpumon: /nowhere.rec: No such file or directory\n"


def test_a_page_that_cannot_be_written_is_one_line_and_exit_code_1(invoke: Invoke, recorded: Path) -> None:
    code, _, err = invoke("replay", str(recorded), "--page", "/nowhere/page")
    assert code == 1
    assert err.splitlines()[-1] == "gpumon: /nowhere/page: No such file or directory"


def test_simulate_tells_whether_all_was_found_by_its_exit_code(invoke: Invoke, tmp_path: Path) -> None:
    path = str(write_story(tmp_path))
    code, out, err = invoke("simulate", path, "--for", "13", "--json")
    assert (code, err) == (0, "")
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["hw_slowdown", "xid"]
    code, _, err = invoke("simulate", path, "--for", "6.2", "--seed", "3")
    assert (code, err) == (1, "not found: hw_slowdown, from 6 s, of the fault power_brake\n")


@pytest.mark.parametrize(
    "command", [("simulate",), ("demo", "--scenario"), ("record", "x.rec", "--demo", "--scenario")]
)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "name: x\nduration_s: 9\nfaults:\n  - {kind: fire, at_s: 1}\n",
            "{}:4: faults[0].kind: no such fault; known are",
        ),
        ("name: x\nduration_s: 0\n", "{}:2: duration_s: Input should be greater than or equal to 1"),
        ("name: x\nduration_s: 9\nnode: {gpus: 99}\n", "{}:3: node.gpus: Input should be less than or equal to"),
        ("name: [\n", "{}:2: "),
        ("", "{}:1: Input should be a valid dictionary"),
    ],
)
def test_a_scenario_that_cannot_be_taken_is_exit_code_2_with_file_line_and_key(
    invoke: Invoke, command: tuple[str, ...], text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUMON_HTTP__LISTEN", "127.0.0.1:0")
    path = tmp_path / "x.yaml"
    path.write_text(text)
    code, out, err = invoke(*command, str(path))
    assert (code, out) == (2, "")
    assert err.splitlines()[0].startswith(f"gpumon: {said.format(path)}")
    assert [file.name for file in tmp_path.iterdir()] == ["x.yaml"]


def test_a_scenario_that_is_not_there_is_exit_code_2(invoke: Invoke) -> None:
    assert invoke("simulate", "no-such") == (2, "", "gpumon: no-such: No such file or directory\n")


@pytest.mark.parametrize("command", ["run", "demo", "record x.rec", "simulate demo", "replay {}"])
def test_a_section_detect_that_cannot_be_taken_is_exit_code_2_with_the_key(
    command: str, recorded: Path, tmp_path: Path
) -> None:
    options = {"GPUMON_DETECT__OFF": "[nope]", "GPUMON_DETECT__THRESHOLDS": "{xid: {share: 1}}"}
    ports = {"GPUMON_HTTP__LISTEN": "127.0.0.1:0", "GPUMON_STATE__FOLDER": str(tmp_path / "state")}
    done = program(*command.format(recorded).split(), cwd=tmp_path, **options, **ports)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        'gpumon: detect.off[0] = "nope": expected a kind of incident; docs/DETECTORS.md lists them',
        'gpumon: detect.thresholds[xid]["share"]: expected the name of a threshold; known are none',
    ]
    assert list(tmp_path.iterdir()) == []  # no recording either


def test_a_recording_that_cannot_be_made_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "x.rec").touch()
    ports = {"GPUMON_HTTP__LISTEN": "127.0.0.1:0", "GPUMON_STATE__FOLDER": str(tmp_path / "state")}
    for path, why in (("x.rec", "File exists; --overwrite replaces it"), ("no/x.rec", "No such file or directory")):
        done = program("record", path, "--demo", cwd=tmp_path, **ports)
        assert (done.returncode, done.stderr) == (1, f"gpumon: cannot record to {path}: {why}\n")
