"""What clients give as passwords and tokens against what is configured, plain or as a bcrypt hash.

Plain passwords are compared in a time that tells nothing. A bcrypt hash costs a tenth of a second and more by
design: whoever asks finds out first (`is_slow`), and has such a comparison made by a thread (`run`), so that
the event loop serves everybody else. Of a hash the password that proved right is remembered, as a keyed
digest, over reloads too: who comes again costs nothing.

Invariant: each `done` is called by the loop's thread, and not at all once its loop is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

THREADS = 2
"""One expensive hash must not keep all others waiting; more threads would only take the loop's processor."""

T = TypeVar("T")
_BCRYPT = ("$2a$", "$2b$", "$2x$", "$2y$")


def is_bcrypt(password: str) -> bool:
    """Is a configured password a bcrypt hash?"""
    return password.startswith(_BCRYPT)


class Passwords:
    """Compares, and remembers what was proven."""

    def __init__(self) -> None:
        self._key = b""
        self._proven: dict[str, bytes] = {}  # bcrypt hash: keyed digest of its password
        self._threads: ThreadPoolExecutor | None = None

    def match(self, given: str, expected: str) -> bool:
        """Is this the configured password? Any thread may ask."""
        import hmac  # imported when first needed: it costs start-up time

        if not is_bcrypt(expected):
            return hmac.compare_digest(given.encode(), expected.encode())
        if self._is_proven(given, expected):
            return True
        if not matches_bcrypt(given, expected):
            return False
        self._proven[expected] = self._digest(given)
        return True

    def is_slow(self, given: str, expected: str) -> bool:
        """Would `match` compute a hash?"""
        return is_bcrypt(expected) and not self._is_proven(given, expected)

    def _is_proven(self, given: str, expected: str) -> bool:
        import hmac

        known = self._proven.get(expected)
        return known is not None and hmac.compare_digest(known, self._digest(given))

    def _digest(self, password: str) -> bytes:
        import hmac
        import os

        if not self._key:
            self._key = os.urandom(32)
        return hmac.digest(self._key, password.encode(), "sha256")

    # -- threads

    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Has a thread do the work; `done` gets what it returned. The threads start with the first work."""
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        loop = asyncio.get_running_loop()

        def come_back(future: Future[T]) -> None:
            if not future.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(lambda: done(future.result()))

        self._threads.submit(work).add_done_callback(come_back)

    def close(self) -> None:
        """Drops what waits for a thread; a hash that is being computed is let go."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def matches_bcrypt(given: str, expected: str) -> bool:
    """bcrypt takes at most 72 bytes; a longer password matches nothing, as with the official server."""
    import bcrypt

    try:
        return bcrypt.checkpw(given.encode(), expected.encode())
    except ValueError:  # no hash after all, or too long a password
        return False
