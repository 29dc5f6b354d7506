"""Requests of the system account that are not monitoring pages.

    $SYS.REQ.SERVER.<id>.RELOAD   reloads the configuration
    $SYS.REQ.SERVER.<id>.KICK     closes the connection `{"cid": n}`
    $SYS.REQ.SERVER.<id>.LDM      sends one client INFO with `ldm`, `{"cid": n}`
    $SYS.REQ.ACCOUNT.NSUBS        number of subscriptions for a subject: `{"acc", "subject", "queue"}`
    $SYS.DEBUG.SUBSCRIBERS        the same in the system account; body: subject and optional queue

A handler takes the server and the body. It returns the fields that follow `server` in the reply, a number, or
a generator that returns one of them; it raises MisuseError to refuse.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import MisuseError
from penstock.kernels.wire.dispatch import ClientSink
from penstock.net.reasons import CloseReason
from penstock.protocol.json_names import decode_body
from penstock.protocol.subjects import has_wildcard, is_subset, is_valid_filter
from penstock.server.config.directives import NO_PROFILE

if TYPE_CHECKING:
    from penstock.kernels.wire.sinks import SinkSubscription
    from penstock.routing.account import Account
    from penstock.server.monitoring.monitored_server import MonitoredServer
    from penstock.server.monitoring.pages.page_options import Page, Steps


class _Cid(msgspec.Struct, frozen=True):
    cid: int = 0


class _Subscribers(msgspec.Struct, frozen=True):
    """queue: base64, as bytes in Go's JSON."""

    acc: str = ""
    subject: str = ""
    queue: str = ""


async def reload(server: MonitoredServer, payload: bytes) -> Page:
    """Runs as a task, because a reload must not change state in the middle of the read that requested it."""
    refused = await server.reload()
    if refused:
        raise MisuseError(refused)
    return {}


def kick(server: MonitoredServer, payload: bytes) -> Page:
    session = server.sessions.get(decode_body(payload, _Cid).cid)
    if session is None:
        raise MisuseError("no such client or leafnode id")
    session.close(CloseReason.KICKED)
    return {}


def lame_duck(server: MonitoredServer, payload: bytes) -> Page:
    """Sends one client INFO with `ldm`; the client decides when to reconnect."""
    session = server.sessions.get(decode_body(payload, _Cid).cid)
    if session is None:
        raise MisuseError("no such client id")
    if session.options.protocol < 1 or session.identity is None:
        raise MisuseError(
            "client does not support Lame Duck Mode or is not ready to receive the notification"
        )
    session.send(server.info.line(session, leaving=True))
    return {}


def num_subscribers(server: MonitoredServer, payload: bytes) -> int | None:
    """None (no reply) if the account has no connections: its other servers will reply."""
    asked = decode_body(payload, _Subscribers)
    account = server.accounts.get(asked.acc)
    if account is None or not any(
        session.identity is not None and session.identity.account == asked.acc
        for session in server.sessions.values()
    ):
        return None
    try:
        queue = base64.b64decode(asked.queue, validate=True)
    except binascii.Error as error:
        raise MisuseError(f"the queue {asked.queue!r} is not base64: {error}") from error
    return _count(account, asked.subject, queue)


def debug_subscribers(server: MonitoredServer, payload: bytes) -> int:
    words = payload.decode("utf-8", "replace").split()
    if not words:
        return 0
    account = server.accounts.open(server.context.options.system_account)
    return _count(account, words[0], words[1].encode() if len(words) > 1 else b"")


def _count(account: Account, subject: str, queue: bytes) -> int:
    """Number of client subscriptions that match a subject, or lie within a filter; with `queue`, only of
    it."""
    if not is_valid_filter(subject):
        raise MisuseError(f"invalid subject: {subject!r}")
    if has_wildcard(subject):
        found = [
            one
            for one in account.index.subscriptions()
            if is_subset(one.subject.decode("utf-8", "replace"), subject)
        ]
    else:
        result = account.index.match(subject.encode())
        found = [*result.plain, *(one for group in result.groups for one in group)]
    return sum(_is_clients(one) and (not queue or one.queue == queue) for one in found)


def _is_clients(subscription: SinkSubscription) -> bool:
    return isinstance(subscription.sink, ClientSink)


CONTROLS: dict[str, Callable[[MonitoredServer, bytes], Any]] = {
    "RELOAD": reload,
    "KICK": kick,
    "LDM": lame_duck,
}


# -- pages about a Go runtime and a cluster


def _variables(server: MonitoredServer) -> Page:
    """Go's expvar page, as far as it applies."""
    import gc
    import sys

    from penstock.server.monitoring.pages.varz import resident_bytes

    size = resident_bytes()
    collections = sum(generation["collections"] for generation in gc.get_stats())
    return {"cmdline": sys.argv, "memstats": {"Sys": size, "Alloc": size, "NumGC": collections}}


def _raftz(server: MonitoredServer) -> Page | Steps:
    """The replicated groups of this server."""
    from penstock.server.monitoring.pages.jsz import raftz

    return raftz(server)


PAGES: dict[str, Callable[[MonitoredServer], Page | Steps]] = {
    "PROFILEZ": lambda server: {"profile": None, "error": NO_PROFILE},
    "EXPVARZ": _variables,
    "IPQUEUESZ": lambda server: {},
    "RAFTZ": _raftz,
}
