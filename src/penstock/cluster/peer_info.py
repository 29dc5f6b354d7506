"""What the INFO and CONNECT messages of all links between servers share, and how they are read.

Unknown fields are ignored: servers of other versions send more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from penstock.errors import ProtocolError

NAMELESS = "_"
"""In place of a cluster name, it stands for leaf nodes without one, so no cluster may have it."""


class LinkInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """INFO of a server to another one."""

    server_id: str
    server_name: str = ""
    version: str = ""
    proto: int = 0
    git_commit: str = ""
    go: str = ""
    host: str = ""
    port: int = 0
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_verify: bool = False
    max_payload: int = 0
    jetstream: bool = False
    ip: str = ""
    nonce: str = ""
    cluster: str = ""
    domain: str = ""

    def line(self) -> bytes:
        """The protocol line, with the blank that the official server puts before its end."""
        return b"INFO " + msgspec.json.encode(self) + b" \r\n"


Message = TypeVar("Message")


def reader(kind: type[Message], what: str) -> Callable[[bytes], Message]:
    """What reads the JSON of a message, and raises ProtocolError with `what` in its text."""
    decoder = msgspec.json.Decoder(kind, strict=False)

    def read(body: bytes) -> Message:
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"{what} is not readable: {error}") from error

    return read
