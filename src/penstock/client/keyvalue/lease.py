"""Leases: keys that one client at a time holds, and keeps by renewing their TTL.

Theory of operation: `create` decides who holds the key, and a TTL of the key ends the hold of a client that
is gone. The holder writes the key again every third of the TTL, by compare and set on the revision of its
last write, so that a holder that was replaced can not take the key back. The client counts the TTL from when
it sent the last confirmed write, the server from when it stored it: the client's hold ends first.

A write without an answer may be stored. The value holds a unique id, by which the client recognises its own
write. A client that waits watches the key; it also tries when a TTL has passed, for buckets that store no
marker where a key expires.

The revision of the first write is the fencing token: it is higher than that of every earlier holder, and a
service that keeps the highest token it has seen can refuse the requests of a holder that was replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.client.keyvalue.key_entry import KeyValueEntry
from penstock.client.requests import new_nuid
from penstock.errors import (
    ClientError,
    ConnectionClosedError,
    JetStreamApiError,
    JetStreamError,
    KeyExistsError,
    LockLostError,
    LockNotAcquiredError,
    PublishNotAckedError,
    WrongRevisionError,
)

if TYPE_CHECKING:
    from penstock.client.keyvalue.key_value import KeyValue

RENEWALS_PER_TTL = 3
# Pause after a renewal or an attempt that failed for a reason that may pass.
RETRY_WAIT_S = 0.25


class LeaseValue(msgspec.Struct, frozen=True):
    """The value of a held key, as JSON. holder: a name for people and programs. id: unique per hold."""

    holder: str = ""
    id: str = ""


def holder_of(entry: KeyValueEntry | None) -> LeaseValue | None:
    """Who holds the key with this last entry; None if it is free."""
    if entry is None or entry.is_deleted:
        return None
    try:
        return msgspec.json.decode(entry.value, type=LeaseValue)
    except msgspec.DecodeError:
        return LeaseValue()  # a key of another kind: it is in use


class KeyLease:
    """A held key, returned by `KeyValue.lease` and `KeyValue.lock`.

    key: what is held. holder: the name given. token: the fencing token.
    """

    def __init__(
        self, kv: KeyValue, key: str, value: LeaseValue, ttl_s: int, revision: int, sent_at: float
    ) -> None:
        self.key = key
        self.holder = value.holder
        self.token = revision
        self._kv = kv
        self._value = value
        self._ttl_s = ttl_s
        self._revision = revision
        self._ended = False
        self._lost = ""
        self._on_lost: Callable[[], object] | None = None
        self._loop = kv.js.session.loop
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._expiry = self._loop.call_at(sent_at + ttl_s, self._expire)
        self._renewal = kv.js.session.spawn(self._renew(), f"lease of {key}")

    def __repr__(self) -> str:
        state = "held" if self.is_held else "lost" if self._lost else "released"
        return f"<KeyLease of {self.key!r} {state} token={self.token}>"

    @property
    def is_held(self) -> bool:
        """Whether this client holds the key, as far as it knows: it was neither released nor lost."""
        return not self._ended

    @property
    def lost(self) -> str:
        """Why the key was lost; "" if it was not."""
        return self._lost

    def check(self) -> None:
        """Raise LockLostError unless the key is held."""
        if self._ended:
            raise self.error()

    def error(self) -> LockLostError:
        """The error for a lease that is not held."""
        bucket, why = self._kv.bucket, self._lost or "it was released"
        text = f"key {self.key!r} of bucket {bucket!r} is no longer held by {self.holder!r}: {why}"
        return LockLostError(text, bucket=bucket, key=self.key)

    async def until_ended(self) -> None:
        """Wait until the key is lost or released."""
        await asyncio.shield(self._end)

    def call_when_lost(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the key is lost; internal."""
        self._on_lost = callback

    async def release(self) -> None:
        """Give the key back, so that another client can take it at once. No effect if it is not held.

        If the server can not be reached, the key is free when its TTL has passed.
        """
        if self._ended:
            return
        self._finish()
        self._renewal.cancel()
        await asyncio.wait((self._renewal,))
        with contextlib.suppress(ClientError, JetStreamError):
            try:
                await self._purge(self._revision)
            except WrongRevisionError:
                # A renewal may have been stored without its answer.
                entry = await self._kv.last_entry(self.key)
                if entry is not None and holder_of(entry) == self._value:
                    await self._purge(entry.revision)

    async def _purge(self, revision: int) -> None:
        await self._kv.purge(self.key, last_revision=revision, ttl=self._ttl_s)

    async def __aenter__(self) -> KeyLease:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    # --- keeping it ----------------------------------------------------------------------------

    async def _renew(self) -> None:
        pause_s = self._ttl_s / RENEWALS_PER_TTL
        while not self._ended:
            await asyncio.sleep(pause_s)
            try:
                await self._kv.js.session.until_connected()
                sent_at = self._loop.time()
                self._revision = await self._kv.write(
                    self.key, encoded(self._value), expected=self._revision, ttl_s=self._ttl_s
                )
            except WrongRevisionError as error:
                found = await self._revision_of_ours()
                if found == 0:
                    self._lose(f"another client wrote it at revision {error.found}")
                    return
                self._revision = found or self._revision
                pause_s = 0 if found else RETRY_WAIT_S
            except (ClientError, JetStreamError):
                pause_s = min(RETRY_WAIT_S, self._ttl_s / RENEWALS_PER_TTL)
            else:
                pause_s = self._ttl_s / RENEWALS_PER_TTL
                self._expiry.cancel()
                self._expiry = self._loop.call_at(sent_at + self._ttl_s, self._expire)

    async def _revision_of_ours(self) -> int | None:
        """Revision of the last entry if it is a renewal of this client, whose answer was lost.

        0 if it is not, None if it can not be read.
        """
        try:
            entry = await self._kv.last_entry(self.key)
        except (ClientError, JetStreamError):
            return None
        return entry.revision if entry is not None and holder_of(entry) == self._value else 0

    def _expire(self) -> None:
        self._lose(f"no renewal was confirmed within its TTL of {self._ttl_s} s")

    def _lose(self, why: str) -> None:
        if not self._ended:
            self._lost = why
            self._finish()
            self._renewal.cancel()
            if self._on_lost is not None:
                self._on_lost()

    def _finish(self) -> None:
        self._ended = True
        self._expiry.cancel()
        if not self._end.done():
            self._end.set_result(None)


