"""Streams and pandas: a frame is published, read again and summed up.

    python examples/arrow/with_pandas.py [nats://127.0.0.1:4222]

It needs a server with JetStream, and pandas. It makes a stream EXAMPLE_FRUIT and deletes it again.
"""

import json
import sys

import pandas as pd

import penstock.sync


def main(url: str) -> dict[str, int]:
    with penstock.sync.connect(url) as client:
        js = client.jetstream()
        stream = js.create_stream("EXAMPLE_FRUIT", subjects=["example.fruit"], storage="memory")
        try:
            orders = pd.DataFrame({"fruit": ["pear", "plum", "pear"], "count": [3, 2, 2]})
            js.publish_arrow(orders, "example.fruit")
            payloads = stream.to_arrow(columns=["data"])["data"].to_pylist()
            read = pd.DataFrame(map(json.loads, payloads))
            return {str(fruit): int(count) for fruit, count in read.groupby("fruit")["count"].sum().items()}
        finally:
            stream.delete()


if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
