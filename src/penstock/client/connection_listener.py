"""What parts of the client are told about the connection: consumers, fetches, publishers."""


class ConnectionListener:
    """Base of whatever has something under way on a connection. Methods are called from the event loop and
    must neither block nor raise; those that do not matter to a listener do nothing."""

    __slots__ = ()

    def on_disconnected(self, error: Exception) -> None:
        """The connection is gone; whatever was under way on it may be lost."""

    def on_reconnected(self) -> None:
        """There is a new connection and the subscriptions are made again on it."""

    def on_publish_refused(self, subject: str, error: Exception) -> None:
        """The server does not permit publishes on this subject."""

    async def on_draining(self) -> None:
        """The client drains: take nothing new; returns when all that arrived was worked off."""

    def on_client_closed(self, error: Exception | None) -> None:
        """There will be no further connection. error: why, None when the user closed the client."""
