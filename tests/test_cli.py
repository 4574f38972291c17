"""The command line: exit codes, one clear line when something is wrong, and nothing imported that is not needed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpumon import __version__, cli
from gpumon.catalogue import METRICS
from gpumon.config import Config
from gpumon.recording import Wish
from gpumon.web.explanation import trace
from tests.diagnoses import full
from tests.explained import TRACE, explained, to_unix
from tests.host.test_http_client import Peer
from tests.recorded import Studio
from tests.stories import write_story
from tests.test_api_client import reply

ROOT = Path(__file__).resolve().parent.parent
Invoke = Callable[..., tuple[int, str, str]]
Fail = Callable[[BaseException], None]


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, root_logger_as_before: None) -> Invoke:
    """Run the program in this process; gives exit code, standard output, standard error."""
    for variable in [name for name in os.environ if name.startswith("GPUMON_")]:
        monkeypatch.delenv(variable)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        return code, *capfd.readouterr()

    return run


def program(*arguments: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpumon", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environ},
        cwd=cwd,
    )


def test_version(invoke: Invoke) -> None:
    assert invoke("--version") == (0, f"gpumon {__version__}\n", "")


def test_the_version_costs_neither_pydantic_nor_yaml() -> None:
    code = (
        "import sys\nfrom gpumon.cli import main\nassert main(['--version']) == 0\n"
        "print([name for name in ('pydantic', 'yaml', 'asyncio', 'numpy', 'pynvml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"gpumon {__version__}\n[]\n"


def test_matrices_get_one_thread_unless_somebody_says_otherwise() -> None:
    code = "import sys\nfrom gpumon import cli\nassert 'numpy' not in sys.modules\ncli.main(['--version'])\n"
    code += "import os, numpy\nprint(os.environ['OPENBLAS_NUM_THREADS'], len(os.listdir('/proc/self/task')))"
    plain = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for env, told in ((plain, "1 1"), (plain | {"OPENBLAS_NUM_THREADS": "3"}, "3 ")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        assert done.stdout.splitlines()[-1].startswith(told)


@pytest.mark.parametrize("command", sorted(cli.commands.commands))
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(cli.commands, [command, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: commands {command}")


def test_the_list_of_commands_is_whole_on_80_columns() -> None:
    listed = CliRunner().invoke(cli.commands, ["--help"], terminal_width=80).output.split("Commands:\n")[1]
    rows = [line.split(maxsplit=1) for line in listed.splitlines()]
    assert [name for name, _ in rows] == sorted(cli.commands.commands)
    assert all(text.endswith(".") and not text.endswith("..") for _, text in rows)


@pytest.mark.parametrize("command", ["run", "demo", "record", "doctor", "config"])
def test_every_command_with_a_configuration_has_the_shared_flags(command: str) -> None:
    output = CliRunner().invoke(cli.commands, [command, "--help"]).output
    for flag in ("--config", "--listen", "--nvml-lib", "--procfs", "--sysfs", "--cgroupfs", "--log-format"):
        assert flag in output


@pytest.mark.parametrize("command", ["replay", "simulate", "diagnose"])
def test_commands_that_watch_nothing_have_the_file_and_the_log_alone(command: str) -> None:
    options = {option for item in cli.commands.commands[command].params for option in item.opts}
    assert {"--config", "--log-format", "--log-level"} <= options
    assert not {"--listen", "--otlp-grpc", "--otlp-http", "--nvml-lib", "--procfs"} & options


def test_as_a_program() -> None:
    done = program("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gpumon {__version__}\n", "")


def test_metrics_lists_the_whole_catalogue(invoke: Invoke) -> None:
    code, out, err = invoke("metrics")
    assert (code, err) == (0, "")
    assert all(metric.name in out for metric in METRICS)
    assert out.startswith("IDENTITY\n")


def test_metrics_as_json_and_markdown(invoke: Invoke) -> None:
    assert len(json.loads(invoke("metrics", "--json")[1])) == len(METRICS)
    assert invoke("metrics", "--markdown")[1].startswith("# Metrics\n")


def test_config_prints_what_is_in_effect_and_it_can_be_loaded_again(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text("cadence: {fast_s: 0.2}\n")
    code, out, _ = invoke(
        "config", "--config", str(tmp_path / "in.yaml"), "--listen", "[::1]:0", "--log-level", "debug"
    )
    assert code == 0
    assert yaml.safe_load(out)["cadence"]["fast_s"] == 0.2
    (tmp_path / "out.yaml").write_text(out)
    assert invoke("config", "--config", str(tmp_path / "out.yaml")) == (0, out, "")


def test_config_as_markdown(invoke: Invoke) -> None:
    assert invoke("config", "--markdown")[1].startswith("# Configuration\n")


def test_the_environment_is_taken(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUMON_CADENCE__FAST_S", "0.25")
    assert yaml.safe_load(invoke("config")[1])["cadence"]["fast_s"] == 0.25


@pytest.mark.parametrize("command", ["run", "demo", "doctor", "config", "record x"])
def test_a_wrong_configuration_is_exit_code_2_and_a_line_for_each_problem(invoke: Invoke, command: str) -> None:
    code, out, err = invoke(*command.split(), "--listen", "nowhere", "--log-format", "xml")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        'gpumon: http.listen = "nowhere" (--listen): expected HOST:PORT, [IPV6]:PORT or :PORT: there is no port',
        'gpumon: log.format = "xml" (--log-format): expected one of text, json',
    ]


@pytest.mark.parametrize("command", ["replay x", "simulate demo", "diagnose --incident x"])
def test_so_it_is_for_commands_that_watch_nothing(invoke: Invoke, command: str) -> None:
    code, out, err = invoke(*command.split(), "--log-level", "loud")
    assert (code, out) == (2, "")
    expected = "expected one of debug, info, warning, error"
    assert err.splitlines() == [f'gpumon: log.level = "loud" (--log-level): {expected}']


def test_a_missing_configuration_file_is_exit_code_2(invoke: Invoke) -> None:
    assert invoke("run", "--config", "/nowhere.yaml") == (
        2,
        "",
        "gpumon: /nowhere.yaml: No such file or directory\n",
    )


@pytest.mark.parametrize("arguments", [["runn"], ["run", "--lissten", "x"], ["run", "extra"], []])
def test_wrong_arguments_are_exit_code_2(invoke: Invoke, arguments: list[str]) -> None:
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: gpumon" in err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """A command that fails as it is told to."""

    def install(error: BaseException) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setattr(cli.commands.commands["metrics"], "callback", lambda style: fail())

    return install


def test_an_unexpected_error_is_one_line_and_exit_code_1(invoke: Invoke, failing: Fail) -> None:
    failing(ZeroDivisionError("no rings"))
    hint = "GPUMON_LOG__LEVEL=debug shows where"
    assert invoke("metrics") == (1, "", f"gpumon: ZeroDivisionError: no rings ({hint})\n")


_REQUIRED = {
    "record": ["file"],
    "replay": ["file"],
    "simulate": ["demo"],
    "explain": ["1" * 32],
    "probe": ["--endpoint", "http://127.0.0.1:1", "--ladder", "8k"],
}


@pytest.mark.parametrize("name", sorted(cli.commands.commands))
def test_the_hint_of_every_command_shows_where(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError("no rings")

    monkeypatch.setattr(cli.commands.commands[name], "callback", fail)
    command = [name, *_REQUIRED.get(name, [])]
    code, _, err = invoke(*command)
    told = re.fullmatch(r"gpumon: ZeroDivisionError: no rings \((.+) shows where\)\n", err)
    assert told is not None
    variable, _, value = told[1].partition("=")
    if value:
        monkeypatch.setenv(variable, value)
    else:
        command += variable.split()
    code, _, err = invoke(*command)
    assert code == 1
    assert err.startswith("gpumon: ZeroDivisionError: no rings\nTraceback ")


def test_an_unexpected_error_shows_where_at_debug_level(
    invoke: Invoke, failing: Fail, caplog: pytest.LogCaptureFixture
) -> None:
    failing(ZeroDivisionError("no rings"))
    caplog.set_level("DEBUG")
    code, _, err = invoke("metrics")
    assert code == 1
    assert err.startswith("gpumon: ZeroDivisionError: no rings\nTraceback ")


def test_a_system_error_is_said_in_its_own_words(invoke: Invoke, failing: Fail) -> None:
    failing(OSError(98, "Address already in use"))
    assert invoke("metrics") == (1, "", "gpumon: [Errno 98] Address already in use\n")


def test_an_interrupt_is_one_line_and_exit_code_1(invoke: Invoke, failing: Fail) -> None:
    failing(KeyboardInterrupt())
    code, out, err = invoke("metrics")
    assert (code, out, err.strip()) == (1, "", "gpumon: interrupted")


def test_a_reader_that_leaves_is_exit_code_1_without_a_word() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "gpumon", "metrics"], stdout=pipe, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_a_full_disk_is_one_line_and_exit_code_1() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpumon", "metrics"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "gpumon: [Errno 28] No space left on device\n")


class App:
    """Stands where gpumon.app stands: notes what it was asked to run."""

    def __init__(self) -> None:
        self.calls: list[tuple[Config, str | None, Wish | None]] = []
        self.reloaded: Config | None = None

    def run(
        self, config: Config, *, scenario: str | None, reload: Callable[[], Config], record: Wish | None = None
    ) -> int:
        self.calls.append((config, scenario, record))
        self.reloaded = reload()
        return 7


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    import gpumon

    app = App()
    monkeypatch.setitem(sys.modules, "gpumon.app", app)
    monkeypatch.setattr(gpumon, "app", app, raising=False)
    return app


@pytest.mark.parametrize(
    ("command", "scenario"),
    [("run", None), ("demo", "demo"), ("demo --scenario x.yaml", "x.yaml"), ("record x --demo", "demo")],
)
def test_run_and_demo_hand_over_the_configuration_and_a_way_to_read_it_again(
    invoke: Invoke, app: App, command: str, scenario: str | None
) -> None:
    assert invoke(*command.split(), "--listen", "127.0.0.1:0")[0] == 7
    assert [(config.http.listen, told) for config, told, _ in app.calls] == [("127.0.0.1:0", scenario)]
    assert app.reloaded == app.calls[0][0]


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
        (["explain"], "Missing argument 'TRACE_ID'"),
        (["explain", "0af7"], "TRACE_ID: '0af7': expected 32 hexadecimal digits"),
        (["explain", "g" * 32], f"'{'g' * 32}': expected 32 hexadecimal digits"),
        (["explain", "\N{FULLWIDTH DIGIT ONE}" * 32], "expected 32 hexadecimal digits"),
        (["diagnose", "--since", "yesterday"], "--since: 'yesterday': expected a time such as 90s, 30m or 2h"),
        (["diagnose", "--since", "0"], "--since: '0': expected a time"),
        (["diagnose", "--since", "-5m"], "--since: '-5m': expected a time"),
        (["diagnose", "--since", "1e9"], "--since: '1e9': expected a time"),
        (["diagnose", "--since", "nan"], "--since: 'nan': expected a time"),
        (["diagnose", "--since", "9" * 50], "--since: '9999999999999999999999999999999999999999': expected a time"),
        (["diagnose", "--since", "3h"], "--since: 3h: a running gpumon knows at most 2h"),
        (["diagnose", "--quantile", "1"], "'--quantile': 1.0 is not in the range"),
        (["diagnose", "--quantile", "nan"], "'--quantile': nan is not in the range"),
        (["diagnose", "--html", "/tmp"], "'/tmp' is a directory"),
        (["diagnose", "/tmp"], "'/tmp' is a directory"),
        (["diagnose", "--folder", "x"], "--folder means nothing with no --incident"),
        (["diagnose", "x.rec", "--url", "http://x"], "--url means nothing with a FILE"),
        (["diagnose", "x.rec", "--incident", "latest"], "FILE means nothing with --incident"),
        (["diagnose", "--incident", "latest", "--html", "x"], "--html means nothing with --incident"),
        (["diagnose", "--incident", "latest", "--since", "5m"], "--since means nothing with --incident"),
        (["diagnose", "--url", "nowhere"], "--url: 'nowhere': expected such as http://127.0.0.1:9450"),
        (["diagnose", "--ca", "x.pem"], "--ca is of TLS: expected an https:// address with it"),
    ],
)
def test_wrong_values_of_arguments_are_exit_code_2(invoke: Invoke, app: App, arguments: list[str], said: str) -> None:
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert app.calls == []


# --- recordings and scenarios -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of twelve seconds."""
    folder = tmp_path_factory.mktemp("cli")
    studio = Studio(folder / "quick.rec", write_story(folder))
    studio.advance(12)
    studio.close()
    return folder / "quick.rec"


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


