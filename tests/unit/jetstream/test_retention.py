"""Interest and work-queue streams: what goes when it is acked, what stays, what is never stored.

On an engine without a server; tests/integration/jetstream/test_retention_official.py has the same transcripts
with both servers.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.store.file import FileStore
from tests.support.consumers import SECOND, ConsumerHarness, Delivered

WORK_QUEUE = {"retention": "workqueue"}
INTEREST = {"retention": "interest"}


class Bench(ConsumerHarness):
    """A bench whose stream S has a retention; `left` are its sequences."""

    def __init__(self, retention: str, **settings: Any) -> None:
        super().__init__(stream={"retention": retention, **settings})

    @property
    def left(self) -> list[int]:
        return left(self)


def left(bench: ConsumerHarness) -> list[int]:
    log = bench.engine.streams["S"].log
    found, seq = [], log.next_seq(1)
    while seq:
        found.append(seq)
        seq = log.next_seq(seq + 1)
    return found


def delivered(bench: ConsumerHarness, name: str, batch: int = 100) -> dict[int, Delivered]:
    return {one.seq: one for one in bench.pull(name, {"batch": batch, "no_wait": True}).take() if one.reply}


def ack(bench: ConsumerHarness, *messages: Delivered, body: bytes = b"") -> None:
    for message in messages:
        bench.ack(message, body)
    bench.tick()


# --- work queues -------------------------------------------------------------------------------------------


@pytest.mark.feature("stream.work-queue")
@pytest.mark.parametrize("body", [b"", b"+ACK", b"+TERM", b"+TERM broken", b"+NXT"])
def test_an_acked_message_leaves_a_work_queue(body: bytes) -> None:
    bench = Bench("workqueue")
    bench.store_messages("s.1", "s.2", "s.3")
    bench.consumer("w", durable_name="w")
    got = delivered(bench, "w")
    ack(bench, got[2], body=body)
    assert bench.left == [1, 3]
    ack(bench, got[1], got[3], body=body)
    assert bench.left == []
    state = bench.state("S")
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 4, 3)
    assert bench.floors("w") == (3, 3, 3, 3)


@pytest.mark.feature("stream.work-queue")
@pytest.mark.parametrize("body", [b"-NAK", b"+WPI", b'-NAK {"delay": 5000000000}', b"nonsense"])
def test_what_is_no_ack_leaves_the_message_where_it_is(body: bytes) -> None:
    bench = Bench("workqueue")
    bench.store_messages("s.1")
    bench.consumer("w", durable_name="w")
    ack(bench, delivered(bench, "w")[1], body=body)
    assert bench.left == [1]


@pytest.mark.feature("stream.work-queue", "consumer.ack-sync")
def test_a_confirmed_ack_removed_the_message_before_the_confirmation() -> None:
    """What is confirmed has happened."""
    bench = Bench("workqueue")
    bench.store_messages("s.1")
    bench.consumer("w", durable_name="w")
    [message] = delivered(bench, "w").values()
    confirmations = bench.listen(b"confirm")
    bench.ack(message, b"", b"confirm")
    bench.engine.tick.apply(bench.now)
    assert bench.left == [] and confirmations == []
    bench.tick()
    assert len(confirmations) == 1


@pytest.mark.feature("stream.work-queue", "consumer.max-deliver")
def test_what_is_given_up_at_max_deliver_stays_until_it_is_acked() -> None:
    """An operator can still read it."""
    bench = Bench("workqueue")
    bench.store_messages("s.1", "s.2")
    bench.consumer("w", durable_name="w", max_deliver=1, ack_wait=SECOND)
    got = delivered(bench, "w")
    bench.pass_time(3 * SECOND)
    assert bench.left == [1, 2]
    assert delivered(bench, "w") == {}
    ack(bench, got[2])
    assert bench.left == [1]
    again = bench.restarted()
    assert left(again) == [1]
    ack(again, got[1])
    assert left(again) == []


@pytest.mark.feature("stream.work-queue")
def test_deleting_the_consumer_of_a_work_queue_leaves_the_messages_for_the_next_one() -> None:
    bench = Bench("workqueue")
    bench.store_messages("s.1", "s.2", "s.3")
    bench.consumer("w", durable_name="w")
    ack(bench, delivered(bench, "w")[2])
    bench.api("CONSUMER.DELETE.S.w")
    bench.consumer("x", durable_name="x")
    assert bench.left == [1, 3]
    assert sorted(delivered(bench, "x")) == [1, 3]
    assert left(bench.restarted()) == [1, 3]


@pytest.mark.feature("stream.work-queue")
def test_messages_without_a_consumer_wait_in_a_work_queue() -> None:
    bench = Bench("workqueue")
    bench.store_messages("s.1", "s.2")
    assert bench.left == [1, 2]
    bench.consumer("w", durable_name="w", filter_subject="s.2")
    ack(bench, *delivered(bench, "w").values())
    assert bench.left == [1]
    assert left(bench.restarted()) == [1]


@pytest.mark.feature("stream.work-queue")
def test_consumers_of_separate_subjects_share_a_work_queue() -> None:
    bench = Bench("workqueue")
    bench.consumer("a", durable_name="a", filter_subject="s.a")
    bench.consumer("b", durable_name="b", filter_subjects=["s.b", "s.c"])
    bench.store_messages("s.a", "s.b", "s.c", "s.a")
    ack(bench, *delivered(bench, "b").values())
    assert bench.left == [1, 4]
    ack(bench, delivered(bench, "a")[4])
    assert bench.left == [1]


WORK_QUEUE_RULES = [
    ({"ack_policy": "none"}, 10084),
    ({"ack_policy": "none", "deliver_subject": "d"}, 10098),
    ({"ack_policy": "all"}, 10098),
    ({"deliver_policy": "new"}, 10101),
    ({"deliver_policy": "last"}, 10101),
    ({"deliver_policy": "by_start_sequence", "opt_start_seq": 1}, 10101),
    ({}, 10099),
    ({"filter_subject": "s.a"}, 10100),
    ({"filter_subject": "s.*"}, 10100),
    ({"filter_subjects": ["s.b", "*.a"]}, 10100),
    ({"filter_subject": "s.b"}, 0),
    ({"filter_subject": "s.c", "num_replicas": 1}, 0),
]


@pytest.mark.feature("stream.work-queue")
@pytest.mark.parametrize(("config", "code"), WORK_QUEUE_RULES)
def test_a_work_queue_refuses_consumers_that_would_share_messages(config: dict[str, Any], code: int) -> None:
    """Errors 10084, 10098, 10099, 10100 and 10101."""
    bench = Bench("workqueue")
    bench.consumer("a", durable_name="a", filter_subject="s.a")
    answer = bench.define("x", **{"durable_name": "x", "ack_policy": "explicit", **config})
    assert answer.get("error", {}).get("err_code", 0) == code


@pytest.mark.feature("stream.work-queue")
def test_an_unfiltered_consumer_of_a_work_queue_stays_alone() -> None:
    """Error 10099 for another unfiltered one, 10100 for a filtered one."""
    bench = Bench("workqueue")
    bench.consumer("a", durable_name="a")
    assert bench.define("b", ack_policy="explicit")["error"]["err_code"] == 10099
    assert bench.define("b", ack_policy="explicit", filter_subject="s.b")["error"]["err_code"] == 10100


@pytest.mark.feature("stream.work-queue")
def test_an_update_can_not_take_the_subjects_of_another_consumer_of_a_work_queue() -> None:
    """Errors 10100 and 10099 at update."""
    bench = Bench("workqueue")
    bench.consumer("a", durable_name="a", filter_subject="s.a")
    bench.consumer("b", durable_name="b", filter_subject="s.b")
    config = {"durable_name": "b", "ack_policy": "explicit"}
    assert bench.define("b", filter_subject="s.>", **config)["error"]["err_code"] == 10100
    assert bench.define("b", **config)["error"]["err_code"] == 10099
    assert "error" not in bench.define("b", filter_subject="s.c", **config)


@pytest.mark.feature("stream.work-queue")
def test_other_filters_do_not_count_messages_they_never_saw_as_acked() -> None:
    """Also after a restart, which compares acks with the stored messages."""
    bench = Bench("workqueue")
    bench.store_messages("s.a", "s.b", "s.a")
    bench.consumer("w", durable_name="w", filter_subject="s.a")
    ack(bench, *delivered(bench, "w").values())
    config = {"durable_name": "w", "ack_policy": "explicit", "filter_subject": "s.b"}
    assert "error" not in bench.define("w", **config)
    assert left(bench.restarted()) == [2]


# --- interest ----------------------------------------------------------------------------------------------


@pytest.mark.feature("stream.interest")
def test_without_a_consumer_an_interest_stream_stores_nothing_but_acks() -> None:
    """The sequence is used up, as on the official server."""
    bench = Bench("interest")
    assert bench.request("s.1", b"x") == {"stream": "S", "seq": 1}
    header = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 1\r\n\r\n"
    assert bench.request("s.1", b"x", header) == {"stream": "S", "seq": 2}
    state = bench.state("S")
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 3, 2)
    bench.consumer("c", durable_name="c")
    assert bench.request("s.1", b"x") == {"stream": "S", "seq": 3}
    assert bench.left == [3]


@pytest.mark.feature("stream.interest")
def test_a_subject_that_no_consumer_takes_is_not_stored() -> None:
    bench = Bench("interest")
    bench.consumer("c", durable_name="c", filter_subject="s.a")
    bench.consumer("d", durable_name="d", filter_subjects=["s.b.*", "s.c"])
    bench.store_messages("s.a", "s.b", "s.b.x", "s.c", "s.d")
    assert bench.left == [1, 3, 4]
    bench.define("c", durable_name="c", ack_policy="explicit", filter_subject="s.d")
    bench.store_messages("s.a", "s.d")
    assert bench.left == [3, 4, 7]


@pytest.mark.feature("stream.interest", "stream.deduplication")
def test_a_message_id_of_a_message_that_was_not_stored_is_remembered() -> None:
    bench = Bench("interest")
    header = b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"
    assert bench.request("s.1", b"x", header) == {"stream": "S", "seq": 1}
    assert bench.request("s.1", b"x", header) == {"stream": "S", "seq": 1, "duplicate": True}


@pytest.mark.feature("stream.interest")
def test_a_message_goes_when_every_consumer_acked_it() -> None:
    bench = Bench("interest")
    for name in "abc":
        bench.consumer(name, durable_name=name)
    bench.store_messages("s.1", "s.2", "s.3")
    a, b, c = (delivered(bench, name) for name in "abc")
    ack(bench, a[2], b[2])
    assert bench.left == [1, 2, 3]
    ack(bench, c[2])
    assert bench.left == [1, 3]
    ack(bench, *a.values(), *b.values(), c[3])
    assert bench.left == [1]
    ack(bench, c[1], body=b"+TERM")
    assert bench.left == []


@pytest.mark.feature("stream.interest")
def test_acks_of_all_policies_meet() -> None:
    """None settles by delivery, all settles what is below as well."""
    bench = Bench("interest")
    bench.consumer("none", durable_name="none", ack_policy="none")
    bench.consumer("all", durable_name="all", ack_policy="all")
    bench.consumer("explicit", durable_name="explicit")
    bench.store_messages("s.1", "s.2", "s.3", "s.4")
    ack(bench, *delivered(bench, "explicit").values())
    assert bench.left == [1, 2, 3, 4]
    ack(bench, delivered(bench, "all")[3])
    assert bench.left == [1, 2, 3, 4]
    assert sorted(delivered(bench, "none", 2)) == [1, 2]
    bench.tick()
    assert bench.left == [3, 4]
    delivered(bench, "none")
    bench.tick()
    assert bench.left == [4]


@pytest.mark.feature("stream.interest")
def test_a_push_consumer_without_acks_removes_what_it_delivers() -> None:
    """A queue of jobs without acks."""
    bench = Bench("interest")
    inbox = bench.inbox()
    bench.consumer("p", ack_policy="none", deliver_subject=inbox.subject.decode())
    bench.store_messages("s.1", "s.2")
    bench.tick()
    assert inbox.seqs() == [1, 2]
    assert bench.left == []


@pytest.mark.feature("stream.interest")
def test_a_consumer_that_is_deleted_takes_its_needs_with_it() -> None:
    bench = Bench("interest")
    bench.consumer("a", durable_name="a")
    bench.consumer("b", durable_name="b", filter_subject="s.b")
    bench.store_messages("s.a", "s.b", "s.b", "s.a")
    ack(bench, delivered(bench, "b")[2])
    assert bench.left == [1, 2, 3, 4]
    bench.api("CONSUMER.DELETE.S.a")
    assert bench.left == [3]
    bench.api("CONSUMER.DELETE.S.b")
    assert bench.left == []
    assert bench.state("S")["last_seq"] == 4


@pytest.mark.feature("stream.interest", "consumer.durable-ephemeral")
def test_an_ephemeral_consumer_that_expires_takes_its_needs_with_it() -> None:
    bench = Bench("interest")
    bench.consumer("e", inactive_threshold=SECOND, ack_wait=SECOND)
    bench.consumer("d", durable_name="d", filter_subject="s.d")
    bench.store_messages("s.a", "s.d")
    delivered(bench, "e")
    assert bench.left == [1, 2]
    bench.pass_time(3 * SECOND)
    bench.tick()
    assert bench.left == [2]
    assert bench.restarted().state("S")["messages"] == 1


@pytest.mark.feature("stream.interest")
def test_filters_that_change_remove_what_no_consumer_takes_any_more() -> None:
    bench = Bench("interest")
    bench.consumer("c", durable_name="c")
    bench.store_messages("s.a", "s.b", "s.a")
    bench.define("c", durable_name="c", ack_policy="explicit", filter_subject="s.a")
    assert bench.left == [1, 3]


@pytest.mark.feature("stream.interest", "consumer.max-deliver")
def test_what_is_given_up_at_max_deliver_stays_in_an_interest_stream() -> None:
    bench = Bench("interest")
    bench.consumer("a", durable_name="a", max_deliver=1, ack_wait=SECOND)
    bench.consumer("b", durable_name="b")
    bench.store_messages("s.1")
    [message] = delivered(bench, "a").values()
    ack(bench, *delivered(bench, "b").values())
    bench.pass_time(2 * SECOND)
    assert bench.left == [1]
    assert left(bench.restarted()) == [1]
    ack(bench, message)
    assert bench.left == []


@pytest.mark.feature("stream.interest")
def test_a_consumer_of_new_messages_does_not_hold_the_old_ones() -> None:
    bench = Bench("interest")
    bench.consumer("a", durable_name="a")
    bench.store_messages("s.1", "s.2")
    bench.consumer("n", durable_name="n", deliver_policy="new")
    ack(bench, *delivered(bench, "a").values())
    assert bench.left == []


@pytest.mark.feature("stream.interest", "consumer.deliver-policy")
def test_a_consumer_of_the_last_of_each_subject_holds_only_those() -> None:
    bench = Bench("interest")
    bench.consumer("a", durable_name="a")
    bench.store_messages("s.1", "s.2", "s.1", "s.2", "s.3")
    bench.consumer("l", durable_name="l", deliver_policy="last_per_subject", filter_subject="s.>")
    ack(bench, *delivered(bench, "a").values())
    assert bench.left == [3, 4, 5]
    ack(bench, *delivered(bench, "l").values())
    assert bench.left == []


# --- limits, purge, updates --------------------------------------------------------------------------------


@pytest.mark.feature("stream.limits-always")
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_limits_apply_whatever_the_retention(retention: str) -> None:
    bench = Bench(retention, max_msgs=3, max_age=100 * SECOND)
    bench.consumer("c", durable_name="c")
    bench.store_messages("s.1", "s.2", "s.3", "s.4", "s.5")
    assert bench.left == [3, 4, 5]
    got = delivered(bench, "c")
    bench.store_messages("s.6")
    assert bench.left == [4, 5, 6]
    assert bench.info("c")["num_ack_pending"] == 2
    ack(bench, got[3], got[5])
    assert bench.left == [4, 6]
    bench.pass_time(101 * SECOND)
    assert bench.left == []
    assert bench.info("c")["num_ack_pending"] == 0


@pytest.mark.feature("stream.limits-always", "stream.discard-new", "stream.discard-new-per-subject")
@pytest.mark.parametrize("limit", [{"max_msgs": 2}, {"max_bytes": 80}, {"max_msgs_per_subject": 1}])
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_full_work_queue_refuses_until_something_is_acked(retention: str, limit: dict[str, int]) -> None:
    """Discard new makes a bounded queue."""
    per_subject = {"discard_new_per_subject": True} if "max_msgs_per_subject" in limit else {}
    bench = Bench(retention, discard="new", **limit, **per_subject)
    bench.consumer("c", durable_name="c")
    subjects = ["s.1", "s.1"] if per_subject else ["s.1", "s.2", "s.3"]
    for subject in subjects[:-1]:
        assert "error" not in bench.request(subject, b"x")
    assert bench.request(subjects[-1], b"x")["error"]["err_code"] == 10077
    ack(bench, *delivered(bench, "c").values())
    assert "error" not in bench.request(subjects[-1], b"x")


@pytest.mark.feature("stream.purge")
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_purge_takes_what_is_not_acked(retention: str) -> None:
    bench = Bench(retention)
    bench.consumer("c", durable_name="c")
    bench.store_messages("s.1", "s.2", "s.1")
    delivered(bench, "c")
    assert bench.api("STREAM.PURGE.S", {"filter": "s.1"})["purged"] == 2
    assert bench.left == [2]
    assert bench.info("c")["num_ack_pending"] == 1
    assert bench.api("STREAM.PURGE.S")["purged"] == 1
    assert bench.info("c")["num_ack_pending"] == 0


@pytest.mark.feature("stream.interest")
def test_a_stream_that_turns_to_interest_removes_what_no_consumer_needs() -> None:
    """Limits and interest may be exchanged."""
    bench = Bench("limits")
    bench.store_messages("s.1", "s.2", "s.3", "s.4")
    bench.consumer("c", durable_name="c")
    ack(bench, delivered(bench, "c", 3)[2])
    assert bench.left == [1, 2, 3, 4]
    config = {"name": "S", "subjects": ["s.>"]}
    assert "error" not in bench.api("STREAM.UPDATE.S", {**config, "retention": "interest"})
    assert bench.left == [1, 3, 4]
    assert "error" not in bench.api("STREAM.UPDATE.S", {**config, "retention": "limits"})
    bench.store_messages("s.5")
    ack(bench, *delivered(bench, "c").values())
    assert bench.left == [1, 3, 4, 5]


@pytest.mark.feature("stream.interest")
def test_a_stream_that_turns_to_interest_without_consumers_is_empty() -> None:
    bench = Bench("limits")
    bench.store_messages("s.1", "s.2")
    bench.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "retention": "interest"})
    assert bench.left == []
    assert bench.state("S")["last_seq"] == 2


@pytest.mark.feature("stream.work-queue")
@pytest.mark.parametrize(("before", "after"), [("limits", "workqueue"), ("workqueue", "interest")])
def test_a_work_queue_stays_one(before: str, after: str) -> None:
    """Error 10052."""
    bench = Bench(before)
    answer = bench.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "retention": after})
    assert answer["error"]["err_code"] == 10052
    assert "retention policy to/from workqueue" in answer["error"]["description"]


# --- restarts ----------------------------------------------------------------------------------------------


@pytest.mark.feature("stream.work-queue", "stream.interest")
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
@pytest.mark.parametrize("lost", ["ack", "removal", "neither"])
def test_a_crash_between_ack_and_removal_ends_in_the_same_state(
    tmp_path: Path, retention: str, lost: str
) -> None:
    """Whichever of the two was not written."""
    running = FileStore(tmp_path / "running")
    bench = ConsumerHarness(running.account("$G"), stream={"retention": retention})
    consumer = bench.consumer("c", durable_name="c")
    bench.store_messages(*[f"s.{i}" for i in range(6)])
    got = delivered(bench, "c", 5)
    for seq in (2, 4, 1):
        bench.ack(got[seq])
    bench.engine.tick.apply(bench.now)
    if lost != "removal":
        bench.engine.streams["S"].store.write()
    if lost != "ack":
        consumer.write()
    shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    store = FileStore(tmp_path / "crashed")
    again = ConsumerHarness(store.account("$G"), now=bench.now)
    assert left(again) == [3, 5, 6]
    assert again.info("c")["num_ack_pending"] == 2
    again.pass_time(31 * SECOND)
    assert sorted(delivered(again, "c")) == [3, 5, 6]
    again.engine.close()
    store.close()
    running.close()


@pytest.mark.feature("stream.interest")
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_what_is_skipped_and_removed_is_the_same_after_a_restart(tmp_path: Path, retention: str) -> None:
    store = FileStore(tmp_path)
    bench = ConsumerHarness(store.account("$G"), stream={"retention": retention})
    bench.store_messages("s.0", "s.0")
    bench.consumer("c", durable_name="c", filter_subject="s.1")
    bench.store_messages("s.1", "s.2", "s.1", "s.2", "s.1")
    ack(bench, delivered(bench, "c")[5])
    before, kept = bench.state("S"), left(bench)
    bench.engine.close()
    store.close()
    store = FileStore(tmp_path)
    again = ConsumerHarness(store.account("$G"), now=bench.now)
    assert left(again) == kept
    assert again.state("S") == before
    again.engine.close()
    store.close()


@pytest.mark.feature("stream.interest")
def test_while_a_consumer_can_not_be_opened_nothing_leaves_an_interest_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the consumer still needs is unknown."""
    bench = Bench("interest")
    bench.consumer("a", durable_name="a")
    broken = bench.consumer("b", durable_name="b")
    bench.store_messages("s.1", "s.2")
    broken.store.append(b"Z nonsense")
    broken.store.write()
    again = bench.restarted()
    ack(again, *delivered(again, "a").values())
    assert left(again) == [1, 2]
    assert "consumer b of stream S is left out" in caplog.text


