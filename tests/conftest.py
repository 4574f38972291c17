"""What holds for every test, and what several share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from gpumon.logs import JsonFormatter, TextFormatter

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
