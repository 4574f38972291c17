"""The kubelet's pod-resources over a real socket: both versions, gates, deadlines, restarts, and what is no kubelet."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.interpreter import module_environment
from gpumon.host.podresources import ClaimedDevice, HeldDevices, PodResourcesError
from gpumon.host.podresources_client import ANSWER_BYTES, KubeletSocket
from gpumon.host.podresources_schema import ListResponse
from gpumon.model import Reason
from tests.kubelet import Claim, Container, Kubelet, Pod, holding, text


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with Kubelet(tmp_path / "kubelet.sock") as running:
        yield running


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeletSocket]:
    one = KubeletSocket(str(tmp_path / "kubelet.sock"), timeout_s=1.0)
    yield one
    one.close()


def refused(ask: Callable[[], object]) -> PodResourcesError:
    with pytest.raises(PodResourcesError) as caught:
        ask()
    return caught.value


def test_two_hundred_pods_are_told_with_what_they_hold(kubelet: Kubelet, client: KubeletSocket) -> None:
    kubelet.pods = [
        *(holding("serving", f"vllm-{n}", f"GPU-{n}::0", f"GPU-{n}::1", f"GPU-{n}::2") for n in range(8)),
        *(Pod("web", f"web-{n}", (Container("app", cpus=64), Container("proxy"))) for n in range(192)),
    ]
    answer = client.list()
    assert (answer.told, answer.version) == (200, "v1")
    assert [pod.name for pod in answer.pods] == [f"vllm-{n}" for n in range(8)]
    (container,) = answer.pods[3].containers
    # The kubelet has an entry for each NUMA node; they are of one resource all the same.
    (held,) = container.devices
    assert (container.name, held.resource, set(held.ids)) == (
        "server",
        "nvidia.com/gpu",
        {"GPU-3::0", "GPU-3::1", "GPU-3::2"},
    )


def test_claims_come_with_their_cdi_names_where_the_gate_is_on(kubelet: Kubelet, client: KubeletSocket) -> None:
    claim = Claim("serving", "gpu-claim", "gpu-0", ("k8s.gpu.nvidia.com/claim=7-gpu-0", "nvidia.com/gpu=GPU-0"))
    kubelet.pods = [Pod("serving", "vllm-0", (Container(claims=(claim,)),))]
    (pod,) = client.list().pods
    assert pod.containers[0].claimed == (
        ClaimedDevice("serving", "gpu-claim", "gpu.nvidia.com", "node-1", "gpu-0", claim.cdi),
    )
    kubelet.dynamic = False
    assert client.list().pods == ()


def test_the_old_version_is_asked_where_there_is_no_other(kubelet: Kubelet, client: KubeletSocket) -> None:
    kubelet.stop()
    kubelet.version = "v1alpha1"
    kubelet.pods = [holding("serving", "vllm-0", "GPU-0")]
    kubelet.start()
    answer = client.list()
    assert answer.version == "v1alpha1"
    assert answer.pods[0].containers[0].devices == (HeldDevices("nvidia.com/gpu", ("GPU-0",)),)
    assert refused(client.allocatable).reason is Reason.UNSUPPORTED
    assert refused(lambda: client.get("serving", "vllm-0")).reason is Reason.UNSUPPORTED
    kubelet.stop()
    kubelet.version = "v1"
    kubelet.start()
    assert client.list().version == "v1"


def test_one_pod_is_told_alone_and_one_that_is_not_there_is_none(kubelet: Kubelet, client: KubeletSocket) -> None:
    kubelet.pods = [holding("serving", "vllm-0", "GPU-0"), holding("serving", "vllm-1", "GPU-1")]
    pod = client.get("serving", "vllm-1")
    assert pod is not None
    assert pod.containers[0].devices == (HeldDevices("nvidia.com/gpu", ("GPU-1",)),)
    assert client.get("serving", "vllm-2") is None


def test_what_may_be_handed_out_is_told(kubelet: Kubelet, client: KubeletSocket) -> None:
    kubelet.offered = ["GPU-0::0", "GPU-0::1"]
    assert client.allocatable() == (HeldDevices("nvidia.com/gpu", ("GPU-0::0", "GPU-0::1")),)


def test_calls_behind_a_gate_that_is_off_are_unsupported(kubelet: Kubelet, client: KubeletSocket) -> None:
    kubelet.get = kubelet.allocatable = False
    assert refused(lambda: client.get("a", "b")).reason is Reason.UNSUPPORTED
    assert refused(client.allocatable).reason is Reason.UNSUPPORTED


def test_a_kubelet_that_takes_its_time_is_left_at_the_deadline(kubelet: Kubelet, client: KubeletSocket) -> None:
    kubelet.delay_s = 8.0
    began_s = time.monotonic()
    error = refused(client.list)
    assert (error.reason, error.detail) == (Reason.TIMEOUT, "no answer within 1 s")
    assert time.monotonic() - began_s < 7
    kubelet.delay_s = 0.0
    assert client.list().told == 0


def test_a_socket_that_goes_and_comes_is_found_again_at_once(kubelet: Kubelet, client: KubeletSocket) -> None:
    kubelet.pods = [holding("serving", "vllm-0", "GPU-0")]
    for _ in range(5):
        assert client.list().told == 1
        kubelet.stop()
        error = refused(client.list)
        assert error.reason is Reason.UNAVAILABLE
        assert "No such file" in error.detail
        kubelet.start()
    assert client.list().told == 1


def test_a_socket_made_anew_between_two_questions_is_not_noticed(kubelet: Kubelet, client: KubeletSocket) -> None:
    assert client.list().told == 0
    kubelet.stop()
    kubelet.pods = [holding("serving", "vllm-0", "GPU-0")]
    kubelet.start()
    assert client.list().told == 1


def test_too_many_questions_are_told_as_such(kubelet: Kubelet, client: KubeletSocket) -> None:
    kubelet.limited = True
    error = refused(client.list)
    assert error.reason is Reason.UNAVAILABLE
    assert "how often" in error.detail


def test_an_answer_that_is_too_large_is_refused_and_the_next_one_is_read(
    kubelet: Kubelet, client: KubeletSocket
) -> None:
    kubelet.raw = text(9, b"x" * (ANSWER_BYTES + 1))
    assert refused(client.list).reason is Reason.MALFORMED
    kubelet.raw = None
    assert client.list().told == 0


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", text(1, b"\x0a\x05ab"), text(1, text(1, b"\xff\xfe"))])
def test_an_answer_that_is_none_is_malformed(kubelet: Kubelet, client: KubeletSocket, raw: bytes) -> None:
    kubelet.raw = raw
    assert refused(client.list).reason is Reason.MALFORMED


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: text(1, data)))
def test_any_bytes_are_a_listing_or_refused_by_the_parser(data: bytes) -> None:
    try:
        ListResponse.FromString(data)
    except DecodeError:
        return


def serve_garbage(path: Path, say: bytes) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(0.5)
                try:
                    connection.sendall(say)
                    while connection.recv(4096):
                        pass
                except OSError:
                    continue

    threading.Thread(target=answer, daemon=True).start()
    return listener


@pytest.mark.parametrize("say", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 4096, bytes(range(256)) * 16])
def test_what_is_no_kubelet_is_unavailable_within_the_deadline(
    tmp_path: Path, client: KubeletSocket, say: bytes
) -> None:
    with serve_garbage(tmp_path / "kubelet.sock", say):
        began_s = time.monotonic()
        assert refused(client.list).reason in (Reason.UNAVAILABLE, Reason.TIMEOUT)
        assert time.monotonic() - began_s < 30


def test_a_file_that_is_no_socket_is_unavailable(tmp_path: Path, client: KubeletSocket) -> None:
    (tmp_path / "kubelet.sock").write_text("")
    assert refused(client.list).reason is Reason.UNAVAILABLE


def test_a_socket_of_root_is_denied_to_others(kubelet: Kubelet, tmp_path: Path) -> None:
    os.chmod(kubelet.path, 0o600)
    program = (
        "import os, sys\n"
        "from gpumon.host.podresources_client import KubeletSocket\n"
        "from gpumon.host.podresources import PodResourcesError\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "try: KubeletSocket(sys.argv[1], timeout_s=2.0).list()\n"
        "except PodResourcesError as error: print(error.reason.value)\n"
    )
    if os.geteuid() != 0:
        os.chmod(kubelet.path, 0)
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):  # pytest's, which nobody else may enter
        folder.chmod(folder.stat().st_mode | 0o001)
    found = subprocess.run(
        [sys.executable, "-P", "-c", program, str(kubelet.path)],
        env=module_environment(os.environ),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert found.stdout.strip() == "denied", found.stderr
