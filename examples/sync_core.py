"""Core NATS: publish, subscribe, request.

    python examples/sync_core.py [nats://127.0.0.1:4222]

It needs a server: `penstock serve`, or any other NATS server.
"""

import sys

import penstock.sync
from penstock.errors import NoRespondersError
from penstock.sync import Client, Msg


def answer_time(msg: Msg) -> None:
    """A service that answers requests on `time.<city>`."""
    city = msg.subject.removeprefix("time.")
    msg.respond(f"noon in {city}", headers={"Precision": "poor"})


def greet(client: Client) -> None:
    # A subscription is an async iterator; `*` stands for one token of the subject, `>` for the rest.
    subscription = client.subscribe("greet.*")
    for name in ("joe", "pam", "sue"):
        client.publish(f"greet.{name}", "hello")
    subscription.unsubscribe(max_messages=3)
    for msg in subscription:
        print(f"{msg.subject}: {msg.data.decode()}")


def ask(client: Client) -> None:
    # Each request goes to one member of the queue group.
    for _ in range(2):
        client.subscribe("time.*", queue="clocks", callback=answer_time)
    answer = client.request("time.rome", timeout=2)
    print(f"{answer.data.decode()} (precision: {answer.headers['Precision']})")
    try:
        client.request("weather.rome")
    except NoRespondersError as error:
        print(error)


def main(url: str) -> None:
    with penstock.sync.connect(url, name="example") as client:
        greet(client)
        ask(client)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
