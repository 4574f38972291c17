"""The text of docs/EXPLAINING.md around its tables."""

from __future__ import annotations

from typing import Final

INTRO: Final = """\
A token is *slow* when it came later than it usually does under the load that the server usually
has. gpumon says by how much, and divides that excess among causes. What nothing explains is `unexplained`, and is
shown: the causes of a request add up to its excess, exactly.

```console
$ gpumon diagnose                     # the last half hour: what was slow, why, and what to do
$ gpumon diagnose --html report.html  # the same as one file, with plots
$ gpumon explain 4bf92f3577b34da6a3ce929d0e0e4736   # one request: its tokens, the slow gaps, the causes under each
```

In Prometheus: `rate(gpumon_slow_token_seconds_total[5m])` by `cause`; its sum over causes is
`gpumon_token_excess_seconds_total`. On spans that are forwarded: `gpumon.cause`, `gpumon.excess_ms`,
`gpumon.cause.shares` and `gpumon.cause.evidence`. As JSON: `/api/v1/explain?trace_id=`, `/api/v1/explained`,
`/api/v1/diagnose`, `/api/v1/correlation`, `/api/v1/surface`.

## How it is worked out

**Groups.** Requests that share a batch slow one another down. All is by engine: the kind of server, its model, and
the GPUs (or, where there are none, the process) that its requests are bound to.

**When.** A request is explained once, `explain.delay_s` after it is complete: what ran beside it has ended by then,
and counters that are read every five seconds have been read. Forwarded spans wait as long.

**Expected.** How long a decode step takes with so many requests in the batch and so much context in all: a rolling
median of the steps of the last minutes, for sizes of batch four to a doubling, with a slope for context. Steps in
which a prompt of another request was computed are left out, and so is whatever an incident touches: what is seen is
learned only twenty seconds later, when every detector has had its say. Before there are ten such looks nothing is
expected (`gpumon_explained_requests_total{outcome="cold"}`). Where something was wrong from the beginning, a low
quantile of the touched ones has to do. First tokens likewise: the usual wait, and what a prompt of that length takes.

**Slow.** A step of over 1.5 times what is expected; or a second whose steps took over 1.06 times that on the mean (a
GPU that is a tenth slower makes no gap that stands out, and yet every token is late). The excess is what it took,
less what was expected.

**Load.** What load adds is worked out: prompt tokens of others that were computed meanwhile, by what such a token
usually costs; what a larger batch or longer contexts than usual add, by what is expected of them.

**Conditions.** Witnesses say for every GPU, process, server and the host, in half seconds, which conditions held: how
sure that is against what is usual there (*evidence*, 0 to 1), and how much of the time it can have cost at most. A
condition claims what load does not explain, up to that, by its evidence and its *lift*: how many times as much excess
there was in the last five minutes while it held than while it did not. One that holds all the time and costs nothing
has a lift of 1, and is not blamed. Claims that are too much share in proportion.

**Roots.** A batch that grows behind slow hardware, and the queue before it, are the hardware's, unless more requests
came than usual. A rank that is late for a reason of its own is not a `straggler`: its peers are victims, and the
reason is the cause.

How right all this is, is measured on simulated nodes whose every late second is accounted for, on seeds that were not
looked at while it was built (`benchmarks/attribution.py`), and on a real llama.cpp with real faults (`tests/live`);
docs/BENCHMARKS.md has the figures.

## What it cannot do

- Without token times (released vLLM tells when a request began, its first token came and it ended) the whole decoding
  of a request is one stretch: a short stall in a long answer is too little to be seen.
- Requests that still run are not known unless their server tells of them at their begin. While answers take minutes,
  the prompts computed in their midst are known only by the server's own counters.
- Where requests are bound to no GPU and no process, only load and the server's page can explain anything:
  `gpumon_requests_unbound_total` says why.
- A cause that no counter shows is `unexplained`. `gpumon doctor` says what is not watched here.

## Causes
"""

CORRELATION: Final = """
## Correlation

Every ten seconds, for every group: Pearson's r of each dimension below with the P95 of time to first token, the P95
of inter-token latency and tokens per second, at one value a second over ten minutes, at the lag within five seconds
at which |r| is greatest; and of SM and DRAM activity, clocks, power and throttling with token times in tenths of a
second over a minute. Neighbouring seconds are alike, so the number of samples that counts is smaller (by the
autocorrelation of both, `n_eff`); a pair is *strong* where |r| > 0.7, `n_eff` is at least 10, and chance would bring
it about less than once in a hundred such matrices. Only strong pairs are exported (`gpumon_correlation{x,y}`,
`gpumon_correlation_lag_seconds`); the whole matrix is at `/api/v1/correlation`. Correlation is no cause: it is there
to find what no witness looks for.

## Dimensions

What `gpumon diagnose` compares between slow requests and the others, and what correlations are made of.
"""
