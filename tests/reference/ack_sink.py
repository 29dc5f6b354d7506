"""What an ack subject says, by splitting it."""

from __future__ import annotations

NUMBER_MAX = 2**64 - 1
PLAIN = (b"", b"+ACK", b"+OK")


def read(rest: bytes, *, longer: bool) -> tuple[bytes, list[int]] | None:
    """(consumer, five numbers) of what follows the stream's name; longer: further tokens may follow."""
    consumer, *tokens = rest.split(b".")
    if len(tokens) < 5 or (len(tokens) > 5 and not longer) or not consumer:
        return None
    numbers = tokens[:5]
    if not all(token.isdigit() and int(token) <= NUMBER_MAX for token in numbers):
        return None
    return consumer, [int(token) for token in numbers]
