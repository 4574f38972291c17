"""``gpumon probe``: puts the parts together, reads the clocks, and tells what was found.

First said is what it costs, on standard error; the report goes to standard output. Ctrl-C, or a budget that is used up,
ends the run and tells what there is. Exit status: 0 measured, 1 nothing was, or the run was interrupted or the server
is gone, 2 what was asked cannot be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import signal
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import click
from rich.console import Console
from rich.progress import Progress

from gpumon.api_client import DEFAULT_URL, Api, ApiError, QuestionError
from gpumon.host.garbage import few_collections
from gpumon.probe import asking
from gpumon.probe.asking import Answer, Asker
from gpumon.probe.budget import Budget
from gpumon.probe.climbing import Climb, Ended
from gpumon.probe.ladder import Cell, length_text
from gpumon.probe.lag import Lag
from gpumon.probe.late import Explained, explained
from gpumon.probe.masking import shown
from gpumon.probe.model import Report
from gpumon.probe.models import ModelError, only_model
from gpumon.probe.prompts import Prompts
from gpumon.probe.report_html import page
from gpumon.probe.report_text import render
from gpumon.probe.reporting import Told, report
from gpumon.probe.watching import GpumonWatch, NoWatch
from gpumon.probe.wish import Plan, Wish, WishError, announcement, plan
from gpumon.terminal import console_for

_WATCH_TIMEOUT_S: Final = 5.0
_MODEL_MAX: Final = 256
"""Characters of a model's name that are shown."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class ProbeError(Exception):
    """Nothing was measured. One line."""


def main(wish: Wish, environ: Mapping[str, str]) -> int:
    """The exit status. Raises WishError, ProbeError, and OSError for the page."""
    made = plan(wish, environ)
    tls = _tls(wish, made)
    for line in announcement(made, wish):
        click.echo(f"gpumon: {line}", err=True)
    _permission(wish, made)
    api, note = _gpumon(wish, made, environ)
    with few_collections():
        said = asyncio.run(_run(wish, made, tls, api, [note] if note else []))
    _tell(wish, said, api)
    is_whole = said.ended in (Ended.DONE, Ended.BUDGET_TOKENS, Ended.BUDGET_TIME)
    return 0 if is_whole and any(rung.requests for rung in said.rungs) else 1


def _permission(wish: Wish, made: Plan) -> None:
    """Of somebody, where it is not this machine that is put to work."""
    if made.endpoint.is_loopback or wish.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WishError(f"{made.endpoint} is not this machine: --yes says that it may be put to such work")
    click.confirm(f"{made.endpoint} is not this machine. Go on?", abort=True, err=True)


def _tls(wish: Wish, made: Plan) -> ssl.SSLContext | None:
    if made.endpoint.scheme != "https":
        return None
    try:
        return ssl.create_default_context(cafile=wish.ca)
    except ssl.SSLError as error:
        raise WishError(f"--ca: {wish.ca}: no certificates in it") from error
    except OSError as error:
        raise WishError(f"--ca: {wish.ca}: {error.strerror}") from error


def _gpumon(wish: Wish, made: Plan, environ: Mapping[str, str]) -> tuple[Api | None, str]:
    """Which one is asked; and why none is, where nobody named one."""
    if wish.gpumon is None and not made.endpoint.is_loopback:
        return None, "what GPU and host were doing is not known: --gpumon names the gpumon of the server's node"
    try:
        ca = wish.ca if (wish.gpumon or "").startswith("https:") else None
        api = Api(wish.gpumon or DEFAULT_URL, environ, ca, timeout_s=_WATCH_TIMEOUT_S)
        api.page("/metrics")
    except QuestionError as error:
        raise WishError(str(error).replace("--url", "--gpumon")) from error
    except ApiError as error:
        said = str(error).replace("--url", "--gpumon")
        if wish.gpumon is not None:
            raise ProbeError(said) from error
        return None, f"what GPU and host were doing is not known: {said}"
    return api, ""


