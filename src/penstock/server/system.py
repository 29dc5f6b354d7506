"""Requests to the server itself, below `$SYS.REQ.`: for now only what every user may ask about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.kernels.sinks import Sink
from penstock.protocol.durations import format_time
from penstock.server.identity import VERSION

if TYPE_CHECKING:
    from penstock.routing.account import Account
    from penstock.server.server import Server

USER_INFO = b"$SYS.REQ.USER.INFO"


def serve_user_info(server: Server, account: Account) -> None:
    """Answers `$SYS.REQ.USER.INFO` in an account: who the asking connection is (`nats account info` asks)."""

    def answer(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        session = getattr(origin, "owner", None)
        if session is None or not reply:
            return
        user = session.identity.user if session.identity is not None else ""
        body = {
            "server": _server_info(server),
            "data": {"user": user, "account": account.name, "account_name": account.name},
        }
        account.publish(reply, msgspec.json.encode(body))

    account.subscribe_service(USER_INFO, answer)


def _server_info(server: Server) -> dict[str, Any]:
    """The `server` that every answer to a system request begins with."""
    return {
        "name": server.server_name,
        "host": server.options.host,
        "id": server.server_id,
        "ver": VERSION,
        "jetstream": server.jetstream is not None,
        "flags": 0,
        "seq": 0,
        "time": format_time(server.clock()),
    }
