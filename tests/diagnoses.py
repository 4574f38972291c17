"""A diagnosis with something in every part, for tests of how it is told."""

from __future__ import annotations

from typing import Any

from gpumon.explain.diagnosis.model import (
    Action,
    Axis,
    BatchJitter,
    BeforeDuring,
    CauseLost,
    Change,
    ContextProfile,
    ContextRow,
    Correlation,
    Diagnosis,
    Engine,
    IncidentBrief,
    Interference,
    MatrixRow,
    Period,
    QualityLink,
    QueryClass,
    SlowRequest,
    Surface,
    TenantEffect,
    Timeline,
)

SINCE = 1_800_000_000.0
"""2027-01-15T08:00:00Z."""
TRACE = "0af7651916cd43dd8448eb211c80319c"
HOSTILE = '</script><img src=x onerror="alert(1)">[red]\x1b[31m$&'
"""A name that would be markup, a control sequence, and an end of a script."""


def nothing(**fields: Any) -> Diagnosis:
    """A period in which nothing was asked."""
    told: dict[str, Any] = {
        "version": "0.1.0",
        "node": "gpu-box-17",
        "since": SINCE,
        "known_since": None,
        "until": SINCE + 1800.0,
        "requests": 0,
        "slow_requests": 0,
        "token_seconds": 0.0,
        "excess_seconds": 0.0,
        "unexplained_share": None,
        "verdict": ("No requests ended in this time.",),
        "before_during": None,
        "timeline": None,
        "surface": None,
    }
    empty = "causes actions matrix engines slowest incidents correlations tenants batches contexts quality notes"
    return Diagnosis(**(told | dict.fromkeys(empty.split(), ()) | fields))


