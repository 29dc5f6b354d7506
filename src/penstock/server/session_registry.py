"""The connected clients of a server, and records of those that have left.

Sessions are also kept by account, so that a login checks only the sessions of its account.

Invariants: every session here has an open socket. A session is in one account's set from the time it has an
identity until it is closed.

Rejected: a counter of an account's sessions that are not closing. A session starts to close in many places
and ends in one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING

from penstock.server.monitoring.server_counters import ClosedSession, ServerCounters

if TYPE_CHECKING:
    from penstock.net.reasons import CloseReason
    from penstock.server.session import Session

CLOSED_SESSIONS_MAX = 10_000


class SessionRegistry(Mapping[int, "Session"]):
    """Sessions by connection number, oldest first.

    Args:
        closed_max: most records of closed sessions, 0 = CLOSED_SESSIONS_MAX.
    """

    def __init__(self, closed_max: int = 0) -> None:
        self._by_cid: dict[int, Session] = {}
        self._by_account: dict[str, set[Session]] = {}
        self._none_left = asyncio.Event()
        self.closed: deque[ClosedSession] = deque(maxlen=closed_max or CLOSED_SESSIONS_MAX)
        self.totals = ServerCounters()

    def __getitem__(self, cid: int) -> Session:
        return self._by_cid[cid]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_cid)

    def __len__(self) -> int:
        return len(self._by_cid)

    def values(self) -> ValuesView[Session]:
        return self._by_cid.values()  # without a lookup for each

    def add(self, session: Session) -> None:
        """Registers and counts a new session."""
        self._by_cid[session.cid] = session
        self.totals.count_connection()

    def remove(self, session: Session, reason: CloseReason, now: int) -> bool:
        """Records a session whose socket is closed. False when it was not registered."""
        self.totals.count_closed(reason)
        if self._by_cid.pop(session.cid, None) is None:
            return False
        self._leave(session)
        self.totals.add_session(session, reason)
        self.closed.append(ClosedSession.of(session, reason, now))
        if not self._by_cid:
            self._none_left.set()
        return True

    async def wait_empty(self) -> None:
        """Returns when the last session has been removed."""
        while self._by_cid:
            self._none_left.clear()
            await self._none_left.wait()

    # -- by account

    def move(self, session: Session, account: str) -> None:
        """Moves the session, which still has its previous identity, to this account."""
        self._leave(session)
        self._by_account.setdefault(account, set()).add(session)

    def _leave(self, session: Session) -> None:
        if session.identity is None:
            return
        inside = self._by_account[session.identity.account]
        inside.discard(session)
        if not inside:
            del self._by_account[session.identity.account]

    def is_full(self, account: str, limit: int, new_session: Session) -> bool:
        """Whether the account has `limit` sessions, not counting the new one and those that are closing."""
        inside = self._by_account.get(account, ())
        if len(inside) < limit:
            return False
        return limit <= sum(
            session is not new_session and session.connection.close_reason is None for session in inside
        )

    def of_account(self, account: str) -> list[Session]:
        """The sessions with an identity in this account, oldest first."""
        return sorted(self._by_account.get(account, ()), key=lambda session: session.cid)
