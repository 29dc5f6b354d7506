"""Storage of account JWTs: in memory, or in a directory that this server owns.

Files are named `<account>.jwt`. A directory of `type: full` holds all accounts, refuses more than `limit`,
and removes expired tokens. A directory of `type: cache` holds recently used accounts, evicts the least
recently used one when it is full, and each after `ttl`.

`hash` compares directories without listing them: the XOR of the SHA-256 of all tokens, as in the official
server.

Invariant: the index contains exactly the valid files. File names are always valid account keys.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from penstock.errors import ConfigError, MisuseError
from penstock.protocol.jwt import decode
from penstock.protocol.nkeys import Prefix, is_public
from penstock.server.config.option_checks import NS
from penstock.server.config.server_options import ResolverOptions

SUFFIX = ".jwt"
CACHE_LIMIT = 1000


class Resolver(Protocol):
    """Stores account tokens. Methods raise MisuseError or OSError on failure."""

    def fetch(self, account: str) -> str | None:
        """The token of an account; None when there is none."""

    def store(self, account: str, token: str, now_ns: int) -> None:
        """Stores a token, replacing the previous one. Raises MisuseError when the limit is reached."""

    def delete(self, account: str) -> None:
        """Deletes an account's token if it exists."""

    def expire(self, now_ns: int) -> None:
        """Removes expired entries."""

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yields (account, token) for all accounts."""

    def hash(self) -> bytes:
        """32 bytes that depend on all stored tokens."""


class MemoryResolver:
    """Tokens of `resolver_preload`, and those stored since."""

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}

    def fetch(self, account: str) -> str | None:
        return self._tokens.get(account)

    def store(self, account: str, token: str, now_ns: int) -> None:
        self._tokens[account] = token

    def delete(self, account: str) -> None:
        self._tokens.pop(account, None)

    def expire(self, now_ns: int) -> None:
        """Entries in memory do not expire."""

    def pairs(self) -> Iterator[tuple[str, str]]:
        yield from sorted(self._tokens.items())

    def hash(self) -> bytes:
        return _xor(_digest(token) for token in self._tokens.values())


class DirectoryResolver:
    """Tokens in files.

    Args:
        options: of type full or cache.
        now_ns: current time, for expiry.

    Raises:
        ConfigError: the directory cannot be created or read.
    """

    def __init__(self, options: ResolverOptions, now_ns: int) -> None:
        self._options = options
        self._directory = Path(options.directory)
        self._index: dict[str, tuple[bytes, int]] = {}  # account -> (hash, expiry ns), in LRU order
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in sorted(self._directory.glob(f"*{SUFFIX}")):
                self._track(path.name.removesuffix(SUFFIX), path.read_text(encoding="utf-8"), now_ns)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"resolver.dir {options.directory}: {error}") from error

    def fetch(self, account: str) -> str | None:
        if not is_public(account, Prefix.ACCOUNT):
            return None
        try:
            token = self._path(account).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        if account in self._index:
            self._index[account] = self._index.pop(account)
        return token

    def store(self, account: str, token: str, now_ns: int) -> None:
        if not is_public(account, Prefix.ACCOUNT):
            raise MisuseError("invalid public key")
        present = self._index.get(account)
        if present is not None and present[0] == _digest(token):
            return
        if present is None and len(self._index) >= self._limit:
            if not self._options.is_cache:
                raise MisuseError("jwt store is full")
            self._forget(next(iter(self._index)))
        path = self._path(account)
        part = path.with_suffix(".part")
        part.write_text(token, encoding="utf-8")
        os.replace(part, path)
        self._track(account, token, now_ns)

    def delete(self, account: str) -> None:
        path = self._path(account)
        self._index.pop(account, None)
        try:
            if self._options.is_cache or self._options.hard_delete:
                path.unlink()
            else:
                os.replace(path, f"{path}.deleted")
        except FileNotFoundError:
            return

    def expire(self, now_ns: int) -> None:
        for account in [name for name, (_, expires_ns) in self._index.items() if 0 < expires_ns <= now_ns]:
            self._forget(account)

    def pairs(self) -> Iterator[tuple[str, str]]:
        for account in sorted(self._index):
            token = self._path(account).read_text(encoding="utf-8")
            if token:
                yield account, token

    def hash(self) -> bytes:
        return _xor(digest for digest, _ in self._index.values())

    @property
    def _limit(self) -> int:
        if self._options.limit > 0:
            return self._options.limit
        return CACHE_LIMIT if self._options.is_cache else 1 << 62

    def _path(self, account: str) -> Path:
        return self._directory / f"{account}{SUFFIX}"

    def _forget(self, account: str) -> None:
        self._path(account).unlink(missing_ok=True)
        del self._index[account]

    def _track(self, account: str, token: str, now_ns: int) -> None:
        if self._options.ttl_ns:
            expires_ns = now_ns + self._options.ttl_ns
        else:
            try:
                expires_ns = decode(token).expires * NS
            except MisuseError:
                expires_ns = 0
        self._index.pop(account, None)
        self._index[account] = (_digest(token), expires_ns)


def resolver_of(options: ResolverOptions, now_ns: int) -> Resolver:
    """The configured resolver. Raises ConfigError."""
    return MemoryResolver() if options.type == "memory" else DirectoryResolver(options, now_ns)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _xor(digests: Iterator[bytes]) -> bytes:
    found = 0
    for digest in digests:
        found ^= int.from_bytes(digest, "big")
    return found.to_bytes(32, "big")
