"""Requests as metrics: every number against a plain count, every bad value left out, every label bounded."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.catalogue import CONCURRENCY_BUCKETS, CONTEXT_BUCKETS, GROUPS, METRICS
from gpumon.export.prometheus import Exposition
from gpumon.export.text import Format
from gpumon.model import Binding, Distribution, Kind, Metric, Reason, Rejection, RequestRecord, Sample
from gpumon.requests.statistics import RequestStatistics
from gpumon.requests.windows import Ladder, Signal
from gpumon.store import Store
from tests.golden_file import golden
from tests.requests.records import AT_S, START_NS, request

MS = 1_000_000


def statistics_of(*records: RequestRecord, **told: Any) -> RequestStatistics:
    statistics = RequestStatistics(**told)
    for record in records:
        statistics.add(record, AT_S)
    return statistics


def value(statistics: RequestStatistics, metric: Metric, *labels: str) -> Any:
    found = [s.value for s in statistics.samples(AT_S) if s.metric is metric and s.labels == labels]
    assert len(found) == 1, labels
    return found[0]


def distribution(statistics: RequestStatistics, metric: Metric, *more: str) -> Distribution:
    found = value(statistics, metric, "vllm", "m", *more)
    assert isinstance(found, Distribution)
    return found


def observations(statistics: RequestStatistics, metric: Metric, *more: str) -> int:
    return sum(distribution(statistics, metric, *more).counts)


def context_of(tokens: int) -> str:
    return CONTEXT_BUCKETS[min(9, max(0, tokens.bit_length() - 10))]


def concurrency_of(count: int) -> str:
    return CONCURRENCY_BUCKETS[min(6, max(1, count).bit_length() - 1)]


# --- against a plain model ------------------------------------------------------------------------------------------


class Plain:
    """The same histograms, one observation at a time."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[str, ...], int]] = Counter()
        self.sums_ns: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def observe(self, metric: Metric, labels: tuple[str, ...], seconds: float, ns: float, weight: int = 1) -> None:
        self.counts[metric.stem, labels, bisect_left(metric.bounds, seconds)] += weight
        self.sums_ns[metric.stem, labels] += round(ns)

    def add(self, record: RequestRecord) -> None:
        names = (record.server, record.model)
        for metric, seconds in (
            (catalogue.REQUEST_QUEUE, record.queue_s),
            (catalogue.REQUEST_PREFILL, record.prefill_s),
            (catalogue.REQUEST_DECODE, record.decode_s),
            (catalogue.KV_SYNC, record.kv_sync_s),
            (catalogue.REQUEST_FIRST_TOKEN, record.time_to_first_token_s),
        ):
            if seconds is not None and math.isfinite(seconds) and 0 <= seconds <= 3600:
                self.observe(metric, names, seconds, seconds * 1e9)
                if metric is catalogue.REQUEST_FIRST_TOKEN:
                    by = (*names, concurrency_of(record.concurrency))
                    self.observe(catalogue.REQUEST_FIRST_TOKEN_BY_CONCURRENCY, by, seconds, seconds * 1e9)
                    if record.prompt_tokens is not None:
                        by = (*names, context_of(record.prompt_tokens))
                        self.observe(catalogue.REQUEST_FIRST_TOKEN_BY_CONTEXT, by, seconds, seconds * 1e9)
        lasted = (record.end_ns - record.start_ns) / 1e9
        if record.outcome != "incomplete" and 0 <= lasted <= 3600:
            self.observe(catalogue.REQUEST_DURATION, names, lasted, lasted * 1e9)
        if record.token_ns is not None:
            self._tokens(record, names)

    def _tokens(self, record: RequestRecord, names: tuple[str, str]) -> None:
        assert record.token_ns is not None
        times = record.token_ns.tolist()
        for before, time in pairwise(times):
            if 0 <= time - before <= 3600e9:
                self.observe(catalogue.DECODE_STEP, names, (time - before) / 1e9, time - before)
        if not record.per_token:
            return
        counts = [1] * len(times) if record.token_counts is None else record.token_counts.tolist()
        made, last = 0, None
        for time, count in zip(times, counts, strict=True):
            if not count:
                continue
            if last is not None and 0 <= time - last <= 3600e9:
                gap = time - last
                seconds = gap / (1e9 * count)
                self.observe(catalogue.INTER_TOKEN, names, seconds, gap, count)
                by = (*names, concurrency_of(record.concurrency))
                self.observe(catalogue.INTER_TOKEN_BY_CONCURRENCY, by, seconds, gap, count)
                if record.prompt_tokens is not None:
                    by = (*names, context_of(record.prompt_tokens + made))
                    self.observe(catalogue.INTER_TOKEN_BY_CONTEXT, by, seconds, gap, count)
            made += count
            last = time


