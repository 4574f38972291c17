"""Room for a fixed number of groups."""

from __future__ import annotations

from gpumon.explain.group import Group
from gpumon.explain.group_room import GroupRoom


def group(name: str) -> Group:
    return Group("vllm", name, (), "", "")


def test_a_group_keeps_its_state_and_a_new_one_gets_its_own() -> None:
    room: GroupRoom[list[float]] = GroupRoom(lambda at_s: [at_s])
    assert room.see(group("a"), 1.0) is room.see(group("a"), 2.0) is room.get(group("a"))
    assert room.see(group("b"), 3.0) == [3.0]
    assert [(each.model, state) for each, state in room.items()] == [("a", [1.0]), ("b", [3.0])]
    assert room.get(group("c")) is None


def test_only_a_group_that_is_idle_makes_room() -> None:
    room: GroupRoom[list[float]] = GroupRoom(lambda at_s: [at_s], most=2, idle_s=300.0)
    room.see(group("a"), 0.0)
    room.see(group("b"), 10.0)
    room.see(group("a"), 200.0)
    assert room.see(group("c"), 309.9) is None
    assert room.get(group("c")) is None
    assert room.see(group("c"), 310.0) == [310.0]
    assert room.get(group("b")) is None
    assert room.get(group("a")) == [0.0]
    assert room.see(group("b"), 320.0) is None
