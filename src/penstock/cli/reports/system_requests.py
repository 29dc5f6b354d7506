"""Requests to servers over the system account: `$SYS.REQ.SERVER.PING.VARZ` and the like.

The answers are JSON objects, `{server, data}` or `{server, error}`. A request to all servers is a broadcast:
it ends after the expected number of answers, or when no further one comes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.client import Client
from penstock.errors import ClientError, NoRespondersError, ProtocolError

STALL_S = 0.3
PAGES = (
    "VARZ", "CONNZ", "SUBSZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ", "JSZ", "HEALTHZ", "STATSZ", "IDZ",
    "PROFILEZ", "EXPVARZ", "IPQUEUESZ", "RAFTZ",
)  # fmt: skip
NO_SYSTEM_ACCOUNT = (
    "no server answered: these requests need a user of the system account; connect with one "
    "(--user, --creds, --context)"
)


class SystemRequestError(ClientError):
    """No server answered a request to the system account, or one refused it."""


class SystemAnswer(NamedTuple):
    """An answer to a broadcast: the object, and the seconds until it came."""

    page: dict[str, Any]
    rtt_s: float

    @property
    def server(self) -> dict[str, Any]:
        """The server that answered: name, id, host, cluster, ver and others."""
        found = self.page.get("server")
        return found if isinstance(found, dict) else {}

    @property
    def server_name(self) -> str:
        return str(self.server.get("name", ""))

    @property
    def data(self) -> dict[str, Any]:
        """The page without its envelope; empty for an error."""
        found = self.page.get("data") or self.page.get("statsz")
        return found if isinstance(found, dict) else {}

    @property
    def error(self) -> str:
        """Why the server refused; "" if it did not."""
        found = self.page.get("error")
        if not isinstance(found, dict):
            return str(found or "")
        return f"{found.get('description', '')} ({found.get('code', 0)})"


async def ask_servers(
    client: Client,
    page: str = "STATSZ",
    options: Mapping[str, Any] | None = None,
    *,
    timeout_s: float,
    expect: int = 0,
) -> list[SystemAnswer]:
    """Request a page from all servers, in the order of their answers.

    options: of the page, and those that select servers (`server_name`, `cluster`, `tags`, ...). expect:
    number of answers to wait for, up to the whole timeout; 0 ends when no further one comes.

    Raises SystemRequestError if none answers, ProtocolError for an answer that is no JSON object.
    """
    subject = "$SYS.REQ.SERVER.PING" if page == "STATSZ" else f"$SYS.REQ.SERVER.PING.{page}"
    return await _ask_all(client, subject, options, timeout_s=timeout_s, expect=expect)


async def ask_accounts(
    client: Client, options: Mapping[str, Any] | None = None, *, timeout_s: float
) -> list[SystemAnswer]:
    """Request the statistics of all accounts (STATZ) from all servers. Raises what `ask_servers` raises."""
    return await _ask_all(client, "$SYS.REQ.ACCOUNT.PING.STATZ", options, timeout_s=timeout_s, expect=0)


async def _ask_all(
    client: Client, subject: str, options: Mapping[str, Any] | None, *, timeout_s: float, expect: int
) -> list[SystemAnswer]:
    started = time.monotonic()
    found: list[SystemAnswer] = []
    answers = client.request_many(
        subject, _body(options), timeout=timeout_s, stall=None if expect else STALL_S,
        max_messages=expect or None,
    )  # fmt: skip
    try:
        async for answer in answers:
            found.append(SystemAnswer(decode_page(answer.data), time.monotonic() - started))
    except NoRespondersError:
        pass
    if not found:
        raise SystemRequestError(NO_SYSTEM_ACCOUNT)
    return found


async def ask_server(
    client: Client, server_id: str, page: str, options: Mapping[str, Any] | None = None, *, timeout_s: float
) -> SystemAnswer:
    """Request a page, RELOAD, KICK or LDM from one server by its id.

    Raises SystemRequestError if it refuses or nothing answers, RequestTimeoutError, ProtocolError.
    """
    subject = f"$SYS.REQ.SERVER.{server_id}.{page}"
    started = time.monotonic()
    try:
        answer = await client.request(subject, _body(options), timeout=timeout_s)
    except NoRespondersError:
        text = f"no server {server_id!r} answered {page}; is it an id, and are you in the system account?"
        raise SystemRequestError(text) from None
    made = SystemAnswer(decode_page(answer.data), time.monotonic() - started)
    if made.error:
        raise SystemRequestError(f"server {made.server_name or server_id}: {made.error}")
    return made


async def find_server(client: Client, name: str, *, timeout_s: float) -> SystemAnswer:
    """The STATSZ answer of the server with this name or id; "": the one that the client is connected to.

    Raises SystemRequestError, which lists the servers that answered.
    """
    wanted = name or client.server_info.server_id
    answers = await ask_servers(client, timeout_s=timeout_s)
    for answer in answers:
        if wanted in (answer.server_name, answer.server.get("id")):
            return answer
    names = ", ".join(sorted(answer.server_name for answer in answers))
    raise SystemRequestError(f"no server is named {wanted!r}; those that answered: {names}")


def decode_page(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises ProtocolError."""
    try:
        page = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"a server's answer is no JSON: {error}: {data[:80]!r}") from error
    if not isinstance(page, dict):
        raise ProtocolError(f"a server's answer is no JSON object: {data[:80]!r}")
    return page


def _body(options: Mapping[str, Any] | None) -> bytes:
    return msgspec.json.encode(dict(options)) if options else b""
