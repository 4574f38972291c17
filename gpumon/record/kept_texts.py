"""Attributes whose texts are recorded, which are those that gpumon reads; a text under any other name is left out.

A server, or a library in it, may put prompts, headers and credentials under names that nobody can list. What gpumon
reads can be listed: names, identifiers, and numbers that some senders write as texts. Where gpumon only asks whether an
attribute is there, or whether a certain word is in it, no more than that is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gpumon.ingest.adapters.seen import Reading

TENANTS = Reading().tenant_attributes
"""Attributes that name a tenant where nothing is configured."""

KEPT = frozenset(
    {
        # Who sends: requests.binding, ingest.adapters.choose. The instance tells resources apart that are alike else.
        *("service.name", "service.namespace", "service.instance.id", "host.name", "process.pid", "vllm.process_id"),
        *("container.id", "k8s.pod.name", "k8s.pod.uid", "k8s.node.name", "gpumon.gpu.uuid"),
        "gpumon.upstream",
        # Models and identity: ingest.adapters.request.
        *("gen_ai.response.model", "gen_ai.request.model", "gpumon.model", "model_name", "gen_ai.operation.name"),
        *("gen_ai.request.id", "gen_ai.response.id", "request.id", "inference_id", "gen_ai.inference.id"),
        *("prompt_hash", "gen_ai.prompt_hash", "gen_ai.response.finish_reasons"),
        # Numbers that may come as texts: usage, latencies, parameters, steps.
        *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "gen_ai.usage.output_tokens"),
        *("gen_ai.usage.completion_tokens", "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens"),
        *(
            "gen_ai.latency.time_to_first_token",
            "gen_ai.latency.time_in_queue",
            "gen_ai.latency.kv_cache_transfer_time",
        ),
        *("gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_decode"),
        *("gen_ai.response.time_to_first_chunk", "gen_ai.response.time_to_first_token"),
        *("gen_ai.request.temperature", "gen_ai.request.top_p", "gen_ai.request.top_k", "gen_ai.request.max_tokens"),
        *("gen_ai.request.frequency_penalty", "gen_ai.request.presence_penalty", "gen_ai.request.choice.count"),
        *("gen_ai.request.n", "gen_ai.request.seed", "seed", "gen_ai.token.index", "gen_ai.token.count"),
        # Single servers: Dynamo, SGLang, TGI, Triton.
        *("request_id", "x_request_id"),
        *("rid", "bootstrap_room", "tp_rank", "pp_rank", "host_id", "decode_ct"),
        *("queue_time", "inference_time", "time_per_token"),
        *("triton.model_name", "triton.request_id"),
        # Collectives and evaluations: ingest.nccl, ingest.evaluations, ingest.signals.
        *("nccl.comm.id", "nccl.comm.name", "nccl.rank", "nccl.n_ranks", "nccl.collective", "nccl.sequence"),
        *("nccl.size_bytes", "nccl.timing"),
        *("event.name", "gen_ai.evaluation.name", "gen_ai.evaluation.score.value"),
    }
)


def _nothing(_text: str) -> str:
    return ""


def _path(text: str) -> str:
    return text.partition("?")[0].partition("#")[0]


def _auto_closed(text: str) -> str:
    return "auto closed" if "auto closed" in text else ""


REDUCED: dict[str, Callable[[str], str]] = {
    # Asked only whether they are there.
    **dict.fromkeys(("error.type", "abort_info", "parameters", "total_time", "code.function"), _nothing),
    **dict.fromkeys(("gen_ai.latency.e2e", "gen_ai.token.times_ns", "gen_ai.token.counts"), _nothing),
    **dict.fromkeys(("uri", "http.target", "url.path"), _path),  # Dynamo: which of its paths; a query may be anything
    "reason": _auto_closed,  # SGLang
}
"""From the text of an attribute to what is recorded of it."""


class Texts:
    """What is recorded of the texts of attributes."""

    def __init__(self, replace: Callable[[str, str], str] | None, tenants: Collection[str]) -> None:
        """replace: from name and text to the text in its place. tenants: attributes that name one."""
        self._replace = replace
        self._kept = KEPT.union(tenants, REDUCED)

    def keeps(self, name: str) -> bool:
        """Whether anything of the attribute's texts is recorded."""
        return name in self._kept

    def of(self, name: str, text: str) -> str:
        """What is recorded of a text of an attribute that is kept."""
        reduce = REDUCED.get(name)
        if reduce is not None:
            text = reduce(text)
        return text if self._replace is None else self._replace(name, text)
