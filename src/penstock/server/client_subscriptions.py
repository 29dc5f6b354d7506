"""The subscriptions of one client: SUB and UNSUB, with their limits and permissions.

Invariant: this mapping holds exactly the session's subscriptions in its account's index.

As in the official server, a second SUB with the same sid is accepted and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING

from penstock.kernels.wire.sinks import SinkSubscription

if TYPE_CHECKING:
    from penstock.server.session import Session


class ClientSubscriptions(Mapping[bytes, SinkSubscription]):
    """Subscriptions by sid.

    Args:
        session: their client; this is its child.
    """

    __slots__ = ("_by_sid", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._by_sid: dict[bytes, SinkSubscription] = {}

    def __getitem__(self, sid: bytes) -> SinkSubscription:
        return self._by_sid[sid]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._by_sid)

    def __len__(self) -> int:
        return len(self._by_sid)

    def values(self) -> ValuesView[SinkSubscription]:
        return self._by_sid.values()  # without a lookup for each

    def on_sub(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        """SUB: subscribes, or sends -ERR."""
        session = self._session
        if session.traced:
            words = [part.decode("utf-8", "replace") for part in (subject, queue, sid) if part]
            session.trace(f"<<- [SUB {' '.join(words)}]")
        permissions = session.session_permissions
        if permissions is not None and not permissions.check_subscribe(subject, queue, sid):
            return
        context = session.context
        if 0 < context.options.max_sub_tokens <= subject.count(b"."):
            shown = subject.decode("utf-8", "replace")
            text = f"Subscription Violation Too Many Tokens - Subject {shown!r}"
            context.log.error(f"{session.name} - {text}")
            session.error(f'Permissions Violation for Subscription to "{shown}", too many tokens')
            return
        if sid in self._by_sid:
            session.ok()
            return
        limit = self._limit()
        if 0 <= limit <= len(self._by_sid):
            context.log.error(f"{session.name} - maximum subscriptions exceeded")
            session.error("maximum subscriptions exceeded")
            return
        try:
            self._add(subject, queue, sid)
        except ValueError:
            session.error("Invalid Subject")
            return
        session.ok()

    def _limit(self) -> int:
        """The lowest subscription limit of server, account and user; -1 = no limit."""
        session = self._session
        identity, least = session.identity, session.context.options.max_subscriptions or -1
        if identity is not None:
            limit = identity.max_subscriptions
            if limit >= 0 and not 0 <= least <= limit:
                least = limit
            own = session.ports.accounts.options_of(identity.account)
            if own is not None and own.max_subscriptions >= 0 and not 0 <= least <= own.max_subscriptions:
                least = own.max_subscriptions
        return least

    def _add(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        """Raises ValueError for an invalid filter."""
        session = self._session
        subscription = SinkSubscription(session.sink, subject, queue, sid)
        assert session.ingress.index is not None  # set when the session got its identity
        session.ingress.index.insert(subscription)
        self._by_sid[sid] = subscription

    def on_unsub(self, sid: bytes, max_msgs: int) -> None:
        """UNSUB: ends a subscription, now or after `max_msgs` messages in all; 0 = now."""
        session = self._session
        if session.traced:
            words = sid.decode("utf-8", "replace") + (f" {max_msgs}" if max_msgs else "")
            session.trace(f"<<- [UNSUB {words}]")
        subscription = self._by_sid.get(sid)
        if subscription is not None:
            if max_msgs > subscription.delivered:
                subscription.close_after(max_msgs)
            else:
                self.remove(subscription)
        session.ok()

    def completed(self, subscription: SinkSubscription) -> None:
        """A subscription has received its maximum (UNSUB max)."""
        if self._by_sid.get(subscription.sid) is subscription:
            self.remove(subscription)

    def remove(self, subscription: SinkSubscription) -> None:
        """Ends one subscription."""
        session = self._session
        if session.traced:
            session.trace(f"<-> [DELSUB {subscription.sid.decode('utf-8', 'replace')}]")
        subscription.close()
        del self._by_sid[subscription.sid]
        if session.ingress.index is not None:
            session.ingress.index.remove(subscription)

    def drop_all(self) -> None:
        """Ends all subscriptions."""
        for subscription in tuple(self._by_sid.values()):
            self.remove(subscription)
