"""What a command says when it fails, and the exit code: 1 failed, 2 wrong arguments or configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpumon.api_client import ApiError


class FailedError(click.ClickException):
    """One line, and exit code 1."""

    def show(self, file: IO[str] | None = None) -> None:
        click.echo(f"gpumon: {self.message}", file=file, err=True)


class ConfigurationError(click.ClickException):
    """What click prints, one line for each problem, and exits 2 with."""

    exit_code = 2

    def show(self, file: IO[str] | None = None) -> None:
        for problem in self.message.splitlines():
            click.echo(f"gpumon: {problem}", file=file, err=True)


def no_answer(err: ApiError) -> click.ClickException:
    """Exit code 2 where the question is wrong, 1 where there is no answer to it."""
    from gpumon.api_client import QuestionError

    return ConfigurationError(str(err)) if isinstance(err, QuestionError) else FailedError(str(err))


def refuse(beside: str, given: Mapping[str, object]) -> None:
    """Arguments that mean nothing beside others."""
    for name, value in given.items():
        if value is not None and value != "":
            raise click.UsageError(f"{name} means nothing with {beside}")
