"""Fuzzes the decoders of the meta group: python fuzz/fuzz_meta_commands.py [libFuzzer options].

Whatever the bytes, a command is refused by the one error, or encoded as the same command again; a snapshot is
refused, or makes a state that is encoded as the same state again.
"""

from __future__ import annotations

import atheris
from seeded import fuzz

with atheris.instrument_imports():
    from penstock.errors import MalformedCommandError
    from penstock.jetstream.meta import meta_commands as commands
    from penstock.jetstream.meta.meta_commands import decode_command, encode_command
    from penstock.jetstream.meta.meta_machine import MetaMachine

from penstock.protocol.api import AccountLimits, ApiConsumerConfig, ApiStreamConfig

RULES = commands.AccountRules({"": AccountLimits()})
PLACEMENT = commands.PlacementRules(("c",))
STREAM = ApiStreamConfig(name="S", subjects=["s.>"], num_replicas=1)
COMMANDS: tuple[commands.MetaCommand, ...] = (
    commands.FoundCluster("id"),
    commands.SetPeer("A", "a", "c", ("x",)),
    commands.CreateStream("$G", STREAM, RULES, PLACEMENT),
    commands.CreateConsumer("$G", "S", "c", ApiConsumerConfig(durable_name="c"), RULES),
    commands.UpdateStream("$G", STREAM, RULES, PLACEMENT),
    commands.SettleMembers("$G", "S", 3, ("A",), 4),
    commands.DeleteStream("$G", "S"),
)


@atheris.instrument_func
def fuzz_one(data: bytes) -> None:
    try:
        command, now = decode_command(data)
    except MalformedCommandError:
        pass
    else:
        again = encode_command(command, now)
        assert encode_command(*decode_command(again)) == again
    try:
        machine = MetaMachine.restore(data)
    except MalformedCommandError:
        return
    again = machine.snapshot()
    assert MetaMachine.restore(again).snapshot() == again


def seeds() -> list[bytes]:
    machine = MetaMachine()
    found = []
    for index, command in enumerate(COMMANDS, 1):
        found.append(encode_command(command, index))
        machine.apply_entry(found[-1], index)
        found.append(machine.snapshot())
    return found


if __name__ == "__main__":
    fuzz(seeds(), fuzz_one)
