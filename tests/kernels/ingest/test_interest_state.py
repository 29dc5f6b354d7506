"""What leaves an interest or work-queue stream, against a model that looks at everything each time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.kernels.consumer.ack_state import AckPolicy, AckState
from penstock.kernels.consumer.pump import Pump
from penstock.kernels.ingest.storing import InterestState, SettledRuns
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from tests.reference.interest_state import ConsumerModel, NeedsModel
from tests.reference.stream_log import LogModel
from tests.support.examples import examples

pytestmark = pytest.mark.feature("stream.interest", "stream.work-queue")

SUBJECTS = [b"s.a", b"s.b", b"s.c.d", b"t"]
FILTERS: list[list[bytes]] = [[], [b"s.a"], [b"s.*"], [b"s.b", b"s.c.>"], [b"none"], [b"s.>", b"t"]]
NAMES = ["x", "y", "z"]


def pump_of(log: StreamLog, policy: int, filters: list[bytes], start: int = 1) -> Pump:
    return Pump(log, AckState(policy, start), SubscriptionIndex(), b"$JS.ACK.S.c.", filters, start)


class NeedsMachine(RuleBasedStateMachine):
    """Publishes as an interest stream or a work queue takes them; consumers that come and go."""

    @initialize(work_queue=st.booleans())
    def begin(self, work_queue: bool) -> None:
        self.log = StreamLog(500)
        self.interest_state = InterestState(self.log, work_queue=work_queue)
        self.model = NeedsModel(LogModel(), work_queue)
        self.pumps: dict[str, Pump] = {}

    @rule(subject=st.sampled_from(SUBJECTS), copies=st.integers(1, 4))
    def publish(self, subject: bytes, copies: int) -> None:
        for _ in range(copies):
            wanted = self.model.work_queue or self.model.wants(subject)
            assert self.interest_state.wants(subject) == self.model.wants(subject)
            if wanted:
                assert self.log.append(subject, b"", b"", 1) == self.model.log.append(subject, b"", b"", 1)
            else:
                assert self.log.skip(1) == self.model.log.skip(1)

    @rule(
        name=st.sampled_from(NAMES),
        policy=st.sampled_from(list(AckPolicy)),
        filters=st.sampled_from(FILTERS),
        new=st.booleans(),
    )
    def create(self, name: str, policy: int, filters: list[bytes], new: bool) -> None:
        if name not in self.pumps:
            start = self.log.last_seq + 1 if new else self.log.first_seq
            self.pumps[name] = pump_of(self.log, policy, filters, start)
            self.interest_state.add(self.pumps[name], start)
            self.model.consumers[name] = ConsumerModel(policy, filters, start)

    @precondition(lambda self: getattr(self, "pumps", None))
    @rule(data=st.data(), count=st.integers(1, 6))
    def deliver(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.pumps)))
        pump, model = self.pumps[name], self.model.consumers[name]
        settled = set()
        for _ in range(count):
            found = [
                seq
                for seq in sorted(self.model.log.live)
                if seq > model.delivered and model.takes(self.model.log.live[seq].subject)
            ]
            if not found:
                break
            pump.state.delivered(found[0], 5)
            model.delivered = found[0]
            model.had.add(found[0])
            if model.policy == AckPolicy.ACK_NONE:
                settled.add(found[0])
        model.settled |= settled
        self.settle(name, settled)

    @precondition(lambda self: getattr(self, "pumps", None))
    @rule(data=st.data(), give_up=st.booleans())
    def ack(self, data: st.DataObject, give_up: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.pumps)))
        pump, model = self.pumps[name], self.model.consumers[name]
        open_seqs = sorted(model.had - model.settled)
        if not open_seqs or model.policy == AckPolicy.ACK_NONE:
            return
        seq = data.draw(st.sampled_from(open_seqs))
        if give_up and model.policy == AckPolicy.ACK_EXPLICIT:
            pump.state.give_up(seq)
            assert pump.state.is_needed(seq)
            self.settle(name, set())
            return
        pump.state.acked(seq, 0)
        below = {one for one in open_seqs if one <= seq}
        settled = below if model.policy == AckPolicy.ACK_ALL else {seq}
        model.settled |= settled
        self.settle(name, settled)

    def settle(self, name: str, settled: set[int]) -> None:
        runs = self.interest_state.settled(self.pumps[name])
        if runs is not None:
            again = SettledRuns.decode(runs.encode())
            assert again.items() == runs.items()
            again.remove_from(self.log)
        self.model.settle(settled)

    @precondition(lambda self: getattr(self, "pumps", None))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pumps)))
        self.interest_state.remove(self.pumps.pop(name))
        del self.model.consumers[name]

    @precondition(lambda self: getattr(self, "pumps", None))
    @rule(data=st.data(), filters=st.sampled_from(FILTERS))
    def change_filters(self, data: st.DataObject, filters: list[bytes]) -> None:
        name = data.draw(st.sampled_from(sorted(self.pumps)))
        pump, model = self.pumps[name], self.model.consumers[name]
        pump.set_filters(filters)
        model.filters = filters
        model.start = pump.state.delivered_stream + 1
        self.interest_state.refilter(pump, model.start)

    @rule()
    def review(self) -> None:
        before = len(self.model.log.live)
        self.model.review()
        assert self.remove_unneeded() == before - len(self.model.log.live)
        assert self.remove_unneeded() == 0

    def remove_unneeded(self) -> int:
        runs, seq = self.interest_state.unneeded()
        assert seq == 0
        return runs.remove_from(self.log)

    @rule(work=st.integers(1, 1000))
    def review_in_parts(self, work: int) -> None:
        before = len(self.model.log.live)
        self.model.review()
        gone, seq, parts = 0, 1, 0
        while seq:
            runs, seq = self.interest_state.unneeded(seq, work)
            gone += runs.remove_from(self.log)
            parts += 1
        assert gone == before - len(self.model.log.live)
        assert parts <= before + 1

    @invariant()
    def same_messages(self) -> None:
        if hasattr(self, "log"):
            live = sorted(self.model.log.live)
            assert [seq for seq in range(self.log.last_seq + 1) if self.log.load(seq)] == live
            assert self.log.last_seq == self.model.log.last_seq


TestNeeds = NeedsMachine.TestCase
TestNeeds.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 30), max_size=30, unique=True))
def test_what_was_settled_is_reported_in_runs(acks: list[int]) -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    for seq in range(1, 31):
        state.delivered(seq, 1)
    state.collecting = True
    for seq in acks:
        state.acked(seq, seq)
    runs = state.take_settled()
    assert [seq for first, last in runs for seq in range(first, last + 1)] == acks
    assert all(b[0] != a[1] + 1 for a, b in itertools.pairwise(runs))
    assert state.take_settled() == []


def test_the_gone_messages_of_a_consumer_that_others_share_do_not_count_as_removals() -> None:
    """A consumer's count of pending messages stays valid: no consumer wanted these messages."""
    log = StreamLog()
    for _ in range(10):
        log.append(b"s.a", b"", b"", 1)
    pump = pump_of(log, AckPolicy.ACK_EXPLICIT, [])
    interest_state = InterestState(log, work_queue=True)
    interest_state.add(pump)
    for seq in (1, 2, 3, 4):
        pump.state.delivered(seq, 1)
    for seq in (3, 1):
        pump.state.acked(seq)
    before = log.removals
    runs = interest_state.settled(pump)
    assert runs is not None and runs.items() == [(3, 3), (1, 1)]
    assert runs.remove_from(log) == 2
    assert (log.removals, log.messages, interest_state.settled(pump)) == (before, 8, None)


