"""Streams and Polars: a frame is published, read again and summed up.

    python examples/arrow/with_polars.py [nats://127.0.0.1:4222]

It needs a server with JetStream, and Polars. It makes a stream EXAMPLE_FRUIT and deletes it again.
"""

import sys

import polars as pl

import penstock.sync


def main(url: str) -> dict[str, int]:
    with penstock.sync.connect(url) as client:
        js = client.jetstream()
        stream = js.create_stream("EXAMPLE_FRUIT", subjects=["example.fruit"], storage="memory")
        try:
            js.publish_arrow(
                pl.DataFrame({"fruit": ["pear", "plum", "pear"], "count": [3, 2, 2]}), "example.fruit"
            )
            table = pl.from_arrow(stream.to_arrow(columns=["data"]))
            kind = pl.Struct({"fruit": pl.String, "count": pl.Int64})
            read = table.select(pl.col("data").cast(pl.String).str.json_decode(kind).alias("order")).unnest(
                "order"
            )
            return dict(read.group_by("fruit").agg(pl.col("count").sum()).iter_rows())
        finally:
            stream.delete()


if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
