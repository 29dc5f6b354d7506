"""The server: options, sessions, the end-of-tick order, lifecycle, monitoring. Wires the floors below it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.server.server import Server

__all__ = ["Server"]


def __getattr__(name: str) -> Any:
    # Loaded when used: the command line imports options and flags from here before it knows what to start.
    if name == "Server":
        from penstock.extras import need

        need("penstock.Server", "server")
        from penstock.server.server import Server

        return Server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
