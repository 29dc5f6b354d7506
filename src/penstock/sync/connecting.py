"""`connect` of the client without async."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from penstock.client import keywords
from penstock.client.options import DEFAULT_SERVER, Options
from penstock.sync.sync_client import Client, ConnectOptions
from penstock.sync.thread_session import ThreadClient
from penstock.sync.wrapper import Portal


def connect(servers: str | Iterable[str] = DEFAULT_SERVER, **options: Unpack[ConnectOptions]) -> Client:
    """Connect to NATS.

        client = penstock.sync.connect("nats://127.0.0.1:4222")
        with penstock.sync.connect(["nats://a:4222", "nats://b:4222"], name="orders") as client: ...

    servers: a URL, several separated by commas, or a list. options: see `Options`.

    Raises MisuseError for an invalid URL or option, TypeError for an unknown option, NoServersError if no
    server is reachable (not with `retry_on_failed_connect`) and AuthorizationError if all reject the
    credentials.
    """
    known = ConnectOptions.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise keywords.unknown_keyword("connect", unknown, known, keywords.CONNECT)
    portal = Portal()
    made = Options(**portal.options(options))
    portal.run(ThreadClient.start(servers, made, lambda inner: portal.opening(Client(inner, portal))))
    portal.opened()
    assert portal.client is not None
    return portal.client
