"""The configuration of a command: its file, the environment's ``GPUMON_…`` variables, and its options.

What is wrong with it is a ``ConfigurationError``. What reads it is imported only then, for it is expensive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpumon.commands.failures import ConfigurationError

if TYPE_CHECKING:
    from gpumon.config import Config

API_VARIABLES = frozenset({"GPUMON_API_USER", "GPUMON_API_PASSWORD", "GPUMON_API_TOKEN"})
"""Of whoever asks a running gpumon, as ``api_client`` has them: no part of the configuration."""
PROBE_KEY = "GPUMON_PROBE_API_KEY"
"""Of the server that is probed: likewise."""


def loader(
    path: Path | None, options: dict[str, str | None], names: Mapping[str, str] | None = None
) -> Callable[[], Config]:
    """Reads the configuration anew at each call, from where this command was told to take it. names: of its flags."""
    from gpumon import config_load
    from gpumon.config_keys import FLAGS

    flags = {"--" + name.replace("_", "-"): value for name, value in options.items()}
    environ = {name: value for name, value in os.environ.items() if name not in API_VARIABLES | {PROBE_KEY}}
    return partial(config_load.load, path, environ, flags, FLAGS if names is None else names)


def load(path: Path | None, options: dict[str, str | None], names: Mapping[str, str] | None = None) -> Config:
    """The configuration, or a usage error (exit code 2) that says all that is wrong with it."""
    from gpumon.config_load import ConfigError

    try:
        return loader(path, options, names)()
    except ConfigError as err:
        raise ConfigurationError(str(err)) from err


def log_errors_alone(config: Config) -> None:
    """Log errors alone unless told otherwise: for commands that tell what happens themselves, at times of its own."""
    from gpumon import logs

    logs.setup(config.log.format, config.log.level if "level" in config.log.model_fields_set else "error")
