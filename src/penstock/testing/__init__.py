"""Test support: a server in its own thread, and pytest fixtures.

with penstock.testing.server(jetstream=True) as server:
    subprocess.run(["nats", "-s", server.url, "pub", "hello", "world"])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.embedded import EmbeddedServer, server

__all__ = ["EmbeddedServer", "server"]


def __getattr__(name: str) -> Any:
    # Lazy: pytest imports this package in every run of an environment with penstock.
    if name in __all__:
        from penstock.extras import need

        need("penstock.testing", "server")
        from penstock.testing import embedded

        return getattr(embedded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
