"""Backing up and restoring streams, by the engine alone: flow control, time, advisories, endings."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream.limits import SECOND_NS
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol.api import StorageType
from penstock.store.file import FileStore
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("stream.backup-restore")

OK = (b"NATS/1.0 204\r\n\r\n", b"")  # the latter when no chunk was full


class Receiver:
    """Takes a backup's chunks; acks them when told to."""

    def __init__(self, js: EngineHarness, subject: bytes = b"deliver", *, acks: bool = True) -> None:
        self.js, self.acks = js, acks
        self.subjects: set[bytes] = set()
        self.chunks: list[bytes] = []
        self.waiting: list[bytes] = []
        self.end: bytes | None = None
        self.subscription = SinkSubscription(ServiceSink(self._hear), subject)
        js.index.insert(self.subscription)

    def _hear(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        self.subjects.add(subject)
        if not payload:
            assert self.end is None, "it ended twice"
            self.end = header
            return
        self.chunks.append(payload)
        if reply:
            self.waiting.append(reply)

    def ack_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            publish(self.js.index, reply, b"", b"", b"")

    def run(self) -> bytes:
        """To the end; the archive."""
        for _ in range(10_000):
            if self.end is not None:
                return b"".join(self.chunks)
            self.ack_all()
            self.js.tick()
        raise AssertionError("it never ended")


def ticks(js: EngineHarness) -> None:
    """Enough of them for what can be sent without acks and waiting."""
    for _ in range(10):
        js.tick()


def filled(store: Any = None, count: int = 50, **settings: Any) -> EngineHarness:
    js = EngineHarness(store, **settings)
    js.create("S", "s.*")
    for i in range(count):
        js.request(f"s.{i % 3}", b"%d " % i * 300)
    return js


def backed_up(js: EngineHarness, **body: Any) -> tuple[dict[str, Any], bytes]:
    receiver = Receiver(js)
    answer = js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver", **body})
    data = receiver.run()
    assert receiver.end in OK
    js.index.remove(receiver.subscription)
    return answer, data


def begun(js: EngineHarness, answer: dict[str, Any], name: str = "S", **config: Any) -> str:
    body = {"config": {**answer["config"], "name": name, **config}, "state": answer["state"]}
    response = js.api(f"STREAM.RESTORE.{name}", body)
    assert response["type"].endswith("stream_restore_response") and "error" not in response, response
    subject: str = response["deliver_subject"]
    return subject


def send(js: EngineHarness, subject: str, chunk: bytes) -> bytes:
    """A chunk; its answer, which may take some ticks."""
    heard = js.messages(subject, chunk)
    for _ in range(1000):
        if heard:
            return heard[0][2]
        js.tick()
    raise AssertionError("no answer")


def restored(js: EngineHarness, subject: str, data: bytes, size: int = 1000) -> Any:
    for at in range(0, len(data), size):
        answer = send(js, subject, data[at : at + size])
        if answer:
            return json.loads(answer)
    return json.loads(send(js, subject, b""))


def test_no_more_chunks_leave_than_the_window_holds() -> None:
    js = filled(count=400)
    receiver = Receiver(js)
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver", "chunk_size": 1024, "window_size": 4096})
    for _ in range(10):
        js.tick()
    assert [len(chunk) for chunk in receiver.chunks] == [1024] * 4 and receiver.end is None
    receiver.ack_all()
    for _ in range(10):
        js.tick()
    assert len(receiver.chunks) == 8
    receiver.run()
    assert receiver.end in OK and 0 < len(receiver.chunks[-1]) < 1024


def test_a_receiver_that_stops_acking_is_notified_after_five_seconds() -> None:
    js = filled(count=400)
    complete = js.listen(b"$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S")
    receiver = Receiver(js)
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver", "chunk_size": 1024, "window_size": 1024})
    js.tick()
    js.wait_until(js.now + 5 * SECOND_NS - 1)
    assert receiver.end is None
    js.wait_until(js.now + 2)
    assert receiver.end == b"NATS/1.0 408 No Flow Response\r\n\r\n"
    advisory = json.loads(complete[0][2])
    assert advisory["type"] == "io.nats.jetstream.advisory.v1.snapshot_complete"
    assert advisory["error"] == "no flow response" and advisory["stream"] == "S"
    assert advisory["start"] < advisory["end"]
    assert js.engine.transfers.next_deadline() is None


def test_a_receiver_that_leaves_ends_the_backup() -> None:
    js = filled(count=400)
    complete = js.listen(b"$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S")
    receiver = Receiver(js)
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver", "chunk_size": 1024, "window_size": 1024})
    js.index.remove(receiver.subscription)
    receiver.ack_all()
    js.tick()
    assert json.loads(complete[0][2])["error"] == "no interest"
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "nobody"})
    js.wait_until(js.now + 2 * SECOND_NS)
    assert len(complete) == 2


