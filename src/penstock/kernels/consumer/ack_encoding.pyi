"""An ack state as bytes: a snapshot, and the journal of what changed since."""

def make_snapshot(
    policy: int,
    delivered: tuple[int, int],
    floor: tuple[int, int],
    pending: list[tuple[int, int, int, int]],
    given_up: list[tuple[int, int]],
) -> bytes:
    """What AckState.snapshot() of penstock.kernels.consumer.ack_state returns for a state that came from
    elsewhere.

    delivered, floor: consumer and stream sequence. pending, given_up: as the methods of these names return
    them, ascending. Raises OverflowError for numbers that fit no field.
    """
