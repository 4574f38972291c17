"""Pods by the API server: names, allowed labels, watches that end, versions that are gone, patience with failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from gpumon import catalogue
from gpumon.host.kube_api import Change, KubeApiError, KubePod
from gpumon.host.kube_api_client import InCluster
from gpumon.model import Miss, Reason, Sample, SourceError
from gpumon.sources.kube_names import ContainerName, PodName
from gpumon.sources.pod_labels import PODS_MAX, PodLabels
from tests.e2e.waiting import eventually
from tests.kube_server import KubeServer, pod

VLLM = PodName("serving", "vllm-0")


def told(
    name: str = "vllm-0",
    uid: str = "uid-1",
    labels: Mapping[str, str] | None = None,
    containers: Sequence[tuple[str, str]] = (),
) -> KubePod:
    return KubePod("serving", name, (uid,), dict(labels or {}), tuple(containers))


class Api:
    """``KubeApi`` that does as it is told."""

    def __init__(self) -> None:
        self.listed: list[KubePod] = [told(labels={"app": "vllm", "secret": "x"}, containers=[("c" * 64, "server")])]
        self.coming: list[Change] = []
        self.fails: KubeApiError | None = None
        self.ends = False
        self.lists: list[bool] = []
        self.watched: list[str] = []

    def pods(self, *, newest: bool) -> tuple[list[KubePod], str]:
        self._fail()
        self.lists.append(newest)
        return self.listed, "100"

    def watch(self, version: str) -> None:
        self._fail()
        self.watched.append(version)

    def changes(self) -> list[Change] | None:
        self._fail()
        found, self.coming = self.coming, []
        return None if self.ends and not found else found

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails


class Bench:
    def __init__(self, *keys: str) -> None:
        self.api = Api()
        self.wanted = {VLLM}
        self.source = PodLabels(self.api, keys or ("app",), lambda: self.wanted)

    def labels(self, at_s: float) -> set[tuple[str, ...]]:
        items = list(self.source.read(at_s))
        self.misses = [item for item in items if isinstance(item, Miss)]
        samples = [item for item in items if isinstance(item, Sample)]
        assert {sample.metric for sample in samples} <= {catalogue.POD_LABEL}
        return {sample.labels for sample in samples}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_only_allowed_labels_of_pods_on_gpus_are_told(bench: Bench) -> None:
    bench.api.listed.append(told("web-0", "uid-2", {"app": "web"}))
    assert bench.labels(0.0) == {(*VLLM, "app", "vllm")}
    bench.wanted = set()
    assert bench.labels(2.0) == set()


def test_names_are_of_all_pods(bench: Bench) -> None:
    bench.labels(0.0)
    names = bench.source.names()
    assert names.pods == {"uid-1": VLLM}
    assert names.containers == {"c" * 64: ContainerName(VLLM, "server")}


def test_one_list_and_one_watch_serve_as_long_as_the_watch_lives(bench: Bench) -> None:
    for at_s in range(0, 40, 2):
        bench.labels(float(at_s))
    assert bench.api.lists == [False]
    assert bench.api.watched == ["100"]


def test_changes_are_taken_and_the_old_pod_of_a_name_goes(bench: Bench) -> None:
    bench.labels(0.0)
    bench.api.coming = [
        Change(told(labels={"app": "vllm"}), True, "101"),
        Change(told(uid="uid-9", labels={"app": "sglang"}), False, "102"),
        Change(None, False, "110"),
    ]
    assert bench.labels(2.0) == {(*VLLM, "app", "sglang")}
    assert bench.source.names().pods == {"uid-9": VLLM}


def test_a_watch_that_ended_is_begun_anew_from_where_it_was(bench: Bench) -> None:
    bench.labels(0.0)
    bench.api.coming = [Change(None, False, "110")]
    bench.api.ends = True
    bench.labels(2.0)
    bench.labels(4.0)
    bench.labels(6.0)
    assert bench.api.watched == ["100", "110"]
    assert bench.api.lists == [False]


def test_a_version_that_is_gone_is_listed_anew_and_not_from_a_cache(bench: Bench) -> None:
    bench.labels(0.0)
    bench.api.fails = KubeApiError(Reason.UNAVAILABLE, "HTTP 410", gone=True)
    with pytest.raises(SourceError):
        bench.labels(2.0)
    bench.api.fails = None
    bench.api.listed = [told("vllm-1", "uid-3")]
    bench.labels(4.0)
    assert bench.api.lists == [False, True]
    assert bench.source.names().pods == {"uid-3": ("serving", "vllm-1")}


def test_failures_are_tried_again_ever_more_seldom_and_names_stay(bench: Bench) -> None:
    bench.labels(0.0)
    bench.api.fails = KubeApiError(Reason.DENIED, "HTTP 403")
    tried: list[float] = []
    for at_s in range(2, 400, 2):
        before = bench.source._retry_at_s
        with pytest.raises(SourceError) as caught:
            bench.labels(float(at_s))
        assert caught.value.reason is Reason.DENIED
        if bench.source._retry_at_s != before:
            tried.append(float(at_s))
    assert tried[:5] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert max(b - a for a, b in pairwise(tried)) == 60.0
    assert bench.source.names().pods == {"uid-1": VLLM}
    bench.api.fails = None
    assert bench.labels(1000.0) == {(*VLLM, "app", "vllm")}
    assert bench.api.lists == [False]


def test_labels_and_names_that_cannot_be_are_left_out(bench: Bench) -> None:
    bench.api.listed = [
        told(labels={"app": "a b"}),
        told("Bad_Name", "uid-2", {"app": "x"}),
        told("web-0", "uid-3", {"app": ""}, [("d" * 64, "Not A Name")]),
    ]
    bench.wanted = {VLLM, PodName("serving", "web-0"), PodName("serving", "Bad_Name")}
    assert bench.labels(0.0) == {("serving", "web-0", "app", "")}
    assert [miss.reason for miss in bench.misses] == [Reason.OUT_OF_RANGE]
    assert bench.source.names().containers == {}


def test_more_pods_than_a_node_can_have_are_bounded(bench: Bench) -> None:
    bench.api.listed = [told(f"pod-{n}", f"uid-{n}") for n in range(PODS_MAX + 10)]
    bench.labels(0.0)
    assert len(bench.source.names().pods) == PODS_MAX
    assert bench.misses


def test_a_real_server_is_followed_through_replacement_end_and_oblivion(tmp_path: Path) -> None:
    with KubeServer(tmp_path) as server:
        api = InCluster(server.address, "node-1", server.folder, timeout_s=2.0)
        source = PodLabels(api, ["app"], lambda: [VLLM])
        now_s = [0.0]

        def told_app() -> str:
            now_s[0] += 100.0
            with suppress(SourceError):
                samples = [item for item in source.read(now_s[0]) if isinstance(item, Sample)]
                return samples[0].labels[3] if samples else ""
            return "failed"

        server.put(pod("vllm-0", uid="uid-1", labels={"app": "one"}))
        assert told_app() == "one"
        server.remove("vllm-0")
        server.put(pod("vllm-0", uid="uid-2", labels={"app": "two"}))
        eventually(lambda: told_app() == "two", "the next pod of the name")
        assert source.names().pods == {"uid-2": VLLM}
        server.end_watches()
        server.put(pod("vllm-0", uid="uid-2", labels={"app": "three"}))  # while nobody hears it
        server.forgotten = True
        eventually(lambda: told_app() == "failed", "a version that is gone")
        server.forgotten = False
        eventually(lambda: told_app() == "three", "the new list")
        assert "resourceVersion" not in [query for query in server.asked if "watch" not in query][-1]
        api.close()