duration = (
    st.none() | st.floats(allow_nan=True) | st.floats(0, 10) | st.sampled_from([0.0, -1.0, 0.0005, 3600.0, 3601.0])
)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    told: dict[str, Any] = {
        field: draw(duration) for field in ("queue_s", "prefill_s", "decode_s", "kv_sync_s", "time_to_first_token_s")
    }
    gaps = draw(st.none() | st.lists(st.integers(-MS, 50 * MS) | st.sampled_from([500_000, 4000 * 10**9]), max_size=9))
    if gaps is not None and draw(st.booleans()):
        told["counts"] = draw(st.lists(st.integers(0, 5), min_size=len(gaps) + 1, max_size=len(gaps) + 1))
    if gaps is not None and draw(st.integers(0, 4)) == 0:
        told["per_token"] = False
    told["model"] = draw(st.sampled_from(["m", "n"]))
    told["concurrency"] = draw(st.integers(0, 200))
    told["prompt_tokens"] = draw(st.none() | st.integers(0, 300_000))
    told["outcome"] = draw(st.sampled_from(["ok", "error", "aborted", "incomplete"]))
    return request(gaps, **told)


@given(st.lists(records(), max_size=12), st.integers(1, 4))
@settings(deadline=None)
def test_histograms_are_what_a_plain_count_gives(given_records: list[RequestRecord], every: int) -> None:
    statistics, plain = RequestStatistics(), Plain()
    for i, record in enumerate(given_records):
        statistics.add(record, AT_S)
        plain.add(record)
        if i % every == 0:
            statistics.samples(AT_S)  # whoever asks in between changes nothing
    found: Counter[tuple[str, tuple[str, ...], int]] = Counter()
    sums: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for metric, labels, told in statistics.samples(AT_S):
        if isinstance(told, Distribution):
            found.update({(metric.stem, labels, i): count for i, count in enumerate(told.counts) if count})
            sums[metric.stem, labels] += round(told.total * 1e9)
    assert found == plain.counts
    assert {key: total for key, total in sums.items() if total} == pytest.approx(
        {key: total for key, total in plain.sums_ns.items() if total}, abs=20_000
    )


@given(st.lists(records(), max_size=8))
@settings(deadline=None, max_examples=40)
def test_families_by_concurrency_and_context_add_up(given_records: list[RequestRecord]) -> None:
    told = statistics_of(*[record for record in given_records if record.prompt_tokens is not None])
    sums: dict[tuple[Metric, str], Counter[int]] = {}
    for metric, labels, value_ in told.samples(AT_S):
        if isinstance(value_, Distribution):
            sums.setdefault((metric, labels[1]), Counter()).update(dict(enumerate(value_.counts)))
    for whole, *parts in (
        (catalogue.INTER_TOKEN, catalogue.INTER_TOKEN_BY_CONCURRENCY, catalogue.INTER_TOKEN_BY_CONTEXT),
        (
            catalogue.REQUEST_FIRST_TOKEN,
            catalogue.REQUEST_FIRST_TOKEN_BY_CONCURRENCY,
            catalogue.REQUEST_FIRST_TOKEN_BY_CONTEXT,
        ),
    ):
        for part in parts:
            for model in ("m", "n"):
                assert sums.get((part, model)) == sums.get((whole, model))


