"""When the kubelet is asked, how long its answer counts, and what is done about pods that are no more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpumon.host.podresources import Answer, ContainerHolds, HeldDevices, PodHolds, PodResourcesError
from gpumon.model import Miss, Reason, SourceError
from gpumon.sources.kubelet import KubeletSource


def holds(name: str, *ids: str) -> PodHolds:
    return PodHolds("serving", name, (ContainerHolds("server", (HeldDevices("nvidia.com/gpu", ids),)),))


class Port:
    """``PodResources`` that answers what it is told to, and counts."""

    def __init__(self) -> None:
        self.pods: Sequence[PodHolds] = (holds("a", "GPU-0"),)
        self.now: dict[str, PodHolds | None] = {}
        self.fails: Reason | None = None
        self.get_fails: Reason | None = None
        self.allocatable_fails: Reason | None = None
        self.lists = 0
        self.gets: list[str] = []

    def list(self) -> Answer:
        self.lists += 1
        if self.fails is not None:
            raise PodResourcesError(self.fails, "as told")
        return Answer(tuple(self.pods), len(self.pods), "v1")

    def get(self, namespace: str, pod: str) -> PodHolds | None:
        self.gets.append(pod)
        if self.get_fails is not None:
            raise PodResourcesError(self.get_fails, "as told")
        return self.now.get(pod)

    def allocatable(self) -> tuple[HeldDevices, ...]:
        if self.allocatable_fails is not None:
            raise PodResourcesError(self.allocatable_fails, "as told")
        return (HeldDevices("nvidia.com/gpu", ("GPU-0",)),)


class Bench:
    def __init__(self) -> None:
        self.port = Port()
        self.newest_s: float | None = None
        self.source = KubeletSource(self.port, lambda: self.newest_s, every_s=10.0, max_age_s=60.0)

    def read(self, at_s: float) -> list[object]:
        return list(self.source.read(at_s))

    def lists(self, begin_s: int, end_s: int) -> int:
        """Listings asked for in passes two seconds apart."""
        before = self.port.lists
        for at_s in range(begin_s, end_s, 2):
            self.read(float(at_s))
        return self.port.lists - before


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_asks_at_once_and_then_every_ten_seconds(bench: Bench) -> None:
    assert bench.source.state == "waiting"
    assert bench.read(100.0) == []
    assert bench.source.state == "ok"
    assert bench.lists(102, 160) == 5


def test_a_listing_counts_from_when_it_was_asked_for_and_for_a_minute(bench: Bench) -> None:
    bench.read(100.0)
    listing = bench.source.listing(160.0)
    assert listing is not None
    assert listing.began_s == 100.0
    assert listing.offered == (HeldDevices("nvidia.com/gpu", ("GPU-0",)),)
    assert bench.source.listing(160.1) is None


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.DENIED, Reason.MALFORMED])
def test_a_failure_is_told_at_every_pass_asked_about_every_ten_seconds_and_keeps_the_listing(
    bench: Bench, reason: Reason
) -> None:
    bench.read(100.0)
    bench.port.fails = reason
    for at_s in (110.0, 112.0, 118.0):
        with pytest.raises(SourceError) as caught:
            bench.read(at_s)
        assert caught.value.reason is reason
    assert bench.port.lists == 2
    assert bench.source.state == reason.value
    assert bench.source.listing(118.0) is not None
    bench.port.fails = None
    bench.read(120.0)
    assert bench.source.state == "ok"


def test_a_socket_that_is_not_there_is_tried_at_every_pass(bench: Bench) -> None:
    bench.port.fails = Reason.UNAVAILABLE
    for at_s in (100.0, 102.0, 104.0):
        with pytest.raises(SourceError):
            bench.read(at_s)
    assert bench.port.lists == 3


def test_a_newer_process_brings_the_next_listing_forward(bench: Bench) -> None:
    bench.read(100.0)
    bench.newest_s = 101.0
    bench.read(102.0)
    assert bench.port.lists == 2
    assert bench.lists(104, 112) == 0  # the second listing is newer than the process


def test_processes_that_begin_all_the_time_do_not_have_it_asked_all_the_time(bench: Bench) -> None:
    bench.read(100.0)
    before = bench.port.lists
    for at_s in range(102, 400, 2):
        bench.newest_s = at_s - 0.5
        bench.read(float(at_s))
    assert bench.port.lists - before <= 2 * 30 + 2


def test_a_kubelet_without_allocatable_is_well_and_one_that_fails_at_it_is_missed(bench: Bench) -> None:
    bench.port.allocatable_fails = Reason.UNSUPPORTED
    assert bench.read(100.0) == []
    listing = bench.source.listing(100.0)
    assert listing is not None
    assert listing.offered is None
    bench.port.allocatable_fails = Reason.TIMEOUT
    assert bench.read(110.0) == [Miss("allocatable devices", Reason.TIMEOUT, "as told")]
    assert bench.source.listing(110.0) is not None


def test_of_two_pods_with_one_id_the_one_that_is_no_more_is_left_out(bench: Bench) -> None:
    old, new, other = holds("old", "GPU-0"), holds("new", "GPU-0"), holds("other", "GPU-1")
    bench.port.pods = (old, new, other)
    bench.port.now = {"new": new}
    bench.read(100.0)
    listing = bench.source.listing(100.0)
    assert listing is not None
    assert listing.pods == (new, other)
    assert sorted(bench.port.gets) == ["new", "old"]


def test_without_get_both_stay(bench: Bench) -> None:
    bench.port.pods = (holds("old", "GPU-0"), holds("new", "GPU-0"))
    bench.port.get_fails = Reason.UNSUPPORTED
    bench.read(100.0)
    listing = bench.source.listing(100.0)
    assert listing is not None
    assert len(listing.pods) == 2


def test_replicas_are_no_reason_to_ask_again(bench: Bench) -> None:
    bench.port.pods = (holds("a", "GPU-0::0"), holds("b", "GPU-0::1"))
    bench.read(100.0)
    assert bench.port.gets == []


def test_many_doubtful_pods_are_not_all_asked_for(bench: Bench) -> None:
    bench.port.pods = [holds(f"pod-{n}", "GPU-0") for n in range(100)]
    bench.read(100.0)
    assert len(bench.port.gets) == 8