def test_a_receiver_may_come_a_little_later() -> None:
    js = filled()
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver"})
    js.tick()
    receiver = Receiver(js)
    js.wait_until(js.now + 3 * SECOND_NS)
    assert receiver.run() and receiver.end in OK


def test_a_receiver_that_comes_later_gets_its_chunks_without_waiting() -> None:
    js = filled(count=400)
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver", "chunk_size": 1024})
    js.tick()
    wakes = js.wakes
    receiver = Receiver(js)
    assert js.wakes > wakes
    ticks(js)
    assert receiver.chunks


@pytest.mark.parametrize("filter_subject", [b"inbox.me.*", b"inbox.>", b">"])
def test_interest_by_a_wildcard_gets_no_chunk_before_the_receiver_came(filter_subject: bytes) -> None:
    """A client's inbox for all answers covers the deliver subject; what comes before the receiver is lost."""
    js = filled()
    others = Receiver(js, filter_subject)
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "inbox.me.1"})
    js.wait_until(js.now + SECOND_NS)
    ticks(js)
    assert b"inbox.me.1" not in others.subjects
    receiver = Receiver(js, b"inbox.me.1")
    receiver.run()
    assert receiver.end in OK


def test_a_group_and_a_stream_on_the_deliver_subject_are_no_receivers() -> None:
    """A member of a group may get what was meant for another one; a stream takes its subjects anyhow."""
    js = filled()
    js.create("T", "inbox.me.1")
    group: list[bytes] = []
    member = SinkSubscription(ServiceSink(lambda *message: group.append(message[3])), b"inbox.me.1", b"group")
    js.index.insert(member)
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "inbox.me.1"})
    js.wait_until(js.now + SECOND_NS)
    ticks(js)
    assert not group and js.api("STREAM.INFO.T")["state"]["messages"] == 0
    receiver = Receiver(js, b"inbox.me.1")
    receiver.run()
    assert receiver.end in OK


def test_a_receiver_by_a_wildcard_gets_its_chunks_after_two_seconds() -> None:
    js = filled()
    receiver = Receiver(js, b"deliver.*")
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver.1"})
    js.wait_until(js.now + 2 * SECOND_NS - 1)
    ticks(js)
    assert not receiver.chunks
    js.wait_until(js.now + 1)
    receiver.run()
    assert receiver.end in OK and not js.index.on_insert


def test_a_stream_that_is_deleted_meanwhile_ends_its_backup() -> None:
    js = filled(count=400)
    receiver = Receiver(js)
    js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver", "chunk_size": 1024, "window_size": 1024})
    js.api("STREAM.DELETE.S")
    js.tick()
    assert receiver.end == b"NATS/1.0 500 stream deleted\r\n\r\n"


def test_messages_of_after_the_request_are_not_in_the_backup() -> None:
    js = filled(count=400)
    receiver = Receiver(js)
    answer = js.api("STREAM.SNAPSHOT.S", {"deliver_subject": "deliver", "chunk_size": 1024})
    js.request("s.1", b"later")
    js.api("STREAM.MSG.DELETE.S", {"seq": 400})
    data = receiver.run()
    other = EngineHarness()
    response = restored(other, begun(other, answer), data)
    assert response["state"]["messages"] == 399 and response["state"]["last_seq"] == 400