# --- what is counted where ------------------------------------------------------------------------------------------


def test_a_step_of_k_tokens_is_k_latencies_of_a_kth_and_one_undivided_step() -> None:
    told = statistics_of(request([40 * MS, 10 * MS], counts=[1, 4, 1]))
    tokens, steps = distribution(told, catalogue.INTER_TOKEN), distribution(told, catalogue.DECODE_STEP)
    ten, forty = bisect_left(catalogue.INTER_TOKEN_BOUNDS, 0.01), bisect_left(catalogue.INTER_TOKEN_BOUNDS, 0.04)
    assert (tokens.counts[ten], sum(tokens.counts), tokens.total) == (5, 5, 0.05)
    assert (steps.counts[ten], steps.counts[forty], sum(steps.counts), steps.total) == (1, 1, 2, 0.05)


def test_steps_of_unknown_size_have_no_inter_token_latency() -> None:
    told = statistics_of(request([40 * MS, 10 * MS], per_token=False))
    assert observations(told, catalogue.INTER_TOKEN) == 0
    assert observations(told, catalogue.DECODE_STEP) == 2
    assert value(told, catalogue.TOKENS, "vllm", "m", "completion") == 0


def test_a_request_of_one_token_has_a_first_token_and_no_latency_between() -> None:
    told = statistics_of(request([]))
    assert observations(told, catalogue.REQUEST_FIRST_TOKEN) == 1
    assert observations(told, catalogue.INTER_TOKEN) == observations(told, catalogue.DECODE_STEP) == 0
    assert value(told, catalogue.TOKENS, "vllm", "m", "completion") == 1


def test_a_request_without_token_times_counts_with_what_it_has() -> None:
    told = statistics_of(request(None, queue_s=0.0, completion_tokens=7, prompt_tokens=3, cached_tokens=2))
    assert observations(told, catalogue.REQUEST_DURATION) == 1
    assert observations(told, catalogue.REQUEST_FIRST_TOKEN) == 0
    assert distribution(told, catalogue.REQUEST_QUEUE).counts[0] == 1
    assert [value(told, catalogue.TOKENS, "vllm", "m", kind) for kind in catalogue.TOKENS.values] == [3, 7, 2]


def test_tokens_move_up_the_ladder_of_context_as_they_are_made() -> None:
    told = statistics_of(request([MS] * 100, prompt_tokens=1000))
    # Token 24 of those after the first is the first that sees 1,024 tokens before it.
    assert observations(told, catalogue.INTER_TOKEN_BY_CONTEXT, "<1k") == 23
    assert observations(told, catalogue.INTER_TOKEN_BY_CONTEXT, "1k") == 77
    assert observations(told, catalogue.REQUEST_FIRST_TOKEN_BY_CONTEXT, "<1k") == 1


def test_concurrency_is_that_of_the_arrival_unless_somebody_watched() -> None:
    record = request([1000 * MS] * 20, concurrency=40)  # tokens at 5980.0 (arrival 5979.9) to 6000
    told = RequestStatistics()
    told.observe_running("vllm", "m", 0, 5979.0)  # cannot be true while this one was open
    told.observe_running("vllm", "m", 3, 5990.5)
    told.add(record, AT_S)
    assert observations(told, catalogue.INTER_TOKEN_BY_CONCURRENCY, "2-3") == 5
    assert observations(told, catalogue.INTER_TOKEN_BY_CONCURRENCY, "32-63") == 15
    assert observations(told, catalogue.REQUEST_FIRST_TOKEN_BY_CONCURRENCY, "32-63") == 1


