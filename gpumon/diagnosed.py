"""``gpumon diagnose``: where the diagnosis comes from, and in which form it is told.

It is asked of a running gpumon, over its JSON API, or of a recording, which is gone through in this process as fast as
that goes, by the same sources, detectors and explanation as the daemon's.

Exit status: 0 told, 1 there is no answer, 2 the question is wrong: one line on standard error says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import click
from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from gpumon import diagnosis_text
from gpumon.api_client import DEFAULT_URL, Api
from gpumon.config import Config
from gpumon.explain.diagnosing import diagnose_since
from gpumon.explain.diagnosis.asked import UnknownNameError, of_named
from gpumon.explain.diagnosis.model import Diagnosis
from gpumon.host.garbage import few_collections
from gpumon.replayed import Replay
from gpumon.terminal import console_for
from gpumon.web.questions import QUANTILE, DiagnoseQuery

Ask = Callable[[Replay, DiagnoseQuery], Diagnosis]
"""What a recording says that was gone through."""
SETTLE_S = 2.0
"""After the last request of a recording is due to be explained."""


class Form(NamedTuple):
    """How it is told."""

    json_output: bool = False
    html: Path | None = None
    """Written as well."""
    everything: bool = False


class AskError(Exception):
    """No answer. One line."""

    exit_code = 1


class WrongAttributeError(AskError):
    """An attribute of the response surface that there is not."""

    exit_code = 2


def of_daemon(url: str, environ: Mapping[str, str], ca: Path | None, query: DiagnoseQuery, form: Form) -> None:
    """Ask a running gpumon, and tell. Raises ApiError, and OSError for the report."""
    said = Api(url, environ, ca).get("diagnose", Diagnosis, asked(query))
    _tell(said, form, query, "gpumon explain" if url == DEFAULT_URL else f"gpumon explain --url {url}")


def of_recording(path: Path, config: Config, since_s: float | None, query: DiagnoseQuery, form: Form) -> None:
    """Go through a recording, and tell. since_s: of its end; None: all of it.

    Raises FormatError, OSError, and AskError.
    """
    _tell(diagnosis_of(path, config, since_s, query, ask), form, query, "")


def diagnosis_of(path: Path, config: Config, since_s: float | None, query: DiagnoseQuery, ask: Ask) -> Diagnosis:
    """What a recording says, with progress on a terminal. ask: what is asked of it at its end."""
    replay = Replay(path, config)
    recording = replay.recording
    if recording.truncated:
        click.echo(f"gpumon: {path}: the end is left out: {recording.truncated}", err=True)
    length_s = recording.ended_s - recording.started_s
    progress = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with few_collections(), progress:
        task = progress.add_task(path.name, total=length_s)
        for at_s in replay.run():
            progress.update(task, completed=at_s - recording.started_s)
        # The last requests are explained only when what ran beside them has ended too.
        replay.node.advance(recording.ended_s + replay.node.config.explain.delay_s + SETTLE_S)
    if replay.node.undecodable:
        click.echo(f"gpumon: {path}: requests in it that could not be read: {replay.node.undecodable}", err=True)
    failed = replay.node.detection.failures + (replay.node.explanation.failures if replay.node.explanation else 0)
    said = ask(replay, query._replace(since_s=length_s if since_s is None else min(since_s, length_s)))
    if failed:
        # A bug of gpumon's own: what is said lacks what that part would have found.
        raise AskError(f"{path}: a part of the explanation failed {failed} times (--log-level error says where)")
    return said


def ask(replay: Replay, query: DiagnoseQuery) -> Diagnosis:
    """What a replay has found, back from the end of its recording. Raises AskError."""
    node, ended_s = replay.node, replay.recording.ended_s
    if node.explanation is None:
        raise AskError("nothing is explained: expected explain.enabled, detect.enabled and otlp.enabled")
    explanation = node.explanation

    def diagnose(server: str, model: str) -> Diagnosis:
        return diagnose_since(
            explanation,
            node.detection.incidents(),
            node.store.view(replay.clock.now_s()),
            replay.clock.to_unix,
            since_s=ended_s - query.since_s,
            until_s=ended_s,
            node=_node_name(replay),
            server=server,
            model=model,
            x=query.x,
            y=query.y,
            quantile=query.quantile,
            is_over=True,
        )

    try:
        return of_named(diagnose, query.server, query.model)
    except UnknownNameError as error:
        raise AskError(str(error)) from error
    except ValidationError:
        raise  # what was found out cannot be said: a bug, not the question
    except ValueError as error:
        if not query.x and not query.y:
            raise
        raise WrongAttributeError(str(error)) from error


def asked(query: DiagnoseQuery) -> dict[str, str]:
    """The question as parameters of the API; what is empty is left out."""
    told = {
        "since": f"{query.since_s:g}",
        "server": query.server,
        "model": query.model,
        "x": query.x,
        "y": query.y,
        "quantile": f"{query.quantile:g}",
    }
    return {name: value for name, value in told.items() if value}


def _asks_for_surface(query: DiagnoseQuery) -> bool:
    return bool(query.x or query.y) or query.quantile != QUANTILE


def _node_name(replay: Replay) -> str:
    """Of the machine that was recorded."""
    names = replay.recording.header.get("node_names")
    return str(names[0]) if isinstance(names, list) and names else "node"


def _tell(said: Diagnosis, form: Form, query: DiagnoseQuery, command: str) -> None:
    if form.html is not None:
        from gpumon.diagnosis_html import page

        form.html.write_text(page(said, command), encoding="utf-8")
    if form.json_output:
        click.echo(said.model_dump_json(indent=2))
    else:
        diagnosis_text.render(
            console_for(sys.stdout), said, command, form.everything, with_surface=_asks_for_surface(query)
        )
    if form.html is not None:
        click.echo(f"The report is in {form.html}.", err=True)
