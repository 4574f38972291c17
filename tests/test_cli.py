"""The command line: exit codes, one clear line when something is wrong, and nothing imported that is not needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpumon import __version__, cli
from gpumon.catalogue import METRICS
from gpumon.config import Config

Invoke = Callable[..., tuple[int, str, str]]
Fail = Callable[[BaseException], None]


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run the program in this process; gives exit code, standard output, standard error."""
    for variable in [name for name in os.environ if name.startswith("GPUMON_")]:
        monkeypatch.delenv(variable)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        return code, *capfd.readouterr()

    return run


def program(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpumon", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], **environ},
        cwd=Path(__file__).resolve().parent.parent,
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


@pytest.mark.parametrize("command", ["run", "demo", "doctor", "metrics", "config"])
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(cli.commands, [command, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: commands {command}")


@pytest.mark.parametrize("command", ["run", "demo", "doctor", "config"])
def test_every_command_with_a_configuration_has_the_shared_flags(command: str) -> None:
    output = CliRunner().invoke(cli.commands, [command, "--help"]).output
    for flag in ("--config", "--listen", "--nvml-lib", "--procfs", "--sysfs", "--cgroupfs", "--log-format"):
        assert flag in output


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


@pytest.mark.parametrize("command", ["run", "demo", "doctor", "config"])
def test_a_wrong_configuration_is_exit_code_2_and_a_line_for_each_problem(invoke: Invoke, command: str) -> None:
    code, out, err = invoke(command, "--listen", "nowhere", "--log-format", "xml")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        'gpumon: http.listen = "nowhere" (--listen): expected HOST:PORT, [IPV6]:PORT or :PORT: there is no port',
        'gpumon: log.format = "xml" (--log-format): expected one of text, json',
    ]


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
    assert invoke("metrics") == (1, "", "gpumon: ZeroDivisionError: no rings (--log-level debug shows where)\n")


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
        self.calls: list[tuple[Config, bool]] = []
        self.reloaded: Config | None = None

    def run(self, config: Config, *, demo: bool, reload: Callable[[], Config]) -> int:
        self.calls.append((config, demo))
        self.reloaded = reload()
        return 7


@pytest.mark.parametrize(("command", "demo"), [("run", False), ("demo", True)])
def test_run_and_demo_hand_over_the_configuration_and_a_way_to_read_it_again(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, command: str, demo: bool
) -> None:
    import gpumon

    app = App()
    monkeypatch.setitem(sys.modules, "gpumon.app", app)
    monkeypatch.setattr(gpumon, "app", app, raising=False)
    assert invoke(command, "--listen", "127.0.0.1:0")[0] == 7
    assert [(config.http.listen, simulated) for config, simulated in app.calls] == [("127.0.0.1:0", demo)]
    assert app.reloaded == app.calls[0][0]


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
