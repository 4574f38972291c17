"""Label values from outside: bounded, cleaned, and no flood keeps the real ones out for ever."""

from __future__ import annotations

from gpumon import catalogue
from gpumon.requests.series import Series, Tenants
from gpumon.requests.tenants import MAX_LENGTH, BoundedLabels, Place, clean


def tenants(counted: Tenants) -> dict[str, float]:
    return {s.labels[0]: s.value for s in counted.samples() if s.metric is catalogue.TENANT_REQUESTS}  # type: ignore[misc]


def test_values_keep_their_slots() -> None:
    labels = BoundedLabels(2, 10.0)
    assert [labels.find(value, 0.0) for value in "abab"] == [Place(0, False), Place(1, False)] * 2
    assert labels.named() == [("a", 0), ("b", 1)]


def test_a_full_table_takes_no_more_until_one_is_idle_long_enough() -> None:
    labels = BoundedLabels(2, 10.0)
    labels.find("a", 0.0)
    labels.find("b", 1.0)
    labels.find("a", 5.0)
    assert labels.find("c", 10.9) is None
    assert labels.find("c", 11.0) == Place(1, reused=True)
    assert labels.find("b", 11.0) is None
    assert labels.named() == [("a", 0), ("c", 1)]


def test_a_table_without_room_takes_nothing() -> None:
    assert BoundedLabels(0, 0.0).find("a", 0.0) is None


def test_values_are_text_that_can_be_exported() -> None:
    assert clean("meta/llama-3") == "meta/llama-3"
    assert clean("modèle") == "modèle"
    assert clean("a\udcff") == "a?"
    assert clean("x" * MAX_LENGTH) is not None
    assert clean("x" * (MAX_LENGTH + 1)) is None


def test_a_hundred_thousand_tenants_are_a_few_and_other() -> None:
    counted = Tenants(3, idle_s=1e9)
    for i in range(100_000):
        counted.count(f"tenant-{i}", {"completion": 2}, float(i))
    assert tenants(counted) == {"tenant-0": 1, "tenant-1": 1, "tenant-2": 1, "other": 99_997}
    assert counted.folded == 99_997
    tokens = [s.value for s in counted.samples() if s.labels == ("other", "completion")]
    assert tokens == [2 * 99_997]


def test_a_tenant_called_other_is_other_and_none_is_unknown() -> None:
    counted = Tenants(1, idle_s=1e9)
    for tenant in ("other", "", "unknown", "a"):
        counted.count(tenant, {}, 0.0)
    assert tenants(counted) == {"other": 1, "unknown": 2, "a": 1}
    assert counted.folded == 0


def test_an_idle_tenant_gives_its_place_and_its_counts_away() -> None:
    counted = Tenants(1, idle_s=10.0)
    counted.count("a", {}, 0.0)
    counted.count("b", {}, 10.0)
    assert tenants(counted) == {"b": 1}


def test_tenants_are_counted_only_when_configured() -> None:
    counted = Tenants(0, idle_s=1.0)
    counted.count("a", {"prompt": 1}, 0.0)
    assert list(counted.samples()) == []


def test_a_model_called_other_shares_the_series_of_the_rest() -> None:
    series = Series(1, idle_s=1e9)
    first = series.find("vllm", "a", 0.0)
    assert series.find("vllm", "b", 0.0) == series.find("vllm", "other", 0.0) != first
    assert list(series.named()) == [(("vllm", "a"), 0), (("vllm", "other"), 1)]
    assert series.folded == {"server": 0, "model": 1}


def test_servers_and_models_are_bounded() -> None:
    series = Series(4, idle_s=1e9)
    for i in range(100_000):
        place = series.find(f"server-{i % 1000}", f"model-{i}", 0.0)
        assert 0 <= place.slot < series.slots
    names = [pair for pair, _ in series.named()]
    assert len(set(names)) == len(names) <= series.slots
    assert ("other", "other") in names
