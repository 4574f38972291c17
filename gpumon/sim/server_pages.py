"""What the simulated servers write on their metrics pages: vLLM's and SGLang's own names, types and labels.

Names and labels as vLLM 0.33 and SGLang 0.5.23 write them through prometheus_client: counters with their ``_created``
twins, an info gauge, histograms (one of them called ``…_total``), a summary, and the families of Python and of the
process around them. The numbers that say how a server does come from its state; the histograms beside them only have
the right shape. What no released server tells is there as a shim would add it: what the allocator holds, and on vLLM's
page live tokens, graph passes and the balance of the experts, under gpumon's own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.utils import floatToGoString

from gpumon import catalogue
from gpumon.sim.state import ServerState

BLOCK_TOKENS = 16
"""Tokens in a block of vLLM's KV cache."""

_TOKENS_PER_REQUEST = 256
"""Of an answer, where only requests are counted: the state counts none."""
_LATENCY_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0, 80.0)
_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PROMPT_BOUNDS = (100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5)


class _Row(NamedTuple):
    """A sample: what follows the family's name, labels beside the server's, and whose value it is."""

    suffix: str
    labels: tuple[str, ...]
    value: str
    """Key into the values, or a number as the page has it."""


class _Family(NamedTuple):
    name: str
    kind: str
    help: str
    rows: tuple[_Row, ...]
    server: bool = True
    """Whether its samples carry the server's labels."""


def _one(name: str, kind: str, text: str, value: str, *labels: str, server: bool = True) -> _Family:
    return _Family(name, kind, text, (_Row("", labels, value),), server)


def _counter(name: str, text: str, *rows: tuple[str, ...]) -> list[_Family]:
    """A counter of prometheus_client: ``_total`` and its twin. rows: labels, the value last."""
    return [
        _Family(f"{name}_total", "counter", text, tuple(_Row("", row[:-1], row[-1]) for row in rows)),
        _Family(f"{name}_created", "gauge", text, tuple(_Row("", row[:-1], "created") for row in rows)),
    ]


def _histogram(name: str, text: str, bounds: Iterable[float], count: str, middle: float) -> _Family:
    """count: key of how many were observed. middle: half of them were below it."""
    rows = [
        _Row("_bucket", (f'le="{floatToGoString(bound)}"',), _part(count, _share(bound, middle))) for bound in bounds
    ]
    rows += [_Row("_bucket", ('le="+Inf"',), count), _Row("_count", (), count), _Row("_sum", (), _part(count, middle))]
    return _Family(name, "histogram", text, tuple(rows))


def _part(key: str, factor: float) -> str:
    return f"{key}*{factor!r}"


def _share(bound: float, middle: float) -> float:
    return 1.0 / (1.0 + (middle / bound) ** 3)


