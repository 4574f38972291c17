"""Lagged correlation: exact at every lag, whatever is missing; chance is told from connection."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gpumon.explain.correlation import LEAST, autocorrelations, correlate, lagged

Floats = NDArray[np.float64]

VALUES = st.one_of(st.integers(-50, 50).map(float), st.sampled_from([math.nan, math.inf, -math.inf]))


def noise(seed: int, rows: int, samples: int, memory: float = 0.0) -> Floats:
    """AR(1) of variance 1."""
    random = np.random.default_rng(seed)
    found = np.empty((rows, samples))
    found[:, 0] = random.normal(size=rows)
    for i in range(1, samples):
        found[:, i] = memory * found[:, i - 1] + math.sqrt(1 - memory**2) * random.normal(size=rows)
    return found


def paired(x: Floats, y: Floats, lag: int) -> tuple[Floats, Floats]:
    """The samples known of both, y ``lag`` later than x."""
    n = len(x)
    early, late = slice(0, max(0, n - abs(lag))), slice(min(n, abs(lag)), n)
    a, b = (x[early], y[late]) if lag >= 0 else (x[late], y[early])
    known = np.isfinite(a) & np.isfinite(b)
    return a[known], b[known]


@given(
    arrays(np.float64, st.tuples(st.integers(1, 4), st.just(24)), elements=VALUES),
    arrays(np.float64, st.tuples(st.integers(1, 3), st.just(24)), elements=VALUES),
    st.integers(0, 26),
)
def test_every_lag_is_what_corrcoef_says_of_the_samples_known_of_both(x: Floats, y: Floats, max_lag: int) -> None:
    lags, r, counts = lagged(x, y, max_lag, least=3)
    assert sorted(lags.tolist()) == list(range(-max_lag, max_lag + 1))
    for position, lag in enumerate(lags.tolist()):
        for i in range(len(x)):
            for j in range(len(y)):
                a, b = paired(x[i], y[j], lag)
                assert counts[position, i, j] == len(a)
                got = r[position, i, j]
                if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
                    assert np.isnan(got)
                else:
                    assert got == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-9)


@given(st.integers(0, 2**32), st.floats(0, 0.4), st.floats(1e-6, 1e9), st.floats(-1e6, 1e6))
@example(1, 0.0, 1.0, 1e6)
def test_scale_and_offset_do_not_matter(seed: int, missing: float, scale: float, offset: float) -> None:
    x, y = noise(seed, 3, 80), noise(seed + 1, 2, 80)
    x[np.random.default_rng(seed).random(x.shape) < missing] = np.nan
    plain, scaled = correlate(x, y, 3), correlate(x * scale + offset * scale, y, 3)
    np.testing.assert_allclose(plain.r, scaled.r, atol=1e-6)
    np.testing.assert_array_equal(plain.n, scaled.n)


@given(st.integers(0, 2**32))
def test_exchanging_the_two_turns_the_lag_round(seed: int) -> None:
    x, y = noise(seed, 2, 60, 0.5), noise(seed + 1, 3, 60, 0.5)
    there, back = correlate(x, y, 4), correlate(y, x, 4)
    np.testing.assert_allclose(there.r, back.r.T, atol=1e-12)
    np.testing.assert_array_equal(there.lag, -back.lag.T)


@pytest.mark.parametrize("lag", [-30, -7, -1, 0, 1, 5, 30])
def test_a_shifted_copy_finds_its_lag(lag: int) -> None:
    signal = noise(3, 1, 700)
    x, y = signal[:, 50:650], -signal[:, 50 - lag : 650 - lag]
    found = correlate(x, y, 30)
    assert found.lag[0, 0] == lag
    assert found.r[0, 0] == pytest.approx(-1.0)
    assert found.n[0, 0] == 600 - abs(lag)
    assert found.strong[0, 0]


def test_a_shifted_copy_is_found_through_noise_and_missing_values() -> None:
    signal, random = noise(4, 1, 620, 0.6), np.random.default_rng(4)
    x, y = signal[:, 4:604] + 0.3 * noise(5, 1, 600), signal[:, :600] + 0.3 * noise(6, 1, 600)
    x[random.random(x.shape) < 0.3], y[random.random(y.shape) < 0.3] = np.nan, np.inf
    found = correlate(x, y, 10)
    assert found.lag[0, 0] == 4
    assert found.strong[0, 0]


def test_of_equal_correlations_the_shortest_lag_counts() -> None:
    wave = np.tile([0.0, 1.0, 0.0, -1.0], 50)[None]
    assert correlate(wave, wave, 9).lag[0, 0] == 0
    assert correlate(wave, np.roll(wave, 2), 9).lag[0, 0] == 0  # the same wave upside down
    assert abs(correlate(wave, np.roll(wave, 1), 9).lag[0, 0]) == 1


def test_of_a_lag_and_its_opposite_that_of_y_following_counts() -> None:
    wave = np.tile([0.0, 1.0, 0.0, -1.0], 50)[None]
    assert correlate(wave, np.roll(wave, 1), 1).lag[0, 0] == 1


@pytest.mark.parametrize("dead", [0.0, 1.98e9, 0.1, np.nan, np.inf, -np.inf])
def test_what_does_not_move_or_is_not_known_has_no_correlation(dead: float) -> None:
    x = np.stack([np.full(100, dead), noise(1, 1, 100)[0]])
    found = correlate(x, noise(2, 2, 100), 5)
    assert np.isnan(found.r[0]).all()
    assert np.isfinite(found.r[1]).all()
    assert not found.strong[0].any()
    np.testing.assert_array_equal(found.p[0], 1.0)
    np.testing.assert_array_equal(found.n[0], 0)
    np.testing.assert_array_equal(found.lag[0], 0)


def test_what_moves_only_where_the_other_is_not_known_has_none() -> None:
    x, y = noise(1, 1, 200), noise(2, 1, 200)
    x[:, 100:] = 5.0
    y[:, :100] = np.nan
    assert np.isnan(correlate(x, y, 0).r).all()


def test_a_step_outside_of_the_overlap_does_not_hide_small_moves_inside() -> None:
    x, y = noise(1, 1, 200), noise(2, 1, 200)
    x[:, 100:] += 1e4
    y[:, 100:] = np.nan
    found = correlate(x, y, 0)
    assert found.r[0, 0] == pytest.approx(np.corrcoef(x[0, :100], y[0, :100])[0, 1], abs=1e-6)


def test_too_few_samples_have_none() -> None:
    x, y = noise(1, 1, LEAST), noise(2, 1, LEAST)
    assert np.isfinite(correlate(x, y, 0).r[0, 0])
    assert correlate(x, y, 8).lag[0, 0] == 0, "other lags have fewer"
    x[0, 3] = np.nan
    assert np.isnan(correlate(x, y, 0).r[0, 0])


@pytest.mark.parametrize("shape", [(0, 50), (3, 0), (2, 1)])
def test_nothing_gives_nothing(shape: tuple[int, int]) -> None:
    found = correlate(np.zeros(shape), np.zeros((2, shape[1])), 5)
    assert found.r.shape == (shape[0], 2)
    assert np.isnan(found.r).all()


def test_huge_and_tiny_numbers_are_numbers() -> None:
    signal = noise(1, 1, 100)
    for scale in (1e300, 1e-300):
        assert correlate(signal * scale, signal, 2).r[0, 0] == pytest.approx(1.0)
    assert correlate(signal.astype(np.float32), signal, 2).r[0, 0] == pytest.approx(1.0)


def test_inputs_are_left_as_they_are() -> None:
    x = noise(1, 2, 50)
    x[0, 4] = np.inf
    before = x.copy()
    correlate(x, x, 3)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(
    ("samples", "max_lag", "least", "said"),
    [(49, 1, 30, "50 samples and y 49"), (50, -1, 30, "max_lag"), (50, 1, 2, "least")],
)
def test_wrong_questions_are_refused(samples: int, max_lag: int, least: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        correlate(np.zeros((1, 50)), np.zeros((1, samples)), max_lag, least=least)


def test_slow_signals_are_worth_fewer_samples() -> None:
    x, y = noise(1, 1, 4000, 0.9), noise(2, 1, 4000, 0.8)
    a, b = autocorrelations(x)[0], autocorrelations(y)[0]
    assert (a, b) == (pytest.approx(0.9, abs=0.03), pytest.approx(0.8, abs=0.03))
    found = correlate(x, y, 0)
    assert found.n_eff[0, 0] == pytest.approx(4000 * (1 - a * b) / (1 + a * b))
    assert found.n_eff[0, 0] < 4000 / 5


def test_signals_that_alternate_are_worth_no_more_than_there_are() -> None:
    x = noise(1, 1, 500, -0.8)
    assert correlate(x, noise(2, 1, 500, 0.8), 0).n_eff[0, 0] == 500


def test_autocorrelation_is_that_of_neighbours_among_the_known() -> None:
    slow = noise(1, 1, 4000, 0.9)
    halved = slow.copy()
    halved[:, 1::2] = np.nan
    assert autocorrelations(halved)[0] == pytest.approx(0.81, abs=0.04)
    np.testing.assert_array_equal(autocorrelations(np.full((2, 9), np.nan)), 0.0)


def test_p_is_fishers_times_the_number_looked_at() -> None:
    x, y = noise(11, 2, 200), noise(12, 3, 200)
    x[1] = np.nan
    found = correlate(x, y, 2)
    z = math.atanh(abs(found.r[0, 0])) * math.sqrt(found.n_eff[0, 0] - 3)
    single = math.erfc(z / math.sqrt(2))
    assert found.p[0, 0] == pytest.approx(min(1.0, single * 5 * 3)), "five lags of the three pairs that have an r"


def test_p_is_never_above_one_nor_anything_but_a_number() -> None:
    found = correlate(noise(1, 5, 60, 0.99), noise(2, 4, 60, 0.99), 10)
    assert ((found.p >= 0) & (found.p <= 1)).all()
    assert ((found.n_eff >= 0) & (found.n_eff <= found.n)).all()


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 0.97])
def test_independent_noise_is_hardly_ever_strong(memory: float) -> None:
    strong = sum(
        int(correlate(noise(seed, 40, 600, memory), noise(seed + 1000, 10, 600, memory), 30).strong.sum())
        for seed in range(4)
    )
    assert strong <= 1, f"of {4 * 40 * 10} pairs"


def test_two_steps_at_the_same_time_are_strong_but_two_drifts_are_not() -> None:
    story = np.zeros(600)
    story[200:320] = 1.0
    story[400:420] = 1.0
    x, y = story + 0.2 * noise(1, 1, 600), story + 0.2 * noise(2, 1, 600)
    assert correlate(x, y, 5).strong[0, 0]
    drift = np.linspace(0.0, 1.0, 600)
    found = correlate(drift[None] + 1e-3 * noise(3, 1, 600), drift[None] + 1e-3 * noise(4, 1, 600), 5)
    assert found.r[0, 0] > 0.99
    assert found.n_eff[0, 0] < 10
    assert not found.strong[0, 0]


def test_nothing_warns() -> None:
    x = np.stack([noise(1, 1, 60)[0], np.full(60, np.nan), np.full(60, 3.0), np.full(60, np.inf)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        correlate(x, x, 40)