def test_many_observations_of_running_requests_keep_the_newest() -> None:
    told = RequestStatistics()
    for i in range(5000):
        told.observe_running("vllm", "m", 1 + i % 2, 1000.0 + i)
    told.add(request([1000 * MS] * 3, concurrency=40), AT_S)
    # The tokens are at 5998 + 0.0, 1.0, 2.0 s; observations end at 5999.
    assert observations(told, catalogue.INTER_TOKEN_BY_CONCURRENCY, "1") == 1
    assert observations(told, catalogue.INTER_TOKEN_BY_CONCURRENCY, "2-3") == 2


@pytest.mark.parametrize("outcome", catalogue.REQUEST_OUTCOMES)
def test_every_outcome_is_counted_and_only_known_ends_have_a_duration(outcome: str) -> None:
    told = statistics_of(request([MS], outcome=outcome))
    for name in catalogue.REQUEST_OUTCOMES:
        assert value(told, catalogue.REQUESTS, "vllm", "m", name) == (name == outcome)
    assert observations(told, catalogue.REQUEST_DURATION) == (outcome != "incomplete")


def test_requests_without_gpus_are_counted_by_reason() -> None:
    bound = Binding(how="resource", gpus=())
    told = statistics_of(*[request(None, binding=b) for b in (bound, Binding(unbound="no_gpu"), Binding())])
    assert (
        value(told, catalogue.REQUESTS_UNBOUND, "no_gpu") == value(told, catalogue.REQUESTS_UNBOUND, "no_identity") == 1
    )
    assert value(told, catalogue.REQUESTS_UNBOUND, "pending") == 0


# --- what cannot be true --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-9, 3600.1, -182345.25])
def test_a_duration_that_cannot_be_true_is_left_out_and_told(bad: float) -> None:
    told = statistics_of(request([MS], time_to_first_token_s=bad, queue_s=bad, decode_s=0.5))
    rejections = [item for item in told.read(AT_S) if isinstance(item, Rejection)]
    assert rejections == [
        Rejection("time_to_first_token", Reason.OUT_OF_RANGE),
        Rejection("queue", Reason.OUT_OF_RANGE),
    ]
    assert observations(told, catalogue.REQUEST_FIRST_TOKEN) == observations(told, catalogue.REQUEST_QUEUE) == 0
    assert observations(told, catalogue.REQUEST_DECODE) == observations(told, catalogue.INTER_TOKEN) == 1
    assert [item for item in told.read(AT_S) if isinstance(item, Rejection)] == []


def test_times_that_run_backwards_cost_one_gap_each_and_one_rejection() -> None:
    told = statistics_of(request([MS, -5, MS, -5, MS]))
    assert [item for item in told.read(AT_S) if isinstance(item, Rejection)] == [
        Rejection("token_times", Reason.OUT_OF_RANGE)
    ]
    assert observations(told, catalogue.INTER_TOKEN) == 3


@pytest.mark.parametrize("bad", [-1, 1 << 31, 1 << 70])
def test_a_number_of_tokens_that_cannot_be_true_is_left_out_and_told(bad: int) -> None:
    told = statistics_of(request([MS], prompt_tokens=bad, completion_tokens=5))
    assert [item for item in told.read(AT_S) if isinstance(item, Rejection)] == [
        Rejection("prompt_tokens", Reason.OUT_OF_RANGE)
    ]
    assert value(told, catalogue.TOKENS, "vllm", "m", "prompt") == 0
    assert value(told, catalogue.TOKENS, "vllm", "m", "completion") == 5


def test_a_span_without_ends_has_no_duration() -> None:
    told = statistics_of(request(None, start_ns=0, end_ns=START_NS), request(None, start_ns=START_NS, end_ns=0))
    assert observations(told, catalogue.REQUEST_DURATION) == 0


# --- size -----------------------------------------------------------------------------------------------------------


def test_a_million_tokens_in_one_request_are_a_million_tokens() -> None:
    told = statistics_of(request(np.full(999_999, 2 * MS), prompt_tokens=10))  # type: ignore[arg-type]
    assert observations(told, catalogue.INTER_TOKEN) == 999_999
    assert observations(told, catalogue.INTER_TOKEN_BY_CONTEXT, "256k+") == 999_999 - (262_144 - 10) + 1
    assert value(told, catalogue.TOKENS, "vllm", "m", "completion") == 1_000_000


