"""The dashboard gpumon-health."""

from __future__ import annotations

from grafana.kit import Board


def board() -> Board:
    """The dashboard."""
    return Board("gpumon-health", "gpumon / Health", "health", variables=("cluster", "node"))