def test_a_review_finds_one_run_across_removed_messages() -> None:
    log = StreamLog()
    for _ in range(10):
        log.append(b"s.a", b"", b"", 1)
    pump = pump_of(log, AckPolicy.ACK_EXPLICIT, [], 9)
    interest_state = InterestState(log)
    interest_state.add(pump, 9)
    for seq in range(1, 9):
        pump.state.skip(8)
        if seq in (2, 3, 6):
            log.remove(seq)
    runs, seq = interest_state.unneeded()
    assert (runs.items(), seq) == ([(1, 8)], 0)
    assert (runs.remove_from(log), log.messages) == (5, 2)


def test_the_messages_of_a_consumer_on_another_server_are_stored_and_stay() -> None:
    log = StreamLog()
    interest_state = InterestState(log)
    interest_state.expect("x", [b"s.a"])
    interest_state.expect("y", [])
    assert interest_state.wants(b"t")
    interest_state.forget("y")
    interest_state.forget("y")
    interest_state.expect("x", [b"s.b"])
    assert (interest_state.wants(b"t"), interest_state.wants(b"s.a"), interest_state.wants(b"s.b")) == (
        False,
        False,
        True,
    )


RUNS = st.lists(st.tuples(st.integers(1, 2**63 - 1), st.integers(0, 2**62)), max_size=20)


