"""Where requests run: by what the resource says, by the connection, by the configuration; and why not."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence

import pytest

from gpumon.host.host_files import HostFiles
from gpumon.model import Binding, GpuProcess, GpuUuid, Miss, Reason
from gpumon.requests.binding import Binder, ServerGpus
from tests.fakes import FakeFiles
from tests.fixtures.hosts import fixture_files

G = [GpuUuid(f"GPU-{i:08x}") for i in range(8)]
CONTAINER = "ec8207a3dde6"
POD_UID = "1f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6"
FIB = "     |-- {0}\n        /32 host LOCAL\n"
TCP_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def holder(pid: int, gpu: int) -> GpuProcess:
    return GpuProcess(pid, str(gpu), G[gpu], 1e9, None)


class Host:
    """Processes without containers on one node, and the connections they have."""

    def __init__(self, files: Mapping[str, str] | None = None) -> None:
        self.files = FakeFiles(files or {})
        self.files.put("proc/1/net/fib_trie", FIB.format("10.0.0.1"))
        self.files.put("proc/self/net/tcp", TCP_HEAD)
        self.files.put("proc/1/net/tcp", TCP_HEAD)
        self.holders: list[GpuProcess] = []

    def process(
        self, pid: int, parent: int, *, comm: str = "python", group: int = 0, cgroup: str = "/", own: int = 0
    ) -> None:
        rest = f"S {parent} {group or pid} 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {pid * 10} 0 0"
        self.files.put(f"proc/{pid}/stat", f"{pid} ({comm}) {rest}")
        self.files.put(f"proc/{pid}/cgroup", f"0::{cgroup}\n")
        numbers = f"{pid}\t{own}" if own else f"{pid}"
        self.files.put(f"proc/{pid}/status", f"Name:\t{comm}\nNSpid:\t{numbers}\n")

    def hold(self, pid: int, *gpus: int) -> None:
        self.holders += [holder(pid, gpu) for gpu in gpus]

    def connect(self, table: str, local: str, inode: int, pid: int | None) -> None:
        """local: as the kernel writes it."""
        line = f"   1: {local} 0100007F:10DD 01 00000000:00000000 02:000AF 00000000  1000        0 {inode} 2\n"
        self.files.put(table, self.files.files.get(table, b"").decode() + line)
        if pid is not None:
            self.files.links[f"proc/{pid}/fd/0"] = "/dev/null"
            self.files.links[f"proc/{pid}/fd/9"] = f"socket:[{inode}]"

    def disconnect(self, table: str) -> None:
        self.files.put(table, TCP_HEAD)

    def binder(self, **told: object) -> Binder:
        return Binder(self.files, lambda: self.holders, gpus=lambda: G, node_names=["node-a"], **told)  # type: ignore[arg-type]


def bound(host: Host, attributes: Mapping[str, object], peer: str = "", **told: object) -> Binding:
    binder = host.binder(**told)
    assert binder.bind(attributes, 1, peer) == Binding(unbound="pending")
    assert list(binder.read(0.0)) == []
    return binder.bind(attributes, 1, peer)


@pytest.fixture
def vllm() -> Host:
    """Started from a shell: API server 100, engine 110, workers 121 and 122; and another server beside it, 200."""
    host = Host()
    host.process(50, 1, comm="bash")
    host.process(100, 50, comm="vllm")
    host.process(110, 100, comm="VLLM::EngineCor", group=100)
    for pid in (121, 122):
        host.process(pid, 110, comm="VLLM::Worker_TP", group=100)
    host.process(200, 50, comm="llama-server")
    host.hold(121, 0)
    host.hold(122, 1)
    host.hold(200, 2)
    return host


@pytest.fixture
def pod() -> Host:
    """The fixture host with eight workers in one container of a pod."""
    host = Host(fixture_files("h200"))
    for i in range(8):
        host.hold(41_001 + i, i)
        host.files.put(f"proc/{41_001 + i}/net/fib_trie", FIB.format("10.244.1.10"))
    return host


# --- what the resource says -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["GPU-00000001,GPU-00000003", ("GPU-00000001", "GPU-00000003"), ["GPU-00000001", " GPU-00000003", 7, "x"]]
)
def test_gpus_that_the_resource_names_are_taken(value: object) -> None:
    assert bound(Host(), {"gpumon.gpu.uuid": value}) == Binding(how="resource", gpus=(G[1], G[3]))


def test_gpus_of_another_node_are_not_ours() -> None:
    assert bound(Host(), {"gpumon.gpu.uuid": "GPU-ffffffff"}).unbound == "other_node"


@pytest.mark.parametrize("attributes", [{"process.pid": 100}, {"vllm.process_id": "100"}, {"process.pid": "110"}])
def test_a_pid_leads_down_the_tree_to_the_workers(vllm: Host, attributes: dict[str, object]) -> None:
    found = bound(vllm, attributes)
    assert (found.how, found.gpus) == ("resource", (G[0], G[1]))
    assert found.pid == int(str(next(iter(attributes.values()))))


def test_a_worker_leads_to_its_siblings(vllm: Host) -> None:
    assert bound(vllm, {"process.pid": 122}).gpus == (G[0], G[1])


def test_servers_started_from_one_shell_are_apart(vllm: Host) -> None:
    vllm.process(201, 50, comm="llama-server")
    vllm.hold(201, 3)
    assert bound(vllm, {"process.pid": 200}).gpus == (G[2],)
    assert bound(vllm, {"process.pid": 201}).gpus == (G[3],)


def test_a_process_beside_the_engine_is_bound_by_its_process_group(vllm: Host) -> None:
    vllm.process(101, 100, comm="vllm-api-2", group=100)
    assert bound(vllm, {"process.pid": 101}).gpus == (G[0], G[1])


def test_a_process_that_has_nothing_to_do_with_a_gpu_says_so(vllm: Host) -> None:
    vllm.process(300, 50, comm="router")
    assert bound(vllm, {"process.pid": 300}) == Binding(pid=300, unbound="no_gpu")


def test_a_pid_of_another_namespace_is_not_taken_for_one_of_ours(vllm: Host) -> None:
    # Our 200 is 1 to itself; a sender that calls itself 200 is somebody else.
    vllm.process(200, 50, comm="llama-server", own=1)
    assert bound(vllm, {"process.pid": 200}).unbound == "no_process"


def test_a_pid_of_another_host_is_not_taken_for_one_of_ours(vllm: Host) -> None:
    assert bound(vllm, {"process.pid": 100, "host.name": "node-b"}).unbound == "other_node"
    assert bound(vllm, {"process.pid": 100, "host.name": "NODE-A"}).gpus == (G[0], G[1])


def test_a_pod_of_another_node_is_not_ours(pod: Host) -> None:
    assert bound(pod, {"k8s.pod.uid": POD_UID, "k8s.node.name": "node-b"}).unbound == "other_node"


@pytest.mark.parametrize(
    "attributes",
    [
        {"container.id": CONTAINER + "07f7867f8f5390915018488b00000000000000000000000000"},
        {"k8s.pod.uid": POD_UID.upper(), "host.name": "vllm-0", "k8s.node.name": "node-a"},
        {"container.id": f"containerd://{CONTAINER}"},
        {"host.name": CONTAINER},
    ],
)
def test_container_and_pod_lead_to_all_their_gpus(pod: Host, attributes: dict[str, object]) -> None:
    full = pod.files.files["proc/41001/cgroup"].decode().rpartition("cri-containerd-")[2].partition(".")[0]
    if len(str(attributes.get("container.id", ""))) > 60:
        attributes["container.id"] = full
    found = bound(pod, attributes)
    assert (found.how, found.gpus, found.pid) == ("resource", tuple(G), None)
    assert (found.container_id, found.pod_uid) == (full, POD_UID)


def test_a_pid_chooses_among_the_processes_of_its_container(pod: Host) -> None:
    # Worker 41003 is 102 in its container; its parent is pid 1, so it stands for itself.
    found = bound(pod, {"k8s.pod.uid": POD_UID, "process.pid": 102})
    assert (found.pid, found.gpus) == (41_003, (G[2],))


def test_a_container_without_gpus_is_no_process_of_ours(pod: Host) -> None:
    assert bound(pod, {"container.id": "f" * 64}).unbound == "no_process"


# --- the connection -------------------------------------------------------------------------------------------------


def test_a_loopback_connection_leads_to_the_owner_of_its_socket(vllm: Host) -> None:
    vllm.connect("proc/self/net/tcp", "0100007F:A001", 777, 110)
    assert bound(vllm, {}, "127.0.0.1:40961") == Binding(how="peer", pid=110, gpus=(G[0], G[1]))


def test_an_address_of_the_host_is_looked_up_in_the_hosts_namespace(vllm: Host) -> None:
    vllm.connect("proc/1/net/tcp", "0100000A:A001", 778, 200)
    binder = vllm.binder()
    list(binder.read(0.0))
    binder.bind({}, 1, "10.0.0.1:40961")
    list(binder.read(1.0))  # learns the host's addresses
    assert binder.bind({}, 1, "10.0.0.1:40961").unbound == "pending"  # told apart by its port from now on
    list(binder.read(2.0))
    assert binder.bind({}, 1, "10.0.0.1:40961") == Binding(how="peer", pid=200, gpus=(G[2],))


def test_the_address_of_a_pod_leads_to_the_pod_whatever_the_port(pod: Host) -> None:
    binder = pod.binder()
    binder.bind({"vllm.process_id": "101"}, 1, "10.244.1.10:50000")
    list(binder.read(0.0))
    found = binder.bind({"vllm.process_id": "101"}, 1, "10.244.1.10:50001")
    assert (found.how, found.pid, found.gpus, found.pod_uid) == ("peer", 41_002, (G[1],), POD_UID)
    assert len(binder) == 1


def test_a_pid_that_comes_from_a_pods_address_is_not_one_of_the_nodes(vllm: Host) -> None:
    assert bound(vllm, {"process.pid": 100}, "10.244.9.9:5000").unbound == "no_process"


def test_a_connection_that_ended_leaves_the_binding_while_the_process_lives(vllm: Host) -> None:
    vllm.connect("proc/self/net/tcp", "0100007F:A001", 777, 110)
    binder = vllm.binder(bound_s=10.0)
    binder.bind({}, 1, "127.0.0.1:40961")
    list(binder.read(0.0))
    vllm.disconnect("proc/self/net/tcp")
    list(binder.read(10.0))
    assert binder.bind({}, 1, "127.0.0.1:40961").gpus == (G[0], G[1])
    vllm.process(110, 100, comm="other")
    vllm.files.put("proc/110/stat", vllm.files.files["proc/110/stat"].replace(b" 1100 ", b" 99999 "))
    list(binder.read(20.0))
    assert binder.bind({}, 1, "127.0.0.1:40961").unbound == "no_process"


def test_sockets_that_may_not_be_seen_are_denied(vllm: Host) -> None:
    vllm.connect("proc/self/net/tcp", "0100007F:A001", 777, 110)
    vllm.files.deny("proc/110/fd", Reason.DENIED)
    assert denied(vllm) == ("denied", [Reason.DENIED])


def test_sockets_whose_links_may_not_be_read_are_denied(vllm: Host) -> None:
    vllm.connect("proc/self/net/tcp", "0100007F:A001", 777, 110)
    for path in vllm.files.links:
        vllm.files.deny(path, Reason.DENIED)
    assert denied(vllm) == ("denied", [Reason.DENIED])


def denied(host: Host) -> tuple[str, list[Reason]]:
    """Why a connection from loopback is not bound, and the misses that say what would help."""
    binder = host.binder()
    binder.bind({}, 1, "127.0.0.1:40961")
    misses = [item for item in binder.read(0.0) if isinstance(item, Miss)]
    assert all("CAP_SYS_PTRACE" in miss.detail and "CAP_DAC_READ_SEARCH" in miss.detail for miss in misses)
    return binder.bind({}, 1, "127.0.0.1:40961").unbound, [miss.reason for miss in misses]


def test_the_search_for_a_sockets_owner_is_bounded(vllm: Host) -> None:
    for pid in range(1000, 1200):
        vllm.process(pid, 1)
        vllm.files.links |= {f"proc/{pid}/fd/{fd}": f"socket:[{pid * 1000 + fd}]" for fd in range(100)}
    vllm.connect("proc/self/net/tcp", "0100007F:A001", 777, None)
    looked = 0
    link = vllm.files.link

    def counted(path: str) -> str:
        nonlocal looked
        looked += 1
        return link(path)

    vllm.files.link = counted  # type: ignore[method-assign]
    assert bound(vllm, {}, "127.0.0.1:40961").unbound == "no_process"
    assert looked == 8192


def test_a_real_connection_is_found_in_the_real_proc() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        address, port = client.getsockname()
        holders = [GpuProcess(os.getpid(), "0", G[0], None, None)]
        binder = Binder(HostFiles(), lambda: holders, gpus=lambda: G, node_names=[])
        binder.bind({}, 1, f"{address}:{port}")
        list(binder.read(0.0))
        found = binder.bind({}, 1, f"{address}:{port}")
    assert (found.how, found.pid, found.gpus) == ("peer", os.getpid(), (G[0],))


# --- a proxy, which says where it passes requests on to -------------------------------------------------------------


def listen(host: Host, table: str, local: str, inode: int, pid: int) -> None:
    line = f"   0: {local} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {inode} 1\n"
    host.files.put(table, host.files.files.get(table, TCP_HEAD.encode()).decode() + line)
    host.files.links[f"proc/{pid}/fd/7"] = f"socket:[{inode}]"


UPSTREAM = {"service.name": "gpumon-proxy", "gpumon.upstream": "127.0.0.1:8000"}


@pytest.mark.parametrize("local", ["0100007F:1F40", "00000000:1F40"])
def test_a_proxy_is_bound_to_what_listens_behind_it(vllm: Host, local: str) -> None:
    vllm.process(300, 50, comm="gpumon")
    vllm.connect("proc/self/net/tcp", "0100007F:A001", 777, 300)
    listen(vllm, "proc/self/net/tcp", "0100007F:1F41", 800, 200)
    listen(vllm, "proc/self/net/tcp", local, 801, 100)
    assert bound(vllm, UPSTREAM, "127.0.0.1:40961") == Binding(how="resource", pid=100, gpus=(G[0], G[1]))


def test_a_server_that_listens_on_every_ipv6_address_is_found_too(vllm: Host) -> None:
    listen(vllm, "proc/self/net/tcp6", "0" * 32 + ":1F40", 801, 200)
    assert bound(vllm, UPSTREAM, "127.0.0.1:40961").pid == 200


def test_who_listens_on_the_very_address_goes_before_who_listens_on_all(vllm: Host) -> None:
    listen(vllm, "proc/self/net/tcp", "00000000:1F40", 801, 200)
    listen(vllm, "proc/self/net/tcp", "0100007F:1F40", 802, 100)
    assert bound(vllm, UPSTREAM, "127.0.0.1:40961").pid == 100


def test_a_proxy_without_its_server_is_not_taken_for_it(vllm: Host) -> None:
    vllm.process(300, 50, comm="gpumon", group=100)  # beside the engine, so it would be bound to that by its group
    vllm.connect("proc/self/net/tcp", "0100007F:A001", 777, 300)
    assert bound(vllm, UPSTREAM, "127.0.0.1:40961") == Binding(unbound="no_process")
    assert bound(vllm, UPSTREAM) == Binding(unbound="no_process")


def test_a_proxy_in_a_pod_is_bound_to_what_listens_in_that_pod(pod: Host) -> None:
    pod.process(300, 1, comm="llama-server")
    pod.hold(300, 5)
    listen(pod, "proc/self/net/tcp", "0100007F:1F40", 800, 300)  # gpumon's own loopback is another one
    for i in range(8):
        listen(pod, f"proc/{41_001 + i}/net/tcp", "0100007F:1F40", 801, 41_004)
    found = bound(pod, UPSTREAM, "10.244.1.10:5000")
    assert (found.how, found.pid, found.gpus) == ("resource", 41_004, (G[3],))


def test_a_proxy_in_a_pod_whose_sockets_cannot_be_seen_is_bound_to_the_pod(pod: Host) -> None:
    found = bound(pod, UPSTREAM, "10.244.1.10:5000")
    assert (found.how, found.gpus, found.pod_uid) == ("peer", tuple(G), POD_UID)


def test_a_server_in_a_pod_is_found_by_the_pods_address_from_elsewhere_on_the_node(pod: Host) -> None:
    listen(pod, "proc/41001/net/tcp", "00000000:1F40", 801, 41_002)
    told = {"gpumon.upstream": "10.244.1.10:8000"}
    assert bound(pod, told, "10.244.9.9:5000").gpus == (G[1],)
    assert bound(pod, {"gpumon.upstream": "10.99.0.1:8000"}, "10.244.9.9:5000").unbound == "no_process"


@pytest.mark.parametrize("value", ["", "8000", "server:8000", "127.0.0.1:99999", 8000, ["127.0.0.1:8000"]])
def test_an_upstream_that_is_no_address_is_passed_over(vllm: Host, value: object) -> None:
    vllm.connect("proc/self/net/tcp", "0100007F:A001", 777, 110)
    assert bound(vllm, {"gpumon.upstream": value}, "127.0.0.1:40961").pid == 110


def test_a_real_server_is_found_behind_a_real_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()
        holders = [GpuProcess(os.getpid(), "0", G[0], None, None)]
        binder = Binder(HostFiles(), lambda: holders, gpus=lambda: G, node_names=[])
        told = {"gpumon.upstream": f"{address}:{port}"}
        binder.bind(told, 1, "127.0.0.1:9")
        list(binder.read(0.0))
        found = binder.bind(told, 1, "127.0.0.1:9")
    assert (found.how, found.pid, found.gpus) == ("resource", os.getpid(), (G[0],))


# --- the configuration ----------------------------------------------------------------------------------------------


def test_the_configuration_decides_on_gpus_and_the_process_is_still_found(vllm: Host) -> None:
    configured = [ServerGpus(re.compile("chat-.*"), (G[5],))]
    found = bound(vllm, {"service.name": "chat-1", "process.pid": 100}, configured=configured)
    assert found == Binding(how="config", pid=100, gpus=(G[5],))
    assert bound(vllm, {"service.name": "my-chat-1", "process.pid": 100}, configured=configured).how == "resource"


# --- what nobody tells, and what is hostile ---------------------------------------------------------------------------


@pytest.mark.parametrize("peer", ["", "unix:", "somewhere:1"])
def test_who_tells_nothing_is_not_bound(vllm: Host, peer: str) -> None:
    assert bound(vllm, {"service.name": "x"}, peer) == Binding(unbound="no_identity")


@pytest.mark.parametrize(
    "attributes",
    [
        {"process.pid": -1},
        {"process.pid": 1 << 40},
        {"process.pid": True},
        {"process.pid": 1.5},
        {"process.pid": "../1"},
        {"container.id": "../../etc"},
        {"container.id": "a"},
        {"k8s.pod.uid": "x" * 10_000},
        {"gpumon.gpu.uuid": "x" * 10_000},
        {"gpumon.gpu.uuid": 7},
        {"gpumon.gpu.uuid": {"a": 1}},
    ],
)
def test_what_makes_no_sense_is_as_if_it_were_not_told(vllm: Host, attributes: dict[str, object]) -> None:
    assert bound(vllm, attributes) == Binding(unbound="no_identity")


def test_processes_that_end_or_are_garbled_cost_only_themselves(vllm: Host) -> None:
    vllm.files.put("proc/121/stat", b"121 (x")
    vllm.files.put("proc/100/cgroup", b"garbage")
    assert bound(vllm, {"process.pid": 100}).gpus == (G[1],)
    vllm.files.vanish("proc/122")
    assert bound(vllm, {"process.pid": 100}).unbound == "no_gpu"


def test_a_process_that_takes_a_gpu_later_is_bound_then(vllm: Host) -> None:
    holders, vllm.holders = vllm.holders, []
    binder = vllm.binder(unbound_s=10.0)
    binder.bind({"process.pid": 100}, 1, "")
    list(binder.read(0.0))
    assert binder.bind({"process.pid": 100}, 1, "").unbound == "no_gpu"
    vllm.holders = holders
    list(binder.read(9.0))
    assert binder.bind({"process.pid": 100}, 1, "").unbound == "no_gpu"
    list(binder.read(10.0))
    assert binder.bind({"process.pid": 100}, 1, "").gpus == (G[0], G[1])


def test_a_driver_that_is_gone_takes_no_gpu_from_a_process_that_lives(vllm: Host) -> None:
    binder = vllm.binder()
    binder.bind({"process.pid": 110}, 1, "")
    list(binder.read(0.0))
    before = binder.bind({"process.pid": 110}, 1, "")
    assert before.gpus == (G[0], G[1])
    vllm.holders.clear()
    list(binder.read(61.0))
    assert binder.bind({"process.pid": 110}, 1, "") == before
    # Another process with the same number has none of them.
    vllm.process(110, 100, comm="other", group=100)
    vllm.files.put("proc/110/stat", "110 (other) S 100 100 1 0 -1 0 0 0 0 0 0 0 0 20 0 1 0 99999 0 0")
    list(binder.read(122.0))
    assert binder.bind({"process.pid": 110}, 1, "").gpus == ()


def test_one_process_less_on_a_gpu_is_no_driver_that_is_gone(vllm: Host) -> None:
    binder = vllm.binder()
    binder.bind({"process.pid": 200}, 1, "")
    list(binder.read(0.0))
    vllm.holders = [held for held in vllm.holders if held.pid != 200]
    list(binder.read(61.0))
    assert binder.bind({"process.pid": 200}, 1, "").gpus == ()


def test_a_flood_of_connections_is_bounded_and_does_not_starve_the_newest(vllm: Host) -> None:
    binder = vllm.binder(size=100)
    for i in range(100_000):
        binder.bind({}, i, f"10.9.{i // 256 % 256}.{i % 256}:1")
    assert len(binder) == 100
    binder.bind({"process.pid": 100}, -1, "")
    list(binder.read(0.0))
    assert binder.bind({"process.pid": 100}, -1, "").gpus == (G[0], G[1])


def test_binding_reads_nothing_until_it_is_time_to(vllm: Host) -> None:
    binder = vllm.binder()
    binder.bind({"process.pid": 100}, 1, "127.0.0.1:40961")
    assert vllm.files.reads == []
    list(binder.read(0.0))
    seen: Sequence[str] = list(vllm.files.reads)
    assert seen
    for _ in range(100):
        binder.bind({"process.pid": 100}, 1, "127.0.0.1:40961")
    list(binder.read(1.0))
    assert vllm.files.reads == seen
