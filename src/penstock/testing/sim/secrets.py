"""Encryption of a simulated store, without the chance that is in it and the time that a key costs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

from penstock.store import keys


@contextmanager
def known_secrets(seed: int) -> Iterator[None]:
    """Whatever draws a key, a salt or a nonce meanwhile gets what follows from the seed."""
    with (
        patch.object(os, "urandom", Random(seed).randbytes),
        patch.object(keys, "_stretch", _stretch),
    ):
        yield


def _stretch(key: str, salt: bytes) -> bytes:
    return hashlib.blake2b(key.encode(), key=salt, digest_size=32).digest()
