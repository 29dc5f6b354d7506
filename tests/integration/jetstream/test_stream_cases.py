"""Streams: one test for each feature, with its error codes, on both servers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import nats
import nats.errors
import pytest
from nats.js.api import (
    ConsumerConfig,
    DiscardPolicy,
    Placement,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StreamConfig,
)

from tests.support.nats_servers import until
from tests.support.talk import Talk, code, numbers, text

SECOND = 1_000_000_000
MS = 1_000_000


@pytest.fixture
async def talk(url: str) -> AsyncIterator[Talk]:
    client = await nats.connect(url, allow_reconnect=False)
    yield Talk(client)
    await client.close()


@pytest.mark.feature("stream.api")
async def test_streams_are_made_changed_listed_and_deleted(talk: Talk) -> None:
    """Errors 10058, 10059, 10056, 10025 and 10038."""
    made = await talk.create(max_msgs=5)
    assert made["did_create"] and made["config"]["max_msgs"] == 5
    assert code(await talk.create(max_msgs=5)) == 0
    assert code(await talk.create(max_msgs=6)) == 10058
    assert (await talk.update(max_msgs=6))["config"]["max_msgs"] == 6
    assert talk.name in (await talk.api("STREAM.NAMES"))["streams"]
    listed = await talk.api("STREAM.LIST", {"subject": f"{talk.name}.x"})
    assert [info["config"]["name"] for info in listed["streams"]] == [talk.name]
    assert (listed["total"], listed["offset"], listed["limit"]) == (1, 0, 256)
    assert code(await talk.api("STREAM.UPDATE.NONE", {"name": "NONE"})) == 10059
    assert code(await talk.api(f"STREAM.CREATE.{talk.name}", {"name": "other"})) == 10056
    assert code(await talk.api(f"STREAM.CREATE.{talk.name}", {"name": talk.name, "max_mgs": 1})) == 10025
    assert code(await talk.api(f"STREAM.CREATE.{talk.name}", {"name": talk.name, "max_msgs": 2**63})) == 10025
    assert code(await talk.api(f"STREAM.DELETE.{talk.name}", b"x")) == 10038
    assert (await talk.api(f"STREAM.DELETE.{talk.name}"))["success"]
    assert code(await talk.api(f"STREAM.INFO.{talk.name}")) == 10059


@pytest.mark.feature("stream.limits", "stream.discard-old", "stream.max-msgs-per-subject")
async def test_limits_remove_the_oldest_first(talk: Talk) -> None:
    """`max_msgs`, `max_bytes` and `max_msgs_per_subject`."""
    await talk.create(max_msgs=4, max_msgs_per_subject=2)
    acks = [await talk.pub(token) for token in ("a", "a", "a", "b", "c", "d", "e")]
    assert [ack["seq"] for ack in acks] == [1, 2, 3, 4, 5, 6, 7]
    state = await talk.state()
    assert (state["first_seq"], state["last_seq"], state["messages"]) == (4, 7, 4)
    size = state["bytes"] // 4
    await talk.update(max_msgs=4, max_msgs_per_subject=2, max_bytes=2 * size)
    assert ((await talk.state())["first_seq"], (await talk.state())["messages"]) == (6, 2)


@pytest.mark.feature("stream.work-queue")
async def test_a_work_queue_removes_what_was_acked(talk: Talk) -> None:
    """Errors 10084, 10098, 10099, 10100 and 10101."""
    await talk.create(retention="workqueue")
    s = talk.name
    assert code(await talk.consumer("x", ack_policy="none")) == 10084
    assert code(await talk.consumer("x", ack_policy="all")) == 10098
    assert code(await talk.consumer("x", deliver_policy="new")) == 10101
    assert code(await talk.consumer("a", durable_name="a", filter_subject=f"{s}.a")) == 0
    assert code(await talk.consumer("x")) == 10099
    assert code(await talk.consumer("x", filter_subject=f"{s}.*")) == 10100
    assert code(await talk.consumer("b", durable_name="b", filter_subject=f"{s}.b")) == 0
    assert code(await talk.consumer("b", durable_name="b", filter_subject=f"{s}.>")) == 10100
    await talk.pub("a")
    await talk.pub("b")
    await talk.take("b")
    state = await talk.state(deleted_details=True)
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (1, 1, 2)


@pytest.mark.feature("stream.interest")
async def test_an_interest_stream_keeps_what_a_consumer_waits_for(talk: Talk) -> None:
    await talk.create(retention="interest")
    assert (await talk.pub("a"))["seq"] == 1
    assert (await talk.state())["messages"] == 0
    for name in ("a", "b"):
        await talk.consumer(name, durable_name=name)
    assert (await talk.pub("a"))["seq"] == 2
    for name, left in (("a", 1), ("b", 0)):
        await talk.take(name)
        assert (await talk.state())["messages"] == left


@pytest.mark.feature("stream.limits-always")
async def test_limits_apply_to_work_queues_and_interest(talk: Talk) -> None:
    await talk.create(retention="workqueue", max_msgs=2)
    for token in "abc":
        await talk.pub(token)
    assert (await talk.state())["first_seq"] == 2


@pytest.mark.feature("stream.discard-new", "stream.discard-new-per-subject")
async def test_discard_new_refuses_what_has_no_room(talk: Talk) -> None:
    """Errors 10077 and 10052."""
    await talk.create(discard="new", max_msgs=1)
    assert code(await talk.pub("a")) == 0
    full = await talk.pub("b")
    assert (code(full), text(full)) == (10077, "maximum messages exceeded")
    await talk.update(discard="new", max_bytes=10)
    full = await talk.pub("b")
    assert (code(full), text(full)) == (10077, "maximum bytes exceeded")
    assert code(await talk.update(discard_new_per_subject=True, max_msgs_per_subject=1)) == 10052
    assert code(await talk.update(discard="new", discard_new_per_subject=True)) == 10052
    await talk.update(discard="new", discard_new_per_subject=True, max_msgs_per_subject=1)
    full = await talk.pub("a")
    assert (code(full), text(full)) == (10077, "maximum messages per subject exceeded")
    assert code(await talk.pub("c")) == 0


@pytest.mark.feature("stream.max-age")
async def test_messages_expire_without_traffic(talk: Talk) -> None:
    """Error 10052 below 100 ms."""
    assert code(await talk.create(max_age=99 * MS)) == 10052
    made = await talk.create(max_age=100 * MS)
    assert made["config"]["duplicate_window"] == 100 * MS
    await talk.pub("a")

    async def empty() -> bool:
        return bool((await talk.state())["messages"] == 0)

    await until(empty)
    assert ((await talk.state())["first_seq"], (await talk.state())["last_seq"]) == (2, 1)


@pytest.mark.feature("stream.max-msg-size")
async def test_messages_have_a_largest_size(talk: Talk) -> None:
    """Error 10054, headers counted; 10025 for a size of more than 32 bits."""
    assert code(await talk.create(max_msg_size=2**31)) == 10025
    await talk.create(max_msg_size=30)
    assert code(await talk.pub("a", b"x" * 30)) == 0
    assert code(await talk.pub("a", b"x" * 31)) == 10054
    assert code(await talk.pub("a", b"x" * 20, A="b")) == 10054


@pytest.mark.feature("stream.max-consumers")
async def test_streams_bound_their_consumers(talk: Talk) -> None:
    """Error 10026; consumer_limits: 10121, 10153, 10069."""
    limits = {"max_ack_pending": 10, "inactive_threshold": 5 * SECOND}
    await talk.create(max_consumers=1, consumer_limits=limits)
    assert code(await talk.consumer("a", max_ack_pending=11)) == 10121
    assert code(await talk.consumer("a", inactive_threshold=6 * SECOND)) == 10153
    made = await talk.consumer("a", durable_name="a")
    assert (made["config"]["max_ack_pending"], made["config"]["inactive_threshold"]) == (10, 5 * SECOND)
    assert code(await talk.consumer("b")) == 10026
    smaller = await talk.update(max_consumers=1, consumer_limits={"max_ack_pending": 9})
    assert (code(smaller), text(smaller)) == (10069, "change to limits violates consumers: a")


@pytest.mark.feature("stream.subjects")
async def test_a_stream_takes_the_subject_of_its_name_and_shares_none(talk: Talk) -> None:
    """Errors 10065 and 10052."""
    s = talk.name
    made = await talk.api(f"STREAM.CREATE.{s}", {"name": s})
    assert made["config"]["subjects"] == [s]
    assert code(await talk.api(f"STREAM.CREATE.{s}x", {"name": f"{s}x", "subjects": [s]})) == 10065
    for subjects in ([f"{s}.a", f"{s}.*"], [f"{s}.a", f"{s}.a"], [f"{s}..a"], ["$JS.x"], ["$SYS.x"], [">"]):
        refused = await talk.api(f"STREAM.CREATE.{s}x", {"name": f"{s}x", "subjects": subjects})
        assert code(refused) == 10052, subjects
    assert code(await talk.update(subjects=[f"{s}.a", f"{s}.b.>"])) == 0
    assert code(await talk.pub("a")) == 0
    with pytest.raises(nats.errors.NoRespondersError):
        await talk.pub("c")


@pytest.mark.feature("stream.storage")
async def test_storage_can_not_be_changed(talk: Talk) -> None:
    """Error 10052."""
    await talk.create(storage="memory")
    assert code(await talk.pub("a")) == 0
    assert code(await talk.update(storage="file")) == 10052


@pytest.mark.feature("stream.size-accounting")
async def test_a_record_takes_what_the_specification_says(talk: Talk) -> None:
    """`hello` on a subject of four characters takes 39 bytes."""
    subject = f"s{next(numbers):03}"
    await talk.create(subjects=[subject])
    await talk.client.request(subject, b"hello", timeout=5)
    assert (await talk.state())["bytes"] == 39
    await talk.client.request(subject, b"hello", timeout=5, headers={"A": "b"})
    assert (await talk.state())["bytes"] == 39 + 39 + 4 + len(b"NATS/1.0\r\nA: b\r\n\r\n")


@pytest.mark.feature("stream.replicas")
async def test_replicas_need_a_cluster(talk: Talk) -> None:
    """Errors 10074, 10052 above 5, 10133 below 0."""
    for replicas, expected in ((3, 10074), (5, 10074), (6, 10052), (-1, 10133), (1, 0), (0, 0)):
        assert code(await talk.create(num_replicas=replicas)) == expected
    assert code(await talk.update(num_replicas=3)) == 10074


@pytest.mark.feature("stream.no-ack")
async def test_a_stream_without_acks_answers_no_publish(talk: Talk) -> None:
    await talk.create(no_ack=True)
    with pytest.raises(nats.errors.TimeoutError):
        await talk.client.request(f"{talk.name}.a", b"x", timeout=0.1)
    assert (await talk.state())["messages"] == 1


@pytest.mark.feature("stream.publish-ack")
async def test_a_publish_is_answered_with_stream_and_sequence(talk: Talk) -> None:
    await talk.create()
    assert await talk.pub("a") == {"stream": talk.name, "seq": 1}
    await talk.client.publish(f"{talk.name}.a", b"plain")
    assert await talk.pub("a") == {"stream": talk.name, "seq": 3}


@pytest.mark.feature("stream.deduplication", "stream.duplicate-window")
async def test_a_message_id_counts_once_in_its_window(talk: Talk) -> None:
    """Two minutes, or as configured; 10052 above max_age, 10157 when pedantic."""
    assert (await talk.create())["config"]["duplicate_window"] == 120 * SECOND
    assert await talk.pub("a", Nats_Msg_Id="1") == {"stream": talk.name, "seq": 1}
    again = await talk.pub("b", b"other", Nats_Msg_Id="1")
    assert again == {"stream": talk.name, "seq": 1, "duplicate": True}
    await talk.update(duplicate_window=100 * MS)
    await asyncio.sleep(0.15)
    assert await talk.pub("a", Nats_Msg_Id="1") == {"stream": talk.name, "seq": 2}
    assert code(await talk.update(duplicate_window=50 * MS)) == 10052
    assert code(await talk.update(duplicate_window=2 * SECOND, max_age=SECOND)) == 10052
    assert code(await talk.update(max_age=SECOND, pedantic=True)) == 10157


@pytest.mark.feature("stream.expected-headers")
async def test_expectations_are_compared_with_the_stream(talk: Talk) -> None:
    """Errors 10060, 10070, 10071 and 10193."""
    await talk.create()
    await talk.pub("a", Nats_Msg_Id="m")
    assert code(await talk.pub("a", Nats_Expected_Stream="other")) == 10060
    assert code(await talk.pub("a", Nats_Expected_Last_Msg_Id="n")) == 10070
    wrong = await talk.pub("a", Nats_Expected_Last_Sequence="7")
    assert (code(wrong), text(wrong)) == (10071, "wrong last sequence: 1")
    assert code(await talk.pub("b", Nats_Expected_Last_Subject_Sequence="1")) == 10071
    subject = f"{talk.name}.a"
    assert code(await talk.pub("b", Nats_Expected_Last_Subject_Sequence_Subject=subject)) == 10193
    right = {"Nats_Expected_Last_Subject_Sequence": "1"}
    assert code(await talk.pub("b", **right, Nats_Expected_Last_Subject_Sequence_Subject=subject)) == 0
    assert code(await talk.pub("a", Nats_Expected_Last_Sequence="2", Nats_Expected_Stream=talk.name)) == 0


@pytest.mark.feature("stream.ordering")
async def test_of_publishes_that_expect_the_same_exactly_one_wins(talk: Talk) -> None:
    await talk.create()
    for round_number in range(5):
        expected = str(round_number)
        answers = await asyncio.gather(
            *(talk.pub("a", b"%d" % n, Nats_Expected_Last_Sequence=expected) for n in range(20))
        )
        won = [answer for answer in answers if not code(answer)]
        assert [answer["seq"] for answer in won] == [round_number + 1]
        assert {code(answer) for answer in answers} == {0, 10071}


@pytest.mark.feature("stream.rollup")
async def test_a_rollup_replaces_what_was_before(talk: Talk) -> None:
    """Error 10111."""
    await talk.create()
    assert code(await talk.pub("a", Nats_Rollup="sub")) == 10111
    await talk.update(allow_rollup_hdrs=True)
    for token in ("a", "b", "a"):
        await talk.pub(token)
    assert code(await talk.pub("a", Nats_Rollup="sub")) == 0
    assert (await talk.state(subjects_filter=">"))["subjects"] == {f"{talk.name}.a": 1, f"{talk.name}.b": 1}
    assert code(await talk.pub("b", Nats_Rollup="all")) == 0
    assert (await talk.state())["messages"] == 1
    assert code(await talk.update(allow_rollup_hdrs=True, deny_purge=True)) == 10052


@pytest.mark.feature("stream.deny-delete-purge")
async def test_deleting_and_purging_can_be_denied_for_good(talk: Talk) -> None:
    """Errors 10057, 10110 and 10052."""
    await talk.create(deny_delete=True, deny_purge=True)
    await talk.pub("a")
    assert code(await talk.api(f"STREAM.MSG.DELETE.{talk.name}", {"seq": 1})) == 10057
    assert code(await talk.api(f"STREAM.PURGE.{talk.name}")) == 10110
    assert code(await talk.update(deny_purge=True)) == 10052
    assert code(await talk.update(deny_delete=True)) == 10052


@pytest.mark.feature("stream.purge")
async def test_purges_take_all_or_by_subject_sequence_and_number(talk: Talk) -> None:
    """Error 10003 for a sequence and a number to keep at once."""
    await talk.create()
    for token in "aabbab":
        await talk.pub(token)
    purge = f"STREAM.PURGE.{talk.name}"
    assert code(await talk.api(purge, {"seq": 3, "keep": 1})) == 10003
    assert (await talk.api(purge, {"filter": f"{talk.name}.a", "keep": 1}))["purged"] == 2
    assert (await talk.api(purge, {"filter": f"{talk.name}.b", "seq": 4}))["purged"] == 1
    assert (await talk.state(deleted_details=True)).get("deleted") is None
    assert (await talk.api(purge, {"keep": 2}))["purged"] == 1
    assert (await talk.api(purge))["purged"] == 2
    assert ((await talk.state())["first_seq"], (await talk.state())["last_seq"]) == (7, 6)
    await talk.api(purge, {"seq": 20})
    assert (await talk.pub("a"))["seq"] == 20


@pytest.mark.feature("stream.message-get-delete")
async def test_messages_are_got_and_deleted(talk: Talk) -> None:
    """Errors 10037, 10043, 10003 and 10025."""
    await talk.create()
    for token in "aba":
        await talk.pub(token, b"at " + token.encode(), X="y")
    get, s = f"STREAM.MSG.GET.{talk.name}", talk.name
    for body, seq in (
        ({"seq": 2}, 2),
        ({"last_by_subj": f"{s}.a"}, 3),
        ({"next_by_subj": f"{s}.a", "seq": 2}, 3),
        ({"next_by_subj": f"{s}.b", "start_time": "2020-01-01T00:00:00Z"}, 2),
        ({"start_time": "2020-01-01T00:00:00Z"}, 1),
    ):
        found = (await talk.api(get, body))["message"]
        assert found["seq"] == seq, body
        assert base64.b64decode(found["hdrs"]) == b"NATS/1.0\r\nX: y\r\n\r\n"
    assert "hdrs" not in (await talk.api(get, {"seq": 1, "no_hdr": True}))["message"]
    assert code(await talk.api(get, {"seq": 9})) == 10037
    assert code(await talk.api(get, {"last_by_subj": f"{s}.z"})) == 10037
    assert code(await talk.api(get, {})) == 10003
    assert code(await talk.api(get, {"seq": 1, "batch": 2})) == 10003
    assert code(await talk.api(get, {"seq": -1})) == 10025
    assert (await talk.api(f"STREAM.MSG.DELETE.{s}", {"seq": 2}))["success"]
    assert code(await talk.api(f"STREAM.MSG.DELETE.{s}", {"seq": 2})) == 10043
    assert (await talk.api(f"STREAM.MSG.DELETE.{s}", {"seq": 1, "no_erase": True}))["success"]
    assert (await talk.state())["messages"] == 1


@pytest.mark.feature("stream.direct-get")
async def test_messages_are_read_directly(talk: Talk) -> None:
    """The message itself, 404 and 408; 503 where it is not allowed."""
    await talk.create(allow_direct=True)
    for token in "aba":
        await talk.pub(token, token.encode())
    [(headers, payload)] = await talk.direct({"seq": 2})
    assert payload == b"b"
    assert (headers["Nats-Stream"], headers["Nats-Subject"]) == (talk.name, f"{talk.name}.b")
    assert headers["Nats-Sequence"] == "2" and headers["Nats-Time-Stamp"]
    [(headers, _)] = await talk.direct({}, "a")
    assert headers["Nats-Sequence"] == "3"
    [(headers, payload)] = await talk.direct({"last_by_subj": f"{talk.name}.a", "no_hdr": True})
    assert (headers, payload) == ({}, b"a")
    assert await talk.status({"seq": 9}) == "404 Message Not Found"
    assert await talk.status({}) == "408 Empty Request"
    assert await talk.status({"seq": 1, "last_by_subj": "x"}) == "408 Bad Request"
    assert await talk.status({"start_time": "x"}) == "408 Malformed Request"
    await talk.update(allow_direct=False)
    with pytest.raises(nats.errors.NoRespondersError):
        await talk.client.request(f"$JS.API.DIRECT.GET.{talk.name}", b'{"seq":1}', timeout=2)


@pytest.mark.feature("stream.direct-get-batch")
async def test_many_messages_are_read_directly(talk: Talk) -> None:
    """204 EOB, Nats-Num-Pending, 404, 413."""
    await talk.create(allow_direct=True)
    for token in "abcab":
        await talk.pub(token, b"0123456789")
    *messages, (end, _) = await talk.direct({"batch": 2, "seq": 2})
    assert [headers["Nats-Sequence"] for headers, _ in messages] == ["2", "3"]
    assert [headers["Nats-Num-Pending"] for headers, _ in messages] == ["3", "2"]
    assert (end["Status"], end["Nats-Num-Pending"], end["Nats-Last-Sequence"]) == ("204", "2", "3")
    s = talk.name
    *messages, (end, _) = await talk.direct({"multi_last": [f"{s}.a", f"{s}.b"], "up_to_seq": 4})
    assert [headers["Nats-Sequence"] for headers, _ in messages] == ["2", "4"]
    assert (end["Nats-UpTo-Sequence"], end["Nats-Num-Pending"]) == ("4", "0")
    *messages, _ = await talk.direct({"batch": 9, "seq": 1, "max_bytes": len(s) + 13})
    assert len(messages) == 2
    *messages, _ = await talk.direct({"multi_last": [f"{s}.*"], "up_to_time": "2120-01-01T00:00:00Z"})
    assert len(messages) == 3
    assert await talk.status({"multi_last": [f"{s}.z"]}) == "404 No Results"
    assert (
        await talk.status({"multi_last": [f"{s}.*"], "up_to_seq": 1, "up_to_time": "2120-01-01T00:00:00Z"})
        == "408 Bad Request"
    )
    for n in range(1025):
        await talk.client.publish(f"{s}.many.{n}", b"")
    await talk.pub("last")  # what was published before is stored when this is acked
    assert await talk.status({"multi_last": [f"{s}.many.*"]}) == "413 Too Many Results"


@pytest.mark.feature("stream.mirror-direct")
async def test_only_a_mirror_answers_for_its_origin(talk: Talk) -> None:
    """Error 10052 for mirror_direct without a mirror."""
    refused = await talk.create(mirror_direct=True)
    assert (code(refused), text(refused)) == (10052, "stream has no mirror but does have mirror direct")


@pytest.mark.feature("stream.first-seq")
async def test_a_stream_may_begin_at_any_sequence(talk: Talk) -> None:
    made = await talk.create(first_seq=1000)
    assert (made["state"]["first_seq"], made["state"]["last_seq"]) == (1000, 999)
    assert (await talk.pub("a"))["seq"] == 1000


@pytest.mark.feature("stream.sealed")
async def test_a_sealed_stream_never_changes_again(talk: Talk) -> None:
    """Errors 10109 and 10052."""
    assert code(await talk.create(sealed=True)) == 10052
    await talk.create(max_age=3600 * SECOND, allow_rollup_hdrs=True)
    await talk.pub("a")
    sealed = (await talk.update(sealed=True, max_age=3600 * SECOND))["config"]
    assert (sealed["max_age"], sealed["discard"], sealed["allow_rollup_hdrs"]) == (0, "new", False)
    assert sealed["deny_delete"] and sealed["deny_purge"]
    assert code(await talk.pub("a")) == 10109
    assert code(await talk.api(f"STREAM.PURGE.{talk.name}")) == 10109
    assert code(await talk.api(f"STREAM.MSG.DELETE.{talk.name}", {"seq": 1})) == 10109
    unsealed = {"deny_delete": True, "deny_purge": True, "discard": "new"}
    assert code(await talk.update(**unsealed)) == 10052


@pytest.mark.feature("stream.placement")
async def test_a_placement_is_kept_and_none_is_none(talk: Talk) -> None:
    """Error 10052 for a preferred server. One server has no other place to choose: 10005 is a cluster's."""
    assert code(await talk.create(placement={"preferred": "x"})) == 10052
    assert "placement" not in (await talk.create(placement={}))["config"]
    moved = await talk.update(placement={"cluster": "c", "tags": ["a", "b"]})
    assert moved["config"]["placement"] == {"cluster": "c", "tags": ["a", "b"]}


