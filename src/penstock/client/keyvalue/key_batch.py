"""Writes of several keys that are stored together or not at all, over atomic batches (ADR-50).

    async with kv.batch() as batch:
        batch.put("users.7.city", b"Springfield")
        batch.update("users.7.version", b"8", last_revision=version.revision)
    batch.revisions["users.7.city"]

The block collects the writes; its end sends them. A refusal of the server does not name the key whose
condition failed, so the keys with conditions are read from the leader then. Rejected: sending each write when
it is added (a block that raises would leave a batch open on the server until it times out).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.client.keyvalue.bucket_config import whole_seconds
from penstock.client.keyvalue.key_entry import KeyOperation
from penstock.client.keyvalue.key_subjects import check_key
from penstock.client.keyvalue.key_writes import (
    CREATE_ATTEMPTS,
    check_revision,
    key_exists,
    options_of,
    write_error,
    wrong_revision,
)
from penstock.client.message import Payload, encode_payload
from penstock.client.publishing import PublishOptions
from penstock.errors import JetStreamApiError, MisuseError, NoStreamError, WrongLastSequenceError

if TYPE_CHECKING:
    from penstock.client.keyvalue.key_value import KeyValue


@dataclass(frozen=True, slots=True)
class KeyWrite:
    """One write of a batch. expected: the key's last revision, None for any. is_create: a marker as the last
    entry is fine too."""

    key: str
    value: bytes
    operation: KeyOperation
    expected: int | None
    ttl_s: int | None
    is_create: bool = False

    @property
    def options(self) -> PublishOptions:
        """Options of its publish."""
        return options_of(self.operation, self.expected, self.ttl_s)


class KeyValueBatch:
    """Created by `KeyValue.batch`. Add writes inside `async with`; leaving the block stores them.

    revisions: key -> revision, after the block. Leaving the block by an exception stores nothing.
    """

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv
        self._writes: dict[str, KeyWrite] = {}
        self._is_open = False
        self.revisions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._writes)

    def put(self, key: str, value: Payload, *, ttl: float | timedelta | None = None) -> None:
        """As `KeyValue.put`. Raises MisuseError for a key that is in the batch already, InvalidKeyError."""
        self._add(key, value, ttl_s=None if ttl is None else self._kv.ttl_of_value(key, ttl))

    def create(self, key: str, value: Payload, *, ttl: float | timedelta | None = None) -> None:
        """As `KeyValue.create`. Raises what `put` raises."""
        self._add(key, value, expected=0, ttl_s=self._seconds(key, ttl), is_create=True)

    def update(
        self, key: str, value: Payload, *, last_revision: int, ttl: float | timedelta | None = None
    ) -> None:
        """As `KeyValue.update`. Raises what `put` raises."""
        ttl_s = None if ttl is None else self._kv.ttl_of_value(key, ttl)
        self._add(key, value, expected=check_revision(last_revision), ttl_s=ttl_s)

    def delete(self, key: str, *, last_revision: int | None = None) -> None:
        """As `KeyValue.delete`. Raises what `put` raises."""
        self._add(key, operation=KeyOperation.DELETE, expected=check_revision(last_revision))

    def purge(
        self, key: str, *, last_revision: int | None = None, ttl: float | timedelta | None = None
    ) -> None:
        """As `KeyValue.purge`. Raises what `put` raises."""
        expected = check_revision(last_revision)
        self._add(key, operation=KeyOperation.PURGE, expected=expected, ttl_s=self._seconds(key, ttl))

    def _seconds(self, key: str, ttl: float | timedelta | None) -> int | None:
        return None if ttl is None else whole_seconds(ttl, f"key {key!r} of bucket {self._kv.bucket!r}")

    def _add(
        self,
        key: str,
        value: Payload = b"",
        *,
        operation: KeyOperation = KeyOperation.PUT,
        expected: int | None = None,
        ttl_s: int | None = None,
        is_create: bool = False,
    ) -> None:
        if not self._is_open:
            raise MisuseError("writes are added inside of `async with kv.batch() as batch`")
        if check_key(key, self._kv.bucket) in self._writes:
            raise MisuseError(f"key {key!r} is in this batch already; a batch writes a key once")
        self._writes[key] = KeyWrite(key, encode_payload(value), operation, expected, ttl_s, is_create)

    # --- the end of the block ------------------------------------------------------------------

    async def __aenter__(self) -> KeyValueBatch:
        if self._is_open or self.revisions:
            raise MisuseError("this batch is in use already; make another by kv.batch()")
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Store the writes, unless the block raised.

        Raises KeyExistsError or WrongRevisionError for the first key whose condition does not hold,
        BatchNotEnabledError if the bucket does not have allow_atomic, PublishNotAckedError without an
        answer, and what `KeyValue.put` raises. Either all writes are stored or none.
        """
        self._is_open = False
        if kind is not None or not self._writes:
            return
        for _ in range(CREATE_ATTEMPTS):
            try:
                await self._commit()
                return
            except WrongLastSequenceError as refusal:
                await self._look_again(refusal)
                refused = refusal
        first = next(iter(self._writes))
        raise write_error(refused, self._kv.bucket, first, 0) from refused

    async def _commit(self) -> None:
        *firsts, last = self._writes.values()
        try:
            async with self._kv.js.atomic_batch(ack_first=False) as batch:
                for one in firsts:
                    await batch.add(self._kv.write_subject(one.key), one.value, ack=False, **one.options)
                ack = await batch.commit(self._kv.write_subject(last.key), last.value, **last.options)
        except WrongLastSequenceError:
            raise
        except (NoStreamError, JetStreamApiError) as error:
            raise write_error(error, self._kv.bucket, last.key, 0) from error
        first_revision = ack.seq - len(self._writes) + 1
        self.revisions = {key: first_revision + n for n, key in enumerate(self._writes)}

    async def _look_again(self, refusal: WrongLastSequenceError) -> None:
        """Raise the error of the first key whose condition does not hold, or expect the markers that keys to
        create have."""
        conditional = [one for one in self._writes.values() if one.expected is not None]
        found = await self._kv.last_entries([one.key for one in conditional])
        markers: dict[str, KeyWrite] = {}
        for one in conditional:
            entry = found.get(one.key)
            revision = entry.revision if entry is not None else 0
            if revision == one.expected:
                continue
            if not one.is_create:
                raise wrong_revision(self._kv.bucket, one.key, one.expected or 0, revision, refusal)
            if entry is not None and not entry.is_deleted:
                raise key_exists(self._kv.bucket, one.key, revision, refusal)
            markers[one.key] = replace(one, expected=revision)
        self._writes |= markers
