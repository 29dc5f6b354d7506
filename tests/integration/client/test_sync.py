"""`penstock.sync` on both servers: threads, callbacks that block, interrupts, fork, the process's end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest

import penstock.sync
from penstock.client.tracing import Tracing
from penstock.errors import (
    ConnectionClosedError,
    JetStreamApiError,
    MisuseError,
    NoRespondersError,
    NoServersError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from penstock.sync import Client, JetStream, JsMsg, Msg, Stream
from tests.support.nats_servers import free_port

pytestmark = pytest.mark.feature("client.sync")

WAIT_S = 10


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with penstock.sync.connect(url, request_timeout=WAIT_S) as client:
        yield client


@pytest.fixture
def js(client: Client) -> JetStream:
    return client.jetstream(timeout=WAIT_S)


@pytest.fixture
def stream(js: JetStream) -> Iterator[Stream]:
    stream = js.create_stream("S", subjects=["s.>"], storage="memory", allow_atomic=True, allow_batched=True)
    yield stream
    stream.delete()


def in_threads(count: int, work: object) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return threads


# --- core -------------------------------------------------------------------------------------------


def test_publishes_and_requests_are_answered(client: Client) -> None:
    subscription = client.subscribe("a.*")
    client.publish("a.b", "text", headers={"K": "v"})
    msg = subscription.next(timeout=WAIT_S)
    assert (msg.subject, msg.data, msg.headers["K"]) == ("a.b", b"text", "v")
    with pytest.raises(NoRespondersError):
        client.request("nobody.here")
    with pytest.raises(RequestTimeoutError):
        subscription.next(timeout=0.01)
    subscription.unsubscribe()
    assert list(subscription) == []
    with pytest.raises(ConnectionClosedError):
        subscription.next(timeout=1)


def test_messages_of_an_iteration_that_was_left_are_read_later(client: Client) -> None:
    with client.subscribe("a") as subscription:
        for number in range(20):
            client.publish("a", str(number))
        client.flush()
        for msg in subscription:
            assert msg.data == b"0"
            break
        assert subscription.pending_messages == 19
        assert subscription.next(timeout=WAIT_S).data == b"1"
        assert [msg.data for msg in subscription.next_many(3)] == [b"2", b"3", b"4"]
        assert next(subscription).data == b"5"
        assert subscription.pending_messages == 14


def test_frames_of_many_threads_are_whole_and_those_of_each_in_order(client: Client) -> None:
    count, threads = 5_000, 4
    subscription = client.subscribe("t.*", max_pending_messages=10**6)
    client.flush()

    def publish(number: int) -> None:
        for index in range(count):
            client.publish(f"t.{number}", f"{index}" + "." * (index % 50))

    in_threads(threads, publish)
    seen: dict[str, int] = {}
    for _ in range(count * threads):
        msg = subscription.next(timeout=WAIT_S)
        index = int(msg.data.rstrip(b"."))
        assert index == seen.get(msg.subject, -1) + 1
        seen[msg.subject] = index
    assert client.stats.out_messages == count * threads


def test_threads_share_the_messages_of_a_subscription(client: Client) -> None:
    subscription = client.subscribe("shared")
    taken: list[bytes] = []

    def take(_: int) -> None:
        taken.extend(msg.data for msg in subscription)

    readers = [threading.Thread(target=take, args=(0,)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1_000):
        client.publish("shared", str(number))
    client.flush()
    subscription.drain(timeout=WAIT_S)
    for reader in readers:
        reader.join(WAIT_S)
        assert not reader.is_alive()
    assert sorted(map(int, taken)) == list(range(1_000))


def test_requests_of_many_threads_get_their_own_answers(client: Client) -> None:
    client.subscribe("double", callback=lambda msg: msg.respond(str(2 * int(msg.data))))
    wrong: list[int] = []

    def ask(number: int) -> None:
        for index in range(50):
            value = number * 1000 + index
            if int(client.request("double", str(value), timeout=WAIT_S).data) != 2 * value:
                wrong.append(value)

    in_threads(4, ask)
    assert wrong == []


# --- callbacks ----------------------------------------------------------------------------------------


def test_a_callback_may_block_and_use_the_client(client: Client) -> None:
    release = threading.Event()
    threads: set[int] = set()

    def slow(msg: Msg) -> None:
        threads.add(threading.get_ident())
        assert release.wait(WAIT_S)
        msg.respond(client.request("quick", msg.data, timeout=WAIT_S).data)

    client.subscribe("slow", callback=slow)
    client.subscribe("quick", callback=lambda msg: msg.respond(b"<" + msg.data + b">"))
    answers = client.subscribe("answers")
    client.publish("slow", "1", reply="answers")
    # The blocked callback delays neither calls nor other callbacks.
    assert client.request("quick", "2", timeout=WAIT_S).data == b"<2>"
    release.set()
    assert answers.next(timeout=WAIT_S).data == b"<1>"
    assert threading.get_ident() not in threads


def test_a_callback_gets_one_message_at_a_time_in_order(client: Client) -> None:
    seen: list[int] = []
    done = threading.Event()
    running = threading.Lock()

    def handle(msg: Msg) -> None:
        assert running.acquire(blocking=False)
        seen.append(int(msg.data))
        running.release()
        if len(seen) == 500:
            done.set()

    client.subscribe("ordered", callback=handle)
    for number in range(500):
        client.publish("ordered", str(number))
    assert done.wait(WAIT_S)
    assert seen == list(range(500))


def test_what_a_callback_raises_goes_to_on_error_and_events_come_in_order(url: str) -> None:
    events: list[object] = []
    failed = threading.Event()

    def on_error(client: Client, error: Exception) -> None:
        events.append((client, str(error)))
        failed.set()

    with penstock.sync.connect(
        url,
        on_connected=lambda client: events.append((client, "connected")),
        on_error=on_error,
        on_closed=lambda client: events.append((client, "closed")),
    ) as client:
        client.subscribe("x", callback=lambda msg: 1 / 0)
        client.publish("x")
        assert failed.wait(WAIT_S)
    assert events == [(client, "connected"), (client, "division by zero"), (client, "closed")]


def test_a_call_from_the_loop_s_thread_says_that_it_would_wait_for_itself(client: Client) -> None:
    found: list[Exception] = []

    def sentinel(msg: Msg) -> bool:
        try:
            client.flush()
        except MisuseError as error:
            found.append(error)
        return True

    client.subscribe("many", callback=lambda msg: msg.respond(b"one"))
    assert list(client.request_many("many", sentinel=sentinel, timeout=WAIT_S)) == []
    assert "would wait for itself" in str(found[0])


def test_functions_for_credentials_may_block(url: str) -> None:
    asked = threading.Event()

    def token() -> str:
        time.sleep(0.01)
        asked.set()
        return "any"  # the servers of these tests check nothing

    with penstock.sync.connect(url, token=token) as client:
        assert client.is_connected
    assert asked.is_set()


# --- JetStream ----------------------------------------------------------------------------------------


def test_a_fetch_is_a_list_and_an_iteration(js: JetStream, stream: Stream) -> None:
    with js.publisher() as publisher:
        acks = [publisher.publish("s.a", str(number)) for number in range(50)]
        assert acks[0].wait().seq == 1
    assert (publisher.acked, publisher.pending, acks[-1].done()) == (50, 0, True)
    consumer = stream.create_consumer("c")
    fetched = consumer.fetch(10, expires=WAIT_S)
    assert [msg.data for msg in fetched] == [str(number).encode() for number in range(10)]
    assert (len(fetched), fetched[3].seq, [msg.seq for msg in fetched[8:]]) == (10, 4, [9, 10])
    first, second = consumer.fetch(2, expires=WAIT_S)
    assert (first.seq, second.seq) == (11, 12)
    assert len(consumer.fetch(100, expires=WAIT_S, no_wait=True)) == 38
    assert not consumer.fetch(1, no_wait=True)
    consumer.delete()
    with pytest.raises(JetStreamApiError):
        consumer.info()


def test_an_iterated_fetch_hands_out_messages_before_the_last_one_came(js: JetStream, stream: Stream) -> None:
    consumer = stream.create_consumer("c")
    js.publish("s.a", "first")
    seen = []
    for msg in consumer.fetch(2, expires=WAIT_S):
        seen.append(msg.data)
        if len(seen) == 1:
            js.publish("s.a", "second")
    assert seen == [b"first", b"second"]


def test_consume_acks_in_threads_and_ends_by_stop(js: JetStream, stream: Stream) -> None:
    for number in range(300):
        js.publish("s.a", str(number))
    consumer = stream.create_consumer("c", max_ack_pending=50)
    with consumer.consume() as messages:
        for count, msg in enumerate(messages, 1):
            msg.ack()
            assert msg.is_settled
            if count == 300:
                messages.stop()
    assert consumer.info().num_pending == 0


def test_a_consume_callback_is_called_in_a_thread(js: JetStream, stream: Stream) -> None:
    done = threading.Event()

    def handle(msg: JsMsg) -> None:
        msg.ack_sync()
        done.set()

    consume = stream.create_consumer("c").consume(handle)
    js.publish("s.a")
    assert done.wait(WAIT_S)
    consume.drain()


def test_iterators_are_read_ahead_and_can_be_left(js: JetStream, stream: Stream) -> None:
    with js.publisher() as publisher:
        for number in range(1_000):
            publisher.publish("s.a", str(number))
    assert [int(msg.data) for msg in stream.get_messages()] == list(range(1_000))
    for msg in stream.get_messages(5):
        assert msg.seq == 5
        break
    messages = stream.get_messages()
    next(iter(messages))
    messages.close()  # type: ignore[attr-defined]
    assert list(messages) == []
    stream.delete()
    with pytest.raises(StreamNotFoundError):
        list(stream.consumers())
    js.create_stream("S")


def test_publishers_of_several_threads_share_a_window(js: JetStream, stream: Stream) -> None:
    with js.publisher(window=100) as publisher:

        def publish(number: int) -> None:
            for index in range(500):
                publisher.publish(f"s.{number}", str(index))

        in_threads(4, publish)
        publisher.flush()
        assert (publisher.acked, publisher.failed) == (2_000, 0)
    assert stream.info(subjects_filter=">").state.subjects == {f"s.{number}": 500 for number in range(4)}


def test_an_object_is_put_from_an_iterable_that_uses_the_client(client: Client, js: JetStream) -> None:
    store = js.create_object_store("SYNC")

    def pieces() -> Iterator[bytes]:
        for number in range(5):
            client.flush()
            yield str(number).encode() * 1000

    assert store.put("o", pieces()).size == 5_000
    assert store.get("o")[::1000] == b"01234"
    with store.open("o") as reader:
        assert b"".join(reader) == store.get("o")
    js.delete_object_store("SYNC")


def test_chunks_of_an_object_and_messages_of_threads_do_not_mix(client: Client, js: JetStream) -> None:
    """The loop writes chunks past the out buffer, to which threads append meanwhile."""
    store = js.create_object_store("THREADS", storage="memory")
    subscription = client.subscribe("mix.*", max_pending_messages=10**6, max_pending_bytes=2**30)
    client.flush()
    data, count = bytes(range(256)) * 40_000, 400

    def publish(number: int) -> None:
        for index in range(count):
            client.publish(f"mix.{number}", bytes([number]) * (index * 300))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.put("x", data, chunk_size=100_000)
    assert store.get("x") == data
    expected = dict.fromkeys(range(3), 0)
    for _ in range(3 * count):
        msg = subscription.next(timeout=WAIT_S)
        number = int(msg.subject.removeprefix("mix."))
        assert msg.data == bytes([number]) * (expected[number] * 300)
        expected[number] += 1
    js.delete_object_store("THREADS")


def test_a_lock_that_was_lost_is_reported_at_the_end_of_its_block(js: JetStream) -> None:
    kv = js.create_key_value("LOCKS", limit_marker_ttl=10)
    with kv.lock("k", ttl=10) as lease:
        lease.check()
        assert lease.is_held
    assert not lease.is_held
    js.delete_key_value("LOCKS")


# --- the thread, the process ----------------------------------------------------------------------------


def test_calls_work_while_an_event_loop_runs_in_the_thread(url: str) -> None:
    """As in a notebook."""

    async def cell() -> bytes:
        with penstock.sync.connect(url) as client:
            subscription = client.subscribe("x")
            client.publish("x", b"y")
            return subscription.next(timeout=WAIT_S).data

    assert asyncio.run(cell()) == b"y"


def test_the_context_of_the_caller_reaches_a_tracer(url: str) -> None:
    span = contextvars.ContextVar("span", default="none")

    class Recorder(Tracing):
        def inject(self, headers: object) -> dict[str, str]:
            return {"Span": span.get()}

        def handling(self, msg: object) -> threading.Lock:
            return threading.Lock()  # any context manager

    with penstock.sync.connect(url, tracing=Recorder()) as client:  # type: ignore[abstract]
        client.subscribe("who", callback=lambda msg: msg.respond(msg.headers["Span"]))
        span.set("caller")
        assert client.request("who", timeout=WAIT_S).data == b"caller"


def test_connect_raises_what_the_async_one_raises() -> None:
    with pytest.raises(NoServersError):
        penstock.sync.connect(f"nats://127.0.0.1:{free_port()}")
    with pytest.raises(TypeError, match="did you mean"):
        penstock.sync.connect(reconect=True)  # type: ignore[call-arg]


def test_an_interrupt_ends_a_call_and_loses_nothing(client: Client) -> None:
    subscription = client.subscribe("interrupted")
    client.flush()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            subscription.next()
    finally:
        signal.signal(signal.SIGALRM, before)
    client.publish("interrupted", b"later")
    assert subscription.next(timeout=WAIT_S).data == b"later"


def test_a_dropped_client_is_closed_with_a_warning(url: str) -> None:
    client = penstock.sync.connect(url)
    inner = client._inner
    del client
    with pytest.warns(ResourceWarning, match=r"call client.close\(\)"):
        gc.collect()
    end = time.monotonic() + WAIT_S
    while not inner.is_closed and time.monotonic() < end:
        time.sleep(0.002)
    assert inner.is_closed


def script(url: str, text: str) -> subprocess.CompletedProcess[str]:
    code = "import os, sys, penstock.sync\nurl = sys.argv[1]\n" + textwrap.dedent(text)
    return subprocess.run(
        [sys.executable, "-c", code, url], capture_output=True, text=True, timeout=60, check=False
    )


def test_what_was_published_is_sent_at_the_end_of_the_process(url: str, client: Client) -> None:
    subscription = client.subscribe("last.words")
    client.flush()
    done = script(url, 'client = penstock.sync.connect(url)\nclient.publish("last.words", b"sent")')
    assert (done.stdout, done.returncode) == ("", 0)
    assert subscription.next(timeout=WAIT_S).data == b"sent"


def test_a_child_process_refuses_the_parent_s_client_and_connects_itself(url: str) -> None:
    done = script(
        url,
        """
        client = penstock.sync.connect(url)
        subscription = client.subscribe("parent")
        pid = os.fork()
        if not pid:
            publish = lambda: client.publish("parent", b"child")
            for call in (client.flush, publish, lambda: next(subscription)):
                try:
                    call()
                except penstock.errors.PenstockError as error:
                    print(type(error).__name__, "fork()" in str(error))
            with penstock.sync.connect(url) as own:
                own.publish("parent", b"from the child")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        print(subscription.next(timeout=5).data)
        client.publish("parent", b"still here")
        print(subscription.next(timeout=5).data)
        client.close()
        """,
    )
    assert done.stdout.splitlines() == [
        "MisuseError True",
        "ConnectionClosedError True",
        "MisuseError True",
        "b'from the child'",
        "b'still here'",
    ]
    assert done.returncode == 0, done.stderr


def test_a_callback_that_never_returns_does_not_keep_the_process(url: str) -> None:
    done = script(
        url,
        """
        import threading
        client = penstock.sync.connect(url)
        started = threading.Event()

        def forever(msg):
            started.set()
            threading.Event().wait()

        client.subscribe("x", callback=forever)
        client.publish("x")
        assert started.wait(10)
        """,
    )
    assert done.returncode == 0, done.stderr


def test_a_client_goes_on_after_a_reconnect(client: Client) -> None:
    subscription = client.subscribe("again")
    client.force_reconnect()
    client.publish("again", b"buffered")
    client.wait_connected(timeout=WAIT_S)
    assert subscription.next(timeout=WAIT_S).data == b"buffered"
    assert client.stats.reconnects == 1
