"""The log of explained requests: what a row holds, and that it stays as large as it is."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain import request_log
from gpumon.explain.causes import INDEX
from gpumon.explain.dimensions import DIMENSIONS
from gpumon.explain.request_log import RequestLog
from gpumon.explain.request_rows import OTHER_GROUP, PARAMETERS, Rows, row_type
from gpumon.explain.signs import Fact
from gpumon.model import Unit
from tests.explain.diagnosis.requests import request, rows_of
from tests.explained import explained

CLOCK = Fact("sm_clock", 1.005e9, Unit.HERTZ, 1.41e9)


def full_row() -> Rows:
    return rows_of(
        [
            request(
                100.0,
                3.0,
                first_s=1.0,
                tokens=201,
                prompt=4096,
                slow_first={"queueing": 0.25},
                slow={"thermal_throttle": 0.5, "unexplained": 0.125},
                fact=CLOCK,
                gaps_s=[0.01] * 18 + [0.02, 0.5],
                signals=[0.5, math.nan, math.inf],
                number=0xABC,
                tenant="acme",
                prompt_hash="h1",
                parameters={"temperature": 0.5, "top_p": 0.25},
                evaluations={"faithful": 0.75, "broken": math.nan},
                concurrency=7,
                queue_s=0.5,
                cached_tokens=512,
                request_id="cmpl-1",
                span_id=b"\1" * 8,
                outcome="aborted",
            )
        ],
        n_signals=3,
    )


def test_a_row_holds_what_was_told_of_a_request() -> None:
    rows = full_row()
    numbers = [name for name in row_type(3).names or () if rows.table[name].dtype.kind in "if"]
    single = {name: float(rows.column(name)[0]) for name in numbers if rows.table[name].ndim == 1}
    assert single == pytest.approx(
        {
            "start_s": 100.0,
            "end_s": 103.0,
            "first_token_s": 1.0,
            "queue_s": 0.5,
            "prefill_s": math.nan,
            "decode_s": 2.0,
            "prompt_tokens": 4096,
            "completion_tokens": 201,
            "cached_tokens": 512,
            "tokens_per_s": 100.0,
            "gap_mean_s": 0.035,
            "gap_p95_s": 0.02,
            "gap_max_s": 0.5,
            "concurrency": 7,
        },
        nan_ok=True,
    )
    assert (rows.trace_id(0), rows.span_id(0), rows.request_id(0)) == (f"{0xABC:032x}", "01" * 8, "cmpl-1")
    assert rows.groups[rows.index("group")[0]].gpus == ("GPU-0",)
    assert rows.tenants[rows.index("tenant")[0]] == "acme"
    assert rows.prompts[rows.index("prompt")[0]] == "h1"
    assert rows.parameter_names() == ("temperature", "top_p")
    assert rows.parameter("top_p")[0] == 0.25
    assert rows.score_names() == ("faithful",)
    assert rows.score("faithful")[0] == 0.75
    assert rows.signals.tolist()[0] == pytest.approx([0.5, math.nan, math.nan], nan_ok=True)
    assert rows.index("outcome")[0] == 2


def test_excess_and_causes_are_told_by_phase() -> None:
    rows = full_row()
    assert rows.column("expected_s")[0] == pytest.approx([0.75, 1.375])
    assert rows.column("excess_s")[0] == pytest.approx([0.25, 0.625])
    told = {(phase, CAUSES[cause]): s for (phase, cause), s in np.ndenumerate(rows.column("cause_s")[0]) if s}
    assert told == {(0, "queueing"): 0.25, (1, "thermal_throttle"): 0.5, (1, "unexplained"): 0.125}


def test_the_figure_behind_a_cause_is_that_of_the_request_that_lost_most_to_it() -> None:
    rows = rows_of(
        request(number=i, slow={"thermal_throttle": 0.1 * i}, fact=CLOCK._replace(observed=1e8 * i)) for i in (1, 3, 2)
    )
    found = rows.fact(INDEX["thermal_throttle"])
    assert found is not None
    assert (found.name, found.unit) == ("sm_clock", Unit.HERTZ)
    assert (found.observed, found.usual) == pytest.approx((3e8, 1.41e9))
    assert rows.fact(INDEX["pcie"]) is None


def test_of_a_request_that_tells_nothing_nothing_is_known() -> None:
    rows = rows_of([request(first_s=None, tokens=None, prompt=None, is_expected=False, gpus=())])
    names = ("first_token_s", "queue_s", "prefill_s", "decode_s", "prompt_tokens", "completion_tokens", "tokens_per_s")
    assert all(math.isnan(rows.column(name)[0]) for name in (*names, "gap_mean_s", "gap_p95_s", "gap_max_s"))
    assert np.isnan(rows.column("expected_s")).all()
    assert not rows.column("excess_s").any()
    assert rows.parameter_names() == rows.score_names() == ()
    assert np.isnan(rows.parameter("temperature")).all()
    assert np.isnan(rows.score("faithful")).all()
    assert rows.span_id(0) == ""


def test_the_oldest_rows_make_room_and_the_order_is_that_of_coming() -> None:
    log = RequestLog(3, n_signals=0)
    for i in range(5):
        assert len(log) == min(i, 3)
        log.append(request(float(i), 1.0, number=i))
    assert [log.since(0.0).trace_id(row)[-1] for row in range(3)] == ["2", "3", "4"]
    assert log.since(4.5).start_s.tolist() == [4.0]
    assert len(log.since(100.0)) == 0
    assert log.dropped_until_s == 2.0


def test_a_log_that_had_to_drop_nothing_says_so() -> None:
    log = RequestLog(2, n_signals=0)
    for i in range(2):
        log.append(request(float(i), 1.0))
        assert log.dropped_until_s is None


def test_only_one_server_or_model_when_asked() -> None:
    log = RequestLog(8, n_signals=0)
    for server, model in (("vllm", "a"), ("sglang", "a"), ("vllm", "b")):
        log.append(request(server=server, model=model))
    assert len(log.since(0.0, model="a")) == 2
    assert len(log.since(0.0, server="vllm")) == 2
    assert len(log.since(0.0, server="vllm", model="a")) == 1
    assert len(log.since(0.0, model="c")) == 0


def test_rows_are_a_copy_that_cannot_be_changed() -> None:
    log = RequestLog(1, n_signals=0)
    log.append(request(tenant="first"))
    rows = log.since(0.0)
    log.append(request(tenant="second"))
    assert rows.tenants[rows.index("tenant")[0]] == "first"
    with pytest.raises(ValueError, match="read-only"):
        rows.table["start_s"][0] = 1.0


def test_names_beyond_the_table_are_other_until_rows_let_go_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "TENANTS", 2)
    log = RequestLog(3, n_signals=0)
    told = []
    for tenant in ("a", "b", "c", "c", "c", "d"):
        log.append(request(tenant=tenant))
        rows = log.since(0.0)
        told.append([rows.tenants[place] for place in rows.index("tenant")])
    assert told[2:] == [["a", "b", "other"], ["b", "other", "c"], ["other", "c", "c"], ["c", "c", "d"]]


def test_more_groups_prompts_parameters_and_scores_than_there_is_room_for_lose_only_their_names() -> None:
    log = RequestLog(5000, n_signals=0)
    for i in range(4500):
        log.append(
            request(model=f"m{i}", prompt_hash=f"h{i}", parameters={f"p{i}": 1.0}, evaluations={f"e{i}": 1.0, "e": 0.5})
        )
    rows = log.since(0.0)
    assert len(rows) == 4500
    assert [rows.groups[place] for place in rows.index("group")[-3:]] == [OTHER_GROUP] * 3
    assert rows.prompts[rows.index("prompt")[-1]] == "other"
    assert len(rows.parameter_names()) == PARAMETERS
    assert len(rows.score_names()) == request_log.SCORE_NAMES
    assert np.isfinite(rows.score("e")).sum() == 4500


def test_a_row_takes_about_half_a_kilobyte() -> None:
    assert row_type(40).itemsize < 600


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_figures_that_cannot_be_true_harm_nothing(value: float) -> None:
    plain = request(gaps_s=[0.1], signals=[0.0], evaluations={"e": value}, parameters={"p": value}, queue_s=value)
    broken = plain.decode._replace(excess_s=value, expected_s=value)
    huge = replace(plain.record, completion_tokens=10**30, prompt_tokens=-5, concurrency=10**30)
    log = RequestLog(4, n_signals=1)
    with np.errstate(over="ignore"):
        signals = np.array([value]).astype(np.float32)
    log.append(plain._replace(decode=broken, record=huge, signals=signals))
    rows = log.since(0.0)
    for name in row_type(1).names or ():
        if rows.table[name].dtype.kind == "f":
            assert not np.isinf(rows.table[name]).any(), name
    assert (rows.column("excess_s") >= 0).all()
    assert math.isnan(rows.column("completion_tokens")[0])
    assert math.isnan(rows.column("prompt_tokens")[0])


TEXT = st.text(max_size=80)
FIGURES = st.floats() | st.none()


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "tenant": TEXT,
                "prompt_hash": TEXT,
                "request_id": TEXT,
                "trace_id": st.binary(max_size=20),
                "span_id": st.binary(max_size=10),
                "queue_s": FIGURES,
                "prefill_s": FIGURES,
                "decode_s": FIGURES,
                "prompt_tokens": st.integers() | st.none(),
                "completion_tokens": st.integers() | st.none(),
                "concurrency": st.integers(),
                "parameters": st.dictionaries(TEXT, st.floats(), max_size=12),
                "evaluations": st.dictionaries(TEXT, st.floats(), max_size=6),
            }
        ),
        max_size=20,
    )
)
def test_whatever_comes_is_taken_and_names_are_those_given(told: list[dict[str, Any]]) -> None:
    log = RequestLog(7, n_signals=2)
    for fields in told:
        log.append(request(**fields))
    rows = log.since(float("-inf"))
    assert [rows.tenants[place] for place in rows.index("tenant")] == [fields["tenant"] for fields in told[-7:]]
    names = [sorted(n for n, v in fields["parameters"].items() if math.isfinite(v)) for fields in told[-7:]]
    if len({name for row in names for name in row}) <= PARAMETERS and len(told) <= 7:
        for row, expected in enumerate(names):
            assert [n for n in rows.parameter_names() if not math.isnan(rows.parameter(n)[row])] == expected


def test_others_may_ask_while_one_appends() -> None:
    log = RequestLog(64, n_signals=4)
    wrong: list[str] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            rows = log.since(0.0)
            starts = rows.start_s
            names = [rows.tenants[place] for place in rows.index("tenant")]
            wrong.extend(name for start, name in zip(starts.tolist(), names, strict=True) if name != f"t{int(start)}")

    thread = threading.Thread(target=ask)
    thread.start()
    for i in range(2000):
        log.append(request(float(i), 1.0, tenant=f"t{i}", signals=[1.0] * 4))
    done.set()
    thread.join()
    assert not wrong


def test_a_few_rows_can_be_chosen_without_a_copy_of_all() -> None:
    log = RequestLog(8, n_signals=len(DIMENSIONS))
    log.extend([explained(request_id=str(number), start_s=float(number)) for number in range(5)])
    seen: list[int] = []

    def last_two(rows: Rows) -> NDArray[np.intp]:
        seen.append(len(rows))
        return np.argsort(-rows.end_s)[:2]

    chosen = log.select(last_two)
    assert seen == [5]
    assert [chosen.request_id(row) for row in range(2)] == ["4", "3"]
    assert [chosen.groups[position].model for position in chosen.index("group")] == ["llama-70b"] * 2
    log.append(explained(request_id="9", start_s=9.0))
    assert [chosen.request_id(row) for row in range(2)] == ["4", "3"]
    with pytest.raises(ValueError, match="read-only"):
        chosen.table["end_s"] = 0.0


def test_wanted_rows_are_put_aside_when_the_ring_needs_their_place_and_are_in_lists_alone() -> None:
    wanted = {f"{number:032x}" for number in (3, 4, 9)}
    log = RequestLog(4, n_signals=0, is_wanted=lambda trace_id, _: trace_id in wanted, aside=2)
    for number in range(1, 21):
        log.extend([explained(trace_id=number.to_bytes(16), tenant=f"t{number}", start_s=float(number), token_s=None)])
    assert len(log) == 4
    newest = log.since(-math.inf)
    assert [newest.trace_id(row) for row in range(len(newest))] == [f"{number:032x}" for number in range(17, 21)]
    every = log.select(lambda rows: np.argsort(rows.start_s))
    assert [every.trace_id(row) for row in range(len(every))] == [
        f"{number:032x}" for number in (4, 9, 17, 18, 19, 20)
    ], "of three that were wanted there is room for two"
    assert [every.tenants[row] for row in every.index("tenant")] == ["t4", "t9", "t17", "t18", "t19", "t20"]
    assert log.dropped_until_s == pytest.approx(16.0 + 3.18)


@pytest.mark.parametrize("aside", [0, 1])
def test_names_of_rows_put_aside_are_used_no_longer_than_those(aside: int) -> None:
    log = RequestLog(2, n_signals=0, is_wanted=lambda _, span_id: span_id != "", aside=aside)
    for number in range(2 * request_log.TENANTS):
        span_id = number.to_bytes(8) if number % 3 == 0 else b""
        log.extend([explained(trace_id=number.to_bytes(16), span_id=span_id, tenant=f"t{number}", token_s=None)])
    rows = log.select(lambda rows: np.arange(len(rows)))
    assert len(rows) == 2 + aside
    assert "other" not in [rows.tenants[row] for row in rows.index("tenant")]
    assert len(set(rows.tenants)) <= 2 + aside + 1
