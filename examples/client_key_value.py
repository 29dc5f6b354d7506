"""Key-value: a bucket of settings that programs read, change safely and watch.

    python examples/client_key_value.py [nats://127.0.0.1:4222]

It needs a server with JetStream: `penstock serve -js`, or any other. It makes a bucket EXAMPLE_SETTINGS and
deletes it again.
"""

import asyncio
import sys

import penstock.client
from penstock.client import KeyValue
from penstock.errors import KeyExistsError, WrongRevisionError


async def change(kv: KeyValue) -> None:
    await kv.put("db.url", b"postgres://one")
    await kv.put("db.pool", b"10")
    # Only the first of several clients creates a key.
    try:
        await kv.create("db.url", b"postgres://mine")
    except KeyExistsError as error:
        print(f"{error.key} exists at revision {error.found}")
    # Compare and set: nothing is written if another client changed the key since it was read.
    entry = await kv.get("db.url")
    await kv.update("db.url", b"postgres://two", last_revision=entry.revision)
    try:
        await kv.update("db.url", b"postgres://three", last_revision=entry.revision)
    except WrongRevisionError as error:
        print(f"expected revision {error.expected}, found {error.found}")
    print([entry.value.decode() for entry in await kv.history("db.url")])


async def read(kv: KeyValue) -> None:
    # Any number of keys: one request for each thousand.
    found = await kv.get_many(["db.url", "db.pool", "db.none"])
    print({key: entry.value.decode() for key, entry in found.items()})
    print(sorted([key async for key in kv.keys("db.*")]))


async def follow(kv: KeyValue) -> None:
    async with kv.watch("db.>") as watch:
        settings = {entry.key: entry.value for entry in await watch.initial()}
        print(f"starting with {len(settings)} settings")
        await kv.put("db.pool", b"20")
        await kv.delete("db.url")
        async for entry in watch:
            print(f"{entry.key}: {entry.operation} {entry.value.decode()}".rstrip())
            if entry.is_deleted:
                break


async def together(kv: KeyValue) -> None:
    # One client at a time runs the block; all of the batch is stored, or nothing.
    async with kv.lock("locks.migration", ttl=10, holder="example"), kv.batch() as batch:
        batch.create("db.user", b"joe")
        batch.create("db.password", b"secret")
    print(f"{len(batch.revisions)} settings stored together")


async def main(url: str) -> None:
    async with penstock.client.connect(url) as client:
        js = client.jetstream()
        kv = await js.create_key_value("EXAMPLE_SETTINGS", history=5, allow_atomic=True, limit_marker_ttl=10)
        try:
            await change(kv)
            await read(kv)
            await follow(kv)
            await together(kv)
        finally:
            await js.delete_key_value("EXAMPLE_SETTINGS")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
