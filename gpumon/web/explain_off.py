"""The JSON API's part about slow tokens where nothing is explained: it says why, instead of not being there."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException

PATHS = ("explain", "explained", "diagnose", "surface", "correlation", "requests", "timeline")


def off_routes(reason: str) -> APIRouter:
    """reason: which key of the configuration turns it on."""
    router = APIRouter(prefix="/api/v1", include_in_schema=False)

    def answer() -> None:
        raise HTTPException(404, f"nothing is explained here: {reason}")

    for path in PATHS:
        router.add_api_route(f"/{path}", answer, methods=["GET"])
    return router
