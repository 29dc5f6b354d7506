"""Compares passwords and tokens with configured ones, in plain text or as bcrypt hashes.

Plain passwords are compared in constant time. A bcrypt hash takes a tenth of a second and more by design.
Callers check first (`is_slow`) and run such a comparison in a thread (`run`), so that the event loop is not
blocked. A verified password is cached as a keyed digest, also across reloads, so that reconnects are cheap.

Any client can make the server compute hashes, so pending checks are scheduled fairly: round-robin by network,
and within a network by configured user. Wrong logins from other networks, or for other users, delay a valid
one by one check each, however many they are. Rejected: a FIFO queue, whose length an attacker controls; and
refusing logins above a queue length, which an attacker controls as well.

Invariant: the loop's thread calls each `done`, and never after its loop is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock import faults

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from penstock.server.auth.authenticator import Identity

THREADS = 2
"""One expensive hash must not block all others; more threads would only take CPU time from the loop."""

_BCRYPT = ("$2a$", "$2b$", "$2x$", "$2y$")
_NO_PASSWORD = "." * 53  # salt and hash in bcrypt's own base64


def is_bcrypt(password: str) -> bool:
    """Whether a configured password is a bcrypt hash."""
    return password.startswith(_BCRYPT)


def stand_in(passwords: Iterable[str]) -> str:
    """A bcrypt hash that no password matches, with the most common cost of `passwords`.

    "" when none of them is a bcrypt hash.
    """
    hashes = [password for password in passwords if is_bcrypt(password)]
    if not hashes:
        return ""
    costs = Counter(cost for cost in (hash[4:6] for hash in hashes) if cost.isdigit())
    cost = max(costs, key=lambda cost: (costs[cost], cost), default="10")
    return f"$2b${cost}${_NO_PASSWORD}"


def network_of(host: str) -> str:
    """The network of an address for scheduling: the first 64 bits of IPv6, or the IPv4 address."""
    if ":" not in host:
        return host
    import ipaddress

    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped  # IPv4 clients of a listener on [::]
    return str(mapped) if mapped is not None else address.packed[:8].hex()


class PasswordCheck(NamedTuple):
    """A comparison to run in a thread."""

    work: Callable[[], Identity | None]
    done: Callable[[Identity | None], None]
    is_wanted: Callable[[], bool]
    failed: Callable[[Exception], object]
    """Called with an exception of any of the others."""


class PasswordQueue:
    """Pending checks, taken round-robin by network, and within a network by user."""

    def __init__(self) -> None:
        self._networks: dict[str, dict[str, deque[PasswordCheck]]] = {}

    def add(self, network: str, user: str, check: PasswordCheck) -> None:
        self._networks.setdefault(network, {}).setdefault(user, deque()).append(check)

    def take(self) -> PasswordCheck | None:
        """The next check; None when there is none."""
        network = next(iter(self._networks), None)
        if network is None:
            return None
        users = self._networks.pop(network)
        user = next(iter(users))
        jobs = users.pop(user)
        check = jobs.popleft()
        if jobs:
            users[user] = jobs  # moves to the end
        if users:
            self._networks[network] = users
        return check

    def clear(self) -> None:
        self._networks.clear()


class Passwords:
    """Compares passwords and caches verified ones."""

    def __init__(self) -> None:
        self._key = b""
        self._proven: dict[str, bytes] = {}  # bcrypt hash -> keyed digest of its password
        self._queue = PasswordQueue()
        self._running = 0
        self._threads: ThreadPoolExecutor | None = None

    def match(self, given: str, expected: str) -> bool:
        """Whether `given` matches the configured password. Thread-safe."""
        import hmac  # imported on first use: costs start-up time

        if not is_bcrypt(expected):
            return hmac.compare_digest(given.encode(), expected.encode())
        if self._is_proven(given, expected):
            return True
        if not matches_bcrypt(given, expected):
            return False
        self._proven[expected] = self._digest(given)
        return True

    def is_slow(self, given: str, expected: str) -> bool:
        """Whether `match` would compute a hash."""
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

    def run(self, check: PasswordCheck, *, host: str, user: str) -> None:
        """Queues a check for a thread; `done` gets its result. The threads start with the first check.

        Args:
            check: the check.
            host: the client's address.
            user: a configured user; "" = any other name, which share one queue.
        """
        self._queue.add(network_of(host), user, check)
        self._begin()

    def _begin(self) -> None:
        """Starts queued checks in idle threads."""
        while self._running < THREADS and (check := self._queue.take()) is not None:
            if faults.contain(check.is_wanted, check.failed):
                self._running += 1
                self._submit(check)

    def _submit(self, check: PasswordCheck) -> None:
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        loop = asyncio.get_running_loop()

        def end(future: Future[Identity | None]) -> None:
            self._running -= 1
            faults.contain(lambda: check.done(future.result()), check.failed)
            self._begin()

        def come_back(future: Future[Identity | None]) -> None:
            if not future.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(end, future)

        self._threads.submit(check.work).add_done_callback(come_back)

    def close(self) -> None:
        """Drops queued checks; a running hash is abandoned."""
        self._queue.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def matches_bcrypt(given: str, expected: str) -> bool:
    """bcrypt takes at most 72 bytes; a longer password matches nothing, as in the official server."""
    import bcrypt

    try:
        return bcrypt.checkpw(given.encode(), expected.encode())
    except ValueError:  # not a valid hash, or a too long password
        return False
