"""Commands of a replicated stream's leader: entries, their order, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import JetStreamApiError, LeadershipLostError, MalformedCommandError
from penstock.jetstream import group_commands
from penstock.jetstream.commands import Admit, DropConsumer, Expire, Purge, decode
from penstock.jetstream.group_commands import (
    COMMAND_BYTES_MAX,
    ENTRIES_AHEAD,
    FULL_ENTRY_BYTES,
    PARKED,
    GroupCommands,
    parts_of,
    split,
)
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.protocol import error_codes as codes


class FakeGroup:
    """A group that takes entries, or refuses them."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.takes = True
        self.reads: list[Callable[[], object]] = []

    def propose(self, data: bytes) -> int:
        if self.takes:
            self.entries.append(data)
        return len(self.entries) if self.takes else 0

    def read_index(self, done: Callable[[], object]) -> bool:
        self.reads.append(done)
        return True

    def consumer_dropped(self, name: str) -> None:
        """No consumer has a part in these tests."""


class Leader:
    """A leader's commands with a clock."""

    def __init__(self) -> None:
        self.group = FakeGroup()
        self.clock = 100
        self.wakes = 0
        self.commands = GroupCommands(self.group, lambda: self.clock, self._wake)
        self.commands.lead([])

    def _wake(self) -> None:
        self.wakes += 1

    def decoded(self) -> list[list[tuple[object, int]]]:
        return [[decode(entry, *span) for span in split(entry)] for entry in self.group.entries]


def test_the_commands_of_a_tick_are_one_entry_in_their_order() -> None:
    leader = Leader()
    leader.commands.submit(Purge(5), 0)
    leader.commands.submit(DropConsumer("c"), 0)
    assert leader.commands.flush()
    leader.commands.submit(Purge(6), 0)
    assert leader.commands.flush()
    assert leader.decoded() == [[(Purge(5), 100), (DropConsumer("c"), 100)], [(Purge(6), 100)]]
    assert leader.wakes == 3


def test_an_entry_knows_when_the_first_of_its_publishes_arrived() -> None:
    leader = Leader()
    leader.commands.submit(Purge(5), 0)
    leader.commands.flush()
    for since in (30, 40):
        batch = IngestBatch(since)
        batch.append(b"s", b"r", b"", b"x")
        leader.commands.submit(batch, 0)
    leader.commands.flush()
    leader.commands.submit(Purge(6), 0)
    leader.commands.flush()
    assert [leader.commands.take_committed().since for _ in range(3)] == [0, 30, 0]


def test_the_time_of_commands_never_falls_whatever_the_clock_does() -> None:
    leader = Leader()
    leader.commands.applied(500)  # by the leader before
    leader.commands.submit(Purge(1), 0)
    leader.clock = 700
    leader.commands.submit(Purge(2), 0)
    leader.clock = 50
    leader.commands.submit(Purge(3), 0)
    leader.commands.flush()
    assert [now for _, now in leader.decoded()[0]] == [500, 700, 700]


def test_an_entry_that_the_group_refuses_waits_for_the_next_flush() -> None:
    leader = Leader()
    leader.group.takes = False
    leader.commands.submit(Purge(1), 0)
    assert not leader.commands.flush()
    leader.commands.submit(Purge(2), 0)
    leader.group.takes = True
    assert leader.commands.flush()
    assert [one for one, _ in leader.decoded()[0]] == [Purge(1), Purge(2)]


def test_commands_may_wait_while_several_entries_are_in_flight_and_little_is_submitted() -> None:
    leader = Leader()
    for number in range(ENTRIES_AHEAD):
        leader.commands.submit(Purge(number), 0)
        assert not leader.commands.may_wait
        leader.commands.flush()
    leader.commands.submit(Purge(9), 0)
    assert leader.commands.may_wait
    batch = IngestBatch(1)
    batch.append(b"s", b"r", b"", bytes(FULL_ENTRY_BYTES))
    leader.commands.submit(batch, 0)
    assert not leader.commands.may_wait
    leader.commands.flush()
    leader.commands.submit(Purge(10), 0)
    assert leader.commands.may_wait
    for _ in range(2):
        leader.commands.take_committed()
    assert not leader.commands.may_wait


def test_a_change_returns_its_result_when_its_entry_is_committed() -> None:
    leader = Leader()
    steps = leader.commands.change(Purge(1), 0)
    assert next(steps) == PARKED
    leader.commands.flush()
    assert next(steps) == PARKED
    leader.commands.take_committed().settle(0, 7)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == 7


def test_a_change_that_is_refused_raises_its_error() -> None:
    leader = Leader()
    steps = leader.commands.change(Purge(1), 0)
    next(steps)
    leader.commands.flush()
    leader.commands.take_committed().settle(0, codes.STREAM_SEALED.exception())
    with pytest.raises(JetStreamApiError) as error:
        next(steps)
    assert error.value.err_code == 10109


@pytest.mark.parametrize("is_proposed", [False, True])
def test_the_outcome_of_a_change_is_unknown_when_the_leadership_ends(is_proposed: bool) -> None:
    leader = Leader()
    steps = leader.commands.change(Purge(1), 0)
    next(steps)
    if is_proposed:
        leader.commands.flush()
    leader.commands.follow()
    leader.commands.lead([])
    with pytest.raises(LeadershipLostError):
        next(steps)


