"""NATS with JetStream for the Python world: server, client, Spark source.

    import penstock

    async with penstock.Server(jetstream=True) as server:
        nc = await penstock.connect(server.url)

Importing the package loads neither the server nor the client; using one of these names does.
"""

from __future__ import annotations

from penstock import errors

TYPE_CHECKING = False  # as typing has it, which a server does not import before its port listens
if TYPE_CHECKING:
    from typing import Any

    from penstock.client import connect
    from penstock.server import Server

__version__ = "0.1.0"

__all__ = ["Server", "__version__", "connect", "errors"]


def __getattr__(name: str) -> Any:
    if name == "Server":
        from penstock.server import Server

        return Server
    if name == "connect":
        from penstock.client import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
