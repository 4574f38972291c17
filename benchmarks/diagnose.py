"""The claim about ``gpumon diagnose``: half an hour of a busy node explained within two seconds, in bounded memory.

16,384 requests of 8 engines on 8 GPUs with 40 signals each, a track of every engine at one sample a second, 12 tenants,
parameters and evaluation scores; for five minutes one GPU is hot and its requests are slow. Timed are the copy of the
log and the whole diagnosis, against a plain loop over the rows in Python that makes the matrix alone, in the same run.
Memory: the most that numpy and Python held meanwhile, the copy included. One JSON line; CPU time.
Usage: python -m benchmarks.diagnose [--rounds N] [--requests N]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.common import report
from gpumon.explain.diagnosis.build import diagnose
from gpumon.explain.diagnosis.inputs import Inputs, Track
from gpumon.explain.diagnosis.matrix import matrix
from gpumon.explain.diagnosis.model import MatrixRow
from gpumon.explain.diagnosis.seen import Seen
from gpumon.explain.explained import Account, Explained, Share
from gpumon.explain.group import Group, group_of
from gpumon.explain.request_log import RequestLog
from gpumon.explain.request_rows import Rows
from gpumon.explain.signs import Fact
from gpumon.model import Binding, GpuUuid, RequestRecord, Unit

BAR_S = 2.0
BAR_BYTES = 64 * 2**20
SIGNALS = 40
ENGINES = 8
PERIOD_S = 1800.0
HOT_S = (900.0, 1200.0)
UNIX_S = 1_800_000_000.0


class Signal(NamedTuple):
    """A dimension."""

    name: str
    title: str
    unit: str = "ratio"
    healthy: str = "< 0.9"
    bound: float | None = 0.9
    high_is_bad: bool = True


DIMENSIONS = tuple(Signal(f"signal_{i}", f"signal {i}") for i in range(SIGNALS))


def _requests(count: int) -> list[Explained]:
    random = np.random.default_rng(7)
    starts = np.sort(random.uniform(0.0, PERIOD_S - 60.0, count))
    found = []
    for i, start_s in enumerate(starts.tolist()):
        engine = int(random.integers(ENGINES))
        is_hot = engine == 3 and HOT_S[0] <= start_s < HOT_S[1]
        tokens = int(random.integers(20, 600))
        usual_s = 0.02 * tokens
        lost_s = 0.4 * usual_s if is_hot else 0.0
        first_s = 0.1 + float(random.exponential(0.1))
        ends_s = start_s + first_s + usual_s + lost_s
        start_ns = round((start_s + UNIX_S) * 1e9)
        record = RequestRecord(
            trace_id=random.bytes(16),
            request_id=f"cmpl-{i}",
            server="vllm",
            model=f"model-{engine}",
            arrived_s=start_s,
            start_ns=start_ns,
            end_ns=round((ends_s + UNIX_S) * 1e9),
            first_token_ns=start_ns + round(first_s * 1e9),
            time_to_first_token_s=first_s,
            queue_s=0.01,
            prompt_tokens=int(2 ** random.uniform(5, 17)),
            completion_tokens=tokens,
            tenant=f"tenant-{int(random.integers(12))}",
            prompt_hash=f"prompt-{int(random.zipf(1.5)) % 500}",
            parameters={
                "temperature": float(random.choice([0.0, 0.3, 0.7, 1.0])),
                "frequency_penalty": random.random(),
            },
            evaluations={"faithfulness": random.random()} if i % 3 == 0 else {},
            concurrency=int(random.integers(1, 64)),
            binding=Binding("resource", gpus=(GpuUuid(f"GPU-{engine}"),)),
        )
        shares: tuple[Share, ...] = ()
        if lost_s:
            hot = Share("thermal_throttle", 0.9 * lost_s, 0.9, 8.0, Fact("sm_clock", 1.0e9, Unit.HERTZ, 1.4e9))
            shares = (hot, Share("unexplained", 0.1 * lost_s, 0.0, None))
        signals = random.normal(0.5, 0.1, SIGNALS).astype(np.float32)
        signals[0] += 0.45 * is_hot
        found.append(
            Explained(
                record=record,
                group=group_of(record),
                start_s=start_s,
                end_s=ends_s,
                first_token=Account(first_s, first_s, 0.0, ()),
                decode=Account(usual_s, usual_s + lost_s, lost_s, shares),
                slow_gaps=(),
                token_s=start_s + first_s + np.arange(tokens) * 0.02,
                signals=signals,
            )
        )
    return found


def _inputs(rows: Rows, tracks: dict[Group, Track]) -> Inputs:
    return Inputs(
        rows=rows,
        from_s=0.0,
        to_s=PERIOD_S,
        to_unix=lambda at_s: at_s + UNIX_S,
        version="0",
        node="node",
        dimensions=DIMENSIONS,
        tracks=tracks,
    )


def _looped(seen: Seen, engine: int) -> list[tuple[float, float, float]]:
    """The matrix of an engine as one would write it first: mean over the slow, over the others, r, of each signal."""
    sums = [[0.0] * 8 for _ in range(SIGNALS)]
    slow, response, groups = seen.slow.tolist(), seen.response.tolist(), seen.group.tolist()
    for row, is_slow, y, group in zip(seen.rows.table, slow, response, groups, strict=True):
        if group != engine:
            continue
        for column, value in enumerate(row["signals"]):
            x = float(value)
            if math.isnan(x) or math.isnan(y):
                continue
            of = sums[column]
            of[0] += 1
            of[1] += x
            of[2] += y
            of[3] += x * x
            of[4] += y * y
            of[5] += x * y
            if is_slow:
                of[6] += 1
                of[7] += x
    found = []
    for n, x, y, xx, yy, xy, n_slow, x_slow in sums:
        r = (n * xy - x * y) / math.sqrt((n * xx - x * x) * (n * yy - y * y))
        found.append((x_slow / n_slow, (x - x_slow) / (n - n_slow), r))
    return found


def _agree(rows: Sequence[MatrixRow], looped: list[tuple[float, float, float]]) -> bool:
    """Whether the matrix says what the loop says; its numbers are 32-bit floats."""
    told = sorted(rows, key=lambda row: int(row.dimension.removeprefix("signal_")))
    figures = [(row.slow_mean or 0.0, row.other_mean or 0.0, row.r or 0.0) for row in told]
    return bool(np.allclose(figures, looped, rtol=0.0, atol=1e-4))


def _seconds(run: Callable[[], object], rounds: int) -> list[float]:
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        run()
        taken.append(time.process_time() - began)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=16_384)
    arguments = parser.parse_args()
    log = RequestLog(arguments.requests, n_signals=SIGNALS)
    requests = _requests(arguments.requests)
    began = time.process_time()
    for each in requests:
        log.append(each)
    append_s = time.process_time() - began
    random = np.random.default_rng(8)
    seconds = np.arange(PERIOD_S)
    groups = dict.fromkeys(each.group for each in requests)
    tracks = {group: Track(seconds, random.normal(0.5, 0.1, (SIGNALS, len(seconds)))) for group in groups}

    copy_s = _seconds(lambda: log.since(0.0), arguments.rounds)
    inputs = _inputs(log.since(0.0), tracks)
    whole_s = _seconds(lambda: diagnose(inputs), arguments.rounds)
    json_s = _seconds(diagnose(inputs).model_dump_json, arguments.rounds)
    seen = Seen(inputs)
    engine = int(np.bincount(seen.group[seen.slow]).argmax())
    matrix_s = _seconds(lambda: matrix(inputs, seen, engine), arguments.rounds)
    loop_s = _seconds(lambda: _looped(seen, engine), 1)[0]

    tracemalloc.start()
    diagnosis = diagnose(_inputs(log.since(0.0), tracks))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    agrees = _agree(matrix(inputs, seen, engine), _looped(seen, engine))
    told_s = statistics.median(whole_s) + statistics.median(copy_s)
    report(
        "diagnose",
        requests=len(seen),
        diagnose_s=round(told_s, 4),
        copy_s=round(statistics.median(copy_s), 4),
        json_s=round(statistics.median(json_s), 4),
        json_bytes=len(diagnosis.model_dump_json()),
        matrix_s=round(statistics.median(matrix_s), 4),
        loop_matrix_s=round(loop_s, 3),
        matrix_times_faster=round(loop_s / statistics.median(matrix_s), 1),
        agrees_with_loop=agrees,
        peak_bytes=peak,
        log_bytes=log.since(0.0).table.nbytes,
        append_us=round(append_s / arguments.requests * 1e6, 1),
        top_cause=diagnosis.causes[0].cause,
        bar_s=BAR_S,
        bar_bytes=BAR_BYTES,
        ok=told_s <= BAR_S and peak <= BAR_BYTES and agrees,
    )


if __name__ == "__main__":
    main()
