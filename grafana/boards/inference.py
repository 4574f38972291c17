"""The dashboard gpumon-inference: what clients of the inference servers got, and what the servers did."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries

from gpumon import catalogue as c
from gpumon.model import Metric
from grafana import panels as p
from grafana import queries as q
from grafana.kit import Board
from grafana.queries import Query

NO_TRACES = "no data: no request of this selection was traced in this time"
NO_PAGE = "no data: no server's metrics page is read here, or it does not tell this"
SERVED = "{{server}} {{model}}"
MADE, PROMPT = 'kind="completion"', 'kind="prompt"'
TTFT_STEPS: p.Steps = ((None, "text"), (1.0, "orange"), (2.5, "red"))
ITL_STEPS: p.Steps = ((None, "text"), (0.05, "orange"), (0.1, "red"))
"""Red from where a request or a token counts against the objectives of gpumon-slo.yaml."""


def board() -> Board:
    """The dashboard."""
    made = Board(
        "gpumon-inference",
        "gpumon / Inference",
        "Latency, phases and throughput of the inference servers, from token traces and from the servers' own pages.",
        variables=("cluster", "node", "model", "server"),
    )
    _now(made)
    _by_load(made)
    _distributions(made)
    _over_time(made)
    _throughput(made)
    _servers(made)
    _tenants(made)
    return made


def _now(made: Board) -> None:
    errors = q.rate(c.REQUESTS, 'outcome=~"error|incomplete"')
    made.row(
        "Now",
        (
            4,
            p.number(
                "Time to first token, P99",
                "One request in a hundred waits longer than this for its first token. Red: over the objective of 2.5 s.",
                Query(q.quantile(0.99, c.REQUEST_FIRST_TOKEN), "P99"),
                unit="s",
                steps=TTFT_STEPS,
                empty=NO_TRACES,
            ),
        ),
        (
            4,
            p.number(
                "Inter-token latency, P99",
                "One token in a hundred comes later than this after the one before. Red: over the objective of 0.1 s.",
                Query(q.quantile(0.99, c.INTER_TOKEN), "P99"),
                unit="s",
                steps=ITL_STEPS,
                empty=NO_TRACES,
            ),
        ),
        (
            4,
            p.number(
                "Tokens made per second",
                "Completion tokens of all requests of the selection, from traces.",
                Query(f"sum({q.rate(c.TOKENS, MADE)})", "tokens/s"),
                unit="short",
                empty=NO_TRACES,
            ),
        ),
        (
            4,
            p.number(
                "Requests in flight",
                "Requests that have begun and not ended: from traces of servers that say when one begins, else running "
                "and waiting ones by the servers' own pages.",
                Query(
                    f"sum({q.select(c.REQUESTS_OPEN)}) or sum({_page(c.SERVER_RUNNING)}) + sum({_page(c.SERVER_WAITING)})"
                ),
                unit="short",
                empty="no data: neither traces nor a server's page say it",
            ),
        ),
        (
            4,
            p.number(
                "Failed requests",
                "Share of requests that ended with an error or were never complete. What a client aborted is no failure.",
                Query(f"sum({errors}) / sum({q.rate(c.REQUESTS)})", "failed"),
                unit="percentunit",
                steps=((None, "text"), (0.001, "orange"), (0.01, "red")),
                empty=NO_TRACES,
            ),
        ),
        (
            4,
            p.number(
                "Slow-token time",
                "Seconds by which tokens came later than expected, for each second of wall time, over all requests. "
                "The dashboard Explain says why.",
                Query(f"sum({q.rate(c.TOKEN_EXCESS)})", "lost"),
                unit="short",
                empty="no data: explain is off, or no request was explained yet",
            ),
        ),
        height=4,
    )


def _cells(metric: Metric, label: str) -> Query:
    """P99 by one label. Grafana sorts rows by number only if every name begins with one, so ``<1k`` becomes 0-1k."""
    expr = q.quantile(0.99, metric, by=(label,))
    if label == "context":
        expr = f'label_replace({expr}, "context", "0-1k", "context", "<1k")'
    return Query(expr, f"{{{{{label}}}}}")


def _by_load(made: Board) -> None:
    about = (
        "Each cell is the P99 of one minute. Read along a row: did the same load become slower? Read up a column: does "
        "more load cost more than it should?"
    )
    first, between = "Time to first token", "Inter-token latency"
    made.row(
        "P99 by concurrency, in cells of a minute",
        (
            12,
            p.row_heatmap(
                f"{first}, P99 by concurrency",
                f"{about} Rows: requests open on the server when the request came, itself among them.",
                _cells(c.REQUEST_FIRST_TOKEN_BY_CONCURRENCY, "concurrency"),
                unit="s",
                value="P99",
                label="requests open",
                empty=NO_TRACES,
            ),
        ),
        (
            12,
            p.row_heatmap(
                f"{between}, P99 by concurrency",
                f"{about} Rows: requests open on the server when the token was made.",
                _cells(c.INTER_TOKEN_BY_CONCURRENCY, "concurrency"),
                unit="s",
                value="P99",
                label="requests open",
                empty=NO_TRACES,
            ),
        ),
        height=9,
    )
    made.row(
        "P99 by context length, in cells of a minute",
        (
            12,
            p.row_heatmap(
                f"{first}, P99 by context",
                f"{about} Rows: prompt tokens. A row that is far slower than the one below it is a cliff.",
                _cells(c.REQUEST_FIRST_TOKEN_BY_CONTEXT, "context"),
                unit="s",
                value="P99",
                label="prompt tokens",
                empty=NO_TRACES,
            ),
        ),
        (
            12,
            p.row_heatmap(
                f"{between}, P99 by context",
                f"{about} Rows: prompt tokens and tokens made before.",
                _cells(c.INTER_TOKEN_BY_CONTEXT, "context"),
                unit="s",
                value="P99",
                label="tokens of context",
                empty=NO_TRACES,
            ),
        ),
        height=9,
    )


def _distributions(made: Board) -> None:
    about = "How many fell into each bucket. A second band above the first is a second population, which no P99 shows."
    marks = "The dots are single requests: click one to open its trace."
    made.row(
        "Distributions",
        (
            12,
            p.bucket_heatmap(
                "Time to first token",
                f"{about} {marks}",
                Query(f"sum by (le) ({q.increase(c.REQUEST_FIRST_TOKEN, suffix='_bucket')})"),
                unit="s",
                empty=NO_TRACES,
            ),
        ),
        (
            12,
            p.bucket_heatmap(
                "Inter-token latency",
                f"{about} {marks}",
                Query(f"sum by (le) ({q.increase(c.INTER_TOKEN, suffix='_bucket')})"),
                unit="s",
                empty=NO_TRACES,
            ),
        ),
        height=9,
    )


def _quantiles(title: str, about: str, metric: Metric, steps: p.Steps) -> timeseries.Panel:
    lines = [
        Query(q.quantile(quantile, metric, by=("model",)), f"{{{{model}}}} {name}")
        for quantile, name in ((0.5, "P50"), (0.95, "P95"), (0.99, "P99"))
    ]
    return p.graph(title, about, *lines, unit="s", steps=steps, empty=NO_TRACES)


def _mean(metric: Metric, name: str) -> Query:
    """Mean of a phase over all requests that ended, those without the phase included, so that means add up."""
    spent = q.rate(metric, suffix="_sum")
    return Query(f"sum({spent}) / scalar(sum({q.rate(c.REQUEST_DURATION, suffix='_count')}))", name)


def _over_time(made: Board) -> None:
    made.row(
        "Latency over time",
        (
            8,
            _quantiles(
                "Time to first token by model",
                "From the request's arrival to its first token. Dashed: the objective.",
                c.REQUEST_FIRST_TOKEN,
                ((None, "transparent"), (2.5, "red")),
            ),
        ),
        (
            8,
            _quantiles(
                "Inter-token latency by model",
                "From one token to the next. Dashed: the objective.",
                c.INTER_TOKEN,
                ((None, "transparent"), (0.1, "red")),
            ),
        ),
        (
            8,
            _quantiles(
                "Decode step by model",
                "One step of the batch, which may make several tokens of a request. Where it grows and inter-token "
                "latency grows with it, the GPU or its batch is slower; where only latency grows, tokens wait elsewhere.",
                c.DECODE_STEP,
                (),
            ),
        ),
    )
    made.add(
        (
            12,
            p.graph(
                "Where a request's time goes",
                "Mean seconds per request in each phase. Queue: not scheduled yet. Prefill: the prompt. Decode: from the "
                "first token to the last. KV sync: the KV cache on its way from the prefill server to the decode server.",
                _mean(c.REQUEST_QUEUE, "queue"),
                _mean(c.REQUEST_PREFILL, "prefill"),
                _mean(c.KV_SYNC, "KV sync"),
                _mean(c.REQUEST_DECODE, "decode"),
                unit="s",
                stacked=True,
                empty=NO_TRACES,
            ),
        ),
        (
            12,
            p.graph(
                "Queue, P99 by server",
                "How long requests waited to be scheduled. It grows when more arrives than the server can take, and when "
                "the server became slower: look at both.",
                Query(
                    q.quantile(0.99, c.REQUEST_QUEUE, by=("node", "server", "model")), "{{node}} {{server}} {{model}}"
                ),
                unit="s",
                empty=NO_TRACES,
            ),
        ),
    )


def _throughput(made: Board) -> None:
    made.row(
        "Throughput",
        (
            8,
            p.graph(
                "Tokens per second by kind",
                "Prompt tokens read, of them cached ones that the prefix cache spared, and completion tokens made.",
                Query(f"sum by (kind) ({q.rate(c.TOKENS)})", "{{kind}}"),
                unit="short",
                empty=NO_TRACES,
            ),
        ),
        (
            8,
            p.graph(
                "Requests per second by outcome",
                "Requests that ended. error: the server said so; aborted: the client left; incomplete: its end was never "
                "told.",
                Query(f"sum by (outcome) ({q.rate(c.REQUESTS)})", "{{outcome}}"),
                unit="reqps",
                stacked=True,
                empty=NO_TRACES,
            ),
        ),
        (
            8,
            p.graph(
                "Tokens per second by concurrency",
                "How many tokens were made while so many requests were open on their server: the load that the latencies "
                "above belong to.",
                Query(
                    f"sum by (concurrency) ({q.rate(c.INTER_TOKEN_BY_CONCURRENCY, suffix='_count')})",
                    "{{concurrency}} open",
                ),
                unit="short",
                stacked=True,
                empty=NO_TRACES,
            ),
        ),
    )


def _page(metric: Metric) -> str:
    """Of servers' pages. There ``server`` is the kind whose page it is, which need not be the kind that sent traces."""
    return q.select(metric, without=("server",))


