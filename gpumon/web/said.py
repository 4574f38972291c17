"""What answers of the JSON API have in common: models without NaN, and a series of points. No FastAPI: commands read
answers by the same models."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field


class Said(BaseModel):
    """Part of an answer. NaN and infinity are not said, and not read."""

    model_config = ConfigDict(allow_inf_nan=False)


class Series(Said):
    """Points of several signals that share their times."""

    step_seconds: float = Field(description="Between two points where none is missing; more is a gap.")
    at: list[float] = Field(description="Unix seconds, ascending.")
    signals: dict[str, list[float | None]] = Field(
        description="As many values as moments, null where not known. A signal that is never known is left out."
    )


def known(value: float | None) -> float | None:
    """The value, if it can be said."""
    return value if value is not None and math.isfinite(value) else None


def rounded(value: float | None, digits: int) -> float | None:
    """Likewise, with so many digits after the point: answers are read by people too."""
    return round(value, digits) if value is not None and math.isfinite(value) else None
