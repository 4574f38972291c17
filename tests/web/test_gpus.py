"""/api/v1/gpus: every GPU now and its last minutes; what is not known is null."""

from __future__ import annotations

import json

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Entity, Severity
from gpumon.detect.incident import Incident
from gpumon.model import Metric, Sample
from gpumon.web.gpus import PROCESSES_MAX, Gpus
from tests.web.known import GPU, OFFSET_S, START_S, Known, bound_seconds, gpu_sample, present

NEAR = pytest.approx


def incident(uuid: str = GPU[1], closed_s: float | None = None) -> Incident:
    return Incident(
        "20270115T000000Z-thermal_throttle-gpu-3",
        "thermal_throttle",
        Entity("gpu", "gpu 3", "3", uuid),
        Severity.WARNING,
        START_S - 5.0,
        START_S - 3.0,
        START_S,
        "SM clock 1410 → 1005 MHz",
        (),
        "cool it",
        closed_s,
    )


def info(gpu: tuple[str, str] = GPU) -> Sample:
    labels = dict.fromkeys(catalogue.GPU_INFO.labels, "x") | {"gpu": gpu[0], "uuid": gpu[1], "name": "NVIDIA H200"}
    return Sample(catalogue.GPU_INFO, tuple(labels.values()), 1.0)


def test_without_gpus_there_are_none() -> None:
    assert Known().get("gpus") == {"at": START_S + OFFSET_S, "gpus": []}


def test_a_gpu_of_which_nothing_is_known_but_that_it_is_there_has_null_for_everything_else() -> None:
    known = Known()
    known.put("gpus", *present())
    (gpu,) = known.get("gpus")["gpus"]
    assert (gpu["gpu"], gpu["uuid"], gpu["present"], gpu["name"], gpu["info"]) == ("3", "GPU-0003", True, "", {})
    null = [name for name, value in gpu.items() if value is None]
    assert {"sm_active", "power_watts", "memory_total_bytes", "throttled_by", "bound", "history"} <= set(null)
    assert (gpu["xids"], gpu["processes"], gpu["mig"], gpu["incidents"], gpu["throttled"]) == ([], [], [], [], {})


def test_a_gpu_that_is_lost_is_told_as_not_present() -> None:
    known = Known()
    known.put("gpus", gpu_sample(catalogue.GPU_PRESENT, 0.0))
    assert known.get("gpus")["gpus"][0]["present"] is False


def test_readings_stand_in_their_fields() -> None:
    known = Known()
    readings: tuple[tuple[Metric, float, tuple[str, ...]], ...] = (
        (catalogue.GPU_SM_ACTIVE, 0.5, ()),
        (catalogue.GPU_DRAM_ACTIVE, 0.7, ()),
        (catalogue.GPU_POWER, 410.0, ("instant",)),
        (catalogue.GPU_POWER, 400.0, ("average",)),
        (catalogue.GPU_POWER_LIMIT, 700.0, ("enforced",)),
        (catalogue.GPU_CLOCK, 1.41e9, ("sm",)),
        (catalogue.GPU_CLOCK_MAX, 1.98e9, ("sm",)),
        (catalogue.GPU_TEMPERATURE, 61.0, ("gpu",)),
        (catalogue.GPU_TEMPERATURE_MARGIN, 26.0, ()),
        (catalogue.GPU_MEMORY, 60.0, ("used",)),
        (catalogue.GPU_MEMORY, 30.0, ("free",)),
        (catalogue.GPU_MEMORY, 10.0, ("reserved",)),
        (catalogue.GPU_THROTTLE_ACTIVE, 1.0, ("sw_power_cap",)),
        (catalogue.GPU_THROTTLE_ACTIVE, 0.0, ("hw_thermal",)),
        (catalogue.GPU_XID_ERRORS, 2.0, ("79",)),
        (catalogue.GPU_XID_ERRORS, 0.0, ("48",)),
        (catalogue.GPU_XID_LAST, 1.8e9, ("79",)),
    )
    known.put("gpus", *present(), info(), *(gpu_sample(metric, value, *of) for metric, value, of in readings))
    (gpu,) = known.get("gpus")["gpus"]
    expected = {
        "name": "NVIDIA H200", "sm_active": 0.5, "dram_active": 0.7, "power_watts": 410.0, "power_limit_watts": 700.0,
        "sm_clock_hertz": 1.41e9, "sm_clock_max_hertz": 1.98e9, "temperature_celsius": 61.0,
        "temperature_margin_celsius": 26.0, "memory_used_bytes": 60.0, "memory_total_bytes": 100.0,
        "throttled_by": ["sw_power_cap"], "xids": [{"xid": "79", "count": 2.0, "last": 1.8e9}],
    }  # fmt: skip
    assert {name: gpu[name] for name in expected} == expected
    assert gpu["readings"] == []


