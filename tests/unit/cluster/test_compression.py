"""Which compression two servers agree on: the official server's table."""

from __future__ import annotations

import pytest

from penstock.cluster.compression import LEVELS, agreed, check_thresholds, level_for
from penstock.errors import ConfigError, ProtocolError

pytestmark = pytest.mark.feature("cluster.route-pool")

MS = 1_000_000


@pytest.mark.parametrize(
    ("ours", "theirs", "mode"),
    [
        ("off", "s2_fast", "off"),
        ("off", "accept", "off"),
        ("not supported", "s2_fast", "not supported"),
        ("s2_fast", "", "not supported"),
        ("s2_fast", "not supported", "not supported"),
        ("accept", "accept", "off"),
        ("accept", "off", "off"),
        ("accept", "s2_best", "s2_best"),
        ("accept", "s2_auto", "s2_fast"),
        ("s2_better", "accept", "s2_better"),
        ("s2_better", "s2_fast", "s2_better"),
        ("s2_better", "off", "off"),
        ("s2_auto", "accept", "s2_fast"),
    ],
)
def test_modes(ours: str, theirs: str, mode: str) -> None:
    assert agreed(ours, theirs, 20 * MS) == mode


def test_an_unknown_mode_of_a_peer_is_refused() -> None:
    with pytest.raises(ProtocolError, match='unsupported route compression mode "zip"'):
        agreed("accept", "zip", 1)


@pytest.mark.parametrize(
    ("rtt_ms", "thresholds_ms", "level"),
    [
        (10, (), 0), (11, (), 1), (50, (), 1), (51, (), 2), (101, (), 3),
        (5, (0, 10), 1), (20, (10,), 0), (20, (5, 10), 1), (20, (5, 10, 15), 3), (20, (0, 0, 30), 2),
    ],
)  # fmt: skip
def test_levels_follow_the_round_trip_time(rtt_ms: int, thresholds_ms: tuple[int, ...], level: int) -> None:
    assert level_for(rtt_ms * MS, tuple(one * MS for one in thresholds_ms)) == LEVELS[level]


@pytest.mark.parametrize("thresholds", [(2, 1), (1, 0, 3, 2), (0, 0), (1, 2, 3, 4, 5)])
def test_thresholds_ascend(thresholds: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        check_thresholds(thresholds)
    check_thresholds((0, 5, 0, 9))
    check_thresholds((-1, 5, 5))
    check_thresholds(())