@pytest.mark.feature("stream.interest", "consumer.reset")
def test_a_reset_forward_gives_up_what_it_passes_over_in_an_interest_stream() -> None:
    bench = Bench("interest")
    bench.consumer("c", durable_name="c")
    bench.store_messages("s.1", "s.2", "s.3", "s.4")
    delivered(bench, "c", 2)
    assert "error" not in bench.api("CONSUMER.RESET.S.c", {"seq": 3})
    assert bench.left == [3, 4]


@pytest.mark.feature("stream.work-queue", "consumer.reset")
def test_a_reset_of_a_work_queues_consumer_loses_nothing_that_was_not_acked() -> None:
    bench = Bench("workqueue")
    bench.consumer("c", durable_name="c")
    bench.store_messages("s.1", "s.2", "s.3", "s.4")
    got = delivered(bench, "c")
    assert "error" not in bench.api("CONSUMER.RESET.S.c", {"seq": 3})
    ack(bench, got[3])
    assert sorted(delivered(bench, "c")) == [3, 4]
    ack(bench, got[3])
    again = bench.restarted()
    assert left(again) == [1, 2, 4]
    assert "error" not in again.api("CONSUMER.RESET.S.c", {"seq": 1})
    assert sorted(delivered(again, "c")) == [1, 2, 4]


@pytest.mark.feature("stream.work-queue", "consumer.max-deliver")
def test_a_dead_letter_leaves_the_work_queue_when_it_is_stored() -> None:
    bench = Bench("workqueue")
    bench.create("DEAD", "dead")
    bench.consumer(
        "c", durable_name="c", max_deliver=1, ack_wait=SECOND, metadata={"penstock.dead_letter": "dead"}
    )
    bench.store_messages("s.1", "s.2")
    ack(bench, delivered(bench, "c")[2])
    bench.pass_time(2 * SECOND)
    for _ in range(3):
        bench.tick()
    assert bench.left == []
    assert bench.state("DEAD")["messages"] == 1