def full(name: str = "llama-70b", tenant: str = "acme") -> Diagnosis:
    """A hot GPU. name: of the model; tenant: of the one that loses, among other things that come from outside."""
    engine = {"server": "vllm", "model": name}
    return nothing(
        requests=1234,
        slow_requests=120,
        token_seconds=4120.0,
        excess_seconds=310.0,
        unexplained_share=0.03,
        verdict=(
            f"vllm/{name} lost 310 s of token time, 93 % of it because a GPU was too hot.",
            "It began at 08:10:00 and lasts.",
        ),
        causes=(
            _cause("thermal_throttle", "GPU too hot", "fault", 288.0, "sm_clock 1.005 GHz, usually 1.41 GHz"),
            _cause("queueing", "waiting in the queue", "load", 12.0, "", first=12.0),
            _cause("unexplained", "unexplained", "unexplained", 10.0, ""),
        ),
        actions=(
            Action(
                text="Look at fans and air flow.",
                cause="thermal_throttle",
                title="GPU too hot",
                seconds=288.0,
                worst_seconds=230.0,
                reason="GPU too hot: 3 min 50 s of the worst stretch, 4 min 48 s in all",
            ),
        ),
        matrix=(
            _row("sm_clock", "SM clock over its maximum", "ratio", "> 70 %", 0.508, 1.0, -0.83, "bad"),
            _row("temperature", "GPU temperature", "celsius", "< 85 °C", 91.0, 74.0, 0.79, "suspect"),
            _row("major_faults", "major page faults", "faults/s", "< 50/s", 0.0, 0.0, None, "ok"),
            _row("nvlink", "NVLink, both ways", "bytes/s", "", None, None, None, "unknown"),
        ),
        before_during=BeforeDuring(
            during=Period(start=SINCE + 600.0, end=SINCE + 800.0),
            before=Period(start=SINCE + 300.0, end=SINCE + 590.0),
            **engine,
            excess_seconds=250.0,
            usual_seconds=20.0,
            changes=(
                Change(signal="sm_clock", title="SM clock", unit="hertz", before=1.98e9, during=1.005e9, change=-0.49),
                Change(signal="inter_token", title="P95 gap", unit="seconds", before=0.045, during=0.255, change=4.67),
                Change(signal="faults", title="major faults", unit="", before=0.0, during=3.0, change=None),
            ),
        ),
        timeline=Timeline(
            start=SINCE,
            step_seconds=60.0,
            requests=(40,) * 30,
            response_p95=(*(2.0,) * 29, None),
            per_token_mean=(*(0.02,) * 29, None),
            excess=(*(0.0,) * 10, *(50.0, 80.0, 60.0, 60.0, 30.0, 30.0), *(0.0,) * 14),
            by_cause={"thermal_throttle": (*(0.0,) * 10, *(48.0, 78.0, 58.0, 50.0, 28.0, 26.0), *(0.0,) * 14)},
        ),
        engines=tuple(
            Engine(
                **engine,
                place=place,
                gpus=gpus,
                pid="",
                container="",
                requests=600,
                slow_requests=60,
                token_seconds=2000.0,
                excess_seconds=150.0,
                cause="thermal_throttle",
                title="GPU too hot",
            )
            for place, gpus in (("GPUs 3, 4", ("GPU-0003", "GPU-0004")), ("GPU 5", ("GPU-0005",)))
        ),
        slowest=(
            SlowRequest(
                trace_id=TRACE,
                span_id="00f067aa0ba902b7",
                request_id="cmpl-7",
                **engine,
                tenant=tenant,
                gpus=("GPU-0003",),
                detailed=False,
                started=SINCE + 640.0,
                duration_seconds=12.3,
                first_token_seconds=0.4,
                worst_gap_seconds=0.42,
                prompt_tokens=2048,
                completion_tokens=100,
                excess_seconds=4.2,
                cause="thermal_throttle",
                title="GPU too hot",
                cause_share=0.93,
            ),
        ),
        incidents=(
            IncidentBrief(
                id="20270115T081000Z-thermal_throttle-gpu-3",
                kind="thermal_throttle",
                title="GPU too hot",
                severity="warning",
                entity="gpu 3",
                gpu="GPU-0003",
                summary=f"SM clock 1980 → 1005 MHz while {name} ran",
                opened=SINCE + 601.0,
                lasted_seconds=1199.0,
                is_open=True,
                causes=("thermal_throttle",),
            ),
        ),
        correlations=(
            Correlation(
                **engine,
                x="sm_clock",
                y="inter_token_p95",
                r=-0.91,
                lag_seconds=1.0,
                step_seconds=1.0,
                n_eff=120.0,
                p=1e-12,
            ),
            Correlation(
                **engine,
                x="temperature",
                y="inter_token_p95",
                r=0.8,
                lag_seconds=-2.0,
                step_seconds=0.1,
                n_eff=80.0,
                p=1e-9,
            ),
        ),
        tenants=(
            Interference(
                **engine,
                cell_seconds=5.0,
                active_mean=2.4,
                active_most=5,
                tenants=(
                    _tenant(tenant, 41.0, -0.8, -6.5, "bad"),
                    _tenant("", 44.0, 0.1, 0.2, "ok"),
                ),
            ),
        ),
        batches=(
            BatchJitter(
                **engine,
                fill=0.31,
                open_most=48,
                spacing_jitter=1.9,
                classed_by="tenant",
                frequent=QueryClass(requests=900, first_token_p50=0.3, first_token_jitter_p99=0.2, gap_jitter_p99=0.05),
                rare=QueryClass(requests=34, first_token_p50=0.35, first_token_jitter_p99=0.9, gap_jitter_p99=None),
                rare_over_frequent=4.5,
                verdict="suspect",
            ),
        ),
        contexts=(
            ContextProfile(
                **engine,
                rows=(_bucket("32k", 2.0, None), _bucket("64k", 4.4, 2.2), _bucket("128k", 14.0, 3.2)),
                cliff="128k",
            ),
        ),
        quality=(
            QualityLink(
                **engine,
                prompts="5f3a",
                evaluation="relevance",
                n=40,
                score_mean=0.71,
                tokens_per_second_mean=38.0,
                r=0.66,
                slope=0.004,
                verdict="suspect",
            ),
        ),
        surface=Surface(
            x=Axis(name="prompt_tokens", labels=("0 to 1023", "1024 to 2047", "2048 to 4095")),
            y=Axis(name="tenant", labels=(tenant, "others")),
            measure="response_time",
            quantile=0.95,
            counts=((10, 20, 3), (40, 9, 6)),
            values=((1.0, 1.4, None), (1.1, 1.3, 2.9)),
        ),
        notes=("NVLink is not watched: no NVLink on this node.",),
    )


def _cause(cause: str, title: str, kind: Any, seconds: float, fact: str, first: float = 0.0) -> CauseLost:
    return CauseLost(
        cause=cause,
        title=title,
        kind=kind,
        seconds=seconds,
        first_token_seconds=first,
        decode_seconds=seconds - first,
        share=seconds / 310.0,
        requests=110,
        calm_seconds_per_minute=0.3 if kind == "load" else None,
        fact=fact,
        action="Look at it.",
    )


def _row(
    dimension: str,
    title: str,
    unit: str,
    healthy: str,
    slow: float | None,
    others: float | None,
    r: float | None,
    verdict: Any,
) -> MatrixRow:
    return MatrixRow(
        dimension=dimension,
        title=title,
        unit=unit,
        healthy=healthy,
        slow_mean=slow,
        other_mean=others,
        effect=None,
        r=r,
        n=1200,
        verdict=verdict,
    )


def _tenant(tenant: str, rate: float, r: float, slope: float, verdict: Any) -> TenantEffect:
    return TenantEffect(tenant=tenant, requests=400, tokens_per_second=rate, n=100, r=r, slope=slope, verdict=verdict)


def _bucket(bucket: str, p95: float, growth: float | None) -> ContextRow:
    return ContextRow(
        bucket=bucket,
        requests=100,
        response_mean=p95 / 2,
        response_p95=p95,
        first_token_p95=p95 / 4,
        decode_tokens_per_second=40.0,
        normalised_throughput=20.0,
        growth=growth,
    )
