"""What a consumer causes outside of its stream besides deliveries: statuses, heartbeats, confirmations of
acks, dead letters, advisories.

Applying acks, requests, time and deliveries collects them; nothing leaves. The engine, which owns the
consumer, releases them once in each tick, after the write and after a delivery. A confirmation leaves only
after the ack state that it confirms is written. The others promise nothing that a crash can revoke, and leave
also while writes fail.

A replica that follows has no effects: standby.py has a consumer's state alone, and what its journal entries
led to has left at the owner. An owner that stops drops the confirmations that are not written.

Not collected: messages, and the flow control requests among them, whose place is what they measure. The pump
writes them into the receivers' buffers, without an object per message. Nor are timers:
`ConsumerReplica.next_deadline` follows from the state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.jetstream.advisories import Advisories
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import publish


class OutgoingMessage(NamedTuple):
    """unheard: called when it found no subscriber."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes
    unheard: Callable[[], None] | None


class OutgoingEvent(NamedTuple):
    """An advisory, or a metric."""

    suffix: str
    kind: str
    fields: dict[str, object]
    is_metric: bool


class ConsumerEffects:
    """The effects of one consumer that wait to be released.

    index: where messages are published. advisories: publishes events.

    waiting: what leaves with the next release, in its order. unwritten: subjects of confirmations that wait
    for a write.
    """

    def __init__(self, index: SubscriptionIndex, advisories: Advisories) -> None:
        self._index = index
        self._advisories = advisories
        self._send_later: Callable[[Callable[[], object]], object] | None = None
        self.unwritten: list[bytes] = []
        self.waiting: list[OutgoingMessage | OutgoingEvent] = []

    # --- collecting ----------------------------------------------------------------------------

    def status(self, subject: bytes, block: bytes) -> None:
        """Adds a status message, or a heartbeat."""
        self.waiting.append(OutgoingMessage(subject, b"", block, b"", None))

    def dead_letter(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, unheard: Callable[[], None]
    ) -> None:
        """Adds a dead letter. unheard: called when it found no stream."""
        self.waiting.append(OutgoingMessage(subject, reply, header, payload, unheard))

    def flow_request(self, subject: bytes, reply: bytes, block: bytes) -> None:
        """Adds a flow control request that is not sent among messages."""
        self.waiting.append(OutgoingMessage(subject, reply, block, b"", None))

    def confirmation(self, subject: bytes) -> None:
        """Adds the confirmation of an ack, which waits for written()."""
        self.unwritten.append(subject)

    def advisory(self, suffix: str, kind: str, fields: dict[str, object]) -> None:
        """Adds an advisory, if it has a subscriber."""
        if self._advisories.wanted(suffix):
            self.waiting.append(OutgoingEvent(suffix, kind, fields, is_metric=False))

    def metric(self, suffix: str, kind: str, fields: dict[str, object]) -> None:
        """Adds a metric."""
        self.waiting.append(OutgoingEvent(suffix, kind, fields, is_metric=True))

    def is_metric_wanted(self, suffix: str) -> bool:
        """Whether a metric has a subscriber."""
        return self._advisories.metric_wanted(suffix)

    # --- releasing -----------------------------------------------------------------------------

    def written(self) -> None:
        """Lets the confirmations leave: the acks are written (with sync_always, synced)."""
        self.confirm(self.take_unwritten())

    def take_unwritten(self) -> list[bytes]:
        """Removes and returns the subjects of confirmations, for confirm()."""
        taken, self.unwritten = self.unwritten, []
        return taken

    def confirm(self, subjects: list[bytes]) -> None:
        """Lets confirmations leave: the group of the stream has committed their acks."""
        self.waiting += [OutgoingMessage(subject, b"", b"", b"", None) for subject in subjects]

    def send_by(self, send_later: Callable[[Callable[[], object]], object]) -> None:
        """Lets what is released leave by a call of `send_later`, which has what must leave before it."""
        self._send_later = send_later

    def release(self) -> None:
        """Sends what waits. What that leads to is collected for the next release."""
        waiting, self.waiting = self.waiting, []
        if self._send_later is None:
            self._send(waiting)
        elif waiting:
            self._send_later(partial(self._send, waiting))

    def _send(self, waiting: list[OutgoingMessage | OutgoingEvent]) -> None:
        for one in waiting:
            if isinstance(one, OutgoingEvent):
                send = self._advisories.metric if one.is_metric else self._advisories.publish
                send(one.suffix, one.kind, one.fields)
            elif not publish(self._index, *one[:4]) and one.unheard is not None:
                one.unheard()

    def drop_unwritten(self) -> None:
        """Drops the confirmations that wait for a write: another owner, or a restart, may not know the
        acks."""
        self.unwritten.clear()
