"""Which sessions are in which account, so that a login asks about its own account's and no others.

Invariant: a session is in one account's set from the moment it gets an identity until it is gone.

Rejected: counting those that are not yet closing (a session begins to close in many places and ends in one).
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
        """The session, with its identity of before, is in this account from now on."""
        self.leave(session)
        self._of.setdefault(account, set()).add(session)

    def leave(self, session: Session) -> None:
        """The session is in no account any more."""
        if session.identity is None:
            return
        inside = self._of[session.identity.account]
        inside.discard(session)
        if not inside:
            del self._of[session.identity.account]

    def is_full(self, account: str, limit: int, new_session: Session) -> bool:
        """Are there `limit` sessions, without the newcomer and without those that are closing?"""
        inside = self._of.get(account, ())
        if len(inside) < limit:
            return False
        return limit <= sum(
            session is not new_session and session.connection.close_reason is None for session in inside
        )
