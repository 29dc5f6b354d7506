"""NKeys: their text, their checksums, signatures; against keys that other implementations made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MisuseError
from penstock.protocol.nkeys import (
    PUBLIC,
    KeyPair,
    Prefix,
    decode_public,
    decode_seed,
    encode_public,
    encode_seed,
    is_public,
    verify,
)
from penstock.server.server_identity import new_server_id
from tests.support.keys import key

pytestmark = pytest.mark.feature("security.nkeys")

SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
PUBLIC_KEY = "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L"
LETTERS = {Prefix.USER: "U", Prefix.ACCOUNT: "A", Prefix.OPERATOR: "O", Prefix.SERVER: "N",
           Prefix.CLUSTER: "C", Prefix.CURVE: "X"}  # fmt: skip

raw = st.binary(min_size=32, max_size=32)
prefixes = st.sampled_from(sorted(PUBLIC))


def test_a_seed_of_another_implementation_gives_its_public_key() -> None:
    pair = KeyPair(f" {SEED}\n")
    assert pair.public == PUBLIC_KEY
    assert pair.seed == SEED
    assert SEED not in repr(pair)


@given(prefixes, raw)
def test_public_keys_come_back_and_begin_with_their_letter(prefix: Prefix, data: bytes) -> None:
    text = encode_public(prefix, data)
    assert text[0] == LETTERS[prefix]
    assert len(text) == 56
    assert decode_public(text) == (prefix, data)
    assert is_public(text, prefix)
    assert not is_public(text, *(PUBLIC - {prefix}))


@given(prefixes, raw)
def test_seeds_come_back_and_begin_with_s_and_their_letter(prefix: Prefix, data: bytes) -> None:
    text = encode_seed(prefix, data)
    assert text[:2] == "S" + LETTERS[prefix]
    assert decode_seed(text) == (prefix, data)
    assert not is_public(text)


@given(prefixes, raw, st.data())
def test_one_wrong_character_is_found(prefix: Prefix, data: bytes, draw: st.DataObject) -> None:
    text = encode_seed(prefix, data)
    at = draw.draw(st.integers(0, len(text) - 1))
    wrong = draw.draw(st.sampled_from([c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" if c != text[at]]))
    with pytest.raises(MisuseError):
        decode_seed(text[:at] + wrong + text[at + 1 :])


@given(st.text(max_size=80))
def test_any_text_is_a_key_or_a_misuse(text: str) -> None:
    for decode in (decode_public, decode_seed):
        with pytest.raises(MisuseError):
            decode(text)


@pytest.mark.parametrize("text", ["", "S", SEED[:-1], SEED + "A", SEED.lower(), SEED[:20] + "!" + SEED[21:],
                                  PUBLIC_KEY, "é" * 58])  # fmt: skip
def test_what_is_no_seed_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(MisuseError) as caught:
        KeyPair(text)
    assert len(text) < 5 or text not in str(caught.value)


def test_a_curve_seed_can_not_sign() -> None:
    with pytest.raises(MisuseError, match="curve"):
        KeyPair(encode_seed(Prefix.CURVE, bytes(32)))


@given(st.binary(max_size=100))
def test_a_signature_is_good_for_its_key_and_data_alone(data: bytes) -> None:
    joe, ann = key("user", "joe"), key("user", "ann")
    signature = joe.sign(data)
    assert verify(joe.public, data, signature)
    assert not verify(ann.public, data, signature)
    assert not verify(joe.public, data + b"x", signature)
    assert not verify(joe.public, data, signature[:-1])
    assert not verify(joe.public, data, signature[:-1] + bytes([signature[-1] ^ 1]))
    assert not verify("Unknown", data, signature)


def test_server_ids_are_public_keys_of_servers() -> None:
    assert is_public(new_server_id(), Prefix.SERVER)


def test_text_that_is_too_long_for_a_key_is_not_decoded_and_not_shown_as_a_whole() -> None:
    with pytest.raises(MisuseError, match="too long") as refused:
        decode_public("7" * 700_000)
    assert len(str(refused.value)) < 200
    with pytest.raises(MisuseError, match="too long"):
        decode_seed("S" * 700_000)
