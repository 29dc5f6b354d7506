"""A store a server wrote: refused while it runs; damaged, repaired, served again with all else intact."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.store import store as store_command
from penstock.store.file import FileStore
from tests.support.nats_servers import PenstockServer
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("cli.store")

COUNT = 50
PAYLOAD = 400_000  # so that 50 messages take three blocks


def test_a_damaged_store_is_refused_repaired_and_served_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    server = PenstockServer(root, {})
    server.start()
    nats = RawNats(server.port)
    config = {"name": "S", "subjects": ["s.*"], "storage": "file"}
    assert "error" not in nats.request("$JS.API.STREAM.CREATE.S", config)
    body = {"stream_name": "S", "config": {"durable_name": "worker", "ack_policy": "explicit"}}
    assert "error" not in nats.request("$JS.API.CONSUMER.DURABLE.CREATE.S.worker", body)
    for number in range(COUNT):
        nats.publish("s.a", (b"%d " % number).ljust(PAYLOAD, b"x"))
    nats.subscribe("pull", 1)
    nats.publish("$JS.API.CONSUMER.MSG.NEXT.S.worker", b'{"batch":5}', "pull")
    for _ in range(5):
        nats.publish(nats.message().reply.decode())
    nats.flush()
    assert store_command(["check", str(root)]) == 2
    assert "uses this store directory; stop it" in capsys.readouterr().err
    nats.close()
    server.stop()
    assert store_command(["check", str(root)]) == 0

    stream = root / "jetstream/%24G/streams/S"
    blocks = sorted(stream.glob("msgs/*.blk"), key=lambda path: int(path.stem))
    assert len(blocks) == 3
    middle = bytearray(blocks[1].read_bytes())
    at = middle.index(b"xxxxxxxx")
    lost = int(middle[at - 3 : at].split()[-1] if b" " in middle[at - 3 : at] else middle[at - 3 : at])
    middle[at : at + 8] = b"yyyyyyyy"
    blocks[1].write_bytes(middle)
    blocks[2].write_bytes(blocks[2].read_bytes() + b"torn")
    with (stream / "consumers/worker/journal.0").open("ab") as journal:
        journal.write(b"torn too")
    meta = bytearray((stream / "meta").read_bytes())
    meta[-9] ^= 4
    (stream / "meta").write_bytes(meta)
    assert store_command(["check", str(root)]) == 1
    assert "4 found" in capsys.readouterr().out
    assert store_command(["repair", str(root)]) == 1
    assert "4 found, 4 repaired" in capsys.readouterr().out
    assert store_command(["check", str(root)]) == 0

    server.start()
    nats = RawNats(server.port)
    for number in range(COUNT):
        answer = nats.request("$JS.API.STREAM.MSG.GET.S", {"seq": number + 1})
        assert ("error" in answer) == (number == lost), (number, lost, answer.get("error"))
    info = nats.request("$JS.API.CONSUMER.INFO.S.worker")
    assert info["ack_floor"]["stream_seq"] == 5
    assert nats.request("$JS.API.STREAM.INFO.S")["state"]["messages"] == COUNT - 1
    nats.close()
    server.stop()


def test_a_replica_is_named_and_its_messages_are_said_to_be_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = FileStore(tmp_path, block_size=1000, block_memory=0)
    account = store.account("$G")
    replica = account.create_replica("R3", b"{}", "file")
    single = account.create_stream("R1", b"{}", "file")
    for stream in (replica, single):
        for seq in range(20):
            stream.log.append(b"s", b"", b"x" * 100, seq)
            stream.write()
    store.close()
    assert store_command(["check", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["$G", "R1", "20", lines[1].split()[3]]
    assert lines[2].split() == ["$G", "R3", *"------"]
    assert "R3 (account $G): a replica: its messages are in the log and the states of its group" in lines[3]
    assert store_command(["dump", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.count('"stream": "R1"') == 20 and '"R3"' not in out
    assert "streams/R3: a replica" in err
