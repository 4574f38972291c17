"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Machines are noisy: no test passes or fails by the time it took.
settings.register_profile("gpumon", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpumon")
