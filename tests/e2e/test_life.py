"""Start, reload, release, stop: what an operator does to a running gpumon."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path

from tests.e2e.conftest import Start
from tests.e2e.daemon import FAST, Daemon, run_to_end
from tests.e2e.waiting import eventually
from tests.fakenvml.controller import FakeNode

ADMIN = {"GPUMON_HTTP__ADMIN": "true"}


def test_a_port_in_use_is_one_clear_line_and_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_to_end(["run", "--listen", address])
    assert done.returncode == 1
    assert done.stderr == (
        f"gpumon: cannot listen on {address}: Address already in use; --listen (http.listen) takes another address\n"
    )
    assert done.stdout == ""


def test_a_receivers_port_in_use_is_one_clear_line_and_ends_it_in_order(node: FakeNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags in (["--otlp-http", address, "--otlp-grpc", "127.0.0.1:0"], ["--otlp-grpc", address]):
            others = [] if len(flags) == 4 else ["--otlp-http", "127.0.0.1:0"]
            on = {"GPUMON_OTLP__ENABLED": "true"}
            done = run_to_end(["run", "--listen", "127.0.0.1:0", *flags, *others], node.env(), on)
            assert done.returncode == 1
            (line,) = [line for line in done.stderr.splitlines() if line.startswith("gpumon: ")]
            assert line.startswith(f"gpumon: cannot listen on {address} for OTLP/")
            assert line.endswith(f"{flags[0]} (otlp.{flags[0][-4:]}) takes another address")
            assert "Traceback" not in done.stderr


def test_sigterm_and_sigint_end_it_in_order(node: FakeNode, start: Start) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        daemon = start(node)
        daemon.await_series("gpumon_gpu_utilization_ratio", 8)
        began_s = time.monotonic()
        assert daemon.end(number) == 0
        assert time.monotonic() - began_s < 10.0
        assert daemon.log.splitlines()[-1].endswith("gpumon=stopped")
        assert "Traceback" not in daemon.log
    assert node.live().inits == 0
    assert node.live().gpm_samples == 0
    assert node.misuse() == type(node.misuse())(0, 0, 0, 0, 0, 0, 0, 0)


def test_a_signal_in_the_first_moment_ends_it_in_order_too(node: FakeNode, start: Start) -> None:
    for _ in range(3):
        daemon = start(node)
        assert daemon.end(signal.SIGTERM) == 0
    assert node.live().inits == 0


def test_a_second_signal_ends_it_at_once(node: FakeNode, start: Start) -> None:
    daemon = start(node)
    daemon.await_series("gpumon_gpu_utilization_ratio", 8)
    with socket.create_connection(("127.0.0.1", daemon.port), 10) as held:
        # A request under way holds up the orderly end.
        held.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        daemon.process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        assert daemon.end(signal.SIGTERM) in (0, 1)
        assert time.monotonic() - began_s < 2.0


def test_a_killed_gpumon_takes_its_sampler_along(node: FakeNode, start: Start) -> None:
    daemon = start(node)
    daemon.await_series("gpumon_gpu_utilization_ratio", 8)
    samplers = _children(daemon.process.pid)
    assert len(samplers) == 1
    daemon.end(signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{samplers[0]}").exists(), "the sampler is gone", within_s=8)


def test_a_killed_sampler_is_replaced_and_counters_go_on(node: FakeNode, start: Start) -> None:
    daemon = start(node)
    page = daemon.await_series("gpumon_gpu_samples_total", 8)
    before = page.by("gpu", "gpumon_gpu_samples_total")
    os.kill(_children(daemon.process.pid)[0], signal.SIGKILL)
    eventually(lambda: daemon.page().value("gpumon_sampler_restarts_total", reason="exited") == 1, "it is replaced")
    page = daemon.await_series("gpumon_gpu_samples_total", 8)
    after = page.by("gpu", "gpumon_gpu_samples_total")
    assert all(after[gpu] >= before[gpu] for gpu in before)


def test_released_nvml_is_shut_down_and_acquired_again(node: FakeNode, start: Start) -> None:
    node.log_calls()
    daemon = start(node, options=ADMIN)
    daemon.await_series("gpumon_gpu_utilization_ratio", 8)
    assert daemon.ask("/-/release-nvml").status == 405
    reply = daemon.ask("/-/release-nvml", "POST")
    assert (reply.status, reply.text) == (200, "released\n")
    assert node.calls("nvmlShutdown") == 1
    assert node.live().inits == 0
    calls = sum(node.all_calls().values())
    page = daemon.await_series("gpumon_gpu_utilization_ratio", 0)
    assert page.select("gpumon_host_page_faults_total")
    eventually(lambda: daemon.page().value("gpumon_nvml_state", state="released") == 1, "released")
    assert sum(node.all_calls().values()) == calls
    assert daemon.ask("/-/ready").status == 200
    reply = daemon.ask("/-/acquire-nvml", "POST")
    assert (reply.status, reply.text) == (200, "acquiring\n")
    daemon.await_series("gpumon_gpu_utilization_ratio", 8)
    assert daemon.page().value("gpumon_nvml_state", state="running") == 1


def test_sighup_takes_a_good_configuration_and_keeps_it_over_a_bad_one(
    node: FakeNode, start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "gpumon.yaml"
    file.write_text("processes:\n  limit: 8\n")
    daemon = start(node, "--config", str(file))
    daemon.await_series("gpumon_gpu_utilization_ratio", 8)
    stamp = "gpumon_config_last_reload_success_timestamp_seconds"
    first_s = daemon.await_series(stamp).value(stamp)

    file.write_text("cadence:\n  fast_s: 0.05\n")
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: "reload=taken" in daemon.log, "the reload is taken")
    eventually(lambda: daemon.page().value(stamp) > first_s, "the page says when")
    second_s = daemon.page().value(stamp)

    def rate() -> bool:
        return _rate(daemon, "gpumon_gpu_samples_total", 1.5) > 15

    eventually(rate, "twenty samples a second")

    file.write_text("cadence:\n  fast_s: 0.05\nlog:\n  format: json\n")
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: '"message": "reload=taken"' in daemon.log, "the log changes its form")
    eventually(lambda: daemon.page().value(stamp) > second_s, "the page says when, again")
    second_s = daemon.page().value(stamp)

    for wrong in ("cadence:\n  fast_s: -1\n", "cadence: [", "http:\n  ui: false\n", "no_such: {}\n"):
        file.write_text(wrong)
        lines = daemon.log.count("reload=refused")
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: daemon.log.count("reload=refused") > lines, f"{wrong!r} is refused")  # noqa: B023
        eventually(lambda: daemon.page().value("gpumon_config_last_reload_successful") == 0, "the page says so")
    assert daemon.page().value(stamp) == second_s
    eventually(rate, "the last good one is in effect")

    file.write_text("cadence:\n  fast_s: 0.05\n")
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: daemon.page().value("gpumon_config_last_reload_successful") == 1, "well again")


def test_reload_over_http_says_what_was_wrong(node: FakeNode, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "gpumon.yaml"
    file.write_text("{}\n")
    daemon = start(node, "--config", str(file), options=ADMIN)
    reply = daemon.ask("/-/reload", "POST")
    assert (reply.status, reply.text) == (200, "reloaded\n")
    file.write_text("cadence:\n  fast_s: 99\n")
    reply = daemon.ask("/-/reload", "POST")
    assert reply.status == 409
    assert f"cadence.fast_s = 99 ({file}:2): expected a number from 0.02 to 5" in reply.text


def test_a_wrong_configuration_stops_the_start_with_status_2(tmp_path: Path) -> None:
    file = tmp_path / "gpumon.yaml"
    file.write_text("cadence:\n  fast_s: fast\n")
    done = run_to_end(["run", "--config", str(file)])
    assert done.returncode == 2
    assert "cadence.fast_s" in done.stderr


def test_the_demo_needs_no_gpu_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Daemon(tmp_path, command="demo", options=FAST, own_state=False) as demo:
        demo.await_series("gpumon_gpu_utilization_ratio", 8)
        named = re.search(r"state=folder path=(\S+)", demo.log)
        assert named is not None
        folder = Path(named[1])
        assert folder.is_dir()
        assert demo.end() == 0
    assert not folder.exists()


def test_the_demo_keeps_its_state_where_it_was_told_to(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with Daemon(tmp_path, command="demo", options=FAST | {"GPUMON_STATE__FOLDER": str(kept)}) as demo:
        demo.await_series("gpumon_state_folder_ok")
        assert demo.end() == 0
    assert kept.is_dir()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] or [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def _rate(daemon: Daemon, counter: str, seconds: float) -> float:
    """Growth per second of GPU 0's counter, 0 while it is absent."""
    points: list[tuple[float, float]] = []

    def point() -> bool:
        found = daemon.page().select(counter, gpu="0")
        points.extend((time.monotonic(), value) for _, value in found)
        return not found or points[-1][0] - points[0][0] > seconds

    eventually(point, counter)
    if len(points) < 2:
        return 0.0
    first, last = points[0], points[-1]
    return (last[1] - first[1]) / (last[0] - first[0])
