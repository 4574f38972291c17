"""Ramps, what is usual, and incidents that confirm."""

from __future__ import annotations

import pytest

from gpumon.explain.witnesses.weighing import (
    Usual,
    confirmed,
    found_pids,
    found_servers,
    is_of,
    ramp,
    server_key,
    server_name,
    sharing,
)
from tests.explain.witnesses.looks import incident


@pytest.mark.parametrize(
    ("value", "low", "high", "found"),
    [(1.0, 2.0, 4.0, 0.0), (3.0, 2.0, 4.0, 0.5), (9.0, 2.0, 4.0, 1.0), (2.0, 2.0, 2.0, 0.0), (2.1, 2.0, 2.0, 1.0)],
)
def test_ramp(value: float, low: float, high: float, found: float) -> None:
    assert ramp(value, low, high) == pytest.approx(found)


def test_an_incident_confirms_only_what_points_the_same_way() -> None:
    assert confirmed(0.3, is_found=True) == 0.8
    assert confirmed(0.95, is_found=True) == 0.95
    assert confirmed(0.05, is_found=True) == 0.05
    assert confirmed(0.3, is_found=False) == 0.3


def test_what_holds_is_not_usual_until_it_has_held_for_long() -> None:
    usual = Usual(8, 3, settles=50)
    for _ in range(3):
        usual.feed(1.0, 0.0)
    for _ in range(50):
        usual.feed(9.0, 0.9)
    assert usual.value == 1.0
    usual.feed(1.0, 0.0)
    for _ in range(50):
        usual.feed(9.0, 0.9)
    assert usual.value == 1.0
    for _ in range(8):
        usual.feed(9.0, 0.9)
    assert usual.value == 9.0


def test_few_readings_are_no_usual() -> None:
    usual = Usual(8, 3)
    usual.feed(1.0, 0.0)
    usual.feed(1.0, 0.0)
    assert usual.value is None


def test_what_was_so_at_first_is_usual() -> None:
    usual = Usual(8, 3)
    for _ in range(3):
        usual.feed(9.0, 1.0)
    assert usual.value == 9.0


def test_open_incidents_by_pid_and_host() -> None:
    incidents = [
        incident("cpu_starvation", "process", "pid 12 python3 -m x"),
        incident("cpu_starvation", "process", "pid 13 y", closed_s=4.0),
        incident("cpu_starvation", "process", "odd"),
        incident("numa_remote", "process", "pid 14 z"),
        incident("cpu_starvation", "server", "vllm/m"),
    ]
    found = found_pids(incidents, "cpu_starvation")
    assert found == {"12"}
    assert is_of(found, ["11", "12"])
    assert not is_of(found, ["11"])
    assert is_of(found_pids([incident("cpu_starvation", "host", "host")], "cpu_starvation"), [])


def test_who_shares_a_cgroup_with_a_pid() -> None:
    one, two = ("1", "a", "n", "p", "c"), ("2", "b", "n", "p", "c")
    other, bare = ("3", "a", "n", "q", "c"), ("4", "a", "", "", "")
    assert sharing([one, two, other, bare], {"2"}) == {one, two}
    assert sharing([one, two, other, bare], {"4"}) == {bare}


def test_names_and_keys_of_servers() -> None:
    labels = ("vllm", "llama", "127.0.0.1:8000", "eager")
    assert server_key(labels) == ("server", "llama")
    assert server_key(("tgi", "", "x")) == ("server", "tgi/")
    assert server_name(labels) in found_servers([incident("k", "server", "vllm/llama at 127.0.0.1:8000")], "k")
    assert not found_servers([incident("k", "server", "vllm/llama", closed_s=1.0)], "k")
