"""Entries of a bucket: what a key's messages say (ADR-8, ADR-48)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from penstock.client.direct import StoredMessage
from penstock.protocol import headers as names
from penstock.protocol.durations import NS_PER_S


class KeyOperation(StrEnum):
    """What an entry records. PURGE: also that all earlier entries of the key were removed, or that its value
    expired."""

    PUT = "PUT"
    DELETE = "DEL"
    PURGE = "PURGE"


_OPERATION_OF_HEADER = {b"DEL": KeyOperation.DELETE, b"PURGE": KeyOperation.PURGE}
# Reasons of markers that servers store in place of removed messages (ADR-43).
_OPERATION_OF_REASON = {
    b"MaxAge": KeyOperation.PURGE,
    b"Purge": KeyOperation.PURGE,
    b"Remove": KeyOperation.DELETE,
}


class KeyValueEntry(msgspec.Struct, frozen=True, gc=False):
    """One revision of a key.

    value: b"" for markers, and when a watch delivers only headers. revision: its sequence in the bucket.
    created_ns: store time, nanoseconds since 1970 UTC. delta: entries that were to follow in the read that
    returned it. gc=False is safe, as its fields refer to no container.
    """

    bucket: str
    key: str
    value: bytes
    revision: int
    created_ns: int
    operation: KeyOperation = KeyOperation.PUT
    delta: int = 0

    @property
    def created(self) -> datetime:
        """Store time in UTC, with microseconds."""
        seconds, rest = divmod(self.created_ns, NS_PER_S)
        return datetime.fromtimestamp(seconds, tz=UTC) + timedelta(microseconds=rest // 1000)

    @property
    def is_deleted(self) -> bool:
        """Whether it is a marker: the key has no value at this revision."""
        return self.operation is not KeyOperation.PUT


def operation_of(block: bytes | None) -> KeyOperation:
    """The operation in a message's header block.

    A client's header wins over a server's: a server that copies a client's marker adds its own reason.
    """
    if not block:
        return KeyOperation.PUT
    written = names.value_of(block, names.KV_OPERATION)
    if written:
        return _OPERATION_OF_HEADER.get(written, KeyOperation.PUT)
    reason = names.value_of(block, names.MARKER_REASON)
    return _OPERATION_OF_REASON.get(reason, KeyOperation.PUT) if reason else KeyOperation.PUT


def entry_of(message: StoredMessage, bucket: str, prefix: str) -> KeyValueEntry:
    """The entry in a stored message. prefix: of the bucket's subjects."""
    return KeyValueEntry(
        bucket,
        message.subject.removeprefix(prefix),
        message.data,
        message.seq,
        message.time_ns,
        operation_of(message.headers.encode()) if message.headers else KeyOperation.PUT,
    )
