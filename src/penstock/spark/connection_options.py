"""Connection options of format `jetstream`, and the parser shared by source and sink options.

Options are validated once, frozen and picklable. Invariants: an unknown option is an error that names the
nearest known one, never a silent default; contradictory options are rejected before connecting; secrets are
not part of `repr`. Option names are case-insensitive, as everywhere in Spark.
"""

from __future__ import annotations

import difflib
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError, CredentialsError, MisuseError
from penstock.protocol.hosts import announced_address

if TYPE_CHECKING:
    from penstock.protocol.proofs import Proof

T = TypeVar("T")

DEFAULT_PORT = 4222


@dataclass(frozen=True)
class ServerAddress:
    """Address of one server. tls: the URL scheme was `tls://`."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ConnectionOptions:
    """Everything an executor needs to connect."""

    servers: tuple[ServerAddress, ...]
    """Option `servers`: comma-separated `nats://[user[:password]@]host[:port]`, `tls://…` or `host[:port]`.
    Default nats://127.0.0.1:4222."""
    user: str | None = None
    """Option `user`, with `password`."""
    password: str | None = field(default=None, repr=False)
    """Option `password`."""
    token: str | None = field(default=None, repr=False)
    """Option `token`; not together with `user`."""
    credentials: str | None = None
    """Option `credentials`: path, on every executor, of a user's credentials file (JWT and seed)."""
    nkey: str | None = None
    """Option `nkey`: path, on every executor, of a file with the seed of a user's nkey."""
    tls: bool = False
    """Option `tls`: require TLS. A server that requires TLS gets it regardless. Default false."""
    tls_ca: str | None = None
    """Option `tlsCa`: PEM file of trusted CAs, on every executor. Default: the system's."""
    tls_cert: str | None = None
    """Option `tlsCert`: PEM file of the client certificate."""
    tls_key: str | None = None
    """Option `tlsKey`: PEM file of its key, when it is not in `tlsCert`."""
    api_prefix: str = "$JS.API"
    """Option `apiPrefix`, or `domain` (which stands for `$JS.<domain>.API`). Default $JS.API."""
    connect_timeout_s: float = 5.0
    """Option `connectTimeoutSeconds`: for one server, TCP, TLS and CONNECT together. Default 5."""
    request_timeout_s: float = 10.0
    """Option `requestTimeoutSeconds`: for one answer of the JetStream API. Default 10."""
    retry_s: float = 60.0
    """Option `retrySeconds`: how long a task retries without progress before it fails. Default 60."""
    discovered: tuple[ServerAddress, ...] = ()
    """Further servers of the cluster, which one of `servers` named. They are tried when no other answers."""
    turn: int | None = None
    """Number of a task: each number begins with another one of `servers` than the one before, so that tasks
    spread over a cluster. None = in random order."""

    def in_order(self) -> list[ServerAddress]:
        """The servers in the order in which to try them."""
        servers = list(self.servers)
        if self.turn is None:
            random.shuffle(servers)
        else:
            at = self.turn % len(servers)
            servers = servers[at:] + servers[:at]
        return servers + random.sample(self.discovered, len(self.discovered))

    def next_turn(self) -> ConnectionOptions:
        """The same options beginning with the next server: this one may be what does not work."""
        return self if self.turn is None else replace(self, turn=self.turn + 1)

    def knowing(self, connect_urls: Iterable[str], server: ServerAddress) -> ConnectionOptions:
        """The same options with the servers that `server` named (`host:port`), to which its user belongs. A
        server that names none changes nothing."""
        named = filter(None, map(announced_address, connect_urls))
        found = [replace(server, host=host, port=port) for host, port in named]
        if not found:
            return self
        known = {(one.host, one.port) for one in self.servers}
        return replace(self, discovered=tuple(one for one in found if (one.host, one.port) not in known))

    def proof(self) -> Proof | None:
        """Read the signing key and JWT from their file; None without `credentials` and `nkey`.

        Raises CredentialsError.
        """
        path = self.credentials or self.nkey
        if path is None:
            return None
        from penstock.protocol.proofs import from_credentials, from_seed  # rarely needed

        try:
            text = Path(path).read_text(encoding="utf-8")
            return from_seed(text) if self.credentials is None else from_credentials(text, int(time.time()))
        except (MisuseError, OSError, UnicodeDecodeError) as error:
            name = "nkey" if self.credentials is None else "credentials"
            raise CredentialsError(f"option {name!r}: {path}: {error}") from error

    def tls_context(self) -> ssl.SSLContext:
        """TLS context made from the options `tlsCa`, `tlsCert` and `tlsKey`."""
        context = ssl.create_default_context(cafile=self.tls_ca)
        if self.tls_cert is not None:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        return context


# The error for an unknown option lists the names in this order.
CONNECTION_OPTIONS = (
    "servers",
    "user",
    "password",
    "token",
    "credentials",
    "nkey",
    "tls",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "apiPrefix",
    "domain",
    "connectTimeoutSeconds",
    "requestTimeoutSeconds",
    "retrySeconds",
)


