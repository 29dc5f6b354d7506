"""Parses natural numbers from untrusted text.

`int()` is too lenient for it: it accepts digits of every script, signs, whitespace and underscores, and
raises ValueError above 4,300 digits.
"""

from __future__ import annotations

DIGITS_MAX = 18  # any number of 18 digits is below 2^63


def natural(text: str | bytes, digits_max: int = DIGITS_MAX) -> int | None:
    """The value of 1 to `digits_max` ASCII digits; None for anything else."""
    if len(text) > digits_max or not text.isascii() or not text.isdigit():
        return None
    return int(text)
