"""Rows about streams: all kinds of acked publishes, also compared with Redis Streams, and operations on
stored messages (purge, restart, direct get).

Servers with another configuration (`sync: always`, a separate store) start with their first row, and
Rivals.stop() stops them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import load
from load import CHUNK_MESSAGES, LoadError, create_stream, wire
from redis_streams import redis_binary, redis_server, xadd_per_s
from rows import Scenario
from servers import ServerProcess

WINDOW = 2000
FILE_GOAL = 5.0
SYNCED_GOAL = 3.0
REDIS_GOAL = 1.5
MEMORY_GOAL = 5.0
DEDUP_GOAL = 4.0
PAYLOAD_GOAL = 3.0
PAYLOAD_DISK_SHARE = 0.7
DIRECT_GOAL = 3.0
SUBJECTS = 1_000_000
SUBJECTS_COST_MAX = 2.0
PURGED = 1_000_000
PURGE_MAX_MS = 1000
RESTART_MESSAGES = 10_000_000
RESTART_BYTES = 36  # of a payload, so that ten million records fill a hundred blocks of 8 MiB
RESTART_MAX_MS = 3000
DIRECT_MESSAGES = 300_000
DIRECT_GETS = 300_000  # a third of a second at the higher rate: fewer would measure the scheduler
DIRECT_BATCH = 1000
SETTLE_S = 120.0
DISK_CHUNK = 256 * 1024


def _unstarted(server: ServerProcess) -> ServerProcess:
    """The same server, not started, with a port of its own."""
    return replace(server, port=0, process=None, more=())


@dataclass
class Rivals:
    """The processes that some rows measure in place of the default two."""

    folder: Path
    started: dict[str, ServerProcess] = field(default_factory=dict)

    def synced(self, server: ServerProcess) -> ServerProcess:
        """penstock with `sync: always`; the official server unchanged."""
        if not server.is_penstock:
            return server
        conf = self.folder / "sync.conf"
        conf.write_text("jetstream { sync_interval: always }\n")
        name = f"{server.name}-synced"
        return self._running(
            name, lambda: replace(_unstarted(server), store_dir=self.folder / name, more=("-c", str(conf)))
        )

    def redis(self, fsync: str, server: ServerProcess) -> ServerProcess:
        """Redis instead of the official server; `always` compares with penstock's `sync: always`."""
        if server.name != "penstock":
            return self._running(f"redis-{fsync}", lambda: redis_server(self.folder, fsync))
        return self.synced(server) if fsync == "always" else server

    def fresh(self, purpose: str, server: ServerProcess) -> ServerProcess:
        """The same server with a separate store."""
        name = f"{server.name}-{purpose}"
        return self._running(name, lambda: replace(_unstarted(server), store_dir=self.folder / name))

    def _running(self, name: str, make: Callable[[], ServerProcess]) -> ServerProcess:
        server = self.started.get(name)
        if server is None:
            server = make()
            server.start()
            self.started[name] = server
        return server

    def stop(self) -> None:
        for server in self.started.values():
            server.stop()


# ---------------------------------------------------------------------- publishing


def deduplicated_per_s(port: int, *, messages: int, size_bytes: int = 128) -> float:
    """Acked publishes with different Nats-Msg-Ids; acks per second."""
    create_stream(port, "DEDUP", "dedup.>", duplicate_window=120_000_000_000)
    body = b"x" * size_bytes
    run = time.time_ns()

    def frame(n: int) -> bytes:
        head = b"NATS/1.0\r\nNats-Msg-Id: %d-%08d\r\n\r\n" % (run, n)
        return b"HPUB dedup.a _INBOX.ack.1 %d %d\r\n%s%s\r\n" % (
            len(head),
            len(head) + size_bytes,
            head,
            body,
        )

    return _acked_frames(port, frame, messages)


def many_subjects_per_s(port: int, *, messages: int, subjects: int, size_bytes: int = 128) -> float:
    """Acked publishes to so many subjects in turn; acks per second."""
    create_stream(port, "SUBJECTS", "subjects.>")
    body = b"x" * size_bytes

    def frame(n: int) -> bytes:
        return b"PUB subjects.%08d _INBOX.ack.1 %d\r\n%s\r\n" % (n % subjects, size_bytes, body)

    return _acked_frames(port, frame, messages)


