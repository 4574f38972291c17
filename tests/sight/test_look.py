"""What a gpumon says that it sees: from a store that is filled by hand and the files of a made-up host."""

from __future__ import annotations

from gpumon import catalogue
from gpumon.config import Config, NvmlConfig, OtlpConfig, ServersConfig, StateConfig
from gpumon.doctor.surroundings import Surroundings
from gpumon.host.files import ReadError
from gpumon.model import Metric, Reason, Sample
from gpumon.sight.look import STATES, Seen, look
from gpumon.store import Store
from tests.doctor.machines import NONE, healthy_around, healthy_files, status
from tests.fakes import FakeFiles

RECEIVERS = {"grpc": "0.0.0.0:4317", "http": "[::]:4318"}


def state(name: str) -> list[Sample]:
    return [Sample(catalogue.NVML_STATE, (name,), 1.0)]


def info(metric: Metric, **known: str) -> Sample:
    return Sample(metric, tuple(known.get(label, "") for label in metric.labels), 1.0)


def gpu(number: int) -> Sample:
    told = {"name": "NVIDIA H200", "architecture": "hopper", "activity_source": "gpm"}
    return info(catalogue.GPU_INFO, gpu=str(number), uuid=f"GPU-{number}", **told)


def seen(
    *samples: Sample,
    config: Config | None = None,
    files: FakeFiles | None = None,
    around: Surroundings | None = None,
    receivers: dict[str, str] | None = None,
    is_demo: bool = False,
) -> dict[str, Seen]:
    store = Store()
    store.put("test", 10.0, samples, 5.0)
    found = look(
        config or Config(),
        store.view(10.0),
        files or healthy_files(),
        around or healthy_around(),
        RECEIVERS if receivers is None else receivers,
        is_demo=is_demo,
    )
    assert all(each.state in STATES and each.detail for each in found)
    assert all(bool(each.fix) == (each.state in ("no", "partly")) for each in found)
    return {each.part: each for each in found}


def test_a_healthy_node_sees_all_and_waits_for_traces_and_servers() -> None:
    found = seen(*state("running"), gpu(0))
    assert [part for part, each in found.items() if each.state != "yes"] == ["traces", "servers"]
    assert found["GPUs"].detail == "1 x NVIDIA H200; SM and DRAM activity by GPM on GPU 0"
    assert found["traces"] == Seen("traces", "waits", "none yet: send OTLP to port 4317 (gRPC) or 4318 (HTTP)")
    assert "pods" not in found


def test_without_a_driver_it_says_what_would_bring_gpus() -> None:
    error = info(catalogue.NVML_ERROR, code="LIBRARY_NOT_FOUND")
    found = seen(*state("unavailable"), error, files=without_bus())["GPUs"]
    assert (found.state, found.detail) == ("no", "NVML: LIBRARY_NOT_FOUND")
    assert "install the NVIDIA driver" in found.fix
    assert "nvml.enabled: false" in found.fix


def without_bus() -> FakeFiles:
    files = healthy_files()
    files.put("sys/bus/pci/devices/0000:3b:00.0/vendor", b"0x8086\n")
    return files


def test_a_driver_that_answers_with_a_code_of_tomorrow_is_told_by_its_name() -> None:
    found = seen(*state("unavailable"), info(catalogue.NVML_ERROR, code="code 4711"))["GPUs"]
    assert (found.state, found.detail) == ("no", "NVML: code 4711")


def test_a_sampler_that_cannot_be_started_leads_to_the_log() -> None:
    assert "see the log" in seen(*state("unavailable"))["GPUs"].detail


def test_a_driver_that_has_not_answered_yet_is_waited_for_and_not_missing() -> None:
    assert seen(*state("starting"))["GPUs"].state == "waits"
    assert seen()["GPUs"].state == "waits"


def test_a_driver_that_hangs_is_no_driver_and_one_let_go_of_is_off() -> None:
    hangs = seen(*state("stuck"))["GPUs"]
    assert hangs.state == "no"
    assert "does not return" in hangs.detail
    assert seen(*state("released"))["GPUs"].state == "off"


def test_nvml_that_is_switched_off_names_its_key() -> None:
    found = seen(config=Config(nvml=NvmlConfig(enabled=False)))["GPUs"]
    assert found == Seen("GPUs", "off", "nvml.enabled is false")


