"""Object store: files of any size under names, in chunks, with digests.

    python examples/sync_object_store.py [nats://127.0.0.1:4222]

It needs a server with JetStream: `penstock serve -js`, or any other. It makes a store EXAMPLE_FILES and
deletes it again.
"""

import sys
import tempfile
from pathlib import Path

import penstock.sync
from penstock.sync import ObjectStore


def put_and_get(store: ObjectStore, folder: Path) -> None:
    path = folder / "report.txt"
    path.write_text("".join(f"line {number:06}\n" for number in range(300_000)))
    progress: list[tuple[int, int | None]] = []
    info = store.put("report.txt", path, progress=lambda sent, total: progress.append((sent, total)))
    print(f"{info.name}: {info.size} bytes in {info.chunks} chunks")
    # A part of it, without the rest: the chunks before and behind are not sent.
    last = store.get("report.txt", offset=info.size - 12)
    print(f"the last line is {last.decode().strip()!r}")
    print(f"sent {progress[-1][0]} of {progress[-1][1]} bytes")
    # As a stream; the digest is checked at its end. A file gets the content only when it is complete.
    with store.open("report.txt") as reader:
        for _chunk in reader:
            pass
    store.get_to_file("report.txt", folder / "copy.txt")
    assert (folder / "copy.txt").read_bytes() == path.read_bytes()


def follow(store: ObjectStore) -> None:
    with store.watch(updates_only=True) as watch:
        store.put("report.txt", b"short")  # the chunks of the old one are removed
        info = next(watch)
        if info is not None:
            print(f"watched: {info.name}, {info.size} bytes")
    store.add_link("latest", store.info("report.txt"))
    print(f"{store.get('latest').decode()!r} by way of a link")
    store.delete("latest")
    store.delete("report.txt")
    print(f"nothing is left: {[info.name for info in store.list()] == []}")


def main(url: str) -> None:
    with penstock.sync.connect(url) as client:
        js = client.jetstream()
        store = js.create_object_store("EXAMPLE_FILES")
        try:
            with tempfile.TemporaryDirectory() as folder:
                put_and_get(store, Path(folder))
            follow(store)
        finally:
            js.delete_object_store("EXAMPLE_FILES")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
