"""Enforces a user's permissions on one connection.

Publishes: the ingress asks and caches permitted subjects. Subscriptions: checked when they are created.
    Deliveries: checked by a guard on the sink, which exists only if a subscription needs it or replies are
    granted.

Invariant: a connection whose user has no permissions has no SessionPermissions, no publish check and no
    guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kernels.wire.dispatch import DeliveryGuard
from penstock.routing.permissions import Permissions, ResponseGrants

if TYPE_CHECKING:
    from penstock.kernels.wire.sinks import SinkSubscription
    from penstock.server.session import Session

REFUSED, ALLOWED, ALLOWED_ONCE = False, True, 2
"""Results for the ingress, which caches only ALLOWED."""


class SessionPermissions:
    """Binds permissions to a session.

    Args:
        session: its ingress and sink are restricted until `release()`.
        permissions: permissions of its user.
    """

    def __init__(self, session: Session, permissions: Permissions) -> None:
        self._session = session
        self._rules = permissions.rules
        self._grants: ResponseGrants | None = None
        self._filters = False
        session.ingress.restrict(self.check_publish if self._rules.restricts_publish else None)
        if permissions.responses is not None:
            self._grants = ResponseGrants(permissions.responses)
        self._guard()

    def release(self) -> None:
        """Removes all restrictions from the connection."""
        self._session.ingress.restrict(None)
        self._session.sink.restrict(None)

    def check_publish(self, subject: bytes) -> int:
        """Check for the ingress; sends -ERR if refused."""
        if self._rules.may_publish(subject):
            return ALLOWED
        session = self._session
        if self._grants is not None and self._grants.use(subject, session.context.clock()):
            return ALLOWED_ONCE
        name = _shown(subject)
        self._log(f'Publish Violation - User "{session.user}", Subject "{name}"')
        session.error(f'Permissions Violation for Publish to "{name}"')
        return REFUSED

    def check_subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> bool:
        """Whether the session may subscribe; sends -ERR if not. Installs the guard if deliveries need
        filtering."""
        if self._admit(subject, queue):
            return True
        self._refuse(subject, queue, sid)
        return False

    def keeps(self, subscription: SinkSubscription) -> bool:
        """Whether an existing subscription may stay under new permissions; sends -ERR if not."""
        if self._admit(subscription.subject, subscription.queue):
            return True
        sid = subscription.sid
        self._refuse(subscription.subject, subscription.queue, sid, f' (sid "{_shown(sid)}")')
        return False

    def _admit(self, subject: bytes, queue: bytes) -> bool:
        if not self._rules.may_subscribe(subject, queue):
            return False
        if not self._filters and self._rules.needs_filter(subject):
            self._filters = True
            self._guard()
        return True

    def _refuse(self, subject: bytes, queue: bytes, sid: bytes, what: str = "") -> None:
        session = self._session
        name = _shown(subject)
        group = f' using queue "{_shown(queue)}"' if queue else ""
        self._log(f'Subscription Violation - User "{session.user}", Subject "{name}", SID {_shown(sid)}')
        session.error(f'Permissions Violation for Subscription to "{name}"{group}{what}')

    def _guard(self) -> None:
        may_receive = self._rules.may_receive if self._filters else None
        on_reply = self._on_reply if self._grants is not None else None
        if may_receive is not None or on_reply is not None:
            self._session.sink.restrict(DeliveryGuard(may_receive, on_reply))

    def _on_reply(self, reply: bytes) -> None:
        assert self._grants is not None
        self._grants.grant(reply, self._session.context.clock())

    def _log(self, text: str) -> None:
        self._session.context.log.error(f"{self._session.name} - {text}")


def _shown(word: bytes) -> str:
    return word.decode("utf-8", "replace")
