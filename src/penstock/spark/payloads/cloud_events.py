"""CloudEvents: the attributes as a struct, and the event's data as the payload.

In binary mode the headers `ce-…` have the attributes and the payload is the data. In structured mode the
payload is the whole event in JSON: the header Content-Type begins with application/cloudevents, or there are
no such headers and it is an object with a `specversion`. A message that is neither is no event: its
attributes are null and its payload stays.

Source: CloudEvents 1.0.2, its NATS protocol binding, its HTTP binding for the encoding of header values, its
JSON event format. Batches (application/cloudevents-batch+json) are malformed payloads: a message is one row.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from penstock.protocol.durations import parse_iso8601
from penstock.spark.decoders import Decoded, Decoder
from penstock.spark.payloads.decompression import Plain

PREFIX = "ce-"
ATTRIBUTES = ("id", "source", "type", "specversion", "subject", "time", "datacontenttype", "dataschema")
_STRUCTURED = "application/cloudevents"
_JSON_EVENT = re.compile(r"application/cloudevents(\+json)?\s*(;|$)", re.I)
_JSON_DATA = re.compile(r"[^/]+/([^+;]+\+)?json\s*(;|$)", re.I)

Attributes = dict[str, Any]
Event = tuple[Attributes | None, bytes]


class NoEventError(ValueError):
    """A payload says that it is an event, and is none."""


class EventColumns:
    """Columns `cloudevent` and `data` of messages with headers.

    decompress: for compressed payloads. decoder: makes the column `data`; None if it is not wanted.
    """

    def __init__(self, decompress: Callable[[pa.BinaryArray], Plain] | None, decoder: Decoder | None) -> None:
        self.decompress = decompress
        self.decoder = decoder

    def record_batch(self, messages: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Rows of `schema` from a batch with the columns `headers` and `data` (binary)."""
        raw = messages.column("data")
        plain, spoiled = self.decompress(raw) if self.decompress is not None else (raw, [])
        attributes, payloads, lost = [], [], set(spoiled)
        rows = zip(_headers(messages.column("headers")), plain.to_pylist(), strict=True)
        for i, (headers, payload) in enumerate(rows):
            event: Event = (None, payload)
            if i not in lost:
                try:
                    event = event_of(headers, payload)
                except NoEventError:
                    lost.add(i)
            attributes.append(event[0])
            payloads.append(event[1])
        keep, arrays = None, []
        for field in schema:
            if field.name == "cloudevent":
                arrays.append(pa.array(attributes, field.type))
            elif field.name == "data" and self.decoder is not None:
                column, keep = self.decode(pa.array(payloads, pa.binary()), sorted(lost))
                arrays.append(column)
            else:
                arrays.append(messages.column(field.name))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return batch if keep is None else batch.filter(keep)

    def decode(self, payloads: pa.BinaryArray, lost: list[int]) -> Decoded:
        assert self.decoder is not None
        return self.decoder(payloads, lost)


def event_of(headers: dict[str, str], payload: bytes) -> Event:
    """The attributes of a message's event and its data. headers: names in lower case.

    Raises NoEventError for a payload that its Content-Type or `specversion` calls an event and that is none.
    """
    given = headers.get("content-type", "")
    if given.lower().startswith(_STRUCTURED):
        if not _JSON_EVENT.match(given):
            raise NoEventError(given)
        return _structured(payload)
    found = {
        name.removeprefix(PREFIX): _decoded(value)
        for name, value in headers.items()
        if name.startswith(PREFIX)
    }
    if found:
        if "datacontenttype" not in found and given:  # as HTTP's binding has it, which many senders use
            found["datacontenttype"] = given
        return _row(found), payload
    if payload.lstrip()[:1] == b"{" and b'"specversion"' in payload:
        return _structured(payload)
    return None, payload


def _structured(payload: bytes) -> Event:
    try:
        members = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        data, encoded = members.pop("data", None), members.pop("data_base64", None)
        values = {name: msgspec.json.decode(raw) for name, raw in members.items()}
        if "specversion" not in values:
            raise NoEventError("no specversion")
        if encoded is not None:
            return _row(values), base64.b64decode(msgspec.json.decode(encoded, type=str), validate=True)
        if data is None:
            return _row(values), b""
        kind = values.get("datacontenttype")
        if isinstance(kind, str) and not _JSON_DATA.match(kind) and bytes(data)[:1] == b'"':
            return _row(values), msgspec.json.decode(data, type=str).encode()
        return _row(values), bytes(data)
    except (msgspec.MsgspecError, binascii.Error, UnicodeDecodeError) as error:
        raise NoEventError(str(error)) from None


def _row(values: Attributes) -> Attributes:
    row = {name: _text(values.get(name)) for name in ATTRIBUTES}
    others = {name: _text(value) for name, value in values.items() if name not in ATTRIBUTES}
    return {**row, "time": _time(row["time"]), "extensions": others}


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()  # numbers and booleans, as headers have them


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = parse_iso8601(text.upper())
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)


def _decoded(value: str) -> str:
    """A header's value without the quotes and percent signs that its encoding adds."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    return unquote(value)


def _headers(column: pa.MapArray) -> Iterator[dict[str, str]]:
    """Of each row, the first value of each header by its name in lower case."""
    for pairs in column.to_pylist():
        found: dict[str, str] = {}
        for name, values in pairs or ():
            if values:
                found.setdefault(name.lower(), values[0])
        yield found
