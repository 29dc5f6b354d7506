"""Options of the web page: the block `web`."""

from __future__ import annotations

from msgspec import Struct

WEB_HOST = "127.0.0.1"
WEB_PORT = 8222
"""Where monitoring listens for the web page when no option says it: reachable from this machine only."""


class WebOptions(Struct, frozen=True, kw_only=True):
    """The block `web`. `web: true` is the block with its defaults."""

    allow_writes: bool = False
    """Let the page publish, replay dead letters and cancel schedules, as far as the permissions of the user
    go. Default off. `allow_writes`."""
    allow_anonymous: bool = False
    """Where clients need no credentials, show the page to peers on other machines too. Default off: only to
    those on this machine. `allow_anonymous`."""
