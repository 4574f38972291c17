"""The report as people and scripts get it: stable JSON, plain text in a pipe, colours only on a terminal."""

from __future__ import annotations

import io
import json

import pytest

from gpumon.catalogue import GROUPS, METRICS
from gpumon.doctor.render import render
from gpumon.doctor.report import Check, Report, Status
from gpumon.host.nvml import Code
from tests.doctor.machines import call_error, diagnose, failing_nvml, healthy_gpu, healthy_nvml


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def sick() -> Report:
    lost = healthy_gpu(1)
    lost.error = call_error(Code.GPU_IS_LOST)
    return diagnose(facts=healthy_nvml(healthy_gpu(), lost))


def plain(report: Report) -> str:
    stream = io.StringIO()
    render(report, stream)
    return stream.getvalue()


@pytest.mark.parametrize("report", [diagnose(), sick(), diagnose(facts=failing_nvml(Code.LIBRARY_NOT_FOUND))])
def test_a_pipe_gets_80_columns_without_control_sequences_or_trailing_spaces(report: Report) -> None:
    lines = plain(report).splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    assert [line for line in lines if line != line.rstrip()] == []
    assert len(lines) <= 50


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    render(sick(), terminal)
    assert "\x1b[" in terminal.getvalue()


def test_only_problems_show_a_fix() -> None:
    assert "fix:" not in plain(diagnose())
    text = " ".join(plain(sick()).split())
    assert "fix: a GPU fell off the bus; drain the node" in text
    assert text.count("fix:") == 1


def test_names_from_the_hardware_cannot_steer_a_terminal() -> None:
    gpu = healthy_gpu()
    gpu.name = "evil \x1b]0;title\x07 [bold]markup[/bold]"
    text = plain(diagnose(facts=healthy_nvml(gpu)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]markup[/bold]" in text


def test_the_json_has_what_its_documentation_promises() -> None:
    document = json.loads(sick().as_json())
    assert set(document) == {"gpumon", "exit_code", "verdict", "process", "checks", "gpus"}
    assert document["exit_code"] == 1
    assert set(document["process"]) == {"uid", "capabilities", "container"}
    for check in document["checks"]:
        assert set(check) == {"id", "section", "title", "status", "detail", "fix", "gives"}
        assert (check["fix"] != "") == (check["status"] in ("degraded", "missing"))
    assert set(document["gpus"][1]) == {
        *("gpu", "uuid", "name", "pci_bus_id", "architecture", "activity", "mig_mode", "mig_devices", "xid_events"),
        *("fields", "error", "stuck"),
    }
    assert document["gpus"][1]["error"] == "nvmlDeviceGetHandleByIndex_v2: GPU_IS_LOST"
    assert set(document["gpus"][0]["fields"]) == {"supported", "unsupported", "denied", "failed"}


def test_every_metric_of_gpus_processes_and_the_host_is_behind_some_check() -> None:
    given = {name for check in json.loads(diagnose().as_json())["checks"] for name in check["gives"]}
    assert given <= {metric.name for metric in METRICS}
    groups = ("activity", "clocks and throttling", "power and heat", "memory", "links", "faults", "MIG")
    wanted = {metric.name for group in (*groups, "processes", "host") for metric in GROUPS[group]}
    assert wanted - given == set()


def test_a_problem_has_a_fix_and_nothing_else_has_one() -> None:
    with pytest.raises(AssertionError, match="has a fix"):
        Check("x", "host", "X", Status.MISSING, "gone")
    with pytest.raises(AssertionError, match="has a fix"):
        Check("x", "host", "X", Status.OK, "there", "nothing")
