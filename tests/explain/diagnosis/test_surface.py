"""Response surfaces: one hot corner, bins of every kind of attribute, and cells that know too little."""

from __future__ import annotations

import pytest

from gpumon.explain.diagnosis.surface import BINS, attributes, choose, surface
from gpumon.explain.explained import Explained
from tests.explain.diagnosis.requests import request, seen


def grid(hot_s: float = 9.0, count: int = 10) -> list[Explained]:
    """Temperature 0, 0.5, 1 by frequency penalty 0, 1; one corner is slow."""
    return [
        request(
            float(i),
            hot_s if (temperature, penalty) == (1.0, 1.0) else 1.0 + 0.1 * (i == 0),
            parameters={"temperature": temperature, "frequency_penalty": penalty},
        )
        for temperature in (0.0, 0.5, 1.0)
        for penalty in (0.0, 1.0)
        for i in range(count)
    ]


def test_one_hot_corner_is_where_it_is() -> None:
    told = surface(seen(grid()), "temperature", "frequency_penalty", share=0.9)
    assert (told.x.labels, told.y.labels) == (("0", "0.5", "1"), ("0", "1"))
    assert told.counts == ((10, 10, 10), (10, 10, 10))
    assert told.values == ((1.0, 1.0, 1.0), (1.0, 1.0, 9.0))
    assert (told.measure, told.quantile) == ("response_time", 0.9)


def test_a_quantile_is_that_of_the_cell() -> None:
    told = surface(seen(grid()), "temperature", "frequency_penalty", share=1.0)
    assert told.values[0] == pytest.approx((1.1, 1.1, 1.1))


def test_cells_of_fewer_than_five_requests_are_null() -> None:
    told = surface(seen([*grid(count=5)[1:]]), "temperature", "frequency_penalty")
    assert told.counts[0][0] == 4
    assert told.values[0][0] is None
    assert told.values[1][2] == 9.0


def test_the_two_attributes_that_latency_varies_with_are_chosen() -> None:
    requests = [
        request(float(i), 1.0 + prompt / 1000 + 5.0 * (tenant == "b"), prompt=prompt, tenant=tenant, concurrency=i % 3)
        for i in range(20)
        for prompt in (1000, 4000)
        for tenant in ("a", "b")
    ]
    assert choose(seen(requests)) == ("tenant", "prompt_tokens")
    assert choose(seen(requests), x="concurrency") == ("concurrency", "tenant")
    assert choose(seen(requests), y="tenant") == ("prompt_tokens", "tenant")
    assert choose(seen(requests), "concurrency", "tenant") == ("concurrency", "tenant")


def test_where_fewer_than_two_attributes_vary_nothing_is_chosen() -> None:
    assert choose(seen([request(), request(tenant="a")])) is None
    assert choose(seen([])) is None


def test_counts_that_are_many_are_doubling_bins() -> None:
    requests = [request(float(i), 1.0, prompt=i, concurrency=1) for i in range(1, 257)]
    told = surface(seen(requests), "prompt_tokens", "concurrency")
    assert len(told.x.labels) <= BINS
    assert (told.x.labels[0], told.x.labels[-1]) == ("1 to 3", "256 to 1023")
    assert told.counts[0] == (3, 12, 48, 192, 1)
    with_none = surface(seen([request(prompt=i) for i in (0, 1, 2, 5, 9, 17, 33, 65, 120)]), "prompt_tokens", "tenant")
    assert with_none.x.labels == ("0", *("1", "2 to 3", "4 to 7", "8 to 15", "16 to 31", "32 to 63", "64 to 127"))
    assert sum(with_none.counts[0]) == 9


def test_numbers_that_are_many_are_bins_of_as_many_requests() -> None:
    requests = [request(parameters={"temperature": i / 100}) for i in range(80)]
    told = surface(seen(requests), "temperature", "tenant")
    assert told.counts == ((10,) * 8,)
    assert told.x.labels[0] == "0 to 0.09"


def test_names_that_are_many_are_those_most_seen_and_all_others() -> None:
    requests = [request(tenant=f"t{i}") for i in range(12) for _ in range(20 - i)]
    told = surface(seen(requests), "tenant", "model")
    assert told.x.labels == (*(f"t{i}" for i in range(7)), "all others")
    assert told.counts[0][:2] == (20, 19)
    assert told.counts[0][-1] == sum(20 - i for i in range(7, 12))


def test_requests_without_the_attribute_are_left_out() -> None:
    told = surface(seen([*grid(), request()]), "temperature", "frequency_penalty")
    assert sum(map(sum, told.counts)) == 60


@pytest.mark.parametrize(("measure", "value"), [("time_to_first_token", 0.5), ("time_per_token", 9.0 / 101)])
def test_other_latencies_can_be_asked_for(measure: str, value: float) -> None:
    told = surface(seen(grid()), "temperature", "frequency_penalty", measure=measure)
    assert told.values[1][2] == pytest.approx(value)


def test_what_there_is_not_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="no attribute 'colour' of requests; there are prompt_tokens, "):
        surface(seen(grid()), "colour", "tenant")
    with pytest.raises(ValueError, match="no attribute 'colour'"):
        choose(seen([]), x="colour")
    with pytest.raises(ValueError, match="no measure 'speed'"):
        surface(seen(grid()), "tenant", "model", measure="speed")


def test_only_what_varies_is_offered_and_a_seed_is_no_scale() -> None:
    requests = [request(prompt=i, parameters={"seed": i, "top_p": 0.9, "temperature": i / 10}) for i in range(6)]
    assert attributes(seen(requests)) == ("prompt_tokens", "temperature")
