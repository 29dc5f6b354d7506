"""What the commands of a stream cause outside of it: responses to publishes, republished messages, events.

Applying a command collects its effects; nothing leaves. The owner of the stream releases them when the
durability gate is open, and a replica that follows drops them: so a command has the same result on every
replica, and its effects leave once.

Pub acks and republished messages are what the ingest kernel collects: buffers, without an object per message.
Timers are not collected: `StreamTimers.next_deadline` follows from the state, and the owner asks after each
command.

Invariant: nothing is collected while release() sends. What a message leads to is applied in the next tick,
and the engine's RoutingGuard raises otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.jetstream.durability import Durability
from penstock.kernels.base.duration_histogram import DurationHistogram
from penstock.kernels.ingest.batches import FastBatch
from penstock.kernels.ingest.ingest import AckBatch
from penstock.kernels.ingest.storing import Republisher
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.protocol.durations import format_time


class StreamEffects:
    """The effects of the stream `name` that wait to be released.

    ack_prefix: of its pub acks. durability: has the gate. tell_abandoned: publishes the advisory about an
    abandoned batch, with stream, batch id and reason.

    acks: responses to publishes. republisher: stored messages that go out again.
    """

    def __init__(
        self,
        name: str,
        ack_prefix: bytes,
        durability: Durability,
        tell_abandoned: Callable[[str, str, str], None],
    ) -> None:
        self._name = name
        self._durability = durability
        self._tell_abandoned = tell_abandoned
        self._abandoned: list[tuple[str, str]] = []
        self._refused: list[FastBatch] = []
        self.acks = AckBatch(ack_prefix)
        self.republisher = Republisher(name.encode(), format_time)

    # --- collecting ----------------------------------------------------------------------------

    def abandoned(self, batch_id: bytes, reason: str) -> None:
        """Adds the advisory about an abandoned batch. reason: "timeout", "incomplete", "large" or
        "unsupported"."""
        self._abandoned.append((batch_id.decode("utf-8", "replace"), reason))

    def refused(self, batch: FastBatch) -> None:
        """Notes that the responses have the one rejection of a message behind the end of a batch: further
        ones are silent until these responses leave."""
        batch.refuse(True)
        self._refused.append(batch)

    # --- releasing -----------------------------------------------------------------------------

    def release(self, index: SubscriptionIndex, times: DurationHistogram | None = None) -> None:
        """Sends republished messages, then responses, then advisories, if the gate is open. Call only after
        the write. times: receives how long the responses took.

        While roll-ups are unfinished, everything waits: no read after an ack returns a replaced message.
        After a failed write, only the errors leave; what was applied goes out again when it is written.
        """
        if not self._durability.may_acknowledge:
            return
        if self.republisher.count and self._durability.failure is None:
            self.republisher.route(index)
        if self.acks.count:
            self.acks.route(index, times)
        if self._refused:
            self._forget_refused()
        if self._abandoned:
            abandoned, self._abandoned = self._abandoned, []
            for batch_id, reason in abandoned:
                self._tell_abandoned(self._name, batch_id, reason)

    def leave(self, index: SubscriptionIndex) -> None:
        """Sends the responses, and drops the rest, because this replica leads no more: what was committed of
        its own proposals is answered by no other server. A majority has it: no local write is needed."""
        if self.acks.count and not self._durability.is_rolling_up:
            self.acks.route(index)
        self.drop()

    def drop(self) -> None:
        """Drops everything: this replica follows, and the owner of the stream sends it."""
        self.republisher.clear()
        self.acks.clear()
        self._forget_refused()
        self._abandoned.clear()

    def take_replies(self) -> list[bytes]:
        """Removes the responses that wait; returns their reply subjects, which will get others."""
        replies = [reply for reply, _ in self.acks.items()]
        self.acks.clear()
        return replies

    def _forget_refused(self) -> None:
        for batch in self._refused:
            batch.refuse(False)
        self._refused.clear()
