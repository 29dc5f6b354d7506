"""Priority groups of pull consumers (ADR-42): which waiting requests get messages.

- overflow: a request waits until `min_pending` messages are pending, or `min_ack_pending` unacked
- pinned_client: one client gets all messages. The first one served gets a pin, sent with every message
  (`Nats-Pin-Id`) and named in its further requests; the others are on standby
- prioritized: requests of the lowest priority value first, in turn among equals

The pump implements the order (kernels/consumer/pump.pyx). This module checks requests, and starts and ends
pins: a client stays pinned until `priority_timeout` passes without a request from it, or until an
administrator unpins it. A pin is a command: a standby that takes over holds the one it knows. It is not
stored: after a restart, the first client served gets a new one.

Sources: ADR-42; texts and order of checks are those of the official server.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.jetstream.consumer.consumer_advisories import ConsumerAdvisories
from penstock.jetstream.consumer.pull_requests import PullRefusedError
from penstock.jetstream.consumer.standby import Pin
from penstock.kernels.consumer.endpoints import Rotation
from penstock.protocol.api import ApiConsumerConfig, PriorityGroupState, PriorityPolicy, PullRequest
from penstock.protocol.durations import format_time_or_zero
from penstock.protocol.status import (
    INVALID_PRIORITY_GROUP,
    NOT_OVERFLOW_CONSUMER,
    NOT_PINNED_CONSUMER,
    PIN_ID_MISMATCH,
    PRIORITY_GROUP_MISSING,
    PRIORITY_OUT_OF_RANGE,
)

PRIORITY_MAX = 9


def check_group(request: PullRequest, config: ApiConsumerConfig) -> None:
    """Raises PullRefusedError for a request that does not match the consumer's priority policy."""
    policy = config.priority_policy
    if (request.min_pending or request.min_ack_pending) and policy is not PriorityPolicy.OVERFLOW:
        raise PullRefusedError(NOT_OVERFLOW_CONSUMER)
    if request.id and policy is not PriorityPolicy.PINNED_CLIENT:
        raise PullRefusedError(NOT_PINNED_CONSUMER)
    if not 0 <= request.priority <= PRIORITY_MAX:
        raise PullRefusedError(PRIORITY_OUT_OF_RANGE)
    if policy is PriorityPolicy.NONE:
        return
    if not request.group:
        raise PullRefusedError(PRIORITY_GROUP_MISSING)
    if request.group not in config.priority_groups:
        raise PullRefusedError(INVALID_PRIORITY_GROUP)


class Pinning:
    """The pin of a consumer with priority policy pinned_client; no-op for other policies.

    held: the pin to start with, and since when (ns); its client has the whole timeout to come here. now: ns.
    rotation: asks for the pin of the client that is served next. new_id: returns an unused id. account: the
    name for the advisories. activate: lets the consumer deliver in this tick. record: called with each pin
    (empty: it ended) and the time in ns; returns the time of the command that records it.

    due: when (ns) the pin expires; None without a pin.
    """

    def __init__(
        self,
        config: ApiConsumerConfig,
        rotation: Rotation,
        advisories: ConsumerAdvisories,
        *,
        new_id: Callable[[], str],
        account: str,
        activate: Callable[[], None],
        record: Callable[[bytes, int], int],
        held: Pin,
        now: int,
    ) -> None:
        self._config = config
        self._rotation = rotation
        self._advisories = advisories
        self._new_id = new_id
        self._account = account
        self._activate = activate
        self._record = record
        self.pin = b""
        self.pinned_at = 0  # ns; 0 without a pin
        self.due: int | None = None
        self._now = 0  # time of the current delivery
        self.configure(config)
        if held.id and config.priority_policy is PriorityPolicy.PINNED_CLIENT:
            self.pin, self.pinned_at = held.id.encode(), held.since
            self.due = now + config.priority_timeout
            rotation.hold_pin(self.pin)

    def configure(self, config: ApiConsumerConfig) -> None:
        """Follows a change of the consumer's configuration."""
        self._config = config
        is_pinned = config.priority_policy is PriorityPolicy.PINNED_CLIENT
        self._rotation.pin_clients(self._claim if is_pinned else None)
        if not is_pinned:
            self._clear()

    def delivers_at(self, now: int) -> None:
        """Sets the time (ns) of pins that the next deliveries assign."""
        self._now = now

    def on_request(self, request: PullRequest, now: int) -> None:
        """Handles a (checked) request: one with the current pin extends it. Raises PullRefusedError (423) for
        another pin."""
        if not self.pin or not request.id:
            return
        if request.id.encode() != self.pin:
            raise PullRefusedError(PIN_ID_MISMATCH)
        self.due = now + self._config.priority_timeout

    def _claim(self) -> bytes:
        """Makes the pin of the client that the pump serves next."""
        self.pin = self._new_id().encode()
        self.pinned_at = self._record(self.pin, self._now)
        self.due = self._now + self._config.priority_timeout
        self._advise("pinned", self._config.priority_groups[0], pinned_id=self.pin.decode())
        return self.pin

    def unpin(self, group: str, reason: str, now: int) -> None:
        """Ends the pin; the next client served gets a new one. reason: "admin" or "timeout"."""
        if self.pin:
            self._record(b"", now)
        self._clear()
        self._advise("unpinned", group, reason=reason)
        self._activate()

    def _advise(self, event: str, group: str, **fields: str) -> None:
        # These two are the only consumer advisories in which the official server names the account.
        fields["account"] = self._account
        self._advisories.publish(event.upper(), f"consumer_group_{event}", group=group, **fields)

    def _clear(self) -> None:
        self.pin = b""
        self.pinned_at = 0
        self.due = None
        self._rotation.unpin()

    def on_time(self, now: int) -> None:
        """Ends an expired pin."""
        if self.due is not None and self.due <= now:
            self.unpin(self._config.priority_groups[0], "timeout", now)

    def state(self) -> list[PriorityGroupState]:
        """The groups as info shows them: only the first, as on the official server."""
        groups = self._config.priority_groups
        if not groups:
            return []
        at = format_time_or_zero(self.pinned_at)
        return [PriorityGroupState(group=groups[0], pinned_client_id=self.pin.decode(), pinned_ts=at)]
