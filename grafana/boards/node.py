"""The dashboard gpumon-node."""

from __future__ import annotations

from grafana.kit import Board


def board() -> Board:
    """The dashboard."""
    return Board("gpumon-node", "gpumon / Node", "node", variables=("cluster", "node"))
