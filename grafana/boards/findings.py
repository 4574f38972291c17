"""Rows that say what is wrong: series of any kind, each turned into words in the labels ``what`` and ``why``."""

from __future__ import annotations

from grafana.queries import JOB, TARGET, named

OF_NODE = "by (cluster, node)"
UNREACHABLE = f"max {OF_NODE} (up{{{','.join((*TARGET, JOB))}}} == 0)"
"""Targets that Prometheus cannot read. Of theirs there is nothing else."""


def told(expr: str, what: str, why: str, label: str = "") -> str:
    """The series with the labels ``what``, which may show the value of ``label`` as ``$1``, and ``why``."""
    if not label:
        return named(expr, what=what, why=why)
    return named(f'label_replace({expr}, "what", "{what}", "{label}", "(.*)")', why=why)
