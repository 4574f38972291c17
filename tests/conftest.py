"""What holds for every test, and what several share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from gpumon.logs import JsonFormatter, TextFormatter

if TYPE_CHECKING:
    from tests.command_line import Invoke

# Machines are noisy: no test passes or fails by the time it took.
settings.register_profile("gpumon", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpumon")


@pytest.fixture
def root_logger_as_before() -> Iterator[None]:
    """Takes back what a program that ran in this process did to logging."""
    root = logging.getLogger()
    level, raising = root.level, logging.raiseExceptions
    yield
    for handler in root.handlers[:]:
        if isinstance(handler.formatter, TextFormatter | JsonFormatter):
            root.removeHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    logging.raiseExceptions = raising


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, root_logger_as_before: None) -> Invoke:
    """Run the program in this process; gives exit code, standard output, standard error."""
    from gpumon import cli

    for variable in [name for name in os.environ if name.startswith("GPUMON_")]:
        monkeypatch.delenv(variable)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        return code, *capfd.readouterr()

    return run
