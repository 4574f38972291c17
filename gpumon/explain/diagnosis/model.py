"""What ``gpumon diagnose`` says, as data: made by ``explain.diagnosis.build``, sent as JSON, read back by the CLI.

Times are unix seconds of the node; durations seconds; every other figure is in the base unit that stands with it. Null
means not known, never zero. Lists are in the order in which a person should read them: the worst first, unless their
description says otherwise. Nothing is infinite or not a number. What is not described here is refused on reading, so
that a newer answer is not half understood.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Verdict = Literal["bad", "suspect", "ok", "unknown"]
"""bad: past what is healthy, and it differs with slowness. suspect: it goes with slowness. ok: neither. unknown: too
little to say."""
CauseKind = Literal["fault", "load", "unexplained"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Period(_Part):
    """A stretch of time."""

    start: float = Field(description="Unix seconds.")
    end: float = Field(description="Unix seconds.")


class Engine(_Part):
    """One group of requests that share a batch: a server with its model on its GPUs."""

    server: str = Field(description="Kind of server: vllm, sglang, …")
    model: str = Field(description="Empty where nobody told.")
    place: str = Field(description="Where it runs, for people: GPUs 0, 1, or pid 4711; empty where nobody knows.")
    gpus: tuple[str, ...] = Field(description="UUIDs; empty where its requests are not bound to GPUs.")
    pid: str = Field(description="Of the process its requests are bound to, if not to GPUs; else empty.")
    container: str = Field(description="Likewise.")
    requests: int
    slow_requests: int
    token_seconds: float = Field(description="Sum of its requests' times.")
    excess_seconds: float = Field(description="Of these, those beyond what is usual.")
    cause: str = Field(description="The one that cost most; empty where nothing was slow.")
    title: str = Field(description="Of that cause.")


class CauseLost(_Part):
    """What one cause cost."""

    cause: str = Field(description="Of the closed list, such as thermal_throttle; unexplained among them.")
    title: str = Field(description="In a few words.")
    kind: CauseKind = Field(description="fault: broken or badly set up. load: more work than usual.")
    seconds: float = Field(description="Of first tokens and decoding together.")
    first_token_seconds: float
    decode_seconds: float
    share: float = Field(description="Of all excess, 0 to 1. The shares of all causes add up to 1.")
    requests: int = Field(description="How many it touched.")
    calm_seconds_per_minute: float | None = Field(
        description="Lost per minute of the calm time that the worst stretch is compared with; null without one."
    )
    fact: str = Field(
        description="The figure that tells most, as text: SM clock 1,005 MHz, usually 1,410 MHz; or empty."
    )
    action: str = Field(description="What to do.")


class MatrixRow(_Part):
    """One dimension of GPU, host or server: was it different while requests were slow?"""

    dimension: str = Field(description="Its name, in snake case.")
    title: str
    unit: str = Field(description="Base unit: hertz, ratio, …; empty for a bare number.")
    healthy: str = Field(description="What it should be, as text; empty where there is no such bound.")
    slow_mean: float | None = Field(description="Mean over the slow requests.")
    other_mean: float | None = Field(description="Mean over the others.")
    effect: float | None = Field(
        description="Difference of the means in standard deviations; positive where slow requests have more."
    )
    r: float | None = Field(description="Correlation with response time per token, over requests.")
    n: int = Field(description="Requests it is known of.")
    verdict: Verdict


class Change(_Part):
    """One signal before and during the worst stretch of time."""

    signal: str = Field(description="Its name, in snake case.")
    title: str
    unit: str
    before: float | None
    during: float | None
    change: float | None = Field(description="during over before, less 1: -0.29; null where before is 0 or unknown.")


class BeforeDuring(_Part):
    """The stretch of time with the most excess against the quiet time before it."""

    during: Period
    before: Period | None = Field(description="Null where it was never quiet before.")
    server: str = Field(description="Of the engine that the signals are of: the one that lost most.")
    model: str
    excess_seconds: float = Field(description="Within that stretch.")
    usual_seconds: float = Field(description="Of these, those that calm time loses as well.")
    changes: tuple[Change, ...] = Field(
        description="The most changed first, in standard deviations; those of less than 10 % are left out."
    )


class Timeline(_Part):
    """The period in cells of one width; all lists are as long, by time."""

    start: float = Field(description="Unix seconds of the first cell's begin.")
    step_seconds: float
    requests: tuple[int, ...] = Field(description="That ended in the cell.")
    response_p95: tuple[float | None, ...] = Field(description="Seconds; null where none ended.")
    per_token_mean: tuple[float | None, ...] = Field(description="Seconds per token of those that ended.")
    excess: tuple[float, ...] = Field(description="Seconds of excess, spread evenly over each request's time.")
    by_cause: dict[str, tuple[float, ...]] = Field(
        description="The same by cause, those that cost most, at most 12; the rest is excess less their sum."
    )


class SlowRequest(_Part):
    """One to look at: `gpumon explain TRACE_ID`."""

    trace_id: str = Field(description="32 hex digits.")
    span_id: str = Field(description="16 hex digits; empty where not known.")
    request_id: str = Field(description="As its server calls it, cut; empty where not known.")
    server: str
    model: str
    tenant: str
    gpus: tuple[str, ...]
    started: float = Field(description="Unix seconds.")
    duration_seconds: float
    first_token_seconds: float | None
    worst_gap_seconds: float | None = Field(description="Longest time between two of its steps.")
    prompt_tokens: int | None
    completion_tokens: int | None
    excess_seconds: float
    cause: str = Field(description="The main one; empty where nothing was expected of it yet.")
    title: str = Field(description="Of that cause.")
    cause_share: float = Field(description="Of its excess, 0 to 1.")
    detailed: bool = Field(
        default=False, description="/api/v1/explain knows it, just now; of a recording nobody can be asked."
    )


class Correlation(_Part):
    """Two signals that go together strongly and not by chance."""

    server: str
    model: str
    x: str = Field(description="Signal of GPU, host or server.")
    y: str = Field(description="Latency or rate.")
    r: float = Field(description="Pearson, -1 to 1, at the best lag.")
    lag_seconds: float = Field(description="By which y follows x; negative: x follows y.")
    step_seconds: float = Field(description="Between two samples: 1, or 0.1.")
    n_eff: float = Field(description="Independent samples it rests on.")
    p: float = Field(description="How probable so much is by chance.")


class TenantEffect(_Part):
    """One tenant's tokens against how many tenants were active."""

    tenant: str = Field(description="Empty for requests that name none.")
    requests: int
    tokens_per_second: float = Field(
        description="That one of its requests gets, its waiting included; mean over the cells in which it was active."
    )
    n: int = Field(description="Such cells.")
    r: float | None = Field(description="Correlation of its tokens/s with the number of active tenants.")
    slope: float | None = Field(description="Tokens/s that it gains (or loses, negative) by one tenant more.")
    verdict: Verdict


