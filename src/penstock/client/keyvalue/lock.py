"""Locks: a block of code that one client at a time runs, on a lease of a key."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.client.keyvalue.lease import Claim, KeyLease

if TYPE_CHECKING:
    from penstock.client.keyvalue.key_value import KeyValue


class KeyLock:
    """Created by `KeyValue.lock`; use it in `async with`, which gives the lease.

    If the lock is lost while the block runs, the block is cancelled at its next await and the `async with`
    raises LockLostError, as `asyncio.timeout` does with TimeoutError: code that goes on after another client
    took the lock is what locks exist to prevent.
    """

    def __init__(self, kv: KeyValue, key: str, holder: str, ttl_s: int, timeout: float | None) -> None:
        self._claim = Claim(kv, key, holder, ttl_s)
        self._timeout = timeout
        self._lease: KeyLease | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._has_cancelled = False

    async def __aenter__(self) -> KeyLease:
        """Wait for the lock. Raises LockNotAcquiredError, and what `KeyValue.create` raises."""
        self._lease = await self._claim.wait(self._timeout)
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._lease.call_when_lost(self._cancel)
        return self._lease

    def _cancel(self) -> None:
        assert self._task is not None
        self._has_cancelled = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock. Raises LockLostError if it was lost, unless the block raised something else."""
        assert self._lease is not None
        assert self._task is not None
        if not self._has_cancelled:
            await self._lease.release()
            return
        is_outer = self._task.uncancel() > self._cancelling  # cancelled from elsewhere too
        if not is_outer and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise self._lease.error() from error
