"""Seeds that failed once. The commit that fixes the cause of a failure lists its seed here, so that every run
of the suite replays it from then on."""

from __future__ import annotations

REGRESSION_SEEDS: tuple[int, ...] = (
    500244,
    500479,
    500603,
    500703,
    7000514,
    7000605,
    7000649,
    7000794,
    7001274,
    7001736,
    7001893,
    7001960,
    7002228,
    7002289,
    7002294,
    7002454,
    7002470,
    7002576,
    20000565,
    20001218,
    20001602,
    20001814,
    20002689,
    20002773,
    20003264,
    20005176,
)
