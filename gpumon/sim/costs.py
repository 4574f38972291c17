"""What a forward pass of a server costs on healthy hardware, from the model, the board and the batch.

A pass takes the longer of two times: reading weights and KV cache from memory, and computing; then the all-reduces of
tensor parallelism, copies to the host, and host work that the GPU waits for. Seconds throughout; one rank's share.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpumon.sim.boards import Model
from gpumon.sim.scenario import ServerSpec

MEMORY_EFFICIENCY: Final = 0.85  # of the data sheet's bandwidth that a good kernel reaches
DRAM_BUSY: Final = 0.985  # what the gauge shows meanwhile
TENSOR_BUSY: Final = 0.72  # what the gauge shows while a pass computes
COMPUTE_EFFICIENCY: Final = 0.45  # of the data sheet's FLOPS
MOE_SHARE: Final = 0.7  # of a pass that waits for the busiest experts
MOE_BALANCE: Final = 0.83  # mean over maximum of the tokens per rank in the ordinary course
LOGITS_BYTES: Final = 524_288.0  # per sequence and pass, to the host for sampling: a vocabulary of 128 k floats
PROMPT_BYTES: Final = 8_192.0  # per prompt token, to the GPU: ids, positions, slots, block tables
_HOST_SEQUENCE_S = 12e-6  # sampling, detokenizing, scheduling of one sequence
_REDUCE_S = 8e-6  # latency of one all-reduce
_LAUNCH_S = 70e-6  # of one layer's kernels, one by one
_LAYERS, _WIDTH, _BILLIONS = 80, 8192, 70.0  # of a model from which others are scaled


class Costs(NamedTuple):
    """Coefficients; ``costs`` makes them."""

    weights_s: tuple[float, ...]
    """Reading the weights, by number of tokens in the pass, up to the largest batch."""
    all_weights_s: float
    """The same for a pass with prompt tokens."""
    context_s: float
    """Reading the KV cache, per token of context."""
    token_s: float
    """Computing, per token."""
    attention_s: float
    """Computing, per token and token of context before it: counts in prompts, where it grows with the square."""
    reduce_s: float
    """All-reduces of a pass: latency."""
    reduce_token_s: float
    reduce_token_bytes: float
    """Over NVLink, per token, in each direction."""
    copy_sequence_s: float
    copy_token_s: float
    host_s: float
    host_sequence_s: float
    eager_s: float
    """Launching a pass without a CUDA graph."""
    unevenness: float
    """Factor on GPU time: the busiest expert over the mean, in the ordinary course."""
    weights_bytes: float
    """Of one rank."""


def costs(server: ServerSpec, model: Model) -> Costs:
    """Of one server on one kind of board."""
    ranks = len(server.gpus)
    read_s = server.bytes_per_parameter * 1e9 / (ranks * model.memory_bytes_s * MEMORY_EFFICIENCY)
    active = server.active_b / server.parameters_b
    compute_s = 1 / (ranks * model.flops * COMPUTE_EFFICIENCY)
    scale = (server.active_b / _BILLIONS) ** (1 / 3)
    layers, width = _LAYERS * scale, _WIDTH * scale
    # Two per layer; a ring moves nearly twice the tensor.
    reduce_bytes = 2 * layers * width * 2 * 2 * (ranks - 1) / ranks
    return Costs(
        weights_s=tuple(
            # Each token picks its own experts: a batch of some size reads nearly all of them.
            [read_s * server.parameters_b * (1 - (1 - active) ** max(1, n)) for n in range(server.max_batch + 1)]
        ),
        all_weights_s=read_s * server.parameters_b,
        context_s=server.kv_bytes_per_token / (ranks * model.memory_bytes_s * MEMORY_EFFICIENCY),
        token_s=2e9 * server.active_b * compute_s,
        attention_s=4 * layers * width * compute_s,
        reduce_s=2 * layers * _REDUCE_S if ranks > 1 else 0.0,
        reduce_token_s=reduce_bytes / (0.7 * model.nvlinks * model.nvlink_bytes_s),
        reduce_token_bytes=reduce_bytes,
        copy_sequence_s=LOGITS_BYTES / (0.85 * model.pcie_bytes_s),
        copy_token_s=PROMPT_BYTES / (0.85 * model.pcie_bytes_s),
        host_s=server.host_overhead_s,
        host_sequence_s=_HOST_SEQUENCE_S,
        eager_s=layers * _LAUNCH_S,
        unevenness=1 + MOE_SHARE * (1 / MOE_BALANCE - 1) if server.experts else 1.0,
        weights_bytes=server.parameters_b * 1e9 * server.bytes_per_parameter / ranks,
    )