def test_memory_of_which_a_part_is_not_told_has_no_total() -> None:
    known = Known()
    known.put("gpus", *present(), gpu_sample(catalogue.GPU_MEMORY, 60.0, "used"))
    (gpu,) = known.get("gpus")["gpus"]
    assert (gpu["memory_used_bytes"], gpu["memory_total_bytes"]) == (60.0, None)


def test_gpus_come_by_index_and_one_of_them_by_its_uuid_with_all_its_readings() -> None:
    known = Known()
    known.put(
        "gpus",
        *present(("10", "GPU-10"), ("2", "GPU-2")),
        gpu_sample(catalogue.GPU_UTILIZATION, 0.5, gpu=("2", "GPU-2")),
    )
    assert [gpu["gpu"] for gpu in known.get("gpus")["gpus"]] == ["2", "10"]
    (gpu,) = known.get("gpus", "uuid=GPU-2")["gpus"]
    assert {"metric": "gpumon_gpu_utilization_ratio", "labels": {}, "value": 0.5} in gpu["readings"]
    assert known.get("gpus", "uuid=GPU-2&readings=false")["gpus"][0]["readings"] == []


def test_a_gpu_that_is_not_there_is_not_found() -> None:
    reply = Known().ask("gpus", "uuid=GPU-9")
    assert (reply.status, reply.json["title"]) == (404, "Not Found")
    assert "/api/v1/gpus lists them" in reply.json["detail"]


def test_the_last_minute_is_told_in_shares() -> None:
    known = Known()

    def batch(second: int) -> list[Sample]:
        return [
            *present(),
            *bound_seconds([0.6 * second, 0.3 * second, 0.0, 0.0, 0.1 * second]),
            gpu_sample(catalogue.GPU_THROTTLED_SECONDS, 0.25 * second, "sw_thermal"),
            gpu_sample(catalogue.GPU_THROTTLED_SECONDS, 3.0, "hw_thermal"),
            gpu_sample(catalogue.GPU_PCIE_BYTES, 1e6 * second, "tx"),
        ]

    known.run("gpus", 30, batch)
    (gpu,) = known.get("gpus")["gpus"]
    assert gpu["bound"] == {"compute": 0.6, "memory": 0.3, "balanced": 0.0, "starved": 0.0, "idle": 0.1}
    assert gpu["throttled"] == {"sw_thermal": 0.25}
    assert gpu["pcie_bytes_per_second"] == {"sent": 1e6, "received": None}
    assert gpu["nvlink_bytes_per_second"] is None


def test_a_counter_that_began_anew_says_nothing_of_the_minute() -> None:
    known = Known()
    known.run("gpus", 3, lambda second: [*present(), *bound_seconds([9.0 - second] * 5)])
    assert known.get("gpus")["gpus"][0]["bound"] is None


def test_history_has_common_times_and_null_where_a_reading_is_missing() -> None:
    known = Known()

    def batch(second: int) -> list[Sample]:
        power = [gpu_sample(catalogue.GPU_POWER, 100.0 + second, "instant")] if second != 2 else []
        return [*present(), gpu_sample(catalogue.GPU_SM_ACTIVE, second / 10), *power]

    known.run("gpus", 3, batch)
    history = known.get("gpus", "history=60")["gpus"][0]["history"]
    assert history["at"] == [START_S + OFFSET_S + second for second in (1, 2, 3)]
    assert history["step_seconds"] == 1.0
    assert history["signals"]["sm_active"] == [0.1, 0.2, 0.3]
    # The series ended when it had no reading, and its past with it.
    assert history["signals"]["power_watts"] == [None, None, 103.0]
    assert set(history["signals"]) == {"sm_active", "power_watts"}
    assert known.get("gpus", "history=1")["gpus"][0]["history"]["at"] == history["at"][1:]


