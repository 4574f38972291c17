"""Makes a diagnosis: puts together what the parts say of the same requests. Takes no clock and changes nothing."""

from __future__ import annotations

from typing import Final

from gpumon.explain.causes import UNEXPLAINED
from gpumon.explain.diagnosis import gains, losses, stretch, words
from gpumon.explain.diagnosis.batches import batches
from gpumon.explain.diagnosis.contexts import contexts
from gpumon.explain.diagnosis.incidents import incidents
from gpumon.explain.diagnosis.inputs import Inputs
from gpumon.explain.diagnosis.matrix import matrix
from gpumon.explain.diagnosis.model import BeforeDuring, Correlation, Diagnosis, Surface
from gpumon.explain.diagnosis.quality import quality
from gpumon.explain.diagnosis.seen import Seen
from gpumon.explain.diagnosis.surface import choose, surface
from gpumon.explain.diagnosis.tenants import interference

CORRELATIONS: Final = 30


def diagnose(inputs: Inputs) -> Diagnosis:
    """Everything that is known of why requests of the period were slow.

    Raises ValueError for an attribute of the response surface that there is not; its text lists those there are.
    """
    seen = Seen(inputs)
    worst = stretch.worst(seen)
    gain = gains.gained(seen, worst) if worst is not None else None
    lost = losses.causes(seen, gain)
    tenants = interference(seen)
    shares = [each.share for each in lost if each.cause == UNEXPLAINED]
    known_s = inputs.known_s
    return Diagnosis(
        version=inputs.version,
        node=inputs.node,
        since=inputs.to_unix(inputs.from_s),
        known_since=inputs.to_unix(known_s) if known_s > inputs.from_s else None,
        until=inputs.to_unix(inputs.to_s),
        requests=len(seen),
        slow_requests=int(seen.slow.sum()),
        token_seconds=float(seen.duration_s.sum()),
        excess_seconds=float(seen.excess_s.sum()),
        unexplained_share=sum(shares) if lost else None,
        verdict=words.verdict(inputs, seen, worst, gain, tenants),
        causes=lost,
        actions=losses.actions(lost, gain),
        matrix=matrix(inputs, seen, worst.engine if worst is not None else None),
        before_during=_before_during(inputs, seen, worst, gain),
        timeline=stretch.timeline(inputs, seen),
        engines=losses.engines(inputs, seen),
        slowest=losses.slowest(inputs, seen),
        incidents=incidents(inputs),
        correlations=_correlations(inputs),
        tenants=tenants,
        batches=batches(seen),
        contexts=contexts(seen),
        quality=quality(seen),
        surface=_surface(inputs, seen),
        notes=words.notes(inputs, seen, worst),
    )


def _surface(inputs: Inputs, seen: Seen) -> Surface | None:
    if not len(seen):
        return None
    chosen = choose(seen, inputs.surface_x, inputs.surface_y)
    return surface(seen, *chosen, share=inputs.quantile) if chosen is not None else None


def _before_during(
    inputs: Inputs, seen: Seen, worst: stretch.Stretch | None, gain: gains.Gained | None
) -> BeforeDuring | None:
    if worst is None or gain is None:
        return None
    return stretch.before_during(inputs, seen, worst, gain.usual_s)


def _correlations(inputs: Inputs) -> tuple[Correlation, ...]:
    found = [
        Correlation(
            server=group.server,
            model=group.model,
            x=pair.x,
            y=pair.y,
            r=pair.r,
            lag_seconds=pair.lag_s,
            step_seconds=step_s,
            n_eff=pair.n_eff,
            p=pair.p,
        )
        for group, pairs in inputs.correlations.items()
        for step_s, pair in pairs
    ]
    found.sort(key=lambda each: (-abs(each.r), each.p, each.server, each.model, each.x, each.y))
    once: dict[tuple[str, ...], Correlation] = {}
    for each in found:
        once.setdefault((each.server, each.model, each.x, each.y), each)
    return tuple(once.values())[:CORRELATIONS]