def encoded(value: LeaseValue) -> bytes:
    return msgspec.json.encode(value)


# --- taking a key ------------------------------------------------------------------------------------


class Claim:
    """Attempts of one client to take a key."""

    def __init__(self, kv: KeyValue, key: str, holder: str, ttl_s: int) -> None:
        self._kv = kv
        self._key = key
        self._ttl_s = ttl_s
        self._value = LeaseValue(holder, new_nuid())
        self._loop = kv.js.session.loop

    async def wait(self, timeout: float | None) -> KeyLease:
        """Take the key when it is free. timeout: seconds, 0 tries once, None waits without limit.

        Raises LockNotAcquiredError, and what `KeyValue.create` raises at the first attempt.
        """
        lease = await self.attempt()
        if lease is not None:
            return lease
        if timeout is None or timeout > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    return await self._wait_free()
        holder = holder_of(await self._kv.last_entry(self._key)) or LeaseValue()
        text = f"key {self._key!r} of bucket {self._kv.bucket!r} stayed with {holder.holder!r}"
        raise LockNotAcquiredError(
            f"{text} for {timeout:g} s", bucket=self._kv.bucket, key=self._key, holder=holder.holder
        )

    async def attempt(self) -> KeyLease | None:
        """Try once; None if the key is held."""
        sent_at = self._loop.time()
        try:
            revision = await self._kv.create(self._key, encoded(self._value), ttl=self._ttl_s)
        except KeyExistsError:
            return None
        except PublishNotAckedError:
            entry = await self._kv.last_entry(self._key)
            if entry is None or holder_of(entry) != self._value:
                raise
            revision = entry.revision
        return KeyLease(self._kv, self._key, self._value, self._ttl_s, revision, sent_at)

    async def _wait_free(self) -> KeyLease:
        while True:
            try:
                await self._kv.js.session.until_connected()
                await self._until_free()
                lease = await self.attempt()
                if lease is not None:
                    return lease
            except (JetStreamApiError, ConnectionClosedError):
                raise
            except (ClientError, JetStreamError):
                await asyncio.sleep(RETRY_WAIT_S)

    async def _until_free(self) -> None:
        """Return when the key has no value, or a TTL has passed: an expired key may leave no marker."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._ttl_s), self._kv.watch(self._key, meta_only=True) as watch:
                state: KeyValueEntry | None = None
                async for entry in watch:
                    state = entry or state
                    if watch.is_initial_done and (state is None or state.is_deleted):
                        return
