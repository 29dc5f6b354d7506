"""Compressed payloads: what other libraries compressed is read, what is damaged costs its own row only."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.protocol import s2_stream
from penstock.spark.decoders import MalformedPayloadError, payload_decoder
from penstock.spark.payload_options import PayloadOptions
from penstock.spark.payloads.decompression import Decompressor, detect
from tests.support.examples import examples

pytestmark = pytest.mark.feature("spark.payloads")

TEXT = b'{"id": 7}' * 50
COMPRESSED = {
    "gzip": gzip.compress(TEXT),
    "zstd": zstandard.compress(TEXT),
    "lz4": pa.compress(TEXT, "lz4", asbytes=True),
    "s2": s2_stream.IDENTIFIER + s2_stream.encode_chunks(TEXT),
}


def plain(name: str, payloads: list[bytes], bytes_max: int = 1 << 20) -> tuple[list[bytes], list[int]]:
    column, spoiled = Decompressor(name, bytes_max)(pa.array(payloads, pa.binary()))
    return column.to_pylist(), spoiled


@pytest.mark.parametrize("name", COMPRESSED)
def test_each_format_is_read_by_its_name_and_by_its_first_bytes(name: str) -> None:
    assert plain(name, [COMPRESSED[name], b"", COMPRESSED[name]]) == ([TEXT, b"", TEXT], [])
    assert plain("auto", [COMPRESSED[name], TEXT]) == ([TEXT, TEXT], [])


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_payload_that_is_cut_off_or_continues_is_reported_and_left_as_it_is(name: str) -> None:
    whole = COMPRESSED[name]
    # An S2 stream has no end of its own: one that ends after a chunk is whole.
    ends = [end for end in range(5, len(whole)) if name != "s2" or end != len(s2_stream.IDENTIFIER)]
    for damaged in (*(whole[:end] for end in ends), whole + b"xx", b"none of it"):
        assert plain(name, [whole, damaged, whole]) == ([TEXT, damaged, TEXT], [1]), damaged


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_payload_is_at_most_as_large_as_the_limit(name: str) -> None:
    assert plain(name, [COMPRESSED[name]], len(TEXT)) == ([TEXT], [])
    assert plain(name, [COMPRESSED[name]], len(TEXT) - 1) == ([COMPRESSED[name]], [0])


def test_several_members_of_a_gzip_file_are_one_payload() -> None:
    assert plain("gzip", [gzip.compress(b"a") + gzip.compress(b"b")]) == ([b"ab"], [])


def test_snappy_streams_are_read_as_s2() -> None:
    stream = s2_stream.IDENTIFIERS[1] + s2_stream.encode_chunks(TEXT)
    assert plain("s2", [stream]) == ([TEXT], [])


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from([*COMPRESSED, "auto"]), st.lists(st.binary(max_size=20), max_size=5))
def test_any_bytes_give_one_element_each(name: str, payloads: list[bytes]) -> None:
    found, spoiled = plain(name, payloads)
    assert len(found) == len(payloads)
    assert all(found[i] == payloads[i] for i in spoiled)


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=8))
def test_no_text_without_control_characters_looks_compressed(text: str) -> None:
    printable = "".join(c for c in text if c.isprintable())
    assert detect(printable.encode()) is None


def decode(mode: str, kind: pa.DataType, payload: str) -> list[object]:
    options = PayloadOptions(payload, mode=mode, compression="gzip")
    decoder = payload_decoder(options, kind)
    assert decoder is not None
    rows = [COMPRESSED["gzip"] if payload != "json" else gzip.compress(b'{"id": 7}'), b"none of it", b""]
    column, keep = decoder(pa.array(rows, pa.binary()))
    column.validate(full=True)
    assert column.type == kind
    found: list[object] = (column if keep is None else column.filter(keep)).to_pylist()
    return found


def test_the_mode_decides_about_payloads_that_cannot_be_decompressed() -> None:
    fields = pa.struct([("id", pa.int64()), ("_corrupt_record", pa.string())])
    good: dict[str, object] = {"id": 7, "_corrupt_record": None}
    assert decode("PERMISSIVE", fields, "json") == [good, {"id": None, "_corrupt_record": "none of it"}, None]
    assert decode("DROPMALFORMED", fields, "json") == [good, None]
    assert decode("PERMISSIVE", pa.binary(), "raw") == [TEXT, None, b""]
    assert decode("DROPMALFORMED", pa.binary(), "raw") == [TEXT, b""]
    assert decode("PERMISSIVE", pa.string(), "string") == [TEXT.decode(), "none of it", ""]
    with pytest.raises(MalformedPayloadError, match="none of it"):
        decode("FAILFAST", fields, "json")


def test_s2_without_its_compiled_module_says_where_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "penstock.protocol.s2_stream", None)
    with pytest.raises(ConfigError, match="install penstock-nats on them"):
        Decompressor("s2", 10)


def test_rows_that_two_steps_could_not_read_are_each_their_own() -> None:
    fields = pa.struct([("id", pa.int64())])
    decoder = payload_decoder(PayloadOptions("json", mode="DROPMALFORMED", compression="gzip"), fields)
    assert decoder is not None
    packed = [gzip.compress(text) for text in (b'{"id": 1}', b"{", b'{"id": 2}')]
    column, keep = decoder(pa.array([b"none", *packed, b"none"], pa.binary()))
    assert keep.to_pylist() == [False, True, False, True, False]
    assert column.filter(keep).to_pylist() == [{"id": 1}, {"id": 2}]
