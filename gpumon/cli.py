"""The command line: takes arguments apart, loads the configuration, and hands over.

Decides exit codes: 0 done, 1 failed or interrupted, 2 wrong arguments or configuration (doctor has its own meaning,
see its help). Imports of what a command needs are inside it, so that ``gpumon --version`` costs click alone.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import click

from gpumon import __version__

if TYPE_CHECKING:
    from gpumon.api_client import ApiError
    from gpumon.config import Config
    from gpumon.recording import Wish

API_VARIABLES = frozenset({"GPUMON_API_USER", "GPUMON_API_PASSWORD", "GPUMON_API_TOKEN"})
"""Of whoever asks a running gpumon, as ``api_client`` has them: no part of the configuration."""
PROBE_KEY = "GPUMON_PROBE_API_KEY"
"""Of the server that is probed: likewise."""
_LEVEL = "GPUMON_LOG__LEVEL"
"""Of the configuration; commands that have none, nor the option, take this much from it."""
_TIME = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)([smh]?)", re.ASCII)
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


class _Range(click.FloatRange):
    """A range of numbers. NaN, which click lets pass, is in none."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


def _configured(command: _Function) -> _Function:
    """The options that every command with a configuration shares."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _with_file(command: _Function) -> _Function:
    """The configuration's file and the log's options alone, for commands that neither watch nor listen."""
    for option in (*reversed(_OPTIONS[-2:]), _OPTIONS[0]):
        command = option(command)
    return command


def _asking(command: _Function) -> _Function:
    """Whom to ask, for commands that ask a running gpumon."""
    command = click.option("--ca", type=click.Path(path_type=Path, dir_okay=False), help="Whom to trust for TLS.")(
        command
    )
    return click.option("--url", metavar="URL", help="Of a running gpumon; default: http://127.0.0.1:9450.")(command)


class _Command(click.Command):
    """Leaves word of what was called: a fault is told by whoever called ``main``."""

    def invoke(self, ctx: click.Context) -> object:
        """As it is."""
        ctx.ensure_object(list).append(ctx)
        return super().invoke(ctx)


class _Commands(click.Group):
    """Of such."""

    command_class = _Command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpumon", message="%(prog)s %(version)s")
def commands() -> None:
    """Tells you why a token was slow: GPU, host and inference on one clock."""


@commands.command()
@_configured
def run(path: Path | None, **flags: str | None) -> int:
    """Watch this machine and serve what is seen. Never simulates."""
    return _serve(_load(path, flags), path, flags)


@commands.command()
@_configured
@click.option("--scenario", metavar="NAME|FILE", default="demo", show_default=True, help="What happens there.")
def demo(path: Path | None, scenario: str, **flags: str | None) -> int:
    """The same on a simulated node of eight GPUs: no GPU needed.

    The scenario `demo` is a story of five minutes, told again and again, in which seven things go wrong. Another is a
    YAML file; docs/SCENARIOS.md says how to write one.
    """
    return _serve(_load(path, flags), path, flags, scenario)


@commands.command(short_help="Run, and write to a file all that this machine told.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_configured
@click.option("--demo", "is_demo", is_flag=True, help="Of a simulated node instead of this machine.")
@click.option("--scenario", metavar="NAME|FILE", help="What happens on the simulated node; default: demo.")
@click.option("--for", "duration_s", metavar="SECONDS", type=_Range(1, 10**7), help="Default: until it is ended.")
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
    config = _load(path, flags)
    from gpumon.recording import Wish

    wish = Wish(file, mask, overwrite, limit_mib << 20, duration_s)
    return _serve(config, path, flags, (scenario or "demo") if is_demo else None, wish)


@commands.command(short_help="Say what is found in a recording.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_with_file
@click.option("--speed", metavar="TIMES|max", default="max", show_default=True, help="Times real time.")
@click.option("--json", "json_output", is_flag=True, help="A line of JSON for each incident.")
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), help="Write the last /metrics page there.")
def replay(file: Path, path: Path | None, speed: str, json_output: bool, page: Path | None, **flags: str | None) -> int:
    """Take a recording through the same sources and detectors, and say what was found.

    Detectors are as configured here (section `detect`); what is read, and how often, is the recording's. Whatever
    listens or writes is off.
    """
    config = _load(path, flags)
    times = _speed(speed)
    _quiet(config)
    from gpumon import replayed
    from gpumon.detect.detectors import DetectConfigError
    from gpumon.record.format import FormatError

    try:
        return replayed.main(file, config, times, json_output=json_output, page=page)
    except FormatError as err:
        raise _FailedError(str(err)) from err
    except OSError as err:
        raise _FailedError(f"{err.filename}: {err.strerror}" if err.filename is not None else str(err)) from err
    except DetectConfigError as err:
        raise _ConfigurationError(str(err)) from err


@commands.command(short_help="Run a scenario as fast as it goes, and say what was found.")
@click.argument("scenario")
@_with_file
@click.option(
    "--seed", metavar="NUMBER", type=click.IntRange(0, (1 << 63) - 1), help="Other noise; default: the scenario's own."
)
@click.option("--for", "duration_s", metavar="SECONDS", type=_Range(1, 10**6), help="Default: its length.")
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
    config = _load(path, flags)
    _quiet(config)
    from gpumon import simulated
    from gpumon.detect.detectors import DetectConfigError
    from gpumon.sim.scenario import ScenarioError

    try:
        return simulated.main(scenario, seed, duration_s, json_output=json_output, config=config)
    except (ScenarioError, DetectConfigError) as err:
        raise _ConfigurationError(str(err)) from err


@commands.command(short_help="Watch GPUs, servers, incidents and causes in the terminal.")
@_asking
@click.option("--every", "every_s", metavar="SECONDS", type=_Range(0.2, 3600), help="Between two looks; default: 2.")
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
        _refuse("--once or --json", {"--every": every_s})
    from gpumon.api_client import ApiError
    from gpumon.top import command

    try:
        every_s = command.EVERY_S if every_s is None else every_s
        return command.main(url, os.environ, ca, every_s, once=once, json_output=json_output)
    except ApiError as err:
        raise _no_answer(err) from err


@commands.command(short_help="Say why the tokens of one request were slow.")
@click.argument("trace_id")
@_asking
@click.option("--all", "everything", is_flag=True, help="Every slow gap and every mean, not only what stands out.")
@click.option("--json", "json_output", is_flag=True, help="For scripts.")
def explain(trace_id: str, url: str | None, ca: Path | None, everything: bool, json_output: bool) -> int:
    """Say why the tokens of the request with this TRACE_ID were slow: the gaps, the causes, and what to do.

    Asks a running gpumon. Where it wants to know who asks, GPUMON_API_USER and GPUMON_API_PASSWORD, or
    GPUMON_API_TOKEN say it. Exit status: 0 told, 1 not known or no gpumon there, 2 wrong arguments.
    """
    wanted = trace_id.strip().lower()
    if len(wanted) != 32 or not set(wanted) <= set("0123456789abcdef"):
        raise click.BadParameter(f"{trace_id[:40]!r}: expected 32 hexadecimal digits", param_hint="TRACE_ID")
    from gpumon.api_client import DEFAULT_URL, Api, ApiError
    from gpumon.explained_text import render
    from gpumon.terminal import console_for
    from gpumon.web.explanation import Trace

    try:
        trace = Api(url or DEFAULT_URL, os.environ, ca).get("explain", Trace, {"trace_id": wanted})
    except ApiError as err:
        raise _no_answer(err) from err
    if json_output:
        click.echo(trace.model_dump_json(indent=2))
    else:
        render(console_for(sys.stdout), trace, everything)
    return 0


@commands.command(short_help="Say why tokens were slow.")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@_with_file
@_asking
@click.option(
    "--since", metavar="TIME", help="How far back: 90s, 30m, 2h. Default: 30m; of a FILE, all of it, back from its end."
)
@click.option("--server", metavar="KIND", default="", help="Of this kind of server alone, such as vllm.")
@click.option("--model", metavar="NAME", default="", help="Of this model alone.")
@click.option("--x", metavar="ATTRIBUTE", default="", help="Of the response surface: prompt_tokens, tenant, …")
@click.option("--y", metavar="ATTRIBUTE", default="", help="Likewise.")
@click.option("--quantile", metavar="RATIO", type=_Range(0.01, 0.999), help="Of it; default: 0.95.")
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
        _refuse("--incident", {"FILE": file, **asks, **whom})
        config = _load(path, flags)
        from gpumon.record import diagnose_incident

        return diagnose_incident.main(config, incident, folder, json_output, None if everything else 25)
    _refuse("no --incident", {"--folder": folder})
    if file is not None:
        _refuse("a FILE", whom)
    since_s = _since(since)
    config = _load(path, flags)
    _quiet(config)
    if page is not None and not page.parent.is_dir():  # said before a recording is gone through
        raise _FailedError(f"{page}: there is no such folder")
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
        raise _no_answer(err) from err
    except diagnosed.WrongAttributeError as err:
        raise _ConfigurationError(str(err)) from err
    except (FormatError, diagnosed.AskError) as err:
        raise _FailedError(str(err)) from err
    except BrokenPipeError:
        raise
    except OSError as err:
        raise _FailedError(f"{err.filename}: {err.strerror}" if err.filename is not None else str(err)) from err
    except DetectConfigError as err:
        raise _ConfigurationError(str(err)) from err
    return 0


@commands.command()
@_configured
@click.option("--json", "json_output", is_flag=True, help="For scripts.")
def doctor(path: Path | None, json_output: bool, **flags: str | None) -> int:
    """Say what works here, what is missing, and what would fix it.

    Exit status: 0 all that this machine can have works; 1 something is missing that a change would fix; 2 wrong
    arguments or configuration; 3 no GPU can be read (with nvml.enabled off: the host cannot be read).
    """
    config = _load(path, flags)
    from gpumon.doctor import examination

    return examination.main(config, json_output)


@commands.command(short_help="Pass requests on to a server and time its tokens.")
@_with_file
@click.option("--upstream", metavar="URL", help="The inference server behind: http(s)://HOST:PORT.")
@click.option("--listen", metavar="HOST:PORT", help="Where clients connect; default: 127.0.0.1:9460.")
@click.option("--admin", metavar="HOST:PORT", help="Where to serve its own metrics; default: 0.0.0.0:9461.")
@click.option("--otlp", metavar="URL", help="gpumon's OTLP/HTTP receiver; default: http://127.0.0.1:4318.")
@click.option("--service-name", metavar="NAME", help="Of the traces; default: gpumon-proxy.")
@click.option("--inject", metavar="RULE", multiple=True, help="A delay to put in, such as token:20ms. Repeatable.")
@click.option("--inject-seed", metavar="NUMBER", help="The same seed, the same delays.")
@click.option("--ask-for-usage", is_flag=True, help="Ask the server for usage in streams that do not.")
def proxy(path: Path | None, inject: tuple[str, ...], ask_for_usage: bool, **flags: str | None) -> int:
    """Pass requests on to an OpenAI-compatible server, time every token, and tell gpumon.

    What clients and the server say to each other is not changed, and nothing of it is kept; docs/PROXY.md.
    """
    from gpumon.config import PROXY_FLAGS

    flags["inject"] = json.dumps(inject) if inject else None
    flags["ask_for_usage"] = "true" if ask_for_usage else None
    config = _load(path, flags, PROXY_FLAGS)
    from gpumon import logs

    logs.setup(config.log.format, config.log.level)
    from gpumon.ingest.web_config import WebConfigError
    from gpumon.proxy import run as proxied
    from gpumon.proxy.inject_rules import RuleError
    from gpumon.proxy.settings import UpstreamError

    try:
        return proxied.run(config.proxy)
    except (RuleError, UpstreamError, WebConfigError) as err:
        raise _ConfigurationError(str(err)) from err


@commands.command(short_help="Find the prompt length at which a server's performance collapses.")
@click.option("--endpoint", metavar="URL", required=True, help="Of an OpenAI-compatible server; with or without /v1.")
@click.option("--ladder", metavar="LENGTHS", required=True, help="Prompts in tokens: 8k..256k, or 1k,3k,10k.")
@click.option("--budget-tokens", type=click.IntRange(1), help="Most tokens to spend, prompts and answers together.")
@click.option("--budget-s", metavar="SECONDS", type=_Range(0.1, 10**6), help="Most time. One budget at least.")
@click.option("--ratio", type=_Range(1.05, 1024), default=2.0, show_default=True, help="Of A..B, from rung to rung.")
@click.option("--repetitions", type=click.IntRange(1, 10_000), default=5, show_default=True, help="On each rung.")
@click.option("--weights", metavar="W,W,...", default="", help="Of the repetitions, one for each rung.")
@click.option("--concurrency", metavar="N,N,...", default="1", show_default=True, help="Requests at a time.")
@click.option("--max-tokens", type=click.IntRange(1, 1 << 20), default=64, show_default=True, help="Of an answer.")
@click.option("--ignore-eos", is_flag=True, help="Ask for all of them, of servers that know ignore_eos.")
@click.option("--cached", "is_cached", is_flag=True, help="With prompts that the server's prefix cache holds.")
@click.option("--chat", "is_chat", is_flag=True, help="By /v1/chat/completions instead of /v1/completions.")
@click.option("--model", metavar="NAME", default="", help="Default: the one that /v1/models tells.")
@click.option("--timeout", "timeout_s", metavar="SECONDS", type=_Range(0.1, 10**5), default=300, show_default=True)
@click.option("--gpumon", metavar="URL", help="Of the server's node; default: the local one, for a local server.")
@click.option("--ca", type=click.Path(path_type=Path, dir_okay=False), help="Whom to trust for TLS.")
@click.option("--yes", is_flag=True, help="Do not ask, where the endpoint is not this machine.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with plots, too.")
@click.option("--json", "json_output", is_flag=True, help="For scripts.")
def probe(
    endpoint: str,
    ladder: str,
    budget_tokens: int | None,
    budget_s: float | None,
    ratio: float,
    repetitions: int,
    weights: str,
    concurrency: str,
    max_tokens: int,
    ignore_eos: bool,
    is_cached: bool,
    is_chat: bool,
    model: str,
    timeout_s: float,
    gpumon: str | None,
    ca: Path | None,
    yes: bool,
    html: Path | None,
    json_output: bool,
) -> int:
    """Climb a ladder of prompt lengths, and tell where latency grows faster than the work, and what GPU and host did.

    Puts the server to work: it says what that costs before it starts, and stops when the budget is used up. The key of
    the server, where it wants one, is in GPUMON_PROBE_API_KEY. Exit status: 0 measured, 1 nothing measured or cut off,
    2 wrong arguments. docs/PROBE.md.
    """
    from gpumon.probe import command
    from gpumon.probe.endpoint import Interface
    from gpumon.probe.wish import Wish, WishError

    wish = Wish(
        endpoint=endpoint,
        ladder=ladder,
        ratio=ratio,
        weights=weights,
        repetitions=repetitions,
        concurrency=concurrency,
        interface=Interface.CHAT if is_chat else Interface.COMPLETIONS,
        model=model,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        is_cached=is_cached,
        timeout_s=timeout_s,
        budget_tokens=budget_tokens,
        budget_s=budget_s,
        gpumon=gpumon,
        ca=ca,
        yes=yes,
        json_output=json_output,
        html=html,
    )
    try:
        return command.main(wish, os.environ)
    except WishError as err:
        raise _ConfigurationError(str(err)) from err
    except command.ProbeError as err:
        raise _FailedError(str(err)) from err


@commands.command()
@click.option("--markdown", "style", flag_value="markdown", help="As docs/METRICS.md has it.")
@click.option("--json", "style", flag_value="json", help="For scripts.")
def metrics(style: str | None) -> int:
    """List every metric: name, labels, type, meaning."""
    from gpumon import docs

    renderers = {"markdown": docs.render_metrics_markdown, "json": docs.render_metrics_json}
    click.echo(renderers.get(style or "", docs.render_metrics_text)(), nl=False)
    return 0


@commands.command(short_help="Print the configuration in effect.")
@_configured
@click.option("--markdown", is_flag=True, help="Every key and its meaning instead, as docs/CONFIGURATION.md has it.")
def config(path: Path | None, markdown: bool, **flags: str | None) -> int:
    """Print the configuration in effect, as a file that would bring it about."""
    from gpumon import docs

    text = docs.render_configuration_markdown() if markdown else docs.render_config_yaml(_load(path, flags))
    click.echo(text, nl=False)
    return 0


def _loader(
    path: Path | None, options: dict[str, str | None], names: Mapping[str, str] | None = None
) -> Callable[[], Config]:
    """Reads the configuration anew at each call, from where this command was told to take it. names: of its flags."""
    from gpumon.config import FLAGS
    from gpumon.config_load import load

    flags = {"--" + name.replace("_", "-"): value for name, value in options.items()}
    environ = {name: value for name, value in os.environ.items() if name not in API_VARIABLES | {PROBE_KEY}}
    return partial(load, path, environ, flags, FLAGS if names is None else names)


def _load(path: Path | None, options: dict[str, str | None], names: Mapping[str, str] | None = None) -> Config:
    """The configuration, or a usage error (exit code 2) that says all that is wrong with it."""
    from gpumon.config_load import ConfigError

    try:
        return _loader(path, options, names)()
    except ConfigError as err:
        raise _ConfigurationError(str(err)) from err


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


def _since(text: str | None) -> float | None:
    """Seconds; None where nothing was said."""
    if text is None:
        return None
    told = _TIME.fullmatch(text.strip())
    seconds = float(told[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[told[2]] if told is not None else 0.0
    if seconds < 1.0:
        raise click.BadParameter(f"{text[:40]!r}: expected a time such as 90s, 30m or 2h", param_hint="--since")
    return seconds


def _refuse(beside: str, given: Mapping[str, object]) -> None:
    """Arguments that mean nothing beside others."""
    for name, value in given.items():
        if value is not None and value != "":
            raise click.UsageError(f"{name} means nothing with {beside}")


def _quiet(config: Config) -> None:
    """Log errors alone unless told otherwise: for commands that tell what happens themselves, at times of its own."""
    from gpumon import logs

    logs.setup(config.log.format, config.log.level if "level" in config.log.model_fields_set else "error")


def _serve(
    config: Config,
    path: Path | None,
    options: dict[str, str | None],
    scenario: str | None = None,
    record: Wish | None = None,
) -> int:
    from gpumon import logs

    logs.setup(config.log.format, config.log.level)
    from gpumon import app
    from gpumon.detect.detectors import DetectConfigError

    wrong: tuple[type[Exception], ...] = (DetectConfigError,)
    if scenario is not None:
        from gpumon.sim.scenario import ScenarioError

        wrong = (DetectConfigError, ScenarioError)
    try:
        return app.run(config, scenario=scenario, reload=_loader(path, options), record=record)
    except wrong as err:
        raise _ConfigurationError(str(err)) from err
    except BrokenPipeError as err:
        raise RuntimeError(f"a connection broke: {err}") from err  # click would end on it without a word


class _FailedError(click.ClickException):
    """One line, and exit code 1."""

    def show(self, file: IO[str] | None = None) -> None:
        click.echo(f"gpumon: {self.message}", file=file, err=True)


def _no_answer(err: ApiError) -> click.ClickException:
    """Exit code 2 where the question is wrong, 1 where there is no answer to it."""
    from gpumon.api_client import QuestionError

    return _ConfigurationError(str(err)) if isinstance(err, QuestionError) else _FailedError(str(err))


class _ConfigurationError(click.ClickException):
    """What click prints, one line for each problem, and exits 2 with."""

    exit_code = 2

    def show(self, file: IO[str] | None = None) -> None:
        for problem in self.message.splitlines():
            click.echo(f"gpumon: {problem}", file=file, err=True)


def main(arguments: list[str] | None = None) -> int:
    """The program. Returns the exit code; nothing but that leaves it."""
    # Before numpy is loaded: its matrix library starts a thread on every CPU, which first spins and then does nothing.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    called: list[click.Context] = []
    try:
        code = commands.main(arguments, prog_name="gpumon", standalone_mode=False, obj=called)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.ClickException as err:
        err.show()
        return err.exit_code
    except SystemExit:  # click's way out when whoever read our output has left, as `head` does: nobody to be told
        return 1
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted")
        return 1
    except Exception as err:  # noqa: BLE001 - the last resort: its user gets a sentence
        options = called[-1].params if called else {}
        levels = (options.get("log_level"), os.environ.get(_LEVEL))
        debug = logging.getLogger().isEnabledFor(logging.DEBUG) or "debug" in levels
        bug = "" if isinstance(err, OSError) else f"{type(err).__name__}: "
        how = "--log-level debug" if "log_level" in options else f"{_LEVEL}=debug"
        _complain(f"{bug}{err}{f' ({how} shows where)' if bug and not debug else ''}")
        if debug:
            traceback.print_exc()
        return 1
    return code if isinstance(code, int) else 0


def _complain(text: str) -> None:
    click.echo(f"gpumon: {text}", err=True)
