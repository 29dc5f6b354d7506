"""Stored messages: a list with filters, and one message whole."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace

from penstock.client.direct import StoredMessage
from penstock.client.stream import Stream
from penstock.errors import MisuseError
from penstock.protocol.durations import format_time, parse_time
from penstock.web.request_checks import checked_name, checked_subject, natural_number
from penstock.web.views.message_reading import MessageFilter, read_forward, read_newest, seq_at
from penstock.web.visitor import Visitor
from penstock.web.web_ports import Slice

ROWS = 50
ROWS_MAX = 100
PREVIEW_BYTES = 1024
WHOLE_BYTES = 1024 * 1024
HEADERS_SHOWN = 64
VALUE_CHARS = 512
SEQ_MAX = 2**53


async def messages(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """Messages that pass the filters: `subject`, `header` ("Name" or "Name: text"), `text`, `since` and
    `until` (RFC 3339), `seq` and `order` ("newest", or "oldest" from `seq` or `since` on)."""
    stream = await visitor.js.stream(checked_name(query.get("stream", ""), "stream"))
    order = query.get("order", "newest")
    if order not in ("newest", "oldest"):
        raise MisuseError(f"order is {order[:40]!r}; it may be newest or oldest")
    wanted = await _filter(stream, query, order)
    limit = max(1, natural_number(query, "limit", ROWS, ROWS_MAX))
    found = await (read_newest if order == "newest" else read_forward)(stream, wanted, limit)
    shown = found.messages[::-1] if order == "newest" else found.messages
    state = stream.cached_info.state
    return {
        "stream": stream.name,
        "order": order,
        "rows": [message_row(one, PREVIEW_BYTES) for one in shown],
        "read": found.read,
        "more": found.more,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "messages": state.messages,
    }


async def message(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """One message, its payload up to WHOLE_BYTES."""
    stream = await visitor.js.stream(checked_name(query.get("stream", ""), "stream"))
    seq = natural_number(query, "seq", 0, SEQ_MAX)
    return message_row(await stream.get_message(seq), WHOLE_BYTES, whole=True)


async def _filter(stream: Stream, query: Mapping[str, str], order: str) -> MessageFilter:
    subject = query.get("subject", "").strip()
    name, _, value = query.get("header", "").partition(":")
    wanted = MessageFilter(
        subject=checked_subject(subject, wildcards=True) if subject else "",
        header=name.strip(),
        value=value.strip(),
        text=query.get("text", "").encode("utf-8", "replace"),
    )
    seq = natural_number(query, "seq", 0, SEQ_MAX)
    first, last = wanted.first, wanted.last
    if query.get("since"):
        first = await seq_at(stream, _time(query, "since"))
    if query.get("until"):
        last = await seq_at(stream, _time(query, "until")) - 1
    if seq and order == "oldest":
        first = max(first, seq)
    elif seq:
        last = min(last, seq - 1)  # the messages before this one
    return replace(wanted, first=first, last=last)


def _time(query: Mapping[str, str], name: str) -> int:
    try:
        return parse_time(query[name])
    except ValueError as error:
        raise MisuseError(
            f"{name} is {query[name][:60]!r}; it must be a time as 2026-01-31T12:00:00Z"
        ) from error


def message_row(found: StoredMessage, limit: int, *, whole: bool = False) -> Slice:
    """A message as JSON: its payload in base64, up to `limit` bytes."""
    pairs = list(found.headers.pairs())
    chars = 2**20 if whole else VALUE_CHARS
    return {
        "seq": found.seq,
        "subject": found.subject,
        "time": format_time(found.time_ns),
        "headers": [[name, value[:chars]] for name, value in pairs[:HEADERS_SHOWN]],
        "headers_total": len(pairs),
        "size": len(found.data),
        "data": b64encode(found.data[:limit]).decode(),
    }
