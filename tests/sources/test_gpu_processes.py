from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.nvml import Code, NvmlError, ProcessUtilization, RunningProcess
from gpumon.model import GpuProcess, GpuUuid, Miss, Reason, Rejection
from gpumon.sources.capabilities import GONE, Capabilities
from gpumon.sources.gpu_processes import PROCESSES_MAX, GpuProcesses
from gpumon.sources.mig import MigInstance
from tests.fake_port import GIB, FakeNvml, device

GPU = ("0", "GPU-a")
UUID = GpuUuid("GPU-a")
CODES = [*(code for code in Code if code is not Code.SUCCESS), 31]


def held(pid: int, used: int | None = GIB) -> RunningProcess:
    return RunningProcess(pid, used, None, None)


class Rig:
    def __init__(self) -> None:
        self.nvml = FakeNvml()
        self.instances: list[MigInstance] = []
        self.reader = GpuProcesses(self.nvml, device(), GPU, Capabilities("gpu 0"), lambda: self.instances)
        self.asked: list[int] = []

    def holds(self, kind: str, *rows: RunningProcess, handle: str = "gpu0") -> None:
        self.nvml.answers[f"{handle}/processes:{kind}"] = list(rows)

    def used(self, *rows: tuple[int, int, int]) -> None:
        """Utilization rows of (pid, timestamp, sm)."""

        def answer(since_us: int) -> list[ProcessUtilization]:
            self.asked.append(since_us)
            return [ProcessUtilization(pid, at_us, sm, 0) for pid, at_us, sm in rows]

        self.nvml.answers["process_utilization"] = answer

    def read(self, at_s: float) -> list[GpuProcess]:
        return self.reader.read_processes(at_s)[0]

    def ratios(self, at_s: float) -> dict[int, float | None]:
        return {process.pid: process.sm_ratio for process in self.read(at_s)}


def test_lists_are_merged_and_a_process_in_two_holds_its_memory_once() -> None:
    rig = Rig()
    rig.holds("compute", held(10, 4 * GIB), held(11, None))
    rig.holds("graphics", held(10, 4 * GIB), held(12, GIB), held(11, 2 * GIB))
    rig.holds("mps", held(13, None))
    assert rig.read(1000.0) == [
        GpuProcess(10, "0", UUID, 4 * GIB, None),
        GpuProcess(11, "0", UUID, 2 * GIB, None),
        GpuProcess(12, "0", UUID, GIB, None),
        GpuProcess(13, "0", UUID, None, None),
    ]


def test_a_process_that_ended_is_gone_at_the_next_pass() -> None:
    rig = Rig()
    rig.holds("compute", held(10), held(11))
    rig.read(1000.0)
    rig.holds("compute", held(11))
    assert [process.pid for process in rig.read(1005.0)] == [11]


@pytest.mark.parametrize("pid", [0, 0xFFFFFFFF, 1 << 23, -1])
def test_a_pid_that_cannot_be_is_rejected(pid: int) -> None:
    rig = Rig()
    rig.holds("compute", held(pid), held(11))
    processes, problems = rig.reader.read_processes(1000.0)
    assert [process.pid for process in processes] == [11]
    assert problems == [Rejection("process_pid", Reason.OUT_OF_RANGE)]


@pytest.mark.parametrize("used", [(1 << 64) - 1, 0x7FFFFFFFFFFFFFF0, 140737488355328, -1])
def test_memory_that_cannot_be_is_rejected_and_the_process_stays(used: int) -> None:
    rig = Rig()
    rig.holds("compute", held(10, used))
    processes, problems = rig.reader.read_processes(1000.0)
    assert processes == [GpuProcess(10, "0", UUID, None, None)]
    assert problems == [Rejection("process_memory", Reason.OUT_OF_RANGE)]


def test_an_endless_list_is_cut() -> None:
    rig = Rig()
    rig.holds("compute", *(held(pid) for pid in range(1, 10_000)))
    assert len(rig.read(1000.0)) == PROCESSES_MAX


# --- SM share -----------------------------------------------------------------------------------------------------


def test_the_first_rows_are_an_average_of_the_past_and_only_set_the_cursor() -> None:
    rig = Rig()
    rig.holds("compute", held(10), held(11))
    rig.used((10, 5_000_000, 90))
    assert rig.ratios(1000.0)[10] is None
    rig.used((10, 6_000_000, 40), (10, 7_000_000, 60))
    assert rig.ratios(1005.0) == {10: 0.5, 11: 0.0}
    rig.used()
    assert rig.ratios(1010.0) == {10: 0.0, 11: 0.0}
    assert rig.asked == [0, 5_000_000, 7_000_000]


def test_no_rows_ever_is_no_share_rather_than_zero() -> None:
    rig = Rig()
    rig.holds("compute", held(10))
    rig.used()
    for tick in range(30):
        assert rig.ratios(1000.0 + 5 * tick) == {10: None}


def test_stale_rows_say_neither_a_share_nor_zero() -> None:
    rig = Rig()
    rig.holds("compute", held(10), held(11))
    rig.used((10, 5_000_000, 90))
    rig.read(1000.0)
    rig.used((10, 5_000_000, 90), (11, 4_000_000, 80), (11, 6_000_000, 20), (11, 0, 80))
    processes, problems = rig.reader.read_processes(1005.0)
    assert {process.pid: process.sm_ratio for process in processes} == {10: None, 11: 0.2}
    assert problems == []