def test_diagnose_without_recordings_is_one_line_and_exit_code_1(invoke: Invoke, tmp_path: Path) -> None:
    code, out, err = invoke("diagnose", "--incident", "latest", "--folder", str(tmp_path))
    assert (code, out, err) == (1, "", f"gpumon: {tmp_path}: there are no recordings\n")


# --- explain and diagnose ---------------------------------------------------------------------------------------------


@pytest.fixture
def peer() -> Iterator[Peer]:
    """Stands where a running gpumon stands."""
    made = Peer()
    yield made
    made.stop()


def url_of(peer: Peer) -> str:
    return peer.url.removesuffix("/metrics")


TOLD = trace(TRACE, [explained()], to_unix).model_dump_json()


def test_explain_tells_what_the_running_gpumon_knows(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(200, TOLD.encode()))
    code, out, err = invoke("explain", f" {TRACE.upper()}", "--url", url_of(peer))
    assert (code, err) == (0, "")
    assert out.startswith("llama-70b on vllm, tenant acme\n")
    assert "\x1b" not in out
    assert peer.requests[0].startswith(f"GET /api/v1/explain?trace_id={TRACE} ".encode())


def test_explain_as_json_is_what_was_answered(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(200, TOLD.encode()))
    code, out, _ = invoke("explain", TRACE, "--url", url_of(peer), "--json")
    assert (code, json.loads(out)) == (0, json.loads(TOLD))


