"""How well the GPUs of the fleet are used, and what holds them down."""

from __future__ import annotations

from gpumon import catalogue as c
from grafana import panels as p
from grafana.boards.fleet_rules import EVER, NO_RULES, by_cluster, of_cluster
from grafana.kit import Board
from grafana.queries import Query

_BOUND = "cluster:gpumon_gpu_bound_seconds:rate5m"
_THROTTLED = "cluster:gpumon_gpu_throttled_seconds:avg_rate5m"


def rows(made: Board) -> None:
    """The row."""
    bound, throttled = by_cluster(_BOUND), by_cluster(_THROTTLED, 'reason!="low_utilization"')
    limit = of_cluster(c.GPU_POWER_LIMIT, 'kind="enforced"')
    made.row(
        "GPUs of the clusters",
        (
            8,
            p.graph(
                "Bound states",
                "What limited the GPUs, as a share of their time. compute and memory is work; idle is capacity that nobody "
                "asked for; starved is the one to act on: requests are open and the GPU waits for the host.",
                Query(f"sum by (state) ({bound}) / scalar(sum({bound}) > 0)", "{{state}}"),
                unit="percentunit",
                stacked=True,
                most=1,
                empty="no data: no GPU tells SM and DRAM activity, or the rules are not loaded",
            ),
        ),
        (
            8,
            p.graph(
                "Throttled share by reason",
                "Of the time, mean over all GPUs: one GPU of a thousand that is throttled all the time is 0.1 %. The table "
                "of incidents names single ones. low_utilization, which costs nothing, is left out, and so is what never "
                "occurred.",
                Query(f"{throttled} and max_over_time({throttled}{EVER}) > 0", "{{cluster}} {{reason}}"),
                unit="percentunit",
                empty="nothing was throttled",
            ),
        ),
        (
            8,
            p.graph(
                "Power against limit",
                "Watts of all GPUs, and what their limits let them take now. Near it over the whole cluster, the limit is "
                "what tokens cost: raise it, or spread the work.",
                Query(by_cluster("cluster:gpumon_gpu_energy_joules:rate5m"), "{{cluster}} taken"),
                Query(f"sum by (cluster) ({limit} @ end())", "{{cluster}} limit now"),
                unit="watt",
                empty=NO_RULES,
            ),
        ),
        height=9,
    )