class Interference(_Part):
    """Whether the tenants of one engine slow one another down."""

    server: str
    model: str
    cell_seconds: float
    active_mean: float = Field(description="Tenants active at a time.")
    active_most: int
    tenants: tuple[TenantEffect, ...] = Field(description="Those that lose most first, at most 20.")


class QueryClass(_Part):
    """Requests of one kind within an engine."""

    requests: int
    first_token_p50: float | None = Field(description="Seconds.")
    first_token_jitter_p99: float | None = Field(description="Seconds: P99 of the time to first token less its median.")
    gap_jitter_p99: float | None = Field(
        description="Seconds: P99 over requests of their longest gap less their mean gap."
    )


class BatchJitter(_Part):
    """How steadily one engine's batch is filled, and who pays when it is not."""

    server: str
    model: str
    fill: float = Field(description="Mean requests open at a time over the most there were, 0 to 1.")
    open_most: int
    spacing_jitter: float | None = Field(
        description="Standard deviation over mean of the time between arrivals: 1 for arrivals at random."
    )
    classed_by: Literal["prompt_hash", "tenant", "none"] = Field(description="What makes a query frequent or rare.")
    frequent: QueryClass
    rare: QueryClass
    rare_over_frequent: float | None = Field(
        description="Jitter of rare over that of frequent queries: the worse of first token and gaps."
    )
    verdict: Verdict


class Axis(_Part):
    """One side of a response surface."""

    name: str = Field(description="Attribute: prompt_tokens, concurrency, tenant, temperature, …")
    labels: tuple[str, ...] = Field(description="One a bin, ascending: 1024 to 2047, or the value itself.")


class Surface(_Part):
    """A latency's quantile over two attributes of requests."""

    x: Axis
    y: Axis
    measure: str = Field(description="response_time, time_to_first_token or time_per_token; seconds.")
    quantile: float
    counts: tuple[tuple[int, ...], ...] = Field(description="Requests; one row a bin of y, one column a bin of x.")
    values: tuple[tuple[float | None, ...], ...] = Field(
        description="Seconds, likewise; null in cells of fewer than 5 requests."
    )


