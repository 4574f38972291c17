"""Why a first token was late: waiting and computing apart, and what each of them is put down to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.explain.board import CELL_S
from gpumon.explain.causes import INDEX, is_fault
from gpumon.explain.first_token import Judged, Waited, judge, usually
from gpumon.explain.usual import Load

Array = NDArray[np.float64]
WIDTH = len(CAUSES)
PROMPT = 1000.0
TOKEN_S = 1e-4
"""A prompt of 1,000 tokens takes 0.12 s here, one of 16,000 takes 1.62 s."""
BASE_S = 0.02
COST_S = 5e-5
"""What a prompt token of others adds."""
FAULTS = [cause for cause in CAUSES if is_fault(cause)]
SLOW_FAULTS = ["thermal_throttle", "cpu_starvation", "page_faults", "pcie", "process_stopped"]


def took(tokens: float) -> float:
    return BASE_S + TOKEN_S * tokens


def learned(*, beside: float = 0.0, wait_s: float = 0.002, rarely_s: float = 0.004) -> Load:
    """What is usual: prompts of about 1,000 tokens, now and then a long one. beside: tokens of others meanwhile."""
    load = Load()
    for number in range(200):
        tokens = 16_000.0 if number % 40 == 39 else PROMPT * (0.8 + 0.02 * (number % 20))
        load.computed.add(tokens, calm=True)
        load.prompt_s.add(tokens, took(tokens), calm=True)
        load.queue_s.add(rarely_s if number % 10 == 9 else wait_s, calm=True)
        load.beside.add(beside, calm=True)
        load.token_s.add(PROMPT, COST_S, calm=True)
        load.token_s.add(16_000.0, COST_S, calm=True)
    for _ in range(20):
        load.prompt_s.add(16_000.0, took(16_000.0), calm=True)
    return load


LEARNED = learned()
NAMES = Waited._fields
TABLES = ("_evidence", "_lost", "_lost_s")
"""Ends of the names of columns that are by cause."""


def row(**told: float) -> Array:
    values = np.zeros((1, WIDTH))
    for cause, value in told.items():
        values[0, INDEX[cause]] = value
    return values


def waited(
    wait_s: float = 0.002,
    prompt_s: float | None = None,
    *,
    computed: float = PROMPT,
    grown: bool = False,
    waiting: dict[str, tuple[float, float]] | None = None,
    before: dict[str, float] | None = None,
    computing: dict[str, tuple[float, float]] | None = None,
    **columns: float,
) -> Waited:
    """One request. waiting, computing: evidence and share of time lost by cause; before: evidence before its wait."""
    prompt_s = took(computed) if prompt_s is None else prompt_s
    wait_lost, prompt_lost = (
        row(**{cause: lost for cause, (_, lost) in (held or {}).items()}) for held in (waiting, computing)
    )
    told: dict[str, Any] = {name: row() if name.endswith(TABLES) else np.zeros(1) for name in NAMES}
    told |= {
        "wait_s": np.array([wait_s]),
        "prompt_s": np.array([prompt_s]),
        "computed": np.array([computed]),
        "step_s": np.array([0.02]),
        "grown": np.array([grown]),
        "wait_evidence": row(**{cause: evidence for cause, (evidence, _) in (waiting or {}).items()}),
        "wait_lost_s": wait_lost * max(wait_s, CELL_S),
        "before_evidence": row(**(before or {})),
        "prompt_evidence": row(**{cause: evidence for cause, (evidence, _) in (computing or {}).items()}),
        "prompt_lost": prompt_lost,
        "prompt_lost_s": prompt_lost * max(prompt_s, CELL_S),
    }
    return Waited(**(told | {name: np.array([value]) for name, value in columns.items()}))


def judged(told: Waited, load: Load = LEARNED, weights: Array | None = None) -> Judged:
    found = judge(told, load, np.ones(WIDTH) if weights is None else weights)
    assert found is not None
    return found


def shares(told: Waited, load: Load = LEARNED, weights: Array | None = None) -> dict[str, float]:
    """Seconds by cause, those that are there."""
    found = judged(told, load, weights)
    (values,) = found.shares_s
    assert values.sum() == pytest.approx(found.excess_s[0])
    return {cause: seconds for cause, seconds in zip(CAUSES, values.tolist(), strict=True) if seconds > 1e-9}


# --- on time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("computed", [1.0, 500.0, 1000.0, 1300.0])
def test_a_first_token_that_took_what_such_prompts_take_is_on_time(computed: float) -> None:
    assert shares(waited(computed=computed)) == {}


def test_a_little_more_than_usual_is_on_time() -> None:
    assert shares(waited(0.006, 1.1 * took(PROMPT))) == {}


def test_faster_than_usual_is_no_excess() -> None:
    assert shares(waited(0.0, 0.001)) == {}


def test_what_is_expected_is_the_usual_wait_and_what_such_a_prompt_takes() -> None:
    found = judged(waited())
    assert found.expected_s[0] == pytest.approx(0.002 + took(PROMPT), rel=0.1)


def test_nothing_is_judged_before_anything_is_known() -> None:
    assert judge(waited(), Load(), np.ones(WIDTH)) is None
    only_waits = Load()
    for _ in range(50):
        only_waits.queue_s.add(0.01, calm=True)
    assert judge(waited(), only_waits, np.ones(WIDTH)) is None


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_long_wait_in_good_health_is_the_queues() -> None:
    assert shares(waited(1.0)) == {"queueing": pytest.approx(1.0, rel=0.05)}


def test_a_wait_for_blocks_of_a_full_cache_is_the_caches() -> None:
    found = shares(waited(1.0, waiting={"kv_pressure": (0.95, 1.0)}))
    assert found == {"kv_pressure": pytest.approx(1.0, rel=0.05)}


def test_where_long_waits_are_usual_one_is_none() -> None:
    used = learned(wait_s=0.9, rarely_s=1.2)
    assert shares(waited(1.1), used) == {}
    assert "queueing" in shares(waited(4.0), used)


def test_waits_as_long_as_one_in_twenty_are_usual() -> None:
    assert shares(waited(0.9), learned(wait_s=0.01, rarely_s=1.0)) == {}


@pytest.mark.parametrize("cause", ["thermal_throttle", "cpu_starvation", "gpu_contention", "straggler"])
def test_a_queue_behind_a_fault_is_the_faults_where_no_more_came_than_usual(cause: str) -> None:
    found = shares(waited(1.0, before={cause: 0.95}))
    assert found == {cause: pytest.approx(1.0, rel=0.05)}


@pytest.mark.parametrize("cause", ["thermal_throttle", "cpu_starvation"])
def test_a_queue_behind_a_fault_is_a_queue_where_more_came_than_usual(cause: str) -> None:
    assert set(shares(waited(1.0, before={cause: 0.95}, grown=True))) == {"queueing"}


def test_a_fault_that_is_hardly_likely_makes_no_queue() -> None:
    assert set(shares(waited(1.0, before={"thermal_throttle": 0.05}))) == {"queueing"}


def test_a_fault_that_costs_nothing_by_its_lift_makes_little_of_a_queue() -> None:
    weights = np.ones(WIDTH)
    weights[INDEX["power_throttle"]] = 0.1
    found = shares(waited(1.0, before={"power_throttle": 1.0}), weights=weights)
    assert found["queueing"] > 0.8


@pytest.mark.parametrize("cause", ["batch_growth", "prefill_interference", "queueing"])
def test_load_before_a_wait_is_no_fault(cause: str) -> None:
    assert set(shares(waited(1.0, before={cause: 1.0}))) == {"queueing"}


def test_a_process_that_stood_still_while_the_request_waited_has_that_time() -> None:
    stop = {"process_stopped": (1.0, 0.5)}
    found = shares(waited(1.0, waiting=stop, before={"process_stopped": 1.0}))
    assert found == {"process_stopped": pytest.approx(1.0, rel=0.05)}
    found = shares(waited(1.0, waiting=stop, before={"process_stopped": 1.0}, grown=True))
    assert found["process_stopped"] == pytest.approx(0.5, rel=0.1)
    assert found["queueing"] == pytest.approx(0.5, rel=0.1)


def test_a_gpu_that_was_gone_while_the_request_waited_has_that_time() -> None:
    found = shares(waited(10.0, waiting={"gpu_error": (1.0, 1.0)}, grown=True))
    assert found["gpu_error"] == pytest.approx(10.0, rel=0.05)


def test_a_wait_for_a_step_that_was_long_for_the_prompts_in_it_is_their_interference() -> None:
    found = shares(waited(0.4, wait_tokens=8000.0, wait_length=PROMPT))
    assert found == {"prefill_interference": pytest.approx(0.4, rel=0.05)}
    queue = {"queueing": (0.95, 1.0)}
    assert set(shares(waited(0.4, wait_tokens=8000.0, wait_length=PROMPT, waiting=queue))) == {"queueing"}


def test_a_slow_wait_says_nothing_of_the_prompt() -> None:
    found = judged(waited(1.0))
    assert found.expected_s[0] < 0.2
    assert found.excess_s[0] == pytest.approx(1.0, rel=0.05)


# --- computing --------------------------------------------------------------------------------------------------------


def test_a_long_prompt_is_late_by_its_own_length() -> None:
    found = shares(waited(computed=16_000.0))
    assert found == {"long_context": pytest.approx(1.5, rel=0.15)}


@pytest.mark.parametrize("prompt_s", [0.0, 0.05, took(PROMPT), 0.5])
def test_a_long_prompt_that_was_fast_is_not_late_by_its_length(prompt_s: float) -> None:
    # Most of it was in the prefix cache, and the server does not say so.
    found = shares(waited(prompt_s=prompt_s, computed=16_000.0))
    assert sum(found.values()) <= max(0.0, prompt_s - took(PROMPT)) + 0.05


def test_a_prompt_that_is_long_and_slow_is_both() -> None:
    hot = {"thermal_throttle": (0.95, 0.4)}
    found = shares(waited(prompt_s=took(16_000.0) + 1.0, computed=16_000.0, computing=hot))
    assert 1.0 < found["long_context"] < 1.6
    assert 0.7 < found["thermal_throttle"] < 1.3
    assert set(found) == {"long_context", "thermal_throttle"}


def test_prompts_of_others_in_the_same_steps_are_theirs() -> None:
    late_s = 8000 * COST_S
    found = shares(waited(prompt_s=took(PROMPT) + late_s, beside=8000.0, beside_length=PROMPT))
    assert found == {"prefill_interference": pytest.approx(late_s, rel=0.05)}


def test_prompts_beside_that_are_usual_explain_nothing() -> None:
    used = learned(beside=8000.0)
    found = shares(waited(prompt_s=took(PROMPT) + 0.4, beside=8000.0, beside_length=PROMPT), used)
    assert found == {"unexplained": pytest.approx(0.4, rel=0.05)}


@pytest.mark.parametrize("cause", SLOW_FAULTS)
def test_a_fault_while_the_prompt_was_computed_has_what_it_cost(cause: str) -> None:
    found = shares(waited(prompt_s=took(PROMPT) / 0.6, computing={cause: (0.95, 0.4)}))
    assert found[cause] == pytest.approx(took(PROMPT) * (1 / 0.6 - 1), rel=0.1)


def test_a_fault_before_the_wait_does_not_slow_the_prompt() -> None:
    found = shares(waited(prompt_s=3 * took(PROMPT), before={"thermal_throttle": 1.0}))
    assert found == {"unexplained": pytest.approx(2 * took(PROMPT), rel=0.05)}


def test_what_nothing_explains_is_unexplained() -> None:
    assert shares(waited(prompt_s=1.0)) == {"unexplained": pytest.approx(1.0 - took(PROMPT), rel=0.05)}


def test_where_the_wait_is_not_told_a_fault_may_still_have_all_of_it() -> None:
    found = shares(waited(0.0, 1.0, computing={"process_stopped": (1.0, 0.9)}))
    assert found["process_stopped"] > 0.8 * (1.0 - took(PROMPT))


def test_requests_are_judged_apart() -> None:
    several = [waited(1.0), waited(), waited(prompt_s=1.0), waited(computed=16_000.0)]
    together = waited()._replace(**{name: np.concatenate([getattr(each, name) for each in several]) for name in NAMES})
    found = judged(together)
    for number, each in enumerate(several):
        alone = judged(each)
        np.testing.assert_allclose(found.shares_s[number], alone.shares_s[0])
        assert found.excess_s[number] == alone.excess_s[0]


def test_no_requests_no_judgement() -> None:
    nothing = waited()._replace(**{name: getattr(waited(), name)[:0] for name in NAMES})
    assert judged(nothing).shares_s.shape == (0, WIDTH)


# --- whatever comes ---------------------------------------------------------------------------------------------------

UNIT = st.sampled_from([0.0, 0.3, 0.5, 1.0]) | st.floats(1e-6, 1.0)
SECONDS = st.just(0.0) | st.floats(1e-6, 3600.0)
TOKENS = st.sampled_from([0.0, 1.0, 1000.0, 9e15]) | st.floats(0.5, 1e6)


@st.composite
def anything(draw: st.DrawFn) -> Waited:
    rows = draw(st.integers(1, 3))

    def column(values: st.SearchStrategy[float]) -> Array:
        return draw(arrays(np.float64, rows, elements=values))

    def table(values: st.SearchStrategy[float]) -> Array:
        return draw(arrays(np.float64, (rows, WIDTH), elements=values, fill=st.just(0.0)))

    told: dict[str, Any] = {}
    for name in NAMES:
        values = SECONDS if name.endswith("_s") else UNIT if name.endswith(TABLES) else TOKENS
        told[name] = table(values) if name.endswith(TABLES) else column(values)
    return Waited(**(told | {"grown": draw(arrays(np.bool_, rows))}))


@given(anything(), arrays(np.float64, WIDTH, elements=UNIT, fill=st.just(1.0)))
def test_shares_add_up_to_the_excess_none_is_negative_and_no_more_is_late_than_it_took(
    told: Waited, weights: Array
) -> None:
    found = judged(told, weights=weights)
    assert np.isfinite(found.shares_s).all()
    assert np.isfinite(found.expected_s).all()
    assert (found.excess_s >= 0).all()
    np.testing.assert_allclose(found.shares_s.sum(axis=1), found.excess_s, rtol=1e-9, atol=1e-12)
    assert (found.shares_s >= 0).all()
    assert (found.excess_s <= (told.wait_s + told.prompt_s) * (1 + 1e-9)).all()


# --- the look before it is asked what held ----------------------------------------------------------------------------


@given(
    st.floats(0.0, 2.0),
    st.floats(0.0, 5.0),
    st.sampled_from([100.0, PROMPT, 1500.0, 4000.0, 16_000.0, 40_000.0]),
    st.booleans(),
    st.sampled_from(FAULTS),
)
def test_what_surely_is_not_late_is_not_late_whatever_held(
    wait_s: float, prompt_s: float, computed: float, grown: bool, fault: str
) -> None:
    held = {fault: (0.95, 0.9)}
    told = waited(wait_s, prompt_s, computed=computed, grown=grown, waiting=held, before={fault: 0.95}, computing=held)
    look = usually(told.wait_s, told.prompt_s, told.computed, told.step_s, LEARNED)
    assert look is not None
    found = judged(told)
    if not look.may_be_late[0]:
        assert found.excess_s.tolist() == [0.0]
        assert found.expected_s.tolist() == look.expected_s.tolist()


def test_a_request_as_always_is_surely_not_late() -> None:
    told = waited()
    look = usually(told.wait_s, told.prompt_s, told.computed, told.step_s, LEARNED)
    assert look is not None
    assert look.may_be_late.tolist() == [False]
    assert usually(told.wait_s, told.prompt_s, told.computed, told.step_s, Load()) is None


def test_what_a_prompts_own_length_adds_is_not_the_faults() -> None:
    """Of the rest it is asked who has it."""
    long = 4 * PROMPT
    own_s = took(long) - took(PROMPT)
    found = shares(waited(prompt_s=took(long) + 0.5 * own_s, computed=long, computing={"numa_remote": (0.95, 0.9)}))
    assert found["long_context"] == pytest.approx(own_s, rel=0.15)
    assert found["numa_remote"] == pytest.approx(0.5 * own_s, rel=0.3)


def test_who_comes_after_a_server_that_was_gone_waits_for_the_others() -> None:
    assert max(found := shares(waited(2.0, before={"gpu_error": 1.0})), key=lambda cause: found[cause]) == "queueing"