def _acked_frames(port: int, frame: Callable[[int], bytes], messages: int) -> float:
    """Frames that differ are all built before the measurement."""
    chunks = [
        b"".join([frame(n) for n in range(at, at + CHUNK_MESSAGES)])
        for at in range(0, messages, CHUNK_MESSAGES)
    ]
    with wire(port) as publisher:
        publisher.sock.sendall(b"SUB _INBOX.ack.* 1\r\n")
        publisher.ping()
        return load.windowed(publisher, chunks, messages, WINDOW)


def subjects_cost(server: ServerProcess, *, messages: int) -> float:
    """The cost of a publish to one of a million subjects, as a multiple of one to a single subject."""
    one = many_subjects_per_s(server.port, messages=messages, subjects=1)
    return one / many_subjects_per_s(server.port, messages=messages, subjects=messages)


def subject_bytes(server: ServerProcess) -> float:
    """Growth of resident memory by a million subjects with one message each, bytes per subject."""
    # What recovery took for the last round's stream would be there before the subjects are, and serve them.
    with suppress(LoadError), wire(server.port) as control:
        control.request("$JS.API.STREAM.DELETE.SUBJECTS")
    server.stop()
    server.start()
    # What the first stream of a process loads, 1 to 4 MB, is not the subjects'.
    many_subjects_per_s(server.port, messages=CHUNK_MESSAGES, subjects=CHUNK_MESSAGES, size_bytes=16)
    with suppress(LoadError), wire(server.port) as control:
        control.request("$JS.API.STREAM.DELETE.SUBJECTS")
    before = server.resident_mib()
    many_subjects_per_s(server.port, messages=SUBJECTS, subjects=SUBJECTS, size_bytes=16)
    time.sleep(1.0)  # excludes memory that is released right after the last ack
    return (server.resident_mib() - before) * (1 << 20) / SUBJECTS


@dataclass
class Payloads:
    """Rates in bytes, and the rate of the disk for comparison."""

    folder: Path
    raw_mb_per_s: dict[int, list[float]] = field(default_factory=dict)

    def mb_per_s(self, size_bytes: int, messages: int, server: ServerProcess) -> float:
        """Acked publishes of one size; payload MB/s. For penstock, the disk is measured too."""
        if server.name == "penstock":
            self.raw_mb_per_s.setdefault(size_bytes, []).append(self._raw(size_bytes * messages))
        rate = load.acked_publishes_per_s(
            server.port, messages=messages, window=WINDOW, size_bytes=size_bytes
        )
        return rate * size_bytes / 1e6

    def _raw(self, size: int) -> float:
        """Writes a file of so many bytes sequentially, and syncs it; MB/s."""
        path = self.folder / "raw"
        chunk = os.urandom(DISK_CHUNK)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            started = time.perf_counter()
            for at in range(0, size, DISK_CHUNK):
                os.pwrite(fd, chunk, at)
            os.fdatasync(fd)
            return size / (time.perf_counter() - started) / 1e6
        finally:
            os.close(fd)
            path.unlink()

    def enough(self, size_bytes: int) -> float | None:
        """The share of the disk's rate that suffices."""
        raw = self.raw_mb_per_s.get(size_bytes)
        return statistics.median(raw) * PAYLOAD_DISK_SHARE if raw else None


# ---------------------------------------------------------------------- what is stored


def purge_ms(server: ServerProcess) -> float:
    """STREAM.PURGE of one subject's million messages, interleaved with as many of another."""
    _fill(server.port, "PURGED", [b"purged.a", b"purged.b"], 2 * PURGED, 128)
    with wire(server.port) as control:
        started = time.perf_counter()
        answer = control.request("$JS.API.STREAM.PURGE.PURGED", b'{"filter":"purged.a"}')
        took_s = time.perf_counter() - started
        if answer["purged"] != PURGED:
            raise LoadError(f"{server.name} purged {answer['purged']} messages, not {PURGED}")
        control.request("$JS.API.STREAM.DELETE.PURGED")
    return took_s * 1e3


def restart_ms(server: ServerProcess) -> float:
    """SIGTERM, then the time from exec until STREAM.INFO shows ten million messages."""
    _fill_once(
        server.port, "RESTART", [b"restart.%d" % n for n in range(10)], RESTART_MESSAGES, RESTART_BYTES
    )
    server.stop()
    started = time.perf_counter()
    server.start()
    server.until_jetstream_answers("RESTART", RESTART_MESSAGES)
    return (time.perf_counter() - started) * 1e3


