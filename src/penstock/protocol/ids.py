"""NUIDs: unique ids of 22 characters, 12 random ones and a counter of 10.

The random source is a parameter, so that a simulation is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX_LEN = 12
COUNTER_LEN = 10
COUNTER_MAX = 62**COUNTER_LEN
_STEP_MIN, _STEP_MAX = 33, 333


def base62(value: int, width: int) -> str:
    """The last `width` base 62 digits of a number."""
    digits = []
    for _ in range(width):
        value, digit = divmod(value, 62)
        digits.append(DIGITS[digit])
    digits.reverse()
    return "".join(digits)


def short_hash(text: str) -> str:
    """An eight-character hash of a name, as computed by the official server."""
    import hashlib  # imports OpenSSL, which a server without streams does not need

    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:8]
    return "".join(DIGITS[byte % 62] for byte in digest)


class NuidGenerator:
    """Generates ids; call it for the next one.

    randbelow: returns an integer in [0, n), for example `secrets.randbelow`.
    """

    def __init__(self, randbelow: Callable[[int], int]) -> None:
        self._randbelow = randbelow
        self._start_over()

    def __call__(self) -> str:
        self._counter += self._step
        if self._counter >= COUNTER_MAX:
            self._start_over()
        return self._prefix + base62(self._counter, COUNTER_LEN)

    def _start_over(self) -> None:
        self._prefix = base62(self._randbelow(62**PREFIX_LEN), PREFIX_LEN)
        self._counter = self._randbelow(COUNTER_MAX)
        self._step = _STEP_MIN + self._randbelow(_STEP_MAX - _STEP_MIN)
