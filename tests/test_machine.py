"""The machine behind the ports: the real one by its configuration, and a simulated one by its scenario."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpumon.config import Config
from gpumon.host.clock import ManualClock
from gpumon.host.http_client import HttpClient
from gpumon.host.interpreter import module_environment
from gpumon.machine import real_machine, simulated_machine
from gpumon.sim.sampler import ports as sampler_ports
from gpumon.sim.scenario import ScenarioError
from tests.fixtures.hosts import fixture_folder
from tests.stories import write_story


def test_the_real_machine_is_where_the_configuration_says() -> None:
    roots = fixture_folder("h200")
    config = Config.model_validate(
        {
            "host": {"procfs": str(roots / "proc"), "sysfs": str(roots / "sys"), "kernel_log": None},
            "nvml": {"library": "/opt/libnvidia-ml.so"},
        }
    )
    machine = real_machine(config)
    assert machine.ports.files.read("proc/vmstat") == (roots / "proc/vmstat").read_bytes()
    assert machine.ports.kernel_log is None
    assert machine.ports.server_urls == ()
    assert isinstance(machine.ports.http, HttpClient)
    assert machine.world is None
    assert machine.sampler is not None
    assert "gpumon.sampler" in machine.sampler[-1]
    assert machine.sampler_options == {
        "library": "/opt/libnvidia-ml.so",
        "procfs": str(roots / "proc"),
        "sysfs": str(roots / "sys"),
        "cgroupfs": "/sys/fs/cgroup",
    }


def test_without_nvml_there_is_no_sampler() -> None:
    assert real_machine(Config.model_validate({"nvml": {"enabled": False}})).sampler is None


def test_a_simulated_machine_has_its_story_from_a_file(tmp_path: Path) -> None:
    machine = simulated_machine(ManualClock(500.0), str(write_story(tmp_path)))
    assert machine.world is not None
    assert machine.world.scenario.name == "quick"
    assert machine.world.seed == 11  # the scenario's own
    assert machine.world.started_at_s == 500.0
    assert machine.ports.server_urls == ("http://127.0.0.1:8000/metrics",)
    assert machine.sampler is not None
    assert "gpumon.sim.sampler" in machine.sampler[-1]


def test_the_built_in_story_is_the_usual_one() -> None:
    world = simulated_machine(ManualClock()).world
    assert world is not None
    assert world.scenario.name == "demo"


def test_the_sampler_process_simulates_the_same_node(tmp_path: Path) -> None:
    clock = ManualClock(500.0)
    machine = simulated_machine(clock, str(write_story(tmp_path)))
    nvml, files = sampler_ports(machine.sampler_options, clock)
    clock.step(7.5)
    nvml.open()
    assert machine.world is not None
    for board in machine.world.boards:
        nvml.device_by_uuid(board.uuid)
    for path in ("proc/vmstat", "proc/pressure/memory"):
        assert files.read(path) == machine.ports.files.read(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("duration_s: 5\n", "quick.yaml:1: name: Field required"),
        ("name: x\nduration_s: 5\nfaults:\n  - {kind: fire, at_s: 1}\n", "quick.yaml:4: faults[0].kind: no such fault"),
        ("name: x\nduration_s: 5\nfalts: []\n", "quick.yaml:3: falts: Extra inputs are not permitted"),
        ("name: [\n", "quick.yaml:2: "),
    ],
)
def test_a_scenario_that_cannot_be_taken_is_named_with_line_and_key(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "quick.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        simulated_machine(ManualClock(), str(path))
    assert said in str(caught.value).splitlines()[0]


def test_the_kubelet_and_its_logs_are_asked_where_they_are_configured_or_there(tmp_path: Path) -> None:
    def ports(**kubernetes: object) -> tuple[bool, bool]:
        made = real_machine(Config.model_validate({"kubernetes": kubernetes})).ports
        return made.pod_resources is not None, made.log_names is not None

    nowhere = tmp_path / "nowhere"
    assert ports(pod_resources=str(nowhere / "kubelet.sock"), log_folder=str(nowhere)) == (True, True)
    assert ports(pod_resources=None, log_folder=None) == (False, False)
    # The defaults count only where a kubelet has been.
    is_node = Path("/var/lib/kubelet/pod-resources").is_dir(), Path("/var/log/pods").is_dir()
    assert ports() == is_node


def test_grpc_is_loaded_only_where_there_is_a_kubelet() -> None:
    program = (
        "import sys\n"
        "from gpumon.config import Config\n"
        "from gpumon.machine import real_machine\n"
        "real_machine(Config.model_validate({'kubernetes': {'pod_resources': None}}))\n"
        "print('grpc' in sys.modules, 'ssl' in sys.modules, 'google.protobuf' in sys.modules)\n"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=module_environment(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["False"] * 3


def test_the_api_server_is_asked_only_on_request() -> None:
    assert real_machine(Config()).ports.kube_api is None
    assert real_machine(Config.model_validate({"kubernetes": {"api": True}})).ports.kube_api is not None
