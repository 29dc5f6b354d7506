"""Connection events for parts of the client: consumers, fetches, publishers."""


class ConnectionListener:
    """Base class of parts with requests in flight on a connection.

    Methods are called from the event loop and must neither block nor raise. The defaults do nothing.
    """

    __slots__ = ()

    def on_disconnected(self, error: Exception) -> None:
        """The connection is lost; requests in flight may be lost."""

    def on_reconnected(self) -> None:
        """A new connection is established and the subscriptions are restored."""

    def on_publish_refused(self, subject: str, error: Exception) -> None:
        """The server denied publishing to this subject."""

    async def on_draining(self) -> None:
        """The client drains: accept nothing new; return when everything received is processed."""

    def on_client_closed(self, error: Exception | None) -> None:
        """The client is closed for good. error: the cause, None if the user closed it."""
