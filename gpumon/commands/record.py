"""``gpumon record``, ``replay`` and ``simulate``: recordings and scenarios."""

from __future__ import annotations

from pathlib import Path

import click

from gpumon.commands.failures import ConfigurationError, FailedError
from gpumon.commands.loading import load, log_errors_alone
from gpumon.commands.options import Command, Range, configured, with_file
from gpumon.commands.run import serve


@click.command(cls=Command, short_help="Run, and write to a file all that this machine told.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@configured
@click.option("--demo", "is_demo", is_flag=True, help="Of a simulated node instead of this machine.")
@click.option("--scenario", metavar="NAME|FILE", help="What happens on the simulated node; default: demo.")
@click.option("--for", "duration_s", metavar="SECONDS", type=Range(1, 10**7), help="Default: until it is ended.")
@click.option(
    "--limit",
    "limit_mib",
    metavar="MIB",
    type=click.IntRange(1, 1 << 20),
    default=1024,
    show_default=True,
    help="Largest file: recording ends there, gpumon goes on.",
)
@click.option("--mask", is_flag=True, help="Replace names, addresses and ids by others of the same form.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it is there.")
def record(
    file: Path,
    path: Path | None,
    is_demo: bool,
    scenario: str | None,
    duration_s: float | None,
    limit_mib: int,
    mask: bool,
    overwrite: bool,
    **flags: str | None,
) -> int:
    """Run, and write to FILE all that NVML, the host and the servers told.

    Traces are recorded without prompts, completions and token ids. `gpumon replay FILE` finds the same in it, on any
    machine; docs/RECORDINGS.md.
    """
    if scenario is not None and not is_demo:
        raise click.UsageError("--scenario is of a simulated node: expected --demo with it")
    config = load(path, flags)
    from gpumon.recording import Wish

    wish = Wish(file, mask, overwrite, limit_mib << 20, duration_s)
    return serve(config, path, flags, (scenario or "demo") if is_demo else None, wish)


@click.command(cls=Command, short_help="Say what is found in a recording.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@with_file
@click.option("--speed", metavar="TIMES|max", default="max", show_default=True, help="Times real time.")
@click.option("--json", "json_output", is_flag=True, help="A line of JSON for each incident.")
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), help="Write the last /metrics page there.")
def replay(file: Path, path: Path | None, speed: str, json_output: bool, page: Path | None, **flags: str | None) -> int:
    """Take a recording through the same sources and detectors, and say what was found.

    Detectors are as configured here (section `detect`); what is read, and how often, is the recording's. Whatever
    listens or writes is off.
    """
    config = load(path, flags)
    times = _speed(speed)
    log_errors_alone(config)
    from gpumon import replayed
    from gpumon.detect.detectors import DetectConfigError
    from gpumon.record.format import FormatError

    try:
        return replayed.main(file, config, times, json_output=json_output, page=page)
    except FormatError as err:
        raise FailedError(str(err)) from err
    except OSError as err:
        raise FailedError(f"{err.filename}: {err.strerror}" if err.filename is not None else str(err)) from err
    except DetectConfigError as err:
        raise ConfigurationError(str(err)) from err


@click.command(cls=Command, short_help="Run a scenario as fast as it goes, and say what was found.")
@click.argument("scenario")
@with_file
@click.option(
    "--seed", metavar="NUMBER", type=click.IntRange(0, (1 << 63) - 1), help="Other noise; default: the scenario's own."
)
@click.option("--for", "duration_s", metavar="SECONDS", type=Range(1, 10**6), help="Default: its length.")
@click.option("--json", "json_output", is_flag=True, help="A line of JSON for each incident.")
def simulate(
    scenario: str,
    path: Path | None,
    seed: int | None,
    duration_s: float | None,
    json_output: bool,
    **flags: str | None,
) -> int:
    """Run a SCENARIO (`demo`, or a YAML file) on a stepped clock, and say what was found.

    Exit status: 0 all that its faults should make one find was found, and nothing that they do not explain; 1 not so;
    2 wrong arguments, scenario or configuration. docs/SCENARIOS.md says how to write one.
    """
    config = load(path, flags)
    log_errors_alone(config)
    from gpumon import simulated
    from gpumon.detect.detectors import DetectConfigError
    from gpumon.sim.scenario import ScenarioError

    try:
        return simulated.main(scenario, seed, duration_s, json_output=json_output, config=config)
    except (ScenarioError, DetectConfigError) as err:
        raise ConfigurationError(str(err)) from err


def _speed(text: str) -> float | None:
    """Times real time; None: as fast as it goes."""
    if text == "max":
        return None
    try:
        times = float(text)
    except ValueError:
        times = 0.0
    if not 0.01 <= times <= 1e6:
        raise click.BadParameter(f"{text[:40]!r}: expected max, or a number from 0.01 to 1000000", param_hint="--speed")
    return times
