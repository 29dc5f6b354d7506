"""What a leader of a stream's group hands over besides its log."""

from __future__ import annotations

from penstock.jetstream import commands
from penstock.jetstream.commands import CheckState, Command, DropConsumer, ProgressConsumer
from penstock.jetstream.group_commands import split
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import publish
from penstock.server.replicated.hand_over import AckKeeper, is_progress, progress_of

NOW = 1_800_000_000 * 10**9


def entry(*made: Command) -> bytes:
    encoded = [commands.encode(one, NOW) for one in made]
    return b"\x01" + b"".join(len(one).to_bytes(4, "little") + one for one in encoded)


def decoded(data: bytes) -> list[Command]:
    return [commands.decode(data, *span)[0] for span in split(data)]


def publishes() -> IngestBatch:
    batch = IngestBatch()
    batch.append(b"S.1", b"", b"", b"x")
    return batch


FIRST, SECOND = ProgressConsumer("c", b"1"), ProgressConsumer("d", b"2")


def test_progress_is_handed_over_without_publishes_and_checks() -> None:
    found = progress_of(entry(FIRST, publishes(), CheckState(7, b"h"), SECOND), frozenset())
    assert decoded(found) == [FIRST, SECOND]
    assert is_progress(found)


def test_progress_after_another_change_is_not_handed_over() -> None:
    assert decoded(progress_of(entry(FIRST, DropConsumer("d"), SECOND), frozenset())) == [FIRST]


def test_what_a_consumer_recorded_and_did_not_send_is_not_handed_over() -> None:
    assert decoded(progress_of(entry(FIRST, SECOND), frozenset("c"))) == [SECOND]


def test_nothing_is_handed_over_of_an_entry_without_progress_or_one_that_cannot_be_read() -> None:
    assert progress_of(entry(publishes()), frozenset()) == b""
    assert progress_of(entry(FIRST)[:-1], frozenset()) == b""


def test_an_entry_with_anything_else_is_no_progress() -> None:
    assert not is_progress(entry(FIRST, DropConsumer("c")))
    assert not is_progress(b"\x01\xff")


def kept_acks() -> tuple[AckKeeper, SubscriptionIndex, list[tuple[bytes, bytes, bytes, bytes]]]:
    index = SubscriptionIndex()
    taken: list[tuple[bytes, bytes, bytes, bytes]] = []
    return AckKeeper(index, "A", "", "S", lambda *ack: taken.append(ack)), index, taken


SUBJECT = b"$JS.ACK.S.c.1.1.1.1.0"


def test_a_leader_that_hands_over_keeps_acks_that_ask_for_a_confirmation() -> None:
    keeper, index, taken = kept_acks()
    keeper.begin(is_late=False)
    for reply, payload in (
        (b"", b""),
        (b"r.1", b""),
        (b"r.2", b"+ACK"),
        (b"r.3", b"-NAK"),
        (b"r.4", b"+NXT"),
    ):
        publish(index, SUBJECT, reply, b"", payload)
    assert [reply for _, reply, _, _ in taken] == [b"r.1", b"r.2"]


def test_a_former_leader_keeps_all_acks_that_come_late() -> None:
    keeper, index, taken = kept_acks()
    keeper.begin(is_late=False)
    keeper.begin(is_late=True)
    publish(index, SUBJECT, b"", b"", b"-NAK")
    publish(index, b"$JS.ACK.OTHER.c.1.1.1.1.0", b"", b"", b"")
    assert taken == [(SUBJECT, b"", b"", b"-NAK")]
    keeper.end()
    assert not keeper.is_active
    publish(index, SUBJECT, b"", b"", b"")
    assert len(taken) == 1


def test_kept_acks_are_not_announced_to_other_servers() -> None:
    keeper, index, _ = kept_acks()
    keeper.begin(is_late=True)
    assert {one.private for one in index.subscriptions()} == {True}
