"""Serialised ack states: snapshots, and journals of later changes."""

def make_snapshot(
    policy: int,
    delivered: tuple[int, int],
    floor: tuple[int, int],
    pending: list[tuple[int, int, int, int]],
    given_up: list[tuple[int, int]],
) -> bytes:
    """Builds what AckState.snapshot() of penstock.kernels.consumer.ack_state returns, from imported state.

    delivered, floor: consumer and stream sequence. pending, given_up: as the methods of these names return
    them, ascending. Raises OverflowError for numbers that do not fit their field.
    """
