"""Infos, configurations and sources of objects, without a server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import ObjectInfo, ObjectLink, ObjectStoreConfig, ObjectStoreSettings
from penstock.client.objectstore import chunk_source
from penstock.client.objectstore.block_hash import BlockHash
from penstock.client.objectstore.object_config import store_config_of, store_stream_config
from penstock.client.objectstore.object_info import (
    decode_info,
    digest_of,
    encode_info,
    encode_name,
    headers_of,
    is_digest,
)
from penstock.errors import MisuseError, ObjectError
from penstock.protocol.subjects import is_valid_subject

pytestmark = pytest.mark.feature("object-store.client")

TEXT = st.text(max_size=5)


@given(
    st.builds(
        ObjectInfo,
        bucket=st.just("B"),
        name=st.text(min_size=1, max_size=5),
        nuid=st.just("N"),
        description=TEXT,
        headers=st.dictionaries(TEXT, st.lists(TEXT, min_size=1, max_size=2), max_size=2),
        metadata=st.dictionaries(TEXT, TEXT, max_size=2),
        size=st.integers(0, 2**62),
        chunks=st.integers(0, 2**31),
        digest=st.sampled_from(["", "SHA-256=abc"]),
        deleted=st.booleans(),
        link=st.sampled_from([None, ObjectLink("O"), ObjectLink("O", "x")]),
        max_chunk_size=st.sampled_from([0, 1000]),
    )
)
def test_an_info_survives_its_json(info: ObjectInfo) -> None:
    again = decode_info(encode_info(info), "B", 0, 0)
    assert again == info
    assert {"name", "bucket", "nuid", "size", "mtime", "chunks"} <= json.loads(encode_info(info)).keys()


def test_the_json_is_that_of_the_official_clients() -> None:
    info = ObjectInfo(
        bucket="B", name="x", nuid="N", description="d", headers={"A": ["b"]}, metadata={"k": "v"}, size=3,
        chunks=1, digest="SHA-256=abc=", max_chunk_size=10,
    )  # fmt: skip
    assert json.loads(encode_info(info)) == {
        "name": "x",
        "description": "d",
        "headers": {"A": ["b"]},
        "metadata": {"k": "v"},
        "options": {"max_chunk_size": 10},
        "bucket": "B",
        "nuid": "N",
        "size": 3,
        "mtime": "0001-01-01T00:00:00Z",
        "chunks": 1,
        "digest": "SHA-256=abc=",
    }
    link = ObjectInfo(bucket="B", name="x", nuid="N", link=ObjectLink("O", "y"))
    assert json.loads(encode_info(link))["options"] == {"link": {"bucket": "O", "name": "y"}}


def test_infos_of_other_clients_are_read() -> None:
    """nats-py writes null for what is missing, and single header values may come as text."""
    text = """{"name":"x","bucket":"B","nuid":"N","size":null,"mtime":null,"chunks":null,"digest":null,
        "deleted":null,"description":null,"headers":{"A":"b"},"options":{"link":null,"max_chunk_size":null},
        "unknown":1}"""
    info = decode_info(text.encode(), "B", 7, 1_000_000_000)
    assert info == ObjectInfo(
        bucket="B", name="x", nuid="N", headers={"A": ["b"]}, revision=7, modified_ns=1_000_000_000
    )
    assert info.modified.timestamp() == 1
    for bad in (b"", b"[]", b"{}", b'{"name":5}', b"\xff"):
        with pytest.raises(ObjectError, match="message 7 does not describe"):
            decode_info(bad, "B", 7, 0)


@given(st.text(min_size=1, max_size=20))
def test_any_name_is_one_token_of_a_subject(name: str) -> None:
    token = encode_name(name)
    assert is_valid_subject(f"$O.B.M.{token}")
    assert "." not in token
    assert base64.urlsafe_b64decode(token).decode("utf-8", "surrogateescape") == name


def test_digests_are_compared_whatever_their_padding() -> None:
    digest = hashlib.sha256(b"x")
    text = digest_of(digest)
    assert text.startswith("SHA-256=")
    for same in (text, text.rstrip("="), text.replace("SHA", "sha")):
        assert is_digest(same, digest)
    for other in ("", "SHA-256=", digest_of(hashlib.sha256(b"y")), text.replace("256", "512")):
        assert not is_digest(other, digest)


def test_headers_are_lists_of_values() -> None:
    assert headers_of({"A": "b", "C": ["d", "e"]}) == {"A": ["b"], "C": ["d", "e"]}
    assert headers_of(None) == {}
    with pytest.raises(MisuseError):
        headers_of({"A b": "c"})


def test_settings_and_configuration_have_the_same_fields() -> None:
    assert set(ObjectStoreSettings.__annotations__) == set(ObjectStoreConfig.__struct_fields__) - {"bucket"}


@given(
    st.builds(
        ObjectStoreConfig,
        bucket=st.just("B"),
        description=TEXT,
        ttl=st.sampled_from([0, 1, 86400]),
        max_bytes=st.sampled_from([-1, 1000]),
        storage=st.sampled_from(["file", "memory"]),
        compression=st.booleans(),
        allow_batched=st.booleans(),
        metadata=st.dictionaries(st.text("ab", max_size=2), TEXT, max_size=2),
    )
)
def test_a_stream_holds_all_of_a_stores_configuration(config: ObjectStoreConfig) -> None:
    stream = store_stream_config(config)
    assert store_config_of(stream) == config
    assert store_config_of(store_stream_config(config, stream)) == config


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 40), st.integers(1, 100))
def test_pieces_of_any_size_become_blocks_of_whole_chunks(
    pieces: list[bytes], chunk: int, block: int
) -> None:
    data = b"".join(pieces)
    chunk_source.BLOCK_BYTES, before = block, chunk_source.BLOCK_BYTES

    async def slowly() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def blocks(source: chunk_source.ObjectData) -> list[bytes]:
        return [bytes(one) async for one in chunk_source.blocks_of(source, chunk)]

    try:
        for source in (data, bytearray(data), pieces, slowly(), io.BytesIO(data)):
            found = asyncio.run(blocks(source))
            assert b"".join(found) == data
            assert all(len(one) == len(found[0]) and len(one) % chunk == 0 for one in found[:-1])
            assert all(found)
    finally:
        chunk_source.BLOCK_BYTES = before


@given(st.lists(st.binary(max_size=600_000), max_size=6))
def test_a_digest_does_not_depend_on_the_chunks(chunks: list[bytes]) -> None:
    async def hashed() -> str:
        digest = BlockHash(asyncio.get_running_loop())
        for chunk in chunks:
            await digest.add(chunk)
        await digest.finish()
        return digest.digest.hexdigest()

    assert asyncio.run(hashed()) == hashlib.sha256(b"".join(chunks)).hexdigest()
