"""What the web page uses of its server. All methods are called from the monitor's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import socket

Slice = dict[str, Any]
"""A JSON object: one page of a list, or the state of one thing."""


class LoginPolicy(NamedTuple):
    """How clients log in now. required: without credentials they are refused. configured: there are users, so
    that credentials distinguish anybody."""

    required: bool
    configured: bool


class WebPolicy(NamedTuple):
    """The options of the page: `allow_writes` and `allow_anonymous`."""

    writes: bool
    anonymous: bool


class WebPorts(Protocol):
    """The server as the web page sees it."""

    @property
    def policy(self) -> WebPolicy: ...
    @property
    def server_name(self) -> str: ...
    @property
    def version(self) -> str: ...

    def login_policy(self) -> LoginPolicy:
        """How clients log in, after the latest reload."""

    async def page(self, name: str, query: Mapping[str, str]) -> Slice:
        """A monitoring page, such as "varz", also if its HTTP status is not 200. Raises MisuseError."""

    async def account_names(self) -> list[str]:
        """The names of all accounts, sorted."""

    async def account_stats(self, names: list[str]) -> list[Slice]:
        """Connections and traffic of these accounts, of those there are."""

    async def open_socket(self, peer: tuple[str, int]) -> socket.socket:
        """A connection for a client that acts for a user at this address. Raises OSError."""

    async def account_of(self, client_id: int) -> tuple[str, str]:
        """Account and user name of a connected client; empty if it is gone."""
