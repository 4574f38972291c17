"""``gpumon diagnose --incident``: prints what a flight recording tells of one incident. Needs no running gpumon.

Exit status: 0 printed, 1 there is none, there are several, or it cannot be read: one line on standard error says so.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpumon.config import Config
from gpumon.record.comparison import Change, Periods, Subject, compare, periods
from gpumon.record.fast_series import PREFIX, fast_series
from gpumon.record.flight_folder import SUBFOLDER, SUFFIX, named_after, recordings
from gpumon.record.flight_reader import Flight, FlightError, IncidentRecord, read_flight, read_incidents
from gpumon.shown import shown, shown_duration, shown_time

LATEST = "latest"
PLAIN_WIDTH = 120
_PID = re.compile(r"\bpid (\d{1,10})\b", re.ASCII)
"""In the name of a process that an incident is of."""
_NEWEST = 4
"""Recordings among which the latest incident is: the newest one, but for clocks that were set."""
_ELSEWHERE = (
    "; a gpumon that runs with another configuration, or gpumon demo, tells where it keeps them in its log "
    "(state=folder path=PATH): --folder PATH/flights"
)
"""What is said of the folder that nobody named, when it has nothing."""
_SEVERITIES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


class NotFoundError(Exception):
    """No incident, or more than one. One line for a person."""


class NoneThereError(NotFoundError):
    """No recording at all."""


def main(config: Config, incident_id: str, folder: Path | None, json_output: bool, limit: int | None) -> int:
    """Print an incident; the exit status.

    incident_id: of the incident, the beginning of one, or ``latest``. folder: where the recordings are; None: below
    ``state.folder``. limit: most signals in the table; None: all of them.
    """
    hint = _ELSEWHERE if folder is None else ""
    try:
        if folder is None:
            if config.state.folder is None:
                raise NotFoundError("state.folder is null: there are no recordings")
            folder = config.state.folder / SUBFOLDER
        path, found_id = find(folder, incident_id)
        flight = read_flight(path)
        incident = next((record for record in flight.incidents if record.id == found_id), None)
        if incident is None:
            raise NotFoundError(f"{path}: it tells nothing of {found_id}")
    except NoneThereError as error:
        click.echo(f"gpumon: {error}{hint}", err=True)
        return 1
    except (NotFoundError, FlightError) as error:
        click.echo(f"gpumon: {error}", err=True)
        return 1
    except OSError as error:
        hint = hint if isinstance(error, FileNotFoundError) else ""
        click.echo(f"gpumon: {error.filename or folder}: {error.strerror or error}{hint}", err=True)
        return 1
    when = _when(flight, incident)
    changes = compare([*flight.series, *fast_series(flight, incident)], when, _subject(incident))
    if json_output:
        click.echo(json.dumps(_as_data(flight, incident, when, changes[:limit]), indent=2, allow_nan=False))
    else:
        _print(flight, incident, when, changes, limit)
    return 0


def find(folder: Path, wanted: str) -> tuple[Path, str]:
    """File and id of the incident with this id, or of the one whose id begins so, or of the latest one.

    Files that cannot be read are passed over unless the id is their name. Raises NotFoundError and OSError.
    """
    os.listdir(folder)  # that it is not there, or may not be read, is another thing than that there is nothing in it
    paths = recordings(folder)
    exact = folder / f"{wanted}{SUFFIX}"
    if exact in paths:
        return exact, named_after(exact)
    if not paths:
        raise NoneThereError(f"{folder}: there are no recordings")
    if wanted == LATEST:
        return _latest(paths)
    found: dict[str, Path] = {}
    for path in paths:
        found |= {record.id: path for record in _incidents(path) if record.id.startswith(wanted)}
        if path.name.startswith(wanted):
            found.setdefault(named_after(path), path)  # it may be damaged
    if wanted in found:
        return found[wanted], wanted
    if len(found) > 1:
        several = ", ".join(sorted(found)[:3])
        raise NotFoundError(f"{wanted!r} may be {len(found)} incidents: {several}{', …' if len(found) > 3 else ''}")
    if not found:
        raise NotFoundError(f"{folder}: no recording of {wanted!r}; the newest is {paths[-1].name}")
    ((id_, path),) = found.items()
    return path, id_


def _latest(paths: Sequence[Path]) -> tuple[Path, str]:
    found = [(record.id, path) for path in paths[-_NEWEST:] for record in _incidents(path)]
    if not found:
        raise NotFoundError(f"{paths[-1]}: damaged; so are the ones before it")
    id_, path = max(found)  # ids begin with the time of opening
    return path, id_


def _incidents(path: Path) -> list[IncidentRecord]:
    try:
        return read_incidents(path)
    except (FlightError, OSError):
        return []


def _subject(incident: IncidentRecord) -> Subject:
    told = _PID.search(incident.entity)
    return Subject(incident.uuid, incident.gpu, told[1] if told is not None else "")


def _when(flight: Flight, incident: IncidentRecord) -> Periods:
    ended_s = flight.ended_s if flight.ended_s is not None else incident.seen_s
    return periods(incident.since_s, incident.seen_s if incident.closed_s is not None else None, ended_s)


# --- as data --------------------------------------------------------------------------------------------------------


def _as_data(flight: Flight, incident: IncidentRecord, when: Periods, changes: Sequence[Change]) -> dict[str, object]:
    """For scripts: base units, unix seconds, null for what is not known."""
    unix = flight.unix_offset_s
    is_closed = incident.closed_s is not None
    return {
        "id": incident.id,
        "kind": incident.kind,
        "entity": {"scope": incident.scope, "name": incident.entity, "gpu": incident.gpu, "uuid": incident.uuid},
        "severity": incident.severity,
        "since_unix_s": incident.since_s + unix,
        "opened_unix_s": incident.opened_s + unix,
        "closed_unix_s": incident.closed_s + unix if incident.closed_s is not None else None,
        "duration_s": _duration_s(flight, incident),
        "is_closed": is_closed,
        "summary": incident.summary,
        "evidence": [
            {"name": item.name, "unit": item.unit, "baseline": item.baseline, "observed": item.observed}
            for item in incident.evidence
        ],
        "action": incident.action,
        "requests": incident.requests,
        "traces": incident.traces,
        "recording": {
            "path": str(flight.path),
            "gpumon": flight.version,
            "end": flight.end or "interrupted",
            "left_out": flight.left_out,
            "truncated": flight.truncated,
            "incidents": [record.id for record in flight.incidents],
            "fast_rows": {uuid: len(rows) for uuid, rows in flight.fast.items()},
        },
        "periods_unix_s": {
            name: [period.since_s + unix, period.until_s + unix] if period is not None else None
            for name, period in zip(Periods._fields, when, strict=True)
        },
        "signals": [
            {
                "name": change.name,
                "labels": dict(change.labels),
                "unit": change.unit,
                "per_second": change.is_rate,
                "before": change.before,
                "during": change.during,
                "after": change.after,
                "during_least": change.least,
                "during_most": change.most,
                "change": change.change,
                "score": change.score,
            }
            for change in changes
        ],
    }


def _duration_s(flight: Flight, incident: IncidentRecord) -> float:
    until_s = incident.seen_s
    if incident.closed_s is None and flight.ended_s is not None:
        until_s = max(until_s, flight.ended_s)
    return max(0.0, until_s - incident.since_s)


# --- for people -----------------------------------------------------------------------------------------------------


def _print(
    flight: Flight, incident: IncidentRecord, when: Periods, changes: Sequence[Change], limit: int | None
) -> None:
    if sys.stdout.isatty():
        console = Console(highlight=False)
    else:
        console = Console(width=PLAIN_WIDTH, color_system=None, force_terminal=False, highlight=False)
    for line in _heading(flight, incident):
        console.print(line, soft_wrap=True)  # ids and paths stay whole, to be copied
    if incident.evidence:
        console.print()
        console.print(_evidence(incident))
    console.print()
    console.print(Text.assemble(("What to do: ", "bold"), _printable(incident.action)))
    if incident.requests:
        traces = f": {', '.join(map(_printable, incident.traces))}" if incident.traces else ""
        console.print(Text(f"Requests touched: {incident.requests:,}{traces}"), soft_wrap=True)
    console.print()
    told = changes[:limit]
    console.print(Text(_periods_told(flight, when)))
    if told:
        console.print(_signals(told))
        if len(told) < len(changes):
            console.print(
                Text(f"{len(told)} of {len(changes):,} signals, those that moved most; --all shows the rest.")
            )
    else:
        console.print(Text("The recording has no signal of that time."))
    console.print()
    for text in _recording_told(flight, incident):
        console.print(Text(text), soft_wrap=True)


def _heading(flight: Flight, incident: IncidentRecord) -> list[Text]:
    unix = flight.unix_offset_s
    title = Text.assemble(
        (_printable(incident.kind), "bold"),
        " of ",
        (_printable(incident.entity), "bold"),
        ", ",
        (_printable(incident.severity), _SEVERITIES.get(incident.severity, "default")),
    )
    lasted = shown_duration(_duration_s(flight, incident))
    if incident.closed_s is not None:
        until = f"until {shown_time(incident.seen_s + unix)}, {lasted}"
    else:
        until = f"still open when the recording ended, after {lasted}"
    found = shown_duration(max(0.0, incident.opened_s - incident.since_s))
    lines = [
        title,
        Text(_printable(incident.summary)),
        Text(f"Since {shown_time(incident.since_s + unix)}, {until}; found after {found}."),
        Text(f"Id {_printable(incident.id)}{f', GPU {_printable(incident.uuid)}' if incident.uuid else ''}"),
    ]
    return [line for line in lines if line.plain]


def _evidence(incident: IncidentRecord) -> Table:
    table = _table("Evidence", "before", "observed")
    for item in incident.evidence:
        table.add_row(
            Text(_printable(item.name).replace("_", " ")),
            Text(shown(item.baseline, item.unit)),
            Text(shown(item.observed, item.unit)),
        )
    return table


def _signals(changes: Sequence[Change]) -> Table:
    table = _table("Signal", "before", "during", "after", "change", "score")
    for change in changes:
        name = Text(_printable(change.name.removeprefix("gpumon_")))
        name.append(_labels_told(change), style="dim")
        figures = [
            shown(value, change.unit, is_rate=change.is_rate) for value in (change.before, change.during, change.after)
        ]
        if change.name.startswith(PREFIX) and change.least is not None and change.most is not None:
            figures[1] += f" ({shown(change.least, change.unit)} to {shown(change.most, change.unit)})"
        relative = f"{100 * change.change:+,.0f} %" if change.change is not None else ""
        score = f"{change.score:+.1f}" if change.score is not None else "-"
        table.add_row(name, *(Text(text) for text in (*figures, relative, score)))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(titles[0], overflow="fold")
    for title in titles[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _labels_told(change: Change) -> str:
    """Without what is empty, and without the UUID where the index is told too."""
    labels = dict(change.labels)
    if labels.get("gpu"):
        labels.pop("uuid", None)
    told = ", ".join(f"{name}={_printable(value)}" for name, value in labels.items() if value)
    return f" {{{told}}}" if told else ""


def _periods_told(flight: Flight, when: Periods) -> str:
    begin, end = when.before.since_s, when.before.until_s
    first_s = min((float(one.times[0]) for one in flight.series if len(one.times)), default=end)
    lengths = [
        f"{shown_duration(max(0.0, end - max(begin, first_s)))} before",
        f"{shown_duration(when.during.until_s - when.during.since_s)} during",
    ]
    if when.after is not None:
        lengths.append(f"{shown_duration(when.after.until_s - when.after.since_s)} after")
    return f"Compared: {', '.join(lengths)} (means of gauges, rates of counters)."


def _recording_told(flight: Flight, incident: IncidentRecord) -> list[str]:
    lines = [f"Recording: {flight.path}"]
    others = [record.id for record in flight.incidents if record.id != incident.id]
    if others:
        shown_others = ", ".join(map(_printable, others[:5]))
        lines.append(f"It also holds {shown_others}{f' and {len(others) - 5} more' if len(others) > 5 else ''}.")
    if flight.fast:
        rows = sum(len(rows) for rows in flight.fast.values())
        gpus = f"{len(flight.fast)} GPUs" if len(flight.fast) > 1 else "one GPU"
        lines.append(f"It also holds {rows:,} readings at the fast cadence, of {gpus}.")
    if flight.truncated:
        lines.append(f"Its end cannot be read: {flight.truncated}.")
    elif not flight.end:
        lines.append("It was interrupted, or still runs.")
    elif flight.end != "complete":
        lines.append("It ends early: gpumon was stopped meanwhile.")
    if flight.left_out:
        lines.append(f"It was too large: {flight.left_out} pieces of it were left out.")
    return lines


def _printable(text: str) -> str:
    """Names of processes and tenants may hold anything, control sequences too."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
