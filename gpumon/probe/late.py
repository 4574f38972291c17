"""Why the probe's requests were slow, as the local gpumon explains them: joined by the trace ids that were sent.

gpumon knows of a request what spans tell it, of the server or of gpumon's proxy, and explains it some seconds after it
has ended: so the last request is waited for, unless the first one is not known either. Only slow requests are told of,
the newest 500.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import RootModel

from gpumon.api_client import Api, ApiError
from gpumon.probe.asking import Answer
from gpumon.probe.climbing import Climbed, succeeded
from gpumon.probe.model import CauseSeconds
from gpumon.web.explanation import Late, Trace

WAIT_S: Final = 15.0
"""After the end: ``explain.delay_s`` and what it takes to come."""
LIMIT: Final = 500
EVERY_S: Final = 1.0


class _Lates(RootModel[list[Late]]):
    """What ``/api/v1/explained`` answers."""


class Explained(NamedTuple):
    """What gpumon says of the requests."""

    causes: dict[str, dict[str, CauseSeconds]]
    """By trace id and cause."""
    note: str = ""
    """Why it says nothing, or not all."""


async def explained(
    api: Api, climbed: Sequence[Climbed], wait_s: float = WAIT_S, every_s: float = EVERY_S
) -> Explained:
    """Raises nothing. climbed: in the order of time."""
    answers = [answer for each in climbed for answer in succeeded(each)]
    if not answers:
        return Explained({})
    ours = {answer.trace_id for answer in answers}
    try:
        await asyncio.to_thread(api.get, "explained", _Lates, {"limit": "1"})  # or it says that nothing is explained
        if not await _known(api, climbed, answers, wait_s, every_s):
            return Explained({}, "gpumon has no spans of these requests: neither the server nor a proxy sends them")
        found = (await asyncio.to_thread(api.get, "explained", _Lates, {"limit": str(LIMIT)})).root
    except ApiError as error:
        return Explained({}, f"why requests were slow is not known: {error}")
    causes = {
        late.trace_id: {
            each.cause: CauseSeconds(cause=each.cause, title=each.title, seconds=each.seconds) for each in late.causes
        }
        for late in found
        if late.trace_id in ours
    }
    return Explained(causes, f"causes are of the newest {LIMIT} slow requests alone" if len(found) == LIMIT else "")


async def _known(
    api: Api, climbed: Sequence[Climbed], answers: Sequence[Answer], wait_s: float, every_s: float
) -> bool:
    """Whether gpumon has explained the last one, or after a while the first one."""
    if (climbed[-1].ended_ns - climbed[0].ended_ns) / 1e9 > wait_s and not await _has(api, answers[0].trace_id):
        return False
    for _ in range(max(1, round(wait_s / every_s))):
        if await _has(api, answers[-1].trace_id):
            return True
        await asyncio.sleep(every_s)
    return await _has(api, answers[-1].trace_id) or await _has(api, answers[0].trace_id)


async def _has(api: Api, trace_id: str) -> bool:
    try:
        await asyncio.to_thread(api.get, "explain", Trace, {"trace_id": trace_id})
    except ApiError:
        return False
    return True
