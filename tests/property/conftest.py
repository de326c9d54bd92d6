"""Profiles of Hypothesis: the default is quick and repeatable, HYPOTHESIS_PROFILE=soak searches for long."""

import os

from hypothesis import HealthCheck, settings

_HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "quick", max_examples=120, deadline=None, derandomize=True, suppress_health_check=_HEALTH
)
settings.register_profile("soak", max_examples=4_000, deadline=None, suppress_health_check=_HEALTH)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
