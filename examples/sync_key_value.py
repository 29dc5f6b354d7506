"""Key-value: a bucket of settings that programs read, change safely and watch.

    python examples/sync_key_value.py [nats://127.0.0.1:4222]

It needs a server with JetStream: `penstock serve -js`, or any other. It makes a bucket EXAMPLE_SETTINGS and
deletes it again.
"""

import sys

import penstock.sync
from penstock.errors import KeyExistsError, WrongRevisionError
from penstock.sync import KeyValue


def change(kv: KeyValue) -> None:
    kv.put("db.url", b"postgres://one")
    kv.put("db.pool", b"10")
    # Only the first of several clients creates a key.
    try:
        kv.create("db.url", b"postgres://mine")
    except KeyExistsError as error:
        print(f"{error.key} exists at revision {error.found}")
    # Compare and set: nothing is written if another client changed the key since it was read.
    entry = kv.get("db.url")
    kv.update("db.url", b"postgres://two", last_revision=entry.revision)
    try:
        kv.update("db.url", b"postgres://three", last_revision=entry.revision)
    except WrongRevisionError as error:
        print(f"expected revision {error.expected}, found {error.found}")
    print([entry.value.decode() for entry in kv.history("db.url")])


def read(kv: KeyValue) -> None:
    # Any number of keys: one request for each thousand.
    found = kv.get_many(["db.url", "db.pool", "db.none"])
    print({key: entry.value.decode() for key, entry in found.items()})
    print(sorted(kv.keys("db.*")))


def follow(kv: KeyValue) -> None:
    with kv.watch("db.>") as watch:
        settings = {entry.key: entry.value for entry in watch.initial()}
        print(f"starting with {len(settings)} settings")
        kv.put("db.pool", b"20")
        kv.delete("db.url")
        for entry in watch:
            print(f"{entry.key}: {entry.operation} {entry.value.decode()}".rstrip())
            if entry.is_deleted:
                break


def together(kv: KeyValue) -> None:
    # One client at a time runs the block; all of the batch is stored, or nothing.
    with kv.lock("locks.migration", ttl=10, holder="example"), kv.batch() as batch:
        batch.create("db.user", b"joe")
        batch.create("db.password", b"secret")
    print(f"{len(batch.revisions)} settings stored together")


def main(url: str) -> None:
    with penstock.sync.connect(url) as client:
        js = client.jetstream()
        kv = js.create_key_value("EXAMPLE_SETTINGS", history=5, allow_atomic=True, limit_marker_ttl=10)
        try:
            change(kv)
            read(kv)
            follow(kv)
            together(kv)
        finally:
            js.delete_key_value("EXAMPLE_SETTINGS")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
