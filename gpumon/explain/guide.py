"""The text of docs/EXPLAINING.md around its tables."""

from __future__ import annotations

from typing import Final

INTRO: Final = """\
A token is *slow* when it came later than it usually does under the load that the server usually has. gpumon says by
how much, and divides that excess among causes. What nothing explains is `unexplained`, and is shown: the causes of a
request add up to its excess.

- [Asking](#asking): on the command line, in Prometheus, on spans, as JSON
- [What `gpumon explain` says](#what-gpumon-explain-says) of one request
- [What `gpumon diagnose` says](#what-gpumon-diagnose-says) of a period
- [How it is worked out](#how-it-is-worked-out), and [what it cannot do](#what-it-cannot-do)
- [Causes](#causes), [correlation](#correlation), [dimensions](#dimensions)

## Asking

```console
$ gpumon diagnose                     # the last half hour: what was slow, why, and what to do
$ gpumon diagnose --since 90s --model llama-3.1-8b
$ gpumon diagnose --html report.html  # the same as one file, with plots
$ gpumon diagnose node.rec            # of a recording, on any machine
$ gpumon explain 4bf92f3577b34da6a3ce929d0e0e4736   # one request: its tokens, the slow gaps, the causes under each
```

They ask the gpumon at `http://127.0.0.1:9450`, or at `--url`; it needs `explain.enabled`, `detect.enabled` and
`otlp.enabled`, which are on unless switched off, and `http.ui`. With `--json` they print what the API answers. They
need 80 columns and fit fewer: what stands side by side then stands below one another.

- **Prometheus**: `gpumon_slow_token_seconds_total{server,model,phase,cause}`, phases `first_token` and `decode`; its
  sum over causes is `gpumon_token_excess_seconds_total`. `gpumon_explained_requests_total{outcome}` counts requests
  that were slow, on time, or could not be judged. `gpumon_correlation{x,y}`: strong pairs only.
- **Spans** that are forwarded, `explain.delay_s` + 4 s (12 s) after they came: `gpumon.excess_ms`, `gpumon.cause`,
  `gpumon.cause.shares` (`thermal_throttle=1727.0`, in milliseconds) and `gpumon.cause.evidence`
  (`thermal_throttle: sm_clock 1.185e+09 hertz (usually 1.98e+09)`).
- **Incidents**: `causes`, the seconds by which the requests that an incident touched were late, by cause.
- **JSON**: `/api/v1/explain?trace_id=`, `/api/v1/explained`, `/api/v1/diagnose`, `/api/v1/correlation` and
  `/api/v1/surface`; [API.md](API.md) describes them.

```promql
# What costs the users of a model most? (seconds lost each second, by cause)
topk(5, sum by (model, cause) (rate(gpumon_slow_token_seconds_total[5m])))
```

## What `gpumon explain` says

Of a request of `gpumon demo`, while one of its model's four GPUs was too hot; shortened:

```
llama-3.1-70b-instruct on gpumon, tenant acme
…
Prompt 2,057 tokens (1,234 cached), 363 made, 58.6 tokens/s after the first
First token after 166 ms, usually 90.3 ms, 7.73 ms of it queued
The tokens after it took 6.18 s, usually 4.24 s
Late by 2.01 s: 73.9 ms until the first token, 1.94 s between tokens

Why
A GPU too hot                █████████████████▎        1.74 s  86 %  fault
  SM clock 1,185 MHz, usually 1,980 MHz; 16.7 times as much lateness while it
  held
B prefill of others          ██▊                       273 ms  14 %  load
  prompt tokens of other requests meanwhile 3,299

Tokens (363 steps; ▁ 11.7 ms as expected, or less; █ 78.7 ms)
··██▂▂▂▂▂▂▂▂▂▂▂██▂▂▂▂▂▂▂▂▂▂█▂█▂▂▂▂▂█▂▂▂▂▂▂▂▂▂▂▂█▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂
  AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
…
     At     took  usually  tokens  what held meanwhile
0.166 s  77.1 ms  11.6 ms       1  GPU too hot 52 %, prefill of others 48 % (SM
                                   clock 1,185 MHz, usually 1,980 MHz)
0.442 s   999 ms   630 ms      54  GPU too hot 100 %
1.184 s  76.5 ms  11.7 ms       1  prefill of others 58 %, GPU too hot 42 %
                                   (prompt tokens of other requests meanwhile
                                   497)
1.260 s    68 ms  11.7 ms       1  prefill of others 60 %, GPU too hot 40 %
                                   (441)
…
```

- *Usually* is what is expected under the load that the server usually has. "Times as much lateness while it held" is
  the lift.
- The **row of tokens** goes from the request's begin to its end. A column is as high as the longest gap in it, from
  what was expected (where nothing was, the request's own median) up, on a logarithmic scale; `·` is before the first
  token. The letter below is the cause of the slowest gap there. Of an answer of many thousand tokens every column
  holds some gap that was long: a second row then has the mean of each column, on a scale of its own.
- **When it was slow**: a row is one long gap, or a stretch of about a second whose tokens were all somewhat late.
  A figure that was told before is told again only where it differs. The 64 slowest gaps of a request are kept.

## What `gpumon diagnose` says

The verdict comes first, then what to do, then what both rest on. What has nothing to say is left out, and of long lists
the end; `--all` shows all.

- The first line says which **period** it is of, and whether less of it is known than was asked for: because gpumon
  began later, or keeps no more. Requests of the last seconds are still to be explained; the last part says up to when
  they are.
- **What to do**, by cause: first what made the worst stretch worse than calm time, with what it cost in it; then what
  cost most in all.
- **Causes**: seconds lost by cause, with the figure behind each, and what calm minutes lose to it. **Time lost**: when.
- **What was different**: [dimensions](#dimensions), their mean over slow requests and over the others, and r with
  response time. *bad* is past its healthy bound on slow requests, and clearly worse there than on the others;
  *suspect* goes with slowness. What is next to nothing on both sides, or nearly the same, is neither.
- **The worst stretch**: every signal of the engine that lost most, before and during.
- **Requests to look at**: of each main cause the slowest, then of each the next, with the command that explains it.
- **Incidents**: what detectors found meanwhile, with the causes of the requests that they touched. **Servers**: who
  lost how much.
- **What goes together**: strong [correlations](#correlation).
- **Tenants**: tokens/s of each one's requests against how many tenants were active.
- **Batch**: how full it is, and what rare queries wait beside frequent ones (by `prompt_hash`, else by tenant).
- **Context lengths**: mean, P95 and decode tokens/s by length. Normalised throughput is tokens/s ÷ max(1,
  context / 8192).
- **Response surface**, with `--x`, `--y`, `--quantile` or `--all`: a quantile of the response time over two attributes
  of requests, those named or else those with which it varies most.
- **Quality and token rate**: evaluation scores against tokens/s, by prompt group.
- **Not told**: what could not be judged, and why.

Of load the verdict names the incident of the engine that lost most to it (a growing queue), and a fault that began on
that engine, its processes or the host before it: what begins in the midst of it is not behind it.

A figure that reads the same as what is usual explains nothing, and is not told beside a cause.

A request counts as slow here when its excess is at least 30 % of what was expected, and 100 ms.

gpumon keeps the newest 16,384 requests. `gpumon explain` knows the newest 1,024 of those that were slow and 1,024 of
the others. Of the others each model keeps its newest: the model that has most gives up its oldest, so that one that is
asked a lot does not push out the rest; one of which no request came for a quarter of an hour gives first. Token times
are kept of both, for comparison: 400,000 of slow requests, with fewer requests where their answers are long, and
500,000 of the others, the oldest of which lose their times first and stay known without. That is 7.2 MB at most. An
answer of more than 25,000 tokens (31,250 where it was on time) keeps none. Beside these it knows for an hour the 20
slowest of each minute, model and bucket of the heatmap, and the first 32 requests that each incident names, in 12 MiB:
where that is too little there are fewer of each, the slowest last to go.

A running gpumon answers for two hours at most (`--since 2h`), a recording for all of its length. The API answers for
any stretch of up to two hours (`/api/v1/diagnose?from=…&to=…`): of one that has passed all requests that ran in it
count, whenever they ended.

## How it is worked out

**Groups.** Requests that share a batch slow one another down. All is by engine: the kind of server, its model, and
the GPUs (or, where there are none, the process or container) that its requests are bound to.

**When.** A request is explained once, `explain.delay_s` (8 s) after it is complete: what ran beside it has ended by
then, and counters that are read every five seconds have been read. Forwarded spans wait for that, unless
`forward.annotate` is off: a request is complete 2.5 s after its last span came, so all of them wait
`explain.delay_s` + 4 s.

**Expected.** How long a decode step takes with so many requests in the batch and so much context in all: a rolling
median of the steps of the last minutes, for sizes of batch four to a doubling, with a slope for context. Steps in
which a prompt of another request was computed are left out, and so is whatever an incident touches: what is seen is
learned only twenty seconds later, when every detector has had its say. Before there are ten such looks nothing is
expected (`gpumon_explained_requests_total{outcome="cold"}`). Where something was wrong from the beginning, a low
quantile of the touched ones has to do. First tokens likewise: the usual wait, and what a prompt of that length takes.

**Slow.** A step of over 1.5 times what is expected; or a second whose steps took over 1.06 times that on the mean (a
GPU that is a tenth slower makes no gap that stands out, and yet every token is late). A wait that is longer than one
in twenty waits; a prompt that took over 1.25 times what prompts of its length take. The excess is what it took, less
what was expected: the tolerance decides what is slow, and is no discount.

**Load.** What load adds is worked out: prompt tokens of others that were computed meanwhile, by what such a token
usually costs; what a larger batch or longer contexts than usual add, by what is expected of them. A batch is the
requests that have ended, and as many more as the server's page says are running. More than usual is what chance hardly
brings: arrivals over half a minute of 1.4 times the usual and three standard deviations over it. What nothing explains
of a context longer than any known may be the context's; of a batch larger than any known, the batch's where more
requests came, and the fault's where it grew behind one.

**Conditions.** Witnesses say for every GPU, process, server and the host, in half seconds, which conditions held: how
sure that is against what is usual there (*evidence*, 0 to 1), and how much of the time it can have cost at most. A
condition claims what load does not explain, up to that, by its evidence and its *lift*: how many times as much excess
there was in the last five minutes while it held than while it did not. One that holds and costs nothing has a lift of
1, and is not blamed. Claims that are too much share in proportion.

**Roots.** A batch that grows behind slow hardware, and the queue before it, are the hardware's, for as long as that
queue lasts, unless more requests came than usual. Where more came as well, the batch that there would be without the
fault is worked out by Little's law: so many times smaller as its steps are longer. What that has over the usual is
load. Contexts grow behind nothing, and what comes while a server is gone is its load once it is back. A rank that is
late for a reason of its own is not a `straggler`: its peers are victims, and the reason is the cause.

How right all this is, is measured on simulated nodes whose every late second is accounted for, on seeds that were not
looked at while it was built (`benchmarks/attribution.py`), and on a real llama.cpp with real faults (`tests/live`);
[BENCHMARKS.md](BENCHMARKS.md) has the figures.

## What it cannot do

- Without token times (released vLLM tells when a request began, its first token came and it ended) the whole decoding
  of a request is one stretch, and slow from 1.15 times on: a short stall in a long answer is too little to be seen.
  [TOKENS.md](TOKENS.md#what-makes-explanations-better) says what each field is good for.
- It compares with what it has seen. In the first minute after a start there is little of that: a server that has been
  slow all along is usual, what a batch of a size never seen takes is a guess (by the request or by the doubling, as it
  was over the last two doublings), and much is `unexplained`.
- A request tells of its prompt when it has ended. While answers take minutes, the prompts computed in their midst are
  known only by the counters of the server's page, of which nobody can say in which gap they fell.
- Nor is anything else known of a request that still runs, but that there is one: where no page says so, or several
  name the model, the batch of long answers is taken for smaller than it was.
- Where requests are bound to no GPU and no process, only load and the server's page can explain anything:
  `gpumon_requests_unbound_total` says why.
- Of causes that begin and end together nobody can say how much each took; they share by what they can have cost.
- A cause that no counter shows is `unexplained`. `gpumon doctor` says what is not watched here.

## Causes

*Fault*: the same work took longer than it had to. *Load*: there was more work, and nothing is broken.
"""

CORRELATION: Final = """
## Correlation

Every ten seconds, for every group: Pearson's r of each dimension below with the P95 of time to first token, the P95
of inter-token latency and tokens per second, at one value a second over ten minutes, at the lag within five seconds
at which |r| is greatest; and of SM and DRAM activity, clocks, power and throttling with token times in tenths of a
second over a minute, within half a second. Neighbouring seconds are alike, so the number of samples that counts is
smaller (by the autocorrelation of both, `n_eff`); a pair is *strong* where |r| > 0.7, `n_eff` is at least 10, and
chance would bring it about less than once in a hundred such matrices. Only strong pairs of the first kind are exported
(`gpumon_correlation{x,y}`, where y is a model's, and `gpumon_correlation_lag_seconds`), 64 at most; all of both
matrices is at `/api/v1/correlation`. Correlation is no cause: it is there to find what no witness looks for.

## Dimensions

What `gpumon diagnose` compares between slow requests and the others, and what correlations are made of.
"""
