"""How an excess is divided: nothing is lost or made up, and who is to blame follows from what held."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.board import CELL_S
from gpumon.explain.causes import INDEX, LOAD, SLOWING, is_fault
from gpumon.explain.shares import Claims, divide, sureness

Array = NDArray[np.float64]

WIDTH = len(CAUSES)
WHOLE = {"weights", "load_first"}
"""What is the same for all stretches."""
STOPPING = sorted(cause for cause in CAUSES if is_fault(cause) and cause not in SLOWING)
FAULTS = [cause for cause in CAUSES if is_fault(cause) and cause != "straggler"]


def around_s(actual_s: Array) -> Array:
    """Time around steps of such lengths, (n, 1): the half second, where they are shorter."""
    return np.maximum(actual_s, CELL_S)[:, None]


def one(
    excess_s: float = 0.010,
    expected_s: float = 0.020,
    *,
    evidence: dict[str, float] | None = None,
    before: dict[str, float] | None = None,
    lost: dict[str, float] | None = None,
    load_s: dict[str, float] | None = None,
    spare_s: float = 0.0,
    weights: dict[str, float] | None = None,
    grown: bool = False,
    load_first: bool = True,
    behind_s: float = 0.0,
    guess_s: float = 0.0,
    longer_s: float = 0.0,
) -> Claims:
    """One slow stretch; causes that are not named have nothing, weights of 1. before: evidence shortly before."""

    def row(told: dict[str, float] | None, other: float = 0.0) -> Array:
        values = np.full(WIDTH, other)
        for cause, value in (told or {}).items():
            values[INDEX[cause]] = value
        return values

    return Claims(
        excess_s=np.array([excess_s]),
        expected_s=np.array([expected_s]),
        load_s=row(load_s)[None],
        spare_s=np.array([spare_s]),
        evidence=row(evidence)[None],
        before=np.maximum(row(evidence), row(before))[None],
        lost=row(lost)[None],
        lost_s=around_s(np.array([expected_s + excess_s])) * row(lost)[None],
        weights=row(weights, 1.0),
        grown=np.array([grown]),
        load_first=load_first,
        behind_s=np.array([behind_s]),
        guess_s=np.array([guess_s]),
        longer_s=np.array([longer_s]),
    )


def parts(claims: Claims) -> dict[str, float]:
    """Parts of the excess by cause, those that are over a millionth."""
    (row,) = divide(claims)
    assert row.sum() == pytest.approx(claims.excess_s[0])
    return {cause: part for cause, part in zip(CAUSES, (row / row.sum()).tolist(), strict=True) if part > 1e-6}


def main(claims: Claims) -> str:
    found = parts(claims)
    return max(found, key=lambda cause: found[cause])


def above(least: float, most: float) -> st.SearchStrategy[float]:
    """From least to most, or 0."""
    return st.just(0.0) | st.floats(least, most)


SECONDS = st.sampled_from([0.0, 1e-12, 1e-9, 1e-3, 1.0, 1e6, 1e12]) | above(1e-12, 1e12) | above(1e-6, 10.0)
UNIT = st.sampled_from([0.0, 1e-9, 0.3, 0.5, 0.7, 1.0]) | above(1e-9, 1.0)


def tables(rows: int, elements: st.SearchStrategy[float]) -> st.SearchStrategy[Array]:
    return arrays(np.float64, (rows, WIDTH), elements=elements, fill=st.just(0.0))


@st.composite
def claims(draw: st.DrawFn, seconds: st.SearchStrategy[float] = SECONDS) -> Claims:
    rows = draw(st.integers(1, 3))
    load_s = draw(tables(rows, seconds))
    load_s[:, [cause not in LOAD for cause in CAUSES]] = 0.0
    column = arrays(np.float64, rows, elements=seconds)
    evidence = draw(tables(rows, UNIT))
    return Claims(
        excess_s=draw(column),
        expected_s=draw(column),
        load_s=load_s,
        spare_s=draw(column),
        evidence=evidence,
        before=np.maximum(evidence, draw(tables(rows, UNIT))),
        lost=draw(tables(rows, UNIT)),
        lost_s=draw(tables(rows, seconds)),
        weights=draw(arrays(np.float64, WIDTH, elements=UNIT, fill=st.just(1.0))),
        grown=draw(arrays(np.bool_, rows)),
        load_first=draw(st.booleans()),
        behind_s=draw(column),
        guess_s=draw(column),
        longer_s=draw(column),
    )


@given(claims())
def test_what_is_divided_is_the_excess_no_more_and_no_less_and_no_share_is_negative(told: Claims) -> None:
    shares = divide(told)
    assert (shares >= 0).all()
    assert shares.shape == (len(told.excess_s), WIDTH)
    assert np.isfinite(shares).all()
    np.testing.assert_allclose(shares.sum(axis=1), told.excess_s, rtol=1e-9, atol=1e-200)


def test_load_that_takes_all_leaves_nothing_below_nothing() -> None:
    random = np.random.default_rng(5)
    rows = 2000
    load_s, evidence = np.zeros((rows, WIDTH)), np.zeros((rows, WIDTH))
    load_s[:, INDEX["prefill_interference"]] = random.uniform(0.01, 1.0, rows)
    load_s[:, INDEX["long_context"]] = random.uniform(0.01, 1.0, rows)
    evidence[:, INDEX["thermal_throttle"]] = 0.3
    excess_s = random.uniform(0.0, 0.02, rows)
    table = (evidence,) * 4
    shares = divide(Claims(excess_s, excess_s, load_s, excess_s, *table, np.ones(WIDTH), np.ones(rows, dtype=bool)))
    assert (shares >= 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), excess_s, rtol=1e-9)


@settings(max_examples=25)
@given(claims())
def test_what_is_handed_in_stays_as_it_is(told: Claims) -> None:
    before = [np.copy(column) for column in told]
    first = divide(told)
    for column, was in zip(told, before, strict=True):
        np.testing.assert_array_equal(column, was)
    np.testing.assert_array_equal(divide(told), first)


@settings(max_examples=50)
@given(claims())
def test_a_stretch_is_divided_alike_whatever_others_there_are(told: Claims) -> None:
    whole = divide(told)
    for row in range(len(told.excess_s)):
        columns: dict[str, Any] = {
            name: column[row : row + 1] for name, column in told._asdict().items() if name not in WHOLE
        }
        alone = told._replace(**columns)
        np.testing.assert_allclose(divide(alone)[0], whole[row], rtol=1e-9, atol=1e-9 * told.excess_s[row])


LEVELS = (0.0, 0.2, 0.3, 0.5, 0.8, 1.0)


def grid(cause: str, rival: str, *, load_first: bool = True) -> Claims:
    """All combinations of a cause with a rival, with load of several worths, and of their evidence and caps."""
    axes = np.meshgrid(
        *((0.003, 0.02, 0.2), (0.01, 0.05)),  # excess, expected
        *((0.0, 0.4, 1.0), (0.0, 0.4, 1.0), (0.2,)),  # of the cause and of the rival evidence; its cap
        *((0.0, 0.1, 0.6), (0.0, 0.005, 0.1), (0.0, 0.005)),  # cap, batch, prefill
        (0.0, 1.0),
    )
    excess, expected, evidence, other, other_lost, lost, batch, prefill, grown = (axis.ravel() for axis in axes)
    tables = np.zeros((3, len(excess), WIDTH))
    tables[:2, :, INDEX[rival]] = other, other_lost
    tables[:2, :, INDEX[cause]] = evidence, lost
    tables[2, :, INDEX["batch_growth"]], tables[2, :, INDEX["prefill_interference"]] = batch, prefill
    lost_s = around_s(expected + excess) * tables[1]
    evidence, before = tables[0], tables[0]
    return Claims(
        *(excess, expected, tables[2], np.zeros(len(excess)), evidence, before, tables[1], lost_s),
        *(np.ones(WIDTH), grown > 0),
        load_first=load_first,
    )


def rises(told: Claims, cause: str, column: str) -> bool:
    """Whether the share of a cause never falls while a figure of it rises, in any row."""
    before = np.zeros(len(told.excess_s))
    for level in LEVELS:
        values = np.copy(getattr(told, column))
        values[..., INDEX[cause]] = level
        raised: dict[str, Any] = {column: values}
        if column == "evidence":
            raised["before"] = values
        if column == "lost":
            raised["lost_s"] = values * around_s(told.expected_s + told.excess_s)
        after = divide(told._replace(**raised))[:, INDEX[cause]]
        if not (after >= before - 1e-9 * told.excess_s).all():
            return False
        before = after
    return True


@pytest.mark.parametrize("load_first", [True, False])
@pytest.mark.parametrize("rival", ["pcie", "process_stopped", "kv_pressure", "straggler"])
def test_more_evidence_for_a_cause_never_lowers_its_share(rival: str, load_first: bool) -> None:
    told = {cause: grid(cause, rival, load_first=load_first) for cause in CAUSES[:-1]}
    assert [cause for cause, claims in told.items() if not rises(claims, cause, "evidence")] == []


@pytest.mark.parametrize("column", ["lost", "lost_s", "weights"])
def test_a_higher_cap_or_a_higher_lift_never_lowers_a_share(column: str) -> None:
    assert [cause for cause in CAUSES[:-1] if not rises(grid(cause, "pcie"), cause, column)] == []


@settings(max_examples=50)
@given(claims(above(1e-6, 10.0)))
def test_a_cause_without_evidence_or_load_has_no_share(told: Claims) -> None:
    shares = divide(told)
    absent = (told.evidence == 0) & (told.before == 0) & (told.load_s == 0)
    absent[:, INDEX["unexplained"]] = False
    absent[told.spare_s > 0, INDEX["prefill_interference"]] = False
    absent[told.guess_s > 0, INDEX["batch_growth"]] = False
    absent[told.longer_s > 0, INDEX["long_context"]] = False
    assert (shares[absent] == 0).all()


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_where_nothing_held_and_load_is_as_usual_all_is_unexplained(excess_s: float, expected_s: float) -> None:
    (row,) = divide(one(excess_s, expected_s))
    assert row[INDEX["unexplained"]] == excess_s
    assert row.sum() == excess_s


def test_without_stretches_there_is_nothing_to_divide() -> None:
    none, table = np.zeros(0), np.zeros((0, WIDTH))
    told = Claims(none, none, table, none, *(table,) * 4, np.ones(WIDTH), np.zeros(0, dtype=bool))
    assert divide(told).shape == divide(told._replace(load_first=False)).shape == (0, WIDTH)


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_the_largest_and_smallest_numbers_make_no_noise(size: float) -> None:
    everything = dict.fromkeys(CAUSES, 1.0)
    load_s = dict.fromkeys(LOAD, size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = divide(one(size, size, evidence=everything, lost=everything, load_s=load_s))
    assert row.sum() == pytest.approx(size, rel=1e-9)


@pytest.mark.parametrize("cause", FAULTS)
def test_a_sure_fault_that_can_have_cost_it_has_most_of_an_excess(cause: str) -> None:
    found = parts(one(0.010, 0.020, evidence={cause: 0.95}, lost={cause: 1 / 3}))
    assert found[cause] > 0.9


@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_that_is_hardly_likely_has_nothing(cause: str) -> None:
    assert parts(one(evidence={cause: 0.05}, lost={cause: 0.5})) == {"unexplained": pytest.approx(1.0)}


@pytest.mark.parametrize("cause", sorted(SLOWING - {"straggler"}))
def test_a_fault_has_no_more_than_it_can_have_cost(cause: str) -> None:
    # A clock that fell by 5 % makes no gap of 0.5 s.
    found = parts(one(0.480, 0.020, evidence={cause: 1.0}, lost={cause: 0.05}))
    assert found["unexplained"] > 0.9


@pytest.mark.parametrize("cause", STOPPING)
def test_time_in_which_nothing_went_on_may_all_be_in_one_step(cause: str) -> None:
    # Of the half second around this one step 0.4 s were lost; the step is one that takes 20 ms.
    assert parts(one(0.400, 0.020, evidence={cause: 1.0}, lost={cause: 0.8}))[cause] > 0.9


def test_of_two_faults_that_fit_alike_each_has_half() -> None:
    both = {"pcie": 0.9, "memory_bandwidth": 0.9}
    found = parts(one(0.010, 0.020, evidence=both, lost=dict.fromkeys(both, 0.4)))
    assert found["pcie"] == pytest.approx(0.5)
    assert found["memory_bandwidth"] == pytest.approx(0.5)


def test_a_condition_that_costs_nothing_by_its_lift_leaves_the_excess_to_one_that_does() -> None:
    both = {"power_throttle": 1.0, "pcie": 1.0}
    found = parts(one(evidence=both, lost=dict.fromkeys(both, 0.4), weights={"power_throttle": 0.1}))
    assert found["pcie"] > 5 * found["power_throttle"]


@pytest.mark.parametrize("cause", FAULTS)
def test_a_straggler_with_a_fault_of_its_own_is_not_the_reason(cause: str) -> None:
    both = {"straggler": 1.0, cause: 1.0}
    found = parts(one(evidence=both, lost=dict.fromkeys(both, 0.4)))
    assert "straggler" not in found
    assert found[cause] > 0.9


def test_a_straggler_without_a_reason_is_one() -> None:
    assert main(one(evidence={"straggler": 1.0}, lost={"straggler": 0.4})) == "straggler"


def test_load_does_not_speak_for_a_straggler() -> None:
    both = {"straggler": 1.0, "kv_pressure": 1.0, "queueing": 1.0}
    assert "straggler" in parts(one(evidence=both, lost=dict.fromkeys(both, 0.4)))


@pytest.mark.parametrize("cause", ["batch_growth", "long_context", "prefill_interference"])
def test_what_load_is_worth_is_the_loads(cause: str) -> None:
    assert parts(one(0.010, load_s={cause: 0.010}, grown=True)) == {cause: pytest.approx(1.0)}


def test_load_that_is_worth_more_than_the_excess_takes_no_more_than_it() -> None:
    found = parts(one(0.010, load_s={"prefill_interference": 0.030, "long_context": 0.010}))
    assert found["prefill_interference"] == pytest.approx(0.75)
    assert found["long_context"] == pytest.approx(0.25)


def test_load_that_is_worth_little_does_not_take_what_else_there_is() -> None:
    assert parts(one(0.010, load_s={"prefill_interference": 0.0001}))["unexplained"] > 0.9


def test_prompts_that_nothing_is_known_of_have_what_nothing_else_explains_up_to_what_they_can_have_cost() -> None:
    assert parts(one(0.010, spare_s=0.004)) == {
        "prefill_interference": pytest.approx(0.4),
        "unexplained": pytest.approx(0.6),
    }
    assert parts(one(0.010, spare_s=5.0)) == {"prefill_interference": pytest.approx(1.0)}
    hot = one(0.010, 0.020, evidence=FAULT, lost={"thermal_throttle": 1 / 3}, spare_s=5.0)
    assert parts(hot)["thermal_throttle"] > 0.9


FAULT = {"thermal_throttle": 1.0}
CAP = {"thermal_throttle": 0.4}


def test_a_batch_that_grew_behind_a_sure_fault_is_the_faults() -> None:
    # The step takes 20 ms, 25 with the larger batch, and a clock that fell by 40 % makes that 41.7.
    found = parts(one(0.0217, 0.020, evidence=FAULT, lost=CAP, load_s={"batch_growth": 0.005}))
    assert "batch_growth" not in found
    assert found["thermal_throttle"] > 0.95


def test_a_batch_that_grew_behind_a_fault_that_is_over_is_the_faults_and_no_more_of_it() -> None:
    told = one(0.020, 0.020, before=FAULT, load_s={"batch_growth": 0.005})
    assert parts(told) == {"thermal_throttle": pytest.approx(0.25), "unexplained": pytest.approx(0.75)}
    assert "thermal_throttle" not in parts(told._replace(grown=np.array([True])))


def test_a_batch_that_grew_behind_two_faults_is_half_of_each() -> None:
    both = {"thermal_throttle": 1.0, "cpu_starvation": 0.9}
    found = parts(one(0.010, 0.020, before=both, load_s={"batch_growth": 0.010}))
    assert found == dict.fromkeys(both, pytest.approx(0.5))


def test_a_batch_that_grew_because_more_requests_came_is_load_beside_a_fault() -> None:
    found = parts(one(0.0217, 0.020, evidence=FAULT, lost=CAP, load_s={"batch_growth": 0.005}, grown=True))
    assert found["batch_growth"] == pytest.approx(0.005 / 0.0217, rel=0.1)
    assert found["thermal_throttle"] > 0.6


def test_a_queue_behind_a_sure_fault_is_no_cause_between_tokens() -> None:
    both = {**FAULT, "queueing": 1.0, "kv_pressure": 1.0}
    lost = dict.fromkeys(both, 0.4)
    assert set(parts(one(evidence=both, lost=lost))) == {"thermal_throttle"}
    assert "kv_pressure" in parts(one(evidence=both, lost=lost, grown=True))


def test_pauses_of_the_scheduler_are_the_queues_where_nothing_else_is_there() -> None:
    assert main(one(evidence={"queueing": 1.0}, lost={"queueing": 0.4})) == "queueing"


def test_where_load_does_not_come_first_it_shares_with_a_fault_by_what_each_is_worth() -> None:
    told = one(0.020, 0.020, evidence=FAULT, lost={"thermal_throttle": 0.5}, load_s={"prefill_interference": 0.020})
    first, beside = parts(told), parts(told._replace(load_first=False))
    assert first == {"prefill_interference": pytest.approx(1.0)}
    assert beside["prefill_interference"] == pytest.approx(0.5, abs=0.1)
    assert beside["thermal_throttle"] == pytest.approx(0.5, abs=0.1)


def test_a_prefill_of_others_is_theirs_beside_a_fault() -> None:
    found = parts(
        one(0.030, 0.020, evidence=FAULT, lost={"thermal_throttle": 0.1}, load_s={"prefill_interference": 0.025})
    )
    assert found["prefill_interference"] > 0.75


@given(st.floats(0, 1), st.floats(0, 1))
def test_sureness_rises_with_evidence_from_none_to_all(less: float, more: float) -> None:
    assume(less <= more)
    low, high = sureness(np.array([less, more])).tolist()
    assert 0 <= low <= high <= 1
    assert sureness(np.array([0.0, 1.0])).tolist() == [0.0, 1.0]


# --- what a fault leaves behind ---------------------------------------------------------------------------------------


def test_what_a_fault_made_of_a_batch_is_the_faults_though_more_came_as_well() -> None:
    load_s, before = {"batch_growth": 0.004}, {"thermal_throttle": 0.9}
    found = parts(one(0.010, before=before, load_s=load_s, behind_s=0.006, grown=True))
    assert found == pytest.approx({"batch_growth": 0.4, "thermal_throttle": 0.6})


def test_a_batch_of_a_size_never_seen_behind_a_fault_is_the_faults() -> None:
    found = parts(one(0.010, before={"thermal_throttle": 0.9}, load_s={"batch_growth": 0.002}, guess_s=0.005))
    assert found == pytest.approx({"thermal_throttle": 0.7, "unexplained": 0.3}, rel=0.1)


def test_a_batch_of_a_size_never_seen_is_load_where_more_came() -> None:
    assert parts(one(0.010, guess_s=0.006, grown=True)) == pytest.approx({"batch_growth": 0.6, "unexplained": 0.4})


def test_a_batch_of_a_size_never_seen_explains_nothing_by_itself() -> None:
    assert parts(one(0.010, guess_s=0.006)) == {"unexplained": 1.0}


def test_a_context_longer_than_any_known_may_have_cost_what_nothing_else_explains() -> None:
    assert parts(one(0.010, longer_s=0.006)) == pytest.approx({"long_context": 0.6, "unexplained": 0.4})
    lost = {"thermal_throttle": 0.5}
    assert parts(one(0.010, evidence={"thermal_throttle": 0.9}, lost=lost, longer_s=0.006)) == {"thermal_throttle": 1.0}


def test_contexts_do_not_grow_behind_a_fault() -> None:
    load_s = {"long_context": 0.010}
    assert parts(one(0.010, before={"thermal_throttle": 0.9}, load_s=load_s)) == {"long_context": 1.0}
    assert parts(one(0.010, evidence={"queueing": 0.9}, load_s=load_s)) == {"long_context": 1.0}


def test_a_server_that_was_gone_has_no_batch_that_grew_behind_it() -> None:
    load_s = {"batch_growth": 0.010}
    assert parts(one(0.010, before={"gpu_error": 1.0}, load_s=load_s)) == {"batch_growth": 1.0}
    assert parts(one(0.010, before={"process_stopped": 1.0}, load_s=load_s)) == {"process_stopped": 1.0}


def test_what_a_page_says_of_prompts_is_no_more_than_what_load_leaves() -> None:
    evidence, lost = {"prefill_interference": 1.0}, {"prefill_interference": 1.0}
    told = one(0.010, evidence=evidence, lost=lost, load_s={"batch_growth": 0.010}, grown=True, load_first=False)
    assert parts(told) == {"batch_growth": 1.0}
