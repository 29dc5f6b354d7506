"""Compression and encryption at rest, as a client and an operator meet them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ServerError
from penstock.server.config.directives import load
from penstock.testing import EmbeddedServer, server
from tests.support.nats_servers import KINDS, running_server
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("stream.compression", "stream.encryption")

TEXT = b"a text that is easily compressed and never to be read " * 40


@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_stream_is_transparent(kind: str, tmp_path: Path) -> None:
    with running_server(kind, tmp_path) as running:
        nats = RawNats(running.port)
        config = {"name": "Z", "subjects": ["z"], "storage": "file", "compression": "s2"}
        answer = nats.request("$JS.API.STREAM.CREATE.Z", config)
        assert answer["config"]["compression"] == "s2"
        for _ in range(20):
            assert "error" not in nats.request("z", {"text": TEXT.decode()})
        state = nats.request("$JS.API.STREAM.INFO.Z")["state"]
        assert state["bytes"] == 20 * (30 + 1 + len('{"text": ""}') + len(TEXT))
        answer = nats.request("$JS.API.STREAM.UPDATE.Z", {**config, "compression": "none"})
        assert answer["config"]["compression"] == "none"
        answer = nats.request("$JS.API.STREAM.UPDATE.Z", config)
        assert answer["config"]["compression"] == "s2" and answer["state"]["messages"] == 20
        memory = {"name": "M", "subjects": ["m"], "storage": "memory", "compression": "s2"}
        answer = nats.request("$JS.API.STREAM.CREATE.M", memory)
        assert answer["config"]["compression"] == "s2"
        nats.close()


@pytest.mark.parametrize("cipher", ["chachapoly", "aes"])
def test_a_server_with_a_key_leaves_nothing_to_read(cipher: str, tmp_path: Path) -> None:
    def run(settings: str) -> EmbeddedServer:
        conf = tmp_path / "nats.conf"
        conf.write_text(f'port: -1; jetstream {{ store_dir: "{tmp_path / "js"}", {settings} }}')
        return server(options=load(str(conf)))

    with run(f"cipher: {cipher}, key: first") as running:
        nats = RawNats(running.port)
        answer = nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
        assert "error" not in answer
        nats.request("s", {"text": TEXT.decode()})
        nats.close()
    for path in (tmp_path / "js").glob("**/*"):
        assert not path.is_file() or b"text" not in path.read_bytes(), path
    with run("key: second, prev_key: first") as running:
        nats = RawNats(running.port)
        assert nats.request("$JS.API.STREAM.INFO.S")["state"]["messages"] == 1
        nats.close()
    with pytest.raises(ServerError, match="the configured key does not decrypt this encrypted store"):
        run("key: first").start()
