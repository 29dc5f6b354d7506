"""A key-value bucket: typed reads and writes of a stream with one subject per key (ADR-8, ADR-48).

    kv = await js.create_key_value("CONFIG", history=5)
    revision = await kv.put("db.url", b"...")
    entry = await kv.get("db.url")
    await kv.update("db.url", b"...", last_revision=entry.revision)

A revision is the entry's sequence in the bucket's stream. Reads that decide about a later write go to the
stream's leader; `get` reads from any replica, which may lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.client.config import StreamInfo, to_ns
from penstock.client.direct import StoredMessage
from penstock.client.keyvalue.bucket_config import (
    KeyValueConfig,
    KeyValueStatus,
    config_of,
    status_of,
    whole_seconds,
)
from penstock.client.keyvalue.bulk_get import chunks_of, entry_of_raw, last_messages
from penstock.client.keyvalue.election import LeaderElection
from penstock.client.keyvalue.key_batch import KeyValueBatch
from penstock.client.keyvalue.key_entry import KeyOperation, KeyValueEntry, entry_of
from penstock.client.keyvalue.key_subjects import ALL_KEYS, KeySubjects, check_key, check_key_filter
from penstock.client.keyvalue.key_watch import KeyWatcher, deliver_settings
from penstock.client.keyvalue.key_writes import (
    CREATE_ATTEMPTS,
    bucket_not_found,
    check_revision,
    key_exists,
    write,
)
from penstock.client.keyvalue.lease import Claim, KeyLease
from penstock.client.keyvalue.lock import KeyLock
from penstock.client.message import Payload
from penstock.client.stream import Stream
from penstock.errors import (
    KeyDeletedError,
    KeyNotFoundError,
    MessageNotFoundError,
    MisuseError,
    StreamNotFoundError,
    WrongRevisionError,
)
from penstock.protocol.durations import parse_time

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream

# Requests in flight of a read of many keys where each needs one.
GETS_AT_ONCE = 64
MARKERS_KEPT_S = 30 * 60.0


class KeyValue:
    """A bucket, returned by `JetStream.key_value`, `create_key_value` and similar methods.

    bucket: its name. stream: the handle of its stream. js: the context it was opened in.
    """

    def __init__(self, js: JetStream, info: StreamInfo) -> None:
        self.js = js
        self.stream = Stream(js, info)
        self._config = config_of(info.config)
        self.bucket = self._config.bucket
        self._subjects = KeySubjects.of(info.config, js.prefix)

    def __repr__(self) -> str:
        return f"<KeyValue {self.bucket!r}>"

    @property
    def config(self) -> KeyValueConfig:
        """The configuration as of this handle's creation; `status` requests the current one."""
        return self._config

    async def status(self) -> KeyValueStatus:
        """Request configuration and size. Raises BucketNotFoundError."""
        try:
            return status_of(await self.stream.info())
        except StreamNotFoundError as error:
            raise bucket_not_found(self.bucket) from error

    # --- reading -------------------------------------------------------------------------------

    async def get(
        self, key: str, revision: int | None = None, *, direct: bool | None = None
    ) -> KeyValueEntry:
        """The key's last entry, or the one of a revision.

        direct: True reads from any replica, False from the leader, which never lags; None reads from any
        replica where the bucket allows it.

        Raises KeyNotFoundError; KeyDeletedError, which is one, for a marker; BucketNotFoundError.
        """
        entry = await self._entry(check_key(key, self.bucket), revision, direct)
        if entry is None:
            raise self._not_found(key, revision)
        if entry.is_deleted:
            text = f"key {key!r} of bucket {self.bucket!r} has no value since revision {entry.revision}"
            how = "deleted" if entry.operation is KeyOperation.DELETE else "purged, or its value expired"
            raise KeyDeletedError(
                404, 10037, f"{text}: it was {how}", bucket=self.bucket, key=key, revision=entry.revision
            )
        return entry

    async def _entry(self, key: str, revision: int | None, direct: bool | None) -> KeyValueEntry | None:
        """The key's last entry or the one of a revision, markers included; None if there is none."""
        subject = self._subjects.read + key
        try:
            if revision is None:
                message = await self.stream.get_last_message(subject, direct=direct)
            else:
                message = await self._message_of(revision, direct)
        except MessageNotFoundError:
            return None
        except StreamNotFoundError as error:
            raise bucket_not_found(self.bucket) from error
        if message.subject != subject:
            raise self._not_found(key, revision, message.subject.removeprefix(self._subjects.read))
        return entry_of(message, self.bucket, self._subjects.read)

    async def _message_of(self, revision: int, direct: bool | None) -> StoredMessage:
        if revision < 1:
            raise MisuseError(f"revision is {revision}; revisions start at 1")
        return await self.stream.get_message(revision, direct=direct)

    def _not_found(self, key: str, revision: int | None, other: str = "") -> KeyNotFoundError:
        text = f"bucket {self.bucket!r} has no key {key!r}"
        if revision is not None:
            text = f"key {key!r} of bucket {self.bucket!r} has no revision {revision}"
            text += f", which is one of {other!r}" if other else "; history() lists those that are kept"
        return KeyNotFoundError(404, 10037, text, bucket=self.bucket, key=key, revision=revision or 0)

    async def get_many(self, keys: Iterable[str]) -> dict[str, KeyValueEntry]:
        """The last entries of many keys, in the order asked for, without the keys that have no value.

        It asks for up to 1,024 keys in one request, whose entries are of one moment. Raises
        BucketNotFoundError, DisconnectedError, RequestTimeoutError.
        """
        wanted = [check_key(key, self.bucket) for key in keys]
        read = self._subjects.read
        if not self.stream.config.allow_direct:
            found = await self.last_entries(wanted)
        else:
            found = {}
            prefix = read.encode()
            for chunk in chunks_of(dict.fromkeys(read + key for key in wanted)):
                try:
                    messages = await last_messages(self.js, self.stream.name, chunk)
                except StreamNotFoundError as error:
                    raise bucket_not_found(self.bucket) from error
                for raw in messages:
                    entry = entry_of_raw(raw, self.bucket, prefix)
                    found[entry.key] = entry
        return {key: found[key] for key in wanted if key in found and not found[key].is_deleted}

    async def last_entry(self, key: str) -> KeyValueEntry | None:
        """The last entry of a key, markers included, from the leader; None if there is none. Internal."""
        return await self._entry(key, None, False)

    async def last_entries(self, keys: list[str]) -> dict[str, KeyValueEntry]:
        """The last entries of keys, markers included, from the leader; internal. One request per key."""
        found: dict[str, KeyValueEntry] = {}
        for start in range(0, len(keys), GETS_AT_ONCE):
            some = keys[start : start + GETS_AT_ONCE]
            entries = await asyncio.gather(*(self.last_entry(key) for key in some))
            found |= {entry.key: entry for entry in entries if entry is not None}
        return found

    async def history(self, key: str) -> list[KeyValueEntry]:
        """The kept entries of a key, oldest first, markers included. Raises KeyNotFoundError if none is."""
        check_key(key, self.bucket)
        async with self.watch(key, include_history=True) as watch:
            found = await watch.initial()
        if not found:
            raise self._not_found(key, None)
        return found

    def watch(
        self,
        *filters: str,
        include_history: bool = False,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        resume_from_revision: int | None = None,
    ) -> KeyWatcher:
        """Watch keys: their current entries, then None once, then entries as they are written.

        filters: keys, with the wildcards `*` and `>`; default all keys. include_history: start with all kept
        entries. updates_only: start with the next one. ignore_deletes: leave out markers. meta_only: entries
        without values. resume_from_revision: start with the entries from this revision on.

        Iterating raises BucketNotFoundError if the bucket does not exist or is deleted. Raises
        InvalidKeyError, and MisuseError for contradicting options.
        """
        settings = deliver_settings(
            include_history=include_history,
            updates_only=updates_only,
            resume_from_revision=resume_from_revision,
        )
        read = self._subjects.read
        subjects = [read + check_key_filter(one, self.bucket) for one in filters or (ALL_KEYS,)]
        if len(subjects) == 1:
            settings["filter_subject"] = subjects[0]
        else:
            settings["filter_subjects"] = subjects
        settings["headers_only"] = meta_only
        return KeyWatcher(self.stream, self.bucket, read, settings, ignore_deletes=ignore_deletes)

    async def keys(self, *filters: str) -> AsyncIterator[str]:
        """Yield the keys that have a value, each once. filters: as for `watch`; default all keys."""
        seen: set[str] = set()  # a key that is written meanwhile comes again
        async with self.watch(*filters, ignore_deletes=True, meta_only=True) as watch:
            async for entry in watch:
                if entry is None:
                    return
                if entry.key not in seen:
                    seen.add(entry.key)
                    yield entry.key

    # --- writing -------------------------------------------------------------------------------

    async def put(self, key: str, value: Payload, *, ttl: float | timedelta | None = None) -> int:
        """Store a value whatever the key's last entry is. Returns its revision.

        ttl: whole seconds after which it expires. The bucket needs limit_marker_ttl, and a history of 1:
        with more, the value before this one would come back.

        Raises InvalidKeyError, BucketNotFoundError, ValueTooLargeError, BucketFullError,
        KeyTtlNotEnabledError, and what `JetStream.publish` raises.
        """
        ttl_s = None if ttl is None else self.ttl_of_value(key, ttl)
        return await self.write(check_key(key, self.bucket), value, ttl_s=ttl_s)

    async def create(self, key: str, value: Payload, *, ttl: float | timedelta | None = None) -> int:
        """Store a value if the key has none, or its last entry is a marker. Returns its revision.

        ttl: whole seconds after which it expires; the bucket needs limit_marker_ttl. Raises KeyExistsError,
        and what `put` raises.
        """
        check_key(key, self.bucket)
        ttl_s = None if ttl is None else whole_seconds(ttl, f"key {key!r} of bucket {self.bucket!r}")
        expected = 0
        for _ in range(CREATE_ATTEMPTS):
            try:
                return await self.write(key, value, expected=expected, ttl_s=ttl_s)
            except WrongRevisionError as error:
                last = await self.last_entry(key)
                refused = key_exists(self.bucket, key, last.revision if last else error.found, error)
                if last is not None and not last.is_deleted:
                    raise refused from error
                expected = last.revision if last is not None else 0
        raise refused

    async def update(
        self, key: str, value: Payload, *, last_revision: int, ttl: float | timedelta | None = None
    ) -> int:
        """Store a value if the key's last entry has this revision (0: there is none). Returns its revision.

        ttl: as for `put`. Raises WrongRevisionError, and what `put` raises.
        """
        ttl_s = None if ttl is None else self.ttl_of_value(key, ttl)
        check_key(key, self.bucket)
        return await self.write(key, value, expected=check_revision(last_revision), ttl_s=ttl_s)

    async def delete(self, key: str, *, last_revision: int | None = None) -> int:
        """Store a marker that the key has no value, and return its revision. Earlier entries are kept.

        last_revision: only if the key's last entry has this revision. Raises WrongRevisionError, and what
        `put` raises. A key without a value gets a marker too.
        """
        check_key(key, self.bucket)
        expected = check_revision(last_revision)
        return await self.write(key, operation=KeyOperation.DELETE, expected=expected)

    async def purge(
        self, key: str, *, last_revision: int | None = None, ttl: float | timedelta | None = None
    ) -> int:
        """Remove all entries of a key and store a marker that it has no value. Returns the marker's revision.

        ttl: whole seconds after which the marker goes too; the bucket needs limit_marker_ttl. last_revision,
        errors: as for `delete`.
        """
        check_key(key, self.bucket)
        ttl_s = None if ttl is None else whole_seconds(ttl, f"key {key!r} of bucket {self.bucket!r}")
        expected = check_revision(last_revision)
        return await self.write(key, operation=KeyOperation.PURGE, expected=expected, ttl_s=ttl_s)

    async def write(
        self,
        key: str,
        value: Payload = b"",
        *,
        operation: KeyOperation = KeyOperation.PUT,
        expected: int | None = None,
        ttl_s: int | None = None,
    ) -> int:
        """Store an entry without checks of its key and TTL; internal."""
        subject = self.write_subject(key)
        return await write(
            self.js, self.bucket, subject, key, value, operation, expected=expected, ttl_s=ttl_s
        )

    def write_subject(self, key: str) -> str:
        """The subject that writes of a key are published to; internal."""
        return self._subjects.write + key

    def batch(self) -> KeyValueBatch:
        """Writes of several keys that are stored together or not at all: see `KeyValueBatch`.

        The bucket needs allow_atomic.
        """
        return KeyValueBatch(self)

    def ttl_of_value(self, key: str, ttl: float | timedelta) -> int:
        """The TTL of an unconditional value in whole seconds; internal. Raises MisuseError."""
        if self._config.history > 1:
            raise MisuseError(
                f"key {key!r}: bucket {self.bucket!r} keeps {self._config.history} entries per key, so that "
                "the value before one that expires would come back; use create(), or a bucket with history=1"
            )
        return whole_seconds(ttl, f"key {key!r} of bucket {self.bucket!r}")

    async def purge_deletes(self, *, older_than: float | timedelta = MARKERS_KEPT_S) -> int:
        """Remove the entries of all keys whose last entry is a marker. Returns the number of removed entries.

        older_than: seconds; younger markers are kept, so that watches which resume later see them.
        """
        kept_ns = to_ns(older_than, "older_than")
        async with self.watch(meta_only=True) as watch:
            markers = [entry for entry in await watch.initial() if entry.is_deleted]
        now_ns = parse_time((await self.stream.info()).ts) if markers else 0
        removed = 0
        for marker in markers:
            # Up to a sequence, not by keep=1 or all: entries written meanwhile must stay.
            is_old = now_ns - marker.created_ns >= kept_ns
            end_seq = marker.revision + 1 if is_old else marker.revision
            removed += await self.stream.purge(self._subjects.read + marker.key, seq=end_seq)
        return removed

    # --- locks ---------------------------------------------------------------------------------

    def lock(
        self,
        key: str,
        *,
        ttl: float | timedelta,
        holder: str = "",
        timeout: float | None = None,
    ) -> KeyLock:
        """A lock: `async with kv.lock("report", ttl=30) as lease` runs its block in one client at a time.

        ttl: whole seconds after which the lock of a client that is gone is free; it is renewed while the
        block runs. holder: a name to show. timeout: seconds to wait, 0 tries once, None waits without limit.
        If the lock is lost, the block is cancelled: see `KeyLock`. `lease.token` is the fencing token.

        The bucket needs limit_marker_ttl. Raises MisuseError and InvalidKeyError.
        """
        return KeyLock(self, *self._held(key, holder, ttl), timeout)

    async def lease(
        self,
        key: str,
        *,
        ttl: float | timedelta,
        holder: str = "",
        timeout: float | None = None,
    ) -> KeyLease:
        """Take a key as `lock` does, and keep it until `KeyLease.release`. Losing it cancels nothing.

        Raises LockNotAcquiredError, and what `create` raises.
        """
        return await Claim(self, *self._held(key, holder, ttl)).wait(timeout)

    def elect(self, key: str, candidate: str, *, ttl: float | timedelta) -> LeaderElection:
        """Take part in the election of a leader: see `LeaderElection`.

        candidate: the name of this one. ttl: whole seconds after which another candidate leads if this one
        is gone. The bucket needs limit_marker_ttl. Raises MisuseError and InvalidKeyError.
        """
        return LeaderElection(self, *self._held(key, candidate, ttl))

    def _held(self, key: str, holder: str, ttl: float | timedelta) -> tuple[str, str, int]:
        """Key, holder and TTL in seconds of a lease, checked."""
        ttl_s = whole_seconds(ttl, f"key {check_key(key, self.bucket)!r} of bucket {self.bucket!r}")
        config = self._config
        if config.history > 1 and ttl_s < config.limit_marker_ttl:
            raise MisuseError(
                f"key {key!r}: ttl is {ttl_s} s, which servers raise to limit_marker_ttl "
                f"({config.limit_marker_ttl:g} s) in bucket {self.bucket!r} with its history of "
                f"{config.history}; use a bucket with history=1"
            )
        return key, holder, ttl_s
