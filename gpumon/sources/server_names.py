"""Under which names inference servers tell what catalogue group ``servers`` holds: tables, old names beside new ones.

Read in the sources of vLLM 0.33, SGLang 0.5.23, TGI 3, Triton with the TensorRT-LLM back end, trtllm-serve, llama.cpp
and Dynamo 1.6. For each family and each value of its last label the first rule that finds anything counts. Where a
server says nothing of its own, a shim may add it to the page (``ADDED``): no server tells how much its allocator
reserved, and of vLLM neither live tokens nor graph passes are known.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gpumon import catalogue
from gpumon.catalogue import (
    SERVER_EXPERT_BALANCE,
    SERVER_GRAPH_PASSES,
    SERVER_KV_CAPACITY,
    SERVER_KV_LIVE,
    SERVER_KV_USAGE,
    SERVER_PREEMPTIONS,
    SERVER_PREFIX_HITS,
    SERVER_PREFIX_QUERIES,
    SERVER_RUNNING,
    SERVER_TOKENS,
    SERVER_WAITING,
)
from gpumon.model import Metric

MODEL_LABELS = ("model_name", "model")
"""Labels that name the model, the first one found."""
REPEATED_BY = frozenset({"pid", "tp_rank", "pp_rank", "moe_ep_rank"})
"""Labels along which the same thing is told again, by API servers (vllm#28792) or by ranks: the largest counts. Along
all others (engines, data-parallel ranks, priorities, streaming or not) there are parts of a whole, which add up."""


class How(Enum):
    """How a rule's picks become one value. Each pick is the sum of its series first."""

    SUM = "sum"
    DIFFERENCE = "difference"  # the first less the second, not below 0
    PRODUCT = "product"  # all but the last, added up, by the largest of the last: blocks by tokens per block
    QUOTIENT = "quotient"  # the first by the second: what is in use by what there is
    MEAN = "mean"  # growth of the first over that of the second since the page before: a summary's _sum and _count


class Pick(NamedTuple):
    """Series of one family of the page."""

    family: str
    where: tuple[tuple[str, str], ...] = ()
    """Labels and the values they must have; "" is also fulfilled by a label that is not there."""
    numbers: tuple[str, ...] = ()
    """The value is the product of these labels, where the family tells in labels and its own value is always 1."""


class Rule(NamedTuple):
    """Where one family's value comes from."""

    metric: Metric
    picks: tuple[Pick, ...]
    value: str = ""
    """Of the metric's last label, where that is neither server nor model nor endpoint."""
    how: How = How.SUM


class Server(NamedTuple):
    """A kind of server, by all it may say."""

    name: str
    """Label value; the same as that of requests told by its traces."""
    rules: tuple[Rule, ...]


def _rule(metric: Metric, *families: str, value: str = "", how: How = How.SUM) -> Rule:
    return Rule(metric, tuple(Pick(family) for family in families), value, how)


VLLM = Server(
    "vllm",
    (
        _rule(SERVER_RUNNING, "vllm:num_requests_running"),
        _rule(SERVER_WAITING, "vllm:num_requests_waiting"),
        _rule(SERVER_KV_USAGE, "vllm:kv_cache_usage_perc"),
        _rule(SERVER_KV_USAGE, "vllm:gpu_cache_usage_perc"),
        Rule(SERVER_KV_CAPACITY, (Pick("vllm:cache_config_info", numbers=("kv_cache_size_tokens",)),)),
        Rule(SERVER_KV_CAPACITY, (Pick("vllm:cache_config_info", numbers=("num_gpu_blocks", "block_size")),)),
        _rule(SERVER_PREEMPTIONS, "vllm:num_preemptions_total"),
        _rule(SERVER_PREFIX_HITS, "vllm:prefix_cache_hits_total"),
        _rule(SERVER_PREFIX_HITS, "vllm:gpu_prefix_cache_hits_total"),
        _rule(SERVER_PREFIX_QUERIES, "vllm:prefix_cache_queries_total"),
        _rule(SERVER_PREFIX_QUERIES, "vllm:gpu_prefix_cache_queries_total"),
        _rule(SERVER_TOKENS, "vllm:prompt_tokens_total", value="prompt"),
        _rule(SERVER_TOKENS, "vllm:generation_tokens_total", value="generation"),
    ),
)

_SGLANG_TOTAL = (("priority", ""),)  # with priorities, the total is told under "" and the parts beside it
_SGLANG_PREFILL = tuple(
    Pick("sglang:prefill_effective_tokens_total", (("mode", mode),))
    for mode in ("device_hit", "host_hit", "storage_hit", "input")
)
SGLANG = Server(
    "sglang",
    (
        Rule(SERVER_RUNNING, (Pick("sglang:num_running_reqs", _SGLANG_TOTAL),)),
        Rule(SERVER_WAITING, (Pick("sglang:num_queue_reqs", _SGLANG_TOTAL),)),
        _rule(SERVER_KV_USAGE, "sglang:token_usage"),
        _rule(SERVER_KV_CAPACITY, "sglang:max_total_num_tokens"),
        _rule(SERVER_KV_LIVE, "sglang:decode_sum_seq_lens"),
        _rule(SERVER_KV_LIVE, "sglang:kv_used_tokens"),
        _rule(SERVER_PREEMPTIONS, "sglang:num_retracted_requests_total"),
        Rule(SERVER_PREFIX_HITS, _SGLANG_PREFILL[:3]),
        _rule(SERVER_PREFIX_HITS, "sglang:cached_tokens_total"),
        Rule(SERVER_PREFIX_QUERIES, _SGLANG_PREFILL),
        _rule(SERVER_PREFIX_QUERIES, "sglang:prompt_tokens_total"),
        # What is counted as it happens before what is counted when a request has ended.
        Rule(
            SERVER_TOKENS,
            tuple(Pick("sglang:realtime_tokens_total", (("mode", f"prefill_{of}"),)) for of in ("compute", "cache")),
            "prompt",
        ),
        _rule(SERVER_TOKENS, "sglang:prompt_tokens_total", value="prompt"),
        Rule(SERVER_TOKENS, (Pick("sglang:realtime_tokens_total", (("mode", "decode"),)),), "generation"),
        _rule(SERVER_TOKENS, "sglang:generation_tokens_total", value="generation"),
        Rule(SERVER_GRAPH_PASSES, (Pick("sglang:cuda_graph_passes_total", (("mode", "decode_cuda_graph"),)),), "graph"),
        Rule(SERVER_GRAPH_PASSES, (Pick("sglang:cuda_graph_passes_total", (("mode", "decode_none"),)),), "eager"),
        _rule(SERVER_EXPERT_BALANCE, "sglang:eplb_balancedness_sum", "sglang:eplb_balancedness_count", how=How.MEAN),
    ),
)

TRTLLM = Server(
    "trtllm",
    (
        _rule(SERVER_RUNNING, "trtllm_num_requests_running"),
        _rule(SERVER_WAITING, "trtllm_num_requests_waiting"),
        _rule(SERVER_KV_USAGE, "trtllm_kv_cache_utilization"),
        _rule(SERVER_KV_CAPACITY, "trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block", how=How.PRODUCT),
        _rule(
            SERVER_PREFIX_HITS,
            "trtllm_kv_cache_reused_blocks_total",
            "trtllm_kv_cache_tokens_per_block",
            how=How.PRODUCT,
        ),
        _rule(
            SERVER_PREFIX_QUERIES,
            "trtllm_kv_cache_reused_blocks_total",
            "trtllm_kv_cache_missed_blocks_total",
            "trtllm_kv_cache_tokens_per_block",
            how=How.PRODUCT,
        ),
        _rule(SERVER_TOKENS, "trtllm_prompt_tokens_total", value="prompt"),
        _rule(SERVER_TOKENS, "trtllm_generation_tokens_total", value="generation"),
    ),
)


def _requests(kind: str) -> Pick:
    return Pick("nv_trt_llm_request_metrics", (("request_type", kind),))


def _blocks(kind: str) -> Pick:
    return Pick("nv_trt_llm_kv_cache_block_metrics", (("kv_cache_block_type", kind),))


TRITON = Server(
    "triton",
    (
        Rule(SERVER_RUNNING, (_requests("scheduled"),)),
        Rule(SERVER_WAITING, (_requests("waiting"),)),
        Rule(SERVER_WAITING, (_requests("active"), _requests("scheduled")), how=How.DIFFERENCE),
        _rule(SERVER_WAITING, "nv_inference_pending_request_count"),
        Rule(SERVER_KV_USAGE, (_blocks("fraction"),)),
        Rule(SERVER_KV_CAPACITY, (_blocks("max"), _blocks("tokens_per")), how=How.PRODUCT),
    ),
)

TGI = Server(
    "tgi",
    (
        _rule(SERVER_RUNNING, "tgi_batch_current_size"),
        _rule(SERVER_WAITING, "tgi_queue_size"),
        # A request has blocks for its prompt and all it may generate from its beginning: current_max is what is taken.
        _rule(SERVER_KV_USAGE, "tgi_batch_current_max_tokens", "tgi_batch_max_total_tokens", how=How.QUOTIENT),
        _rule(SERVER_KV_CAPACITY, "tgi_batch_max_total_tokens"),
        _rule(SERVER_TOKENS, "tgi_request_input_length_sum", value="prompt"),
        _rule(SERVER_TOKENS, "tgi_request_generated_tokens_sum", value="generation"),
    ),
)

LLAMACPP = Server(
    "llamacpp",
    (
        _rule(SERVER_RUNNING, "llamacpp:requests_processing"),
        _rule(SERVER_WAITING, "llamacpp:requests_deferred"),
        _rule(SERVER_KV_USAGE, "llamacpp:kv_cache_usage_ratio"),
        _rule(SERVER_TOKENS, "llamacpp:prompt_tokens_total", value="prompt"),
        _rule(SERVER_TOKENS, "llamacpp:tokens_predicted_total", value="generation"),
    ),
)

DYNAMO = Server(
    "dynamo",
    (
        # Of the front end: a request is in flight from its arrival to its end, and queued until its first token.
        _rule(
            SERVER_RUNNING,
            "dynamo_frontend_inflight_requests",
            "dynamo_frontend_queued_requests",
            how=How.DIFFERENCE,
        ),
        _rule(SERVER_WAITING, "dynamo_frontend_queued_requests"),
        # Of a worker whose engine's own families are not passed on.
        _rule(SERVER_KV_USAGE, "dynamo_component_gpu_cache_usage_percent"),
        _rule(SERVER_KV_USAGE, "dynamo_component_kvstats_gpu_cache_usage_percent"),
        _rule(SERVER_PREFIX_HITS, "dynamo_frontend_cached_tokens_sum"),
        _rule(SERVER_PREFIX_QUERIES, "dynamo_frontend_input_sequence_tokens_sum"),
        _rule(SERVER_TOKENS, "dynamo_frontend_input_sequence_tokens_sum", value="prompt"),
        _rule(SERVER_TOKENS, "dynamo_frontend_output_tokens_total", value="generation"),
        _rule(SERVER_TOKENS, "dynamo_frontend_output_sequence_tokens_sum", value="generation"),
    ),
)

SERVERS = (VLLM, SGLANG, TRTLLM, TRITON, TGI, LLAMACPP, DYNAMO)
"""In the order in which a page is recognised: one that has an engine's families is the engine's, whoever passes them
on, for the engine knows more than a front end."""

ADDED = (
    *(
        Rule(metric, (Pick(metric.name, ((metric.labels[-1], value),) if value else ()),), value)
        for metric in catalogue.GROUPS["servers"]
        if metric is not catalogue.SERVER_UP
        for value in (metric.values or ("",))
    ),
    _rule(catalogue.SERVER_ALLOCATOR, "pytorch_memory_reserved_bytes", value="reserved"),
    _rule(catalogue.SERVER_ALLOCATOR, "pytorch_memory_allocated_bytes", value="allocated"),
)
"""What a shim may add to the page of any of the servers above: gpumon's own names, with the label ``model_name`` where
the page is of several models (``gpumon_server_kv_cache_live_tokens 21000``), and what PyTorch says of its allocator
(``torch.cuda.memory_reserved``, ``memory_allocated``)."""

FAMILIES = frozenset(
    pick.family for rules in (*(server.rules for server in SERVERS), ADDED) for rule in rules for pick in rule.picks
)
"""All that is looked for on a page."""
