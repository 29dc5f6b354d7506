"""The durability of a stream: which events each state allows, and what may leave in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.jetstream.durability import TRANSITIONS, Durability, Event, State
from penstock.protocol import error_codes as codes

FAILURE = codes.STREAM_STORE_FAILED.format(err="no space")


class Log:
    """A log that only counts."""

    def __init__(self) -> None:
        self.last_seq = 0


def send(durability: Durability, event: Event) -> None:
    match event:
        case Event.CHANGE:
            durability.changed()
        case Event.WRITTEN:
            durability.written()
        case Event.SYNC_STARTED:
            durability.sync_started()
        case Event.SYNC_ENDED:
            durability.sync_ended()
        case Event.FAILURE:
            durability.failed(FAILURE)
        case Event.CLOSE:
            durability.close()


@given(st.lists(st.tuples(st.sampled_from(Event), st.integers(0, 3))))
def test_only_what_the_disk_has_may_be_acknowledged_or_delivered(steps: list[tuple[Event, int]]) -> None:
    log = Log()
    durability = Durability(log)
    on_disk = covered = 0
    for event, stored in steps:
        before = durability.state
        if event is Event.CHANGE:
            log.last_seq += stored
        if event not in TRANSITIONS[before]:
            with pytest.raises(RuntimeError, match=f"{event.name} while {before.name}"):
                send(durability, event)
            assert durability.state is before
            continue
        send(durability, event)
        assert durability.state is TRANSITIONS[before][event]
        if event is Event.WRITTEN:
            on_disk = log.last_seq
        elif event is Event.SYNC_ENDED:
            on_disk = covered
        elif event is Event.SYNC_STARTED:
            covered = log.last_seq
        if durability.state is State.CLOSED:
            return
        assert durability.durable_seq == on_disk
        if durability.may_acknowledge and durability.failure is None:
            assert log.last_seq == on_disk
        if durability.is_durable:
            assert log.last_seq == on_disk and durability.may_deliver


def test_every_state_says_what_follows_every_event_or_refuses_it() -> None:
    assert set(TRANSITIONS) == set(State)
    for row in TRANSITIONS.values():
        assert set(row.values()) <= set(State)
        assert Event.CLOSE in row and Event.CHANGE in row


def test_a_change_during_a_sync_is_not_durable_at_its_end() -> None:
    log = Log()
    durability = Durability(log)
    log.last_seq = 1
    durability.changed()
    durability.sync_started()
    log.last_seq = 2
    durability.changed()
    durability.sync_ended()
    assert (durability.state, durability.durable_seq) == (State.CHANGED, 1)
    assert not durability.may_acknowledge and not durability.is_durable
    durability.written()
    assert durability.may_acknowledge and durability.is_durable


def test_a_failure_lets_errors_leave_and_nothing_be_delivered_until_a_write_succeeds() -> None:
    durability = Durability(Log())
    durability.changed()
    durability.failed(FAILURE)
    assert durability.may_acknowledge and not durability.may_deliver and not durability.is_durable
    durability.changed()
    assert durability.state is State.FAILED and durability.failure is FAILURE
    assert durability.written()
    assert durability.failure is None and durability.is_durable
    assert not durability.written()


def test_a_stream_whose_roll_up_is_unfinished_delivers_and_acknowledges_nothing() -> None:
    durability = Durability(Log())
    durability.rollup_started()
    assert durability.may_deliver and not durability.may_acknowledge and not durability.is_durable
    durability.rollup_ended()
    assert durability.may_acknowledge and durability.is_durable


def test_a_sync_that_ends_after_the_stream_was_closed_changes_nothing() -> None:
    log = Log()
    durability = Durability(log)
    log.last_seq = 1
    durability.changed()
    durability.sync_started()
    durability.close()
    durability.sync_ended()
    assert (durability.state, durability.durable_seq) == (State.CLOSED, 0)
    durability.close()


def test_a_sync_that_a_request_asked_for_is_taken_once() -> None:
    durability = Durability(Log())
    assert not durability.take_sync_asked()
    durability.ask_sync()
    durability.ask_sync()
    assert durability.take_sync_asked() and not durability.take_sync_asked()
