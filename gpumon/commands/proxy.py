"""``gpumon proxy`` and ``probe``: before a server, and as its client."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gpumon.commands.failures import ConfigurationError, FailedError
from gpumon.commands.loading import load
from gpumon.commands.options import Command, Range, with_file


@click.command(cls=Command, short_help="Pass requests on to a server and time its tokens.")
@with_file
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
    import json

    from gpumon.config_keys import PROXY_FLAGS

    flags["inject"] = json.dumps(inject) if inject else None
    flags["ask_for_usage"] = "true" if ask_for_usage else None
    config = load(path, flags, PROXY_FLAGS)
    from gpumon import logs

    logs.setup(config.log.format, config.log.level)
    from gpumon.ingest.web_config import WebConfigError
    from gpumon.proxy import run as proxied
    from gpumon.proxy.inject_rules import RuleError
    from gpumon.proxy.settings import UpstreamError

    try:
        return proxied.run(config.proxy)
    except (RuleError, UpstreamError, WebConfigError) as err:
        raise ConfigurationError(str(err)) from err


@click.command(cls=Command, short_help="Find the prompt length at which a server's performance collapses.")
@click.option("--endpoint", metavar="URL", required=True, help="Of an OpenAI-compatible server; with or without /v1.")
@click.option("--ladder", metavar="LENGTHS", required=True, help="Prompts in tokens: 8k..256k, or 1k,3k,10k.")
@click.option("--budget-tokens", type=click.IntRange(1), help="Most tokens to spend, prompts and answers together.")
@click.option("--budget-s", metavar="SECONDS", type=Range(0.1, 10**6), help="Most time. One budget at least.")
@click.option("--ratio", type=Range(1.05, 1024), default=2.0, show_default=True, help="Of A..B, from rung to rung.")
@click.option("--repetitions", type=click.IntRange(1, 10_000), default=5, show_default=True, help="On each rung.")
@click.option("--weights", metavar="W,W,...", default="", help="Of the repetitions, one for each rung.")
@click.option("--concurrency", metavar="N,N,...", default="1", show_default=True, help="Requests at a time.")
@click.option("--max-tokens", type=click.IntRange(1, 1 << 20), default=64, show_default=True, help="Of an answer.")
@click.option("--ignore-eos", is_flag=True, help="Ask for all of them, of servers that know ignore_eos.")
@click.option("--cached", "is_cached", is_flag=True, help="With prompts that the server's prefix cache holds.")
@click.option("--chat", "is_chat", is_flag=True, help="By /v1/chat/completions instead of /v1/completions.")
@click.option("--model", metavar="NAME", default="", help="Default: the one that /v1/models tells.")
@click.option("--timeout", "timeout_s", metavar="SECONDS", type=Range(0.1, 10**5), default=300, show_default=True)
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
        raise ConfigurationError(str(err)) from err
    except command.ProbeError as err:
        raise FailedError(str(err)) from err