def test_a_flood_of_models_and_servers_ends_in_other() -> None:
    told = RequestStatistics(max_models=4, max_tenants=2)
    for i in range(100_000):
        told.add(request(None, model=f"model-{i}", server=f"server-{i % 300}", tenant=f"tenant-{i}"), AT_S)
    samples = told.samples(AT_S)
    requests = {s.labels[:2]: s.value for s in samples if s.metric is catalogue.REQUESTS and s.labels[2] == "ok"}
    assert len(requests) <= 4 + 8 + 1
    assert sum(requests.values()) == 100_000  # type: ignore[arg-type]
    assert requests["other", "other"] > 90_000  # type: ignore[operator]
    folded = {s.labels[0]: s.value for s in samples if s.metric is catalogue.LABELS_FOLDED}
    assert folded["tenant"] == 99_998
    assert folded["server"] + folded["model"] == 100_000 - 4  # type: ignore[operator]
    assert all(len(label) <= 256 for s in samples for label in s.labels)


def test_a_model_that_takes_an_idle_ones_place_starts_at_zero() -> None:
    told = RequestStatistics(max_models=1, idle_s=100.0)
    told.add(request([MS], model="old"), AT_S)
    told.add(request([MS], model="new"), AT_S + 50)
    told.add(request([MS, MS], model="new"), AT_S + 100)
    ok = {s.labels[:2]: s.value for s in told.samples(AT_S) if s.metric is catalogue.REQUESTS and s.labels[2] == "ok"}
    assert ok == {("vllm", "new"): 1, ("vllm", "other"): 1}
    assert sum(value(told, catalogue.INTER_TOKEN, "vllm", "new").counts) == 2
    assert {cell.model for cell in told.cells(0.0, AT_S + 100, None)} == {"new", "other"}


def test_the_store_takes_every_sample_of_every_series_within_the_budgets() -> None:
    told = RequestStatistics(max_models=32, max_tenants=256, window_rows=1)
    for i in range(400):
        told.add(request(None, model=f"m{i % 40}", server=f"s{i % 9}", tenant=f"t{i}"), AT_S)
    told.set_open({("s1", "m1"): 3}, AT_S)
    store = Store(max_series=1_000_000)
    samples = told.samples(AT_S)
    store.put("requests", AT_S, samples, 10.0)
    assert len(list(store.view(AT_S))) == len(samples)
    assert all(s.value == 0 for s in store.self_samples(AT_S) if s.metric is catalogue.SERIES_DROPPED)


# --- life of series -------------------------------------------------------------------------------------------------


def test_a_server_that_is_known_has_every_family_at_zero() -> None:
    told = RequestStatistics()
    told.set_open({("vllm", "m"): 0}, AT_S)
    samples = told.samples(AT_S)
    named = {s.metric for s in samples if s.labels[:2] == ("vllm", "m")}
    assert named == {metric for metric in GROUPS["requests"] if metric.labels[:2] == ("server", "model")}
    assert all(sum(s.value.counts) == 0 for s in samples if isinstance(s.value, Distribution))
    assert len([s for s in samples if s.metric is catalogue.INTER_TOKEN_BY_CONTEXT]) == len(CONTEXT_BUCKETS)


def test_nothing_is_told_of_servers_when_none_is_known() -> None:
    assert {s.metric for s in RequestStatistics().samples(AT_S)} == {
        catalogue.LABELS_FOLDED,
        catalogue.REQUESTS_UNBOUND,
        catalogue.WINDOW_DROPPED,
    }