class OptionParser:
    """Parser for one set of options. Subclasses list theirs, including connection options, in `known`."""

    known: ClassVar[tuple[str, ...]] = CONNECTION_OPTIONS
    aliases: ClassVar[Mapping[str, str]] = {}
    side: ClassVar[Literal["source", "sink"]] = "source"

    def __init__(self, given: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in self.known}
        self.values: dict[str, str] = {}
        for key, value in given.items():
            name = known.get(key.lower()) or self.aliases.get(key.lower())
            if name is None:
                raise ConfigError(self.unknown(key))
            if name in self.values and self.values[name] != value:
                raise ConfigError(f"option {name!r} is given twice: {self.values[name]!r} and {value!r}")
            self.values[name] = value

    def unknown(self, key: str) -> str:
        """The error for an option that is not known here: what to use instead, or which it may be."""
        from penstock.spark.kafka_options import advice

        instead = advice(key, self.side)
        if instead is not None:
            return f"option {key!r} is not one of format jetstream ({instead})"
        return _unknown_option(key, self.known)

    def connection(self) -> ConnectionOptions:
        servers = tuple(parse_server(text) for text in self.items("servers")) or (
            ServerAddress("127.0.0.1", DEFAULT_PORT),
        )
        user, password, token = (self.values.get(name) for name in ("user", "password", "token"))
        if user is not None and token is not None:
            raise ConfigError("options 'user' and 'token' contradict each other: give one of them")
        if "credentials" in self.values and "nkey" in self.values:
            raise ConfigError("options 'credentials' and 'nkey' contradict each other: give one of them")
        if password is not None and user is None:
            raise ConfigError("option 'password' is given without 'user'")
        if "tlsKey" in self.values and "tlsCert" not in self.values:
            raise ConfigError("option 'tlsKey' is given without 'tlsCert'")
        if "domain" in self.values and "apiPrefix" in self.values:
            raise ConfigError("options 'domain' and 'apiPrefix' contradict each other: give one of them")
        prefix = self.values.get("apiPrefix", "$JS.API")
        if "domain" in self.values:
            prefix = f"$JS.{self.values['domain']}.API"
        return ConnectionOptions(
            servers=servers,
            user=user,
            password=password,
            token=token,
            credentials=self.values.get("credentials"),
            nkey=self.values.get("nkey"),
            tls=self.boolean("tls", False),
            tls_ca=self.values.get("tlsCa"),
            tls_cert=self.values.get("tlsCert"),
            tls_key=self.values.get("tlsKey"),
            api_prefix=self.subject("apiPrefix", prefix.removesuffix(".")),
            connect_timeout_s=self.seconds("connectTimeoutSeconds", 5.0),
            request_timeout_s=self.seconds("requestTimeoutSeconds", 10.0),
            retry_s=self.seconds("retrySeconds", 60.0),
        )

    def items(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, (s.strip() for s in self.values.get(name, "").split(",")))))

    def names(self, name: str) -> tuple[str, ...]:
        for item in self.items(name):
            if any(c in ' \t\r\n\f.*>/\\"' for c in item):
                raise ConfigError(
                    f"option {name!r}: {item!r} is no stream name (they have no spaces . * > / \\)"
                )
        return self.items(name)

    def subject(self, name: str, text: str) -> str:
        """Validate the subject in option `name`; wildcards are not allowed."""
        return check_subject(name, text, wildcards=False)

    def boolean(self, name: str, default: bool) -> bool:
        text = self.values.get(name, str(default)).strip().lower()
        if text not in ("true", "false"):
            raise ConfigError(f"option {name!r} is {text!r}: true or false")
        return text == "true"

    def seconds(self, name: str, default: float) -> float:
        value = self.number(name, float, default)
        if not 0 < value <= 86_400:
            raise ConfigError(f"option {name!r} is {value:g}: more than 0 and at most 86400 seconds")
        return value

    def integer(self, name: str, default: Any, low: int, high: int) -> Any:
        value = self.number(name, int, default)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"option {name!r} is {value}: it must be {low} to {high}")
        return value

    def number(self, name: str, kind: Callable[[str], T], default: T) -> T:
        text = self.values.get(name)
        if text is None:
            return default
        try:
            return kind(text.strip())
        except ValueError:
            raise ConfigError(f"option {name!r} is {text!r}: not a number") from None


def parse_server(text: str) -> ServerAddress:
    """Parse `nats://user:password@host:port`, `tls://token@host`, `host:port` or `host`.

    Raises ConfigError.
    """
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise ConfigError(f"option 'servers': the port of {parts.hostname!r} is no port number") from None
    if parts.scheme not in ("nats", "tls"):
        raise ConfigError(f"option 'servers': scheme {parts.scheme!r} is not known; nats:// or tls://")
    if not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError("option 'servers': addresses are nats://[user[:password]@]host[:port],…")
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    if user is not None and password is None:
        return ServerAddress(parts.hostname, port, parts.scheme == "tls", token=user)
    return ServerAddress(parts.hostname, port, parts.scheme == "tls", user, password)


def check_subject(option: str, text: str, *, wildcards: bool) -> str:
    """Return `text` if it is a valid subject, or filter with `wildcards`. Raises ConfigError."""
    tokens = text.split(".")
    bad = any(not token or any(c.isspace() or c == "\0" for c in token) for token in tokens)
    bad = bad or ">" in tokens[:-1] or (not wildcards and bool({"*", ">"} & set(tokens)))
    if bad:
        kind = "subject filter" if wildcards else "subject"
        raise ConfigError(f"option {option!r}: {text!r} is no valid {kind}")
    return text


def _unknown_option(key: str, known: tuple[str, ...]) -> str:
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.5)
    hint = f"did you mean {lowered[near[0]]!r}?" if near else f"known options: {', '.join(known)}"
    return f"unknown option {key!r} of format jetstream: {hint}"
