"""The key of an encrypted store: random, and stored encrypted with the key that the operator configures.

`<dir>/jetstream/key` contains it. This indirection lets an operator change the configured key without
rewriting messages (`prev_key` decrypts the file, `key` encrypts it again), and detects a wrong key before
anything is modified.

Invariant: the file is replaced atomically and synced; a key file that cannot be decrypted is never
overwritten.

Rejected: encrypting files with the configured key directly (a rotation would rewrite the store); one key file
per stream (more files to lose and no gain, since all would be encrypted with the same key).
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
    """The operator's configuration. `key`: "" disables encryption. `prev_key`: the value of `key` before a
    rotation."""

    cipher: str = "chacha"
    key: str = ""
    prev_key: str = ""

    def __repr__(self) -> str:
        return f"StoreKey(cipher={self.cipher!r})"


def open_file_cipher(disk: Disk, directory: Path, configured: StoreKey) -> FileCipher:
    """Returns the cipher of a store directory, and creates the store's key at the first start with a
    configured key.

    Raises StoreError when the store is encrypted and neither key decrypts it (nothing is modified then),
    StoreCorruptError when the key file is damaged, StoreWriteError.
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
        raise StoreCorruptError("not a key file; restore it from a backup", path=str(path))
    found = _unwrap(data, configured.key)
    if found is None and configured.prev_key:
        found = _unwrap(data, configured.prev_key)
        if found is not None:
            write_atomically(disk, path, _wrap(found, configured.key))
            logger.warning("%s: the store's key is now encrypted with the new key", path)
    if found is None:
        tried = (
            "neither key nor prev_key decrypts"
            if configured.prev_key
            else "the configured key does not decrypt"
        )
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
    """Derives a 32-byte key from the configured one. scrypt makes each guess cost an attacker about 40 ms."""
    import hashlib

    return hashlib.scrypt(key.encode("utf-8", "surrogateescape"), salt=salt, n=1 << 14, r=8, p=1, dklen=32)
