"""A random share of what `make scan` sends: nothing holds up the loop for 50 ms, escapes or stops the server.

The seed is new in every run and printed with what was found; `python -m tests.support.scan --share 30 --seed
N` draws the same probes again.
"""

from __future__ import annotations

import gc
import time

import pytest

from tests.support.probes import SETUPS
from tests.support.scan import all_probes
from tests.support.scanner import Scanner, bound_ms, random_share, set_aside

pytestmark = pytest.mark.feature("core.hostile-input")

SHARE_S = 20.0


def test_no_input_of_a_random_share_holds_up_or_stops_the_server() -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    set_aside()
    reported: list[str] = []
    scanner = Scanner(SETUPS, bound_ms, reported.append)
    try:
        count = random_share(all_probes(), SHARE_S, seed, scanner.run)
    finally:
        scanner.close()
        gc.unfreeze()
    print(f"{count} inputs")
    for kind, (ms, shape) in scanner.longest.items():
        print(f"{kind}: {ms:.1f} ms: {shape}")
    assert count > 20
    assert not reported, f"seed {seed}: " + "\n".join(reported)
