"""Which sockets listen for processes on GPUs, and where they are reached: by trees, namespaces and privileges."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model import GpuProcess, GpuUuid, Miss, Pid, Reason
from gpumon.requests.listening import HELD, LINK_BUDGET, NAMESPACES, ListeningServers
from gpumon.requests.sockets import Listening, parse_listening
from gpumon.sources.server_discovery import Door
from tests.fakes import FakeFiles

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
FIB = "     |-- {0}\n        /32 host LOCAL\n"
V6 = "20010db8000000000000000000000001 0b 40 00 80     eth0\n"
OWN, POD, OTHER = "net:[1]", "net:[2]", "net:[3]"
GPUMON = 900
CONTAINER = "/kubepods/pod1f4e2a90-3c11-4d5e-9f00-a1b2c3d4e5f6/" + "ec8207a3dde6" * 5 + "abcd"
ANY4, ANY6 = "00000000", "0" * 32
LOOPBACK4, LOOPBACK6 = "0100007F", "0" * 24 + "01000000"


class Host:
    """Processes, their network namespaces, and what listens there."""

    def __init__(self) -> None:
        self.files = FakeFiles({"proc/self/net/fib_trie": FIB.format("10.0.0.1")})
        self.files.links["proc/self"] = str(GPUMON)
        self.files.links["proc/self/ns/net"] = OWN
        self.holders: list[GpuProcess] = []
        self.tables: dict[tuple[str, str], str] = {}
        self.addresses = {OWN: FIB.format("10.0.0.1"), POD: FIB.format("10.244.1.10")}
        self.processes: dict[int, str] = {}
        self._sockets = 0

    def process(
        self, pid: int, parent: int = 1, *, comm: str = "python", group: int = 0, cgroup: str = "/", net: str = OWN
    ) -> None:
        rest = f"S {parent} {group or pid} 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {pid * 10} 0 0"
        self.files.put(f"proc/{pid}/stat", f"{pid} ({comm}) {rest}")
        self.files.put(f"proc/{pid}/cgroup", f"0::{cgroup}\n")
        self.files.links[f"proc/{pid}/ns/net"] = net
        self.processes[pid] = net
        self._show()

    def hold(self, *pids: int) -> None:
        self.holders += [GpuProcess(pid, "0", GpuUuid("GPU-0"), 1e9, None) for pid in pids]

    def listen(self, pid: int, port: int, on: str = ANY4, inode: int = 0) -> int:
        """on: as the kernel writes an address."""
        self._sockets += 1
        inode = inode or 5000 + self._sockets
        key = (self.processes[pid], "tcp6" if len(on) == 32 else "tcp")
        line = f"   {self._sockets}: {on}:{port:04X} {'0' * len(on)}:0000 0A 0:0 00:00000000 00000000     0        0"
        self.tables[key] = self.tables.get(key, HEAD) + f"{line} {inode} 1 0 100 0 0 10 0\n"
        self.files.links[f"proc/{pid}/fd/{self._sockets}"] = f"socket:[{inode}]"
        self._show()
        return inode

    def close(self, pid: int) -> None:
        """The process ends, its sockets with it."""
        gone = [path for path in self.files.links if path.startswith(f"proc/{pid}/fd/")]
        inodes = {self.files.links.pop(path)[8:-1] for path in gone}
        self.tables = {
            key: "".join(line for line in table.splitlines(True) if not inodes & set(line.split()))
            for key, table in self.tables.items()
        }
        self.files.vanish(f"proc/{pid}")
        del self.files.links[f"proc/{pid}/ns/net"], self.processes[pid]
        self._show()

    def servers(self, *wanted: range, excluded: tuple[range, ...] = ()) -> ListeningServers:
        return ListeningServers(self.files, lambda: self.holders, wanted or (range(8000, 8011),), excluded)

    def _show(self) -> None:
        for pid, net in self.processes.items():
            for name in ("tcp", "tcp6"):
                self.files.put(f"proc/{pid}/net/{name}", self.tables.get((net, name), HEAD))
            self.files.put(f"proc/{pid}/net/fib_trie", self.addresses.get(net, ""))
            self.files.put(f"proc/{pid}/net/if_inet6", V6 if net == POD else "")


@pytest.fixture
def host() -> Host:
    """Started from a shell: API server 100, engine 110, workers 121 and 122 that hold GPUs; unrelated is 300."""
    host = Host()
    host.process(50, comm="bash")
    host.process(100, 50, comm="vllm")
    host.process(110, 100, comm="VLLM::EngineCor")
    for pid in (121, 122):
        host.process(pid, 110, comm="VLLM::Worker_TP")
    host.process(300, 50, comm="postgres")
    host.hold(121, 122)
    return host


def doors(servers: ListeningServers) -> list[Door]:
    look = servers.look()
    assert list(look.misses) == []
    return list(look.doors)


def reached(servers: ListeningServers) -> list[tuple[int, int, str]]:
    """Process, port and host of each door."""
    return [(door.pid.number, door.port, door.host) for door in doors(servers)]


# --- whose they are ---------------------------------------------------------------------------------------------------


def test_the_api_server_above_the_workers_is_found_and_what_belongs_to_no_gpu_is_not(host: Host) -> None:
    inode = host.listen(100, 8000)
    host.listen(300, 8001)
    host.listen(100, 9999)
    (door,) = doors(host.servers())
    assert door == Door(Pid(100, 1000), 8000, inode, "127.0.0.1", "", frozenset({"127.0.0.1", "10.0.0.1", "localhost"}))


def test_what_holds_the_gpu_itself_and_what_is_in_its_container_is_found() -> None:
    host = Host()
    host.process(400, comm="llama-server")
    host.listen(400, 8001)
    host.process(500, 2, comm="python", cgroup=CONTAINER)
    host.process(501, 3, comm="router", cgroup=CONTAINER)
    host.listen(501, 8002)
    host.hold(400, 500)
    assert reached(host.servers()) == [(400, 8001, "127.0.0.1"), (501, 8002, "127.0.0.1")]


def test_a_router_beside_its_shards_is_found_but_not_what_a_shell_started_beside_them() -> None:
    host = Host()
    host.process(50, comm="bash")
    host.process(600, 50, comm="launcher")
    host.process(601, 600, comm="shard")
    host.process(602, 600, comm="router")
    host.process(700, 50, comm="other")
    host.listen(602, 8000)
    host.listen(700, 8001)
    host.hold(601)
    assert reached(host.servers()) == [(602, 8000, "127.0.0.1")]


def test_gpumons_own_sockets_are_not_found_even_in_the_tree_of_a_server(host: Host) -> None:
    host.process(GPUMON, 110, comm="gpumon")
    host.listen(GPUMON, 8000)
    assert reached(host.servers()) == []


def test_a_server_that_takes_its_gpu_after_it_listens_is_found_then(host: Host) -> None:
    host.process(800, 50, comm="llama-server")
    host.listen(800, 8003)
    servers = host.servers()
    assert reached(servers) == []
    host.hold(800)
    assert reached(servers) == [(800, 8003, "127.0.0.1")]


def test_ports_come_in_the_order_in_which_they_are_wanted_without_the_excluded(host: Host) -> None:
    for port in (8000, 8001, 30_000, 80):
        host.listen(100, port)
    servers = host.servers(range(30_000, 30_001), range(1, 65_536), excluded=(range(8001, 8002),))
    assert [port for _, port, _ in reached(servers)] == [30_000, 80, 8000]


def test_a_process_that_ends_takes_its_sockets_along_and_a_new_one_has_another(host: Host) -> None:
    before = host.listen(100, 8000)
    servers = host.servers()
    assert [door.socket for door in doors(servers)] == [before]
    host.close(100)
    assert doors(servers) == []
    host.process(101, 50, comm="vllm")
    host.process(110, 101)
    host.listen(101, 8000)
    (door,) = doors(servers)
    assert (door.pid.number, door.socket != before) == (101, True)


def test_a_driver_that_tells_of_no_process_any_more_hides_no_server_that_lives(host: Host) -> None:
    host.listen(100, 8000)
    servers = host.servers()
    host.holders = host.holders[:1]
    assert len(doors(servers)) == 1
    host.holders = []
    assert len(doors(servers)) == 1
    host.close(121)
    assert doors(servers) == []
    host.process(121, 50, comm="VLLM::Worker_TP")
    assert doors(servers) == []


def test_a_number_that_lives_again_is_not_the_process_that_held_a_gpu(host: Host) -> None:
    servers = host.servers()
    doors(servers)
    host.holders = []
    for pid in (121, 122):
        host.close(pid)
    host.process(121, 100)
    host.files.put("proc/121/stat", b"121 (x) S 100 121 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77777 0 0")
    host.listen(100, 8000)
    servers._held[121] = (GpuProcess(121, "0", GpuUuid("GPU-0"), 1e9, None), 1210)
    assert doors(servers) == []


def test_without_a_process_on_a_gpu_nothing_is_read() -> None:
    host = Host()
    host.process(100)
    host.listen(100, 8000)
    assert doors(host.servers()) == []
    assert [path for path in host.files.reads if path.endswith("tcp")] == []


def test_the_stamp_changes_with_the_processes_on_gpus(host: Host) -> None:
    servers = host.servers()
    before = servers.stamp()
    assert servers.stamp() == before
    host.hold(300)
    assert servers.stamp() != before


# --- where they are reached -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "reached_at"),
    [
        (ANY4, "127.0.0.1"),
        (ANY6, "[::1]"),
        (LOOPBACK4, "127.0.0.1"),
        (LOOPBACK6, "[::1]"),
        ("0100000A", "10.0.0.1"),
        ("0" * 16 + "FFFF00000100007F", "127.0.0.1"),
    ],
)
def test_in_gpumons_own_namespace_loopback_is_used_where_it_is_listened_on(
    host: Host, on: str, reached_at: str
) -> None:
    host.listen(100, 8000, on)
    assert reached(host.servers()) == [(100, 8000, reached_at)]


def test_a_server_on_both_families_is_one(host: Host) -> None:
    host.listen(100, 8000, ANY6)
    host.listen(100, 8000, ANY4)
    assert reached(host.servers()) == [(100, 8000, "127.0.0.1")]


def test_a_socket_for_every_address_of_ipv6_may_be_configured_by_one_of_ipv4(host: Host) -> None:
    host.listen(100, 8000, ANY6)
    (door,) = doors(host.servers())
    assert {"127.0.0.1", "::1", "localhost", "10.0.0.1"} <= door.names


@pytest.mark.parametrize(
    ("on", "reached_at"), [(ANY4, "10.244.1.10"), (ANY6, "[2001:db8::1]"), ("0A01F40A", "10.244.1.10")]
)
def test_in_another_namespace_the_pods_address_is_used(on: str, reached_at: str) -> None:
    host = Host()
    host.process(100, net=POD)
    host.listen(100, 8000, on)
    host.hold(100)
    assert reached(host.servers()) == [(100, 8000, reached_at)]


@pytest.mark.parametrize(
    ("net", "on", "why"),
    [
        (POD, LOOPBACK4, "listens on loopback of a network namespace of its own"),
        (OTHER, ANY4, "its network namespace has no address"),
    ],
)
def test_what_cannot_be_reached_says_why(net: str, on: str, why: str) -> None:
    host = Host()
    host.process(100, net=net)
    host.listen(100, 8000, on)
    host.hold(100)
    (door,) = doors(host.servers())
    assert (door.host, door.names) == ("", frozenset())
    assert door.why.startswith(why)


@pytest.mark.parametrize("same", [OTHER, OWN])
def test_an_address_that_is_in_two_namespaces_is_not_asked(same: str) -> None:
    host = Host()
    host.addresses[same] = host.addresses[POD]
    host.files.put("proc/self/net/fib_trie", host.addresses[OWN])
    host.process(100, net=POD)
    host.process(200, net=same)
    host.listen(100, 8000)
    host.hold(100, 200)
    found = doors(host.servers())
    assert [(door.host, "several" in door.why) for door in found] == [("", True)]


def test_a_link_local_address_is_nobodys() -> None:
    host = Host()
    host.addresses[OTHER] = FIB.format("169.254.7.7")
    host.process(100, net=OTHER)
    host.listen(100, 8000)
    host.hold(100)
    assert [door.host for door in doors(host.servers())] == [""]


# --- what is missing, and limits --------------------------------------------------------------------------------------


def test_sockets_whose_owners_may_not_be_seen_are_a_miss_that_says_what_is_needed(host: Host) -> None:
    host.listen(100, 8000)
    host.listen(300, 8001)
    for pid in (100, 110, 121, 122, 300, 50):
        host.files.deny(f"proc/{pid}/fd")
    servers = host.servers()
    look = servers.look()
    assert list(look.doors) == []
    assert [(miss.what, miss.reason) for miss in look.misses] == [("owners of listening sockets", Reason.DENIED)]
    assert look.misses[0].detail.startswith("2: /proc/<pid>/fd of other users needs")
    host.files.denied.clear()
    assert [len(servers.look().doors) for _ in range(4)][-1] == 1, "it is looked for again"


def test_namespaces_that_may_not_be_seen_are_a_miss(host: Host) -> None:
    host.files.deny("proc/121/ns/net")
    host.files.deny("proc/122/ns/net")
    assert host.servers().look().misses == [
        Miss(
            "network namespaces",
            Reason.DENIED,
            "of 2 processes: /proc/<pid>/ns/net of other users needs CAP_SYS_PTRACE",
        )
    ]


def test_owners_are_looked_for_once_and_not_at_every_look(host: Host) -> None:
    host.listen(100, 8000)
    host.listen(300, 8001)
    servers = host.servers()
    doors(servers)
    host.files.deny("proc/100/fd")
    host.files.deny("proc/300/fd")
    assert len(doors(servers)) == 1


def test_descriptors_without_number_cost_no_more_than_the_budget(host: Host) -> None:
    host.process(40, 1, comm="proxy")
    for fd in range(LINK_BUDGET + 10):
        host.files.links[f"proc/40/fd/{fd}"] = "/dev/null"
    host.listen(300, 8001)
    assert doors(host.servers()) == []


def test_namespaces_and_processes_without_number_take_bounded_room() -> None:
    host = Host()
    for pid in range(1000, 1000 + NAMESPACES + 5):
        host.files.put(f"proc/{pid}/stat", f"{pid} (x) S 1 {pid} 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {pid} 0 0")
        host.files.links[f"proc/{pid}/ns/net"] = f"net:[{pid}]"
    host.hold(*range(1000, 1000 + NAMESPACES + 5))
    servers = host.servers()
    (miss,) = servers.look().misses
    assert (miss.what, miss.reason) == ("network namespaces", Reason.OUT_OF_RANGE)
    for _ in range(HELD // NAMESPACES + 2):
        servers.look()
    assert len(servers._held) <= HELD


def test_several_processes_at_one_address_are_one_door_and_the_same_at_each_look(host: Host) -> None:
    for pid in (102, 101):
        host.process(pid, 100, comm="vllm")
        host.listen(pid, 8000)
    host.process(103, 100, comm="vllm")
    host.listen(103, 8000, LOOPBACK6)
    servers = host.servers()
    for _ in range(3):
        assert reached(servers) == [(101, 8000, "127.0.0.1"), (103, 8000, "[::1]")]


def test_what_cannot_be_reached_is_told_of_each_process() -> None:
    host = Host()
    for pid in (801, 802):
        host.process(pid, comm="vllm", net=POD)
        host.listen(pid, 8000, LOOPBACK4)
        host.hold(pid)
    assert reached(host.servers()) == [(801, 8000, ""), (802, 8000, "")]


# --- the table --------------------------------------------------------------------------------------------------------


def test_only_sockets_that_listen_are_taken_from_a_table() -> None:
    table = (
        HEAD
        + "   0: 0100007F:10DD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20001 1 0 100 0\n"
        + "   1: 0100007F:10DE 0100007F:A003 01 00000000:00000000 02:000AF 00000000  1000        0 77003 2 0 20 4 30\n"
        + "   2: 0100007F:10DF 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 0 1 0 100 0 0\n"
        + f"   3: {ANY6}:1F40 {ANY6}:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 20003 1 0 100 0 0\n"
    )
    assert parse_listening(table.encode()) == [
        Listening(ipaddress.IPv4Address("127.0.0.1"), 4317, 20001),
        Listening(ipaddress.IPv6Address("::"), 8000, 20003),
    ]


@given(st.binary(max_size=400) | st.text("0123456789ABCDEF: \n", max_size=400).map(str.encode))
def test_a_table_of_anything_is_read_without_an_error(data: bytes) -> None:
    for found in parse_listening(data):
        assert 0 < found.port < 65_536
        assert found.inode


@given(st.ip_addresses(), st.integers(1, 65_535), st.integers(1, 2**40))
def test_an_address_is_read_as_the_kernel_writes_it(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, inode: int
) -> None:
    packed = address.packed
    words = "".join(packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4))
    line = f"   0: {words}:{port:04X} 00:0000 0A 0:0 00:0 0     0        0 {inode} 1 0\n"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    assert parse_listening(line.encode()) == [Listening(mapped or address, port, inode)]