@pytest.mark.feature("stream.metadata")
async def test_descriptions_and_metadata_are_kept_within_limits(talk: Talk) -> None:
    """Error 10052 above 4 KiB and 128 KiB; `_nats.*` is the server's own."""
    assert code(await talk.create(description="x" * 4097)) == 10052
    assert code(await talk.create(metadata={"k": "v" * 128 * 1024})) == 10052
    given = {"a": "b", "_nats.ver": "9", "_nats.level": "99", "_nats.req.level": "7"}
    made = (await talk.create(description="x" * 4096, metadata=given))["config"]
    assert made["metadata"]["a"] == "b"
    assert made["metadata"]["_nats.req.level"] == "0"
    assert made["metadata"]["_nats.level"] != "99" and made["metadata"]["_nats.ver"] != "9"
    assert (await talk.update(metadata={"c": "d"}))["config"]["metadata"]["c"] == "d"


@pytest.mark.feature("stream.api", "connectivity.third-party-clients")
async def test_configurations_survive_the_official_clients_types(talk: Talk) -> None:
    """What nats-py sends comes back as it was."""
    js = talk.client.jetstream()
    config = StreamConfig(
        name=talk.name, description="d", subjects=[f"{talk.name}.a", f"{talk.name}.b.>"],
        retention=RetentionPolicy.INTEREST, max_consumers=7, max_msgs=11, max_bytes=12345,
        discard=DiscardPolicy.NEW, discard_new_per_subject=True, max_age=3600.0, max_msgs_per_subject=5,
        max_msg_size=4321, storage=StorageType.MEMORY, num_replicas=1, no_ack=False, duplicate_window=60.0,
        placement=Placement(cluster="c", tags=["t"]), deny_delete=True, deny_purge=True, allow_direct=True,
        first_seq=5, metadata={"k": "v"}, allow_msg_ttl=True,
        compression=StoreCompression.NONE,
    )  # fmt: skip
    made = (await js.add_stream(config)).config
    for name, value in config.as_dict().items():
        kept = made.as_dict().get(name)
        if name == "metadata":
            kept = {key: item for key, item in kept.items() if not key.startswith("_nats.")}
        if name == "subject_transform" and not value:
            continue
        assert kept == value, name
    assert (await js.update_stream(made)).config.as_dict() == made.as_dict()
    consumer = ConsumerConfig(
        name="c", durable_name="c", description="d", ack_wait=12.0, max_deliver=4, backoff=[1.0, 2.0],
        filter_subjects=[f"{talk.name}.a", f"{talk.name}.b.x"], max_waiting=10, max_ack_pending=20,
        headers_only=True, inactive_threshold=20.0, num_replicas=1, mem_storage=True, metadata={"k": "v"},
    )  # fmt: skip
    kept_config = (await js.add_consumer(talk.name, consumer)).config
    for name, value in consumer.as_dict().items():
        kept = kept_config.as_dict().get(name)
        if name == "metadata":
            kept = {key: item for key, item in kept.items() if not key.startswith("_nats.")}
        assert kept == (1_000_000_000 if name == "ack_wait" else value), name
