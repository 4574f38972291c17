"""The account of the sources: what is up, what failed how often, and one line of log a change."""

from __future__ import annotations

import logging
import threading

import pytest

from gpumon.health import DENIED_HELD_S, MISSES_REMEMBERED, Health
from gpumon.model import Miss, Reason


@pytest.fixture
def health() -> Health:
    return Health(lambda at_s: at_s + 1000.0)


def values(health: Health, at_s: float = 100.0) -> dict[tuple[str, ...], float]:
    """By short name and labels."""
    return {
        (sample.metric.name.removeprefix("gpumon_source_"), *sample.labels): sample.value
        for sample in health.samples(at_s)
        if isinstance(sample.value, (int, float))
    }


NORMAL = {Reason.UNSUPPORTED, Reason.ENDED}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


def test_a_pass_is_up_with_its_duration_and_time(health: Health) -> None:
    health.succeeded("host", 50.0, 0.25, [])
    told = values(health)
    assert told["up", "host"] == 1.0
    assert told["duration_seconds", "host"] == 0.25
    assert told["last_success_timestamp_seconds", "host"] == 1050.0
    assert all(told["errors_total", "host", reason] == 0 for reason in Reason if reason not in NORMAL)
    assert not {name[-1] for name in told} & NORMAL


def test_a_process_that_ended_is_neither_counted_nor_logged(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    for at_s in (50.0, 51.0):
        health.succeeded("processes", at_s, 0.1, [Miss("pid 7", Reason.ENDED, "ended")])
    health.succeeded("processes", 52.0, 0.1, [])
    assert lines(caplog) == []
    assert values(health)["errors_total", "processes", "unavailable"] == 0


def test_a_duration_nobody_measured_is_none(health: Health) -> None:
    health.succeeded("gpu_fast", 50.0, None, [])
    health.failed("nvml", None, Reason.UNAVAILABLE, "")
    assert not [key for key in values(health) if key[0] == "duration_seconds"]


def test_an_expected_source_is_down_and_waited_for_until_it_passes_or_fails(health: Health) -> None:
    for name in ("a", "b", "c"):
        health.expect(name)
    assert health.waiting_for() == ["a", "b", "c"]
    assert values(health)["up", "a"] == 0.0
    health.succeeded("a", 1.0, 0.1, [])
    health.failed("b", 0.1, Reason.DENIED, "no")
    health.paused("c")
    assert health.waiting_for() == []
    told = values(health)
    assert [told["up", name] for name in ("a", "b", "c")] == [1.0, 0.0, 0.0]
    assert ("last_success_timestamp_seconds", "b") not in told


def test_a_source_that_has_not_passed_for_long_is_down(health: Health) -> None:
    health.expect("gpu_slow", stale_after_s=15.0)
    health.succeeded("gpu_slow", 100.0, 0.1, [])
    assert values(health, 115.0)["up", "gpu_slow"] == 1.0
    assert values(health, 115.1)["up", "gpu_slow"] == 0.0


def test_a_pass_over_its_deadline_is_stuck_and_down_until_it_ends(health: Health) -> None:
    health.expect("host", deadline_s=5.0)
    health.succeeded("host", 1.0, 0.1, [])
    health.began("host", 10.0)
    assert health.stuck(15.0) == []
    assert health.stuck(15.1) == ["host"]
    assert values(health, 15.1)["up", "host"] == 0.0
    health.succeeded("host", 10.0, 6.0, [])
    assert health.stuck(16.0) == []
    assert values(health, 16.0)["up", "host"] == 1.0


def test_an_older_pass_that_arrives_late_does_not_turn_the_time_back(health: Health) -> None:
    health.succeeded("gpu_slow", 20.0, 0.1, [], "gpu 1")
    health.succeeded("gpu_slow", 10.0, 0.1, [], "gpu 2")
    assert values(health)["last_success_timestamp_seconds", "gpu_slow"] == 1020.0


def test_failures_are_counted_always_and_logged_once(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        health.failed("host", 0.1, Reason.UNAVAILABLE, "gone")
    health.succeeded("host", 5.0, 0.1, [])
    health.succeeded("host", 6.0, 0.1, [])
    assert values(health)["errors_total", "host", "unavailable"] == 3
    assert lines(caplog) == [
        'WARNING what="source host" state=failing reason=unavailable detail=gone',
        'INFO what="source host" state=ok was=unavailable',
    ]


def test_another_reason_is_another_line(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    health.failed("host", 0.1, Reason.UNAVAILABLE, "gone")
    health.failed("host", 0.1, Reason.MALFORMED, "odd")
    assert [line.split("reason=")[1].split()[0] for line in lines(caplog)] == ["unavailable", "malformed"]


def test_misses_are_counted_each_and_logged_by_change(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fan, power = Miss("gpu 3 fan", Reason.UNAVAILABLE, "UNKNOWN"), Miss("gpu 3 power", Reason.TIMEOUT)
    health.succeeded("gpu_slow", 1.0, 0.1, [fan, power], "gpu 3")
    health.succeeded("gpu_slow", 2.0, 0.1, [fan], "gpu 3")
    health.succeeded("gpu_slow", 2.0, 0.1, [], "gpu 4")
    health.succeeded("gpu_slow", 3.0, 0.1, [], "gpu 3")
    told = values(health)
    assert told["errors_total", "gpu_slow", "unavailable"] == 2
    assert told["errors_total", "gpu_slow", "timeout"] == 1
    assert told["up", "gpu_slow"] == 1.0
    assert [line.partition(" detail")[0] for line in lines(caplog)] == [
        'WARNING what="gpu_slow: gpu 3 fan" state=failing reason=unavailable',
        'WARNING what="gpu_slow: gpu 3 power" state=failing reason=timeout',
        'INFO what="gpu_slow: gpu 3 power" state=ok was=timeout',
        'INFO what="gpu_slow: gpu 3 fan" state=ok was=unavailable',
    ]


def test_what_is_unsupported_is_no_error_and_no_warning(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    health.succeeded("gpu_slow", 1.0, 0.1, [Miss("gpu 0 fan", Reason.UNSUPPORTED)])
    assert not any(key[0] == "errors_total" and value for key, value in values(health).items())
    assert ("errors_total", "gpu_slow", "unsupported") not in values(health)
    assert lines(caplog) == []


def test_what_is_denied_and_asked_for_once_a_minute_does_not_come_and_go_in_the_log(
    health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    denied = [Miss("gpu 0 gpm", Reason.DENIED)]
    for at_s in range(0, 600, 5):
        health.succeeded("gpu_slow", float(at_s), 0.1, denied if at_s % 60 == 0 else [], "gpu 0")
    assert len(lines(caplog)) == 1
    for at_s in range(600, 600 + int(DENIED_HELD_S) + 10, 5):
        health.succeeded("gpu_slow", float(at_s), 0.1, [], "gpu 0")
    assert [line.split()[0] for line in lines(caplog)] == ["WARNING", "INFO"]


def test_ever_new_misses_are_all_counted_and_only_so_many_remembered(
    health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(50):
        misses = [Miss(f"pid {number}-{i} numa_maps", Reason.DENIED) for i in range(100)]
        health.succeeded("numa", float(number), 0.1, misses)
    assert values(health)["errors_total", "numa", "denied"] == 5000
    health.succeeded("numa", 60.0, 0.1, [Miss(f"pid {i}", Reason.UNAVAILABLE) for i in range(3 * MISSES_REMEMBERED)])
    assert values(health)["errors_total", "numa", "unavailable"] == 3 * MISSES_REMEMBERED
    account = health._accounts["numa"]
    assert len(account.missing[""]) <= MISSES_REMEMBERED


def test_a_stuck_pass_is_counted_as_a_timeout(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    health.count_stuck("host")
    assert values(health)["errors_total", "host", "timeout"] == 1
    assert "still under way" in caplog.text


def test_a_source_that_is_no_more_has_no_series(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    health.succeeded("numa", 1.0, 0.1, [Miss("pid 4", Reason.DENIED)])
    health.failed("numa", 0.1, Reason.BUG, "")
    health.forget("numa")
    health.forget("never there")
    assert values(health) == {}
    assert health.waiting_for() == []
    health.failed("numa", 0.1, Reason.BUG, "")
    assert sum("reason=bug" in line for line in lines(caplog)) == 2  # known anew, told anew


def test_a_pause_is_no_failure(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    health.succeeded("nvml", 1.0, None, [])
    health.paused("nvml")
    assert values(health)["up", "nvml"] == 0.0
    health.succeeded("nvml", 2.0, None, [])
    assert lines(caplog) == []
    assert not any(value for key, value in values(health).items() if key[0] == "errors_total")


def test_many_threads_lose_no_count(health: Health) -> None:
    def work(number: int) -> None:
        for _ in range(500):
            health.succeeded("s", 1.0, 0.1, [Miss("x", Reason.TIMEOUT)], str(number))
            list(health.samples(1.0))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(health)["errors_total", "s", "timeout"] == 2000
