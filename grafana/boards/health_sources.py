"""Rows of gpumon-health: its sources, NVML, how it samples, and what it costs."""

from __future__ import annotations

from gpumon import catalogue as c
from grafana import panels
from grafana.boards.findings import OF_NODE
from grafana.columns import linked
from grafana.kit import Board
from grafana.queries import Query, increase, quantile, rate, select

_NOT_NVML = 'source!="nvml"'
_GPU = "{{node}} GPU {{gpu}}"
_BY_GPU = "by (cluster, node, gpu)"


def add(board: Board) -> None:
    """Adds the rows."""
    board.row("Sources", (12, _down()), (12, _errors()))
    board.add((8, _duration()), (8, _age()), (8, _errors_by_source()))
    board.row("NVML and sampling", (8, _nvml_state()), (8, _nvml_time()), (8, _nvml_calls()))
    board.add((6, _sampling_rate()), (6, _covered()), (6, _sample_age()), (6, _restarts()))
    board.row("What it keeps and what it costs", (8, _cpu()), (8, _memory()), (8, _heaviest()))
    board.add((8, _series()), (8, _left_out()), (8, _rejected()))


def _down() -> panels.Panel:
    return panels.states(
        "Sources down, by how many nodes",
        "Green: up on all nodes that answer. One source down on one node: that host. On all: a version, a privilege or "
        "a driver. The log says why, once at the beginning and once at the end; `gpumon doctor` on the node says what "
        "would help.",
        Query(f"sum by (source) ({select(c.SOURCE_UP)} == bool 0)", "{{source}}"),
        steps=((None, "green"), (1, "red")),
        empty="no gpumon answers",
    )


def _errors() -> panels.Panel:
    return panels.graph(
        "Errors of sources by reason",
        "Failed passes and single failed readings per second, over all nodes. denied: a privilege is missing. timeout: "
        "something on the host hangs. malformed and out_of_range: a new driver or server version. bug: report it.",
        Query(f"sum by (reason) ({rate(c.SOURCE_ERRORS)})", "{{reason}}"),
        unit="cps",
        stacked=True,
        empty="no gpumon answers",
    )


def _duration() -> panels.Panel:
    return panels.graph(
        "Length of the last pass",
        "By source, of the slowest node. A pass must be shorter than its cadence (GPU processes and links 5 s, host "
        "0.5 s, servers 2 s, unless configured), or figures come late.",
        Query(f"max by (source) ({select(c.SOURCE_DURATION)})", "{{source}}"),
        unit="s",
        empty="no gpumon answers",
    )


def _age() -> panels.Panel:
    return panels.graph(
        "Since the last success",
        "By source, of the oldest. It rises to the source's cadence (at most 60 s, unless configured) and falls again; "
        "a line that goes on rising is a source that fails or hangs. A source that never succeeded has no line: it is "
        "in What is wrong. NVML itself is taken once, and is in its state below.",
        Query(f"max by (source) (time() - {select(c.SOURCE_LAST_SUCCESS, _NOT_NVML)})", "{{source}}"),
        unit="s",
        empty="no gpumon answers",
    )


def _errors_by_source() -> panels.Panel:
    return panels.rows(
        "Errors in this time",
        "By source and reason, over all nodes that answer, with the number of nodes. A few when the daemon starts are "
        "normal.",
        Query(f"round(sum by (source, reason) ({_grown()})) > 0"),
        Query(f"count by (source, reason) (sum by (cluster, node, source, reason) ({_grown()}) > 0)"),
        rename={"source": "Source", "reason": "Reason", "Value #A": "Errors", "Value #B": "Nodes"},
        order=("source", "reason", "Value #A", "Value #B"),
        sort_by="Errors",
        empty="no error, where sources are shown at the left",
    )


def _grown() -> str:
    return increase(c.SOURCE_ERRORS, window="$__range")


