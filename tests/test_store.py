"""The store: what it exposes, what it refuses, and its rings, against plain models of both."""

import math
import threading
from collections import Counter, deque
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpumon import catalogue
from gpumon.catalogue import (
    GPU_CLOCK,
    GPU_FAN,
    GPU_INFO,
    GPU_POWER,
    GPU_POWER_SAMPLES,
    GPU_UTILIZATION,
    HISTORY_SERIES,
    SAMPLES_REJECTED,
    SERIES,
    SERIES_DROPPED,
)
from gpumon.model import Distribution, Kind, Metric, Reason, Rejection, Sample, SourceError, Unit
from gpumon.store import Store

A = ("0", "GPU-a")
B = ("1", "GPU-b")


def metric(stem: str, budget: int = 100, kind: Kind = Kind.GAUGE, bounds: tuple[float, ...] = ()) -> Metric:
    return Metric(
        stem=stem, kind=kind, unit=Unit.NONE, labels=("x",), help="X.", origin="test", budget=budget, bounds=bounds
    )


def own(store: Store, at_s: float) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(s.metric.stem, s.labels): s.value for s in store.self_samples(at_s) if isinstance(s.value, float)}


def dropped(store: Store, reason: str) -> float:
    return own(store, 0.0)[SERIES_DROPPED.stem, (reason,)]


def rejected(store: Store, field: str, reason: Reason = Reason.MALFORMED) -> float:
    return own(store, 0.0).get((SAMPLES_REJECTED.stem, (field, reason)), 0.0)


def test_a_batch_replaces_the_one_before_so_that_vanished_series_vanish() -> None:
    store = Store()
    store.put("gpu", 1.0, [Sample(GPU_UTILIZATION, A, 0.5), Sample(GPU_UTILIZATION, B, 0.6)], 10.0)
    store.put("gpu", 2.0, [Sample(GPU_UTILIZATION, B, 0.7)], 10.0)
    view = store.view(2.0)
    assert view.value(GPU_UTILIZATION, A) is None
    assert view.value(GPU_UTILIZATION, B) == 0.7
    assert view.family(GPU_UTILIZATION) == [Sample(GPU_UTILIZATION, B, 0.7)]


def test_a_view_does_not_change_after_it_was_taken() -> None:
    store = Store()
    store.put("gpu", 1.0, [Sample(GPU_UTILIZATION, A, 0.5)], 10.0)
    view = store.view(1.0)
    store.put("gpu", 2.0, [Sample(GPU_UTILIZATION, A, 0.9)], 10.0)
    store.drop("gpu")
    assert list(view) == [Sample(GPU_UTILIZATION, A, 0.5)]
    with pytest.raises(TypeError):
        view.batches["gpu"] = view.batches["gpu"]  # type: ignore[index]


def test_owners_are_in_the_order_of_their_names() -> None:
    store = Store()
    for owner in ("b", "c", "a"):
        store.put(owner, 1.0, [], 10.0)
    assert list(store.view(1.0).batches) == ["a", "b", "c"]


def test_a_batch_is_left_out_from_the_moment_after_it_expires() -> None:
    store = Store()
    store.put("gpu", 1.0, [Sample(GPU_UTILIZATION, A, 0.5)], 10.0)
    assert store.view(11.0).value(GPU_UTILIZATION, A) == 0.5
    assert store.view(math.nextafter(11.0, 12.0)).value(GPU_UTILIZATION, A) is None


def test_an_expired_batch_no_longer_keeps_others_from_its_series() -> None:
    store = Store()
    store.put("old", 1.0, [Sample(GPU_UTILIZATION, A, 0.5)], 1.0)
    store.put("new", 3.0, [Sample(GPU_UTILIZATION, A, 0.6)], 1.0)
    assert store.view(3.0).value(GPU_UTILIZATION, A) == 0.6
    assert dropped(store, "duplicate") == 0


def test_the_later_of_two_samples_of_one_series_is_dropped_and_counted_at_every_pass() -> None:
    store = Store()
    for at_s in (1.0, 2.0):
        store.put("gpu", at_s, [Sample(GPU_UTILIZATION, A, 0.5), Sample(GPU_UTILIZATION, A, 0.6)], 10.0)
    assert store.view(2.0).family(GPU_UTILIZATION) == [Sample(GPU_UTILIZATION, A, 0.5)]
    assert dropped(store, "duplicate") == 2


