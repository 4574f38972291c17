"""Views, families and stores for tests of exporters."""

from collections.abc import Iterable

from gpumon.model import Kind, Metric, Sample, Unit
from gpumon.store import Store, View

FOREVER_S = 1e9


def family(
    stem: str,
    kind: Kind = Kind.GAUGE,
    unit: Unit = Unit.NONE,
    labels: tuple[str, ...] = ("a", "b"),
    *,
    help_: str = "What it is.",
    bounds: tuple[float, ...] = (),
) -> Metric:
    """A family outside the catalogue."""
    return Metric(
        stem=stem, kind=kind, unit=unit, labels=labels, help=help_, origin="test", budget=10_000, bounds=bounds
    )


def view_of(*batches: Iterable[Sample], at_s: float = 1.0) -> View:
    """A view with each batch under an owner of its own."""
    store = Store(max_series=100_000)
    for number, batch in enumerate(batches):
        store.put(f"owner{number}", at_s, batch, FOREVER_S)
    return store.view(at_s)
