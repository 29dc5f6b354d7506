"""Server URLs, and the pool of servers that the client tries when it (re)connects.

Invariants of the pool: it is never empty; servers discovered through INFO `connect_urls` are removed when the
cluster no longer announces them, except the connected one. The order is the user's, shuffled once if
`randomize` is set, so that clients spread over a cluster.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from penstock.errors import MisuseError

DEFAULT_PORT = 4222
PORTS = {"nats": DEFAULT_PORT, "tls": DEFAULT_PORT, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """Address of one server, and the credentials in its URL."""

    host: str
    port: int = DEFAULT_PORT
    scheme: str = "nats"
    path: str = ""
    """Path and query of a WebSocket server, which may be behind a proxy."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """The URL without credentials, for logs and error texts."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def tls(self) -> bool:
        """Whether the scheme demands TLS."""
        return self.scheme in ("tls", "wss")

    @property
    def is_websocket(self) -> bool:
        """Whether the server is reached by WebSocket."""
        return self.scheme in ("ws", "wss")


def parse_server_url(text: str) -> ServerUrl:
    """Parse `nats://user:password@host:port`, `nats://token@host`, `tls://host`, `wss://host/path`,
    `host:port` or `host`.

    Raises MisuseError for a missing host, an unknown scheme or an invalid port.
    """
    stripped = text.strip()
    try:
        parts = urlsplit(stripped if "://" in stripped else f"nats://{stripped}")
    except ValueError as error:  # brackets that do not match, or characters that look like others
        raise MisuseError(f"server URL {text!r} cannot be read: {error}") from error
    if parts.scheme not in PORTS:
        raise MisuseError(f"server URL {text!r}: scheme {parts.scheme!r} is not one of {', '.join(PORTS)}")
    if not parts.hostname:
        raise MisuseError(f"server URL {text!r} names no host; expected something like nats://127.0.0.1:4222")
    try:
        port = parts.port
    except ValueError as error:
        raise MisuseError(f"server URL {text!r}: the port is not a number from 0 to 65535") from error
    user = unquote(parts.username) if parts.username is not None else None
    password = unquote(parts.password) if parts.password is not None else None
    path = ""
    if parts.scheme in ("ws", "wss"):
        path = parts.path.rstrip("/") and parts.path
        path += f"?{parts.query}" if parts.query else ""
    url = ServerUrl(
        host=parts.hostname,
        port=PORTS[parts.scheme] if port is None else port,
        scheme=parts.scheme,
        path=path,
    )
    if user and password is None:
        return replace(url, token=user)
    return replace(url, user=user, password=password) if user else url


def _parse_all(servers: str | Iterable[str]) -> list[ServerUrl]:
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    urls = [parse_server_url(text) for text in texts]
    if any(url.is_websocket for url in urls):
        from penstock.extras import need

        need("a WebSocket connection", "websocket")  # here, since reconnecting could only log it
    return urls


def _url_or_none(text: str) -> ServerUrl | None:
    # A malformed announcement must not cost the connection to the server.
    try:
        return parse_server_url(text)
    except MisuseError:
        return None


@dataclass(frozen=True, slots=True)
class ServerCandidate:
    """A server that `choose_server` may choose. failures: consecutive failed attempts."""

    url: str
    failures: int
    discovered: bool


@dataclass(slots=True)
class PoolServer:
    """A server in the pool, with its connection history."""

    url: ServerUrl
    discovered: bool = False
    failures: int = 0  # consecutive failed attempts
    auth_failures: int = 0  # consecutive authorization failures
    last_error: BaseException | None = None


class ServerPool:
    """The servers to try, round-robin."""

    def __init__(self, servers: str | Iterable[str], *, randomize: bool = True) -> None:
        urls = _parse_all(servers)
        if not urls:
            raise MisuseError("connect() needs at least one server URL; the list is empty")
        if randomize:
            random.shuffle(urls)
        self._randomize = randomize
        self._servers = [PoolServer(url) for url in urls]
        self._next_index = 0

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def servers(self) -> list[PoolServer]:
        """The servers in the order they are tried, as a copy."""
        return list(self._servers)

    def next(self) -> PoolServer:
        """The next server to try."""
        self._next_index %= len(self._servers)
        server = self._servers[self._next_index]
        self._next_index += 1
        return server

    def find(self, url: ServerUrl) -> PoolServer | None:
        """The server at this host and port."""
        for server in self._servers:
            if (server.url.host, server.url.port) == (url.host, url.port):
                return server
        return None

    def add(self, servers: Iterable[str]) -> None:
        """Add servers of the user; those in the pool already stay as they are, but are no longer removed
        when the cluster stops announcing them. Raises MisuseError for an invalid URL, and then adds none."""
        for url in _parse_all(servers):
            found = self.find(url)
            if found is None:
                self._servers.append(PoolServer(url))
            else:
                found.discovered = False

    def replace(self, servers: str | Iterable[str]) -> None:
        """Replace all servers, the discovered ones too; those in both keep their history.

        Raises MisuseError for an invalid URL or an empty list, and then changes nothing.
        """
        urls = _parse_all(servers)
        if not urls:
            raise MisuseError("the new list of servers is empty; a client needs at least one")
        if self._randomize:
            random.shuffle(urls)
        made: list[PoolServer] = []
        for url in urls:
            server = self.find(url) or PoolServer(url)
            server.url, server.discovered = url, False
            made.append(server)
        self._servers = made
        self._next_index = 0

    def remove(self, server: PoolServer) -> None:
        """Remove a server whose attempts are exhausted. The last server stays."""
        if len(self._servers) > 1 and server in self._servers:
            index = self._servers.index(server)
            del self._servers[index]
            if index < self._next_index:
                self._next_index -= 1

    def update_discovered(self, connect_urls: Iterable[str], current: PoolServer | None) -> list[ServerUrl]:
        """Merge INFO `connect_urls` (`host:port` strings); return the servers that are new.

        Discovered servers inherit scheme and path of the current one: a TLS cluster stays TLS, and a server
        announces to WebSocket clients the WebSocket ports of its cluster.
        """
        like = current.url if current is not None else ServerUrl("")
        announced = [
            replace(url, scheme=like.scheme, path=like.path)
            for url in map(_url_or_none, connect_urls)
            if url is not None
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
