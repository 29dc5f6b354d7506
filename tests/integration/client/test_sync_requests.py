"""Requests of `penstock.sync`, which are sent and awaited in the calling thread, on both servers."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import penstock.sync
from penstock.client.publishing import NO_STREAM_RETRIES, NO_STREAM_RETRY_WAIT_S
from penstock.errors import (
    BucketNotFoundError,
    ConnectionClosedError,
    DirectGetNotAllowedError,
    DisconnectedError,
    InvalidKeyError,
    KeyDeletedError,
    KeyExistsError,
    KeyNotFoundError,
    MessageNotFoundError,
    MisuseError,
    NoRespondersError,
    NoStreamError,
    RequestTimeoutError,
    StreamNotFoundError,
    WrongLastSequenceError,
    WrongRevisionError,
)
from penstock.sync import Client, JetStream, Stream
from penstock.sync.loop_thread import loop_thread

pytestmark = pytest.mark.feature("client.sync")


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with penstock.sync.connect(url, request_timeout=10, reconnect_delay=0.01) as client:
        yield client


@pytest.fixture
def js(client: Client) -> JetStream:
    return client.jetstream(timeout=10)


@pytest.fixture
def stream(js: JetStream) -> Iterator[Stream]:
    stream = js.create_stream("S", subjects=["s.>"], storage="memory", allow_direct=True)
    for number in range(1, 11):
        js.publish(f"s.{number}", str(number))
    yield stream
    stream.delete()


def test_gets_have_the_results_and_errors_of_the_async_client(js: JetStream, stream: Stream) -> None:
    for direct in (True, False, None):
        assert stream.get_message(3, direct=direct).data == b"3"
        assert stream.get_last_message("s.>", direct=direct).data == b"10"
        assert stream.get_message(4, next_by_subject="s.7", direct=direct).seq == 7
        with pytest.raises(MessageNotFoundError):
            stream.get_message(11, direct=direct)
    with pytest.raises(MisuseError, match="sequences start at 1"):
        stream.get_message(0)


def test_a_direct_get_without_an_answer_reports_its_reason(js: JetStream) -> None:
    stream = js.create_stream("NODIRECT", subjects=["n"], storage="memory", allow_direct=False)
    with pytest.raises(DirectGetNotAllowedError):
        stream.get_message(1, direct=True)
    stream.delete()
    with pytest.raises(StreamNotFoundError):
        stream.get_message(1, direct=True)


def test_keys_are_read_and_missing_ones_are_errors(js: JetStream) -> None:
    kv = js.create_key_value("B", history=2)
    first = kv.put("k", b"one")
    kv.put("k", b"two")
    assert (kv.get("k").value, kv.get("k", first).value) == (b"two", b"one")
    with pytest.raises(KeyNotFoundError):
        kv.get("missing")
    kv.delete("k")
    with pytest.raises(KeyDeletedError):
        kv.get("k")
    js.delete_key_value("B")
    with pytest.raises(BucketNotFoundError):
        kv.get("k")


def test_keys_are_written_and_refusals_are_errors(js: JetStream) -> None:
    kv = js.create_key_value("W", history=2)
    with pytest.raises(InvalidKeyError):
        kv.put("a key", b"")
    assert kv.create("k", b"one") == 1
    with pytest.raises(KeyExistsError):
        kv.create("k", b"two")
    assert kv.update("k", b"two", last_revision=1) == 2
    with pytest.raises(WrongRevisionError, match="the last one is 2"):
        kv.update("k", b"three", last_revision=1)
    assert (kv.delete("k"), kv.create("k", b"four"), kv.purge("k")) == (3, 4, 5)
    js.delete_key_value("W")
    with pytest.raises(BucketNotFoundError):
        kv.put("k", b"five")


def test_publishes_to_a_stream_run_in_the_calling_thread(js: JetStream, stream: Stream) -> None:
    assert js.publish("s.1", b"again").seq == 11
    with pytest.raises(WrongLastSequenceError):
        js.publish("s.1", b"no", expected_last_sequence=3)
    started = time.monotonic()
    with pytest.raises(NoStreamError):
        js.publish("no.stream", b"")
    assert time.monotonic() - started >= NO_STREAM_RETRIES * NO_STREAM_RETRY_WAIT_S
    later = js.create_stream("LATER", subjects=["later", "_schedules.>"], allow_msg_schedules=True)
    assert js.publish("later", b"soon", delay=3600).seq == 1
    later.delete()


def test_a_request_without_an_answer_ends_after_its_time(client: Client) -> None:
    with client.subscribe("silent"):
        client.flush()
        started = time.monotonic()
        with pytest.raises(RequestTimeoutError, match="no answer to the request on 'silent'"):
            client.request("silent", timeout=0.2)
        assert 0.2 <= time.monotonic() - started < 5
    with pytest.raises(NoRespondersError):
        client.request("nobody")


def test_threads_that_make_the_first_requests_together_get_their_answers(url: str) -> None:
    with penstock.sync.connect(url) as server, penstock.sync.connect(url) as client:
        server.subscribe("echo", callback=lambda msg: msg.respond(msg.data))
        server.flush()
        wrong: list[object] = []

        def work(number: int) -> None:
            for turn in range(50):
                body = f"{number}.{turn}".encode()
                answer = client.request("echo", body, timeout=20).data
                if answer != body:
                    wrong.append((body, answer))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not wrong


def waiting_request(client: Client) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that waits for the answer to a request to `silent`, and the errors with which that ends."""
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            client.request("silent")
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, failed


def test_a_lost_connection_ends_the_requests_that_wait(client: Client) -> None:
    silent = client.subscribe("silent")
    client.flush()
    thread, failed = waiting_request(client)
    silent.next(timeout=10)
    client.force_reconnect()
    thread.join(10)
    assert [type(error) for error in failed] == [DisconnectedError]
    client.wait_connected(10)
    with pytest.raises(NoRespondersError):
        client.request("nobody")


def test_the_end_of_the_client_ends_the_requests_that_wait(url: str) -> None:
    client = penstock.sync.connect(url)
    silent = client.subscribe("silent")
    client.flush()
    thread, failed = waiting_request(client)
    silent.next(timeout=10)
    client.close()
    thread.join(10)
    assert [type(error) for error in failed] == [ConnectionClosedError]
    with pytest.raises(ConnectionClosedError):
        client.request("silent")


def test_what_a_signal_handler_raises_ends_a_request_and_the_next_one_gets_its_own_answer(
    client: Client, stream: Stream
) -> None:
    class LateError(Exception):
        """What a task queue's time limit raises."""

    armed = False
    interrupted = 0

    def late(*_: object) -> None:
        if armed:
            raise LateError

    before = signal.signal(signal.SIGALRM, late)
    try:
        for number in range(150):  # the signal comes at another instruction each time
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 0.000_02 * (number + 1))
                for seq in range(1, 11):
                    assert stream.get_message(seq, direct=True).data == str(seq).encode()
                armed = False
            except LateError:
                armed = False
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert [stream.get_message(seq).data for seq in (1, 2)] == [b"1", b"2"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted


def test_a_coroutine_that_waits_for_the_event_loop_is_refused_in_another_thread() -> None:
    loop = loop_thread()
    with pytest.raises(RuntimeError, match="no running event loop"):
        loop.run_here(asyncio.sleep(0.01))

    async def suspends() -> None:
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="waits for the event loop"):
        loop.run_here(suspends())