@given(RUNS)
def test_settled_runs_come_back_from_their_encoding(runs: list[tuple[int, int]]) -> None:
    given = SettledRuns()
    for first, more in runs:
        given.append(first, min(first + more, 2**63 - 1))
    data = given.encode()
    assert SettledRuns.decode(b"head" + data + b"another", 4, 4 + len(data)).items() == given.items()


@pytest.mark.parametrize(
    "data",
    [
        b"\x02",
        b"\x80",
        b"\x02\x80",
        b"\x00\x00",  # sequence 0
        b"\x01\x00",  # sequence -1
        b"\xfe" + b"\xff" * 8 + b"\x01\x01",  # beyond 63 bits
        b"\x02" + b"\xff" * 9 + b"\x01",
        b"\x02" + b"\xff" * 10 + b"\x01",
    ],
)
def test_malformed_runs_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="settled messages"):
        SettledRuns.decode(data)


@given(st.binary(max_size=40))
def test_whatever_the_runs_only_messages_of_the_log_are_removed(data: bytes) -> None:
    log = StreamLog()
    for _ in range(5):
        log.append(b"s.a", b"", b"", 1)
    try:
        runs = SettledRuns.decode(data)
    except ValueError:
        return
    named = {seq for seq in range(1, 6) for first, last in runs.items() if first <= seq <= last}
    assert runs.remove_from(log) == len(named)
    assert {seq for seq in range(1, 6) if log.load(seq)} == set(range(1, 6)) - named


def test_while_a_consumer_is_missing_nothing_goes() -> None:
    log = StreamLog()
    log.append(b"s.a", b"", b"", 1)
    interest_state = InterestState(log)
    interest_state.keep_all(True)
    pump = pump_of(log, AckPolicy.ACK_NONE, [])
    interest_state.add(pump)
    pump.state.delivered(1, 1)
    assert interest_state.settled(pump) is None
    assert interest_state.unneeded()[0].items() == []
    assert interest_state.wants(b"anything")


@pytest.mark.parametrize("skip", [[1, 4], []])
def test_messages_that_last_per_subject_passes_over_are_not_needed(skip: list[int]) -> None:
    log = StreamLog()
    for subject in (b"s.a", b"s.b", b"s.b", b"s.b", b"s.a"):
        log.append(subject, b"", b"", 1)
    interest_state = InterestState(log)
    pump = pump_of(log, AckPolicy.ACK_EXPLICIT, [b"s.>"])
    pump.start_with(skip, 4)
    interest_state.add(pump)
    interest_state.unneeded()[0].remove_from(log)
    expected = [1, 4, 5] if skip else [1, 2, 3, 4, 5]
    assert [seq for seq in range(6) if log.load(seq)] == expected
