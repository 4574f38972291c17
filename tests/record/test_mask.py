from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.http import HttpError
from gpumon.host.kmsg import KernelLine
from gpumon.host.nvml import UUID, Event
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.records import Decoded
from gpumon.ingest.request import Signal
from gpumon.model import Reason
from gpumon.record.entries import gpu_pass
from gpumon.record.mask import Mask
from gpumon.record.recording_nvml import RecordingNvml
from gpumon.record.recording_ports import RecordingFiles, RecordingHttp, RecordingKernelLog
from gpumon.record.replay_nvml import ReplayNvml
from gpumon.record.replay_ports import ReplayFiles, ReplayHttp, ReplayKernelLog
from gpumon.record.timeline import Pass, Request
from gpumon.requests.sockets import find_inode, parse_fib_trie, parse_if_inet6, parse_peer
from gpumon.sources.cgroup import identify, locate
from gpumon.sources.kernel_log import parse_xid
from gpumon.sources.procfs import parse_cgroup
from tests.fake_port import FakeNvml, device
from tests.fakes import FakeFiles, FakeKernelLog
from tests.record.tapes import new_tape
from tests.record.test_strip import attribute, traces

GPU_UUID = "GPU-0a1b2c3d-1234-5678-9abc-def012345678"
POD_UID = "8d1c9f0e-aaaa-4bbb-8ccc-1234567890ab"
CONTAINER = "4f" * 31 + "a9"
HOST = "gpu-worker-17.prod.example.com"
ADDRESS = "10.42.7.99"
ADDRESS_6 = "fd00:17:42::99"
SLICE = f"kubepods-burstable-pod{POD_UID.replace('-', '_')}.slice"
CGROUP = f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{CONTAINER}.scope"
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 63072A0A:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 424242 1 0 20 4 30 10 -1
"""
FIB_TRIE = f"""\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- {ADDRESS}
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
"""
IF_INET6 = f"{ipaddress.ip_address(ADDRESS_6).exploded.replace(':', '')} 02 40 00 80 eth0\n"
PAGE = f"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",pod="vllm-7d9f-xk2",namespace="x",instance="{ADDRESS}:8000",model_name="m"}} 3
"""
ORIGINALS = [
    *(GPU_UUID[4:], GPU_UUID[4:12], POD_UID, POD_UID.replace("-", "_"), CONTAINER, CONTAINER[:12]),
    *(HOST, "gpu-worker-17", ADDRESS, "63072A0A", ADDRESS_6, IF_INET6[:32], "vllm-7d9f-xk2"),
    *("acme-bank", "team-red", "phash-77", "replica-3f9"),
]

# --- one identifier --------------------------------------------------------------------------------------------------


def test_the_same_is_masked_the_same_wherever_and_however_it_is_written() -> None:
    mask = Mask([HOST])
    masked = mask.text(POD_UID)
    assert mask.text(SLICE) == f"kubepods-burstable-pod{masked.replace('-', '_')}.slice"
    assert mask.identifier(POD_UID) == masked
    assert mask.text(POD_UID.upper()) == masked.upper()
    assert mask.attribute("k8s.pod.uid", POD_UID) == mask.attribute("other", POD_UID) == masked
    assert mask.text(f"MIG-{POD_UID}/3/0") == f"MIG-{masked}/3/0"


def test_the_beginning_of_a_container_id_is_masked_like_the_whole() -> None:
    mask = Mask()
    whole = mask.text(f"docker-{CONTAINER}.scope")
    assert whole.startswith("docker-")
    for size in (12, 13, 63):
        assert mask.attribute("container.id", CONTAINER[:size]) == whole[7 : 7 + size]
    assert mask.attribute("container.id", f"containerd://{CONTAINER}") == f"containerd://{whole[7:71]}"
    assert mask.attribute("host.name", CONTAINER[:12]) == whole[7:19], "Docker's host names"


