"""The API server over real HTTPS: list and watch, its ends, what it denies, and what is no answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host import kube_api_client
from gpumon.host.kube_api import Change, KubeApiError
from gpumon.host.kube_api_client import Chunks, InCluster
from gpumon.model import Reason
from tests.e2e.waiting import eventually
from tests.kube_server import KubeServer, pod


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with KubeServer(tmp_path) as running:
        yield running


@pytest.fixture
def api(server: KubeServer) -> Iterator[InCluster]:
    one = InCluster(server.address, "node-1", server.folder, timeout_s=2.0)
    yield one
    one.close()


def refused(ask: Callable[[], object]) -> KubeApiError:
    with pytest.raises(KubeApiError) as caught:
        ask()
    return caught.value


def begin(server: KubeServer, api: InCluster) -> None:
    api.watch(str(server.version))
    eventually(lambda: server.watches == 1, "the watch is open")


def heard(api: InCluster, count: int) -> list[Change]:
    found: list[Change] = []

    def look() -> bool:
        found.extend(api.changes() or ())
        return len(found) >= count

    eventually(look, f"{count} changes")
    return found


def test_pods_are_listed_with_names_uids_labels_and_container_ids(server: KubeServer, api: InCluster) -> None:
    manifest = {"kubernetes.io/config.hash": "0123456789abcdef0123456789abcdef"}
    server.put(pod("vllm-0", labels={"app": "vllm"}, containers={"server": "a" * 64, "proxy": "b" * 64}))
    server.put(pod("static", namespace="kube-system", annotations=manifest))
    pods, version = api.pods(newest=False)
    assert version == str(server.version)
    first, second = pods
    assert (first.namespace, first.name, first.uids) == ("serving", "vllm-0", ("uid-of-vllm-0",))
    assert (first.labels, first.containers) == ({"app": "vllm"}, (("a" * 64, "server"), ("b" * 64, "proxy")))
    assert second.uids == ("uid-of-static", "0123456789abcdef0123456789abcdef")
    assert server.asked == [{"fieldSelector": "spec.nodeName=node-1", "resourceVersion": "0"}]


def test_the_newest_list_is_not_from_a_cache(server: KubeServer, api: InCluster) -> None:
    api.pods(newest=True)
    assert "resourceVersion" not in server.asked[0]


def test_changes_are_heard_in_order_and_a_look_never_waits(server: KubeServer, api: InCluster) -> None:
    begin(server, api)
    began_s = time.monotonic()
    assert [api.changes() for _ in range(5)] == [[]] * 5
    assert time.monotonic() - began_s < 20
    server.put(pod("a", labels={"app": "x" * 200_000}))
    server.put(pod("a"))
    server.bookmark()
    server.remove("a")
    added, modified, bookmark, deleted = heard(api, 4)
    assert added.pod is not None
    assert len(added.pod.labels["app"]) == 200_000
    assert modified.pod is not None
    assert (bookmark.pod, bookmark.version) == (None, "103")
    assert [each.is_deleted for each in (added, modified, bookmark, deleted)] == [False, False, False, True]
    assert server.asked[-1]["allowWatchBookmarks"] == "true"


def test_a_watch_that_the_server_ends_is_over(server: KubeServer, api: InCluster) -> None:
    begin(server, api)
    server.put(pod("a"))
    server.end_watches()
    assert [change.version for change in heard(api, 1)] == ["101"]
    eventually(lambda: api.changes() is None, "the end")


@pytest.mark.parametrize("late", [True, False])
def test_a_version_that_is_no_longer_kept_is_told_as_such(server: KubeServer, api: InCluster, late: bool) -> None:
    server.forgotten, server.late = True, late

    def follow() -> None:
        api.watch("1")
        heard(api, 1)

    assert refused(follow).gone


def test_a_watch_of_which_nothing_is_heard_for_too_long_is_over(server: KubeServer) -> None:
    now_s = [0.0]
    api = InCluster(server.address, "node-1", server.folder, now_s=lambda: now_s[0])
    begin(server, api)
    assert api.changes() == []
    now_s[0] = kube_api_client.WATCH_S + 31.0
    assert api.changes() is None


def test_the_token_is_read_anew_for_every_request(server: KubeServer, api: InCluster) -> None:
    server.token = "token-2"
    assert refused(lambda: api.pods(newest=False)).reason is Reason.DENIED
    (server.folder / "token").write_text("token-2")
    assert api.pods(newest=False)[0] == []


@pytest.mark.parametrize(
    ("status", "reason"), [(403, Reason.DENIED), (500, Reason.UNAVAILABLE), (302, Reason.UNAVAILABLE)]
)
def test_refusals_have_their_reasons(server: KubeServer, api: InCluster, status: int, reason: Reason) -> None:
    server.status = status
    assert refused(lambda: api.pods(newest=False)).reason is reason
    assert refused(lambda: api.watch("1")).reason is reason


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_without_an_account_it_is_denied(server: KubeServer, api: InCluster, name: str) -> None:
    (server.folder / name).unlink()
    error = refused(lambda: api.pods(newest=False))
    assert error.reason is Reason.DENIED
    assert name in error.detail


def test_another_authority_is_not_trusted(server: KubeServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("other")
    with KubeServer(folder):
        pass
    api = InCluster(server.address, "node-1", folder, timeout_s=2.0)
    assert refused(lambda: api.pods(newest=False)).reason is Reason.UNAVAILABLE
    assert server.asked == []


def test_outside_of_a_pod_it_is_unavailable() -> None:
    assert refused(lambda: InCluster(None, "node-1").pods(newest=False)).reason is Reason.UNAVAILABLE
    assert refused(lambda: InCluster(("127.0.0.1", 1), "").pods(newest=False)).reason is Reason.UNAVAILABLE


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"metadata": 1}', b'{"metadata": {}, "items": [{}]}', b"\xff", b"<html>"]
)
def test_a_list_that_is_none_is_malformed(server: KubeServer, api: InCluster, body: bytes) -> None:
    server.body = body
    assert refused(lambda: api.pods(newest=False)).reason is Reason.MALFORMED


def test_a_list_that_is_too_large_is_refused(
    server: KubeServer, api: InCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_api_client, "LIST_BYTES", 1000)
    server.put(pod("a", labels={"x": "y" * 2000}))
    assert refused(lambda: api.pods(newest=False)).reason is Reason.MALFORMED


@pytest.mark.parametrize(
    "line", [b"no json\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": {}}\n', b"x" * 5_000_000]
)
def test_a_change_that_is_none_ends_the_watch(server: KubeServer, api: InCluster, line: bytes) -> None:
    begin(server, api)
    server.say(line)
    assert refused(lambda: heard(api, 1)).reason is Reason.MALFORMED
    assert api.changes() is None


# --- chunks ---------------------------------------------------------------------------------------------------------


def encoded(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(1, 20), max_size=80))
def test_chunks_are_put_together_from_whatever_pieces_they_come_in(parts: list[bytes], cuts: list[int]) -> None:
    data, chunks, body = encoded(parts), Chunks(), b""
    for cut in cuts:
        body += chunks.feed(data[:cut])
        data = data[cut:]
    body += chunks.feed(data)
    assert body == b"".join(parts)
    assert chunks.ended


@given(st.binary(max_size=200))
def test_any_bytes_are_chunks_or_refused(data: bytes) -> None:
    try:
        Chunks().feed(data)
    except ValueError:
        return


@pytest.mark.parametrize("data", [b"5\nhello", b"-1\r\n", b"5\r\nhelloXX", b"zz\r\n", b"1" * 2000, b"123456789\r\n"])
def test_what_are_no_chunks_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        Chunks().feed(data)
