"""A user of the web page: his login, and the client connection that acts for him.

The connection is one inside the process (`WebPorts.open_socket`), and CONNECT has the user's credentials. The
server closes it when a reload removes the user, and the session ends with it.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client import connect
from penstock.errors import MisuseError, PermissionsError
from penstock.web.web_ports import WebPolicy, WebPorts

if TYPE_CHECKING:
    from penstock.client import Client, JetStream

LOGIN_S = 40.0
"""Time limit of a login. The server lets a password hash wait for 30 s."""
REQUEST_S = 5.0
REFUSALS_KEPT = 32
_SEED = re.compile(r"S[A-Z2-7]+")


@dataclass(frozen=True, slots=True)
class WebLogin:
    """The credentials of a login form: user and password, a token, or the text of a credentials file or of an
    nkey's seed; none for an anonymous user."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if sum(map(bool, (self.user, self.token, self.credentials))) > 1:
            raise MisuseError("give one of these: a user and a password, a token, or credentials")
        if self.password and not self.user:
            raise MisuseError("a password needs a user")

    @property
    def is_anonymous(self) -> bool:
        return not (self.user or self.token or self.credentials)

    def options(self) -> dict[str, Any]:
        """The options of `connect`."""
        if self.token:
            return {"token": self.token}
        if self.credentials:
            # A credentials file has lines around its parts; a seed is one word.
            text = self.credentials.strip()
            return {"nkey_seed": text} if _SEED.fullmatch(text) else {"credentials_text": text}
        return {"user": self.user, "password": self.password} if self.user else {}


class Visitor:
    """A logged-in user.

    account, user: who the server says he is. policy: what the page allows. notes: what views remember
    between two slices, by their own keys.
    """

    def __init__(self, ports: WebPorts, client: Client, account: str, user: str, refusals: Refusals) -> None:
        self.ports = ports
        self.client = client
        self.account = account
        self.user = user
        self.refusals = refusals
        self.notes: dict[str, Any] = {}

    @classmethod
    async def log_in(cls, ports: WebPorts, login: WebLogin, peer: tuple[str, int]) -> Visitor:
        """Connects with these credentials.

        Raises AuthorizationError if the server refuses them, NoServersError if it refuses the connection.
        """
        refusals = Refusals()
        client = await connect(
            "nats://127.0.0.1",
            open_socket=partial(ports.open_socket, peer),
            reconnect=False,
            name="penstock web page",
            connect_timeout=LOGIN_S,
            request_timeout=REQUEST_S,
            on_error=refusals.note,
            **login.options(),
        )
        account, user = await ports.account_of(client.server_info.client_id)
        return cls(ports, client, account, user or login.user, refusals)

    @property
    def policy(self) -> WebPolicy:
        return self.ports.policy

    @property
    def is_here(self) -> bool:
        """Whether the server still accepts the connection."""
        return not self.client.is_closed

    @property
    def js(self) -> JetStream:
        """JetStream of the user's account."""
        return self.client.jetstream(timeout=REQUEST_S)

    async def leave(self) -> None:
        await self.client.close()


class Refusals:
    """Publishes that the server refused without an answer: the latest REFUSALS_KEPT."""

    def __init__(self) -> None:
        self._refused: deque[PermissionsError] = deque(maxlen=REFUSALS_KEPT)

    def note(self, client: Client, error: Exception) -> None:
        """Callback of the client for asynchronous errors."""
        if isinstance(error, PermissionsError):
            self._refused.append(error)

    def take(self, subject: str) -> PermissionsError | None:
        """The refusal of a publish to a subject, once."""
        for error in self._refused:
            if error.subject == subject:
                self._refused.remove(error)
                return error
        return None
