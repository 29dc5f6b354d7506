"""Redelivery times: ack wait, backoff, NAK delay, max_deliver.

Due messages wait in the AckState's redelivery queue, behind those queued before; messages whose ack wait
ended together are in the order of their sequences. The next delivery sends them before new messages.
"""

from __future__ import annotations

from penstock.kernels.consumer.ack_state import AckState

INT64_MAX = 2**63 - 1


class Redelivery:
    """Tracks the ack waits of one consumer.

    waits_ns: ack wait by number of deliveries, the last one repeats; empty: no redelivery. max_deliver: 0 for
    no maximum.
    """

    def __init__(self, state: AckState, waits_ns: list[int], max_deliver: int) -> None:
        self._state = state
        self._due: int | None = None  # a lower bound of the earliest end of an ack wait
        self.configure(waits_ns, max_deliver, 0)

    def configure(self, waits_ns: list[int], max_deliver: int, now: int) -> None:
        """Changes the waits, also of pending messages."""
        self._state.set_waits(waits_ns)
        self._wait_min_ns = min(waits_ns, default=INT64_MAX)
        self.max_deliver = max(max_deliver, 0)
        if self._state.num_pending:
            self._due = max(now, 1)  # the next on_time computes it

    def delivered(self, now: int) -> None:
        """Records that messages were delivered at `now`."""
        due = now + self._wait_min_ns
        if self._wait_min_ns < INT64_MAX and (self._due is None or due < self._due):
            self._due = due

    def next_deadline(self) -> int | None:
        """When on_time is due, or None."""
        if self._state.num_pending == self._state.num_queued:
            return None
        return self._due

    def on_time(self, now: int) -> list[tuple[int, int]]:
        """Queues due messages; returns [(stream seq, deliveries)] of those that reached max_deliver."""
        if self._due is None or self._due > now:
            return []
        _, given_up, earliest = self._state.expire(now, self.max_deliver)
        self._due = earliest or None
        return given_up

    def nak(self, stream_seq: int, delay_ns: int, now: int) -> bool:
        """Queues a message for redelivery, now or after a delay. False when it is not pending."""
        state = self._state
        if not state.is_pending(stream_seq):
            return False
        if delay_ns <= 0:
            state.requeue(stream_seq)
            return True
        # Move its delivery time so that its ack wait ends when the delay does.
        due = state.touch(stream_seq, now + delay_ns - state.wait_ns(stream_seq))
        self._due = due if self._due is None else min(self._due, due)
        return True

    def progress(self, stream_seq: int, now: int) -> bool:
        """+WPI: restarts the ack wait. False when the message is not pending."""
        return self._state.touch(stream_seq, now) != 0