def direct_gets_per_s(server: ServerProcess, *, gets: int, in_flight: int = WINDOW) -> float:
    """Single direct gets by sequence, with so many in flight; responses per second."""
    _fill_direct(server.port)

    def ask(n: int) -> bytes:
        body = b'{"seq":%d}' % (1 + n * 7919 % DIRECT_MESSAGES)
        return b"PUB $JS.API.DIRECT.GET.DIRECT _INBOX.get.1 %d\r\n%s\r\n" % (len(body), body)

    return _direct(server.port, ask, gets, in_flight)


def direct_gets_after_restart_per_s(server: ServerProcess, *, gets: int) -> float:
    """The same on a server that was just started, from more blocks than penstock keeps loaded."""
    _fill_direct(server.port)
    server.stop()
    server.start()
    server.until_jetstream_answers("DIRECT", DIRECT_MESSAGES)
    return direct_gets_per_s(server, gets=gets)


def direct_lasts_per_s(server: ServerProcess, *, gets: int, in_flight: int = WINDOW) -> float:
    """Single direct gets of a subject's last message (the reads of a key-value store); responses per
    second."""
    _fill_direct(server.port)
    return _direct(
        server.port,
        lambda n: b"PUB $JS.API.DIRECT.GET.DIRECT.direct.k%d _INBOX.get.1 0\r\n\r\n" % (n * 7919 % 1000),
        gets,
        in_flight,
    )


def _direct(port: int, ask: Callable[[int], bytes], gets: int, in_flight: int) -> float:
    step = min(CHUNK_MESSAGES, in_flight)
    chunks = [b"".join([ask(n) for n in range(at, at + step)]) for at in range(0, gets, step)]
    with wire(port) as reader:
        reader.sock.sendall(b"SUB _INBOX.get.* 1\r\n")
        reader.ping()
        return load.windowed(reader, chunks, gets, in_flight, step=step, mark=b"Nats-Time-Stamp:")


def direct_batch_msgs_per_s(server: ServerProcess, *, messages: int) -> float:
    """Batched direct gets of a thousand messages, one after another; messages per second."""
    _fill_direct(server.port)
    with wire(server.port) as reader:
        reader.sock.sendall(b"SUB _INBOX.get.1 1\r\n")
        reader.ping()
        started = time.perf_counter()
        for seq in range(1, messages + 1, DIRECT_BATCH):
            body = b'{"seq":%d,"batch":%d}' % (seq, DIRECT_BATCH)
            reader.sock.sendall(
                b"PUB $JS.API.DIRECT.GET.DIRECT _INBOX.get.1 %d\r\n%s\r\n" % (len(body), body)
            )
            while not reader.count(b"NATS/1.0 204"):
                pass
        return messages / (time.perf_counter() - started)


def _fill_direct(port: int) -> None:
    subjects = [b"direct.k%d" % n for n in range(1000)]
    _fill_once(port, "DIRECT", subjects, DIRECT_MESSAGES, 128, allow_direct=True)


def _fill_once(
    port: int, name: str, subjects: list[bytes], messages: int, size_bytes: int, **config: object
) -> None:
    with wire(port) as control, suppress(LoadError):
        if control.request(f"$JS.API.STREAM.INFO.{name}")["state"]["messages"] == messages:  # type: ignore[index]
            return
    _fill(port, name, subjects, messages, size_bytes, **config)


def _fill(
    port: int, name: str, subjects: list[bytes], messages: int, size_bytes: int, **config: object
) -> None:
    create_stream(port, name, f"{name.lower()}.>", "file", **config)
    body = b"x" * size_bytes
    step = max(CHUNK_MESSAGES, len(subjects))
    chunk = b"".join(
        b"PUB %s _INBOX.ack.1 %d\r\n%s\r\n" % (subjects[n % len(subjects)], size_bytes, body)
        for n in range(step)
    )
    with wire(port) as publisher:
        publisher.sock.sendall(b"SUB _INBOX.ack.1 1\r\n")
        publisher.ping()
        load.windowed(publisher, [chunk], messages, WINDOW, step=step)


# ---------------------------------------------------------------------- the rows


def scenarios(share: int, rivals: Rivals) -> list[Scenario]:
    """The rows; `share`: the divisor of the number of messages."""
    return [*_publishing(share, rivals), *_many_subjects(rivals), *_stored(share, rivals)]


