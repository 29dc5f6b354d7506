"""A task's rows from Spark into a stream, without a JVM: every step may be its last, then it runs again.

Each delivery is broken off at every write and after it, by a lost connection and by the task's death; then
the task is run again, within the duplicate window and after it. The stream must hold every row once."""

from __future__ import annotations

import base64
import contextlib
import itertools

import pyarrow as pa
import pytest

from penstock import errors
from penstock.spark.sink import write_rows
from penstock.spark.sink_options import SinkOptions
from penstock.spark.task_identity import TaskIdentity
from penstock.spark.wire import BlockingConnection
from tests.support.spark import Feed

pytestmark = pytest.mark.feature("spark.write")

ROWS = 60
DELIVERIES = ("publish", "fast", "atomic")
_names = (f"SINK{n}" for n in itertools.count())


class Target:
    """A stream and options to write to it."""

    def __init__(self, feed: Feed, delivery: str, **config: object) -> None:
        self.feed = feed
        self.name = next(_names)
        self.delivery = delivery
        settings: dict[str, object] = {"allow_atomic": True, "allow_batched": True, "allow_direct": True}
        feed.create(self.name, [f"{self.name}.>"], **{**settings, **config})

    def options(self, **given: str) -> SinkOptions:
        options = {
            "servers": f"127.0.0.1:{self.feed.port}",
            "stream": self.name,
            "subject": f"{self.name}.rows.{{key}}",
            "delivery": self.delivery,
            "ackWindow": "16",
            "flow": "7",
            "retrySeconds": "20",
        }
        if self.delivery == "atomic":
            options |= {"markerSubject": f"{self.name}.markers", "atomicRows": "11"}
        return SinkOptions.parse(options | given)

    def rows(self) -> list[str]:
        """Payloads in the stream, in order; markers apart."""
        state = self.feed.api(f"STREAM.INFO.{self.name}")["state"]
        found = []
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            message = self.feed.api(f"STREAM.MSG.GET.{self.name}", {"seq": seq})["message"]
            if ".rows." in message["subject"]:
                found.append(base64.b64decode(message.get("data", "")).decode())
        return found


def batches(count: int = ROWS, size: int = 25) -> list[pa.RecordBatch]:
    rows = [{"key": f"k{i % 3}", "data": f"row {i}".encode()} for i in range(count)]
    return [pa.RecordBatch.from_pylist(rows[at : at + size]) for at in range(0, count, size)]


def wanted(count: int = ROWS) -> list[str]:
    return [f"row {i}" for i in range(count)]


class Dead(BaseException):
    """The task's process is gone."""


