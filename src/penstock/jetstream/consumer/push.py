"""Delivery to a subject: interest, idle heartbeats, flow control.

A push consumer delivers while somebody listens on its deliver subject; without listeners it stands
still, and is removed when that has lasted for its inactive threshold. Interest is looked up when it delivers
or beats, and after each subscription to its subject that comes or goes (`interest`).

Flow control: once half the window is delivered, the receiver is asked for an answer; while more than a
window is unanswered, delivery stalls. The window begins small and doubles with every answer, up to
WINDOW_MAX.

With ack policy flow_control those answers are the acks. So they are asked for as well when max_ack_pending
stops the delivery, and with a heartbeat while something is pending: else the last messages of a stream would
never be acked.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.jetstream.consumer.pull_requests import heartbeat_block
from penstock.kernels.consumer.delivery_targets import Target
from penstock.kernels.consumer.pump import Pump
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import publish
from penstock.protocol.status import FLOW_CONTROL

WINDOW_MAX = 32 * 1024 * 1024
WINDOW_MIN = WINDOW_MAX // 16
FLOW_PREFIX = "$JS.FC."
FLOW_ID_LEN = 4


class PushDelivery:
    """Where a push consumer delivers to.

    group: who listens must be a member of; b"" for none.
    heartbeat_ns: 0 for none. flow_prefix: `$JS.FC.<stream>.<consumer>.`, b"" without flow control.
    acks_by_flow: the answers are acks.
    new_id: an unused id; its last characters name flow control requests.
    """

    def __init__(
        self,
        index: SubscriptionIndex,
        pump: Pump,
        subject: bytes,
        *,
        group: bytes,
        heartbeat_ns: int,
        flow_prefix: bytes,
        acks_by_flow: bool,
        new_id: Callable[[], str],
        now: int,
    ) -> None:
        self._index = index
        self._pump = pump
        self._new_id = new_id
        self._group = group
        self._heartbeat_ns = heartbeat_ns
        self._flow_prefix = flow_prefix
        self._flow_id = b""
        self.acks_by_flow = acks_by_flow
        self.target = Target(subject)
        self.targets: list[Target] = []
        self.idle_since = now  # when interest was lost
        self._heartbeat_due = now + heartbeat_ns
        if flow_prefix:
            pump.flow_window = WINDOW_MIN
            pump.on_flow = self._request_flow
        self.look(now)

    @property
    def is_active(self) -> bool:
        """Did somebody listen at the last look?"""
        return bool(self.targets)

    def move_to(self, subject: bytes, group: bytes, now: int) -> None:
        """Delivers to another subject, or another group, from now on."""
        self._group = group
        self.target = Target(subject)
        self.targets.clear()
        self.look(now)

    def look(self, now: int) -> bool:
        """Looks whether somebody listens: True when that has just begun."""
        wanted = self._is_bound()
        began = wanted and not self.targets
        if began:
            self.targets.append(self.target)
            self._forget_flow()
            self._heartbeat_due = now + self._heartbeat_ns
        elif not wanted and self.targets:
            self.targets.clear()
        if not wanted and self.idle_since == 0:
            self.idle_since = now
        elif wanted:
            self.idle_since = 0
        return began

    def _is_bound(self) -> bool:
        """Does somebody listen as it wants it: as a member of its deliver group, or else in no group at all?

        Others on its subject don't make it deliver, as with the official server, but get what it delivers.
        """
        match = self._index.match(self.target.subject)
        if not (match.plain or match.groups):
            return self.target.is_wanted(self._index)  # its subject may be one across accounts
        if self._group:
            return any(members[0].queue == self._group for members in match.groups)
        return bool(match.plain)

    def lost(self, now: int) -> None:
        """The pump found nobody."""
        self.targets.clear()
        self.idle_since = self.idle_since or now

    def after_delivery(self, now: int) -> None:
        """Messages were delivered: the next heartbeat is due a whole interval later."""
        self._heartbeat_due = now + self._heartbeat_ns

    def next_deadline(self) -> int | None:
        """When on_time has something to do."""
        return self._heartbeat_due if self.targets and self._heartbeat_ns else None

    def on_time(self, now: int, last_consumer: int, last_stream: int) -> None:
        """Sends an idle heartbeat when one is due, if somebody still listens."""
        if not (self._heartbeat_ns and self.targets and self._heartbeat_due <= now):
            return
        self.look(now)
        if self.targets:
            block = heartbeat_block(last_consumer, last_stream, self._flow_id)
            publish(self._index, self.target.subject, b"", block, b"")
            if self.acks_by_flow and self._pump.state.num_pending:
                self._ask_for_acks()
        self._heartbeat_due = now + self._heartbeat_ns

    # --- flow control ------------------------------------------------------------------------------

    def on_flow_reply(self, subject: bytes) -> bool:
        """An answer arrived on a flow control subject; True when it is the one waited for."""
        if not self._flow_id or subject != self._flow_id:
            return False
        self._answered()
        return True

    def acks_full(self) -> None:
        """max_ack_pending stopped the delivery."""
        if self.acks_by_flow:
            self._ask_for_acks()

    def _ask_for_acks(self) -> None:
        pump = self._pump
        if not self._flow_id:
            pump.flow_open = True
            pump.flow_size = pump.flow_bytes
            self._request_flow()

    def _request_flow(self) -> None:
        self._flow_id = self._flow_prefix + self._new_id()[-FLOW_ID_LEN:].encode()
        publish(self._index, self.target.subject, self._flow_id, FLOW_CONTROL.block(), b"")

    def _forget_flow(self) -> None:
        """A new listener owes no answers."""
        pump = self._pump
        pump.flow_bytes = pump.flow_size = 0
        pump.flow_open = False
        self._flow_id = b""

    def _answered(self) -> None:
        pump = self._pump
        pump.flow_window = min(pump.flow_window * 2, WINDOW_MAX)
        pump.flow_bytes = max(pump.flow_bytes - pump.flow_size, 0)
        pump.flow_size = 0
        pump.flow_open = False
        self._flow_id = b""
