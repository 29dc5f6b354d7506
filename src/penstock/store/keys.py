"""The key of an encrypted store: random, and itself encrypted with the key that the operator configures.

`<dir>/jetstream/key` holds it. So a configured key can be changed without rewriting a message (`prev_key`
opens the file, `key` closes it again), and a wrong key is found before anything is touched.

Invariant: the file is replaced atomically and synced; it is never written when a present one can't be opened.
Rejected: the configured key for the files themselves (a rotation would rewrite the store); a key file for
each stream (one more file to lose, and nothing gained: they would all be closed with the same key).
"""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path

from msgspec import Struct

from penstock.errors import StoreCorruptError, StoreError
from penstock.store.disk import Disk
from penstock.store.envelope import FileCipher
from penstock.store.files import write_atomically

logger = logging.getLogger("penstock.store")

_FILE = struct.Struct("<8s16s12s48s")  # magic, salt, nonce, the key and its tag
_MAGIC = b"PENSKEY1"


class StoreKey(Struct, frozen=True):
    """What the operator configures. key: "" = nothing is encrypted. prev_key: what `key` was until now."""

    cipher: str = "chacha"
    key: str = ""
    prev_key: str = ""

    def __repr__(self) -> str:
        return f"StoreKey(cipher={self.cipher!r})"


def open_vault(disk: Disk, directory: Path, configured: StoreKey) -> FileCipher:
    """The vault of a store directory; its key is made with the first start that names one.

    Raises StoreError when the store is encrypted and neither key opens it (nothing is touched then),
    StoreCorruptError when the key's file is damaged, StoreWriteError.
    """
    path = directory / "key"
    if not disk.exists(path):
        if not configured.key:
            return FileCipher()
        store_key = os.urandom(32)
        write_atomically(disk, path, _wrap(store_key, configured.key))
        return FileCipher(store_key, configured.cipher)
    if not configured.key:
        raise StoreError(
            "the store is encrypted, and no key is configured; name it: jetstream { key: ... }",
            path=str(directory),
        )
    data = disk.read(path)
    if len(data) != _FILE.size or data[:8] != _MAGIC:
        raise StoreCorruptError("it is no key file; restore it from a backup", path=str(path))
    found = _unwrap(data, configured.key)
    if found is None and configured.prev_key:
        found = _unwrap(data, configured.prev_key)
        if found is not None:
            write_atomically(disk, path, _wrap(found, configured.key))
            logger.warning("%s: the store's key is now closed with the new key", path)
    if found is None:
        tried = "neither key nor prev_key opens" if configured.prev_key else "the configured key doesn't open"
        raise StoreError(f"{tried} this encrypted store; nothing was changed", path=str(directory))
    return FileCipher(found, configured.cipher)


def _wrap(store_key: bytes, key: str) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    salt, nonce = os.urandom(16), os.urandom(12)
    return _FILE.pack(
        _MAGIC, salt, nonce, ChaCha20Poly1305(_stretch(key, salt)).encrypt(nonce, store_key, _MAGIC)
    )


def _unwrap(data: bytes, key: str) -> bytes | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    _, salt, nonce, wrapped = _FILE.unpack(data)
    try:
        return ChaCha20Poly1305(_stretch(key, salt)).decrypt(nonce, wrapped, _MAGIC)
    except InvalidTag:
        return None


def _stretch(key: str, salt: bytes) -> bytes:
    """32 bytes of whatever the operator took for a key; each guess costs an attacker some 40 ms."""
    import hashlib

    return hashlib.scrypt(key.encode("utf-8", "surrogateescape"), salt=salt, n=1 << 14, r=8, p=1, dklen=32)
