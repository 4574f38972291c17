"""The dashboard gpumon-inference."""

from __future__ import annotations

from grafana.kit import Board


def board() -> Board:
    """The dashboard."""
    return Board("gpumon-inference", "gpumon / Inference", "inference", variables=("cluster", "node"))
