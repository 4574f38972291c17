"""``gpumon explain``, ``diagnose`` and ``top``: ask a running gpumon, or a recording, why tokens were slow."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click

from gpumon.commands.failures import ConfigurationError, FailedError, no_answer, refuse
from gpumon.commands.loading import load, log_errors_alone
from gpumon.commands.options import Command, Range, asking, with_file

_TIME = r"([0-9]{1,7}(?:\.[0-9]{1,3})?)([smh]?)"


@click.command(cls=Command, short_help="Say why the tokens of one request were slow.")
@click.argument("trace_id")
@asking
@click.option("--all", "everything", is_flag=True, help="Every slow gap and every mean, not only what stands out.")
@click.option("--json", "json_output", is_flag=True, help="For scripts.")
def explain(trace_id: str, url: str | None, ca: Path | None, everything: bool, json_output: bool) -> int:
    """Say why the tokens of the request with this TRACE_ID were slow: the gaps, the causes, and what to do.

    Its first 8 hexadecimal digits are enough, or as many more as no other trace begins with.

    Asks a running gpumon. Where it wants to know who asks, GPUMON_API_USER and GPUMON_API_PASSWORD, or
    GPUMON_API_TOKEN say it. Exit status: 0 told, 1 not known or no gpumon there, 2 wrong arguments.
    """
    wanted = trace_id.strip().lower()
    if not re.fullmatch("[0-9a-f]{8,32}", wanted):
        expected = "expected 32 hexadecimal digits, or at least the first 8"
        raise click.BadParameter(f"{trace_id[:40]!r}: {expected}", param_hint="TRACE_ID")
    from gpumon.api_client import DEFAULT_URL, Api, ApiError
    from gpumon.explained_text import render
    from gpumon.terminal import console_for
    from gpumon.web.explanation import Trace

    try:
        trace = Api(url or DEFAULT_URL, os.environ, ca).get("explain", Trace, {"trace_id": wanted})
    except ApiError as err:
        raise no_answer(err) from err
    if json_output:
        click.echo(trace.model_dump_json(indent=2))
    else:
        render(console_for(sys.stdout), trace, everything)
    return 0


@click.command(cls=Command, short_help="Say why tokens were slow.")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@with_file
@asking
@click.option(
    "--since", metavar="TIME", help="How far back: 90s, 30m, 2h. Default: 30m; of a FILE, all of it, back from its end."
)
@click.option("--server", metavar="KIND", default="", help="Of this kind of server alone, such as vllm.")
@click.option("--model", metavar="NAME", default="", help="Of this model alone.")
@click.option("--x", metavar="ATTRIBUTE", default="", help="Of the response surface: prompt_tokens, tenant, …")
@click.option("--y", metavar="ATTRIBUTE", default="", help="Likewise.")
@click.option("--quantile", metavar="RATIO", type=Range(0.01, 0.999), help="Of it; default: 0.95.")
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a report with plots, too.")
@click.option("--incident", metavar="ID", help="Instead: its flight recording; `latest`, or the beginning of its id.")
@click.option("--folder", type=click.Path(path_type=Path), help="Of those; default: flights/ in state.folder.")
@click.option("--all", "everything", is_flag=True, help="Everything, not only what has something to say.")
@click.option("--json", "json_output", is_flag=True, help="For scripts.")
def diagnose(
    file: Path | None,
    path: Path | None,
    url: str | None,
    ca: Path | None,
    since: str | None,
    server: str,
    model: str,
    x: str,
    y: str,
    quantile: float | None,
    page: Path | None,
    incident: str | None,
    folder: Path | None,
    everything: bool,
    json_output: bool,
    **flags: str | None,
) -> int:
    """Say why tokens were slow: the causes with the seconds lost, what was different, and what to do.

    Asks a running gpumon, or goes through FILE, a recording that `gpumon record` made. With --incident: prints an
    incident's flight recording, with every signal before, during and after. Exit status: 0 told, 1 there is no answer,
    2 wrong arguments.
    """
    asks: dict[str, object] = {"--since": since, "--server": server, "--model": model, "--x": x, "--y": y}
    asks |= {"--quantile": quantile, "--html": page}
    whom: dict[str, object] = {"--url": url, "--ca": ca}
    if incident is not None:
        refuse("--incident", {"FILE": file, **asks, **whom})
        config = load(path, flags)
        from gpumon.record import diagnose_incident

        return diagnose_incident.main(config, incident, folder, json_output, None if everything else 25)
    refuse("no --incident", {"--folder": folder})
    if file is not None:
        refuse("a FILE", whom)
    since_s = _since(since)
    config = load(path, flags)
    log_errors_alone(config)
    if page is not None and not page.parent.is_dir():  # said before a recording is gone through
        raise FailedError(f"{page}: there is no such folder")
    from gpumon import diagnosed
    from gpumon.api_client import DEFAULT_URL, ApiError
    from gpumon.detect.detectors import DetectConfigError
    from gpumon.record.format import FormatError
    from gpumon.web.questions import QUANTILE, SINCE_MAX_S, SINCE_S, DiagnoseQuery

    if file is None and since_s is not None and since_s > SINCE_MAX_S:
        raise click.BadParameter(
            f"{since}: a running gpumon knows at most {SINCE_MAX_S / 3600:g}h", param_hint="--since"
        )
    query = DiagnoseQuery(since_s or SINCE_S, server, model, x, y, QUANTILE if quantile is None else quantile)
    form = diagnosed.Form(json_output, page, everything)
    try:
        if file is None:
            diagnosed.of_daemon(url or DEFAULT_URL, os.environ, ca, query, form)
        else:
            diagnosed.of_recording(file, config, since_s, query, form)
    except ApiError as err:
        raise no_answer(err) from err
    except diagnosed.WrongAttributeError as err:
        raise ConfigurationError(str(err)) from err
    except (FormatError, diagnosed.AskError) as err:
        raise FailedError(str(err)) from err
    except BrokenPipeError:
        raise
    except OSError as err:
        raise FailedError(f"{err.filename}: {err.strerror}" if err.filename is not None else str(err)) from err
    except DetectConfigError as err:
        raise ConfigurationError(str(err)) from err
    return 0


@click.command(cls=Command, short_help="Watch GPUs, servers, incidents and causes in the terminal.")
@asking
@click.option("--every", "every_s", metavar="SECONDS", type=Range(0.2, 3600), help="Between two looks; default: 2.")
@click.option("--once", is_flag=True, help="One look as plain text, as in a pipe.")
@click.option("--json", "json_output", is_flag=True, help="One look, for scripts.")
def top(url: str | None, ca: Path | None, every_s: float | None, once: bool, json_output: bool) -> int:
    """Watch GPUs, servers, open incidents and what tokens were late by, in the terminal.

    Asks a running gpumon, here or with --url elsewhere. Where it wants to know who asks, GPUMON_API_USER and
    GPUMON_API_PASSWORD, or GPUMON_API_TOKEN say it. Keys: q quits, p pauses, s sorts the GPUs, arrows scroll. Exit
    status: 0 shown, 1 no gpumon there or ended by a signal, 2 wrong arguments.
    """
    if once and json_output:
        raise click.UsageError("--once means nothing with --json")
    if once or json_output:
        refuse("--once or --json", {"--every": every_s})
    from gpumon.api_client import ApiError
    from gpumon.top import command

    try:
        every_s = command.EVERY_S if every_s is None else every_s
        return command.main(url, os.environ, ca, every_s, once=once, json_output=json_output)
    except ApiError as err:
        raise no_answer(err) from err


def _since(text: str | None) -> float | None:
    """Seconds; None where nothing was said."""
    if text is None:
        return None
    told = re.fullmatch(_TIME, text.strip(), re.ASCII)
    seconds = float(told[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[told[2]] if told is not None else 0.0
    if seconds < 1.0:
        raise click.BadParameter(f"{text[:40]!r}: expected a time such as 90s, 30m or 2h", param_hint="--since")
    return seconds
