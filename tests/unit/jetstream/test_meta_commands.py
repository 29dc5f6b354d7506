"""Meta commands: their encoding, whatever the bytes; snapshots; and commands that are applied twice."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import faults
from penstock.errors import MalformedCommandError
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta import stream_assigning
from penstock.jetstream.meta.meta_commands import (
    META_KINDS,
    AccountRules,
    MetaCommand,
    PlacementRules,
    decode_command,
    encode_command,
)
from penstock.jetstream.meta.meta_machine import MetaMachine
from penstock.protocol import error_codes as codes
from penstock.protocol.api import AccountLimits, ConsumerAction
from tests.support.examples import examples
from tests.support.meta_groups import (
    TICKET,
    MetaGroup,
    consumer_config_of,
    error_of,
    no_limits,
    stream_config_of,
    text_of,
)

CONFIG = stream_config_of("S", subjects=["a", "b.>"], metadata={"b": "1", "a": "2"})
PLACEMENT = PlacementRules(("c", "d"), "az:", 7)
RULES = AccountRules({"R3": AccountLimits(max_streams=3)}, 5)
COMMANDS: list[MetaCommand] = [
    commands.FoundCluster("id"),
    commands.SetPeer("A", "a", "c", ("x", "y"), "dom", "disk", 3, -1, 10**12),
    commands.ObservePeers((commands.PeerSight("A", True, False, 5, 6),)),
    commands.CreateStream("$G", CONFIG, RULES, PLACEMENT, True, True, "A", TICKET),
    commands.UpdateStream("$G", CONFIG, RULES, PLACEMENT, True, True, TICKET),
    commands.MoveStream("$G", "S", PLACEMENT, "a", ("x",), TICKET),
    commands.CancelMove("$G", "S", TICKET),
    commands.DeleteStream("$G", "S", 3, codes.INSUFFICIENT_RESOURCES, TICKET),
    commands.ChoosePeers("$G", "S", 3, ("A", "B")),
    commands.SettleMembers("$G", "S", 3, ("A", "B"), 4),
    commands.RemoveFromStream("$G", "S", "a", "az:", TICKET),
    commands.CreateConsumer(
        "$G", "S", "c", consumer_config_of(CONFIG), no_limits(), ConsumerAction.UPDATE, True, TICKET
    ),
    commands.DeleteConsumer("$G", "S", "c", 3, None, TICKET),
    commands.PauseConsumer("$G", "S", "c", "2030-01-01T00:00:00Z", TICKET),
    commands.RemoveServer("A", TICKET),
    commands.EvacuateServer("A", TICKET),
    commands.Reassign(64, "az:", ("$G", "S")),
    commands.Heal(1),
    commands.PeerGone("A"),
    commands.PurgeAccount("$G", 64, TICKET),
    commands.ConfirmRemoved("A", (1, 2), 3),
    commands.AdoptStream("$G", CONFIG, 5, "A", "old", 7, TICKET, (("c", consumer_config_of(CONFIG), 6),)),
]


def test_the_examples_have_every_kind_of_command() -> None:
    assert [type(one) for one in COMMANDS] == [known for _, known in META_KINDS.values()]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: type(one).__name__)
def test_a_command_is_decoded_as_it_was_encoded(command: MetaCommand) -> None:
    data = encode_command(command, 7)
    assert decode_command(data) == (command, 7)
    assert encode_command(*decode_command(data)) == data


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: type(one).__name__)
def test_a_command_that_ends_early_is_refused_at_every_byte(command: MetaCommand) -> None:
    data = encode_command(command, 7)
    required = [one for one in type(command).__struct_fields__ if one]
    for end in range(len(data)):
        with pytest.raises(MalformedCommandError):
            decode_command(data[:end])
    assert required


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes"),
        (struct.pack("<BBq", 99, 1, 7), "kind 99, version 1: unknown here"),
        (struct.pack("<BBq", 1, 2, 7), "kind 1, version 2: unknown here"),
        (struct.pack("<BBq", 1, 1, -1), "no time"),
        (struct.pack("<BBq", 1, 1, 7) + msgspec.msgpack.encode([1]), "malformed"),
        (struct.pack("<BBq", 17, 1, 7) + msgspec.msgpack.encode([0]), "malformed"),
        (struct.pack("<BBq", 1, 1, 7) + b"\x91" * 100_000, "malformed"),
    ],
)
def test_what_is_no_command_is_named(data: bytes, text: str) -> None:
    with pytest.raises(MalformedCommandError, match=text):
        decode_command(data)


def test_a_field_that_an_older_server_left_out_has_its_default() -> None:
    data = struct.pack("<BBq", 17, 1, 7) + msgspec.msgpack.encode([5])
    assert decode_command(data)[0] == commands.Reassign(5)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(COMMANDS), st.data())
def test_damaged_commands_are_refused_or_are_commands(command: MetaCommand, data: st.DataObject) -> None:
    damaged = bytearray(encode_command(command, 7))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    try:
        found, now = decode_command(bytes(damaged))
    except MalformedCommandError:
        return
    assert decode_command(encode_command(found, now)) == (found, now)
    if isinstance(
        found, commands.CreateStream | commands.AdoptStream | commands.UpdateStream | commands.CreateConsumer
    ):
        return  # the server that proposes these has checked the configuration
    group = MetaGroup(3)
    group.machine.apply(found, 100, now)
    assert MetaMachine.restore(group.machine.snapshot()).snapshot() == group.machine.snapshot()


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_refused_or_a_command(data: bytes) -> None:
    for kind in (b"", b"\x01\x01" + bytes(8), b"\x04\x01" + bytes(8)):
        try:
            decode_command(kind + data)
        except MalformedCommandError:
            continue


def busy_group() -> MetaGroup:
    group = MetaGroup(5)
    for number in range(5):
        group.create(f"S{number}", 1 + number % 3, max_bytes=100)
        group.consume(f"S{number}", "c", durable_name="c")
    group.create("T", 1, account="OTHER")
    group.update("S1", num_replicas=3)
    group.update("S2", num_replicas=1)
    group.apply(commands.DeleteStream("$G", "S3"))
    group.apply(commands.EvacuateServer("A"))
    return group


def test_a_snapshot_is_restored_with_everything_derived() -> None:
    group = busy_group()
    machine = MetaMachine.restore(group.machine.snapshot())
    assert machine.snapshot() == group.machine.snapshot()
    before, after = group.machine.tables, machine.tables
    for peer in "ABCDE":
        assert after.streams_on(peer) == before.streams_on(peer)
        assert after.load(peer).replicated == before.load(peer).replicated
        assert after.load(peer).reserved == before.load(peer).reserved
    assert after.short == before.short
    assert {name: count for name, count in after.leads().items() if count} == {
        name: count for name, count in before.leads().items() if count
    }
    later = MetaGroup(0)
    later.machine, later.log, later.now = machine, list(group.log), group.now
    for one in (group, later):
        assert error_of(one.create("U", subjects=["S0"])) == 10065
        one.create("U", 3)
    assert later.machine.snapshot() == group.machine.snapshot()


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_damaged_snapshot_is_refused_or_is_a_state(data: st.DataObject) -> None:
    damaged = bytearray(SNAPSHOT)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    try:
        machine = MetaMachine.restore(bytes(damaged))
    except MalformedCommandError:
        return
    assert MetaMachine.restore(machine.snapshot()).snapshot() == machine.snapshot()


SNAPSHOT = busy_group().machine.snapshot()


def test_a_snapshot_that_ends_early_is_refused_at_every_byte() -> None:
    for end in range(0, len(SNAPSHOT), 7):
        with pytest.raises(MalformedCommandError):
            MetaMachine.restore(SNAPSHOT[:end])


def test_a_command_that_is_applied_already_does_nothing() -> None:
    group = MetaGroup()
    group.create("S")
    before = group.machine.snapshot()
    for index, data in enumerate(group.log, 1):
        assert group.machine.apply_entry(data, index) == []
    assert group.machine.snapshot() == before


def test_the_time_of_a_command_is_never_before_that_of_an_earlier_one() -> None:
    group = MetaGroup()
    early = group.now
    group.now -= 10**12
    group.create("S")
    assert group.stream("S").created == early


def test_an_unexpected_exception_costs_one_command(
    monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    group = MetaGroup()

    def fails(*arguments: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(stream_assigning, "place", fails)
        effects = group.create("S")
    assert error_of(effects) == codes.STREAM_GENERAL.err_code
    assert faults.describe("x")[:5] in text_of(effects)
    assert [str(error) for error in noted_faults] == ["planted"]
    noted_faults.clear()
    assert error_of(group.create("S")) == 0
