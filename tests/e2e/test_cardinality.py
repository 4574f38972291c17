"""No family of the largest node is over its budget, and nothing is left out of its page."""

from __future__ import annotations

import pytest

from gpumon.catalogue import METRICS
from gpumon.model import Kind
from tests.e2e import largest
from tests.e2e.page import Page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    with largest.running(tmp_path_factory.mktemp("largest")) as daemon:
        return daemon.page()


def test_every_family_stays_within_its_budget(page: Page) -> None:
    counted = {metric.name: len(page.select(_one_each(metric.name, metric.kind))) for metric in METRICS}
    over = {metric.name: counted[metric.name] for metric in METRICS if counted[metric.name] > metric.budget}
    assert over == {}
    assert counted["gpumon_mig_memory_bytes"] == largest.GPUS * largest.MIGS * 3
    assert counted["gpumon_inter_token_latency_by_context_seconds"] == len(largest.SERVERS) * largest.MODELS * 10


def test_nothing_is_dropped(page: Page) -> None:
    assert set(page.by("reason", "gpumon_series_dropped_total").values()) == {0.0}
    assert set(page.by("label", "gpumon_request_labels_folded_total").values()) == {0.0}


def _one_each(name: str, kind: Kind) -> str:
    return f"{name}_count" if kind is Kind.HISTOGRAM else name
