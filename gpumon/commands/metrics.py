"""``gpumon metrics`` and ``config``: what there is to see, and what is in effect."""

from __future__ import annotations

from pathlib import Path

import click

from gpumon.commands.loading import load
from gpumon.commands.options import Command, configured


@click.command(cls=Command)
@click.option("--markdown", "style", flag_value="markdown", help="As docs/METRICS.md has it.")
@click.option("--json", "style", flag_value="json", help="For scripts.")
def metrics(style: str | None) -> int:
    """List every metric: name, labels, type, meaning."""
    from gpumon import docs

    renderers = {"markdown": docs.render_metrics_markdown, "json": docs.render_metrics_json}
    click.echo(renderers.get(style or "", docs.render_metrics_text)(), nl=False)
    return 0


@click.command(cls=Command, short_help="Print the configuration in effect.")
@configured
@click.option("--markdown", is_flag=True, help="Every key and its meaning instead, as docs/CONFIGURATION.md has it.")
def config(path: Path | None, markdown: bool, **flags: str | None) -> int:
    """Print the configuration in effect, as a file that would bring it about."""
    from gpumon import docs

    text = docs.render_configuration_markdown() if markdown else docs.render_config_yaml(load(path, flags))
    click.echo(text, nl=False)
    return 0
