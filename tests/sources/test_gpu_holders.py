"""Who holds the GPUs: the processes behind them, their names, and what is exported of them."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.config import ProcessesConfig
from gpumon.model import GpuProcess, GpuUuid, Item, Miss, Sample
from gpumon.sources.gpu_holders import GpuHolders
from tests.fakes import FakeFiles

A = GpuUuid("GPU-a")


def process_files(pid: int, comm: str) -> dict[str, bytes | str]:
    stat = f"{pid} ({comm}) S 1 {pid} {pid} 0 -1 4194304 1 0 2 0 3 4 0 0 20 0 1 0 777 1 1 " + "0 " * 28
    return {f"proc/{pid}/stat": stat, f"proc/{pid}/cgroup": "0::/\n"}


def holders(processes: list[GpuProcess], files: FakeFiles, *servers: str) -> GpuHolders:
    return GpuHolders(lambda: processes, files, ProcessesConfig(servers=servers).server_patterns, 10)


def memory(items: list[Item]) -> list[Sample]:
    return [item for item in items if isinstance(item, Sample) and item.metric is catalogue.PROCESS_GPU_MEMORY]


def test_a_holder_gets_its_name_from_proc() -> None:
    source = holders([GpuProcess(41, "0", A, 5.0, 0.25)], FakeFiles(process_files(41, "python3")))
    found = memory(list(source.read(1000.0)))
    assert [(sample.labels[:4], sample.value) for sample in found] == [(("0", A, "41", "python3"), 5.0)]
    assert [target.pid.number for target in source.targets()] == [41]


def test_a_holder_that_has_no_proc_is_exported_without_a_name() -> None:
    source = holders([GpuProcess(41, "0", A, 5.0, None)], FakeFiles(process_files(1, "init")))
    assert [sample.labels[2:4] for sample in memory(list(source.read(1000.0)))] == [("41", "")]


def test_each_pass_chooses_anew() -> None:
    processes = [GpuProcess(41, "0", A, 5.0, None), GpuProcess(7, "0", A, 1.0, None)]
    source = holders(processes, FakeFiles(process_files(41, "python3")))
    assert source.targets() == ()
    assert [item.what for item in source.read(0.0) if isinstance(item, Miss)] == ["gpu processes"]
    assert [target.pid.number for target in source.targets()] == [41]
    processes.clear()
    assert list(source.read(5.0)) == []
    assert source.targets() == ()


def test_a_holder_that_ends_is_no_miss_for_as_long_as_nvml_still_lists_it() -> None:
    files = FakeFiles(process_files(41, "python3"))
    source = holders([GpuProcess(41, "0", A, 5.0, None)], files)
    list(source.read(0.0))
    files.vanish("proc/41")
    for at_s in (2.0, 4.0):
        assert [item for item in source.read(at_s) if isinstance(item, Miss)] == []
        assert source.targets() == ()


@pytest.mark.parametrize(
    ("server", "comm", "found"),
    [
        ("vllm", "vllm", True),
        ("vllm", "vllm-worker", False),
        ("v.lm", "vllm", False),
        ("text-generation-launcher", "text-generation", True),  # the kernel keeps 15 bytes
        ("/llama-.*/", "llama-server", True),
        ("/llama-.*/", "my-llama-server", False),
        ("/a|b/", "ab", False),
        ("/(?i)VLLM/", "vllm", True),
        ("/(?i)VLLM/", "vllm-worker", False),
    ],
)
def test_servers_are_found_by_whole_names_and_patterns(server: str, comm: str, found: bool) -> None:
    source = holders([], FakeFiles(process_files(41, comm)), server)
    assert list(source.read(1000.0)) == []
    assert [target.pid.number for target in source.targets()] == ([41] if found else [])