def _nvml_state() -> panels.Panel:
    return panels.graph(
        "State of NVML, by nodes",
        "running is right. unavailable: no driver, or kernel and library of two versions. stuck: a call hangs, as after "
        "XID 79. released: by request, for a driver update or a GPU reset; gpumon takes it back when asked.",
        Query(f"sum by (state) ({select(c.NVML_STATE)})", "{{state}}"),
        unit="short",
        stacked=True,
        empty="no gpumon answers",
    )


def _nvml_time() -> panels.Panel:
    return panels.graph(
        "Time in NVML",
        "Seconds per second that a node's threads wait for NVML, by function: the ten longest, mean over nodes. It is "
        "time of the driver, not CPU time. More of it after a driver update, or on one node, is a slow driver.",
        Query(
            f"topk(10, sum by (call) ({rate(c.NVML_CALL, suffix='_sum')})"
            f" / scalar(count(count {OF_NODE} ({select(c.BUILD_INFO)}))))",
            "{{call}}",
        ),
        unit="percentunit",
        empty="no gpumon answers",
    )


def _nvml_calls() -> panels.Panel:
    seconds = f"sum by (call) ({rate(c.NVML_CALL, suffix='_sum', window='$__range')})"
    calls = f"sum by (call) ({rate(c.NVML_CALL, suffix='_count', window='$__range')})"
    return panels.rows(
        "NVML calls in this time",
        "By function, over all nodes. The mean is exact. P99 is taken from buckets that are ten times apart: it tells "
        "milliseconds from seconds, and no more. Anything near a second on a healthy driver is wrong.",
        Query(f"{quantile(0.99, c.NVML_CALL, by=('call',), window='$__range')} > 0"),
        Query(f"({seconds}) / ({calls} > 0)"),
        Query(f"{calls} > 0"),
        rename={"call": "Function", "Value #A": "P99", "Value #B": "Mean", "Value #C": "Per second"},
        order=("call", "Value #A", "Value #B", "Value #C"),
        unit="s",
        units={"Per second": "cps"},
        sort_by="P99",
        empty="no gpumon answers",
    )


def _sampling_rate() -> panels.Panel:
    return panels.graph(
        "Samples per second",
        "Of the ten GPUs with the fewest. 10 is wanted unless `cadence.fast_s` is set to something else. Fewer: the "
        "host has no CPU to spare for the sampler, or the driver is slow. 0: the GPU does not answer.",
        Query(f"bottomk(10, sum {_BY_GPU} ({rate(c.GPU_SAMPLES)}))", _GPU),
        unit="cps",
        steps=((None, "red"), (9, "green")),
        empty="no GPU is sampled",
    )


def _covered() -> panels.Panel:
    return panels.graph(
        "Time covered by samples",
        "Of the ten GPUs with the least: time of which SM and memory activity are known, over all time. 1 is right, "
        "whatever the cadence. What is not covered is in no counter of activity or bound state. Only GPUs with GPM.",
        Query(f"bottomk(10, sum {_BY_GPU} ({rate(c.GPU_BOUND_SECONDS)}))", _GPU),
        unit="percentunit",
        steps=((None, "red"), (0.9, "green")),
        empty="no GPU with GPM is sampled",
    )


def _sample_age() -> panels.Panel:
    return panels.graph(
        "Age of the newest sample",
        "Of the ten GPUs with the oldest, when Prometheus asked. Publication (1 s) and the scrape interval are in it; "
        "clocks of node and Prometheus that differ, too. One that rises is a GPU or a sampler that stopped.",
        Query(f"topk(10, max {_BY_GPU} (time() - {select(c.GPU_LAST_SAMPLE)}))", _GPU),
        unit="s",
        empty="no GPU is sampled",
    )


