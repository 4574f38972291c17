"""The page of every kind of node, as other people's software reads it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from gpumon.catalogue import GROUPS, METRICS
from tests.e2e import nodes
from tests.e2e.daemon import FAST, Daemon
from tests.e2e.page import Page, promtool_complaints
from tests.e2e.traces.gateway import OTLP
from tests.e2e.waiting import eventually
from tests.fakenvml.controller import FakeNode
from tests.fakenvml.profiles import MIB, PROFILES, SICK_HANGING, SICK_HEALTHY, SICK_LOST

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}
NOT_IN_DEMO = {
    "gpumon_gpu_temperature_limit_celsius": "an H200 states its limits as margins",
    "gpumon_gpu_fan_ratio": "an H200 has no fans",
    "gpumon_gpu_retired_pages": "older than Ampere only",
    "gpumon_gpu_retired_pages_pending": "older than Ampere only",
    "gpumon_gpu_xid_last_timestamp_seconds": "no XID in the first seconds",
    "gpumon_samples_rejected_total": "nothing impossible is read",
    "gpumon_nvml_error_info": "NVML works",
    **{metric.name: "no MIG" for metric in METRICS if metric.name.startswith("gpumon_mig_")},
}

SHOWN_ELSEWHERE = {
    "gpumon_requests_open": "the simulated servers tell of requests when these have ended",
    "gpumon_request_clock_skew_seconds": "their clock is ours",
    "gpumon_requests_skewed_total": "their clock is ours",
    "gpumon_spans_rejected_total": "what they send is well-formed",
    "gpumon_span_values_rejected_total": "what they send is well-formed",
    **{metric.name: "nothing is passed on" for metric in GROUPS["forwarding and OTLP out"]},
    **{metric.name: "a simulated node has no kubelet" for metric in GROUPS["pods"]},
    **{
        metric.name: "gpumon proxy is another process, with a page of its own"
        for metric in GROUPS["token-timing proxy"]
    },
}
"""Where traces, pods and the proxy are tested."""

Running = tuple[str, FakeNode, Daemon]


@pytest.fixture(scope="module", params=nodes.PROFILES)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Profile, node, and gpumon on it: one for all tests of this module."""
    profile: str = request.param
    with nodes.running(tmp_path_factory.mktemp(profile), profile) as (node, daemon):
        yield profile, node, daemon


def test_promtool_has_nothing_to_say(running: Running) -> None:
    _, _, daemon = running
    body = daemon.ask("/metrics").body
    assert body.count(b"\n") > 100
    assert promtool_complaints(body) == ""


def test_every_number_is_finite_and_every_series_there_once(running: Running) -> None:
    page = running[2].page()
    page.finite()
    assert "NaN" not in page.text.replace('field="', "")


def test_openmetrics_and_text_are_the_same_series(running: Running) -> None:
    _, _, daemon = running

    def same() -> bool:
        reply = daemon.ask("/metrics", headers=OPENMETRICS)
        assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        openmetrics = Page(reply.body, openmetrics=True)
        openmetrics.finite()
        text = daemon.page()
        return {n: set(s) for n, s in text.samples.items()} == {n: set(s) for n, s in openmetrics.samples.items()}

    eventually(same, "two scrapes of the same series", within_s=10)


