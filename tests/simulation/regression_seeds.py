"""Seeds that failed once. The commit that fixes the cause of a failure lists its seed here, so that every run
of the suite replays it from then on."""

from __future__ import annotations

REGRESSION_SEEDS: tuple[int, ...] = ()