def test_a_host_is_known_with_and_without_its_domain_and_in_any_case() -> None:
    mask = Mask([HOST])
    masked = mask.identifier(HOST)
    assert re.fullmatch(r"[a-z]{3}-[a-z]{6}-\d\d\.[a-z]{4}\.[a-z]{7}\.[a-z]{3}", masked)
    assert mask.text(f"on {HOST.upper()}: gpu-worker-17 failed") == f"on {masked.upper()}: {masked[:13]} failed"
    assert mask.attribute("k8s.node.name", "gpu-worker-17") == masked[:13]
    assert mask.text("gpu-worker-170 xgpu-worker-17") == "gpu-worker-170 xgpu-worker-17", "not within other words"
    assert mask.url("http://gpu-worker-17:8000/metrics") == f"http://{masked[:13]}:8000/metrics"


def test_addresses_of_one_network_stay_in_one() -> None:
    mask = Mask()
    first, second, other = (ipaddress.ip_address(mask.text(f"10.42.7.{n}")) for n in (1, 2, 200))
    assert ipaddress.ip_network(f"{first}/24", strict=False) == ipaddress.ip_network(f"{second}/24", strict=False)
    assert len({first, second, other}) == 3
    assert str(first).startswith("10.")


@pytest.mark.parametrize(
    "kept",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "255.255.255.0", "::1", "::", "169.254.169.254"),
        *(
            "0000:3b:00.0",
            "PCI:0000:3b:00): 79",
            "12:34:56",
            "aa:bb:cc:dd:ee:ff",
            "NVRM 13.590.48.01",
            "96.00.AE.00.01",
        ),
        *("vllm:num_requests_running", "std::vector<int>", "1.2.3", "deadbeef", "localhost", "nvidia", "node0"),
        "7f00c0de0000-7f00c0de1000 r-xp 00000000 fe:01 1234 /usr/lib/libcuda.so.590.48.01",
    ],
)
def test_what_is_no_identifier_is_kept(kept: str) -> None:
    assert Mask(["localhost", "nvidia", "node0", "a"]).text(kept) == kept
    assert Mask([HOST]).data(kept.encode()) == kept.encode()


@given(st.binary(max_size=300))
def test_any_bytes_are_masked_and_of_the_same_length_where_they_hold_no_address(data: bytes) -> None:
    masked = Mask([HOST], key=b"k").data(data)
    assert len(masked) == len(data) or b"." in data or b":" in data


