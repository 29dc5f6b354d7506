"""Counters of a server, and records of closed sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from penstock.kernels.wire.dispatch import ClientSink
from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from penstock.server.session import Session


class TrafficCounters(NamedTuple):
    """Messages and bytes, received and sent."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int

    @staticmethod
    def of(sink: ClientSink) -> TrafficCounters:
        return TrafficCounters(sink.in_msgs, sink.in_bytes, sink.out_msgs, sink.out_bytes)


class ServerCounters(Struct):
    """Totals since the start. Traffic covers closed sessions; open sessions count their own."""

    connections: int = 0
    slow_consumers: int = 0
    stale_connections: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0
    by_reason: dict[CloseReason, int] = field(default_factory=dict)  # closed connections, not by account
    by_account: dict[str, ServerCounters] = field(default_factory=dict)

    def count_connection(self) -> None:
        """Counts an accepted connection."""
        self.connections += 1

    def count_closed(self, reason: CloseReason) -> None:
        """Counts a closed connection, also one that was refused before it became a session."""
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1

    def count_stale(self) -> None:
        """Counts a connection that is closed because it does not answer pings."""
        self.stale_connections += 1

    def of_account(self, name: str) -> ServerCounters:
        """The totals of one account's closed sessions."""
        return self.by_account.get(name) or ServerCounters()

    def add_session(self, session: Session, reason: CloseReason) -> None:
        """Adds the traffic of a closed session to the server's and its account's totals."""
        for totals in self._with_account(session):
            totals._add(session.sink, slow=reason.is_slow_consumer)

    def count_slow(self, session: Session) -> None:
        """Counts a slow consumer that stays connected."""
        for totals in self._with_account(session):
            totals._add_slow()

    def _with_account(self, session: Session) -> list[ServerCounters]:
        if session.identity is None:
            return [self]
        return [self, self.by_account.setdefault(session.identity.account, ServerCounters())]

    def _add_slow(self) -> None:
        self.slow_consumers += 1

    def _add(self, sink: ClientSink, *, slow: bool) -> None:
        self.slow_consumers += slow
        self.in_msgs += sink.in_msgs
        self.in_bytes += sink.in_bytes
        self.out_msgs += sink.out_msgs
        self.out_bytes += sink.out_bytes


class ClosedSession(NamedTuple):
    """The record of a session for `connz?state=closed`."""

    cid: int
    peer: tuple[str, int]
    started_ns: int
    stopped_ns: int
    last_activity_ns: int
    reason: CloseReason
    rtt_ns: int
    traffic: TrafficCounters
    num_subscriptions: int
    name: str
    lang: str
    version: str
    user: str
    account: str
    kind: str
    proxy_key: str | None

    @staticmethod
    def of(session: Session, reason: CloseReason, now: int) -> ClosedSession:
        options, identity = session.options, session.identity
        return ClosedSession(
            cid=session.cid,
            peer=session.connection.peer,
            started_ns=session.started_ns,
            stopped_ns=now,
            last_activity_ns=session.last_activity_ns,
            reason=reason,
            rtt_ns=session.rtt_ns,
            traffic=TrafficCounters.of(session.sink),
            num_subscriptions=len(session.subscriptions),
            name=options.name,
            lang=options.lang,
            version=options.version,
            user=identity.user if identity is not None else "",
            account=identity.account if identity is not None else "",
            kind=session.connection.kind,
            proxy_key=session.proxy_key,
        )