def _publishing(share: int, rivals: Rivals) -> list[Scenario]:
    messages = 500_000 // share

    def acked(server: ServerProcess, storage: str = "file") -> float:
        return load.acked_publishes_per_s(server.port, messages=messages, window=WINDOW, storage=storage)

    return [
        Scenario("acked publish, 2000 in flight, file", "acks/s", acked, goal=FILE_GOAL),
        Scenario(
            "acked publish, 2000 in flight, sync: always, beside nats-server without",
            "acks/s",
            acked,
            goal=SYNCED_GOAL,
            instead=rivals.synced,
        ),
        *_redis(messages, rivals),
        Scenario(
            "acked publish, 2000 in flight, memory",
            "acks/s",
            partial(acked, storage="memory"),
            goal=MEMORY_GOAL,
        ),
        Scenario(
            "acked publish, 2000 in flight, Nats-Msg-Id",
            "acks/s",
            lambda s: deduplicated_per_s(s.port, messages=messages),
            goal=DEDUP_GOAL,
        ),
        *_payloads(share, rivals),
    ]


def _many_subjects(rivals: Rivals) -> list[Scenario]:
    return [
        Scenario(
            f"acked publish over {SUBJECTS:,} subjects, beside one",
            "times the cost",
            lambda s: subjects_cost(s, messages=SUBJECTS),
            bigger_is_better=False,
            most=SUBJECTS_COST_MAX,
            rate=lambda s: many_subjects_per_s(s.port, messages=SUBJECTS, subjects=SUBJECTS),
        ),
        Scenario(
            f"memory of a subject, {SUBJECTS:,} of them",
            "bytes",
            subject_bytes,
            bigger_is_better=False,
            instead=partial(rivals.fresh, "subjects"),
        ),
    ]


def _stored(share: int, rivals: Rivals) -> list[Scenario]:
    return [
        Scenario(
            f"purge of {PURGED:,} messages by subject",
            "ms",
            purge_ms,
            bigger_is_better=False,
            most=PURGE_MAX_MS,
        ),
        Scenario(
            "direct get, single, by sequence",
            "gets/s",
            lambda s: direct_gets_per_s(s, gets=DIRECT_GETS // share),
            goal=DIRECT_GOAL,
        ),
        Scenario(
            "direct get, single, by sequence, after a restart",
            "gets/s",
            lambda s: direct_gets_after_restart_per_s(s, gets=DIRECT_GETS // share),
            goal=1.0,
            instead=partial(rivals.fresh, "direct"),
        ),
        Scenario(
            "direct get, single, last of a subject",
            "gets/s",
            lambda s: direct_lasts_per_s(s, gets=DIRECT_GETS // share),
            goal=DIRECT_GOAL,
        ),
        Scenario(
            f"direct get, batches of {DIRECT_BATCH:,}",
            "msg/s",
            lambda s: direct_batch_msgs_per_s(s, messages=DIRECT_MESSAGES // share),
            goal=DIRECT_GOAL,
        ),
        Scenario(
            f"restart with {RESTART_MESSAGES:,} messages",
            "ms",
            restart_ms,
            bigger_is_better=False,
            most=RESTART_MAX_MS,
            instead=partial(rivals.fresh, "restart"),
        ),
    ]


def _redis(messages: int, rivals: Rivals) -> list[Scenario]:
    if redis_binary() is None:
        print("no redis-server on PATH: the rows beside Redis Streams are left out")
        return []

    def measure(server: ServerProcess) -> float:
        if server.name == "penstock":
            return load.acked_publishes_per_s(server.port, messages=messages, window=WINDOW)
        return xadd_per_s(server.port, messages=messages, window=WINDOW)

    return [
        Scenario(
            f"acked publish beside Redis XADD, 2000 in flight, fsync {fsync}",
            "acks/s",
            measure,
            goal=REDIS_GOAL,
            instead=partial(rivals.redis, fsync),
        )
        for fsync in ("everysec", "always")
    ]


def _payloads(share: int, rivals: Rivals) -> list[Scenario]:
    payloads = Payloads(rivals.folder)
    return [
        Scenario(
            f"acked publish, 2000 in flight, {label}",
            "MB/s",
            partial(payloads.mb_per_s, size, count // share),
            goal=PAYLOAD_GOAL,
            enough=partial(payloads.enough, size),
        )
        for size, label, count in ((1024, "1 KiB", 300_000), (16384, "16 KiB", 40_000))
    ]
