"""Whole numbers in text that peers wrote.

`int()` is no parser for them: it takes the digits of every script, signs, blanks and underscores, and raises
ValueError above 4,300 digits.
"""

from __future__ import annotations

DIGITS_MAX = 18  # of a number below 2^63, whatever its digits


def natural(text: str | bytes, digits_max: int = DIGITS_MAX) -> int | None:
    """The number that 1 to `digits_max` ASCII digits say; None for anything else."""
    if len(text) > digits_max or not text.isascii() or not text.isdigit():
        return None
    return int(text)