_SURROUNDINGS = (
    _Family(
        "python_gc_collections_total",
        "counter",
        "Number of times this generation was collected",
        tuple(_Row("", (f'generation="{generation}"',), f"{9000 // 11**generation}.0") for generation in range(3)),
        server=False,
    ),
    _one(
        "python_info",
        "gauge",
        "Python platform information",
        "1.0",
        *('implementation="CPython"', 'major="3"', 'minor="12"', 'patchlevel="11"', 'version="3.12.11"'),
        server=False,
    ),
    _one("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", "1.2783616e+10", server=False),
    _one("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", "1.99229440e+09", server=False),
    _one("process_open_fds", "gauge", "Number of open file descriptors.", "74.0", server=False),
)
_SHIM = (
    _one("pytorch_memory_reserved_bytes", "gauge", "Device memory held by the caching allocator.", "reserved"),
    _one("pytorch_memory_allocated_bytes", "gauge", "Device memory in use by tensors.", "allocated"),
)
_VLLM_SHIM = (
    *_SHIM,
    _one(catalogue.SERVER_KV_LIVE.name, "gauge", "Tokens of running requests in the KV cache.", "live"),
    _Family(
        catalogue.SERVER_GRAPH_PASSES.name,
        "counter",
        "Decode passes by the way they ran.",
        (_Row("", ('mode="graph"',), "graph"), _Row("", ('mode="eager"',), "eager")),
    ),
)
_VLLM_BALANCE = _one(
    catalogue.SERVER_EXPERT_BALANCE.name, "gauge", "Mean over maximum of the tokens per rank.", "balance_now"
)
_VLLM = (
    *_SURROUNDINGS,
    _one("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", "running"),
    _one("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", "waiting"),
    _Family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason.",
        (_Row("", ('reason="capacity"',), "waiting"), _Row("", ('reason="deferred"',), "0.0")),
    ),
    _Family(
        "vllm:engine_sleep_state",
        "gauge",
        "Engine sleep state.",
        (_Row("", ('sleep_state="awake"',), "1.0"), _Row("", ('sleep_state="weights_offloaded"',), "0.0")),
    ),
    _one("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", "usage"),
    *_counter("vllm:prefix_cache_queries", "Prefix cache queries, in number of queried tokens.", ("queries",)),
    *_counter("vllm:prefix_cache_hits", "Prefix cache hits, in number of cached tokens.", ("hits",)),
    *_counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", ("preemptions",)),
    *_counter("vllm:prompt_tokens", "Number of prefill tokens processed.", ("prompt",)),
    *_counter("vllm:generation_tokens", "Number of generation tokens processed.", ("generation",)),
    *_counter(
        "vllm:request_success",
        "Count of successfully processed requests.",
        ('finished_reason="stop"', "requests"),
        ('finished_reason="length"', _part("requests", 0.2)),
        ('finished_reason="abort"', "0.0"),
    ),
    _histogram("vllm:iteration_tokens_total", "Number of tokens per engine_step.", _TOKEN_BOUNDS, "steps", middle=24.0),
    _histogram(
        "vllm:time_to_first_token_seconds", "Time to first token in seconds.", _LATENCY_BOUNDS, "requests", middle=0.4
    ),
    _histogram(
        "vllm:inter_token_latency_seconds", "Inter-token latency in seconds.", _LATENCY_BOUNDS, "steps", middle=0.02
    ),
    _histogram("vllm:request_prompt_tokens", "Number of prefill tokens.", _PROMPT_BOUNDS, "requests", middle=9e3),
    *_VLLM_SHIM,
)
_SGLANG = (
    *_SURROUNDINGS,
    _one("sglang:num_running_reqs", "gauge", "The number of running requests.", "running"),
    _one("sglang:num_queue_reqs", "gauge", "The number of requests in the waiting queue.", "waiting"),
    _one("sglang:num_paused_reqs", "gauge", "The number of paused requests.", "0.0"),
    _one("sglang:token_usage", "gauge", "The token usage.", "usage"),
    _one("sglang:full_token_usage", "gauge", "The token usage for full attention layers.", "usage"),
    _one("sglang:num_used_tokens", "gauge", "The number of used tokens.", "used"),
    _one("sglang:kv_used_tokens", "gauge", "Tokens of running requests in the KV cache.", "live"),
    _one("sglang:kv_available_tokens", "gauge", "Free tokens of the KV cache.", "available"),
    _one("sglang:kv_evictable_tokens", "gauge", "Cached tokens that can be evicted.", "evictable"),
    _one("sglang:max_total_num_tokens", "gauge", "Maximum total number of tokens in the KV cache.", "capacity"),
    _one("sglang:page_size", "gauge", "Tokens in a page of the KV cache.", "1.0"),
    _one("sglang:cache_hit_rate", "gauge", "The prefix cache hit rate.", "hit_rate"),
    *_counter("sglang:num_retracted_requests", "Number of retracted requests.", ("preemptions",)),
    *_counter(
        "sglang:cached_tokens",
        "Number of cached prompt tokens.",
        ('cache_source="device"', "hits"),
        ('cache_source="host"', "0.0"),
    ),
    *_counter("sglang:prompt_tokens", "Number of prefill tokens processed.", ("prompt",)),
    *_counter("sglang:generation_tokens", "Number of generation tokens processed.", ("generation",)),
    *_counter("sglang:num_requests", "Number of requests processed.", ("requests",)),
    _one("sglang:is_cuda_graph", "gauge", "Whether the batch is using CUDA graph.", "graphed"),
    *_counter(
        "sglang:cuda_graph_passes",
        "Total number of forward passes by CUDA graph mode.",
        ('mode="decode_cuda_graph"', "graph"),
        ('mode="decode_none"', "eager"),
        ('mode="prefill_cuda_graph"', "0.0"),
        ('mode="prefill_none"', "requests"),
    ),
    _histogram(
        "sglang:time_to_first_token_seconds", "Time to first token in seconds.", _LATENCY_BOUNDS, "requests", middle=0.4
    ),
    _histogram(
        "sglang:inter_token_latency_seconds", "Inter-token latency in seconds.", _LATENCY_BOUNDS, "generation", 0.02
    ),
    *_SHIM,
)
_BALANCEDNESS = _Family(
    "sglang:eplb_balancedness",
    "summary",
    "Balancedness of the tokens over expert-parallel ranks.",
    (_Row("_count", ('forward_mode="decode"',), "balanced"), _Row("_sum", ('forward_mode="decode"',), "balance")),
)


