"""Streams and consumers: store messages, process them, read them again.

    python examples/sync_jetstream.py [nats://127.0.0.1:4222]

It needs a server with JetStream: `penstock serve -js`, or any other. It makes a stream EXAMPLE_ORDERS and
deletes it again.
"""

import sys
from datetime import timedelta

import penstock.sync
from penstock.errors import WrongLastSequenceError
from penstock.sync import JetStream, Stream


def store(js: JetStream) -> None:
    # The ack confirms that the message is stored. A publish with the same msg_id is not stored again.
    ack = js.publish("example.orders.1", b"two pears", msg_id="order-1")
    again = js.publish("example.orders.1", b"two pears", msg_id="order-1")
    print(f"stored as {ack.seq}, and again: duplicate={again.duplicate}")
    # Optimistic locking: stored only if the subject's last sequence is the expected one.
    js.publish("example.orders.1", b"three pears", expected_last_subject_sequence=ack.seq)
    try:
        js.publish("example.orders.1", b"four pears", expected_last_subject_sequence=ack.seq)
    except WrongLastSequenceError as error:
        print(error.description)
    # Windowed publishing: up to `window` publishes in flight; the block ends when all are acked.
    with js.publisher(window=1000) as publisher:
        for number in range(2, 5001):
            publisher.publish(f"example.orders.{number}", b"an apple")
    print(f"{publisher.acked} more are stored")


def work_off(stream: Stream) -> None:
    consumer = stream.create_consumer("billing", ack_wait=timedelta(seconds=30))
    first, second = consumer.fetch(2, expires=2)
    print(f"{first.data.decode()} is message {first.seq} of {first.metadata.stream}")
    first.ack()
    second.nak()  # later, please
    count = 0
    with consumer.consume(max_messages=500) as messages:
        for msg in messages:
            msg.ack()
            count += 1
            if count == 5000:
                break
    print(f"worked off {count} more; {consumer.info().num_pending} left")


def read_again(stream: Stream) -> None:
    # An ordered consumer needs no acks, leaves no state behind, and survives lost connections.
    seqs = []
    for msg in stream.ordered_consumer(filter_subject="example.orders.1").messages():
        seqs.append(msg.seq)
        if not msg.metadata.pending:
            break
    last = stream.get_last_message("example.orders.1")
    print(f"order 1 is in messages {seqs}; the latest says {last.data.decode()!r}")


def main(url: str) -> None:
    with penstock.sync.connect(url) as client:
        js = client.jetstream()
        stream = js.create_stream("EXAMPLE_ORDERS", subjects=["example.orders.*"], allow_direct=True)
        try:
            store(js)
            work_off(stream)
            read_again(stream)
        finally:
            stream.delete()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
