"""Commands: their encoding, and a second instance that applies them and has the same state."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import JetStreamApiError, MalformedCommandError
from penstock.jetstream import commands
from penstock.jetstream.commands import Command, decode, encode
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.ingest.copying import CopyBatch
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.kernels.ingest.storing import SettledRuns
from penstock.kernels.wire.dispatch import publish
from penstock.kernels.wire.sinks import DirtyList
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiStreamConfig
from penstock.store.memory import MemoryStreamStore
from penstock.testing.sim import Violation
from penstock.testing.sim.following_replica import FollowingReplica, state_of
from tests.support.engine import EngineHarness
from tests.support.examples import examples

SECOND_NS = 1_000_000_000
COMMANDS: list[Command] = [
    commands.Resume(),
    commands.Admit(codes.INSUFFICIENT_RESOURCES, -5),
    commands.Admit(None, None),
    commands.Expire(2**63 - 1),
    commands.DeleteMessage(7, True),
    commands.Purge(0),
    commands.PurgeSlice(b"a.*", 1, 9, 128, 2**63 - 1),
    commands.Update(ApiStreamConfig(name="S", subjects=["a"]), 3),
    commands.RecoverIds(0, 0, 5, 0),
    commands.EnforceLimits(1, 65536),
    commands.LimitBatches(1, 2, 3, 4, 5),
    commands.LimitRollups(-3),
    commands.RollUp(128, 65536),
    commands.MoveSource("O:>", 7, "abc"),
    commands.SetConsumer("c", b"{}"),
    commands.DropConsumer("c"),
    commands.ProgressConsumer("c", b"D\x01\x02"),
    commands.RetainMessages(True),
    commands.PinConsumer("c", "id7"),
    commands.CheckState(256, b"hash"),
]


class Followed(EngineHarness):
    """An engine whose streams are followed. `check` compares all of them."""

    def __init__(self, **settings: Any) -> None:
        self.following: dict[str, FollowingReplica] = {}
        self.commands: dict[str, list[bytes]] = {}
        super().__init__(commands=self, **settings)

    def record(self, stream: Any, command: bytes) -> None:
        if stream.name not in self.following:
            self.following[stream.name] = FollowingReplica(stream, self.now)
        self.following[stream.name].commands.append(command)
        self.commands.setdefault(stream.name, []).append(command)

    def check(self) -> None:
        for one in self.following.values():
            one.compare()

    def follower(self, name: str) -> StreamReplica:
        return self.following[name].stream

    def kinds(self, name: str) -> set[type]:
        return {type(decode(data)[0]) for data in self.commands[name]}

    def send(self, subject: bytes, payload: bytes = b"x", reply: bytes = b"", **headers: object) -> None:
        publish(self.index, subject, reply, block(**headers), payload)


def block(**headers: object) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode() if lines else b""


# --- the encoding


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_comes_back_from_its_encoding(command: Command) -> None:
    assert decode(encode(command, 17)) == (command, 17)


def test_every_kind_of_command_is_tried() -> None:
    assert {type(command) for command in COMMANDS} == {known for _, known in commands.KINDS.values()}


def test_a_batch_of_publishes_is_its_publishes_behind_the_head() -> None:
    batch = IngestBatch()
    batch.append(b"s", b"r", b"", b"x")
    data = encode(batch, 17)
    assert data == struct.pack("<BBq", commands.PUBLISHES, 1, 17) + batch.encode()
    again, now = decode(data)
    assert isinstance(again, IngestBatch)
    assert (again.take_one(), now) == ((b"s", b"r", b"", b"x"), 17)


def test_a_batch_of_copies_has_the_name_of_its_source() -> None:
    batch = CopyBatch()
    batch.append(3, 5, b"s", b"", b"x")
    data = encode(commands.StoreCopies("O:>", batch), 17)
    assert data == struct.pack("<BBqH", commands.COPIES, 1, 17, 3) + b"O:>" + batch.encode()
    again, now = decode(data)
    assert isinstance(again, commands.StoreCopies)
    assert (again.source, again.batch.take_one(), now) == ("O:>", (3, 5, b"s", b"", b"x"), 17)


def test_settled_messages_are_their_runs_behind_the_head() -> None:
    runs = SettledRuns()
    runs.append(7, 9)
    runs.append(2, 2)
    data = encode(runs, 17)
    assert data == struct.pack("<BBq", commands.SETTLED, 1, 17) + bytes([14, 2, 13, 0])
    again, now = decode(data)
    assert isinstance(again, SettledRuns)
    assert again == runs
    assert (again.items(), now) == ([(7, 9), (2, 2)], 17)


def test_a_field_that_a_later_version_adds_is_ignored() -> None:
    data = encode(commands.DeleteMessage(7, True), 1)[:10] + msgspec.msgpack.encode([7, True, "later"])
    assert decode(data) == (commands.DeleteMessage(7, True), 1)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "its head alone has 10"),
        (struct.pack("<BBq", 4, 1, -1) + b"\x91\x01", "no time from 1970"),
        (struct.pack("<BBq", 4, 1, 2**62) + b"\x91\x01", "no time from 1970 to 2116"),
        (struct.pack("<BBq", 4, 2, 1) + b"\x91\x01", "kind 4, version 2: unknown here"),
        (struct.pack("<BBq", 255, 1, 1), "kind 255, version 1: unknown here"),
        (struct.pack("<BBq", 1, 1, 1) + b"\x01", "ends at 11"),
        (struct.pack("<BBq", 4, 1, 1) + b"\x91", "kind 4"),
        (struct.pack("<BBq", 4, 1, 1) + b"\x91\x01\x01", "kind 4"),
        (struct.pack("<BBq", 5, 1, 1) + msgspec.msgpack.encode([-1, True]), "kind 5"),
        (struct.pack("<BBq", 5, 1, 1) + msgspec.msgpack.encode([2**63, True]), "kind 5"),
        (struct.pack("<BBq", 7, 1, 1) + msgspec.msgpack.encode(["text", 1, 1, 1, 1]), "kind 7"),
        (struct.pack("<BBq", 8, 1, 1) + b"\x91" * 5000, "kind 8"),
        (struct.pack("<BBq", 15, 1, 1) + b"\x01", "less than a name"),
        (struct.pack("<BBq", 15, 1, 1) + b"\x02\x00S", "ends at 14 of 13"),
        (struct.pack("<BBq", 15, 1, 1) + b"\x01\x00Sx", "the head of a copy"),
    ],
)
def test_malformed_commands_are_refused_by_one_error(data: bytes, text: str) -> None:
    with pytest.raises(MalformedCommandError, match=text):
        decode(data)


@settings(max_examples=examples(500))
@given(st.sampled_from([encode(one, 5) for one in COMMANDS]), st.data())
def test_damaged_commands_decode_or_are_refused(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    try:
        command, now = decode(bytes(damaged))
    except MalformedCommandError:
        return
    assert decode(encode(command, now)) == (command, now)


# --- a second instance


def test_a_follower_has_the_messages_the_ids_and_no_effects() -> None:
    js = Followed()
    js.create("S", "s.>", duplicate_window=100 * SECOND_NS)
    js.send(b"s.1", Nats_Msg_Id=1)
    js.send(b"s.1", Nats_Msg_Id=1)
    assert js.request("s.2", b"y") == {"stream": "S", "seq": 2}
    js.check()
    follower = js.follower("S")
    assert (follower.log.last_seq, follower.ids.find(b"1", js.now)) == (2, 1)
    assert (len(follower.acks), follower.republisher.count) == (0, 0)


def test_a_refused_request_is_refused_by_the_follower_too() -> None:
    js = Followed()
    js.create("S", deny_delete=True, deny_purge=True)
    js.send(b"S")
    assert js.api("STREAM.PURGE.S")["error"]["err_code"] == 10110
    assert js.api("STREAM.MSG.DELETE.S", {"seq": 1})["error"]["err_code"] == 10057
    js.check()
    assert js.follower("S").log.messages == 1


@pytest.mark.parametrize("seq", [0, 2**48, 2**63, 2**64 - 1])
def test_a_delete_of_a_sequence_that_no_message_can_have_is_no_command(seq: int) -> None:
    js = Followed()
    js.create("S")
    js.send(b"S")
    assert js.api("STREAM.MSG.DELETE.S", {"seq": seq})["error"]["err_code"] in (10003, 10043)
    js.check()
    assert commands.DeleteMessage not in js.kinds("S")


def test_a_difference_is_found() -> None:
    js = Followed()
    js.create("S")
    js.send(b"S")
    js.tick()
    js.check()
    js.engine.streams["S"].log.remove(1)
    with pytest.raises(Violation, match="replicas are equal: sequences of S"):
        js.check()


def test_the_time_of_commands_never_runs_backwards() -> None:
    js = Followed()
    js.create("S", max_age=SECOND_NS, duplicate_window=SECOND_NS)
    for step in (0, 5, -3, -2, 1, 10):
        js.now += step * SECOND_NS // 10
        js.send(b"S")
        js.tick()
    js.check()
    times = [decode(data)[1] for data in js.commands["S"]]
    assert times == sorted(times) and len(set(times)) > 2


def test_what_the_account_admits_is_a_command() -> None:
    js = Followed(account_storage_max=400)
    js.create("S")
    js.create("T")
    for i in range(8):
        js.send(b"S", b"." * 60)
        js.send(b"T", b"%d" % i)
        js.tick()
    js.check()
    assert js.follower("S").log.last_seq < 8
    assert commands.Admit in js.kinds("S")


def test_a_promotion_prepares_the_ids_on_the_follower_too() -> None:
    js = Followed()
    js.create("O")
    js.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    for i in range(1200):  # in several slices
        js.send(b"O", Nats_Msg_Id=i)
    js.tick()
    js.tick()
    answer = js.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["m"]})
    assert "error" not in answer
    js.check()
    assert commands.RecoverIds in js.kinds("M")
    assert js.follower("M").ids.find(b"1100", js.now) == 1101


SUBJECTS = st.sampled_from([b"s.1", b"s.2", b"s.2.x", b"s.3"])
PUBLISHES = st.tuples(
    st.just("publish"),
    SUBJECTS,
    st.sampled_from(
        [
            {},
            {"Nats_Msg_Id": 1},
            {"Nats_Msg_Id": 2, "X": "y"},
            {"Nats_Expected_Last_Sequence": 3},
            {"Nats_Expected_Last_Subject_Sequence": 0},
            {"Nats_TTL": "1s"},
            {"Nats_TTL": "never"},
            {"Nats_Rollup": "sub"},
            {"Nats_Rollup": "all", "Nats_Msg_Id": 3},
        ]
    ),
    st.sampled_from([b"", b"x" * 40]),
)
STEPS = st.one_of(
    PUBLISHES,
    PUBLISHES,
    st.tuples(st.just("tick")),
    st.tuples(st.just("wait"), st.sampled_from([1, 400_000_000, 2 * SECOND_NS])),
    st.tuples(
        st.just("purge"),
        st.sampled_from(
            [{}, {"filter": "s.2"}, {"filter": "s.*", "keep": 1}, {"seq": 4}, {"seq": 40}, {"filter": "s.>"}]
        ),
    ),
    st.tuples(st.just("delete"), st.integers(0, 12)),
    st.tuples(
        st.just("update"),
        st.sampled_from(
            [
                {},
                {"max_msgs": 3},
                {"max_bytes": 300},
                {"max_msgs_per_subject": 1},
                {"max_age": SECOND_NS},
                {"discard": "new", "max_msgs": 4},
                {"duplicate_window": SECOND_NS // 2},
                {"deny_purge": True},
            ]
        ),
    ),
)
CONFIGS = st.fixed_dictionaries(
    {"storage": st.sampled_from(["file", "memory"])},
    optional={
        "max_msgs": st.just(6),
        "max_age": st.just(3 * SECOND_NS),
        "allow_msg_ttl": st.just(True),
        "allow_rollup_hdrs": st.just(True),
        "first_seq": st.just(9),
        "subject_transform": st.just({"src": "s.*", "dest": "s.t.{{wildcard(1)}}"}),
        "republish": st.just({"src": "s.>", "dest": "r.>"}),
        "subject_delete_marker_ttl": st.just(SECOND_NS),
    },
)


@settings(max_examples=examples(150))
@given(CONFIGS, st.lists(STEPS, max_size=30))
def test_a_follower_equals_its_leader_after_every_step(
    config: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    if "subject_delete_marker_ttl" in config:
        config |= {"allow_msg_ttl": True, "allow_rollup_hdrs": True}
    js = Followed()
    js.create("S", "s.>", **config)
    for what, *about in steps:
        if what == "publish":
            js.send(about[0], about[2], **about[1])
        elif what == "tick":
            js.tick()
        elif what == "wait":
            js.wait_until(js.now + about[0])
        elif what == "purge":
            js.api("STREAM.PURGE.S", about[0])
        elif what == "delete":
            js.api("STREAM.MSG.DELETE.S", {"seq": about[0]})
        else:
            js.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], **config, **about[0]})
        js.check()
    check_rebuilt(js, "S", config)


def check_rebuilt(js: Followed, name: str, config: dict[str, Any]) -> None:
    """A stream that is made from the commands alone equals the one that applied them."""
    leader = js.engine.streams[name]
    empty = Followed()
    empty.create(name, *(leader.config.subjects), **config)
    rebuilt = StreamReplica(
        empty.engine.streams[name].config,
        MemoryStreamStore({}, name, b"", storage=leader.config.storage.value),
        created=leader.created, domain="", api_level=leader.api_level, dirty=DirtyList(),
    )  # fmt: skip
    rebuilt.number_from_first()
    for data in js.commands.get(name, []):
        with contextlib.suppress(JetStreamApiError):
            rebuilt.apply(*decode(data))
    assert state_of(rebuilt) == state_of(leader)
