"""What Explain says in words: what causes mean, what to do about them and about incidents, and where to ask on.

The texts of causes and incidents are gpumon's own; only the last is written here.
"""

from __future__ import annotations

from gpumon.detect.detectors import DETECTORS
from gpumon.explain.causes import LOAD, TABLE, UNEXPLAINED


def _sort(cause: str) -> str:
    if cause == UNEXPLAINED:
        return "nobody knows"
    return "load" if cause in LOAD else "fault"


MEANINGS = {name: f"{_sort(name)}: {cause.meaning}" for name, cause in TABLE.items()}
ACTIONS = {name: cause.action for name, cause in TABLE.items()}
INCIDENTS = {kind.name: kind.action for detector in DETECTORS for kind in detector.kinds}

NEXT = """\
**On the node** (each asks the gpumon there):

| to see | run |
|---|---|
| the verdict in words, and what to do | `gpumon diagnose --since 30m` |
| the same as a page with plots, to attach | `gpumon diagnose --since 30m --html report.html` |
| one request, token by token | `gpumon explain TRACE_ID` |
| every signal before, during and after an incident | `gpumon diagnose --incident latest` |
| what is not watched here, and which right is missing | `gpumon doctor` |

A TRACE_ID is a dot in the heatmaps of [Inference](/d/gpumon-inference?${__url_time_range}&${__all_variables}), or from `/api/v1/explained`.

**Over HTTP**, at the node's port 9450 (`/docs` describes all of it):

| to get | ask |
|---|---|
| the newest slow requests | `/api/v1/explained?cause=thermal_throttle&min_excess=0.5` |
| one request | `/api/v1/explain?trace_id=TRACE_ID` |
| the verdict of the last half hour | `/api/v1/diagnose?since=1800` |
| latency over two attributes of requests | `/api/v1/surface?x=prompt_tokens&y=concurrency` |
| incidents open, with what they touched | `/api/v1/incidents?state=open` |
| which signals go with latency | `/api/v1/correlation?strong_only=true` |

**How it is worked out**, what a cause means, and what this cannot do:
[docs/EXPLAINING.md](https://github.com/gpumon/gpumon/blob/main/docs/EXPLAINING.md).
"""
