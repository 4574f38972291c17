"""A response surface: a quantile of a latency over any two attributes of requests.

Attributes are numbers (prompt tokens, completion tokens, concurrency, a parameter such as temperature, …) or names
(tenant, model). A number with few different values has a bin for each; one with more has bins that hold about as many
requests each, or double where they are counts. Of names the seven most frequent have a bin each, and the others one.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.diagnosis.figures import Floats, quantile
from gpumon.explain.diagnosis.model import Axis, Surface
from gpumon.explain.diagnosis.seen import Seen

BINS: Final = 8
LEAST: Final = 5
"""Requests of a cell that has a value."""
MEASURES: Final = ("response_time", "time_to_first_token", "time_per_token")
_COUNTS: Final = {
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "cached_tokens": "cached_tokens",
    "concurrency": "concurrency",
}
_NAMES: Final = ("tenant", "model")
_UNUSUAL: Final = ("seed",)
"""Parameters that are no scale."""


class _Binned(NamedTuple):
    """An attribute in bins."""

    labels: tuple[str, ...]
    places: NDArray[np.intp]
    """Bin of each request; -1 where it does not have the attribute."""


def attributes(seen: Seen) -> tuple[str, ...]:
    """Those that some of the requests have, and that vary."""
    return tuple(name for name in _all(seen) if len(_binned(seen, name).labels) > 1)


def surface(seen: Seen, x: str, y: str, *, measure: str = "response_time", share: float = 0.95) -> Surface:
    """Quantile ``share`` of one of MEASURES over attributes x and y.

    Raises ValueError for an attribute or a measure that there is not.
    """
    for name in (x, y):
        _check(seen, name)
    values = _measure(seen, measure)
    across, down = _binned(seen, x), _binned(seen, y)
    shape = len(down.labels), len(across.labels)
    counts = np.zeros(shape, dtype=np.intp)
    cells: list[list[float | None]] = [[None] * shape[1] for _ in range(shape[0])]
    usable = np.flatnonzero((across.places >= 0) & (down.places >= 0) & np.isfinite(values))
    flat = down.places[usable] * shape[1] + across.places[usable]
    order = np.argsort(flat, kind="stable")
    for cell, part in _runs(flat[order], usable[order]):
        row, column = divmod(cell, shape[1])
        counts[row, column] = len(part)
        if len(part) >= LEAST:
            cells[row][column] = quantile(values[part], share)
    return Surface(
        x=Axis(name=x, labels=across.labels),
        y=Axis(name=y, labels=down.labels),
        measure=measure,
        quantile=share,
        counts=tuple(tuple(row) for row in counts.tolist()),
        values=tuple(tuple(row) for row in cells),
    )


def choose(seen: Seen, x: str = "", y: str = "") -> tuple[str, str] | None:
    """The two attributes, those that are empty being replaced by what latency varies most with.

    None where too few vary. Raises ValueError for one that there is not.
    """
    asked = [name for name in (x, y) if name]
    for name in asked:
        _check(seen, name)
    names = [name for name in attributes(seen) if name not in asked]
    if len(names) + len(asked) < 2:
        return None
    response = np.log(np.maximum(seen.duration_s, 1e-6))
    strengths = [_strength(_binned(seen, name).places, response) for name in names]
    best = iter(names[i] for i in np.argsort(-np.array(strengths), kind="stable").tolist())
    return x or next(best), y or next(best)


def _all(seen: Seen) -> tuple[str, ...]:
    parameters = [name for name in seen.rows.parameter_names() if name not in (*_COUNTS, *_NAMES, *_UNUSUAL)]
    return (*_COUNTS, *_NAMES, *parameters)


def _check(seen: Seen, name: str) -> None:
    if name not in _all(seen):
        raise ValueError(f"no attribute {name!r} of requests; there are {', '.join(_all(seen))}")


def _measure(seen: Seen, measure: str) -> Floats:
    if measure == "response_time":
        return seen.duration_s
    if measure == "time_to_first_token":
        return seen.rows.column("first_token_s")
    if measure == "time_per_token":
        return seen.per_token_s
    raise ValueError(f"no measure {measure!r}; they are {', '.join(MEASURES)}")


def _binned(seen: Seen, name: str) -> _Binned:
    if name == "tenant":
        return _of_names(seen.rows.tenants, seen.tenant)
    if name == "model":
        return _of_names([group.model for group in seen.rows.groups], seen.group)
    if name in _COUNTS:
        return _of_counts(seen.rows.column(_COUNTS[name]))
    return _of_numbers(seen.rows.parameter(name))


def _of_names(names: tuple[str, ...] | list[str], places: NDArray[np.intp]) -> _Binned:
    """Names that are the same at several positions are one."""
    unique = {name: i for i, name in enumerate(dict.fromkeys(names))}
    ids = np.array([unique[name] for name in names], dtype=np.intp)[places]
    counts = np.bincount(ids, minlength=len(unique))
    spelled = list(unique)
    order = [i for i in np.argsort(-counts, kind="stable").tolist() if counts[i]]
    own = order if len(order) <= BINS else order[: BINS - 1]
    bins = np.full(len(unique), len(own), dtype=np.intp)
    bins[own] = np.arange(len(own))
    labels = [spelled[i] or "(none)" for i in own] + (["all others"] if len(order) > BINS else [])
    return _Binned(tuple(labels), bins[ids])


def _of_counts(values: Floats) -> _Binned:
    """Whole numbers: one by one where they are few, else doubling."""
    finite = np.isfinite(values)
    different = np.unique(values[finite])
    if len(different) <= BINS:
        return _one_by_one(values, different)
    _, exponents = np.frexp(values[finite])  # 0 for 0, n for 2**(n - 1) to 2**n - 1
    lowest, highest = int(exponents.min()), int(exponents.max())
    step = max(1, math.ceil((highest - lowest + 1) / BINS))
    places = np.full(len(values), -1, dtype=np.intp)
    places[finite] = (exponents - lowest) // step
    labels = []
    for first in range(lowest, highest + 1, step):
        least, most = 0 if first == 0 else 2 ** (first - 1), 2 ** (first + step - 1) - 1 if first or step > 1 else 0
        labels.append(f"{least} to {most}" if least < most else f"{least}")
    return _Binned(tuple(labels), places)


def _of_numbers(values: Floats) -> _Binned:
    """Any numbers: one by one where they are few, else as many requests in each bin."""
    finite = np.isfinite(values)
    different = np.unique(values[finite])
    if len(different) <= BINS:
        return _one_by_one(values, different)
    edges = np.unique(np.quantile(values[finite], np.arange(1, BINS) / BINS, method="inverted_cdf"))
    edges = edges[edges < different[-1]]  # a bin is above the edge before, up to its own
    places = np.where(finite, np.searchsorted(edges, np.where(finite, values, 0.0), "left"), -1).astype(np.intp)
    lows, highs = [float(different[0]), *edges.tolist()], [*edges.tolist(), float(different[-1])]
    return _Binned(tuple(f"{low:.4g} to {high:.4g}" for low, high in zip(lows, highs, strict=True)), places)


def _one_by_one(values: Floats, different: Floats) -> _Binned:
    places = np.where(np.isfinite(values), np.searchsorted(different, values), -1).astype(np.intp)
    return _Binned(tuple(f"{value:.6g}" for value in different.tolist()), places)


def _runs(keys: NDArray[np.intp], items: NDArray[np.intp]) -> list[tuple[int, NDArray[np.intp]]]:
    """Items by key, both sorted by key."""
    unique, starts = np.unique(keys, return_index=True)
    return list(zip(unique.tolist(), np.split(items, starts[1:]), strict=True)) if len(unique) else []


def _strength(places: NDArray[np.intp], response: Floats) -> float:
    """Share of the variance that lies between the bins, less what chance puts there; 0 where too few are told."""
    told = places >= 0
    bins = int(places.max(initial=-1)) + 1
    if told.sum() <= LEAST * bins:
        return 0.0
    x, y = places[told], response[told]
    counts = np.bincount(x, minlength=bins)
    means = np.bincount(x, y, bins) / np.maximum(counts, 1)
    total = float(((y - y.mean()) ** 2).sum())
    if total <= 0:
        return 0.0
    between = float((counts * (means - y.mean()) ** 2).sum()) / total
    return max(0.0, between - (bins - 1) / (len(y) - 1)) * float(told.mean())
