"""Node says what is missing and why, and shows GPUs that tell less as what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumon.catalogue import BOUND_STATES, THROTTLE_REASONS
from gpumon.detect.pcie import LANE_BYTES_S
from grafana import panels
from grafana.boards import node, node_activity, node_clocks
from grafana.queries import Query
from tests.grafana.evaluation import check, expr_of, growing, panel_of, steady

NODE = 'cluster="c", node="n"'
UP = f'gpumon_source_up{{{NODE}, source="host"}}'
DOWN = f'gpumon_source_up{{{NODE}, source="gpu_slow"}}'


def gpu(name: str, index: int = 0, more: str = "") -> str:
    """A series of a GPU."""
    return f'{name}{{{NODE}, gpu="{index}", uuid="u{index}"{more}}}'


def row(what: str, why: str, more: str = "") -> str:
    """A row of What is missing."""
    return f'{{{NODE}, what="{what}", why="{why}"{more}}}'


# --- what is missing ------------------------------------------------------------------------------------------------
MISSING = "What is missing"
NOTHING = row("nothing", "all sources are up")


def test_on_a_healthy_node_nothing_is_missing_and_that_is_said(tmp_path: Path) -> None:
    series = {UP: steady(1), DOWN: steady(1), gpu("gpumon_gpu_present"): steady(1)}
    series[f'up{{{NODE}, job="gpumon"}}'] = steady(1)
    check(tmp_path, expr_of(node.board(), MISSING), series, {NOTHING: 2})


def test_a_source_that_fails_is_named(tmp_path: Path) -> None:
    failing = row("source gpu_slow", "it fails: see gpumon / Health", ', source="gpu_slow"')
    check(tmp_path, expr_of(node.board(), MISSING), {UP: steady(1), DOWN: steady(0)}, {failing: 0})


def test_a_lost_gpu_is_named_though_all_sources_are_up(tmp_path: Path) -> None:
    series = {UP: steady(1), gpu("gpumon_gpu_present"): steady(1), gpu("gpumon_gpu_present", 3): steady(0)}
    lost = row("GPU 3", "it does not answer any more", ', gpu="3"')
    check(tmp_path, expr_of(node.board(), MISSING), series, {lost: 0})


def test_gpus_that_the_driver_does_not_show_are_counted(tmp_path: Path) -> None:
    count = {"expected": 8, "present": 6}
    series = {UP: steady(1)} | {f'gpumon_gpus{{{NODE}, state="{k}"}}': steady(v) for k, v in count.items()}
    absent = row("GPUs", "they are on the PCI bus, and the driver does not show them")
    check(tmp_path, expr_of(node.board(), MISSING), series, {absent: 2})


@pytest.mark.parametrize("job", ["gpumon", "monitoring/gpumon"])
def test_a_node_that_prometheus_cannot_read_misses_everything(tmp_path: Path, job: str) -> None:
    everything = row("everything", "Prometheus cannot read gpumon")
    check(tmp_path, expr_of(node.board(), MISSING), {f'up{{{NODE}, job="{job}"}}': steady(0)}, {everything: 0})


def test_sources_that_are_down_because_nvml_was_released_are_told_with_the_reason(tmp_path: Path) -> None:
    state = f'gpumon_nvml_state{{{NODE}, state="released"}}'
    failing = row("source gpu_slow", "it fails: see gpumon / Health", ', source="gpu_slow"')
    released = row("NVML", "it was released by request: its sources are down until it is taken back")
    check(tmp_path, expr_of(node.board(), MISSING), {state: steady(1), DOWN: steady(0)}, {failing: 0, released: 1})


def test_empty_graphs_point_at_a_panel_of_the_first_row() -> None:
    assert f"no data: see {MISSING}" == panels.NO_DATA
    assert panel_of(node.board(), MISSING)["gridPos"]["y"] < 10


def test_a_reading_that_only_some_gpus_lack_is_told_with_their_number(tmp_path: Path) -> None:
    field = ', field="fan"'
    supported = {0: 0, 1: 1, 2: 1}
    series = {gpu("gpumon_gpu_field_supported", index, field): steady(value) for index, value in supported.items()}
    series[gpu("gpumon_gpu_field_supported", 0, ', field="energy"')] = steady(1)
    title = "What is missing: not supported by the GPU"
    labels = f"{{{NODE}{field}}}"
    check(tmp_path, expr_of(node.board(), title, "A"), series, {labels: 1})
    check(tmp_path, expr_of(node.board(), title, "B"), series, {labels: 3})


# --- identity and incidents -----------------------------------------------------------------------------------------
def test_a_lost_gpu_whose_name_is_gone_is_a_row_all_the_same(tmp_path: Path) -> None:
    series = {gpu("gpumon_gpu_present"): steady(1), gpu("gpumon_gpu_present", 1): steady(0)}
    series[gpu("gpumon_gpu_info", 0, ', name="NVIDIA H200"')] = steady(1)
    known, lost = gpu("", 0, ', name="NVIDIA H200"'), gpu("", 1)
    check(tmp_path, expr_of(node.board(), "GPUs"), series, {known: 1, lost: 0})


def test_incidents_of_the_host_are_shown_beside_those_of_gpus(tmp_path: Path) -> None:
    kinds = {', kind="xid", gpu="3", uuid="u"': 1, ', kind="memory_pressure"': 2, ', kind="ecc"': 0}
    series = {f"gpumon_incident_active{{{NODE}{labels}}}": steady(value) for labels, value in kinds.items()}
    expected = {
        f'{{{NODE}, kind="xid", gpu="3", of=" GPU 3"}}': 1.0,
        f'{{{NODE}, kind="memory_pressure"}}': 2.0,
    }
    check(tmp_path, expr_of(node.board(), "Incidents open", "B"), series, expected)
    check(tmp_path, expr_of(node.board(), "Incidents open", "A"), series, {f"{{{NODE}}}": 0})


# --- activity -------------------------------------------------------------------------------------------------------
ACTIVITY = "SM activity and memory bandwidth"


def test_only_a_gpu_without_gpm_shows_its_busy_time_in_place_of_sm_activity(tmp_path: Path) -> None:
    series = {
        gpu("gpumon_gpu_info", 0, ', activity_source="gpm"'): steady(1),
        gpu("gpumon_gpu_info", 1, ', activity_source="utilization"'): steady(1),
        gpu("gpumon_gpu_sm_active_seconds_total"): growing(0.4),
        gpu("gpumon_gpu_busy_seconds_total"): growing(0.8),
        gpu("gpumon_gpu_busy_seconds_total", 1): growing(0.6),
    }
    check(tmp_path, expr_of(node.board(), ACTIVITY, "A"), series, {gpu(""): 0.4})
    check(tmp_path, expr_of(node.board(), ACTIVITY, "C"), series, {gpu("", 1): 0.6})
    marked = {gpu(""): 0.4, gpu("", 1, ', how="without GPM"'): 0.6}
    check(tmp_path, expr_of(node.board(), "SM activity against memory bandwidth"), series, marked)


def test_the_scatter_takes_x_and_y_of_each_gpu_by_itself() -> None:
    panel = panel_of(node.board(), "SM activity against memory bandwidth")
    merge, rename, divide = panel["transformations"]
    assert merge["id"] == "merge"
    assert rename["options"]["renameByName"] == {"Value #A": "SM active", "Value #B": "memory bandwidth used"}
    assert (divide["id"], divide["options"]["fields"]) == ("partitionByValues", ["node", "gpu", "how"])
    assert panel["options"]["mapping"] == "auto"  # manual shows nothing without the index of a frame
    (series,) = panel["options"]["series"]
    assert {axis: series[axis]["matcher"]["options"] for axis in series} == {"x": "Value #A", "y": "Value #B"}


def test_every_bound_state_has_its_own_colour() -> None:
    assert set(node_activity.BOUND_COLORS) == set(BOUND_STATES)
    assert len(set(node_activity.BOUND_COLORS.values())) == len(BOUND_STATES)


def test_the_timeline_shows_the_state_that_had_the_most_time_and_none_without_samples(tmp_path: Path) -> None:
    name = "gpumon_gpu_bound_seconds_total"
    series = {gpu(name, 0, f', state="{state}"'): growing(0.1) for state in BOUND_STATES}
    series[gpu(name, 0, ', state="starved"')] = growing(0.6)
    series |= {gpu(name, 1, f', state="{state}"'): steady(50) for state in BOUND_STATES}
    starved = 1 + list(node_activity.BOUND_COLORS).index("starved")
    check(tmp_path, expr_of(node.board(), "What limited each GPU most"), series, {gpu(""): starved})


# --- clocks, heat, links --------------------------------------------------------------------------------------------
def test_of_several_reasons_the_gravest_is_shown(tmp_path: Path) -> None:
    name = "gpumon_gpu_throttled_seconds_total"
    shares = {"sw_power_cap": 0.9, "sw_thermal": 0.2, "hw_slowdown": 0.02, "low_utilization": 1.0}
    series = {gpu(name, 0, f', reason="{reason}"'): growing(share) for reason, share in shares.items()}
    series[gpu(name, 1, ', reason="low_utilization"')] = growing(1)
    series[gpu(name, 1, ', reason="sw_thermal"')] = growing(0)
    shown = {gpu(""): 1 + list(node_clocks.HELD).index("heat"), gpu("", 1): 0}
    check(tmp_path, expr_of(node.board(), "What held the clock of each GPU down"), series, shown)


def test_every_reason_holds_clocks_down_or_is_left_out_on_purpose() -> None:
    held = {reason for reasons, _ in node_clocks.HELD.values() for reason in reasons}
    assert held | {"low_utilization", "base_clocks"} == set(THROTTLE_REASONS)


def test_the_margin_of_a_gpu_that_states_none_is_taken_from_its_slowdown_temperature(tmp_path: Path) -> None:
    series = {
        gpu("gpumon_gpu_temperature_margin_celsius"): steady(12),
        gpu("gpumon_gpu_temperature_limit_celsius", 0, ', limit="slowdown"'): steady(90),
        gpu("gpumon_gpu_temperature_celsius", 0, ', sensor="gpu"'): steady(60),
        gpu("gpumon_gpu_temperature_limit_celsius", 1, ', limit="slowdown"'): steady(93),
        gpu("gpumon_gpu_temperature_limit_celsius", 1, ', limit="shutdown"'): steady(98),
        gpu("gpumon_gpu_temperature_celsius", 1, ', sensor="gpu"'): steady(70),
    }
    title = "Degrees until the GPU slows down for heat"
    check(tmp_path, expr_of(node.board(), title), series, {gpu(""): 12, gpu("", 1): 23})


@pytest.mark.parametrize("generation", [3, 4, 5])
def test_a_pcie_link_is_full_at_the_bytes_that_its_lanes_can_carry(tmp_path: Path, generation: int) -> None:
    lanes = 8
    series = {
        gpu("gpumon_gpu_pcie_link_width", 0, ', kind="current"'): steady(lanes),
        gpu("gpumon_gpu_pcie_link_generation", 0, ', kind="current"'): steady(generation),
        gpu("gpumon_gpu_pcie_bytes_total", 0, ', direction="rx"'): growing(lanes * LANE_BYTES_S[generation]),
        gpu("gpumon_gpu_pcie_bytes_total", 0, ', direction="tx"'): growing(1),
    }
    expr = f"round({expr_of(node.board(), 'PCIe over what the link can carry')}, 0.01)"
    check(tmp_path, expr, series, {gpu(""): 1})


def test_half_of_the_lanes_and_one_generation_less_are_a_quarter_of_the_link(tmp_path: Path) -> None:
    state = {"width": {"current": 8, "max": 16}, "generation": {"current": 4, "max": 5}}
    series = {
        gpu(f"gpumon_gpu_pcie_link_{of}", 0, f', kind="{kind}"'): steady(value)
        for of, kinds in state.items()
        for kind, value in kinds.items()
    }
    check(tmp_path, expr_of(node.board(), "Links: share of what they can be"), series, {gpu(""): 0.25})


# --- faults and processes -------------------------------------------------------------------------------------------
def test_the_first_event_of_an_xid_that_was_never_seen_is_told(tmp_path: Path) -> None:
    name = "gpumon_gpu_xid_last_timestamp_seconds"
    series = {
        gpu(name, 0, ', xid="151"'): f"_x{39} 540 540",
        gpu(name, 1, ', xid="31"'): "-3000x40",  # before the time that is looked at
    }
    check(tmp_path, expr_of(node.board(), "XIDs in this time"), series, {gpu("", 0, ', xid="151"'): 60})


def test_a_process_on_two_gpus_has_a_row_for_each_and_one_that_ended_has_none(tmp_path: Path) -> None:
    who = 'pid="7", process="vllm", container="c1"'
    gone = 'pid="6", process="vllm", container="c1"'
    series = {
        gpu("gpumon_process_gpu_memory_bytes", 0, f", {who}"): steady(5),
        gpu("gpumon_process_gpu_memory_bytes", 1, f", {who}"): steady(6),
        f"gpumon_process_cpu_seconds_total{{{NODE}, {who}}}": growing(0.5),
        f"gpumon_process_cpu_seconds_total{{{NODE}, {gone}}}": growing(0.5).replace("x40", "x20") + " stale",
    }
    rows = {f'{{{NODE}, gpu="{index}", {who}, of="c1"}}': 0.5 for index in (0, 1)}
    table = panel_of(node.board(), "Processes that hold a GPU")
    (ref,) = [
        key[-1] for key, name in table["transformations"][-1]["options"]["renameByName"].items() if name == "CPUs"
    ]
    check(tmp_path, expr_of(node.board(), table["title"], ref), series, rows)


def test_a_pod_is_named_with_its_namespace(tmp_path: Path) -> None:
    pod = 'namespace="serving", pod="llama-0", container="vllm"'
    name = "gpumon_process_cgroup_pressure_stalled_seconds_total"
    series = {f'{name}{{{NODE}, pid="7", process="vllm", {pod}, resource="memory", kind="some"}}': growing(0.2)}
    shown = {f'{{{NODE}, {pod}, resource="memory", of="serving/llama-0/vllm"}}': 0.2}
    check(tmp_path, expr_of(node.board(), "Pressure in the processes' cgroups"), series, shown)


def test_rows_of_bare_selectors_which_grafana_would_not_merge_are_refused() -> None:
    bare = [Query('gpumon_gpu_present{node="a"}'), Query('gpumon_gpu_row_remap_pending{node="a"} == 1')]
    with pytest.raises(ValueError, match="__name__"):
        panels.rows("Boards", "Of each board.", *bare, rename={}, order=("gpu",))
