"""Push consumers: a durable one with acks, an ordered one, and a queue group.

    python examples/sync_push.py [nats://127.0.0.1:4222]

It needs a server with JetStream: `penstock serve -js`, or any other NATS server.
"""

import sys
import threading

import penstock.sync
from penstock.sync import JetStream, JsMsg


def ordered(js: JetStream) -> None:
    """All messages in their order, without acks."""
    with js.subscribe("example.push.>", ordered=True) as subscription:
        print([subscription.next(5).data.decode() for _ in range(4)])


def durable(js: JetStream) -> None:
    """A consumer that stays after its subscription, and knows what was acked."""
    with js.subscribe("example.push.>", durable="audit", ack_wait=30) as subscription:
        for _ in range(4):
            msg = subscription.next(5)
            msg.ack_sync()
        info = subscription.consumer_info()
        print(f"{info.name}: acked up to message {info.ack_floor.stream_seq}, {info.num_pending} left")


def queue_group(js: JetStream) -> None:
    """Two members share the messages of one consumer."""
    done: list[str] = []
    all_done = threading.Event()

    def work(msg: JsMsg) -> None:
        done.append(msg.data.decode())
        if len(done) == 4:
            all_done.set()

    members = [
        js.subscribe("example.push.>", queue="workers", callback=work, auto_ack=True) for _ in range(2)
    ]
    all_done.wait()
    print(f"{len(done)} jobs done by {len(members)} members")
    for member in members:
        member.drain()


def main(url: str) -> None:
    with penstock.sync.connect(url) as client:
        js = client.jetstream()
        stream = js.create_stream("EXAMPLE_PUSH", subjects=["example.push.>"], storage="memory")
        for fruit in ("apple", "pear", "plum", "quince"):
            js.publish("example.push.fruit", fruit)
        ordered(js)
        durable(js)
        queue_group(js)
        stream.delete()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
