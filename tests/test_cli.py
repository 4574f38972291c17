"""The command line: exit codes, one clear line when something is wrong, and nothing imported that is not needed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpumon import __version__, cli
from tests.command_line import Invoke, program

Fail = Callable[[BaseException], None]
_REQUIRED = {
    "record": ["file"],
    "replay": ["file"],
    "simulate": ["demo"],
    "explain": ["1" * 32],
    "probe": ["--endpoint", "http://127.0.0.1:1", "--ladder", "8k"],
}


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


def test_signals_do_not_leave_a_traceback_while_starting() -> None:
    code = "import os, signal\nfrom gpumon import cli\nfrom gpumon.commands import metrics\n"
    code += "metrics.load = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "raise SystemExit(cli.main(['config']))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, -signal.SIGINT)
    assert "Traceback" not in done.stderr