def test_a_restore_is_announced_in_advisories() -> None:
    js = filled()
    create = js.listen(b"$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_CREATE.S")
    answer, data = backed_up(js)
    advisory = json.loads(create[0][2])
    assert advisory["type"] == "io.nats.jetstream.advisory.v1.snapshot_create"
    assert advisory["state"] == answer["state"]
    other = EngineHarness()
    heard = other.listen(b"$JS.EVENT.ADVISORY.STREAM.*.S")
    restored(other, begun(other, answer), data)
    reported = [json.loads(body) for _, _, body in heard]
    assert [one["type"].rpartition(".")[2] for one in reported] == [
        "restore_create",
        "stream_action",
        "restore_complete",
    ]
    assert reported[-1]["bytes"] == len(data)


def test_a_name_and_its_subjects_are_taken_while_they_are_restored() -> None:
    answer, data = backed_up(filled())
    js = EngineHarness()
    subject = begun(js, answer)
    body = {"name": "S", "subjects": ["x"]}
    assert js.api("STREAM.CREATE.S", body)["error"]["err_code"] == 10058
    assert js.api("STREAM.CREATE.T", {"name": "T", "subjects": ["s.1"]})["error"]["err_code"] == 10065
    again = js.api("STREAM.RESTORE.S", {"config": answer["config"], "state": answer["state"]})
    assert again["error"]["err_code"] == 10130
    assert "error" not in restored(js, subject, data)


