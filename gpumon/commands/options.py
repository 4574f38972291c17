"""What commands are made of: the options that they share, ranges of numbers, and the kind of command that all are.

An option says nothing of its default where the configuration has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., object])

_OPTIONS = (
    click.option(
        "--config", "path", metavar="FILE", type=click.Path(path_type=Path), help="YAML file; docs/CONFIGURATION.md."
    ),
    click.option("--listen", metavar="HOST:PORT", help="Where to serve; port 0 takes a free one and logs it."),
    click.option("--otlp-grpc", metavar="HOST:PORT", help="Where to receive OTLP/gRPC."),
    click.option("--otlp-http", metavar="HOST:PORT", help="Where to receive OTLP/HTTP."),
    click.option("--nvml-lib", metavar="PATH", help="NVML library to load."),
    click.option("--procfs", metavar="DIR", help="Where /proc is."),
    click.option("--sysfs", metavar="DIR", help="Where /sys is."),
    click.option("--cgroupfs", metavar="DIR", help="Where the cgroup tree is."),
    click.option("--log-format", metavar="text|json", help="Lines of text or of JSON, on standard error."),
    click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
)


class Command(click.Command):
    """Leaves word of what was called: a fault is told by whoever called ``main``."""

    def invoke(self, ctx: click.Context) -> object:
        """As it is."""
        ctx.ensure_object(list).append(ctx)
        return super().invoke(ctx)


class Range(click.FloatRange):
    """A range of numbers. NaN, which click lets pass, is in none."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


def configured(command: _Function) -> _Function:
    """The options that every command with a configuration shares."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def with_file(command: _Function) -> _Function:
    """The configuration's file and the log's options alone, for commands that neither watch nor listen."""
    for option in (*reversed(_OPTIONS[-2:]), _OPTIONS[0]):
        command = option(command)
    return command


def asking(command: _Function) -> _Function:
    """Whom to ask, for commands that ask a running gpumon."""
    command = click.option("--ca", type=click.Path(path_type=Path, dir_okay=False), help="Whom to trust for TLS.")(
        command
    )
    return click.option("--url", metavar="URL", help="Of a running gpumon; default: http://127.0.0.1:9450.")(command)
