"""The dashboard gpumon-fleet."""

from __future__ import annotations

from grafana.kit import Board


def board() -> Board:
    """The dashboard."""
    return Board("gpumon-fleet", "gpumon / Fleet", "fleet", variables=("cluster", "node"))
