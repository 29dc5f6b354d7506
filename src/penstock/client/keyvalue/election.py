"""Leader election: of several candidates, one at a time leads, by a lease of a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.client.keyvalue.lease import Claim, KeyLease, holder_of
from penstock.errors import ClientError, JetStreamError

if TYPE_CHECKING:
    from penstock.client.keyvalue.key_value import KeyValue


class LeaderElection:
    """Created by `KeyValue.elect`; use it in `async with`. The candidate campaigns until the block ends, and
    again after it lost the lead.

        async with kv.elect("scheduler", "node-1", ttl=10) as election:
            lease = await election.until_leader()
            while lease.is_held: ...
    """

    def __init__(self, kv: KeyValue, key: str, candidate: str, ttl_s: int) -> None:
        self.candidate = candidate
        self._kv = kv
        self._key = key
        self._ttl_s = ttl_s
        self._lease: KeyLease | None = None
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._campaign: asyncio.Task[None] | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads, as far as it knows."""
        return self._lease is not None and self._lease.is_held

    @property
    def lease(self) -> KeyLease | None:
        """The lease of the current lead; None if this candidate does not lead."""
        return self._lease if self.is_leader else None

    async def until_leader(self) -> KeyLease:
        """Wait until this candidate leads. Raises what the campaign ended with (BucketNotFoundError, ...)."""
        while True:
            if self._error is not None:
                raise self._error
            if self._lease is not None and self._lease.is_held:
                return self._lease
            self._changed.clear()
            await self._changed.wait()

    async def leader(self) -> str | None:
        """Name of the candidate that leads; None while there is none."""
        found = holder_of(await self._kv.last_entry(self._key))
        return found.holder if found is not None else None

    async def leaders(self) -> AsyncIterator[str | None]:
        """Yield the leading candidate's name, or None, now and whenever it changes."""
        known: tuple[str | None] | None = None
        async with self._kv.watch(self._key) as watch:
            latest: str | None = None
            async for entry in watch:
                if entry is not None:
                    found = holder_of(entry)
                    latest = found.holder if found is not None else None
                if watch.is_initial_done and known != (latest,):
                    known = (latest,)
                    yield latest

    async def __aenter__(self) -> LeaderElection:
        """Start the campaign. Raises what `KeyValue.create` raises, so that a wrong bucket shows at once."""
        self._lease = await self._claim().attempt()
        self._campaign = self._kv.js.session.spawn(self._run(), f"election {self._key}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the campaign and give the lead back."""
        assert self._campaign is not None
        self._campaign.cancel()
        await asyncio.wait((self._campaign,))
        if self._lease is not None:
            await self._lease.release()

    def _claim(self) -> Claim:
        return Claim(self._kv, self._key, self.candidate, self._ttl_s)

    async def _run(self) -> None:
        try:
            while True:
                if self._lease is None:
                    self._lease = await self._claim().wait(None)
                self._changed.set()
                await self._lease.until_ended()
                self._lease = None
        except (ClientError, JetStreamError) as error:
            self._error = error
            self._changed.set()
