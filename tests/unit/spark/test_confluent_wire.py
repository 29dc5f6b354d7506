"""The parts of a payload in Confluent's wire format."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.payloads.confluent_wire import NotInWireFormatError, split
from tests.support.examples import examples
from tests.support.schema_registries import framed

pytestmark = pytest.mark.feature("spark.payloads")


@pytest.mark.parametrize("payload", [b"\0", b"\0\0\0\0", b"\1\0\0\0\1x", b"{}"])
def test_a_payload_without_a_schema_id_is_recognised(payload: bytes) -> None:
    with pytest.raises(NotInWireFormatError):
        split(payload, is_protobuf=False)


def zigzag(value: int) -> bytes:
    value, out = value << 1 ^ value >> 63, b""
    while value > 0x7F:
        value, out = value >> 7, out + bytes([value & 0x7F | 0x80])
    return out + bytes([value])


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.lists(st.integers(0, 1000), min_size=1, max_size=5), st.binary(max_size=5)
)
def test_the_path_of_a_message_is_a_list_of_zigzag_numbers(
    schema_id: int, path: list[int], body: bytes
) -> None:
    payload = framed(schema_id, body, b"".join(map(zigzag, [len(path), *path])))
    assert split(payload, is_protobuf=True) == ((schema_id, tuple(path)), body)
    # The last number is at least one byte before the body, so every shorter payload is cut off.
    for end in range(len(payload) - len(body)):
        with pytest.raises(NotInWireFormatError):
            split(payload[:end], is_protobuf=True)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=12))
def test_any_bytes_are_in_the_format_or_not(payload: bytes) -> None:
    for is_protobuf in (True, False):
        try:
            _, body = split(payload, is_protobuf=is_protobuf)
        except NotInWireFormatError:
            continue
        assert payload.endswith(body)
