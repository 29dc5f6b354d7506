"""Sessions of the web page, by the token in their cookie. No IO; times are arguments, in seconds.

The table keeps digests of tokens, so that looking one up takes no time that depends on a stored secret.
Bounds: SESSIONS_MAX in all, and USER_SESSIONS_MAX of one user, whose next login ends his least recently used
one. No login ends the session of another user: at SESSIONS_MAX a login is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.errors import ServerError

V = TypeVar("V")

SESSIONS_MAX = 64
USER_SESSIONS_MAX = 8
IDLE_S = 30 * 60.0
LIFE_S = 12 * 3600.0


class TooManySessionsError(ServerError):
    """SESSIONS_MAX sessions of other users are open."""


@dataclass(slots=True, eq=False)
class WebSession(Generic[V]):
    """One login. csrf: the token that changing requests must carry. visitor: what the session owns."""

    user: str
    csrf: str
    visitor: V
    began_s: float
    used_s: float

    def has_expired(self, now_s: float) -> bool:
        return now_s - self.used_s > IDLE_S or now_s - self.began_s > LIFE_S

    def proves(self, csrf: str) -> bool:
        """Whether a request carries the session's CSRF token."""
        return hmac.compare_digest(self.csrf.encode(), csrf.encode("utf-8", "replace"))


class SessionTable(Generic[V]):
    """The open sessions. What leaves the table is returned, for the caller to close."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, WebSession[V]] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def check_room(self, user: str) -> None:
        """Raises TooManySessionsError if a login of this user would be refused."""
        if len(self._sessions) >= SESSIONS_MAX and not self._of(user):
            raise TooManySessionsError(
                f"{SESSIONS_MAX} people are logged in, the most this page serves; try again later"
            )

    def add(self, token: str, csrf: str, user: str, visitor: V, now_s: float) -> list[V]:
        """Opens a session; returns the visitors of those it replaces. Raises TooManySessionsError."""
        ended = self.expire(now_s)
        self.check_room(user)
        own = self._of(user)
        if len(own) >= USER_SESSIONS_MAX or len(self._sessions) >= SESSIONS_MAX:
            ended.append(self._sessions.pop(own[0]).visitor)
        self._sessions[_digest(token)] = WebSession(user, csrf, visitor, now_s, now_s)
        return ended

    def find(self, token: str, now_s: float) -> WebSession[V] | None:
        """The session of a token, which is now in use; None if there is none or it has expired."""
        key = _digest(token)
        session = self._sessions.get(key)
        if session is None or session.has_expired(now_s):
            return None
        session.used_s = now_s
        self._sessions[key] = self._sessions.pop(key)
        return session

    def end(self, token: str) -> list[V]:
        """Ends the session of a token; returns its visitor."""
        session = self._sessions.pop(_digest(token), None)
        return [] if session is None else [session.visitor]

    def expire(self, now_s: float) -> list[V]:
        """Ends what has expired; returns the visitors."""
        gone = [key for key, session in self._sessions.items() if session.has_expired(now_s)]
        return [self._sessions.pop(key).visitor for key in gone]

    def leave_out(self, is_over: Callable[[V], bool]) -> list[V]:
        """Ends sessions by their visitors; returns those."""
        gone = [key for key, session in self._sessions.items() if is_over(session.visitor)]
        return [self._sessions.pop(key).visitor for key in gone]

    def clear(self) -> list[V]:
        """Ends all sessions; returns the visitors."""
        ended = [session.visitor for session in self._sessions.values()]
        self._sessions.clear()
        return ended

    def _of(self, user: str) -> list[bytes]:
        return [key for key, session in self._sessions.items() if session.user == user]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