def test_a_trace_that_is_not_known_is_one_line_and_exit_code_1(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(404, b'{"detail": "nothing is known of this trace"}'))
    assert invoke("explain", TRACE, "--url", url_of(peer)) == (
        1,
        "",
        f"gpumon: {url_of(peer)}: nothing is known of this trace\n",
    )


@pytest.mark.parametrize("command", [["explain", TRACE], ["diagnose"]])
def test_no_gpumon_there_is_one_line_and_exit_code_1(invoke: Invoke, peer: Peer, command: list[str]) -> None:
    url = url_of(peer)
    peer.stop()
    code, out, err = invoke(*command, "--url", url)
    assert (code, out) == (1, "")
    assert err == f"gpumon: no gpumon answers at {url}: Connection refused; --url says where it listens\n"


@pytest.mark.parametrize("command", [["explain", TRACE], ["diagnose"]])
def test_credentials_of_the_environment_are_for_the_running_gpumon(
    invoke: Invoke, peer: Peer, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("GPUMON_API_TOKEN", "s3cret")
    peer.answers.append(reply(401, b""))
    code, out, err = invoke(*command, "--url", url_of(peer))
    assert (code, out) == (1, "")
    assert err == f"gpumon: {url_of(peer)} does not accept these credentials (HTTP 401)\n"
    assert b"Authorization: Bearer s3cret\r\n" in peer.requests[0]
    assert invoke("config")[0] == 0


def test_diagnose_tells_what_the_running_gpumon_found(invoke: Invoke, peer: Peer, tmp_path: Path) -> None:
    peer.answers.append(reply(200, full().model_dump_json().encode()))
    page = tmp_path / "report.html"
    options = ["--since", "15m", "--model", "llama-70b", "--x", "tenant", "--quantile", "0.5", "--html", str(page)]
    code, out, err = invoke("diagnose", "--url", url_of(peer), *options)
    assert (code, err) == (0, f"The report is in {page}.\n")
    assert out.startswith("gpu-box-17: 30 min from 2027-01-15 08:00:00 UTC on\n")
    assert page.read_text("utf-8").startswith("<!doctype html>")
    asked = "/api/v1/diagnose?since=900&model=llama-70b&x=tenant&quantile=0.5"
    assert peer.requests[0].startswith(f"GET {asked} ".encode())


def test_diagnose_as_json_is_what_was_answered(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(200, full().model_dump_json().encode()))
    code, out, _ = invoke("diagnose", "--url", url_of(peer), "--json")
    assert (code, json.loads(out)) == (0, full().model_dump(mode="json"))


def test_an_attribute_that_there_is_not_is_exit_code_2(invoke: Invoke, peer: Peer) -> None:
    peer.answers.append(reply(422, b'{"detail": "no attribute \'colour\' of requests"}'))
    assert invoke("diagnose", "--url", url_of(peer), "--x", "colour") == (
        2,
        "",
        "gpumon: no attribute 'colour' of requests\n",
    )


def test_a_report_that_cannot_be_written_is_said_before_anything_is_asked(
    invoke: Invoke, peer: Peer, tmp_path: Path
) -> None:
    page = tmp_path / "no" / "report.html"
    assert invoke("diagnose", "--url", url_of(peer), "--html", str(page)) == (
        1,
        "",
        f"gpumon: {page}: there is no such folder\n",
    )
    assert peer.requests == []


def test_diagnose_tells_what_a_recording_holds(invoke: Invoke, recorded: Path) -> None:
    code, out, err = invoke("diagnose", str(recorded), "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["requests"] > 0
    assert told["until"] - told["since"] == pytest.approx(12, abs=0.5)


def test_signals_do_not_leave_a_traceback_while_starting() -> None:
    code = "import os, signal\nfrom gpumon import cli\ncli._load = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "raise SystemExit(cli.main(['config']))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, -signal.SIGINT)
    assert "Traceback" not in done.stderr
