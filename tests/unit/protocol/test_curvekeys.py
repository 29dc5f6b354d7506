"""Curve keys, compared with PyNaCl's own boxes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.public import Box, PrivateKey, PublicKey

from penstock.errors import MisuseError
from penstock.protocol.curvekeys import CurveKey
from penstock.protocol.nkeys import KeyPair, Prefix, decode_public, encode_seed

OURS, THEIRS = CurveKey.from_bytes(b"o" * 32), CurveKey.from_bytes(b"t" * 32)
NONCE = bytes(range(24))


@given(st.binary(max_size=100), st.binary(min_size=24, max_size=24))
def test_what_is_sealed_is_a_box_and_opens_again(data: bytes, nonce: bytes) -> None:
    sealed = OURS.seal(data, THEIRS.public, nonce)
    assert sealed[:28] == b"xkv1" + nonce
    box = Box(PrivateKey(b"t" * 32), PublicKey(decode_public(OURS.public)[1]))
    assert box.decrypt(sealed[4:]) == data
    assert THEIRS.open(sealed, OURS.public) == data


def test_what_was_changed_or_is_anothers_does_not_open() -> None:
    sealed = OURS.seal(b"data", THEIRS.public, NONCE)
    for other in (b"", sealed[:28], b"xkv2" + sealed[4:], sealed[:-1], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        with pytest.raises(MisuseError):
            THEIRS.open(other, OURS.public)
    with pytest.raises(MisuseError):
        THEIRS.open(sealed, THEIRS.public)


def test_keys_are_of_one_kind() -> None:
    user = KeyPair.from_bytes(Prefix.USER, b"u" * 32)
    assert OURS.public.startswith("X")
    assert CurveKey(encode_seed(Prefix.CURVE, b"o" * 32)).public == OURS.public
    with pytest.raises(MisuseError, match="curve"):
        CurveKey(user.seed)
    with pytest.raises(MisuseError, match="no public curve key"):
        OURS.seal(b"", user.public, NONCE)
