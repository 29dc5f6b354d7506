"""Where to connect: server URLs and the pool the client walks through when it (re)connects.

Invariants of the pool: it is never empty; servers the user named are never removed; servers learnt from
INFO `connect_urls` vanish again when the cluster stops announcing them, unless the client sits on them.
The order is the user's, shuffled once when `randomize` is set, so that clients spread over a cluster.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from penstock.errors import MisuseError

DEFAULT_PORT = 4222
SCHEMES = ("nats", "tls")


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """One server's address, and the credentials its URL carried."""

    host: str
    port: int = DEFAULT_PORT
    scheme: str = "nats"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """The URL without credentials: what logs and error texts may show."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def tls(self) -> bool:
        """Whether the URL itself asks for TLS (`tls://`)."""
        return self.scheme == "tls"


def parse_server_url(text: str) -> ServerUrl:
    """Reads `nats://user:password@host:port`, `nats://token@host`, `tls://host`, `host:port` or `host`.

    Raises MisuseError when the text names no host, another scheme or an impossible port.
    """
    stripped = text.strip()
    parts = urlsplit(stripped if "://" in stripped else f"nats://{stripped}")
    if parts.scheme not in SCHEMES:
        raise MisuseError(f"server URL {text!r}: scheme {parts.scheme!r} is not one of nats, tls")
    if not parts.hostname:
        raise MisuseError(f"server URL {text!r} names no host; expected something like nats://127.0.0.1:4222")
    try:
        port = parts.port
    except ValueError as error:
        raise MisuseError(f"server URL {text!r}: the port is not a number from 0 to 65535") from error
    user = unquote(parts.username) if parts.username is not None else None
    password = unquote(parts.password) if parts.password is not None else None
    url = ServerUrl(host=parts.hostname, port=DEFAULT_PORT if port is None else port, scheme=parts.scheme)
    if user and password is None:
        return replace(url, token=user)
    return replace(url, user=user, password=password) if user else url


def _url_or_none(text: str) -> ServerUrl | None:
    # What a server announces is no reason to lose the connection to it.
    try:
        return parse_server_url(text)
    except MisuseError:
        return None


@dataclass(slots=True)
class PoolServer:
    """A server of the pool and how connecting to it went lately."""

    url: ServerUrl
    discovered: bool = False
    failures: int = 0  # attempts since it last worked
    auth_failures: int = 0  # refusals of the credentials in a row
    last_error: BaseException | None = None


class ServerPool:
    """The servers to try, in order, round and round."""

    def __init__(self, servers: str | Iterable[str], *, randomize: bool = True) -> None:
        texts = servers.split(",") if isinstance(servers, str) else list(servers)
        urls = [parse_server_url(text) for text in texts]
        if not urls:
            raise MisuseError("connect() needs at least one server URL; the list is empty")
        if randomize:
            random.shuffle(urls)
        self._servers = [PoolServer(url) for url in urls]
        self._next_index = 0

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def servers(self) -> list[PoolServer]:
        """The servers in the order they are tried, as a copy."""
        return list(self._servers)

    def next(self) -> PoolServer:
        """The server to try now; each call moves one place on."""
        self._next_index %= len(self._servers)
        server = self._servers[self._next_index]
        self._next_index += 1
        return server

    @property
    def at_round_start(self) -> bool:
        """Whether every server had its turn: the moment to wait before trying again."""
        return self._next_index % len(self._servers) == 0

    def remove(self, server: PoolServer) -> None:
        """Takes a server out that will not work again (attempts used up). The last one stays."""
        if len(self._servers) > 1 and server in self._servers:
            index = self._servers.index(server)
            del self._servers[index]
            if index < self._next_index:
                self._next_index -= 1

    def update_discovered(self, connect_urls: Iterable[str], current: PoolServer | None) -> list[ServerUrl]:
        """Takes INFO `connect_urls` in (bare `host:port` texts) and returns the servers new to the pool.

        Announced servers inherit the scheme of the current one, so that a TLS cluster stays TLS.
        """
        scheme = current.url.scheme if current is not None else "nats"
        announced = [
            replace(url, scheme=scheme) for url in map(_url_or_none, connect_urls) if url is not None
        ]
        places = {(url.host, url.port) for url in announced}
        if places:
            kept = [
                server
                for server in self._servers
                if not server.discovered or server is current or (server.url.host, server.url.port) in places
            ]
            self._next_index = min(self._next_index, len(kept))
            self._servers = kept
        known = {(server.url.host, server.url.port) for server in self._servers}
        added = [url for url in announced if (url.host, url.port) not in known]
        self._servers.extend(PoolServer(url, discovered=True) for url in added)
        return added