@pytest.mark.parametrize("row", [(10, 9_000_000, 101), (10, 9_000_000, 0xFFFFFFFF), (0xFFFFFFFF, 9_000_000, 5)])
def test_garbage_rows_are_rejected_and_move_nothing(row: tuple[int, int, int]) -> None:
    rig = Rig()
    rig.holds("compute", held(10), held(11))
    rig.used((11, 5_000_000, 1))
    rig.read(1000.0)
    rig.used(row, (11, 6_000_000, 25))
    processes, problems = rig.reader.read_processes(1005.0)
    assert {process.pid: process.sm_ratio for process in processes}[11] == 0.25
    assert problems == [Rejection("process_utilization", Reason.OUT_OF_RANGE)]
    rig.used()
    rig.read(1010.0)
    assert rig.asked[-1] == 6_000_000


def test_a_process_with_a_garbage_row_has_no_share_and_not_zero() -> None:
    rig = Rig()
    rig.holds("compute", held(10), held(11))
    rig.used((11, 5_000_000, 1))
    rig.read(1000.0)
    rig.used((10, 6_000_000, 200))
    assert rig.ratios(1005.0) == {10: None, 11: 0.0}


def test_an_absurd_timestamp_blinds_for_a_minute_at_most() -> None:
    rig = Rig()
    rig.holds("compute", held(10))
    rig.used((10, 1 << 63, 50))
    rig.read(1000.0)
    rig.used((10, 7_000_000, 50))
    seen = [rig.ratios(1000.0 + 5 * tick)[10] for tick in range(1, 14)]
    assert seen == [None] * 13
    rig.used((10, 8_000_000, 50))
    assert rig.ratios(1070.0) == {10: 0.5}


def test_without_process_utilization_there_is_no_share() -> None:
    rig = Rig()
    rig.holds("compute", held(10))
    rig.nvml.errors["process_utilization"] = Code.NOT_SUPPORTED
    assert rig.ratios(1000.0) == {10: None}
    assert rig.ratios(1005.0) == {10: None}
    assert rig.nvml.log.count("process_utilization") == 1


# --- MIG ------------------------------------------------------------------------------------------------------------


def instance(uuid: str) -> MigInstance:
    return MigInstance(device(0, uuid), GpuUuid(uuid), Capabilities(f"mig {uuid}"))


def test_under_mig_each_instance_has_its_own_list() -> None:
    rig = Rig()
    rig.instances = [instance("MIG-a"), instance("MIG-b")]
    rig.holds("compute", RunningProcess(10, 3 * GIB, 1, 0), handle="MIG-a")
    rig.holds("compute", RunningProcess(10, GIB, 5, 0), RunningProcess(20, GIB, 5, 0), handle="MIG-b")
    rig.holds("compute", held(99))
    rig.nvml.errors["process_utilization"] = Code.NOT_SUPPORTED
    assert rig.read(1000.0) == [
        GpuProcess(10, "0", GpuUuid("MIG-a"), 3 * GIB, None),
        GpuProcess(10, "0", GpuUuid("MIG-b"), GIB, None),
        GpuProcess(20, "0", GpuUuid("MIG-b"), GIB, None),
    ]


def test_an_instance_that_fails_leaves_the_other() -> None:
    rig = Rig()
    rig.instances = [instance("MIG-a"), instance("MIG-b")]
    rig.nvml.errors["MIG-a/processes:compute"] = Code.UNKNOWN
    rig.holds("compute", held(20), handle="MIG-b")
    processes, problems = rig.reader.read_processes(1000.0)
    assert [process.pid for process in processes] == [20]
    assert problems == [Miss("mig MIG-a processes:compute", Reason.UNAVAILABLE, "UNKNOWN")]


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    "question", ["processes:compute", "processes:graphics", "processes:mps", "process_utilization"]
)
def test_a_question_that_fails_leaves_the_others(question: str, code: int) -> None:
    rig = Rig()
    pids = {"processes:compute": 10, "processes:graphics": 11, "processes:mps": 12}
    for name, pid in pids.items():
        rig.holds(name.partition(":")[2], held(pid))
    rig.used((10, 5_000_000, 1))
    rig.read(1000.0)
    rig.used((10, 6_000_000, 50))
    rig.nvml.errors[question] = code
    if code in GONE:
        with pytest.raises(NvmlError):
            rig.read(1005.0)
        return
    processes, problems = rig.reader.read_processes(1005.0)
    assert {process.pid for process in processes} == {pid for name, pid in pids.items() if name != question}
    assert len(problems) == 1
    if question == "process_utilization":
        assert all(process.sm_ratio is None for process in processes)


WORDS = st.integers(-1, 2**64 - 1) | st.integers(0, 200)


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(WORDS, st.none() | WORDS), max_size=6),
            st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=6),
        ),
        max_size=5,
    )
)
def test_garbage_gives_only_possible_processes(
    passes: list[tuple[list[tuple[int, int | None]], list[tuple[int, int, int]]]],
) -> None:
    rig = Rig()
    for tick, (lists, rows) in enumerate(passes):
        rig.holds("compute", *(held(pid, used) for pid, used in lists))
        rig.used(*rows)
        processes = rig.read(1000.0 + 5 * tick)
        assert len({process.pid for process in processes}) == len(processes)
        for process in processes:
            assert 1 <= process.pid <= 1 << 22
            assert process.used_bytes is None or 0 <= process.used_bytes <= 2.0**44
            assert process.sm_ratio is None or 0 <= process.sm_ratio <= 1
