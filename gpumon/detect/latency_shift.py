"""Latencies of a model that jump and stay there: ``latency_shift``.

From ``detect.recent``: P50, P95 and P99 of time to first token and inter-token latency, over windows of five seconds of
token time, longer where there are too few observations. A window is looked at as soon as it has enough, and for the
last time when four of five of its tokens have come, as learned. ``detect.shifts`` judges them. Windows are compared
with those of the same model and signal only; without token times there is time to first token alone. After a pause of
twenty seconds without a token, as of a server that starts anew, a minute is left out: caches are cold, a queue drains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np

from gpumon.detect.detector import Entity, Evidence, Finding, IncidentKind, Severity
from gpumon.detect.recent import BIN_S, ModelLatencies
from gpumon.detect.scene import Scene
from gpumon.detect.shifts import Shift, Track, Window
from gpumon.detect.spoken import change, duration
from gpumon.model import Unit
from gpumon.requests.logbuckets import quantiles
from gpumon.requests.windows import Signal

SHARES: Final = (0.5, 0.95, 0.99)
THICK: Final = (0.5, 0.9, 0.98)
"""Those that leave twice as much over; the median is thick enough."""
COMPLETE: Final = 0.8
"""Share of a window's tokens with which it is done."""
LEAST: Final = {Signal.FIRST_TOKEN: 6, Signal.INTER_TOKEN: 100}
"""Observations of a window."""
LEAST_P99: Final = {Signal.FIRST_TOKEN: 100, Signal.INTER_TOKEN: 300}
"""Observations for its P99 to mean anything."""
LONGEST: Final = 6
"""Bins of a window; with fewer observations in so long there is none."""
PAUSE: Final = 4
"""Bins without a token: longer, and it is a pause."""
AFTER_PAUSE: Final = 12
_WAIT_MAX_S: Final = 60.0
_EVERY_S: Final = 1.9
"""Between two looks at a model, which take 0.1 ms: every second step of a second."""
FEWEST: Final = {Signal.FIRST_TOKEN: (3, 4, 4), Signal.INTER_TOKEN: (2, 3, 3)}
"""Windows of each quantile that a shift takes at least: a few requests are all there is of first tokens."""
_NAMES: Final = {Signal.FIRST_TOKEN: "time_to_first_token", Signal.INTER_TOKEN: "inter_token"}
_SPOKEN: Final = {Signal.FIRST_TOKEN: "time to first token", Signal.INTER_TOKEN: "inter-token"}


class _Told(NamedTuple):
    """A shift to be told of."""

    signal: Signal
    share: float
    shift: Shift

    @property
    def ratio(self) -> float:
        return self.shift.now_s / self.shift.before_s


class _Signal:
    """One signal of one model."""

    def __init__(self, signal: Signal, rise: float, deviations: float, least: int) -> None:
        self.next_bin = 0
        """The first one that is in no window that is done."""
        self.tracks = [
            Track(rise=rise, deviations=deviations, least=least, fewest=fewest, may_rise=share >= 0.95)
            for share, fewest in zip(SHARES, FEWEST[signal], strict=True)
        ]


class _Model:
    """One (server, model)."""

    def __init__(self, rise: float, deviations: float, least: int) -> None:
        self.signals = {signal: _Signal(signal, rise, deviations, least) for signal in Signal}
        self.version = -1
        self.looked_s = float("-inf")
        self.first_bin: int | None = None


