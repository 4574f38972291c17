"""``gpumon doctor`` as a process over the fake driver: every kind of node, and every way a driver can be away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpumon.host.nvml import Code
from gpumon.sampler.child import ADVICE
from tests.fakenvml import build
from tests.fakenvml.controller import FakeNode
from tests.fixtures.hosts import fixture_folder

ROOT = Path(__file__).resolve().parents[2]
Document = dict[str, Any]


def doctor(*arguments: str, env: dict[str, str]) -> tuple[int, Document]:
    done = subprocess.run(
        [sys.executable, "-m", "gpumon", "doctor", "--json", "--listen", "127.0.0.1:0", *arguments],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode
    return done.returncode, document


def check(document: Document, id_: str) -> Document:
    return next(check for check in document["checks"] if check["id"] == id_)


def statuses(document: Document, section: str) -> dict[str, str]:
    return {check["id"]: check["status"] for check in document["checks"] if check["section"] == section}


def plain_environment() -> dict[str, str]:
    """Without what would name another library or configuration."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GPUMON_", "FAKENVML", "LD_"))}


@pytest.fixture
def host() -> tuple[str, ...]:
    """Flags of a host without a PCI bus, so that only NVML counts GPUs."""
    folder = fixture_folder("gb10")
    return ("--sysfs", str(folder / "sys"))


@pytest.mark.parametrize(
    ("profile", "count", "activity", "mig", "xid"),
    [
        ("h200", 8, "ok", "ok", "ok"),
        ("a100-mig", 2, "unsupported", "ok", "ok"),
        ("t4", 1, "unsupported", "unsupported", "ok"),
        ("gb10", 1, "unsupported", "unsupported", "ok"),
    ],
)
def test_a_healthy_node_has_no_trouble_with_its_gpus(
    tmp_path: Path, host: tuple[str, ...], profile: str, count: int, activity: str, mig: str, xid: str
) -> None:
    with FakeNode.create(tmp_path / "node", profile, count) as node:
        code, document = doctor(*host, env=node.env(plain_environment()))
        assert node.misuse().gpm_leaked_at_shutdown == node.misuse().sets_leaked_at_shutdown == 0
        assert node.live().inits == 0
    gpu = statuses(document, "gpu")
    assert {"degraded", "missing"} & set(gpu.values()) == set()
    assert (gpu["activity"], gpu["mig"], gpu["xid_events"]) == (activity, mig, xid)
    assert len(document["gpus"]) == count
    assert all(gpu["name"] and gpu["uuid"].startswith("GPU-") for gpu in document["gpus"])
    assert str(build.build_library()) in check(document, "nvml")["detail"]
    assert code in (0, 1)  # by what the machine that runs the test allows


def test_mig_instances_are_counted(tmp_path: Path, host: tuple[str, ...]) -> None:
    with FakeNode.create(tmp_path / "node", "a100-mig", 2) as node:
        _, document = doctor(*host, env=node.env(plain_environment()))
    assert check(document, "mig")["detail"] == "enabled on GPUs 0, 1, 8 instances"


def test_the_library_may_be_named_by_its_path(tmp_path: Path, host: tuple[str, ...]) -> None:
    with FakeNode.create(tmp_path / "node", "h200", 1) as node:
        env = plain_environment() | {"FAKENVML_STATE": node.env()["FAKENVML_STATE"]}
        _, document = doctor(*host, "--nvml-lib", str(node.library), env=env)
    assert check(document, "nvml")["status"] == "ok"


def test_what_is_said_supported_is_what_the_daemon_says(tmp_path: Path, host: tuple[str, ...]) -> None:
    with FakeNode.create(tmp_path / "node", "h200", 1) as node:
        _, document = doctor(*host, env=node.env(plain_environment()))
    fields = document["gpus"][0]["fields"]
    assert {"utilization", "sm_active", "dram_active", "energy", "throttled_sw_thermal"} <= set(fields["supported"])
    assert {"fan", "retired_pages"} <= set(fields["unsupported"])
    assert fields["denied"] == fields["failed"] == []


