"""The whole of the API: every route over what is known, and the stream beside it. Imported when first asked for."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from gpumon.web.api import make_asgi
from gpumon.web.asgi import Asgi
from gpumon.web.correlation import correlation_routes
from gpumon.web.explain import diagnose_routes, explain_routes
from gpumon.web.explain_off import off_routes
from gpumon.web.incidents import Telling, incident_routes
from gpumon.web.knowledge import Knowledge
from gpumon.web.live import Live
from gpumon.web.routes import hour_routes, now_routes, request_routes, stream_routes
from gpumon.web.stream import Stream
from gpumon.web.unix_time import UnixTime


class Whole(NamedTuple):
    """What is served, and what must be ended with it."""

    asgi: Asgi
    stream: Stream


def make_whole(known: Knowledge, why_unexplained: str) -> Whole:
    """why_unexplained: which keys keep tokens from being explained; empty where they are."""
    known = known._replace(to_unix=UnixTime(known.to_unix))
    explanation = known.explanation
    knows = explanation.details.knows if explanation is not None else None
    telling = Telling(known.incidents, known.now_s, known.to_unix, knows)
    live = Live(known.snapshot, telling, known.now_s)
    stream = Stream(live.news)
    routes = [
        now_routes(known),
        stream_routes(stream),
        hour_routes(known),
        incident_routes(telling),
    ]
    if explanation is not None:
        routes += [
            request_routes(known, explanation),
            explain_routes(explanation.find, explanation.details.traces, explanation.newest, known.to_unix),
            diagnose_routes(partial(known.diagnose, explanation)),
            correlation_routes(explanation.correlations.matrices),
        ]
    else:
        routes.append(off_routes(why_unexplained))
    return Whole(make_asgi(*routes), stream)
