"""How `sub`, `req` and `consumer next` print messages."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from penstock.client import Headers

if TYPE_CHECKING:
    from penstock.client import Msg


def header_lists(headers: Headers) -> dict[str, list[str]]:
    """Headers as lists of values by name."""
    return {name: headers.get_all(name) for name in headers}


def header_lines(headers: Headers) -> list[str]:
    """Headers as lines `NAME: VALUE`."""
    return [f"{name}: {value}" for name, value in headers.pairs()]


def message_object(msg: Msg) -> dict[str, Any]:
    """A message as a JSON object. The payload is `data`, or `data_base64` where it is no UTF-8 text."""
    found: dict[str, Any] = {"subject": msg.subject}
    if msg.reply:
        found["reply"] = msg.reply
    if msg.headers:
        found["headers"] = header_lists(msg.headers)
    try:
        found["data"] = msg.data.decode()
    except UnicodeDecodeError:
        found["data_base64"] = base64.b64encode(msg.data).decode()
    return found
