"""What a probe tells: the answer of ``gpumon probe --json``, and what its table and its page are made of.

Durations are seconds, lengths tokens, moments unix seconds. What is not known is null: never NaN.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = 1
"""Grows when a field changes its meaning or goes; not when one comes."""
Counted = Literal["usage", "aim"]
States = Literal["measured", "partial", "failed", "context_too_long", "not_tried"]


class _Said(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class Latency(_Said):
    """Of one measure on one rung. The quantile q of n values is the one of rank ceil(q n)."""

    observations: int
    mean: float
    p50: float
    p95: float
    p99: float
    most: float


class GpuConditions(_Said):
    """What a GPU was doing during a rung."""

    gpu: str
    uuid: str
    sm_active: float | None = Field(description="Mean, 0 to 1.")
    dram_active: float | None = Field(description="Likewise.")
    utilization: float | None = Field(description="Mean of what was sampled, 0 to 1.")
    clock_hertz: float | None = Field(description="Of the SMs, mean of what was sampled.")
    clock_least_hertz: float | None
    throttled_seconds: dict[str, float] = Field(description="By reason, those of which there were any.")


class Conditions(_Said):
    """What GPU, host and servers were doing during a rung, as the local gpumon tells it."""

    seconds: float = Field(description="Between the first and the last look.")
    looks: int
    gpus: list[GpuConditions]
    process_major_faults: float | None = Field(description="Of all processes that gpumon watches.")
    host_major_faults: float | None
    kv_usage: float | None = Field(description="Highest that was seen of any server, 0 to 1.")
    waiting: float | None = Field(description="Likewise: requests in a server's queue.")
    preemptions: float | None = Field(description="Of all servers.")


class CauseSeconds(_Said):
    """What made tokens of a rung's requests late."""

    cause: str
    title: str
    seconds: float


class Rung(_Said):
    """One prompt length at one concurrency."""

    concurrency: int = Field(description="Requests at a time.")
    aim_tokens: int = Field(description="Length that was aimed at.")
    prompt_tokens: float | None = Field(description="Median that the server counted; null where it does not.")
    state: States
    requests: int = Field(description="That succeeded.")
    errors: dict[str, int] = Field(description="By reason.")
    said: dict[str, str] = Field(description="By reason, what the server said the first time.")
    cut: int = Field(description="Requests that the end of the run cut off.")
    duration_seconds: float
    time_to_first_token: Latency | None = Field(description="From the first byte sent to the first output.")
    inter_token: Latency | None = Field(description="Gaps between events with output.")
    response_time: Latency | None = Field(description="To the last output.")
    completion_tokens: int
    tokens_per_chunk: float | None = Field(description="Of each event with output, on the mean.")
    tokens_per_second: float | None = Field(description="Made by all requests together, over the rung's time.")
    decode_tokens_per_second: float | None = Field(description="Of one request after its first token, median.")
    prefill_tokens_per_second: float | None = Field(description="Prompt over time to first token, median.")
    cached_share: float | None = Field(description="Of the prompts, from the server's prefix cache; null: not told.")
    causes: list[CauseSeconds] = Field(description="The largest first; of the requests whose spans gpumon has.")
    conditions: Conditions | None

    @property
    def tokens(self) -> float:
        """Of its prompts: as counted, else as aimed at."""
        return self.prompt_tokens if self.prompt_tokens is not None else float(self.aim_tokens)


class Change(_Said):
    """A condition on both sides of a collapse."""

    name: str
    title: str
    before: float | None
    beyond: float | None
    unit: str


class Collapse(_Said):
    """From one rung to the next P95 grew faster than the work."""

    concurrency: int
    before_tokens: int = Field(description="Aim of the rung before.")
    beyond_tokens: int
    measure: Literal["time_to_first_token", "inter_token"]
    p95_before: float
    p95_beyond: float
    growth: float = Field(description="Of P95.")
    work: float = Field(description="Of the prompts' length.")
    allowed: float = Field(description="Growth from which on it is a collapse.")
    few: bool = Field(description="It rests on fewer than 5 requests of a rung: a hint.")
    changes: list[Change] = Field(description="What was different, as far as gpumon knows.")


class Slow(_Said):
    """One of the slowest requests."""

    trace_id: str
    concurrency: int
    aim_tokens: int
    time_to_first_token: float
    response_time: float
    longest_gap: float | None


class Spent(_Said):
    """The budget, and what of it was used."""

    tokens: int | None
    seconds: float | None
    spent_tokens: int
    planned_requests: int
    planned_tokens: int


class Report(_Said):
    """All of a run."""

    schema_version: int
    version: str
    started: float
    duration_seconds: float
    endpoint: str
    interface: str
    model: str
    max_tokens: int
    cached: bool = Field(description="Whether the prompts were meant to be found in the prefix cache.")
    lengths_from: Counted = Field(description="Whether the server counts prompts, or lengths are as aimed at.")
    tokens_from: Literal["usage", "chunks"] = Field(description="Whether the server counts the tokens it makes.")
    ended: Literal["done", "refused", "server_endless", "budget_tokens", "budget_s", "server_gone", "interrupted"]
    failure: str = Field(description="Why the server is taken for gone, or refuses; else empty.")
    budget: Spent
    gpumon: str | None = Field(description="Which one was asked what GPU and host were doing.")
    rungs: list[Rung]
    collapses: list[Collapse]
    slowest: list[Slow]
    notes: list[str]