def test_a_node_of_sick_gpus_names_each_illness_and_goes_on(tmp_path: Path, host: tuple[str, ...]) -> None:
    with FakeNode.create(tmp_path / "node", "sick8", 8) as node:
        env = node.env(plain_environment()) | {"GPUMON_NVML__STUCK_AFTER_S": "0.5"}
        code, document = doctor(*host, env=env)
    assert code == 1
    gpus = check(document, "gpus")
    for words in ("GPU 1 is lost", "GPU 2 wants recovery", "GPU 5 is stuck in nvmlDeviceGetUtilizationRates"):
        assert words in gpus["detail"]
    assert ADVICE[Code.GPU_IS_LOST] in gpus["fix"]
    activity = check(document, "activity")
    assert (activity["status"], "GPU 4" in activity["detail"]) == ("degraded", True)
    assert "refused as impossible" in check(document, "gpu_fields")["detail"]
    assert document["gpus"][7]["activity"] == "gpm"


def test_no_library(host: tuple[str, ...]) -> None:
    code, document = doctor(*host, "--nvml-lib", "/nowhere/libnvidia-ml.so.1", env=plain_environment())
    found = check(document, "nvml")
    assert (code, found["status"]) == (3, "missing")
    assert "LIBRARY_NOT_FOUND" in found["detail"]
    assert found["fix"].startswith(ADVICE[Code.LIBRARY_NOT_FOUND])
    assert document["gpus"] == []


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.LIB_RM_VERSION_MISMATCH, Code.DRIVER_NOT_LOADED])
def test_a_driver_that_refuses(tmp_path: Path, host: tuple[str, ...], code: Code) -> None:
    with FakeNode.create(tmp_path / "node", "h200", 1) as node:
        node.fail_init(1, code)
        status, document = doctor(*host, env=node.env(plain_environment()))
    found = check(document, "nvml")
    assert (status, found["status"], found["fix"]) == (3, "missing", ADVICE[code])
    assert code.name in found["detail"]
    if code is Code.LIB_RM_VERSION_MISMATCH:
        assert check(document, "driver_versions")["status"] == "missing"


def test_a_driver_that_hangs_does_not_hang_the_doctor(tmp_path: Path, host: tuple[str, ...]) -> None:
    with FakeNode.create(tmp_path / "node", "h200", 1) as node:
        node.hang("nvmlInitWithFlags")
        env = node.env(plain_environment())
        env |= {"GPUMON_NVML__STUCK_AFTER_S": "0.5", "GPUMON_NVML__RESTART_AFTER_S": "1"}
        began_s = time.monotonic()
        code, document = doctor(*host, env=env)
        assert time.monotonic() - began_s < 60
    assert code == 3
    assert "stuck in nvmlInitWithFlags" in check(document, "nvml")["detail"]


def test_xid_events_that_are_denied(tmp_path: Path, host: tuple[str, ...]) -> None:
    with FakeNode.create(tmp_path / "node", "h200", 2) as node:
        node.fail("nvmlDeviceRegisterEvents", Code.NO_PERMISSION, gpu=1)
        code, document = doctor(*host, env=node.env(plain_environment()))
    assert code == 1
    assert check(document, "xid_events")["detail"] == "NVML will not register GPU 1"


def test_gpus_that_the_bus_shows_and_nvml_does_not(tmp_path: Path) -> None:
    for name in ("0000:1b:00.0", "0000:43:00.0"):
        device = tmp_path / "sys/bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    with FakeNode.create(tmp_path / "node", "h200", 1) as node:
        _, document = doctor("--sysfs", str(tmp_path / "sys"), env=node.env(plain_environment()))
    assert "the PCI bus shows 2, NVML 1" in check(document, "gpus")["detail"]


def test_wrong_configuration_is_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpumon", "doctor", "--listen", "nowhere"],
        env=plain_environment(),
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2


def test_the_terminal_output_names_the_exit_status(host: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpumon", "doctor", "--nvml-lib", "/nowhere", "--listen", "127.0.0.1:0", *host],
        env=plain_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "Exit status 3" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_port_that_is_taken_is_told() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        holder.close()
        with socket.create_server(("127.0.0.1", port)):
            done = subprocess.run(
                [sys.executable, "-m", "gpumon", "doctor", "--json", "--listen", f"127.0.0.1:{port}"],
                env=plain_environment() | {"GPUMON_NVML__ENABLED": "false"},
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
    found = check(json.loads(done.stdout), "listen")
    assert (found["status"], "in use" in found["detail"]) == ("missing", True)