def test_a_series_of_another_owner_is_dropped_and_free_again_once_that_one_lets_go() -> None:
    store = Store()
    store.put("first", 1.0, [Sample(GPU_UTILIZATION, A, 0.5)], 10.0)
    store.put("second", 1.0, [Sample(GPU_UTILIZATION, A, 0.6)], 10.0)
    assert store.view(1.0).value(GPU_UTILIZATION, A) == 0.5
    store.drop("first")
    store.put("second", 2.0, [Sample(GPU_UTILIZATION, A, 0.6)], 10.0)
    assert store.view(2.0).value(GPU_UTILIZATION, A) == 0.6
    assert dropped(store, "duplicate") == 1


def test_a_family_past_its_budget_is_cut_and_counted_over_all_owners() -> None:
    small = metric("small", budget=3)
    store = Store()
    store.put("a", 1.0, [Sample(small, ("1",), 1.0), Sample(small, ("2",), 1.0)], 10.0)
    store.put("b", 1.0, [Sample(small, (x,), 1.0) for x in "3456"], 10.0)
    assert [sample.labels for sample in store.view(1.0).family(small)] == [("1",), ("2",), ("3",)]
    assert dropped(store, "budget") == 3


def test_all_series_together_stay_below_max_series_and_a_histogram_counts_all_its_lines() -> None:
    store = Store(max_series=10)
    store.put("a", 1.0, [Sample(metric("big"), (str(i),), 1.0) for i in range(3)], 10.0)
    wide = metric("wide", kind=Kind.HISTOGRAM, bounds=(1.0, 2.0, 3.0))
    store.put("b", 1.0, [Sample(wide, (x,), Distribution((0, 0, 0, 0), 0.0)) for x in "12"], 10.0)
    assert own(store, 1.0)[SERIES.stem, ()] == 9
    assert [sample.labels for sample in store.view(1.0).family(wide)] == [("1",)]
    assert dropped(store, "budget") == 1


@pytest.mark.parametrize(
    "sample",
    [
        Sample(GPU_UTILIZATION, A, math.nan),
        Sample(GPU_UTILIZATION, A, math.inf),
        Sample(GPU_UTILIZATION, A, 10**400),
        Sample(GPU_UTILIZATION, A, ""),  # type: ignore[arg-type]
        Sample(GPU_UTILIZATION, A, None),  # type: ignore[arg-type]
        Sample(GPU_UTILIZATION, ("0",), 0.5),
        Sample(GPU_UTILIZATION, (*A, "more"), 0.5),
        Sample(GPU_UTILIZATION, A, Distribution((1,), 1.0)),
    ],
)
def test_what_cannot_be_exposed_is_dropped_and_counted_and_its_neighbour_stays(sample: Sample) -> None:
    store = Store()
    store.put("gpu", 1.0, [sample, Sample(GPU_UTILIZATION, B, 0.5)], 10.0)
    assert list(store.view(1.0)) == [Sample(GPU_UTILIZATION, B, 0.5)]
    assert rejected(store, GPU_UTILIZATION.stem) == 1


@pytest.mark.parametrize(
    "value",
    [
        Distribution((1,), 1.0),
        Distribution((0,) * len(GPU_POWER_SAMPLES.bounds) + (-1,), 1.0),
        Distribution((0,) * len(GPU_POWER_SAMPLES.bounds) + (1,), math.nan),
        1.0,
    ],
)
def test_a_histogram_that_does_not_fit_its_bounds_is_rejected(value: float | Distribution) -> None:
    store = Store()
    store.put("gpu", 1.0, [Sample(GPU_POWER_SAMPLES, A, value)], 10.0)
    assert list(store.view(1.0)) == []
    assert rejected(store, GPU_POWER_SAMPLES.stem) == 1


def test_numbers_of_other_types_become_exact_floats() -> None:
    store = Store()
    store.put(
        "gpu",
        1.0,
        [Sample(GPU_UTILIZATION, A, np.float64(0.5)), Sample(GPU_UTILIZATION, B, 1), Sample(GPU_FAN, (*A, "0"), True)],
        10.0,
    )
    assert [(type(sample.value), sample.value) for sample in store.view(1.0)] == [
        (float, 0.5),
        (float, 1.0),
        (float, 1.0),
    ]


def test_labels_that_are_no_text_become_text() -> None:
    store = Store()
    store.put(
        "gpu", 1.0, [Sample(GPU_UTILIZATION, ("0", "a\udcff"), 1.0), Sample(GPU_UTILIZATION, ("0", "ü"), 1.0)], 10.0
    )
    assert [sample.labels for sample in store.view(1.0)] == [("0", "a?"), ("0", "ü")]


