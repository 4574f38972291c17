"""How a probe's report says things, on a terminal and in a page: sentences, and the cells of its tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpumon.model import Unit
from gpumon.probe.collapse import figures
from gpumon.probe.ladder import length_text
from gpumon.probe.model import Change, Collapse, Conditions, Latency, Report, Rung
from gpumon.shown import percent, shown, shown_duration, shown_seconds
from gpumon.terminal import printable, title_of

MEASURES: Final = {"time_to_first_token": "time to first token", "inter_token": "inter-token latency"}
TITLES: Final = ("Prompt", "at a time", "n", "TTFT P50", "P95", "P99", "ITL P50", "P95", "P99", "tokens/s", "")
MEANWHILE: Final = (
    "Prompt",
    "at a time",
    "busy",
    "SM",
    "DRAM",
    "SM clock",
    "throttled",
    "faults/s",
    "KV cache",
    "late by",
)
_OFF: Final = 0.05
_STATES: Final = {
    "measured": "",
    "partial": "cut short",
    "failed": "failed",
    "context_too_long": "does not fit the context",
    "not_tried": "not tried",
}
_ENDED: Final = {
    "refused": "The server refuses",
    "server_gone": "The server is gone",
    "server_endless": "The server makes more tokens than it is asked for",
    "budget_tokens": "The budget of tokens is used up: what follows is what was measured until then.",
    "budget_s": "The time is up: what follows is what was measured until then.",
    "interrupted": "Interrupted: what follows is what was measured until then.",
}


def verdict(said: Report) -> list[str]:
    """What there is to know, in sentences; what matters most first."""
    told = []
    if said.ended != "done":
        told.append(_ENDED[said.ended] + (f" ({printable(said.failure, 300)})." if said.failure else ""))
    measured = [rung for rung in said.rungs if rung.requests]
    if said.collapses:
        told += [collapse(each) for each in said.collapses]
    elif len(measured) > 1:
        longest = max(measured, key=lambda rung: rung.aim_tokens)
        told.append(f"No collapse up to {length_text(longest.aim_tokens)} tokens: P95 grows no faster than the work.")
    elif measured:
        told.append("One rung alone tells of no collapse.")
    limits = [rung.aim_tokens for rung in said.rungs if rung.state == "context_too_long"]
    if limits:
        told.append(f"Prompts of {length_text(min(limits))} tokens do not fit the server's context.")
    return told


def collapse(each: Collapse) -> str:
    """``From 16k to 32k tokens, P95 of time to first token grows 5.1 times for 2 times the work: …``."""
    least = " (few requests: a hint)" if each.few else ""
    lengths = f"{length_text(each.before_tokens)} to {length_text(each.beyond_tokens)} tokens"
    times = f"{shown_seconds(each.p95_before)} → {shown_seconds(each.p95_beyond)}"
    return (
        f"Collapse from {lengths}{_level(each.concurrency)}: P95 of {MEASURES[each.measure]} grows "
        f"{each.growth:.3g} times, {times}, for {each.work:.3g} times the work{least}."
    )


def sides(each: Collapse) -> str:
    """``At 16k and 32k, 8 at a time``."""
    return f"At {length_text(each.before_tokens)} and {length_text(each.beyond_tokens)}{_level(each.concurrency)}"


def setting(said: Report) -> str:
    """Whom, how, and what it took."""
    cached = ", prompts in the prefix cache" if said.cached else ""
    lengths = "as the server counts them" if said.lengths_from == "usage" else "as aimed at: the server does not count"
    return (
        f"{said.model or 'no model'} at {said.endpoint} ({said.interface}, {said.max_tokens} tokens each{cached}); "
        f"{sum(rung.requests for rung in said.rungs):,} requests and {said.budget.spent_tokens:,} tokens in "
        f"{shown_duration(said.duration_seconds)}; lengths {lengths}"
    )


def cells(rung: Rung) -> tuple[str, ...]:
    """Of the table of latencies, as TITLES."""
    return (
        length(rung),
        str(rung.concurrency),
        f"{rung.requests:,}",
        *_latency(rung.time_to_first_token),
        *_latency(rung.inter_token),
        shown(rung.tokens_per_second, ""),
        remark(rung),
    )


def length(rung: Rung) -> str:
    """``8k``, and what the server counted where that is quite another figure."""
    aim = length_text(rung.aim_tokens)
    if rung.prompt_tokens is None or abs(rung.prompt_tokens / rung.aim_tokens - 1) <= _OFF:
        return aim
    return f"{aim} ({rung.prompt_tokens:,.0f})"


def remark(rung: Rung) -> str:
    """What went otherwise: ``2 timeout, 1 http_500; cut short``."""
    errors = ", ".join(f"{count:,} {printable(reason)}" for reason, count in rung.errors.items())
    return "; ".join(part for part in (errors, _STATES[rung.state]) if part)


def meanwhile(rung: Rung) -> tuple[str, ...]:
    """Of the table of conditions, as MEANWHILE."""
    late = "; ".join(f"{shown_seconds(each.seconds)} {title_of(each.cause)}" for each in rung.causes[:2])
    return (length(rung), str(rung.concurrency), *_conditions(rung.conditions), late or "-")


def watched(said: Report) -> list[Rung]:
    """Rungs of which it is known what GPU and host were doing, or why requests were late."""
    return [rung for rung in said.rungs if rung.conditions is not None or rung.causes]


def change(each: Change) -> tuple[str, str, str]:
    """Of a table of what was different: title, before, beyond."""
    return each.title, shown(each.before, each.unit), shown(each.beyond, each.unit)


def refusals(rungs: Sequence[Rung]) -> list[str]:
    """What the server said of requests that failed, each once."""
    said = {f"{printable(reason)}: {printable(text, 300)}" for rung in rungs for reason, text in rung.said.items()}
    return sorted(said)


def _level(concurrency: int) -> str:
    return f", {concurrency} at a time" if concurrency > 1 else ""


def _latency(told: Latency | None) -> tuple[str, str, str]:
    if told is None:
        return "-", "-", "-"
    return shown_seconds(told.p50), shown_seconds(told.p95), shown_seconds(told.p99)


def _conditions(said: Conditions | None) -> tuple[str, ...]:
    if said is None:
        return ("-",) * 7
    known = {name: value for name, (_, value, _) in figures(said).items()}
    faults = known["process_major_faults"]
    return (
        _percent(known["utilization"]),
        _percent(known["sm_active"]),
        _percent(known["dram_active"]),
        shown(known["clock_hertz"], Unit.HERTZ),
        _percent(known["throttled"]),
        shown(faults if faults is not None else known["host_major_faults"], ""),
        _percent(known["kv_usage"]),
    )


def _percent(share: float | None) -> str:
    return percent(share) if share is not None else "-"
