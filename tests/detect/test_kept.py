"""What detectors remember: made when asked for, forgotten when gone, never more than there is room for."""

from __future__ import annotations

from gpumon.detect.kept import Kept


def kept(most: int = 3) -> Kept[str, list[str]]:
    return Kept(list, forget_s=60.0, most=most)


def test_a_short_absence_changes_nothing_and_a_long_one_forgets() -> None:
    states = kept()
    states.look("a", 0.0).append("x")
    assert states.look("a", 59.0) == ["x"]
    assert states.look("a", 119.0) == []


def test_a_sweep_forgets_what_is_gone_and_leaves_the_rest() -> None:
    states = kept()
    states.look("a", 0.0)
    states.look("b", 30.0)
    states.look("a", 35.0)
    states.sweep(89.0)
    assert [key for key, _ in states.items()] == ["b", "a"]
    states.sweep(90.0)
    assert [key for key, _ in states.items()] == ["a"]
    states.sweep(1000.0)
    assert len(states) == 0


def test_of_too_many_the_one_unseen_for_longest_gives_way() -> None:
    states = kept()
    for number, key in enumerate("abcad"):
        states.look(key, float(number)).append(key)
    assert dict(states.items()) == {"c": ["c"], "a": ["a", "a"], "d": ["d"]}