def test_a_restore_that_stalls_leaves_nothing() -> None:
    answer, data = backed_up(filled())
    js = EngineHarness()
    subject = begun(js, answer)
    assert send(js, subject, data[: len(data) // 2]) == b""
    js.wait_until(js.now + 5 * SECOND_NS)
    assert js.api("STREAM.INFO.S")["error"]["err_code"] == 10059
    assert js.store.stream_names() == [] and not js.index.has_interest(subject.encode())
    assert "error" not in restored(js, begun(js, answer), data)


def test_a_chunk_without_a_reply_ends_the_restore() -> None:
    answer, _ = backed_up(filled())
    js = EngineHarness()
    subject = begun(js, answer)
    publish(js.index, subject.encode(), b"", b"", b"data")
    js.tick()
    assert not js.index.has_interest(subject.encode()) and not js.engine.transfers.is_restoring("S")


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_chunks_may_be_cut_anywhere(size: int) -> None:
    answer, data = backed_up(filled(count=5))
    js = EngineHarness()
    response = restored(js, begun(js, answer), data, size)
    assert response["state"]["messages"] == 5 and response["type"].endswith("stream_create_response")


def test_an_archive_that_ends_too_early_is_no_stream() -> None:
    answer, data = backed_up(filled())
    js = EngineHarness()
    for cut in (0, 9, 12, len(data) // 2, len(data) - 1):
        response = restored(js, begun(js, answer), data[:cut])
        assert response["error"] == {
            "code": 500, "err_code": 10062, "description": "restore failed: backup was truncated"
        }  # fmt: skip
        assert js.store.stream_names() == []


def test_what_does_not_fit_the_account_is_refused() -> None:
    answer, data = backed_up(filled())
    js = EngineHarness(account_storage_max=10_000)
    response = restored(js, begun(js, answer, max_bytes=9_000), data)
    assert (
        response["error"]["err_code"] == 10062
        and "insufficient storage resources" in response["error"]["description"]
    )
    assert (
        js.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"], "max_bytes": 9000}).get("error") is None
    )


def test_an_interest_stream_without_its_consumers_keeps_its_messages() -> None:
    """The official server does the same; a consumer made next gets them."""
    js = EngineHarness()
    js.create("S", "s.*", retention="interest")
    config = {"durable_name": "C", "ack_policy": "explicit"}
    js.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
    js.request("s.1", b"kept")
    answer, data = backed_up(js, no_consumers=True)
    other = EngineHarness()
    assert restored(other, begun(other, answer), data)["state"]["messages"] == 1
    made = other.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
    assert made["num_pending"] == 1


def test_empty_and_sealed_streams_come_back() -> None:
    js = filled(count=3)
    js.api("STREAM.PURGE.S")
    config = js.api("STREAM.INFO.S")["config"]
    js.api("STREAM.UPDATE.S", {**config, "sealed": True})
    answer, data = backed_up(js)
    other = EngineHarness()
    response = restored(other, begun(other, answer), data)
    assert response["config"]["sealed"]
    assert (response["state"]["messages"], response["state"]["first_seq"], response["state"]["last_seq"]) == (
        0,
        4,
        3,
    )


@pytest.mark.parametrize("part", [0.3, 0.99])
def test_a_server_killed_in_a_restore_has_no_half_stream(part: float, tmp_path: Path) -> None:
    answer, data = backed_up(filled(count=2000))
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    send(js, begun(js, answer), data[: int(len(data) * part)])
    assert store.account("$G").stream_names() == ["S"]
    store.abandon()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    assert js.api("STREAM.INFO.S")["error"]["err_code"] == 10059 and js.store.stream_names() == []
    assert restored(js, begun(js, answer), data)["state"]["messages"] == 2000
    store.abandon()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    assert js.state("S")["messages"] == 2000
    store.close()


def test_a_server_that_stops_in_a_restore_removes_it(tmp_path: Path) -> None:
    answer, data = backed_up(filled())
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    send(js, begun(js, answer), data[: len(data) // 2])
    js.engine.close()
    assert store.account("$G").stream_names() == []
    store.close()


def test_a_server_that_stops_right_after_a_restore_keeps_the_stream(tmp_path: Path) -> None:
    """Between the end of the restore and the end of its tick."""
    answer, data = backed_up(filled())
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    subject = begun(js, answer)
    send(js, subject, data)
    heard = js.listen(b"_INBOX.end")
    publish(js.index, subject.encode(), b"_INBOX.end", b"", b"")
    js.tick()
    js.engine.tick.apply(js.now)
    assert len(heard) == 1 and "error" not in json.loads(heard[0][2])
    js.engine.close()
    assert store.account("$G").stream_names() == ["S"]
    store.close()


def test_one_tick_takes_a_slice_of_what_a_small_chunk_expands_to() -> None:
    """A few bytes may stand for many."""
    js = EngineHarness()
    js.create("S", "s")
    for _ in range(40):
        js.request("s", bytes(60_000))
    answer, data = backed_up(js)
    assert len(data) < 200_000
    other = EngineHarness()
    subject = begun(other, answer)
    heard = other.messages(subject, data)
    sizes = [other.engine.transfers.used(StorageType.FILE)]
    while not heard:
        other.tick()
        sizes.append(other.engine.transfers.used(StorageType.FILE))
    assert len(sizes) > 5 and max(b - a for a, b in itertools.pairwise(sizes)) < 600_000
    assert json.loads(send(other, subject, b""))["state"]["messages"] == 40


def test_consumers_go_on_with_what_is_pending_and_how_often_it_was_delivered() -> None:
    js = filled(count=10)
    body = {
        "stream_name": "S",
        "config": {"durable_name": "C", "ack_policy": "explicit", "ack_wait": SECOND_NS},
    }
    js.api("CONSUMER.CREATE.S.C", body)
    js.messages("$JS.API.CONSUMER.MSG.NEXT.S.C", {"batch": 4, "no_wait": True})
    js.wait_until(js.now + SECOND_NS)
    js.messages("$JS.API.CONSUMER.MSG.NEXT.S.C", {"batch": 2, "no_wait": True})
    before = js.engine.streams["S"].consumers["C"].state.pending()
    assert [times for _, _, _, times in before] == [2, 2, 1, 1]
    answer, data = backed_up(js)
    other = EngineHarness(now=js.now)
    restored(other, begun(other, answer), data)
    restored_state = other.engine.streams["S"].consumers["C"].state
    assert restored_state.pending() == before
    assert restored_state.delivered_stream == 4
