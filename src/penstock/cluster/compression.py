"""Which compression two servers agree on, and which level a round trip time asks for.

Every mode that compresses is a form of S2, which a reader need not know: each direction has a level of its
own.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ConfigError, ProtocolError

NOT_SUPPORTED = "not supported"
OFF = "off"
ACCEPT = "accept"
AUTO = "s2_auto"
UNCOMPRESSED = "s2_uncompressed"
FAST = "s2_fast"
BETTER = "s2_better"
BEST = "s2_best"

LEVELS = (UNCOMPRESSED, FAST, BETTER, BEST)
RTT_THRESHOLDS_NS = (10_000_000, 50_000_000, 100_000_000)
RTT_THRESHOLDS_MAX = len(LEVELS)
_NAMES = {
    **dict.fromkeys(("not supported", "not_supported"), NOT_SUPPORTED),
    **dict.fromkeys(("disabled", "off", "false"), OFF),
    "accept": ACCEPT,
    **dict.fromkeys(("on", "enabled", "true"), FAST),
    **{name: mode for mode in (AUTO, FAST, BETTER, BEST) for name in (mode, mode.removeprefix("s2_"))},
}


def mode_of(text: str) -> str:
    """The mode that a configuration names. Raises ConfigError."""
    mode = _NAMES.get(text.lower())
    if mode is None:
        raise ConfigError(f'unsupported compression mode "{text}"')
    return mode


def check_thresholds(thresholds_ns: Sequence[int]) -> None:
    """Raises ConfigError unless the thresholds ascend; 0, also for negative ones, skips a level."""
    if len(thresholds_ns) > RTT_THRESHOLDS_MAX:
        raise ConfigError(
            f'compression mode "{AUTO}" should have no more than {RTT_THRESHOLDS_MAX} RTT thresholds'
        )
    used = [one for one in thresholds_ns if one > 0]
    if thresholds_ns and not used:
        raise ConfigError(f'compression mode "{AUTO}" requires at least one RTT threshold')
    if used != sorted(used):
        shown = " ".join(f"{one / 1e6:g}ms" for one in thresholds_ns)
        raise ConfigError(f"RTT threshold values [{shown}] should be in ascending order")


def compresses(mode: str) -> bool:
    """Whether a server with this mode may compress, so that it negotiates."""
    return mode not in (NOT_SUPPORTED, OFF)


def agreed(ours: str, theirs: str, rtt_ns: int, thresholds_ns: Sequence[int] = RTT_THRESHOLDS_NS) -> str:
    """The mode in which this server writes; `off` or `not supported` = none.

    Args:
        ours: configured mode.
        theirs: mode in the other server's INFO, "" = it knows none.
        rtt_ns: round trip time, for `s2_auto`.
        thresholds_ns: see `level_for`.

    Raises:
        ProtocolError: the other server's mode is unknown.
    """
    if theirs not in ("", NOT_SUPPORTED, OFF, ACCEPT, AUTO, *LEVELS):
        raise ProtocolError(f'unsupported route compression mode "{theirs}"')
    if ours == NOT_SUPPORTED or theirs in ("", NOT_SUPPORTED):
        return NOT_SUPPORTED
    if OFF in (ours, theirs) or ours == theirs == ACCEPT:
        return OFF
    if ours == ACCEPT:
        return FAST if theirs == AUTO else theirs
    return level_for(rtt_ns, thresholds_ns) if ours == AUTO else ours


def level_for(rtt_ns: int, thresholds_ns: Sequence[int] = RTT_THRESHOLDS_NS) -> str:
    """The level of `s2_auto`: the slower the link, the more compression it is worth.

    The n-th threshold is the largest round trip time of the n-th level; 0 skips the level. A time above all
    thresholds gets the best level, or the last one of fewer than three thresholds.
    """
    thresholds = thresholds_ns or RTT_THRESHOLDS_NS
    for level, most in zip(LEVELS, thresholds, strict=False):
        if most > 0 and rtt_ns <= most:
            return level
    return BEST if len(thresholds) >= 3 else LEVELS[len(thresholds) - 1]