class Page:
    """Page of one server. Renders in the order of time: a summary adds up what was said before."""

    def __init__(self) -> None:
        self._told: tuple[str, int] = ("", 0)
        """What of the state stands in labels."""
        self._template = ""
        self._parts: tuple[tuple[str, str, float], ...] = ()
        self._passes = 0
        self._balance = 0.0

    def render(self, state: ServerState) -> bytes:
        """The page as the server would write it now."""
        told = (state.model, state.kv_capacity_tokens)
        if told != self._told:
            self._told = told
            self._template, self._parts = _template(state)
        values = self._values(state)
        texts = {key: floatToGoString(value) for key, value in values.items()}
        for name, key, factor in self._parts:
            # Counts are whole; what they are sums of need not be.
            texts[name] = floatToGoString(float(int(values[key] * factor)))
        return (self._template % texts).encode()

    def _values(self, state: ServerState) -> Mapping[str, float]:
        passes = state.graph_passes + state.eager_passes
        if state.expert_balance is not None:
            if passes < self._passes:  # the server has started anew
                self._passes, self._balance = 0, 0.0
            self._balance += state.expert_balance * (passes - self._passes)
            self._passes = passes
        capacity = state.kv_capacity_tokens
        used = int(state.kv_usage * capacity)
        return {
            "running": state.running,
            "waiting": state.waiting,
            "usage": state.kv_usage,
            "capacity": capacity,
            "used": used,
            "live": state.kv_live_tokens,
            "available": capacity - used,
            "evictable": max(0, used - state.kv_live_tokens),
            "preemptions": state.preemptions,
            "queries": state.prefix_query_tokens,
            "hits": state.prefix_hit_tokens,
            "hit_rate": state.prefix_hit_tokens / max(1, state.prefix_query_tokens),
            "prompt": state.prompt_tokens,
            "generation": state.generation_tokens,
            "requests": state.generation_tokens // _TOKENS_PER_REQUEST,
            "steps": passes,
            "graph": state.graph_passes,
            "eager": state.eager_passes,
            "graphed": float(state.eager_passes == 0),
            "balanced": self._passes,
            "balance": self._balance,
            "balance_now": state.expert_balance or 0.0,
            "reserved": state.allocator_reserved_bytes,
            "allocated": state.allocator_allocated_bytes,
        }


def _template(state: ServerState) -> tuple[str, tuple[tuple[str, str, float], ...]]:
    """The page with ``%(key)s`` for what changes, and the keys that are parts of others: key, other key, factor."""
    model = f'model_name="{_escaped(state.model)}"'
    labels: tuple[str, ...]
    if state.kind == "sglang":
        labels = ('engine_type="unified"', model, 'moe_ep_rank="0"', 'pp_rank="0"', 'tp_rank="0"')
        families: tuple[_Family, ...] = _SGLANG
        if state.expert_balance is not None:
            families = (*families, _BALANCEDNESS)
    else:
        labels = ('engine="0"', model)
        families = (*_VLLM, _cache_config(state))
        if state.expert_balance is not None:
            families = (*families, _VLLM_BALANCE)
    parts: dict[str, tuple[str, str, float]] = {}
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        for row in family.rows:
            inside = ",".join(sorted((*(labels if family.server else ()), *row.labels)))
            sample = f"{family.name}{row.suffix}{'{' + inside + '}' if inside else ''}".replace("%", "%%")
            lines.append(f"{sample} {_placeholder(row.value, parts)}")
    return "\n".join(lines) + "\n", tuple(parts.values())


def _placeholder(value: str, parts: dict[str, tuple[str, str, float]]) -> str:
    if value == "created":
        return "1.7959536e+09"
    if value[0].isdigit():
        return value
    key, star, factor = value.partition("*")
    if star:
        parts[value] = (value, key, float(factor))
    return f"%({value})s"


def _cache_config(state: ServerState) -> _Family:
    blocks = state.kv_capacity_tokens // BLOCK_TOKENS
    labels = (
        *(f'block_size="{BLOCK_TOKENS}"', 'cache_dtype="auto"', 'enable_prefix_caching="True"'),
        *('gpu_memory_utilization="0.9"', f'kv_cache_size_tokens="{state.kv_capacity_tokens}"'),
        *(f'num_gpu_blocks="{blocks}"', 'sliding_window="None"'),
    )
    return _one("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", "1.0", *labels)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