class Breaker:
    """Lets a number of writes pass, then breaks the next one in the middle or right after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, where: float, *, kill: bool) -> None:
        self.left = at
        self.done = False
        send = BlockingConnection.send

        def broken(connection: BlockingConnection, data: bytes) -> None:
            if self.done or self.left > 0:
                self.left -= 1
                send(connection, data)
                return
            self.done = True
            send(connection, data[: int(len(data) * where)])
            connection.close()
            if kill:
                raise Dead
            raise errors.DisconnectedError("broken on purpose")

        monkeypatch.setattr(BlockingConnection, "send", broken)


IDENTITY = TaskIdentity("query", 3, 1)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_all_rows_arrive_once_in_order(feed: Feed, delivery: str) -> None:
    target = Target(feed, delivery)
    written = write_rows(target.options(), IDENTITY, batches())
    assert (written.rows, written.duplicates) == (ROWS, 0)
    assert target.rows() == wanted()
    again = write_rows(target.options(), IDENTITY, batches())
    assert again.duplicates == ROWS
    later = write_rows(target.options(), TaskIdentity("query", 4, 1), batches())
    assert later.duplicates == 0
    assert target.rows() == wanted() * 2


@pytest.mark.share(2)
@pytest.mark.parametrize("kill", [False, True], ids=["lost connection", "dead task"])
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_broken_off_at_every_write_and_run_again_every_row_is_there_once(
    feed: Feed, delivery: str, kill: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at, where in itertools.product(range(60), (0.0, 0.6, 1.0)):
        target = Target(feed, delivery)
        with monkeypatch.context() as patch:
            breaker = Breaker(patch, at, where, kill=kill)
            try:
                write_rows(target.options(), IDENTITY, batches())
            except Dead:
                assert kill
        if kill:
            write_rows(target.options(), IDENTITY, batches())
        assert sorted(target.rows()) == sorted(wanted()), (at, where)
        feed.api(f"STREAM.DELETE.{target.name}")
        if not breaker.done:
            break
    else:
        pytest.fail("more writes than thought: the breaker did not reach the end")
    assert at > 4


@pytest.mark.parametrize("batch_rows", ["11", "30", "100"])
def test_where_the_stream_takes_rollups_one_marker_is_left_of_a_task(
    feed: Feed, batch_rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(feed, "atomic", allow_rollup_hdrs=True)
    options = target.options(atomicRows=batch_rows)
    with monkeypatch.context() as patch:
        Breaker(patch, 9, 0.6, kill=True)
        with contextlib.suppress(Dead):
            write_rows(options, IDENTITY, batches())
    for times, epoch in ((1, IDENTITY.epoch), (2, 7)):
        write_rows(options, TaskIdentity("query", epoch, 1), batches())
        subjects = feed.api(f"STREAM.INFO.{target.name}", {"subjects_filter": ">"})["state"]["subjects"]
        assert subjects.pop(f"{target.name}.markers.query.1") == 1
        assert sum(subjects.values()) == times * ROWS


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_run_again_after_the_duplicate_window_what_is_stored_is_found(
    feed: Feed, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(feed, delivery, duplicate_window=100_000_000)
    with monkeypatch.context() as patch:
        Breaker(patch, 8, 0.5, kill=True)
        with pytest.raises(Dead):
            write_rows(target.options(), IDENTITY, batches())
    forget_duplicates(target)
    stored = len(target.rows())
    assert 0 < stored < ROWS
    written = write_rows(target.options(), IDENTITY, batches())
    assert written.duplicates == stored
    assert target.rows() == wanted()


def forget_duplicates(target: Target) -> None:
    """Returns when the window has passed: a message id is taken a second time."""
    header = b"NATS/1.0\r\nNats-Msg-Id: probe\r\n\r\n"
    while True:
        target.feed.publish([(f"{target.name}.probe", b"", header)])
        info = target.feed.api(f"STREAM.INFO.{target.name}", {"subjects_filter": f"{target.name}.probe"})
        if info["state"]["subjects"][f"{target.name}.probe"] > 1:
            return


def test_without_a_ledger_the_window_is_all_there_is(feed: Feed) -> None:
    target = Target(feed, "publish")
    write_rows(target.options(ledger="none"), IDENTITY, batches())
    assert write_rows(target.options(ledger="none"), IDENTITY, batches()).duplicates == ROWS
    assert target.rows() == wanted()


def test_ids_of_the_users_tell_duplicates_of_any_writer(feed: Feed) -> None:
    target = Target(feed, "fast")
    options = target.options(messageId="{key}-{data}")
    write_rows(options, IDENTITY, batches())
    write_rows(options, TaskIdentity("query", 3, 0), batches())
    assert target.rows() == wanted()


@pytest.mark.parametrize("delivery", ["publish", "atomic"])
def test_a_task_of_an_earlier_micro_batch_is_out_of_date(feed: Feed, delivery: str) -> None:
    target = Target(feed, delivery)
    write_rows(target.options(), TaskIdentity("old", 9, 0), batches())
    with pytest.raises(errors.MisuseError, match=r"is of micro-batch 9\. This task is out of date"):
        write_rows(target.options(), TaskIdentity("old", 8, 0), batches())
    assert target.rows() == wanted()


def test_what_can_not_be_written_is_refused_with_what_to_do(feed: Feed) -> None:
    target = Target(feed, "publish")
    bad = [pa.RecordBatch.from_pylist([{"key": "a", "data": b""}, {"key": "a b", "data": b""}])]
    with pytest.raises(
        errors.MisuseError, match=rf"row 1 of this task: '{target.name}.rows.a b' is no subject"
    ):
        write_rows(target.options(), IDENTITY, bad)
    other = Target(feed, "publish")
    with pytest.raises(errors.JetStreamApiError, match="10060"):
        write_rows(target.options(subject=f"{other.name}.x"), IDENTITY, batches())
    with pytest.raises(errors.NoStreamError, match=r"nobody\.listens"):
        write_rows(target.options(subject="nobody.listens"), IDENTITY, batches())
    large = [pa.RecordBatch.from_pylist([{"key": "a", "data": b"x" * (1 << 20)}])]
    with pytest.raises(errors.MaxPayloadError):
        write_rows(target.options(), IDENTITY, large)
    with pytest.raises(errors.StreamNotFoundError):
        write_rows(target.options(stream="NONE"), IDENTITY, batches())
    plain = Target(feed, "fast", allow_batched=False)
    with pytest.raises(errors.ConfigError, match="needs allow_batched"):
        write_rows(plain.options(), IDENTITY, batches())
    limited = Target(feed, "publish", max_msgs=10, discard="new")
    with pytest.raises(errors.JetStreamApiError, match="maximum messages exceeded"):
        write_rows(limited.options(retrySeconds="0.1"), IDENTITY, batches())
    assert limited.rows() == wanted()[:10]


@pytest.mark.parametrize("delivery", ["fast", "atomic"])
def test_a_refused_row_ends_batches_too(feed: Feed, delivery: str) -> None:
    limited = Target(feed, delivery, max_msgs=30, discard="new")
    with pytest.raises(errors.JetStreamApiError, match="maximum messages exceeded"):
        write_rows(limited.options(retrySeconds="0.1"), IDENTITY, batches())
    rows = limited.rows()
    assert rows == wanted()[: len(rows)]


def test_headers_reach_the_stream(feed: Feed) -> None:
    target = Target(feed, "publish")
    maps = pa.array([[("Tag", ["a", "b"])]], pa.map_(pa.string(), pa.list_(pa.string())))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["k"]), pa.array([b"x"]), maps], names=["key", "data", "headers"]
    )
    write_rows(target.options(headers="Kind: {key}\nFixed: yes", exactlyOnce="false"), IDENTITY, [batch])
    message = feed.api(f"STREAM.MSG.GET.{target.name}", {"seq": 1})["message"]
    block = base64.b64decode(message["hdrs"])
    for line in (b"Kind: k\r\n", b"Fixed: yes\r\n", b"Tag: a\r\nTag: b\r\n"):
        assert line in block
    assert b"Nats-Msg-Id" not in block
    assert message["subject"] == f"{target.name}.rows.k"
