"""Which requests share a batch, and whose signs matter to them."""

from __future__ import annotations

from typing import Any

import pytest

from gpumon.detect.scene import Holder
from gpumon.explain.group import Group, group_of, holders_by_gpu, keys_of, pids_of
from gpumon.model import Binding, GpuUuid, RequestRecord
from tests.detect.requests import request

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")


def bound(binding: Binding, **told: Any) -> RequestRecord:
    return request(1000.0, binding=binding, **told)


def test_requests_on_the_same_gpus_are_one_group_whatever_process_they_are_bound_to() -> None:
    first = group_of(bound(Binding("resource", pid=1, gpus=(A, B))))
    second = group_of(bound(Binding("peer", pid=2, container_id="c", gpus=(A, B))))
    assert first == second == Group("vllm", "m", (A, B), "", "")


def test_two_replicas_of_a_model_are_two_groups() -> None:
    assert group_of(bound(Binding("resource", gpus=(A,)))) != group_of(bound(Binding("resource", gpus=(B,))))
    assert group_of(bound(Binding("resource", pid=1))) != group_of(bound(Binding("resource", pid=2)))


def test_two_models_or_kinds_of_server_on_one_gpu_are_two_groups() -> None:
    binding = Binding("resource", gpus=(A,))
    groups = {group_of(bound(binding, **told)) for told in ({}, {"model": "other"}, {"server": "sglang"})}
    assert len(groups) == 3


def test_without_gpus_the_process_tells_groups_apart_and_without_that_the_container() -> None:
    assert group_of(bound(Binding("resource", pid=7, container_id="c"))) == Group("vllm", "m", (), "7", "")
    assert group_of(bound(Binding("resource", container_id="c"))) == Group("vllm", "m", (), "", "c")
    assert group_of(bound(Binding("resource", pid=0))) == Group("vllm", "m", (), "0", "")
    assert group_of(bound(Binding())) == Group("vllm", "m", (), "", "")


def test_a_name_is_that_of_incidents() -> None:
    assert Group("vllm", "llama-70b", (), "", "").name == "vllm/llama-70b"


def test_what_matters_to_a_group_are_its_gpus_processes_server_and_host() -> None:
    keys = keys_of(Group("vllm", "m", ("GPU-a", "GPU-b"), "", ""), ["41", "42"])
    assert set(keys) == {
        ("gpu", "GPU-a"),
        ("gpu", "GPU-b"),
        ("process", "41"),
        ("process", "42"),
        ("server", "m"),
        ("server", "vllm/"),
        ("host", ""),
    }


def test_every_key_is_there_once() -> None:
    keys = keys_of(Group("vllm", "m", (), "41", ""), ["42", "41", "42"])
    assert len(keys) == len(set(keys))
    assert [name for scope, name in keys if scope == "process"] == ["41", "42"]


@pytest.mark.parametrize("binding", [Binding(), Binding("config", pod_uid="p")])
def test_what_runs_nowhere_known_has_its_server_only(binding: Binding) -> None:
    assert {scope for scope, _ in keys_of(group_of(bound(binding)), [])} == {"server"}


def test_a_container_is_on_this_host() -> None:
    assert ("host", "") in keys_of(Group("vllm", "m", (), "", "c"), [])


def test_without_a_model_no_server_is_meant_that_has_one() -> None:
    keys = keys_of(group_of(bound(Binding("resource", gpus=(A,)), model="")), [])
    assert [name for scope, name in keys if scope == "server"] == ["vllm/"]


def test_processes_of_a_group_are_those_that_hold_its_gpus_each_once() -> None:
    held = {"1": [Holder("0", "GPU-a"), Holder("1", "GPU-b")], "2": [Holder("1", "GPU-b")], "3": [Holder("2", "GPU-c")]}
    by_gpu = holders_by_gpu(["1", "2", "3", "4"], lambda pid: held.get(pid, []))
    assert by_gpu == {"GPU-a": ["1"], "GPU-b": ["1", "2"], "GPU-c": ["3"]}
    group = Group("vllm", "m", ("GPU-a", "GPU-b"), "", "")
    assert pids_of(group, lambda uuid: by_gpu.get(uuid, ())) == ["1", "2"]
    assert pids_of(group._replace(gpus=()), lambda uuid: by_gpu.get(uuid, ())) == []