def test_publishes_that_were_not_proposed_are_given_back_when_the_leadership_ends() -> None:
    leader = Leader()
    batches = [IngestBatch() for _ in range(2)]
    for number, batch in enumerate(batches):
        batch.append(b"S", b"r%d" % number, b"", b"x")
        leader.commands.submit(batch, 0)
        leader.commands.submit(Purge(1), 0)
        leader.group.takes = not number
        leader.commands.flush()
    [left] = leader.commands.follow()
    assert left.take_one() == (b"S", b"r1", b"", b"x")
    assert left.take_one() is None
    assert leader.commands.follow() == []


def test_what_waits_for_a_commit_is_called_with_the_entry_that_has_everything_before() -> None:
    leader, called = Leader(), list[str]()
    leader.commands.when_committed(lambda: called.append("nothing to wait for"))
    leader.commands.submit(Purge(1), 0)
    leader.commands.when_committed(lambda: called.append("first"))
    leader.commands.flush()
    leader.commands.when_committed(lambda: called.append("in flight"))
    leader.commands.submit(Purge(2), 0)
    leader.commands.when_committed(lambda: called.append("second"))
    leader.commands.flush()
    assert called == ["nothing to wait for"]
    for call in leader.commands.take_committed().calls:
        call()
    assert called[1:] == ["first", "in flight"]
    for call in leader.commands.take_committed().calls:
        call()
    assert called[3:] == ["second"]


def test_a_response_waits_for_a_majority_also_when_nothing_is_in_flight() -> None:
    leader, called = Leader(), list[str]()
    leader.commands.when_confirmed(lambda: called.append("read"))
    assert called == []
    leader.group.reads.pop()()
    assert called == ["read"]


def test_nothing_that_waits_is_called_when_the_leadership_ends() -> None:
    leader, called = Leader(), list[str]()
    leader.commands.submit(Purge(1), 0)
    leader.commands.when_committed(lambda: called.append("first"))
    leader.commands.flush()
    leader.commands.follow()
    leader.commands.lead([])
    assert not leader.commands.has_uncommitted
    assert called == []


def test_a_follower_submits_nothing() -> None:
    leader = Leader()
    leader.commands.follow()
    leader.commands.submit(Purge(1), 0)
    assert leader.commands.flush()
    assert leader.group.entries == []


def test_one_expire_is_in_flight_at_a_time() -> None:
    leader = Leader()
    leader.commands.submit_expire(Expire(1), 0)
    leader.commands.submit_expire(Expire(1), 0)
    assert not leader.commands.may_expire
    leader.commands.flush()
    assert len(leader.decoded()[0]) == 1
    for call in leader.commands.take_committed().calls:
        call()
    assert leader.commands.may_expire


def test_a_limit_is_submitted_when_it_differs_from_the_last_one() -> None:
    leader = Leader()
    leader.commands.follow()
    leader.commands.lead([Admit(None, None)])
    leader.commands.submit_changed(Admit(None, None))
    leader.commands.submit_changed(Admit(None, 5))
    leader.commands.submit_changed(Admit(None, 5))
    leader.commands.flush()
    assert leader.decoded() == [[(Admit(None, 5), 100)]]


def test_every_cut_of_an_entry_is_an_error_or_has_only_whole_commands() -> None:
    leader = Leader()
    leader.commands.submit(Purge(5), 0)
    leader.commands.submit(DropConsumer("c"), 0)
    leader.commands.flush()
    [entry] = leader.group.entries
    whole = [1, *(end for _, end in split(entry))]
    for end in range(len(entry)):
        if end in whole:
            assert len(list(split(entry[:end]))) == whole.index(end)
        else:
            with pytest.raises(MalformedCommandError):
                list(split(entry[:end]))


def test_an_entry_of_a_newer_server_is_refused() -> None:
    with pytest.raises(MalformedCommandError, match="a newer server may know it"):
        list(split(b"\x02"))


def test_publishes_of_a_tick_above_the_size_of_a_part_become_several_commands() -> None:
    batch = IngestBatch(since=7)
    for number in range(10):
        batch.append(b"s", b"r%d" % number, b"", b"x" * 1000)
    refused: list[bytes] = []
    parts = list(parts_of(batch, refused.append, part_bytes=3000))
    assert [(part.count, part.since) for part in parts] == [(3, 7), (3, 7), (3, 7), (1, 7)]
    taken = [publish[1] for part in parts for publish in iter(part.take_one, None)]
    assert taken == [b"r%d" % number for number in range(10)]
    assert refused == []


def test_a_publish_that_no_entry_can_have_is_refused() -> None:
    batch = IngestBatch()
    batch.append(b"s", b"large", b"", bytes(COMMAND_BYTES_MAX))
    batch.append(b"s", b"small", b"", b"x")
    refused: list[bytes] = []
    [part] = parts_of(batch, refused.append)
    assert (part.count, refused) == (1, [b"large"])


def test_a_command_that_no_entry_can_have_is_refused_with_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commands, "COMMAND_BYTES_MAX", 20)
    leader = Leader()
    leader.commands.submit(DropConsumer("a name of some length"), 0)
    change = leader.commands.change(DropConsumer("a name of some length"), 0)
    with pytest.raises(JetStreamApiError, match=r"DropConsumer has .* bytes, a replicated stream takes 20"):
        next(change)
    leader.commands.submit(Purge(5), 0)
    assert leader.commands.flush()
    assert leader.decoded() == [[(Purge(5), 100)]]
