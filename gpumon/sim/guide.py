"""How to write a scenario: the words and the example of docs/SCENARIOS.md, around the tables that ``docs`` makes."""

from __future__ import annotations

from typing import Final

INTRO: Final = """\
A scenario is a YAML file that tells a story: which node there is, which servers run on it, what is asked of them, and
what goes wrong when. The simulated node (`gpumon/sim/`) lives through it, and gpumon watches that node through the same
ports as a real one: answers of NVML, files of `/proc`, `/sys` and cgroups, the kernel log, metrics pages, and OTLP
spans by the contract of [docs/TOKENS.md](TOKENS.md).

```console
$ gpumon simulate FILE             # on a stepped clock, as fast as it goes; then what was found
$ gpumon demo --scenario FILE      # in real time, with the pages, the receivers and the flight recorder
```

`gpumon simulate` prints a line for each incident: when it opened, in seconds of the story and by the simulated wall
clock, severity, kind, of what, how long it lasted, and below it the figures. Of the example that follows:

```
   101.0 s  08:01:41  warning   thermal_throttle      gpu 2  (31.7 s)
                       SM clock 1980 → 1380 MHz at 82 to 88 °C, clocks held down for heat 88 % of the time; …
   181.0 s  08:03:01  warning   page_fault_burst      pid 41216 VLLM::Worker_TP  (46.0 s)
                       major faults 0.1 → 1.79e+03/s in bursts of 0.72 s, recovery 0.12 s, context 8k
```

An incident that nothing in the scenario explains is marked, and what should have been found and was not is named on
standard error; in both cases the exit status is 1. Incidents and faults are compared by kind, time and whom they are
of. What is not simulated: MIG instances, and servers over several nodes. `--json` prints a line of JSON for each
incident, `--seed` takes other noise, `--for` another length, and `--config` other thresholds. The same scenario, seed
and configuration give the same output, byte for byte.

## The file

The rules of YAML are those of the configuration file. Unknown keys and values that cannot be are refused, with a line
for each problem that names file, line and key. All optional keys are in the example, those of node and servers with
their defaults. Leave a minute or two before the first fault: many detectors compare with what was before.
"""

EXAMPLE: Final = """\
name: two faults
description: What it is for.
duration_s: 240          # seconds of the story
repeat: false            # true: the faults come again every duration_s
seed: 1                  # of all noise

node:
  model: h200            # h200, h100 or a100
  gpus: 8                # 1 to 8
  numa_nodes: 2          # 1 or 2

servers:                 # a GPU belongs to one of them at most
  - name: llama-0        # of its pod
    namespace: inference
    kind: vllm           # or sglang: whose processes and metrics page it has
    model: llama-3.1-70b
    gpus: [0, 1, 2, 3]   # in tensor parallel
    parameters_b: 70.6   # billions, all experts together
    active_parameters_b: 70.6     # that a token uses; default: all, with experts an eighth
    bytes_per_parameter: 2
    kv_bytes_per_token: 327680    # all layers and ranks together
    kv_capacity_tokens: 400000
    max_batch: 64
    prefill_chunk_tokens: 2048
    experts: 0           # 0: a dense model
    collectives: true    # tells of its collective operations, if it has several GPUs
    cuda_graphs: true
    host_overhead_s: 0.0015       # host work of a step for which the GPU waits

load:                    # requests; a server may have several loads
  - server: llama-0
    arrivals:
      process: poisson   # or constant, or bursty
      per_s: 1.5
      wave: {amplitude: 0.2, period_s: 300}     # a slow swing of the rate; default: none
    prompts: {1k: 5, 2k: 3, 8k: 1}              # weight by tokens; 8k is 8,192; default: 1k
    cached_share: 0.3    # of a prompt, found in the prefix cache; default: 0
    outputs: {mean: 240, spread: 0.5}           # tokens; standard deviation over mean
    tenants: {acme: 5, globex: 3, initech: 1}   # name and weight
    parameters: {temperature: [0.0, 0.7], max_tokens: [1024]}   # each value as likely
    evaluations: {summarize: 0.86}              # mean score by group of prompts

faults:
  - {kind: thermal_throttle, at_s: 90, for_s: 40, gpu: 2, strength: 0.3}
  - {kind: page_faults, at_s: 180, for_s: 40, server: llama-0}   # at its usual strength
"""

LABELS: Final = """\
## Labels

A label says what a fault should make one find: so every scenario brings its own answers, and nobody writes them down a
second time (`gpumon/sim/labels.py`; nothing that watches reads it).

- *Must be found*: an incident of this kind, of what the fault strikes (its GPU; of a server its GPUs, its processes or
  its model; its tenant; or the host), which opens from the fault's begin until 30 s after its end. Without one the
  fault was missed.
- *Is true as well*: consequences. A throttled GPU makes its server slower, a slower server has a queue. Incidents of
  these kinds need not come; those that do are right, from the fault's begin until 30 s after its end, whatever they
  are of.
- Everything else that opens is false. A fault without anything to find is there to be kept quiet about.

`tests/scenarios/` has a file for each fault at three strengths, pairs, measured cases and what only looks like a fault;
all but the measured ones are written by `tests/scenarios/make.py`. `python -m benchmarks.detection` runs them all and
prints recall, precision, seconds to detect and false incidents per clean hour.

The simulation also keeps, for each request, the seconds that it lost to each cause. A detector never sees them.
"""
