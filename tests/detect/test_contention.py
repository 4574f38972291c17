"""Processes that share a GPU with a server, and those that are a part of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpumon import catalogue as c
from gpumon.detect.contention import BOUND_MAX, GpuContention
from gpumon.detect.detector import Finding, Severity
from gpumon.model import Binding, RequestRecord
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence, gpu

SERVER = ("41403", "VLLM::Worker_TP", "inference", "llama-0", "vllm")
JOB = ("61000", "python3", "research", "embed-x7k2p", "embed")


def holds(stage: Stage, process: tuple[str, ...], sm: float | None, used: float = 1e9, *, index: int = 0) -> None:
    labels = (*gpu(index), *process)
    stage.put({(c.PROCESS_GPU_MEMORY, labels): used}, owner="holders")
    if sm is not None:
        stage.put({(c.PROCESS_GPU_SM, labels): sm}, owner="holders")


def ends(stage: Stage, process: tuple[str, ...], index: int = 0) -> None:
    stage.drop(c.PROCESS_GPU_MEMORY, c.PROCESS_GPU_SM, labels=(*gpu(index), process[0]))


def run(stage: Stage, detector: GpuContention, seconds: int, requests: Sequence[RequestRecord] = ()) -> list[Finding]:
    """Steps of a second; who holds the GPU is told every 2 s."""
    found = []
    for step in range(seconds):
        stage.silent = set() if step % 2 == 0 else {"holders"}
        found += list(detector.step(stage.step(1.0, requests)))
    return found


def bound_to(pid: int) -> RequestRecord:
    return RequestRecord(bytes(16), "", "vllm", "m", BEGIN_S, 0, 1, binding=Binding("resource", pid=pid))


def serving(sm: float = 0.7) -> tuple[Stage, GpuContention]:
    stage, detector = Stage(), GpuContention()
    holds(stage, SERVER, sm, 120e9)
    holds(stage, ("41404", "VLLM::Worker_TP", "inference", "llama-0", "vllm"), 0.7, 120e9, index=1)
    assert run(stage, detector, 20) == []
    return stage, detector


def test_another_pods_process_is_found_with_its_share() -> None:
    stage, detector = serving()
    holds(stage, SERVER, 0.45, 120e9)
    holds(stage, JOB, 0.31, 6e9)
    began_s = stage.at_s + 1
    found = run(stage, detector, 20)
    assert found
    assert stage.at_s - len(found) + 1 - began_s == 6.0
    last = found[-1]
    assert {each.entity.gpu for each in found} == {"0"}
    assert (last.severity, last.since_s) == (Severity.WARNING, began_s)
    assert evidence(last, "others_sm").observed == 0.31
    assert evidence(last, "server_sm")[1:] == (0.45, c.PROCESS_GPU_SM.unit, 0.7)
    assert evidence(last, "others_memory").observed == 6e9
    assert last.summary == (
        "python3 (pid 61000, research/embed-x7k2p) takes 31 % of SM time beside "
        "VLLM::Worker_TP (pid 41403, inference/llama-0)"
    )
    ends(stage, JOB)
    assert len(run(stage, detector, 20)) <= 1


def test_a_job_that_is_seen_for_four_seconds_is_none() -> None:
    stage, detector = serving()
    for _ in range(5):
        holds(stage, JOB, 0.9)
        assert run(stage, detector, 6) == []  # seen at three readings: 4 s from the first to the last
        ends(stage, JOB)
        assert run(stage, detector, 10) == []


def test_a_small_share_and_an_idle_process_are_no_contention() -> None:
    stage, detector = serving()
    holds(stage, JOB, 0.04)
    holds(stage, ("77", "jupyter", "dev", "notebook", "main"), 0.0, 20e9)
    assert run(stage, detector, 60) == []


def test_many_small_ones_add_up() -> None:
    stage, detector = serving()
    for pid in range(5):
        holds(stage, (f"7{pid}", "worker", "dev", "batch", "main"), 0.05, 1e9)
    assert "and 4 more takes 25 %" in run(stage, detector, 20)[-1].summary


def test_beside_an_idle_server_it_is_information() -> None:
    stage, detector = serving()
    holds(stage, SERVER, 0.0, 120e9)
    holds(stage, JOB, 0.6)
    assert {each.severity for each in run(stage, detector, 20)} == {Severity.INFO}


def test_processes_of_the_servers_pod_belong_to_it() -> None:
    stage, detector = serving()
    holds(stage, ("41500", "python3", "inference", "llama-0", "sidecar"), 0.5)
    assert run(stage, detector, 60) == []


@pytest.mark.parametrize(
    ("server", "other", "together"),
    [
        ("VLLM::Worker_TP", "VLLM::EngineCor", True),
        ("sglang::schedul", "sglang::detoken", True),
        ("python3", "python3", True),
        ("", "", True),
        ("VLLM::Worker_TP", "nvidia-cuda-mps", True),
        ("VLLM::Worker_TP", "python3", False),
    ],
)
def test_without_pods_the_name_tells(server: str, other: str, *, together: bool) -> None:
    stage, detector = Stage(), GpuContention()
    holds(stage, ("41", server, "", "", ""), 0.6, 120e9)
    holds(stage, ("42", other, "", "", ""), 0.4, 2e9)
    assert (run(stage, detector, 20) == []) is together


@pytest.mark.parametrize(("container", "together"), [("c1", True), ("c2", False)])
def test_without_pods_the_container_tells(container: str, *, together: bool) -> None:
    stage, detector = Stage(), GpuContention()
    holds(stage, ("41", "VLLM::Worker_TP", "", "", "c1"), 0.6, 120e9)
    holds(stage, ("42", "python3", "", "", container), 0.4, 2e9)
    found = run(stage, detector, 20)
    assert (found == []) is together
    if found:
        assert found[-1].summary.startswith("python3 (pid 42, container c2) takes 40 %")


def test_a_process_that_ends_keeps_its_name_for_as_long_as_the_driver_tells_of_it() -> None:
    stage, detector = serving()
    holds(stage, JOB, 0.4)
    run(stage, detector, 20)
    ends(stage, JOB)
    holds(stage, (JOB[0], "", "", "", ""), 0.4)
    assert {each.summary[:7] for each in run(stage, detector, 10)} == {"python3"}


def test_a_process_that_was_never_seen_in_proc_is_not_judged() -> None:
    stage, detector = serving()
    holds(stage, ("88", "", "", "", ""), 0.4)
    assert run(stage, detector, 20) == []


def test_without_pods_one_of_the_same_name_that_comes_late_is_another() -> None:
    stage, detector = Stage(), GpuContention()
    holds(stage, ("41", "python3", "", "", ""), 0.6, 120e9)
    assert run(stage, detector, 90) == []
    holds(stage, ("42", "python3", "", "", ""), 0.4, 2e9)
    assert run(stage, detector, 20)


def test_the_process_that_serves_requests_is_the_server_though_another_holds_more() -> None:
    stage, detector = serving()
    holds(stage, JOB, 0.4, 130e9)
    found = run(stage, detector, 20, [bound_to(41403)])
    assert "beside VLLM::Worker_TP" in found[-1].summary


def test_a_second_server_that_requests_are_bound_to_is_no_intruder() -> None:
    stage, detector = serving()
    holds(stage, JOB, 0.4)
    assert run(stage, detector, 60, [bound_to(41403), bound_to(61000)]) == []


def test_pids_of_requests_are_forgotten_when_there_are_too_many() -> None:
    stage, detector = serving()
    holds(stage, JOB, 0.4)
    run(stage, detector, 1, [bound_to(61000)])
    run(stage, detector, 1, [bound_to(pid) for pid in range(1, BOUND_MAX + 1)])
    assert run(stage, detector, 20)


def test_without_shares_for_those_past_the_cap_and_on_a_gpu_that_vanished_nothing_is_said() -> None:
    stage, detector = Stage(), GpuContention()
    holds(stage, SERVER, None, 120e9)
    holds(stage, JOB, None)
    assert run(stage, detector, 20) == []
    stage, detector = serving()
    holds(stage, ("other", "", "", "", ""), 0.9, 5e9)
    assert run(stage, detector, 20) == []
    holds(stage, JOB, 0.4)
    assert run(stage, detector, 20)
    stage.drop(c.PROCESS_GPU_MEMORY, c.PROCESS_GPU_SM)
    assert run(stage, detector, 2) == []
    holds(stage, SERVER, 0.5, 120e9)
    holds(stage, JOB, 0.4)
    assert run(stage, detector, 4) == []


def test_contention_at_steps_of_ten_seconds() -> None:
    stage, detector = serving()
    holds(stage, JOB, 0.4)
    stage.silent = set()
    assert stage.run(detector, 10, step_s=10.0) == []
    assert len(stage.run(detector, 10, step_s=10.0)) == 1


def test_all_is_described() -> None:
    check_described(GpuContention)
