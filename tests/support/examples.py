"""How many examples a property test tries: HYPOTHESIS_PROFILE is `default`, `fast` or `thorough`.

`fast` is for `make unit`, which must be done while its author waits. A test with a count of its own takes it
through examples(): Hypothesis would put that count above any profile's.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FAST_SHARE = 4  # `fast` tries a quarter

# No deadline: two cores shared with a JVM make single examples slow for reasons of their own.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", parent=settings.get_profile("default"), max_examples=100 // FAST_SHARE)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5_000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
settings.load_profile(PROFILE)


def examples(count: int) -> int:
    """`max_examples` of a test that tries `count` in the whole suite."""
    return -(-count // FAST_SHARE) if PROFILE == "fast" else count
