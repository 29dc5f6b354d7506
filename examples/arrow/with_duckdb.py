"""Streams and DuckDB: a query's result is published, read again and summed up by SQL.

    python examples/arrow/with_duckdb.py [nats://127.0.0.1:4222]

It needs a server with JetStream, and DuckDB. It makes a stream EXAMPLE_FRUIT and deletes it again.
"""

import sys

import duckdb

import penstock.sync


def main(url: str) -> dict[str, int]:
    with penstock.sync.connect(url) as client:
        js = client.jetstream()
        stream = js.create_stream("EXAMPLE_FRUIT", subjects=["example.fruit"], storage="memory")
        try:
            query = "SELECT * FROM (VALUES ('pear', 3), ('plum', 2), ('pear', 2)) AS orders (fruit, count)"
            js.publish_arrow(duckdb.sql(query).to_arrow_table(), "example.fruit")
            stored = stream.to_arrow(columns=["data"])  # DuckDB finds the table by the variable's name
            assert stored.num_rows == 3
            read = duckdb.sql(
                "SELECT json ->> 'fruit', sum((json ->> 'count')::INT)::INT "
                "FROM (SELECT decode(data)::JSON AS json FROM stored) GROUP BY 1"
            )
            return dict(read.fetchall())
        finally:
            stream.delete()


if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