class QualityLink(_Part):
    """An evaluation's scores against the token rate of the same requests."""

    server: str
    model: str
    prompts: str = Field(description="Prompt hash, cut; empty for requests without one.")
    evaluation: str
    n: int
    score_mean: float
    tokens_per_second_mean: float
    r: float | None = Field(description="Correlation of score and token rate.")
    slope: float | None = Field(description="Score gained by one token/s more.")
    verdict: Verdict


class ContextRow(_Part):
    """One bucket of context lengths."""

    bucket: str = Field(description="Its least, as in the metrics: 64k.")
    requests: int
    response_mean: float = Field(description="Seconds.")
    response_p95: float = Field(description="Seconds.")
    first_token_p95: float | None = Field(description="Seconds.")
    decode_tokens_per_second: float | None = Field(description="Mean over requests.")
    normalised_throughput: float | None = Field(description="Tokens/s over max(1, context / 8192), mean over requests.")
    growth: float | None = Field(
        description="P95 over that of the bucket before, if that is half as long: 2 is in step with the work."
    )


class ContextProfile(_Part):
    """Latency by context length for one engine."""

    server: str
    model: str
    rows: tuple[ContextRow, ...] = Field(description="Shortest first; buckets without requests are left out.")
    cliff: str = Field(description="The bucket from which P95 grows over 2.5 times; empty where there is none.")


class IncidentBrief(_Part):
    """An incident that was open in the period."""

    id: str
    kind: str
    title: str = Field(description="Of that kind.")
    severity: Literal["info", "warning", "critical"]
    entity: str
    gpu: str = Field(description="UUID of the one GPU concerned; empty where there is none.")
    summary: str
    opened: float = Field(description="Unix seconds.")
    lasted_seconds: float = Field(description="From the begin of the effect to its end, or until now.")
    is_open: bool
    causes: tuple[str, ...] = Field(description="Of the excess on its entity meanwhile, most seconds first, at most 3.")


class Action(_Part):
    """What to do."""

    text: str
    cause: str
    title: str = Field(description="Of that cause.")
    seconds: float = Field(description="Lost to that cause.")
    worst_seconds: float = Field(description="Of these, in the worst stretch and beyond what calm time loses; 0: none.")
    reason: str = Field(description="What for: GPU too hot: 25.1 s of the worst stretch, 32.4 s in all.")


class Diagnosis(_Part):
    """Everything that is known of why a node's tokens were slow in a period. See the module."""

    version: str = Field(description="gpumon's.")
    node: str
    since: float = Field(description="Unix seconds: begin of the period that was asked for.")
    known_since: float | None = Field(
        description="Unix seconds: requests that ended before are not known, as gpumon began later or keeps no more; "
        "null where all of the period is known."
    )
    until: float = Field(description="Unix seconds.")
    requests: int = Field(description="That ran in it, have ended and are kept.")
    slow_requests: int = Field(
        description="Whose excess is at least 30 % of their expected time and 100 ms; while nothing is expected of "
        "any, the slowest 5 % by time per token."
    )
    token_seconds: float = Field(description="Sum of the times of all requests.")
    excess_seconds: float = Field(description="Of these, those beyond what is usual.")
    unexplained_share: float | None = Field(description="Of the excess, 0 to 1; null where there is none.")
    verdict: tuple[str, ...] = Field(description="One to five sentences: what, since when, why, where.")
    causes: tuple[CauseLost, ...] = Field(description="Those that cost anything.")
    actions: tuple[Action, ...] = Field(
        description="First about what gained most in the worst stretch, then about what cost most."
    )
    matrix: tuple[MatrixRow, ...]
    before_during: BeforeDuring | None = Field(description="Null where nothing was slow.")
    timeline: Timeline | None = Field(description="Null where there are no requests.")
    engines: tuple[Engine, ...] = Field(description="At most 32.")
    slowest: tuple[SlowRequest, ...] = Field(
        description="Requests to look at, at most 10: the slowest of each main cause, then the next of each."
    )
    incidents: tuple[IncidentBrief, ...] = Field(description="At most 50.")
    correlations: tuple[Correlation, ...] = Field(description="Strong ones, at most 30.")
    tenants: tuple[Interference, ...] = Field(description="One for each engine with more than one tenant, at most 8.")
    batches: tuple[BatchJitter, ...] = Field(description="At most 8.")
    contexts: tuple[ContextProfile, ...] = Field(description="At most 8.")
    quality: tuple[QualityLink, ...] = Field(description="At most 20.")
    surface: Surface | None = Field(description="Null where no two attributes vary.")
    notes: tuple[str, ...] = Field(description="What could not be told, and why.")
