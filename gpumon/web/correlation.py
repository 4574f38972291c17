"""The JSON API's part about correlation: which signals of GPU, host and server go with latency, of every group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from gpumon.explain import correlations as made
from gpumon.web.answers import REFUSED, Answers


class Pair(BaseModel):
    """Two signals."""

    x: str = Field(description="Signal of GPU, process, server or host.")
    y: str = Field(description="Latency or token rate.")
    r: float | None = Field(
        description="Pearson's r at the best lag, -1 to 1; null where too little is known of both at a time, or one of "
        "them does not move."
    )
    lag_seconds: float = Field(description="By how long y follows x; negative: x follows y.")
    n: int = Field(description="Samples that it rests on.")
    n_eff: float = Field(description="How many independent samples these are worth.")
    p: float = Field(description="How probable such an r is by chance, among all that were looked at.")
    strong: bool = Field(description="|r| > 0.7, n_eff >= 10 and p < 0.01.")


class Matrix(BaseModel):
    """Of one group of requests that share a batch."""

    server: str
    model: str
    gpus: list[str] = Field(description="UUIDs; empty where its requests are not bound to GPUs.")
    fast: bool = Field(description="In tenths of a second over a minute, or in seconds over ten minutes.")
    step_seconds: float = Field(description="Between two samples.")
    x: list[str]
    y: list[str]
    pairs: list[Pair] = Field(description="All of them, by x and then y; or the strong ones, the strongest first.")


def correlation_routes(matrices: Callable[[], Sequence[made.Matrix]]) -> APIRouter:
    """matrices: the newest of every group."""
    router = APIRouter(prefix="/api/v1/correlation", route_class=Answers, responses=REFUSED)

    @router.get("")
    def correlation(
        model: Annotated[str | None, Query(max_length=256)] = None,
        server: Annotated[str | None, Query(max_length=64, description="Kind of server, such as vllm.")] = None,
        fast: Annotated[bool, Query(description="In tenths of a second instead of seconds.")] = False,
        strong_only: Annotated[bool, Query(description="Leave out the pairs that are weak or may be chance.")] = False,
    ) -> list[Matrix]:
        """Every signal against every latency, by group."""
        return [
            _told(matrix, strong_only=strong_only)
            for matrix in matrices()
            if matrix.is_fast == fast and model in (None, matrix.group.model) and server in (None, matrix.group.server)
        ]

    return router


def _told(matrix: made.Matrix, *, strong_only: bool) -> Matrix:
    positions = [(i, j) for i in range(len(matrix.x)) for j in range(len(matrix.y))]
    if strong_only:
        strong = [(i, j) for i, j in positions if matrix.strong[i, j]]
        positions = sorted(strong, key=lambda position: -abs(float(matrix.r[position])))
    return Matrix(
        server=matrix.group.server,
        model=matrix.group.model,
        gpus=list(matrix.group.gpus),
        fast=matrix.is_fast,
        step_seconds=matrix.step_s,
        x=list(matrix.x),
        y=list(matrix.y),
        pairs=[_pair(matrix, i, j) for i, j in positions],
    )


def _pair(matrix: made.Matrix, i: int, j: int) -> Pair:
    r = float(matrix.r[i, j])
    return Pair(
        x=matrix.x[i],
        y=matrix.y[j],
        r=r if r == r else None,
        lag_seconds=float(matrix.lag_s[i, j]),
        n=int(matrix.n[i, j]),
        n_eff=float(matrix.n_eff[i, j]),
        p=float(matrix.p[i, j]),
        strong=bool(matrix.strong[i, j]),
    )