def test_open_requests_are_told_while_somebody_tells_and_only_where() -> None:
    told = statistics_of(request(None, model="quiet"))
    told.set_open({("vllm", "m"): 3, ("sglang", "m"): -1}, AT_S)

    def open_now(at_s: float) -> dict[tuple[str, ...], float]:
        return {s.labels: s.value for s in told.samples(at_s) if s.metric is catalogue.REQUESTS_OPEN}  # type: ignore[misc]

    assert open_now(AT_S + 30) == {("vllm", "m"): 3, ("sglang", "m"): 0}
    assert open_now(AT_S + 31) == {}
    told.set_open({("sglang", "m"): 2}, AT_S + 40)
    assert open_now(AT_S + 40) == {("vllm", "m"): 0, ("sglang", "m"): 2}


def test_what_did_not_change_is_the_same_object_as_before() -> None:
    told = statistics_of(request([MS]), request([MS], model="n"))

    def distributions() -> dict[tuple[Metric, tuple[str, ...]], Distribution]:
        return {s[:2]: s.value for s in told.samples(AT_S) if isinstance(s.value, Distribution)}

    before = distributions()
    told.add(request([MS]), AT_S)
    changed = [key for key, now in distributions().items() if now is not before[key]]
    assert changed
    assert {labels[1] for _, labels in changed} == {"m"}


# --- exemplars ------------------------------------------------------------------------------------------------------


def test_exemplars_are_the_newest_of_their_bucket_and_lie_in_it() -> None:
    told = RequestStatistics(to_unix=lambda at_s: at_s + 1e6)
    told.add(request([12 * MS, 30 * MS], trace=1), AT_S)
    told.add(request([13 * MS], trace=2), AT_S + 1)
    told.add(request([14 * MS], trace=0), AT_S + 2)  # no trace
    for metric in (catalogue.INTER_TOKEN, catalogue.REQUEST_FIRST_TOKEN, catalogue.REQUEST_DURATION):
        found = distribution(told, metric)
        assert len(found.exemplars) == len(found.counts)
        for i, exemplar in enumerate(found.exemplars):
            assert (exemplar is None) == (found.counts[i] == 0)
            if exemplar is not None:
                assert bisect_left(metric.bounds, exemplar.value) == i
    tokens = distribution(told, catalogue.INTER_TOKEN)
    told_of = {e.value: (int(e.trace_id, 16), e.unix_s) for e in tokens.exemplars if e is not None}
    assert told_of == {0.013: (2, AT_S + 1 + 1e6), 0.03: (1, AT_S + 1e6)}


def test_an_exemplar_keeps_its_time_when_the_wall_clock_steps() -> None:
    offset = [1e6]
    told = RequestStatistics(to_unix=lambda at_s: at_s + offset[0])
    told.add(request([12 * MS]), AT_S)
    before = distribution(told, catalogue.INTER_TOKEN).exemplars
    offset[0] = 5e6
    told.add(request([100 * MS]), AT_S)
    after = distribution(told, catalogue.INTER_TOKEN).exemplars
    assert [e for e in after if e in before and e is not None] == [e for e in before if e is not None]


def test_requests_without_a_trace_leave_no_exemplars() -> None:
    told = statistics_of(request([MS], trace=0))
    assert distribution(told, catalogue.INTER_TOKEN).exemplars == ()


@pytest.mark.parametrize("form", list(Format))
def test_the_page_matches_its_golden_file(form: Format) -> None:
    told = RequestStatistics(max_tenants=2, to_unix=lambda at_s: at_s + 1_800_000_000.0)
    told.add(request([12 * MS, 40 * MS], counts=[1, 1, 4], trace=0xABC, prompt_tokens=1500, concurrency=5), AT_S)
    told.add(request([], trace=2, tenant="a", outcome="aborted", queue_s=0.25), AT_S)
    told.set_open({("vllm", "m"): 2}, AT_S)
    store = Store(max_series=100_000)
    store.put("requests", AT_S, told.samples(AT_S), 10.0)
    page = Exposition(
        [m for m in METRICS if m.labels[:2] != ("server", "model") or not m.values or m.kind is Kind.COUNTER]
    )
    name = "requests.prom" if form is Format.TEXT else "requests.om"
    golden(name, page.render(store.view(AT_S)).body(form))