@pytest.mark.parametrize("bad", [math.nan, -math.inf, Distribution((1,), 1.0), "x"])
def test_a_bad_value_in_a_series_that_was_good_before_is_dropped(bad: float) -> None:
    store = Store()
    for at_s, value in ((1.0, 0.5), (2.0, 0.6), (3.0, bad)):
        store.put("gpu", at_s, [Sample(GPU_UTILIZATION, A, value), Sample(GPU_UTILIZATION, B, 0.5)], 10.0)
    assert [sample.labels for sample in store.view(3.0)] == [B]
    assert rejected(store, GPU_UTILIZATION.stem) == 1
    assert len(store.view(3.0).window(GPU_UTILIZATION, A, 0.0)[0]) == 0


def test_good_values_whose_sum_overflows_are_taken() -> None:
    store = Store()
    for at_s in (1.0, 2.0):
        store.put("gpu", at_s, [Sample(GPU_UTILIZATION, gpu, 1.7e308) for gpu in (A, B)], 10.0)
    assert len(store.view(2.0).family(GPU_UTILIZATION)) == 2


def test_a_source_that_breaks_off_changes_nothing() -> None:
    store = Store()
    store.put("gpu", 1.0, [Sample(GPU_UTILIZATION, A, 0.5)], 10.0)

    def broken() -> Iterator[Sample]:
        yield Sample(GPU_UTILIZATION, A, 0.6)
        raise SourceError(Reason.UNAVAILABLE, "gone")

    with pytest.raises(SourceError):
        store.put("gpu", 2.0, broken(), 10.0)
    assert store.view(2.0).value(GPU_UTILIZATION, A) == 0.5


def test_counters_of_drops_exist_at_zero() -> None:
    assert own(Store(), 0.0) == {
        (SERIES.stem, ()): 0.0,
        (SERIES_DROPPED.stem, ("budget",)): 0.0,
        (SERIES_DROPPED.stem, ("duplicate",)): 0.0,
        (HISTORY_SERIES.stem, ("kept",)): 0.0,
        (HISTORY_SERIES.stem, ("refused",)): 0.0,
    }


def test_the_stores_own_samples_can_be_put_into_it() -> None:
    store = Store()
    store.count_rejections([Rejection("power", Reason.OUT_OF_RANGE)] * 2)
    store.put("store", 1.0, store.self_samples(1.0), 10.0)
    assert store.view(1.0).value(SAMPLES_REJECTED, ("power", "out_of_range")) == 2.0
    assert own(store, 1.0)[SERIES.stem, ()] == 6


def test_rejections_of_endless_fields_do_not_grow_without_bound() -> None:
    store = Store()
    store.count_rejections(Rejection(f"field{i}", Reason.OUT_OF_RANGE) for i in range(10_000))
    counted = [sample for sample in store.self_samples(0.0) if sample.metric is SAMPLES_REJECTED]
    assert len(counted) <= SAMPLES_REJECTED.budget
    assert sum(sample.value for sample in counted if isinstance(sample.value, float)) == 10_000


def test_a_window_holds_the_newest_points_within_its_times() -> None:
    store = Store(history_points=4)
    for at_s in range(1, 8):
        store.put("gpu", float(at_s), [Sample(GPU_UTILIZATION, A, at_s / 10)], 10.0)
    times, values = store.view(7.0).window(GPU_UTILIZATION, A, 0.0)
    assert times.tolist() == [4.0, 5.0, 6.0, 7.0]
    assert values.tolist() == [0.4, 0.5, 0.6, 0.7]
    assert store.view(7.0).window(GPU_UTILIZATION, A, 5.5)[0].tolist() == [6.0, 7.0]


def test_a_window_never_shows_what_is_newer_than_its_view() -> None:
    store = Store()
    store.put("gpu", 1.0, [Sample(GPU_UTILIZATION, A, 0.1)], 10.0)
    view = store.view(1.0)
    store.put("gpu", 2.0, [Sample(GPU_UTILIZATION, A, 0.2)], 10.0)
    assert view.window(GPU_UTILIZATION, A, 0.0)[1].tolist() == [0.1]


def test_a_window_is_a_copy() -> None:
    store = Store()
    store.put("gpu", 1.0, [Sample(GPU_UTILIZATION, A, 0.1)], 10.0)
    store.view(1.0).window(GPU_UTILIZATION, A, 0.0)[1][:] = 9.0
    assert store.view(1.0).window(GPU_UTILIZATION, A, 0.0)[1].tolist() == [0.1]


