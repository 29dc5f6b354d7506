"""What clients give as passwords and tokens against what is configured, plain or as a bcrypt hash.

Plain passwords are compared in a time that tells nothing. A bcrypt hash costs a tenth of a second and more by
design: whoever asks finds out first (`is_slow`), and has such a comparison made by a thread (`run`), so that
the event loop serves everybody else. Of a hash the password that proved right is remembered, as a keyed
digest, over reloads too: who comes again costs nothing.

Anybody may make the server compute hashes, so those who wait have turns: by the network they come from, and
within one by the user they name. Wrong logins from elsewhere, or for another user, delay a right one by one
turn each, however many there are. Rejected: one queue in order of arrival, which is as long as an attacker
wants it; refusing whoever comes when it is long, which an attacker decides as well.

Invariant: each `done` is called by the loop's thread, and not at all once its loop is closed.
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
"""One expensive hash must not keep all others waiting; more threads would only take the loop's processor."""

_BCRYPT = ("$2a$", "$2b$", "$2x$", "$2y$")
_NO_PASSWORD = "." * 53  # salt and hash in bcrypt's own base64


def is_bcrypt(password: str) -> bool:
    """Is a configured password a bcrypt hash?"""
    return password.startswith(_BCRYPT)


def stand_in(passwords: Iterable[str]) -> str:
    """A bcrypt hash of no password, which takes as long to compare as most of these do.

    "" when none of these is a bcrypt hash.
    """
    hashes = [password for password in passwords if is_bcrypt(password)]
    if not hashes:
        return ""
    costs = Counter(cost for cost in (hash[4:6] for hash in hashes) if cost.isdigit())
    cost = max(costs, key=lambda cost: (costs[cost], cost), default="10")
    return f"$2b${cost}${_NO_PASSWORD}"


def network_of(host: str) -> str:
    """The part of an address that whoever has one of its network has as well: 64 bits of IPv6."""
    if ":" not in host:
        return host
    import ipaddress

    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped  # as a listener on [::] sees clients that come by IPv4
    return str(mapped) if mapped is not None else address.packed[:8].hex()


class PasswordCheck(NamedTuple):
    """A comparison that waits for a thread."""

    work: Callable[[], Identity | None]
    done: Callable[[Identity | None], None]
    is_wanted: Callable[[], bool]
    failed: Callable[[Exception], object]
    """Gets what any of the others raises."""


class PasswordQueue:
    """Jobs in the order in which they are done: one of each network in turn, of each user there."""

    def __init__(self) -> None:
        self._networks: dict[str, dict[str, deque[PasswordCheck]]] = {}

    def add(self, network: str, user: str, job: PasswordCheck) -> None:
        self._networks.setdefault(network, {}).setdefault(user, deque()).append(job)

    def take(self) -> PasswordCheck | None:
        """The next one; None when there is none."""
        network = next(iter(self._networks), None)
        if network is None:
            return None
        users = self._networks.pop(network)
        user = next(iter(users))
        jobs = users.pop(user)
        job = jobs.popleft()
        if jobs:
            users[user] = jobs  # behind the others
        if users:
            self._networks[network] = users
        return job

    def clear(self) -> None:
        self._networks.clear()


class Passwords:
    """Compares, and remembers what was proven."""

    def __init__(self) -> None:
        self._key = b""
        self._proven: dict[str, bytes] = {}  # bcrypt hash: keyed digest of its password
        self._turns = PasswordQueue()
        self._running = 0
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

    def run(self, job: PasswordCheck, *, host: str, user: str) -> None:
        """Has a thread do the work of a client from this address, when its turn comes; `done` gets what it
        returned. The threads start with the first work.

        user: one that is configured; "" = any other, which have their turns together.
        """
        self._turns.add(network_of(host), user, job)
        self._begin()

    def _begin(self) -> None:
        """Gives the threads that are free their next jobs."""
        while self._running < THREADS and (job := self._turns.take()) is not None:
            if faults.contain(job.is_wanted, job.failed):
                self._running += 1
                self._submit(job)

    def _submit(self, job: PasswordCheck) -> None:
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        loop = asyncio.get_running_loop()

        def end(future: Future[Identity | None]) -> None:
            self._running -= 1
            faults.contain(lambda: job.done(future.result()), job.failed)
            self._begin()

        def come_back(future: Future[Identity | None]) -> None:
            if not future.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(end, future)

        self._threads.submit(job.work).add_done_callback(come_back)

    def close(self) -> None:
        """Drops what waits for a thread; a hash that is being computed is let go."""
        self._turns.clear()
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
