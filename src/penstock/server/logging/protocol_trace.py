"""Protocol traces in the log: `-V`, `trace_verbose`, `trace_headers` and `max_traced_msg_len`.

Format of the official server:

    127.0.0.1:4333 - cid:5 - <<- [PUB foo 5]
    127.0.0.1:4333 - cid:5 - <<- MSG_PAYLOAD: ["hello"]
    127.0.0.1:4333 - cid:5 - ->> [MSG foo 1 5]

The header block counts as payload; `trace_headers` shows only the header block. `trace_verbose` adds the
server's own messages in the system account (`SYSTEM - ...`, in `system_service.py`). A connection without
trace pays one comparison per message.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

from penstock.kernels.wire.dispatch import Tracer

if TYPE_CHECKING:
    from penstock.server.session import Session

_HEAD_END = b"\r\n\r\n"
_KNOWN_MAX = 1 << 16  # characters
_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def message_tracer(session: Session) -> Tracer:
    """A tracer that logs the session's messages."""
    options, trace = session.context.options, session.context.log.trace
    headers_only, length_max = options.trace_headers, options.max_traced_msg_len

    def trace_message(
        received: bool, subject: bytes, sid: bytes, reply: bytes, body: bytes, header_len: int
    ) -> None:
        arrow, verb = ("<<-", "PUB") if received else ("->>", "MSG")
        words = [part.decode("utf-8", "replace") for part in (subject, sid, reply) if part]
        if header_len:
            words.append(str(header_len))
        words.append(str(len(body)))
        trace(f"{session.name} - {arrow} [{'H' if header_len else ''}{verb} {' '.join(words)}]")
        shown = body[:header_len].removesuffix(_HEAD_END) if headers_only else body
        if shown:
            trace(f'{session.name} - {arrow} MSG_PAYLOAD: ["{cut(shown, length_max)}"]')

    return Tracer(trace_message)


def cut(data: bytes, length_max: int) -> str:
    """Quotes at most `length_max` bytes of data (0 or less: all)."""
    if 0 < length_max < len(data):
        return f"{quoted(data[:length_max])}..."
    return quoted(data)


class _Quotes(dict[int, str]):
    """Code point -> how it is shown; what was asked for stays, up to _KNOWN_MAX characters."""

    def __missing__(self, code: int) -> str:
        shown = _shown(code)
        if len(self) < _KNOWN_MAX:
            self[code] = shown
        return shown


def _shown(code: int) -> str:
    char = chr(code)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if char == " " or unicodedata.category(char)[0] in "LMNPS":
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_quotes = _Quotes()


def quoted(data: bytes) -> str:
    """Quotes data as Go's %q: printable UTF-8 stays, other bytes become `\\xff`."""
    return data.decode("utf-8", "surrogateescape").translate(_quotes)


def redacted(payload: bytes) -> str:
    """A CONNECT for logs, without secrets.

    Shows only fields that are known not to be secret, with values of the right type: a password may be in a
    misspelt field, a number, in a list, or truncated. Shows nothing of text that is not a JSON object.
    """
    import msgspec

    from penstock.server.connect_message import PUBLIC

    try:
        found = msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return f"{len(payload)} bytes that are no JSON object"
    shown = {
        name: value if value is None or type(value) is PUBLIC.get(name) else "[REDACTED]"
        for name, value in found.items()
    }
    return msgspec.json.encode(shown).decode()