def _page_rate(metric: Metric, *matchers: str) -> str:
    return q.rate(metric, *matchers, without=("server",))


def _per_server(metric: Metric) -> Query:
    return Query(f"max by (node, server, model) ({_page(metric)})", "{{node}} {{server}} {{model}}")


def _servers(made: Board) -> None:
    hits, asked = _page_rate(c.SERVER_PREFIX_HITS), _page_rate(c.SERVER_PREFIX_QUERIES)
    by = "sum by (node, server, model)"
    eager, passes = _page_rate(c.SERVER_GRAPH_PASSES, 'mode="eager"'), _page_rate(c.SERVER_GRAPH_PASSES)
    served = "{{node}} {{server}} {{model}}"
    made.row(
        "Servers, by their own metrics pages",
        (
            8,
            p.graph(
                "Running and waiting",
                "Requests in the batch, and requests that wait for a place in it. Waiting while running is flat: the "
                "server is full; see KV cache and preemptions for why.",
                Query(f"{by} ({_page(c.SERVER_RUNNING)})", f"{served} running"),
                Query(f"{by} ({_page(c.SERVER_WAITING)})", f"{served} waiting"),
                unit="short",
                empty=NO_PAGE,
            ),
        ),
        (
            8,
            p.graph(
                "KV cache in use",
                "Share of the cache's blocks. Above 95 % the next long request throws another one out.",
                _per_server(c.SERVER_KV_USAGE),
                unit="percentunit",
                most=1,
                steps=((None, "transparent"), (0.95, "red")),
                empty=NO_PAGE,
            ),
        ),
        (
            8,
            p.graph(
                "Preemptions per second",
                "Requests thrown out of the batch and computed again: every one costs its client the whole prompt again.",
                Query(f"{by} ({_page_rate(c.SERVER_PREEMPTIONS)})", served),
                unit="short",
                empty=NO_PAGE,
            ),
        ),
    )
    made.add(
        (
            8,
            p.graph(
                "Prefix cache hits",
                "Share of prompt tokens found in the prefix cache. When it falls, prompts cost more for the same load.",
                Query(f"{by} ({hits}) / ({by} ({asked}) > 0)", served),
                unit="percentunit",
                most=1,
                empty=NO_PAGE,
            ),
        ),
        (
            8,
            p.graph(
                "Decode passes outside CUDA graphs",
                "Share of passes that fell back to eager execution, which costs milliseconds per token.",
                Query(f"{by} ({eager}) / ({by} ({passes}) > 0)", served),
                unit="percentunit",
                most=1,
                empty=NO_PAGE,
            ),
        ),
        (
            8,
            p.graph(
                "Expert balance",
                "Mean over maximum of the tokens per expert-parallel rank. 1 is even; at 0.5 the fullest rank has twice "
                "the mean, and all others wait for it.",
                Query(f"min by (node, server, model) ({_page(c.SERVER_EXPERT_BALANCE)})", served),
                unit="percentunit",
                most=1,
                empty=NO_PAGE,
            ),
        ),
    )


