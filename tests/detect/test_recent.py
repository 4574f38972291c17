"""Recent latencies: what is counted where, how late it comes, and that nothing grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.detect.recent import BIN_S, BINS, IDLE_S, PAIRS, RESPONSE, TENANTS, ModelLatencies, RecentLatencies
from gpumon.requests.logbuckets import RELATIVE_ERROR, quantiles
from gpumon.requests.windows import Signal
from tests.detect.requests import request
from tests.detect.scenes import Stage

FIRST, NEXT = Signal.FIRST_TOKEN, Signal.INTER_TOKEN


def fed(*records: object, at_s: float) -> ModelLatencies:
    """The one model that these requests are of, told now."""
    recent = RecentLatencies()
    recent.feed(records, at_s)  # type: ignore[arg-type]
    (model,) = recent.models()
    return model


def middle_s(model: ModelLatencies, signal: Signal, first: int, last: int) -> float:
    return float(quantiles(model.counts(signal, first, last)[None, :], (0.5,))[0, 0])


def test_tokens_count_in_the_bin_in_which_they_were_made() -> None:
    # First token at 1004.0, then one each second until 1012.
    model = fed(request(1003.5, first_s=0.5, gap_s=1.0, tokens=8), at_s=1020.0)
    assert model.name == "vllm/m"
    assert model.newest == 202
    assert model.totals(NEXT, 200) == [0, 5, 3]
    assert model.totals(FIRST, 200) == [1, 0, 0]
    assert middle_s(model, NEXT, 201, 202) == pytest.approx(1.0, rel=RELATIVE_ERROR * 1.01)
    assert middle_s(model, FIRST, 200, 200) == pytest.approx(0.5, rel=RELATIVE_ERROR * 1.01)


def test_a_step_of_several_tokens_is_as_many_observations() -> None:
    counts = np.array([1, 4, 4], dtype=np.int32)
    model = fed(request(1000.0, gap_s=[0.2, 0.2], token_counts=counts), at_s=1002.0)
    assert model.totals(NEXT, 200) == [8]
    assert middle_s(model, NEXT, 200, 200) == pytest.approx(0.05, rel=RELATIVE_ERROR * 1.01)


def test_bins_are_forgotten_after_five_minutes() -> None:
    recent = RecentLatencies()
    recent.feed([request(1000.0, gap_s=0.5, tokens=4)], 1003.0)
    (model,) = recent.models()
    recent.feed([request(1000.0 + BINS * BIN_S, gap_s=0.5, tokens=4)], 1303.0)
    assert model.oldest == 201
    assert sum(model.totals(NEXT, model.oldest)) == 4
    assert model.counts(NEXT, 0, 10_000).sum() == 4


def test_what_comes_later_than_that_is_counted_as_late() -> None:
    recent = RecentLatencies()
    recent.feed([request(2000.0, gap_s=0.5, tokens=4)], 2003.0)
    recent.feed([request(1000.0, gap_s=0.5, tokens=4)], 2004.0)
    (model,) = recent.models()
    assert model.late == 5
    assert sum(model.totals(NEXT, model.oldest)) == 4


def test_a_clock_that_is_ahead_of_ours_makes_no_future() -> None:
    model = fed(request(5000.0, gap_s=0.5, tokens=4), at_s=1010.0)
    assert model.newest * BIN_S <= 1010.0
    assert sum(model.totals(NEXT, model.oldest)) == 4


@pytest.mark.parametrize("told", [{"start_ns": 0}, {"start_ns": -5}, {"end_ns": 1 << 63}, {"prompt_tokens": -1}])
def test_times_that_cannot_be_true_do_no_harm(told: dict[str, Any]) -> None:
    model = fed(request(1000.0, gap_s=0.5, tokens=4, **told), at_s=1010.0)
    assert sum(model.totals(FIRST, model.oldest)) <= 1
    assert model.contexts(NEXT, 0.0).sum() == 0


def test_latencies_that_cannot_be_true_are_left_out() -> None:
    bad = [float("nan"), -1.0, float("inf"), 1e9]
    recent = RecentLatencies()
    recent.feed([request(1000.0, time_to_first_token_s=value) for value in bad], 1010.0)
    (model,) = recent.models()
    assert model.newest == -1
    times = np.array([1, 5, 3]) * 1_000_000_000
    recent.feed([request(1000.0, token_ns=times + 1000 * 10**9, per_token=True)], 1011.0)
    assert sum(model.totals(NEXT, model.oldest)) == 1


def test_how_late_tokens_come_is_learned() -> None:
    recent = RecentLatencies()
    for second in range(60):
        begun_s = 1000.0 + second
        recent.feed([request(begun_s, first_s=1.0, gap_s=0.1, tokens=100)], begun_s + 11.0)
    (model,) = recent.models()
    assert model.lag_s(NEXT, 0.5) == pytest.approx(5.0, rel=0.2)
    assert model.lag_s(NEXT, 0.9) == pytest.approx(9.0, rel=0.2)
    assert model.lag_s(FIRST, 0.5) == pytest.approx(10.0, rel=0.2)
    for second in range(60, 500):
        begun_s = 1000.0 + second
        recent.feed([request(begun_s, first_s=0.1, gap_s=0.01, tokens=100)], begun_s + 1.2)
    assert model.lag_s(NEXT, 0.9) == pytest.approx(1.1, rel=0.3)  # and unlearned


def test_nothing_is_known_of_lag_before_the_first_token() -> None:
    assert ModelLatencies("vllm", "m").lag_s(NEXT, 0.8) == 0.0
    assert ModelLatencies("vllm", "m").totals(NEXT, 0) == []


def test_contexts_are_the_prompt_and_for_tokens_what_was_made_before() -> None:
    model = fed(request(1000.0, first_s=2.0, gap_s=0.01, tokens=200, prompt_tokens=1948), at_s=1005.0)
    assert model.contexts(FIRST, 0.0).sum(axis=1).tolist()[:4] == [0, 1, 0, 0]
    assert model.contexts(NEXT, 0.0).sum(axis=1).tolist()[:4] == [0, 99, 101, 0]
    response = quantiles(model.contexts(RESPONSE, 0.0)[1:2], (0.5,))[0, 0]
    assert response == pytest.approx(4.0, rel=RELATIVE_ERROR * 1.01)


def test_contexts_are_forgotten_after_ten_minutes() -> None:
    recent = RecentLatencies()
    recent.feed([request(1000.0, prompt_tokens=5000)], 1002.0)
    (model,) = recent.models()
    recent.feed([request(1700.0, prompt_tokens=5000)], 1702.0)
    assert model.contexts(FIRST, 0.0).sum() == 1


def test_tenants_have_their_tokens_and_how_long_these_took() -> None:
    model = fed(
        request(1000.0, first_s=0.5, gap_s=0.1, tokens=10, tenant="acme"),
        request(1000.0, first_s=1.5, gap_s=0.2, tokens=10, tenant="globex"),
        request(1000.0, first_s=1.5, gap_s=0.2, tokens=10),
        at_s=1004.0,
    )
    rates = model.tenants(200, 200)
    assert rates.names == ("acme", "globex")
    assert rates.tokens.tolist() == [[10, 10]]
    assert rates.decode_s[0] == pytest.approx([1.0, 2.0])
    assert rates.first_s[0] == pytest.approx([0.5, 1.5])
    assert rates.firsts.tolist() == [[1, 1]]


def test_tenants_beyond_sixteen_are_left_out_until_one_is_idle() -> None:
    recent = RecentLatencies()
    recent.feed([request(1000.0, gap_s=0.1, tokens=3, tenant=f"t{i}") for i in range(TENANTS + 5)], 1002.0)
    (model,) = recent.models()
    assert len(model.tenants(200, 200).names) == TENANTS
    later_s = 1002.0 + IDLE_S
    recent.feed([request(later_s - 2, gap_s=0.1, tokens=3, tenant="new")], later_s)
    rates = model.tenants(model.oldest, model.newest)
    assert "new" in rates.names
    assert rates.tokens[:, rates.names.index("new")].sum() == 3


def test_pairs_beyond_sixteen_are_left_out_until_one_is_idle() -> None:
    recent = RecentLatencies()
    recent.feed([request(1000.0, model=f"m{i}") for i in range(PAIRS + 3)], 1001.0)
    assert len(recent.models()) == PAIRS
    assert recent.left_out == 3
    recent.feed([request(1400.0, model="new")], 1401.0)
    assert [model.model for model in recent.models()][-1] == "new"
    assert len(recent.models()) == PAIRS


def test_gpus_are_those_of_the_last_ten_minutes() -> None:
    recent = RecentLatencies()
    recent.feed([request(1000.0, gpus=["GPU-a", "GPU-b"])], 1001.0)
    recent.feed([request(1500.0, gpus=["GPU-b"])], 1501.0)
    (model,) = recent.models()
    assert model.gpus() == ("GPU-a", "GPU-b")
    recent.feed([request(1700.0)], 1701.0)
    assert model.gpus() == ("GPU-b",)


def test_a_scene_has_the_requests_of_its_step_among_them() -> None:
    stage = Stage()
    assert stage.step().latencies.models() == []
    scene = stage.step(requests=[request(stage.at_s - 1.0, gap_s=0.1, tokens=5)])
    (model,) = scene.latencies.models()
    assert sum(model.totals(NEXT, model.oldest)) == 5


@given(st.data())
def test_no_observation_is_lost(data: st.DataObject) -> None:
    recent = RecentLatencies()
    at_s, expected, first = 1000.0, 0, 0
    for _ in range(data.draw(st.integers(1, 6))):
        at_s += data.draw(st.floats(0.5, 30.0))
        gaps = data.draw(st.lists(st.floats(0.0, 5.0), min_size=0, max_size=20))
        recent.feed([request(at_s - data.draw(st.floats(0.0, 60.0)), gap_s=gaps, prompt_tokens=100)], at_s)
        expected, first = expected + len(gaps), first + 1
    (model,) = recent.models()
    assert sum(model.totals(NEXT, model.oldest)) == expected
    assert model.counts(NEXT, 0, model.newest).sum() == expected
    assert model.contexts(NEXT, 0.0).sum() == expected
    assert model.counts(FIRST, 0, model.newest).sum() == first
    assert model.late == 0


def test_contexts_leave_their_window_though_nobody_asks_any_more() -> None:
    model = fed(request(1000.0, gap_s=0.5, tokens=4, prompt_tokens=100), at_s=1003.0)
    assert model.contexts(NEXT, 1003.0).sum() == 4
    assert model.contexts(NEXT, 1500.0).sum() == 4
    assert model.contexts(NEXT, 1600.0).sum() == 0


def test_what_came_late_stays_counted_when_its_model_makes_room() -> None:
    recent = RecentLatencies()
    recent.feed([request(2000.0, gap_s=0.5, tokens=4)], 2003.0)
    recent.feed([request(1000.0, gap_s=0.5, tokens=4)], 2004.0)
    assert recent.late == 5
    at_s = 2004.0 + IDLE_S
    recent.feed([request(at_s, gap_s=0.5, tokens=1, model=f"m{n}") for n in range(PAIRS)], at_s + 2.0)
    assert len(recent.models()) == PAIRS
    assert recent.late == 5