def _restarts() -> panels.Panel:
    return panels.graph(
        "Sampler replaced",
        "How often, by reason, within each step. exited: it crashed or was killed. stuck: a call to NVML hung. driver: "
        "the driver was loaded anew, which is no fault.",
        Query(f"sum by (reason) ({increase(c.SAMPLER_RESTARTS)})", "{{reason}}"),
        unit="short",
        empty="no gpumon answers",
    )


def _cpu() -> panels.Panel:
    return panels.graph(
        "CPU of gpumon",
        "CPUs in use, by process: the mean over nodes, and the most of any. It grows with GPUs, processes and token "
        "traces.",
        Query(f"avg by (component) ({rate(c.SELF_CPU)})", "{{component}}, mean"),
        Query(f"max by (component) ({rate(c.SELF_CPU)})", "{{component}}, most"),
        unit="percentunit",
        empty="no gpumon answers",
    )


def _memory() -> panels.Panel:
    return panels.graph(
        "Memory of gpumon",
        "Resident, by process: the mean over nodes, and the most of any. It is bounded: growth without end is a bug.",
        Query(f"avg by (component) ({select(c.SELF_RESIDENT)})", "{{component}}, mean"),
        Query(f"max by (component) ({select(c.SELF_RESIDENT)})", "{{component}}, most"),
        unit="bytes",
        empty="no gpumon answers",
    )


def _heaviest() -> panels.Panel:
    cpu = f"sum {OF_NODE} ({rate(c.SELF_CPU, window='$__range')})"
    heaviest = f"topk(10, {cpu})"

    def of_them(expr: str) -> str:
        return f"({expr}) and on (cluster, node) ({heaviest})"

    panel = panels.rows(
        "Where gpumon costs most",
        "The ten nodes on which it uses the most CPU, over the time selected, with its memory and its series now.",
        Query(heaviest),
        Query(of_them(f"sum {OF_NODE} ({select(c.SELF_RESIDENT)})")),
        Query(of_them(f"sum {OF_NODE} ({select(c.SERIES)})")),
        rename={"cluster": "Cluster", "node": "Node", "Value #A": "CPUs", "Value #B": "Memory", "Value #C": "Series"},
        order=("cluster", "node", "Value #A", "Value #B", "Value #C"),
        units={"CPUs": "percentunit", "Memory": "bytes"},
        sort_by="CPUs",
        empty="no gpumon answers",
    )
    return linked(panel, "Node", "gpumon-node", "node")


def _series() -> panels.Panel:
    return panels.graph(
        "Series",
        "Exposed by the largest node and on the mean; and those whose newest points gpumon keeps for its own rates and "
        "annotations. refused: there was no room for more, and spans lack their figures (store.max_series).",
        Query(f"max({select(c.SERIES)})", "exposed, most"),
        Query(f"avg({select(c.SERIES)})", "exposed, mean"),
        Query(f"max by (state) ({select(c.HISTORY_SERIES)})", "history {{state}}, most"),
        unit="short",
        empty="no gpumon answers",
    )


def _left_out() -> panels.Panel:
    return panels.graph(
        "Series left out",
        "Per second, by reason, over all nodes; each is counted at every pass. budget: more than the catalogue or "
        "store.max_series allows: fewer processes, models or tenants by name. duplicate: two sources told the same, a "
        "bug. sampler_backlog: the main process did not keep up, and samples were lost.",
        Query(f"sum by (reason) ({rate(c.SERIES_DROPPED)})", "{{reason}}"),
        unit="cps",
        empty="no gpumon answers",
    )


def _rejected() -> panels.Panel:
    return panels.graph(
        "Readings rejected",
        "Readings per second that cannot be true (a utilization of 300 %), by field and reason, over all nodes. They are "
        "dropped, so graphs have gaps there. Now and then is a driver's glitch; a steady rate is a driver bug.",
        Query(f"sum by (field, reason) ({rate(c.SAMPLES_REJECTED)})", "{{field}} {{reason}}"),
        unit="cps",
        empty="none, where the graphs at the left have data",
    )