@given(st.ip_addresses())
def test_every_address_stays_an_address_of_its_kind(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    masked = ipaddress.ip_address(Mask(key=b"k").text(str(address)))
    assert masked.version == address.version
    assert (masked.is_loopback, masked.is_unspecified) == (address.is_loopback, address.is_unspecified)
    if address.version == 6:
        assert masked.is_link_local == address.is_link_local


@given(st.uuids(), st.uuids())
def test_two_identifiers_never_become_one(left: object, right: object) -> None:
    mask = Mask(key=b"k")
    assert (mask.text(str(left)) == mask.text(str(right))) == (left == right)


@given(st.text(max_size=40))
def test_any_name_keeps_its_form(name: str) -> None:
    masked = Mask(key=b"k").name(name)
    assert len(masked) == len(name)
    for before, after in zip(name, masked, strict=True):
        assert before.isalnum() == after.isalnum()


def test_masks_of_two_recordings_have_nothing_in_common_and_those_of_one_everything() -> None:
    first, second = Mask(), Mask()
    assert first.text(GPU_UUID) != second.text(GPU_UUID)
    assert Mask(key=first.key).text(GPU_UUID) == first.text(GPU_UUID)


def test_large_files_are_masked_like_small_ones() -> None:
    mask = Mask(key=b"k")
    line = f"7f0-7f1 r--p 0 fe:01 1 /run/{CONTAINER}/x.so".encode()
    assert mask.data(b"\n".join([line] * 1000)) == b"\n".join([mask.data(line)] * 1000)


# --- tables and pages ------------------------------------------------------------------------------------------------


def test_a_connection_is_found_by_its_masked_peer() -> None:
    mask = Mask()
    table = mask.file("proc/1/net/tcp", TCP.encode())
    peer = parse_peer(mask.text(f"{ADDRESS}:8080"))
    assert peer is not None
    assert str(peer.address) != ADDRESS
    assert find_inode(table, peer) == 424242
    assert b"0100007F:C350" in table
    mapped = TCP.replace("63072A0A", "0000000000000000FFFF000063072A0A")
    assert find_inode(mask.file("proc/1/net/tcp6", mapped.encode()), peer) == 424242
    assert peer.address in parse_fib_trie(mask.file("proc/1/net/fib_trie", FIB_TRIE.encode()))
    peer6 = parse_peer(mask.text(f"[{ADDRESS_6}]:4317"))
    assert peer6 is not None
    assert peer6.address in parse_if_inet6(mask.file("proc/1/net/if_inet6", IF_INET6.encode()))


def test_labels_that_hold_names_are_masked_and_others_are_not() -> None:
    mask = Mask()
    page = mask.page(PAGE.encode()).decode()
    assert f'pod="{mask.identifier("vllm-7d9f-xk2")}"' in page
    assert f'instance="{mask.text(ADDRESS)}:8000"' in page
    assert 'engine="0"' in page
    assert 'model_name="m"} 3' in page
    assert page.startswith("# TYPE vllm:num_requests_running gauge\n")


def test_a_header_is_masked_by_what_its_parts_are() -> None:
    mask = Mask([HOST])
    about = {
        "node_names": [HOST],
        "server_urls": (f"http://{ADDRESS}:8000/metrics",),
        "config": {"gpu": GPU_UUID, "n": 3},
    }
    masked = {name: mask.about(value, name) for name, value in about.items()}
    assert masked == {
        "node_names": [mask.name(HOST)],
        "server_urls": [f"http://{mask.text(ADDRESS)}:8000/metrics"],
        "config": {"gpu": mask.text(GPU_UUID), "n": 3},
    }


def test_the_tenants_attribute_can_be_chosen() -> None:
    assert Mask(tenants=["org"]).attribute("org", "acme-bank") != "acme-bank"
    assert Mask(tenants=["org"]).attribute("tenant.id", "acme-bank") == "acme-bank"
    assert Mask().attribute("x-tenant-id", "acme-bank") != "acme-bank"
    assert Mask().attribute("service.name", "vllm") == "vllm"


# --- a whole recording -----------------------------------------------------------------------------------------------


class Pages:
    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        if "down" in url:
            raise HttpError(Reason.UNAVAILABLE, f"no route to {ADDRESS}")
        return PAGE.encode()


def body() -> bytes:
    request = traces()
    found: Mapping[str, object] = {
        "host.name": HOST,
        "container.id": CONTAINER,
        "k8s.pod.uid": POD_UID,
        "k8s.pod.name": "vllm-7d9f-xk2",
        "k8s.namespace.name": "team-red",
        "k8s.pod.ip": ADDRESS,
        "service.instance.id": "replica-3f9",
        "service.name": "vllm-service",
        "gpumon.gpu.uuid": GPU_UUID,
    }
    request.resource_spans[0].resource.attributes.extend(attribute(key, value) for key, value in found.items())
    span = request.resource_spans[0].scope_spans[0].spans[0]
    for key, value in {"tenant.id": "acme-bank", "prompt_hash": "phash-77", "net.peer.name": "gpu-worker-17"}.items():
        span.attributes.append(attribute(key, value))
    return request.SerializeToString()


def test_no_identifier_is_in_a_masked_recording_and_its_replay_hangs_together() -> None:
    mask = Mask([HOST])
    with new_tape(mask, node_names=[HOST], server_urls=[f"http://{ADDRESS}:8000/metrics"]) as tape:
        recorder = tape.recorder
        host = FakeFiles(
            {
                "proc/77/cgroup": f"0::{CGROUP}\n",
                f"cgroup{CGROUP}/cpu.stat": "throttled_usec 5\n",
                "proc/1/net/tcp": TCP,
                "proc/1/net/fib_trie": FIB_TRIE,
                "proc/1/net/if_inet6": IF_INET6,
                "proc/77/maps": f"7f0-7f1 r--p 0 fe:01 1 /run/containerd/{CONTAINER}/x.so\n" * 500,
            },
            {"proc/77/root": f"/run/{CONTAINER}"},
        )
        files = RecordingFiles(host, recorder)
        recorder.mark("processes", tape.clock.now_s())
        for path in host.files:
            files.read(path)
        files.list(f"cgroup/kubepods.slice/kubepods-burstable.slice/{SLICE}")
        files.link("proc/77/root")
        log = FakeKernelLog()
        log.write(f"NVRM: Xid (PCI:0000:3b:00): 79, pid=77, name=python3, {GPU_UUID} on gpu-worker-17")
        RecordingKernelLog(log, recorder).read()
        http = RecordingHttp(Pages(), recorder)
        http.get(f"http://user@{ADDRESS}:8000/metrics", timeout_s=1.0, limit=1 << 20)
        with pytest.raises(HttpError):
            http.get(f"http://{HOST}:1/down", timeout_s=1.0, limit=1)
        inner = FakeNvml()
        inner.answers |= {f"device:{GPU_UUID}": lambda: device(), "uuid": GPU_UUID, "events.register": True}
        inner.answers["events.wait"] = lambda *_: Event(GPU_UUID, 8, 79)
        nvml = RecordingNvml(inner, recorder, tape.clock)
        nvml.open()
        recorder.mark(gpu_pass(GPU_UUID), tape.clock.now_s())
        nvml.text(nvml.device_by_uuid(GPU_UUID), UUID)
        nvml.events().wait(0)
        recorder.request(Signal.TRACES, body(), is_json=False, peer=f"{ADDRESS}:8080", at_s=tape.clock.now_s())
        recording, clock = tape.replay()

        everything = tape.unpacked()
        for original in ORIGINALS:
            assert original.encode() not in everything
            assert original.encode() not in tape.path.read_bytes()
        assert mask.key not in everything

        masked = ReplayFiles(recording, clock)
        lines = parse_cgroup(masked.read("proc/77/cgroup"))
        [folder] = locate(lines).cpu
        assert masked.read(f"{folder}/cpu.stat") == b"throttled_usec 5\n"
        identity = identify(lines)
        assert identity.container_id == mask.text(CONTAINER)
        assert identity.pod_uid == mask.text(POD_UID)
        [name] = masked.list(folder.rpartition("/")[0])
        assert folder.endswith(name)
        assert masked.link("proc/77/root") == f"/run/{identity.container_id}"

        [line] = ReplayKernelLog(recording, clock).read()
        assert isinstance(line, KernelLine)
        assert parse_xid(line.text) is not None
        assert mask.text(GPU_UUID) in line.text

        replay_http = ReplayHttp(recording, clock)
        [url] = cast("list[str]", recording.header["server_urls"])
        assert b"vllm:num_requests_running" in replay_http.get(url, timeout_s=1.0, limit=1 << 20)
        with pytest.raises(HttpError, match=f"no route to {mask.text(ADDRESS)}"):
            replay_http.get(mask.url(f"http://{HOST}:1/down"), timeout_s=1.0, limit=1)

        replay = ReplayNvml(recording, clock)
        replay.open()
        gpu = replay.device_by_uuid(mask.text(GPU_UUID))
        assert replay.text(gpu, UUID) == mask.text(GPU_UUID)
        assert replay.events().wait(0) == Event(mask.text(GPU_UUID), 8, 79)

        recording, clock = tape.replay()
        events = list(recording.passes())
        assert gpu_pass(mask.text(GPU_UUID)) in [event.name for event in events if isinstance(event, Pass)]
        [request] = [event for event in events if isinstance(event, Request)]
        peer = parse_peer(request.peer)
        assert peer is not None
        assert find_inode(masked.read("proc/1/net/tcp"), peer) == 424242
        [decoded] = decode_traces([request.body])
        assert isinstance(decoded, Decoded)
        [span] = decoded.spans
        resource = span.resource.attributes
        assert resource["container.id"] == identity.container_id
        assert resource["k8s.pod.uid"] == identity.pod_uid
        assert resource["gpumon.gpu.uuid"] == mask.text(GPU_UUID)
        assert resource["host.name"] in cast("list[str]", recording.header["node_names"])
        assert resource["service.name"] == "vllm-service"
        assert json.dumps(recording.header)
