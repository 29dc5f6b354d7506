"""Who answers a request: each row of the table, and that a request is answered once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from msgspec import Struct, structs

from penstock.jetstream.api.service import TABLE
from penstock.jetstream.meta.request_routing import (
    ERROR_DELAY_NS,
    RESPONDERS,
    SERVE,
    SILENCE,
    AssetView,
    Decision,
    Fail,
    RequestView,
    Responder,
    Serve,
    decide,
)
from penstock.protocol import error_codes as codes

pytestmark = pytest.mark.feature("cluster.administration")
LATER = ERROR_DELAY_NS
META = RequestView(is_meta_leader=True)
OTHER = RequestView()
LOST = RequestView(leaderless=True)
LEADER = AssetView(is_member=True, is_leader=True, is_current=True)
FOLLOWER = AssetView(is_member=True, is_current=True)
ORPHAN = AssetView(is_member=True, has_leader=False)
STARTED = AssetView(is_member=True, has_leader=False, has_state=False)
ELSEWHERE = AssetView()
DEAD = AssetView(is_offline=True)
UNAVAILABLE = Fail(codes.CLUSTER_NOT_AVAIL)
NO_STREAM, NO_CONSUMER = Fail(codes.STREAM_NOT_FOUND), Fail(codes.CONSUMER_NOT_FOUND)


def with_stream(view: RequestView, asset: AssetView) -> RequestView:
    return structs.replace(view, stream=asset)


def with_both(view: RequestView, asset: AssetView) -> RequestView:
    return structs.replace(view, stream=asset, consumer=asset)


def verbs_of(*responders: Responder) -> list[str]:
    return [verbs for verbs, responder in RESPONDERS.items() if responder in responders]


def test_every_endpoint_of_the_api_has_a_row() -> None:
    assert TABLE.verbs() <= set(RESPONDERS)


def test_unknown_verbs_are_met_with_silence() -> None:
    assert decide("STREAM.NONE", META) == SILENCE


@pytest.mark.parametrize("verbs", verbs_of(Responder.META))
def test_the_meta_leader_answers_about_assignments(verbs: str) -> None:
    for asset in (None, LEADER, FOLLOWER, ORPHAN, DEAD):
        views = [structs.replace(view, stream=asset, consumer=asset) for view in (META, OTHER, LOST)]
        assert [decide(verbs, view) for view in views] == [SERVE, SILENCE, UNAVAILABLE]


@pytest.mark.parametrize(
    "verbs", ["META.LEADER.STEPDOWN", "SERVER.REMOVE", "SERVER.EVACUATE", "ACCOUNT.PURGE"]
)
def test_servers_are_administered_from_the_system_account(verbs: str) -> None:
    for view, expected in ((META, SERVE), (OTHER, SILENCE), (LOST, SILENCE)):
        assert decide(verbs, structs.replace(view, is_system=True)) == expected
        assert decide(verbs, structs.replace(view, is_named=True)) == SILENCE


@pytest.mark.parametrize("verbs", ["ACCOUNT.STREAM.MOVE", "ACCOUNT.STREAM.CANCEL_MOVE"])
def test_an_account_may_move_its_own_streams(verbs: str) -> None:
    assert decide(verbs, META) == SILENCE
    assert decide(verbs, structs.replace(META, is_named=True)) == SERVE
    assert decide(verbs, structs.replace(META, is_system=True)) == SERVE
    assert decide(verbs, structs.replace(LOST, is_system=True)) == SILENCE


def test_every_server_answers_a_rescue() -> None:
    for view in (META, OTHER, LOST):
        assert decide("META.RESCUE", structs.replace(view, is_system=True)) == SERVE
        assert decide("META.RESCUE", view) == SILENCE


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (META, NO_STREAM),
        (OTHER, SILENCE),
        (LOST, Fail(codes.CLUSTER_NOT_AVAIL, LATER)),
        (with_stream(OTHER, LEADER), SERVE),
        (with_stream(META, FOLLOWER), SILENCE),
        (with_stream(OTHER, ELSEWHERE), SILENCE),
        (with_stream(LOST, FOLLOWER), Fail(codes.CLUSTER_NOT_AVAIL, LATER)),
        (with_stream(LOST, LEADER), SERVE),
        (with_stream(OTHER, ORPHAN), SERVE),
        (with_stream(OTHER, STARTED), Fail(codes.CLUSTER_NOT_AVAIL, LATER)),
        (with_stream(META, DEAD), Fail(codes.STREAM_OFFLINE, LATER)),
        (with_stream(OTHER, DEAD), SILENCE),
        (
            with_stream(OTHER, AssetView(is_member=True, unsupported="too new")),
            Fail(codes.STREAM_OFFLINE_REASON.format(err="too new"), LATER),
        ),
    ],
)
def test_stream_infos_come_from_the_stream_leader(view: RequestView, expected: Decision) -> None:
    assert decide("STREAM.INFO", view) == expected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (META, NO_STREAM),
        (with_stream(META, FOLLOWER), NO_CONSUMER),
        (with_stream(OTHER, LEADER), SILENCE),
        (with_both(OTHER, LEADER), SERVE),
        (with_both(META, FOLLOWER), SILENCE),
        (with_both(OTHER, ORPHAN), UNAVAILABLE),
        (with_both(OTHER, STARTED), Fail(codes.CLUSTER_NOT_AVAIL, LATER)),
        (with_both(META, DEAD), Fail(codes.CONSUMER_OFFLINE, LATER)),
        (with_both(LOST, ELSEWHERE), Fail(codes.CLUSTER_NOT_AVAIL, LATER)),
        (LOST, Fail(codes.CLUSTER_NOT_AVAIL, LATER)),
    ],
)
def test_consumer_infos_come_from_the_consumer_leader(view: RequestView, expected: Decision) -> None:
    assert decide("CONSUMER.INFO", view) == expected


@pytest.mark.parametrize("verbs", verbs_of(Responder.STREAM))
def test_the_stream_leader_changes_messages(verbs: str) -> None:
    assert decide(verbs, META) == NO_STREAM
    assert decide(verbs, OTHER) == SILENCE
    assert decide(verbs, with_stream(OTHER, LEADER)) == SERVE
    assert decide(verbs, with_stream(META, FOLLOWER)) == SILENCE
    assert decide(verbs, with_stream(OTHER, ORPHAN)) == UNAVAILABLE
    assert decide(verbs, with_stream(META, DEAD)) == SILENCE
    assert decide(verbs, LOST) == UNAVAILABLE
    assert decide(verbs, with_stream(LOST, LEADER)) == UNAVAILABLE


def test_a_consumer_leader_steps_down_for_itself() -> None:
    verbs = "CONSUMER.LEADER.STEPDOWN"
    assert decide(verbs, with_both(OTHER, LEADER)) == SERVE
    assert decide(verbs, with_stream(META, LEADER)) == NO_CONSUMER
    assert decide(verbs, with_stream(OTHER, LEADER)) == SILENCE
    assert decide(verbs, META) == NO_STREAM


@pytest.mark.parametrize(
    "verbs", ["CONSUMER.RESET", "CONSUMER.UNPIN", "CONSUMER.MSG.NEXT", "STREAM.SNAPSHOT"]
)
def test_what_only_a_leader_can_do_is_met_with_silence_without_one(verbs: str) -> None:
    assert decide(verbs, with_both(LOST, LEADER)) == SERVE
    for view in (META, OTHER, LOST, with_both(META, FOLLOWER), with_both(OTHER, ORPHAN)):
        assert decide(verbs, view) == SILENCE


def test_a_consumer_that_reads_directly_is_the_stream_leaders() -> None:
    for view, expected in ((META, SILENCE), (with_stream(OTHER, LEADER), SERVE), (LOST, SILENCE)):
        assert decide("CONSUMER.CREATE", structs.replace(view, reads_directly=True)) == expected


def test_direct_gets_are_served_by_every_current_replica() -> None:
    assert decide("DIRECT.GET", with_stream(LOST, FOLLOWER)) == SERVE
    assert decide("DIRECT.GET", with_stream(OTHER, ORPHAN)) == SILENCE
    assert decide("DIRECT.GET", META) == SILENCE


class Situation(Struct, frozen=True):
    """A cluster of five servers of which the first three are members of the stream."""

    meta_leader: int | None
    stream: bool
    consumer: bool
    leader: int | None
    dead: bool

    def views(self) -> Iterator[RequestView]:
        for server in range(5):
            is_member = server < 3
            if self.dead and is_member:
                continue
            asset = AssetView(
                is_member=is_member,
                is_leader=server == self.leader,
                has_leader=self.leader is not None,
                is_current=is_member,
                is_offline=self.dead,
            )
            yield RequestView(
                is_meta_leader=server == self.meta_leader,
                leaderless=self.meta_leader is None,
                is_system=True,
                stream=asset if self.stream else None,
                consumer=asset if self.consumer else None,
            )


SITUATIONS = [
    Situation(meta, stream, consumer, leader, dead)
    for meta, stream, consumer, leader, dead in product(
        (None, 0, 4), (False, True), (False, True), (None, 0, 2), (False, True)
    )
    if (stream or not consumer) and not (dead and (leader is not None or meta == 0 or not stream))
]


def may_be_silent(verbs: str, now: Situation) -> bool:
    """Where the official server says nothing."""
    responder = RESPONDERS[verbs]
    if responder in (Responder.META_SYSTEM, Responder.META_ACCOUNT):
        return now.meta_leader is None
    is_asset = now.consumer if responder in (Responder.CONSUMER, Responder.CONSUMER_ONLY) else now.stream
    if responder in (Responder.STREAM_ONLY, Responder.CONSUMER_ONLY):
        return not is_asset or now.leader is None
    if responder is Responder.READERS:
        return not is_asset or now.dead
    # a change of a dead stream: its members would have answered
    return responder in (Responder.STREAM, Responder.CONSUMER) and is_asset and now.dead


@pytest.mark.parametrize("verbs", RESPONDERS)
def test_a_request_is_answered_once(verbs: str) -> None:
    for now in SITUATIONS:
        check_answers(verbs, now)


def check_answers(verbs: str, now: Situation) -> None:
    answers = [one for view in now.views() if (one := decide(verbs, view)) != SILENCE]
    served = [one for one in answers if isinstance(one, Serve)]
    failed = [one for one in answers if isinstance(one, Fail)]
    if not answers:
        assert may_be_silent(verbs, now)
    elif served:
        assert all(one.after_ns for one in failed), "an error could come before the answer"
        broadcast = RESPONDERS[verbs] in (Responder.READERS, Responder.EVERY_SERVER)
        reads_own_state = verbs == "STREAM.INFO" and now.leader is None
        assert len(served) == 1 or broadcast or reads_own_state
    else:
        assert len({one.error for one in failed}) == 1, "different errors for one request"
