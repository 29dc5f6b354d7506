"""Errors that servers send to a command's connections (-ERR): they make the command fail.

A publish or a subscription without permission has no answer: the server sends the error at some time, and the
client goes on. A script must see it in the exit status.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import AuthorizationError, PermissionsError, ServerRefusedError

TEXTS_MAX = 20
"""So many different errors are shown; a loop of refused publishes on many subjects has one each."""

_REFUSALS = (PermissionsError, ServerRefusedError, AuthorizationError)


class ServerRefusals:
    """What `on_error` of the clients gets. show: prints a text; each text is shown once.

    first: the first error that a server sent, None if there is none.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._shown: set[str] = set()
        self.first: Exception | None = None

    def heard(self, error: Exception) -> None:
        """An asynchronous error of a client. Slow consumers and errors of callbacks are shown only."""
        if self.first is None and isinstance(error, _REFUSALS):
            self.first = error
        text = str(error)
        if text not in self._shown and len(self._shown) < TEXTS_MAX:
            self._shown.add(text)
            self._show(text)

    def was_shown(self, error: Exception) -> bool:
        """Whether the text of an error was shown already."""
        return str(error) in self._shown

    def raise_first(self) -> None:
        """Raise the first error that a server sent, if there is one."""
        if self.first is not None:
            raise self.first
