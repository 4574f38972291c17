"""Rows of gpumon-node: SM and memory bandwidth, what limited the GPUs, and the samples that a scrape hides."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as model

from gpumon import catalogue as c
from gpumon.model import Metric
from grafana import panels
from grafana.kit import Board
from grafana.queries import Query, increase, named, rate, select, where

GPU = "{{node}} GPU {{gpu}}"
BY_GPU = "by (cluster, node, gpu, uuid)"

BOUND_COLORS = {
    "compute": "blue",
    "memory": "purple",
    "balanced": "green",
    "starved": "red",
    "idle": "super-light-blue",
}


def add(board: Board) -> None:
    """Adds the rows."""
    board.row("SM and memory bandwidth", (12, _activity()), (12, _scatter()), height=9)
    board.add((12, _bound()), (12, _bound_by_gpu()))
    board.add(
        (8, _samples("SM", c.GPU_SM_ACTIVE_SAMPLES)),
        (8, _samples("Memory bandwidth", c.GPU_DRAM_ACTIVE_SAMPLES)),
        (8, _driver_samples()),
    )
    board.add((12, _pipes()), (12, _busy()))


_SM = f"sum {BY_GPU} ({rate(c.GPU_SM_ACTIVE_SECONDS)})"
_MEMORY = f"sum {BY_GPU} ({rate(c.GPU_DRAM_ACTIVE_SECONDS)})"
_NO_GPM = f"and on (cluster, node, uuid) {select(c.GPU_INFO, where('activity_source', 'utilization'))}"
_BUSY = f"sum {BY_GPU} ({rate(c.GPU_BUSY_SECONDS)}) {_NO_GPM}"
_MEMORY_BUSY = f"sum {BY_GPU} (avg_over_time({select(c.GPU_MEMORY_BUSY)}[$__rate_interval])) {_NO_GPM}"


def _activity() -> panels.Panel:
    panel = panels.graph(
        "SM activity and memory bandwidth",
        "Share of time in which the SMs had work (left), and of the memory bandwidth that was used (right), as means. "
        "Memory near its limit with SMs half idle is what decoding does: larger batches or a smaller KV cache help, a "
        "higher clock does not. Both low while requests are open: look at the host. A mean hides bursts: see the "
        "samples below. GPUs without GPM show the time in which any kernel ran, or memory was used at all: that is "
        "more, and says less.",
        Query(_SM, f"{GPU} SM"),
        Query(_MEMORY, f"{GPU} memory"),
        Query(_BUSY, f"{GPU} any kernel (no GPM)"),
        Query(_MEMORY_BUSY, f"{GPU} memory at all (no GPM)"),
        unit="percentunit",
        most=1,
    )
    panel.axis_label("SM active")
    return panels.right_axis(panel, "/ memory/", "percentunit", "memory bandwidth used")


def _scatter() -> panels.Panel:
    return panels.scatter(
        "SM activity against memory bandwidth",
        "Each point is the mean of one step of this time. To the right: limited by arithmetic. At the top: by memory "
        "bandwidth. At the lower left: idle, or starved by the host. One GPU apart from the others of its server is "
        "the one to look at. Points of GPUs without GPM are of the time in which anything ran: compare them with no "
        "others.",
        Query(f"{_SM} or {named(_BUSY, how='without GPM')}"),
        Query(f"{_MEMORY} or {named(_MEMORY_BUSY, how='without GPM')}"),
        unit="percentunit",
        labels=("SM active", "memory bandwidth used"),
        by=("node", "gpu", "how"),
        most=1,
    )


def _bound() -> panels.Panel:
    panel = panels.graph(
        "What limited the GPUs",
        "Shares of the sampled time of all GPUs selected, by what limited them: compute, memory, both (balanced), "
        "starved (idle while requests were open), idle. They add up to 1 by definition, also when few samples were "
        "taken. Starved is known only where requests are told of before they end, and of GPUs with GPM only.",
        Query(
            f"sum by (state) ({rate(c.GPU_BOUND_SECONDS)}) / scalar(sum({rate(c.GPU_BOUND_SECONDS)}))",
            "{{state}}",
        ),
        unit="percentunit",
        stacked=True,
        most=1,
    )
    for state, color in BOUND_COLORS.items():
        panel.override_by_name(state, [model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})])
    return panel


def _bound_by_gpu() -> panels.Panel:
    most = f"max {BY_GPU} ({rate(c.GPU_BOUND_SECONDS)}) > 0"
    arms = [
        f"({number} + 0 * (sum {BY_GPU} ({rate(c.GPU_BOUND_SECONDS, where('state', state))}) == ({most})))"
        for number, state in enumerate(BOUND_COLORS, 1)
    ]
    words = {str(number): shown for number, shown in enumerate(BOUND_COLORS.items(), 1)}
    steps = [(None, "transparent"), *((number, color) for number, color in enumerate(BOUND_COLORS.values(), 1))]
    return panels.states(
        "What limited each GPU most",
        "The state in which the GPU was for the most time of each step. GPUs that serve one model together should have "
        "one colour; the one with another is slower, or waits. Blank: no samples.",
        Query(" or ".join(arms), GPU),
        mappings=panels.values(words),
        steps=steps,
    )


def _samples(what: str, metric: Metric) -> panels.Panel:
    return panels.bucket_heatmap(
        f"{what}: samples of 100 ms",
        f"How the samples of all GPUs selected were spread, by {what.lower()} activity. Two bands, one high and one "
        "low, mean bursts: the mean of both is a value that the GPU never had. The length of a sample is "
        "`cadence.fast_s`.",
        Query(f"sum by (le) ({increase(metric, suffix='_bucket')})"),
        unit="percentunit",
        exemplars=False,
    )


def _driver_samples() -> panels.Panel:
    return panels.bucket_heatmap(
        "Utilization: the driver's samples",
        "The same for NVML's utilization, which GPUs without GPM have too: the share of each of the driver's samples "
        "(about seven a second) in which any kernel ran. 100 % does not mean that the GPU is full.",
        Query(f"sum by (le) ({increase(c.GPU_UTILIZATION_SAMPLES, suffix='_bucket')})"),
        unit="percentunit",
        exemplars=False,
    )


def _pipes() -> panels.Panel:
    shown = {
        "tensor": c.GPU_TENSOR_ACTIVE,
        "occupancy": c.GPU_SM_OCCUPANCY,
        "FP16": c.GPU_FP16_ACTIVE,
        "FP32": c.GPU_FP32_ACTIVE,
        "FP64": c.GPU_FP64_ACTIVE,
        "integer": c.GPU_INTEGER_ACTIVE,
    }
    return panels.graph(
        "What the SMs did",
        "Mean over the GPUs selected: share of time in which each pipe was active, and resident warps over the most "
        "possible (occupancy). Each scrape sees one sample of 100 ms, so this is a rough picture. Matrix work belongs "
        "on the tensor pipes: FP32 above them means a kernel that does not use them.",
        *(
            Query(f"avg by (cluster, node) (avg_over_time({select(metric)}[$__rate_interval]))", f"{{{{node}}}} {name}")
            for name, metric in shown.items()
        ),
        unit="percentunit",
        most=1,
    )


def _busy() -> panels.Panel:
    return panels.graph(
        "Busy time (every GPU)",
        "Share of time in which at least one kernel ran: NVML's utilization. All that GPUs without GPM have; not how "
        "much of the GPU was used. Near 100 % with low SM activity is a GPU that waits inside its kernels, for a "
        "collective or for memory.",
        Query(rate(c.GPU_BUSY_SECONDS), GPU),
        unit="percentunit",
        most=1,
    ).interval("1m")  # it grows every five seconds, by what the driver sampled meanwhile
