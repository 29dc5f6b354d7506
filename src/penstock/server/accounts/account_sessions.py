"""Sessions by account, so that a login checks only the sessions of its account.

Invariant: a session is in one account's set from the time it has an identity until it is closed.

Rejected: a counter of the sessions that are not closing. A session starts to close in many places and ends in
    one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.session import Session


class AccountSessions:
    """The sessions of each account."""

    def __init__(self) -> None:
        self._of: dict[str, set[Session]] = {}

    def move(self, session: Session, account: str) -> None:
        """Moves the session, which still has its previous identity, to this account."""
        self.leave(session)
        self._of.setdefault(account, set()).add(session)

    def leave(self, session: Session) -> None:
        """Removes the session from its account."""
        if session.identity is None:
            return
        inside = self._of[session.identity.account]
        inside.discard(session)
        if not inside:
            del self._of[session.identity.account]

    def is_full(self, account: str, limit: int, new_session: Session) -> bool:
        """Whether the account has `limit` sessions, not counting the new one and those that are closing."""
        inside = self._of.get(account, ())
        if len(inside) < limit:
            return False
        return limit <= sum(
            session is not new_session and session.connection.close_reason is None for session in inside
        )
