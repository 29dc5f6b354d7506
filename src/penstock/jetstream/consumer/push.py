"""Push delivery: interest, idle heartbeats, flow control.

A push consumer delivers while its deliver subject has subscribers. Without them it stops, and is removed
after its inactive threshold. It looks up the interest before deliveries and heartbeats, and after each change
of matching subscriptions (`interest`).

Flow control: after half the window is delivered, a flow control request is sent; while more than a window is
unanswered, delivery stalls. The window starts small and doubles with every response, up to WINDOW_MAX.

With ack policy flow_control, the responses are the acks. So a request is also sent when max_ack_pending stops
the delivery, and with each heartbeat while messages are pending: else the last messages of a stream would
never be acked.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.jetstream.consumer.consumer_effects import ConsumerEffects
from penstock.jetstream.consumer.pull_requests import heartbeat_block
from penstock.kernels.consumer.endpoints import Target
from penstock.kernels.consumer.pump import Pump
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import publish
from penstock.protocol.status import FLOW_CONTROL

WINDOW_MAX = 32 * 1024 * 1024
WINDOW_MIN = WINDOW_MAX // 16
FLOW_PREFIX = "$JS.FC."
FLOW_ID_LEN = 4


class PushDelivery:
    """The delivery side of a push consumer.

    effects: gets heartbeats. group: deliver group; b"" for none. heartbeat_ns: 0 for none. flow_prefix:
    `$JS.FC.<stream>.<consumer>.`, b"" without flow control. acks_by_flow: flow control responses are the
    acks. new_id: returns an unused id; its last characters name flow control requests.
    """

    def __init__(
        self,
        index: SubscriptionIndex,
        effects: ConsumerEffects,
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
        self._effects = effects
        self._pump = pump
        self._new_id = new_id
        self._group = group
        self._heartbeat_ns = heartbeat_ns
        self._flow_prefix = flow_prefix
        self._flow_id = b""
        self.acks_by_flow = acks_by_flow
        self.target = Target(subject)
        self.targets: list[Target] = []
        self.idle_since = now  # when interest ended
        self._heartbeat_due = now + heartbeat_ns
        if flow_prefix:
            pump.control_flow(WINDOW_MIN, self._request_flow)
        self.look(now)

    @property
    def is_active(self) -> bool:
        """Whether the last look() found interest."""
        return bool(self.targets)

    def move_to(self, subject: bytes, group: bytes, now: int) -> None:
        """Changes the deliver subject and the deliver group."""
        self._group = group
        self.target = Target(subject)
        self.targets.clear()
        self.look(now)

    def look(self, now: int) -> bool:
        """Looks up the interest. True when it has just begun."""
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
        """Whether the deliver subject has a subscriber in the deliver group, or outside of all groups without
        one.

        As on the official server, other subscribers do not start the delivery, but receive its messages.
        """
        match = self._index.match(self.target.subject)
        if not (match.plain or match.groups or match.elsewhere):
            return self.target.is_wanted(self._index)  # the subject may be imported by another account
        if self._group:
            return self._group in match.elsewhere or any(
                members[0].queue == self._group for members in match.groups
            )
        return bool(match.plain) or b"" in match.elsewhere

    def lost(self, now: int) -> None:
        """The pump found no subscriber."""
        self.targets.clear()
        self.idle_since = self.idle_since or now

    def after_delivery(self, now: int) -> None:
        """Restarts the heartbeat interval after a delivery."""
        self._heartbeat_due = now + self._heartbeat_ns

    def next_deadline(self) -> int | None:
        """When on_time is due, or None."""
        return self._heartbeat_due if self.targets and self._heartbeat_ns else None

    def on_time(self, now: int, last_consumer: int, last_stream: int) -> None:
        """Sends an idle heartbeat when one is due and the interest persists."""
        if not (self._heartbeat_ns and self.targets and self._heartbeat_due <= now):
            return
        self.look(now)
        if self.targets:
            block = heartbeat_block(last_consumer, last_stream, self._flow_id)
            self._effects.status(self.target.subject, block)
            if self.acks_by_flow and self._pump.state.num_pending:
                self._ask_for_acks()
        self._heartbeat_due = now + self._heartbeat_ns

    # --- flow control ------------------------------------------------------------------------------

    def on_flow_reply(self, subject: bytes) -> bool:
        """Handles a flow control response. True when it answers the current request."""
        if not self._flow_id or subject != self._flow_id:
            return False
        self._pump.flow_answered(WINDOW_MAX)
        self._flow_id = b""
        return True

    def acks_full(self) -> None:
        """Handles a delivery that stopped at max_ack_pending."""
        if self.acks_by_flow:
            self._ask_for_acks()

    def _ask_for_acks(self) -> None:
        """Adds a request, behind the messages and the heartbeat that precede it."""
        if not self._flow_id:
            self._flow_id = self._new_flow_id()
            self._pump.flow_requested()
            self._effects.flow_request(self.target.subject, self._flow_id, FLOW_CONTROL.block())

    def _request_flow(self) -> None:
        """Sends a request among the messages of a run: its place is what the response accounts for."""
        self._flow_id = self._new_flow_id()
        block = FLOW_CONTROL.block()
        if not self._pump.rotation.hold_message(self.target, self._flow_id, block):
            publish(self._index, self.target.subject, self._flow_id, block, b"")

    def _new_flow_id(self) -> bytes:
        return self._flow_prefix + self._new_id()[-FLOW_ID_LEN:].encode()

    def _forget_flow(self) -> None:
        """Resets flow control: a new subscriber owes no responses."""
        self._pump.reset_flow()
        self._flow_id = b""
