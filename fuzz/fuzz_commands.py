"""Fuzzes the decoder of commands: python fuzz/fuzz_commands.py [libFuzzer options].

Whatever the bytes, they are refused by the one error, or decode to a command that is encoded as the same
command again. What kernels trust is tried: batches of publishes and copies, deletes and purges are applied to
a stream, and what it holds can be read back.
"""

from __future__ import annotations

import atheris
from seeded import fuzz

with atheris.instrument_imports():
    from penstock.errors import JetStreamApiError, MalformedCommandError
    from penstock.jetstream import commands
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.kernels.ingest.copying import CopyBatch
    from penstock.kernels.ingest.ingest import IngestBatch
    from penstock.kernels.ingest.storing import SettledRuns

from penstock.kernels.wire.sinks import DirtyList
from penstock.protocol.api import ApiStreamConfig, StreamSource
from penstock.store.memory import MemoryStreamStore

APPLIED = (IngestBatch, commands.StoreCopies, commands.DeleteMessage, commands.PurgeSlice, SettledRuns)
CONFIG = ApiStreamConfig(
    name="S",
    subjects=["s.>"],
    sources=[StreamSource(name="O")],
    allow_atomic=True,
    allow_batched=True,
    allow_rollup_hdrs=True,
    allow_msg_ttl=True,
    allow_msg_schedules=True,
    max_msgs=100,
    duplicate_window=1000,
)
SOURCE = "O > >"


def new_stream() -> StreamReplica:
    store = MemoryStreamStore({}, "S", b"", storage="memory")
    return StreamReplica(CONFIG, store, created=1, domain="", api_level=3, dirty=DirtyList())


@atheris.instrument_func
def fuzz_one(stream: StreamReplica, data: bytes) -> None:
    try:
        command, now = commands.decode(data)
    except MalformedCommandError:
        return
    again = commands.encode(command, now)
    assert commands.encode(*commands.decode(again)) == again
    if isinstance(command, APPLIED):
        try:
            stream.apply(command, now)
        except JetStreamApiError:
            return


@atheris.instrument_func
def test_one_input(data: bytes) -> None:
    """The input is one command, and commands behind their lengths."""
    stream = new_stream()
    fuzz_one(stream, data)
    at = 0
    while at < len(data):
        fuzz_one(stream, data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    log, seq = stream.log, stream.log.next_seq(0)
    found = 0
    while seq:
        assert log.load(seq) is not None
        found += 1
        seq = log.next_seq(seq + 1)
    assert found == log.messages
    stream.effects.drop()


def examples() -> list[bytes]:
    """A command of each kind."""
    publishes = IngestBatch()
    publishes.append(b"s.1", b"r", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", b"x")
    publishes.append(b"s.2", b"p.b.2.ok.1.0.$FI", b"", b"y")
    publishes.append(b"s.3", b"", b"NATS/1.0\r\nNats-Batch-Id: a\r\nNats-Batch-Sequence: 1\r\n\r\n", b"z")
    copies = CopyBatch()
    copies.append(3, 5, b"s.4", b"NATS/1.0\r\nNats-Msg-Id: 2\r\n\r\n", b"x")
    copies.place(9)
    settled = SettledRuns()
    settled.append(2, 3)
    settled.append(1, 1)
    all_: list[commands.Command] = [
        publishes, commands.StoreCopies(SOURCE, copies), commands.Resume(), commands.Admit(None, 5),
        commands.Expire(7), commands.DeleteMessage(1, True), commands.Purge(2),
        commands.PurgeSlice(b"s.*", 1, 9, 5, 5), commands.Update(CONFIG, 1, [("O", 1, "i")]),
        commands.RecoverIds(1, 1, 5, 5), commands.EnforceLimits(1, 5), commands.LimitBatches(1, 2, 3, 4, 5),
        commands.SetConsumer("c", b"{}"), commands.DropConsumer("c"),
        commands.ProgressConsumer("c", b"D"), commands.LimitRollups(1), commands.RollUp(1, 2),
        commands.MoveSource(SOURCE, 1, "i"), commands.RetainMessages(True), settled,
        commands.PinConsumer("c", "id7"),
    ]  # fmt: skip
    return [commands.encode(one, 10) for one in all_]


if __name__ == "__main__":
    lengths = b"".join(bytes([len(one)]) + one for one in examples() if len(one) < 256)
    fuzz([*examples(), lengths], test_one_input)
