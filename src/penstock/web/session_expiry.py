"""When expired sessions of the web page end, and their connections with them.

A request finds out that its own session has expired. A session without further requests needs a timer: it
looks every CHECK_S while there are sessions, so that a connection outlives its session by CHECK_S at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

CHECK_S = 15.0


class Cancellable(Protocol):
    """A timer of an event loop."""

    def cancel(self) -> None:
        """Don't call it."""


class SessionExpiry:
    """Calls `expire` every CHECK_S while it returns that sessions are left.

    call_later: of the event loop. expire: ends what has expired; whether any session is left.
    """

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], Cancellable], expire: Callable[[], bool]
    ) -> None:
        self._call_later = call_later
        self._expire = expire
        self._timer: Cancellable | None = None

    def watch(self) -> None:
        """There is a session."""
        if self._timer is None:
            self._timer = self._call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._expire():
            self.watch()

    def stop(self) -> None:
        """The page ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