# --- windows --------------------------------------------------------------------------------------------------------


def test_tokens_are_in_the_minute_in_which_they_were_made() -> None:
    record = request([20_000 * MS] * 6, prompt_tokens=100)  # first token at 5880, then every 20 s to 6000
    told = statistics_of(record)
    cells = [cell for cell in told.cells(0.0, AT_S, None) if cell.signal is Signal.INTER_TOKEN]
    assert [(cell.start_s, cell.observations) for cell in cells] == [(5880.0, 2), (5940.0, 3), (6000.0, 1)]
    assert all(cell.p50_s == pytest.approx(20.0, rel=0.022) for cell in cells)
    (first,) = [cell for cell in told.cells(0.0, AT_S, None) if cell.signal is Signal.FIRST_TOKEN]
    assert (first.start_s, first.observations, first.bucket) == (5880.0, 1, "")


def test_cells_are_by_bucket() -> None:
    told = statistics_of(
        request([10 * MS] * 50, concurrency=1, prompt_tokens=5),
        request([30 * MS] * 50, concurrency=9, prompt_tokens=9000),
    )
    cells = [cell for cell in told.cells(0.0, AT_S, Ladder.CONCURRENCY) if cell.signal is Signal.INTER_TOKEN]
    assert {cell.bucket for cell in cells} == {"1", "8-15"}
    cells = [cell for cell in told.cells(0.0, AT_S, Ladder.CONTEXT) if cell.signal is Signal.INTER_TOKEN]
    assert {(cell.bucket, round(cell.p99_s, 2)) for cell in cells} == {("<1k", 0.01), ("8k", 0.03)}
    whole = [cell for cell in told.cells(0.0, AT_S, None) if cell.signal is Signal.INTER_TOKEN]
    assert sum(cell.observations for cell in whole) == 100
    rows = told.rows(0.0, AT_S, Ladder.CONTEXT)
    assert {names for names, _ in rows} == {("vllm", "m")}
    assert sum(int(row.counts.sum()) for _, row in rows) == 102


def test_a_clock_ahead_of_ours_puts_nothing_into_the_future() -> None:
    told = statistics_of(request([MS] * 5, arrived_s=AT_S + 86_400))
    assert {cell.start_s for cell in told.cells(0.0, AT_S, None)} == {AT_S - AT_S % 60, AT_S - 60} & {
        cell.start_s for cell in told.cells(0.0, AT_S, None)
    }
    assert max(cell.start_s for cell in told.cells(0.0, AT_S, None)) <= AT_S


def test_requests_of_yesterday_are_counted_and_in_no_window() -> None:
    told = statistics_of(request([MS]), request([MS] * 5, arrived_s=AT_S - 5000))
    assert observations(told, catalogue.INTER_TOKEN) == 6
    assert sum(cell.observations for cell in told.cells(0.0, AT_S, None)) == 2
    assert value(told, catalogue.WINDOW_DROPPED, "late") == 6


def test_an_hour_later_the_windows_are_empty_and_the_counters_are_not() -> None:
    told = statistics_of(request([MS]))
    assert told.cells(0.0, AT_S + 3700, None) == []
    assert observations(told, catalogue.INTER_TOKEN) == 1


def test_the_same_records_at_the_same_times_give_the_same_samples() -> None:
    def run(asked: range) -> list[Sample]:
        told = RequestStatistics(max_models=3, idle_s=20.0)
        for i in range(300):
            told.add(request([MS * (1 + i % 7)] * (i % 50), model=f"m{i % 5}", trace=i, concurrency=i), AT_S + i)
            if i in asked:
                told.samples(AT_S + i)
        return told.samples(AT_S + 300)

    assert run(range(0)) == run(range(300)) == run(range(0, 300, 7))