def test_throttled_in_the_history_is_the_share_of_each_interval_of_the_worst_reason_but_idleness() -> None:
    known = Known()

    def batch(second: int) -> list[Sample]:
        seconds = {"sw_thermal": 0.2 * second, "hw_thermal": 0.5 * second, "low_utilization": 1.0 * second}
        return [*present(), *(gpu_sample(catalogue.GPU_THROTTLED_SECONDS, value, of) for of, value in seconds.items())]

    known.run("gpus", 3, batch)
    assert known.get("gpus", "history=60")["gpus"][0]["history"]["signals"] == {"throttled": [0.5, 0.5]}


def test_processes_come_with_their_pods_the_largest_first_and_no_more_than_fit() -> None:
    known = Known()
    held = [
        gpu_sample(catalogue.PROCESS_GPU_MEMORY, float(n), str(n), "python", "ml", f"pod-{n}", "main")
        for n in range(20)
    ]
    share = gpu_sample(catalogue.PROCESS_GPU_SM, 0.4, "19", "python", "ml", "pod-19", "main")
    known.put("gpus", *present(), *held, share)
    (gpu,) = known.get("gpus")["gpus"]
    assert len(gpu["processes"]) == PROCESSES_MAX
    assert gpu["processes_left_out"] == 4
    assert gpu["processes"][0] == {
        "pid": "19", "process": "python", "namespace": "ml", "pod": "pod-19", "container": "main",
        "memory_bytes": 19.0, "sm": 0.4,
    }  # fmt: skip


def test_open_incidents_of_the_gpu_are_told_and_no_others() -> None:
    known = Known()
    known.put("gpus", *present())
    known.found = [incident(), incident("GPU-9"), incident(closed_s=START_S)]
    (told,) = known.get("gpus")["gpus"][0]["incidents"]
    assert told == {
        "id": known.found[0].id,
        "kind": "thermal_throttle",
        "title": "GPU too hot",
        "severity": "warning",
        "since": START_S - 5.0 + OFFSET_S,
        "summary": "SM clock 1410 → 1005 MHz",
    }


def test_mig_instances_stand_under_their_gpu() -> None:
    known = Known()
    mig = ("MIG-1", GPU[1], "1", "0", "1g.18gb")
    known.put(
        "gpus",
        *present(),
        Sample(catalogue.MIG_INFO, (*mig, "3", "NVIDIA H200 MIG 1g.18gb"), 1.0),
        Sample(catalogue.MIG_SM_ACTIVE, mig, 0.25),
        *(Sample(catalogue.MIG_MEMORY, (*mig, state), 5.0) for state in catalogue.MIG_MEMORY.values),
    )
    (told,) = known.get("gpus")["gpus"][0]["mig"]
    assert (told["uuid"], told["profile"], told["sm_active"], told["dram_active"]) == ("MIG-1", "1g.18gb", 0.25, None)
    assert told["memory_total_bytes"] == 15.0


def test_hostile_names_are_json() -> None:
    known = Known()
    held = gpu_sample(catalogue.PROCESS_GPU_MEMORY, 1.0, "7", '"</script>\u2028', "ns", "pod", "c")
    known.put("gpus", *present(), held)
    assert known.get("gpus")["gpus"][0]["processes"][0]["process"] == '"</script>\u2028'


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("history=-1", "history"),
        ("history=241", "history"),
        ("history=nan", "history"),
        ("history=inf", "history"),
        ("history=1&history=x", "history"),
        ("uuid=", "uuid"),
        ("uuid=" + "x" * 97, "uuid"),
        ("readings=perhaps", "readings"),
    ],
)
def test_a_question_that_cannot_be_answered_names_the_parameter(query: str, where: str) -> None:
    reply = Known().ask("gpus", query)
    assert (reply.status, reply.json["status"]) == (422, 422)
    assert [each["where"] for each in reply.json["errors"]] == [where]
    assert reply.json["detail"].startswith(f"{where}: ")


def test_what_is_answered_can_be_read_back() -> None:
    known = Known()
    known.run("gpus", 3, lambda second: [*present(), gpu_sample(catalogue.GPU_SM_ACTIVE, 0.1)])
    reply = known.ask("gpus", "history=60")
    assert json.loads(Gpus.model_validate_json(reply.body).model_dump_json()) == reply.json
