"""Which adapter reads a span: by instrumentation scope, then by service name, then by what the span itself carries.

Never by the span's name alone: ``infer`` or ``generate`` mean something else elsewhere. Spans of an unknown scope
without any gen_ai attribute are ignored and counted.
"""

from __future__ import annotations

from gpumon.ingest.adapters.contract import SCOPE, Contract
from gpumon.ingest.adapters.dynamo import Dynamo
from gpumon.ingest.adapters.genai import GenAi
from gpumon.ingest.adapters.seen import Adapter
from gpumon.ingest.adapters.sglang import Sglang
from gpumon.ingest.adapters.tgi import Tgi
from gpumon.ingest.adapters.triton import Triton
from gpumon.ingest.adapters.trtllm import TrtLlm
from gpumon.ingest.adapters.values import text
from gpumon.ingest.adapters.vllm import Vllm
from gpumon.ingest.records import STEP_SPAN_NAMES, TOKEN_TIMES, Resource, Scope, SpanRecord

VLLM, SGLANG, TGI, TRITON, TRTLLM = Vllm(), Sglang(), Tgi(), Triton(), TrtLlm()
DYNAMO, GENAI, CONTRACT = Dynamo(), GenAi(), Contract()
SERVERS = ("vllm", "sglang", "tgi", "triton", "trtllm", "dynamo", "gpumon", "genai")
"""Label values of ``server``; ``unknown`` is added where spans nobody could read are counted."""

_SCOPES: tuple[tuple[str, Adapter], ...] = (  # beginnings of scope names
    (SCOPE, CONTRACT),
    ("vllm", VLLM),
    ("sglang", SGLANG),
    ("trt.llm", TRTLLM),
    ("tensorrt_llm", TRTLLM),
    ("triton-inference-server", TRITON),
    ("text-generation-inference", TGI),
    ("dynamo", DYNAMO),
)
_SERVICES: tuple[tuple[str, Adapter], ...] = (  # beginnings of service.name
    ("text-generation-inference", TGI),
    ("triton-inference-server", TRITON),
    ("dynamo", DYNAMO),
)
_OWN_STEPS = STEP_SPAN_NAMES - {"decode_loop", "infer"}
_MAX_CACHED = 4096


class Chooser:
    """Remembers the choice for each (scope, resource)."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Adapter | None] = {}

    def of_span(self, span: SpanRecord) -> Adapter:
        """The span's adapter. That of the GenAI conventions also stands for "nobody knows" and says so itself."""
        adapter = self._of(span.scope, span.resource)
        if adapter is not None:
            return adapter
        if span.tokens is not None or TOKEN_TIMES in span.attributes:
            return CONTRACT
        return GENAI

    def of_steps(self, scope: Scope, resource: Resource, name: str) -> Adapter | None:
        """The adapter of a column of step spans; None if nobody knows them."""
        adapter = self._of(scope, resource)
        if adapter is None and name in _OWN_STEPS:
            return CONTRACT
        return adapter

    def _of(self, scope: Scope, resource: Resource) -> Adapter | None:
        key = (scope.name, resource.key)
        try:
            return self._known[key]
        except KeyError:
            pass
        service = text(resource.attributes.get("service.name"))
        chosen = _beginning(_SCOPES, scope.name) or _beginning(_SERVICES, service)
        if len(self._known) >= _MAX_CACHED:  # as many scopes as that are no servers
            self._known.clear()
        self._known[key] = chosen
        return chosen


def _beginning(table: tuple[tuple[str, Adapter], ...], name: str) -> Adapter | None:
    return next((adapter for start, adapter in table if name.startswith(start)), None)
