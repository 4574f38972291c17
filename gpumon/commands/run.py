"""``gpumon run``, ``demo`` and ``doctor``: watch this machine or a simulated one, and say what can be seen here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpumon.commands.failures import ConfigurationError
from gpumon.commands.loading import load, loader
from gpumon.commands.options import Command, configured

if TYPE_CHECKING:
    from gpumon.config import Config
    from gpumon.recording import Wish


@click.command(cls=Command)
@configured
def run(path: Path | None, **flags: str | None) -> int:
    """Watch this machine and serve what is seen. Never simulates."""
    return serve(load(path, flags), path, flags)


@click.command(cls=Command)
@configured
@click.option("--scenario", metavar="NAME|FILE", default="demo", show_default=True, help="What happens there.")
def demo(path: Path | None, scenario: str, **flags: str | None) -> int:
    """Watch a simulated node of eight GPUs: no GPU needed.

    All else is as in `run`. Open http://127.0.0.1:9450. The scenario `demo` is a story of five minutes, told again and
    again, in which seven things go wrong; another is a YAML file, docs/SCENARIOS.md says how to write one. Where a
    gpumon runs already, a demo needs ports of its own: `--listen 127.0.0.1:0 --otlp-grpc 127.0.0.1:0 --otlp-http
    127.0.0.1:0` takes free ones, and the log names the page.

    What it writes, flight recordings too, is in a folder of its own that goes when it ends, unless state.folder in the
    configuration names one.
    """
    return serve(load(path, flags), path, flags, scenario)


@click.command(cls=Command)
@configured
@click.option("--json", "json_output", is_flag=True, help="For scripts.")
def doctor(path: Path | None, json_output: bool, **flags: str | None) -> int:
    """Say what works here, what is missing, and what would fix it.

    Exit status: 0 all that this machine can have works; 1 something is missing that a change would fix; 2 wrong
    arguments or configuration; 3 no GPU can be read (with nvml.enabled off: the host cannot be read).
    """
    config = load(path, flags)
    from gpumon.doctor import examination

    return examination.main(config, json_output)


def serve(
    config: Config,
    path: Path | None,
    options: dict[str, str | None],
    scenario: str | None = None,
    record: Wish | None = None,
) -> int:
    """Run until a signal. scenario: of a simulated node instead of this machine. record: what to write, and where."""
    from gpumon import logs

    logs.setup(config.log.format, config.log.level)
    from gpumon import app
    from gpumon.detect.detectors import DetectConfigError

    wrong: tuple[type[Exception], ...] = (DetectConfigError,)
    if scenario is not None:
        from gpumon.sim.scenario import ScenarioError

        wrong = (DetectConfigError, ScenarioError)
    try:
        return app.run(config, scenario=scenario, reload=loader(path, options), record=record)
    except wrong as err:
        raise ConfigurationError(str(err)) from err
    except BrokenPipeError as err:
        raise RuntimeError(f"a connection broke: {err}") from err  # click would end on it without a word
