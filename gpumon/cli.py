"""The command line: which commands there are, and how the program ends. What each does is in ``commands``.

Decides exit codes: 0 done, 1 failed or interrupted, 2 wrong arguments or configuration (doctor has its own meaning,
see its help). Imports of what a command needs are inside it, so that ``gpumon --version`` costs click alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import click

from gpumon import __version__
from gpumon.commands.explain import diagnose, explain, top
from gpumon.commands.metrics import config, metrics
from gpumon.commands.proxy import probe, proxy
from gpumon.commands.record import record, replay, simulate
from gpumon.commands.run import demo, doctor, run

_LEVEL = "GPUMON_LOG__LEVEL"
"""Of the configuration; commands that have none, nor the option, take this much from it."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpumon", message="%(prog)s %(version)s")
def commands() -> None:
    """Tells you why a token was slow: GPU, host and inference on one clock."""


for _command in (run, demo, doctor, record, replay, simulate, top, explain, diagnose, proxy, probe, metrics, config):
    commands.add_command(_command)


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
        _complain_of(err, called[-1].params if called else {})
        return 1
    return code if isinstance(code, int) else 0


def _complain_of(err: Exception, options: Mapping[str, object]) -> None:
    """An error that nobody foresaw. options: of the command."""
    import logging
    import traceback

    levels = (options.get("log_level"), os.environ.get(_LEVEL))
    debug = logging.getLogger().isEnabledFor(logging.DEBUG) or "debug" in levels
    bug = "" if isinstance(err, OSError) else f"{type(err).__name__}: "
    how = "--log-level debug" if "log_level" in options else f"{_LEVEL}=debug"
    _complain(f"{bug}{err}{f' ({how} shows where)' if bug and not debug else ''}")
    if debug:
        traceback.print_exception(err)


def _complain(text: str) -> None:
    click.echo(f"gpumon: {text}", err=True)