async def _run(wish: Wish, made: Plan, tls: ssl.SSLContext | None, api: Api | None, notes: list[str]) -> Report:
    now_ns = time.perf_counter_ns
    started = time.time()
    model = wish.model
    if not model:
        try:
            model = await only_model(made.endpoint, tls, now_ns)
        except ModelError as error:
            raise ProbeError(str(error)) from error
    rng = random.Random(secrets.randbits(128))  # noqa: S311 - prompts that nobody has seen, not secrets
    watch = GpumonWatch(lambda: api.page("/metrics"), now_ns) if api is not None else NoWatch()
    asker = Asker(
        made.endpoint,
        asking.Wish(wish.interface, model, wish.max_tokens, wish.ignore_eos, wish.timeout_s),
        tls,
        now_ns,
    )
    budget = Budget(wish.budget_tokens, wish.budget_s)
    with _progress(made) as advance:
        climb = Climb(
            asker,
            made.cells,
            Prompts(rng),
            budget,
            watch,
            now_ns,
            max_tokens=wish.max_tokens,
            is_cached=wish.is_cached,
            on_answer=advance,
        )
        with _interruptible(climb.interrupt):
            lag = Lag(now_ns)
            ticking = asyncio.create_task(lag.tick())
            await climb.climb()
            ticking.cancel()
    why = Explained({})
    if api is not None and climb.ended is not Ended.INTERRUPTED:
        why = await _why(api, climb)
    notes += [note for note in (why.note, lag.note()) if note]
    told = Told(
        wish=wish,
        plan=made,
        model=shown(model, made.endpoint.key, _MODEL_MAX),
        started=started,
        spent_tokens=budget.spent,
        climb=climb,
        conditions=watch.conditions if isinstance(watch, GpumonWatch) else {},
        failed_looks=watch.failed if isinstance(watch, GpumonWatch) else 0,
        causes=why.causes,
        gpumon=str(api.address) if api is not None else None,
        notes=notes,
    )
    return report(told)


async def _why(api: Api, climb: Climb) -> Explained:
    """Why requests were slow. Whoever interrupts the waiting for it gets the report without."""
    asking_why = asyncio.create_task(explained(api, climb.climbed))
    with _interruptible(asking_why.cancel):
        await asyncio.wait([asking_why])
    if asking_why.cancelled():
        return Explained({}, "why requests were slow is not known: interrupted before gpumon had explained them")
    return asking_why.result()


@contextlib.contextmanager
def _interruptible(interrupt: Callable[[], object]) -> Iterator[None]:
    """The first signal ends what is going on, the second one the program."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        interrupt()

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupted)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _progress(made: Plan) -> Iterator[Callable[[Cell, Answer], None]]:
    """A bar on a terminal, of the tokens of all prompts; nothing elsewhere. Drawn when an answer is over and not by a
    thread of its own, which would be drawing while a token comes."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, auto_refresh=False, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("how long words are", total=sum(cell.requests * cell.aim for cell in made.cells))

        def advance(cell: Cell, answer: Answer) -> None:
            told = f"{length_text(cell.aim)} tokens, {cell.concurrency} at a time: {answer.outcome}"
            progress.update(task, advance=cell.aim, description=told, refresh=True)

        yield advance


def _tell(wish: Wish, said: Report, api: Api | None) -> None:
    command = "" if api is None else "gpumon explain"
    if api is not None and str(api.address) != DEFAULT_URL:
        command += f" --url {api.address}"
    if wish.json_output:
        click.echo(said.model_dump_json(indent=2))
    else:
        render(console_for(sys.stdout), said, command)
    if wish.html is not None:  # last: what was paid for is told even where it cannot be written
        wish.html.write_text(page(said, command), encoding="utf-8")
        click.echo(f"The page is in {wish.html}.", err=True)