def test_a_point_that_is_not_newer_is_exposed_but_not_remembered() -> None:
    store = Store()
    store.put("gpu", 2.0, [Sample(GPU_UTILIZATION, A, 0.1)], 10.0)
    store.put("gpu", 2.0, [Sample(GPU_UTILIZATION, A, 0.2), Sample(GPU_UTILIZATION, B, 0.3)], 10.0)
    view = store.view(2.0)
    assert view.value(GPU_UTILIZATION, A) == 0.2
    assert view.window(GPU_UTILIZATION, A, 0.0)[1].tolist() == [0.1]
    assert view.window(GPU_UTILIZATION, B, 0.0)[1].tolist() == [0.3]


def test_infos_and_histograms_have_no_history() -> None:
    store = Store()
    counts = (0,) * (len(GPU_POWER_SAMPLES.bounds) + 1)
    info = tuple(GPU_INFO.labels)
    store.put("gpu", 1.0, [Sample(GPU_POWER_SAMPLES, A, Distribution(counts, 0.0)), Sample(GPU_INFO, info, 1.0)], 10.0)
    view = store.view(1.0)
    assert [len(view.window(*key, 0.0)[0]) for key in ((GPU_POWER_SAMPLES, A), (GPU_INFO, info), (GPU_POWER, A))] == [
        0
    ] * 3
    assert own(store, 1.0)[HISTORY_SERIES.stem, ("kept",)] == 0


def test_series_past_the_number_of_rings_are_exposed_without_history_until_one_is_free() -> None:
    store = Store(history_series=1)
    both = [Sample(GPU_UTILIZATION, A, 0.1), Sample(GPU_UTILIZATION, B, 0.2)]
    store.put("gpu", 1.0, both, 10.0)
    assert own(store, 1.0)[HISTORY_SERIES.stem, ("refused",)] == 1
    assert len(store.view(1.0).window(GPU_UTILIZATION, B, 0.0)[0]) == 0
    store.put("gpu", 2.0, both[1:], 10.0)
    assert store.view(2.0).window(GPU_UTILIZATION, B, 0.0)[0].tolist() == [2.0]
    assert own(store, 2.0)[HISTORY_SERIES.stem, ("refused",)] == 0


def test_a_reused_ring_does_not_show_the_points_of_the_series_before() -> None:
    store = Store(history_series=1)
    store.put("gpu", 1.0, [Sample(GPU_UTILIZATION, A, 0.1)], 10.0)
    store.put("gpu", 2.0, [Sample(GPU_UTILIZATION, B, 0.2)], 10.0)
    assert store.view(2.0).window(GPU_UTILIZATION, B, 0.0)[1].tolist() == [0.2]
    assert len(store.view(2.0).window(GPU_UTILIZATION, A, 0.0)[0]) == 0


def test_rings_take_no_more_than_their_stated_memory_whatever_is_put() -> None:
    store = Store(history_points=10, history_series=5)
    before = store.capacity_bytes
    for at_s in range(50):
        batch = [Sample(GPU_CLOCK, (*A, str((at_s * 7 + i) % 40)), 1.0) for i in range(20)]
        store.put("gpu", float(at_s), batch, 10.0)
    assert store.capacity_bytes == before == 5 * (10 * 16 + 16)
    assert own(store, 50.0)[HISTORY_SERIES.stem, ("kept",)] == 5


def test_threads_that_put_and_read_at_once_see_whole_batches_only() -> None:
    store = Store()
    torn: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            view = store.view(0.0)
            values = {sample.value for sample in view if sample.metric is GPU_CLOCK}
            times, _ = view.window(GPU_CLOCK, (*A, "0"), 0.0)
            if len(values) > 1 or np.any(np.diff(times) <= 0):
                torn.append((values, times))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(300):
        store.put("gpu", float(i), [Sample(GPU_CLOCK, (*A, str(d)), float(i)) for d in range(8)], 1e9)
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []


FAMILIES = (metric("one", budget=3), metric("two", budget=2), metric("three", budget=9))
MAX_SERIES = 6
POINTS = 3
samples = st.lists(
    st.builds(
        Sample,
        st.sampled_from(FAMILIES),
        st.tuples(st.sampled_from("abcd")),
        st.sampled_from([0.0, 1.0, 2.0, math.nan]),
    ),
    max_size=8,
)