def test_gzip_is_sent_to_those_who_take_it(running: Running) -> None:
    reply = running[2].ask("/metrics", headers={"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    page = gzip.decompress(reply.body)
    assert len(page) > 4 * len(reply.body)
    Page(page).value("gpumon_series")


def test_only_families_of_the_catalogue_are_there_in_its_order(running: Running) -> None:
    page = running[2].page()
    told = [line.split(" ")[2] for line in page.text.splitlines() if line.startswith("# TYPE ")]
    order = [metric.name for metric in METRICS]
    assert told == sorted(told, key=order.index)


def test_the_states_of_memory_add_up_to_the_board(running: Running) -> None:
    profile, _, daemon = running
    page = daemon.page()
    total = PROFILES["h100" if profile == "sick8" else profile].signals.get("memory_total", 0)
    gpus = page.by("gpu", "gpumon_gpu_memory_bytes", state="used")
    assert bool(gpus) == bool(total)
    for gpu in gpus:
        states = page.by("state", "gpumon_gpu_memory_bytes", gpu=gpu)
        assert sum(states.values()) == total
        assert total % MIB == 0


def test_bound_states_add_up_to_the_time_sampled(running: Running) -> None:
    profile, _, daemon = running
    page = daemon.page()
    for gpu in page.by("gpu", "gpumon_gpu_bound_seconds_total", state="idle"):
        seconds = sum(page.by("state", "gpumon_gpu_bound_seconds_total", gpu=gpu).values())
        samples = page.value("gpumon_gpu_samples_total", gpu=gpu)
        assert seconds == pytest.approx(0.1 * samples, rel=0.25, abs=0.5)
    assert bool(page.select("gpumon_gpu_bound_seconds_total")) == (profile in ("h100", "h200", "sick8"))


def test_sources_and_gpus_are_well_unless_they_are_sick(running: Running) -> None:
    profile, node, daemon = running
    page = daemon.page()
    present = page.by("gpu", "gpumon_gpu_present")
    if profile != "sick8":
        assert set(present.values()) == {1.0}
        assert page.value("gpumon_gpus", state="lost") == 0
        assert page.value("gpumon_gpus", state="present") == len(node.gpus)
        # A GB10 says that its memory clock is at most 0 MHz.
        impossible = {"clock_max"} if profile == "gb10" else set()
        assert set(page.by("field", "gpumon_samples_rejected_total")) == impossible
        unwell = {source for source, up in page.by("source", "gpumon_source_up").items() if up == 0}
        assert unwell <= ({"numa"} if profile == "gb10" else set())  # that kernel is without NUMA
    assert page.value("gpumon_nvml_state", state="running") == 1


def test_mig_instances_are_told_apart(running: Running) -> None:
    profile, node, daemon = running
    page = daemon.page()
    instances = page.select("gpumon_mig_info")
    assert len(instances) == (4 * len(node.gpus) if profile == "a100-mig" else 0)
    for labels, _ in instances:
        states = page.by("state", "gpumon_mig_memory_bytes", uuid=labels["uuid"])
        assert sum(states.values()) > 0
        assert page.select("gpumon_gpu_info", uuid=labels["parent_uuid"])


@pytest.mark.parametrize("running", ["sick8"], indirect=True)
def test_a_sick_gpu_costs_the_others_nothing(running: Running) -> None:
    _, node, daemon = running
    uuids = {slot: node.gpu(slot).uuid for slot in range(8)}
    first, second = SICK_HEALTHY

    def settled() -> Page | None:
        page = daemon.page()
        hanging = page.value("gpumon_gpu_present", uuid=uuids[SICK_HANGING])
        whole = _families(page, uuids[first]) == _families(page, uuids[second])
        return page if hanging == 0 and whole and page.select("gpumon_samples_rejected_total") else None

    page = eventually(settled, "the hanging GPU is called absent and the others are read")
    assert page.select("gpumon_gpu_power_watts", uuid=uuids[SICK_LOST]) == []
    assert page.select("gpumon_gpu_power_watts", uuid=uuids[SICK_HANGING]) == []
    families = {slot: _families(page, uuids[slot]) for slot in uuids}
    assert len(families[first]) > 40
    for slot, told in families.items():
        assert told <= families[first], slot
    for slot in SICK_HEALTHY:
        assert page.value("gpumon_gpu_present", uuid=uuids[slot]) == 1
    for _ in range(20):
        assert daemon.ask("/metrics").status == 200


AFTER_MINUTES = ("gpumon_correlation", "gpumon_correlation_lag_seconds")
"""Strong pairs take a minute of samples at least; tests/explain/test_correlations.py has them."""


def test_the_demo_shows_every_family_it_can(tmp_path_factory: pytest.TempPathFactory) -> None:
    possible = {metric.name for metric in METRICS} - set(NOT_IN_DEMO) - set(SHOWN_ELSEWHERE) - set(AFTER_MINUTES)
    options = FAST | OTLP | {"GPUMON_CADENCE__NUMA_S": "1", "GPUMON_EXPLAIN__DELAY_S": "2"}
    with Daemon(tmp_path_factory.mktemp("demo"), command="demo", options=options) as demo:
        missing = possible

        def complete() -> bool:
            nonlocal missing
            missing = possible - demo.page().names()
            return not missing

        eventually(complete, f"{len(possible)} families", within_s=40)
        body = demo.ask("/metrics").body
    page = Page(body)
    page.finite()
    assert promtool_complaints(body) == ""
    assert page.names().isdisjoint(NOT_IN_DEMO)


def test_what_no_demo_shows_is_shown_by_other_nodes(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("rare")
    with nodes.running(tmp_path_factory.mktemp("t4"), "t4") as (_, daemon):
        told = daemon.page().names()
    with nodes.make_rare(folder) as node, Daemon(folder, env=node.env(), options=FAST) as daemon:
        daemon.await_ready()
        node.gpu(1).push_xid(63)
        daemon.await_series("gpumon_gpu_xid_last_timestamp_seconds", xid="63")
        daemon.await_series("gpumon_mig_sm_active_ratio", 2)
        page = daemon.await_series("gpumon_samples_rejected_total", field="temperature")
        node.unload_driver()
        told |= daemon.await_series("gpumon_nvml_error_info", code="DRIVER_NOT_LOADED").names()
    page.finite()
    assert set(NOT_IN_DEMO) <= told | page.names()
    assert page.by("fan", "gpumon_gpu_fan_ratio", gpu="0") == {"0": 0.4, "1": 0.4}


def _families(page: Page, uuid: str) -> set[str]:
    return {
        name
        for name, series in page.samples.items()
        if name.startswith("gpumon_gpu_") and any(dict(labels).get("uuid") == uuid for labels in series)
    }