class LatencyShift:
    """Finds ``latency_shift``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "latency_shift",
            "P50, P95 or P99 of a model's time to first token or inter-token latency, in windows of 5 s: three windows "
            "running each over `rise` times the one before, to where none has been; or several running over `rise` "
            "times the median of the last half hour, and over it by `deviations` spreads, and over `rise` times that "
            "of the last minute. Several are four or more, by how often such windows came; eight where it is less than "
            "half as much again; two of P50 and three of the others where they are over 1.5 times the highest before; "
            "of first tokens one more; three times as many while there is more load than before. There must be "
            "`least_windows` to compare with. Over when two windows are back; a level that lasts `settled_s` is the "
            "new normal.",
            (Severity.WARNING,),
            "See what else is open on the model's GPUs and processes: that is most likely the cause. With none, look "
            "at the load: longer prompts, more requests at a time, another mix of tenants.",
            hold_s=20.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "rise": "Of a window to what was before it; ratio.",
        "deviations": "Robust standard deviations over the median.",
        "least_windows": "Windows to compare with: a minute of them.",
        "settled_s": "Seconds after which a level is normal.",
    }

    def __init__(
        self, *, rise: float = 1.15, deviations: float = 3.0, least_windows: int = 12, settled_s: float = 900.0
    ) -> None:
        self._thresholds = (rise, deviations, least_windows)
        self._settled_s = settled_s
        self._models: dict[str, _Model] = {}

    def step(self, scene: Scene) -> Iterable[Finding]:
        models = scene.latencies.models()
        self._models = {model.name: self._models.get(model.name) or _Model(*self._thresholds) for model in models}
        findings: list[Finding] = []
        for model in models:
            state = self._models[model.name]
            since_s = scene.at_s - state.looked_s
            ended: list[_Told] = []
            if since_s >= BIN_S or (since_s >= _EVERY_S and model.version != state.version):
                state.version, state.looked_s = model.version, scene.at_s
                state.first_bin = model.oldest if state.first_bin is None else state.first_bin
                from_bin = _resumed(model, state.first_bin)
                for signal, of in state.signals.items():
                    ended += self._look(model, signal, of, from_bin, scene.at_s)
            on = [
                _Told(signal, share, track.shift)
                for signal, of in state.signals.items()
                for share, track in zip(SHARES, of.tracks, strict=True)
                if track.shift is not None
            ]
            if on or ended:
                findings.append(_finding(model.name, on or ended, over=not on))
        return findings

    def _look(self, model: ModelLatencies, signal: Signal, of: _Signal, from_bin: int, at_s: float) -> list[_Told]:
        """Take the windows that there are from a bin on; shifts that ended."""
        spans, done = _spans(model, signal, of, at_s)
        windows: list[list[Window | None]] = [[] for _ in SHARES]
        if spans:
            rows = np.array([model.counts(signal, first, last) for first, last in spans])
            loads = _loads(model, spans)
            for span, values, count, load in zip(
                spans, quantiles(rows, (*SHARES, *THICK)).tolist(), rows.sum(axis=1).tolist(), loads, strict=True
            ):
                for column, share in enumerate(SHARES):
                    enough = span[0] >= from_bin and (share < 0.99 or count >= LEAST_P99[signal])
                    window = Window(span[1] * BIN_S, values[column], values[column + len(SHARES)], load)
                    windows[column].append(window if enough else None)
        ended = []
        for share, track, of_track in zip(SHARES, of.tracks, windows, strict=True):
            shift = track.judge(
                [window for window in of_track[:done] if window is not None],
                [window for window in of_track[done:] if window is not None],
                at_s,
                settled_s=self._settled_s,
            )
            if shift is not None:
                ended.append(_Told(signal, share, shift))
        return ended


def _spans(model: ModelLatencies, signal: Signal, of: _Signal, at_s: float) -> tuple[list[tuple[int, int]], int]:
    """First and last bin of each window with enough observations since the last one done; how many are done now.

    Bins without enough in half a minute are left out.
    """
    done_s = at_s - min(max(model.lag_s(signal, COMPLETE), BIN_S), _WAIT_MAX_S)
    first = max(of.next_bin, model.oldest)
    spans: list[tuple[int, int]] = []
    done = count = 0
    for number, total in enumerate(model.totals(signal, first), first):
        count += total
        is_done = (number + 1) * BIN_S <= done_s
        if count >= LEAST[signal]:
            spans.append((first, number))
            done += is_done
        elif not is_done or number - first + 1 < LONGEST:
            continue
        first, count = number + 1, 0
        if is_done:
            of.next_bin = first
    return spans, done


def _resumed(model: ModelLatencies, first: int) -> int:
    """First bin that counts: a minute after the newest pause since bin ``first``; 0 where there was none."""
    first = max(first, model.oldest)
    sums = np.array([model.totals(signal, first) for signal in Signal]).sum(axis=0)
    told = first + np.flatnonzero(sums)
    ends = told[1:][np.diff(told) > PAUSE]
    return int(ends[-1]) + AFTER_PAUSE if len(ends) else 0


def _loads(model: ModelLatencies, spans: Sequence[tuple[int, int]]) -> list[float]:
    """First tokens a second of each span."""
    oldest = spans[0][0]
    firsts = model.totals(Signal.FIRST_TOKEN, oldest)
    return [sum(firsts[first - oldest : last + 1 - oldest]) / ((last + 1 - first) * BIN_S) for first, last in spans]


def _finding(name: str, told: Sequence[_Told], *, over: bool) -> Finding:
    """Of all shifts of a model; the summary is of the largest."""
    evidence = tuple(
        Evidence(f"{_NAMES[signal]}_p{share * 100:.0f}", shift.now_s, Unit.SECONDS, shift.before_s)
        for signal, share, shift in told
    )
    worst = max(told, key=lambda each: each.ratio)
    before_s, now_s = worst.shift.before_s, worst.shift.now_s
    return Finding(
        "latency_shift",
        Entity("server", name),
        Severity.WARNING,
        min(shift.since_s for _, _, shift in told),
        f"{_SPOKEN[worst.signal]} P{worst.share * 100:.0f} {duration(before_s)} → {duration(now_s)} "
        f"({change(before_s, now_s)})",
        evidence,
        over=over,
        weight=worst.ratio,
    )