class StoreAgainstLists(RuleBasedStateMachine):
    """The same puts into the store and into dicts and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(max_series=MAX_SERIES, history_points=POINTS, history_series=MAX_SERIES)
        self.at_s = 0.0
        self.batches: dict[str, tuple[float, dict[tuple[Metric, tuple[str, ...]], float]]] = {}
        self.rings: dict[tuple[Metric, tuple[str, ...]], deque[tuple[float, float]]] = {}
        self.counts: Counter[str] = Counter()
        self.given: dict[str, list[Sample]] = {}

    def forget(self) -> None:
        alive = {key for _, batch in self.batches.values() for key in batch}
        self.rings = {key: ring for key, ring in self.rings.items() if key in alive}

    @rule(owner=st.sampled_from("xyz"), batch=samples, ttl_s=st.sampled_from([0.0, 1.0, 3.0]))
    def put(self, owner: str, batch: list[Sample], ttl_s: float) -> None:
        self.store.put(owner, self.at_s, iter(batch), ttl_s)
        self.given[owner] = batch
        self.batches = {name: kept for name, kept in self.batches.items() if self.at_s <= kept[0]}
        self.forget()
        self.batches.pop(owner, None)
        others = [key for _, kept in self.batches.values() for key in kept]
        taken: dict[tuple[Metric, tuple[str, ...]], float] = {}
        for family, labels, value in batch:
            assert isinstance(value, float)
            everything = [*others, *taken]
            if not math.isfinite(value):
                self.counts["malformed"] += 1
            elif (family, labels) in everything:
                self.counts["duplicate"] += 1
            elif len([key for key in everything if key[0] is family]) >= family.budget or len(everything) >= MAX_SERIES:
                self.counts["budget"] += 1
            else:
                taken[family, labels] = value
        self.batches[owner] = (self.at_s + ttl_s, taken)
        self.forget()
        for key, value in taken.items():
            ring = self.rings.setdefault(key, deque(maxlen=POINTS))
            if not ring or ring[-1][0] < self.at_s:
                ring.append((self.at_s, value))

    @rule(owner=st.sampled_from("xyz"), value=st.sampled_from([3.0, 4.0, math.inf]))
    def put_the_same_series_again(self, owner: str, value: float) -> None:
        self.put(owner, [sample._replace(value=value) for sample in self.given.get(owner, [])], 3.0)

    @rule(owner=st.sampled_from("xyz"))
    def drop(self, owner: str) -> None:
        self.store.drop(owner)
        self.batches.pop(owner, None)
        self.forget()

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def wait(self, seconds: float) -> None:
        self.at_s += seconds

    @invariant()
    def exposes_the_same(self) -> None:
        view = self.store.view(self.at_s)
        expected = {
            owner: [Sample(*key, value) for key, value in batch.items()]
            for owner, (expires_at_s, batch) in sorted(self.batches.items())
            if self.at_s <= expires_at_s
        }
        assert {owner: list(batch.samples) for owner, batch in view.batches.items()} == expected

    @invariant()
    def remembers_the_same(self) -> None:
        view = self.store.view(self.at_s)
        for family in FAMILIES:
            for label in "abcd":
                times, values = view.window(family, (label,), self.at_s - 2.0)
                ring = self.rings.get((family, (label,)), ())
                assert list(zip(times, values, strict=True)) == [p for p in ring if p[0] >= self.at_s - 2.0]

    @invariant()
    def counts_the_same(self) -> None:
        counted = own(self.store, self.at_s)
        assert counted[SERIES_DROPPED.stem, ("budget",)] == self.counts["budget"]
        assert counted[SERIES_DROPPED.stem, ("duplicate",)] == self.counts["duplicate"]
        assert counted[HISTORY_SERIES.stem, ("kept",)] == len(self.rings)
        malformed = [v for (stem, _), v in counted.items() if stem == SAMPLES_REJECTED.stem]
        assert sum(malformed) == self.counts["malformed"]


StoreAgainstLists.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestStoreAgainstLists = StoreAgainstLists.TestCase


def test_what_hardly_changes_and_gpumons_own_keep_no_past() -> None:
    store = Store()
    labels = ("0", "GPU-a")
    for at_s in (1.0, 2.0):
        store.put(
            "gpu",
            at_s,
            [
                Sample(catalogue.GPU_POWER_LIMIT, (*labels, "enforced"), 700.0),
                Sample(catalogue.SOURCE_UP, ("host",), 1.0),
                Sample(catalogue.GPU_SM_ACTIVE, labels, at_s / 10),
            ],
            10.0,
        )
    view = store.view(2.0)
    assert view.window(catalogue.GPU_SM_ACTIVE, labels, 0.0)[1].tolist() == [0.1, 0.2]
    assert view.window(catalogue.GPU_POWER_LIMIT, (*labels, "enforced"), 0.0)[1].tolist() == []
    assert view.window(catalogue.SOURCE_UP, ("host",), 0.0)[1].tolist() == []
    assert view.value(catalogue.GPU_POWER_LIMIT, (*labels, "enforced")) == 700.0