def _tenants(made: Board) -> None:
    top = "topk(10, sum by (tenant)"
    per_request = (
        f"sum by (tenant) ({q.rate(c.TENANT_TOKENS, MADE)}) / (sum by (tenant) ({q.rate(c.TENANT_REQUESTS)}) > 0)"
    )
    empty = "no data: no attribute is configured as tenant, or no request has it"
    made.row(
        "Tenants (of the selected nodes, all models)",
        (
            8,
            p.graph(
                "Tokens made per second by tenant",
                "The ten with the most. Beside the latencies above: who came when they rose?",
                Query(f"{top} ({q.rate(c.TENANT_TOKENS, MADE)}))", "{{tenant}}"),
                unit="short",
                stacked=True,
                empty=empty,
            ),
        ),
        (
            8,
            p.graph(
                "Prompt tokens per second by tenant",
                "The ten with the most. Long prompts of one tenant delay the tokens of all.",
                Query(f"{top} ({q.rate(c.TENANT_TOKENS, PROMPT)}))", "{{tenant}}"),
                unit="short",
                stacked=True,
                empty=empty,
            ),
        ),
        (
            8,
            p.graph(
                "Tokens per request by tenant",
                "Completion tokens over requests.",
                Query(per_request, "{{tenant}}"),
                unit="short",
                empty=empty,
            ),
        ),
    )
