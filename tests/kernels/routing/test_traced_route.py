"""Traced routing, compared with plain routing and the model; headers that ask for traces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.routing.traced_route import TracedRoute
from penstock.kernels.wire.dispatch import ClientSink
from penstock.kernels.wire.ingress import asks
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from tests.kernels.routing.test_account_imports import (
    NAMES,
    SUBJECTS,
    Accounts,
    Own,
    cases,
    check_receivers,
    made,
)
from tests.reference.headers import asks_for_trace
from tests.support.examples import examples

pytestmark = pytest.mark.feature("core.message-tracing")

HEADER = b"NATS/1.0\r\nNats-Trace-Dest: t\r\n\r\n"


class Steps:
    """Records the reported steps."""

    def __init__(self) -> None:
        self.egresses: list[SinkSubscription] = []

    def egress(self, shown: SinkSubscription, sub: SinkSubscription, error: str) -> None:
        assert not error
        self.egresses.append(sub)

    def stream_import(self, sub: SinkSubscription, to: bytes) -> None:
        pass

    def service_import(self, index: object, subject: bytes, to: bytes) -> None:
        pass

    def service(self, subject: bytes) -> bool:
        raise AssertionError("there is none")

    def store(self, stream: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        raise AssertionError("there is none")


@settings(max_examples=examples(100), deadline=None)
@given(cases(), st.lists(st.tuples(st.sampled_from(NAMES), SUBJECTS), min_size=1, max_size=8), st.booleans())
def test_a_traced_message_reaches_whom_the_model_says(
    case: tuple[dict[str, Own], list[tuple[str, str, str]]], published: list[tuple[str, str]], only: bool
) -> None:
    """Delivered or only traced; messages continue where traces may not."""
    sharing, subscriptions = case
    accounts = Accounts(*sharing.values())
    sinks = [accounts.subscribe(a, s, q, sid=i) for i, (a, s, q) in enumerate(subscriptions)]
    expected = made(sharing, subscriptions)
    for account, subject in published:
        steps = Steps()
        index = accounts.by_name[account].index
        TracedRoute(steps, only).publish(index, subject.encode(), b"", HEADER, b"", None)
        got = []
        for i, sink in enumerate(sinks):
            frames = sink.take().decode().split("\r\n\r\n\r\n")[:-1]
            got += [(i, frame.split()[1]) for frame in frames]
        if only:
            assert got == []
            continue
        check_receivers(got, *expected.publish(account, subject))


def test_an_account_that_closes_in_between_is_reported() -> None:
    index = Accounts(Own("X")).by_name["X"].index
    sink = ClientSink(DirtyList())
    index.insert(SinkSubscription(sink, b"a", b"", b"1"))
    sink.closed = True
    reported: list[str] = []

    class Closed(Steps):
        def egress(self, shown: SinkSubscription, sub: SinkSubscription, error: str) -> None:
            reported.append(error)

    assert TracedRoute(Closed(), False).publish(index, b"a", b"", HEADER, b"", None) == 0
    assert reported == ["Not delivered because client is closed"]


NAMES_OF_HEADERS = st.sampled_from(
    ["Nats-Trace-Dest", "nats-trace-dest", "traceparent", "TraceParent", "Nats-Trace-Destination", "X", ""]
)


@given(st.lists(st.tuples(NAMES_OF_HEADERS, st.sampled_from(["", "a", "Nats-Trace-Dest:"]))), st.booleans())
def test_headers_that_ask_are_found(fields: list[tuple[str, str]], parent: bool) -> None:
    block = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n"
    assert asks(block.encode(), parent) == asks_for_trace(block.encode(), parent)


@given(st.binary(max_size=60), st.booleans())
def test_no_block_is_read_over_its_end(block: bytes, parent: bool) -> None:
    assert asks(block, parent) == asks_for_trace(block, parent)