def test_a_lost_gpu_is_named_beside_those_that_answer() -> None:
    lost = Sample(catalogue.GPU_PRESENT, ("1", "GPU-1"), 0.0)
    found = seen(*state("running"), gpu(0), lost)["GPUs"]
    assert found.state == "partly"
    assert "GPU 1 is lost" in found.detail
    assert "drain the node" in found.fix


def test_a_gpu_less_than_on_the_bus_is_missed() -> None:
    files = healthy_files()
    for name, data in (("vendor", b"0x10de\n"), ("class", b"0x030200\n")):
        files.put(f"sys/bus/pci/devices/0000:5e:00.0/{name}", data)
    assert "the PCI bus shows 2, NVML 1" in seen(*state("running"), gpu(0), files=files)["GPUs"].detail


def test_without_rights_each_part_names_what_would_give_it() -> None:
    files = healthy_files()
    files.put("proc/self/status", status(NONE))
    denied = ReadError("/dev/kmsg", Reason.DENIED, "Operation not permitted")
    around = healthy_around(uid=65534, kernel_log=denied, state_folder="/var/lib: Permission denied")
    found = seen(*state("running"), gpu(0), files=files, around=around)
    assert {part: each.state for part, each in found.items() if each.fix} == {
        "NUMA pages": "partly",
        "kernel log": "no",
        "senders": "partly",
        "state": "partly",
    }
    assert "SYSLOG" in found["kernel log"].fix
    assert "SYS_PTRACE" in found["NUMA pages"].fix
    assert "this user" in found["servers"].detail


def test_in_a_container_of_its_own_processes_are_not_seen() -> None:
    files = healthy_files()
    files.put("proc/self/status", status(ns_pids="77 1"))
    found = seen(files=files)["processes"]
    assert found.state == "no"
    assert "hostPID" in found.fix


def test_a_kernel_that_lacks_one_of_three_is_partly_seen() -> None:
    files = healthy_files()
    files.vanish("proc/pressure/memory")
    found = seen(files=files)["host"]
    assert (found.state, found.detail) == ("partly", "Pressure stalls: the kernel does not account for them")


def test_traces_that_came_are_told_by_their_servers() -> None:
    came = info(catalogue.REQUESTS, server="vllm", model="m", outcome="ok")
    assert seen(came)["traces"] == Seen("traces", "yes", "of vllm, by OTLP at 4317 (gRPC) or 4318 (HTTP)")


def test_receivers_that_are_off_are_told_as_off() -> None:
    assert seen(config=Config(otlp=OtlpConfig(enabled=False)), receivers={})["traces"].state == "off"
    assert seen(receivers={})["traces"].detail == "otlp.grpc and otlp.http are null"
    assert "(gRPC)" not in seen(receivers={"http": "127.0.0.1:4318"})["traces"].detail


def test_servers_are_told_by_their_pages_and_whether_they_were_named() -> None:
    config = Config(servers=ServersConfig(targets=("http://127.0.0.1:8000/metrics",)))
    up = [Sample(catalogue.SERVER_UP, ("vllm", where), 1.0) for where in ("127.0.0.1:8000", "10.0.0.7:8000")]
    found = seen(*up, config=config)["servers"]
    assert found.state == "yes"
    assert found.detail == "vllm at 127.0.0.1:8000 (configured), vllm at 10.0.0.7:8000 (found)"
    down = seen(Sample(catalogue.SERVER_UP, ("vllm", "127.0.0.1:8000"), 0.0), config=config)["servers"]
    assert (down.state, down.fix) == ("partly", "correct servers.targets, or start the server")
    off = Config(servers=ServersConfig(discover=False))
    assert seen(config=off)["servers"].state == "off"


def test_the_kubelet_is_told_by_the_source_that_asks_it() -> None:
    up = Sample(catalogue.SOURCE_UP, ("kubelet",), 1.0)
    assert seen(up)["pods"].state == "yes"
    down = Sample(catalogue.SOURCE_UP, ("kubelet",), 0.0)
    denied = Sample(catalogue.SOURCE_ERRORS, ("kubelet", "denied"), 3.0)
    assert seen(down, denied)["pods"] == Seen(
        "pods", "no", "the kubelet does not say who holds which GPU", "run as uid 0: the kubelet's socket is root's"
    )


def test_a_state_folder_that_nobody_wants_is_off() -> None:
    assert seen(config=Config(state=StateConfig(folder=None)))["state"].detail == "state.folder is null"


def test_a_demo_tells_nothing_of_this_machines_rights() -> None:
    found = seen(*state("running"), gpu(0), files=FakeFiles({}), is_demo=True)
    assert list(found) == ["GPUs", "traces", "servers"]
