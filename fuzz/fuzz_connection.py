"""Fuzzes connections as a whole: `python fuzz/fuzz_connection.py -runs=10000 -max_total_time=60`.

A server runs in this process; a connection is a `Connection` with its session, ingress and parser on a
transport that is none. An input is either bytes as they are, or says which frames make up a session and how
they are damaged, or which frames each of several connections sends, in accounts with mappings. Whatever it
is: no exception escapes, other clients get their own messages and nothing else of the server's, connections
leave nothing behind, and memory doesn't grow.

The first byte chooses the server, what becomes of the receiver and whether reads end ticks, the second how
the rest is cut into reads. Servers are replaced now and then: streams that inputs create are no leak.

The server with authorization stands behind a proxy that says who its clients are, and trusts it.

Rejected: sockets. They add system calls to every input, and what they do to bytes (cut them) is done here.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from peers import FakeTransport, Peer, turns
from seeded import fuzz

from penstock.protocol.nkeys import KeyPair, Prefix
from penstock.protocol.proxy_protocol import V2_SIGNATURE
from penstock.server.config.directives import load
from penstock.server.config.server_options import JetStreamOptions, ServerOptions
from penstock.server.logging import logs
from penstock.server.server import Server

RAW, WITH_AUTHORIZATION, NEVER_READS, GOES_AT_ONCE, SEVERAL, ENDS_TICKS = 1, 2, 4, 8, 16, 32
CONNECTIONS = 4
INPUTS_PER_SERVER = 500
GROWTH_MAX_BYTES = 128 * 1024 * 1024
MAX_PAYLOAD = 64 * 1024
MAX_PENDING = 256 * 1024
MAX_SUBSCRIPTIONS = 64
READ_BYTES = 64 * 1024
READ_AHEAD_BYTES = 1024 * 1024
READS_MAX = 256
# What waits is looked at between reads, and each subscription of a connection may get what was read. Only the
# server without JetStream is held to it: what streams deliver in a tick is not bounded by one input.
WAITING_MAX_BYTES = MAX_PENDING + 2 * MAX_SUBSCRIPTIONS * READ_BYTES
PASSWORD = "s3cr3t"
PROXY = KeyPair.from_bytes(Prefix.SERVER, bytes(32)).public
STREAMS = JetStreamOptions(max_memory_bytes=16 * 1024 * 1024)

LIMITS = {"max_payload": MAX_PAYLOAD, "max_pending": MAX_PENDING, "max_subscriptions": MAX_SUBSCRIPTIONS}
# Which server an input meets, and the users of its witnesses.
PLAIN, AUTHORIZED, ACCOUNTS = "plain", "authorized", "accounts"
WITNESSES = {PLAIN: ["a"], AUTHORIZED: ["a"], ACCOUNTS: ["a", "b", "s"]}
CONF = """
jetstream { max_memory_store: 16M, max_file_store: 16M, max_buffered_msgs: 4 }
accounts {
    A {
        users: [ { user: a, password: s3cr3t }, { user: a2, password: s3cr3t } ]
        jetstream: { max_mem: 8M, max_file: 8M, max_streams: 3, max_consumers: 5 }
        mappings {
            "m.*": "s.$1"
            "w.*": [ { destination: "a.b", weight: 40 }, { destination: "s.w", weight: 40 } ]
            "p.*.*": "s.{{partition(3,1)}}.{{wildcard(2)}}"
            "gone": [ { destination: "gone", weight: 0 } ]
            "jump": "$JS.API.INFO"
        }
        exports: [ { stream: "s.>" }, { service: "a.r", allow_trace: true } ]
    }
    B {
        users: [
            { user: b, password: s3cr3t }
            { user: b2, password: s3cr3t, permissions: {
                publish: { allow: ["a.>", "q", "$JS.API.>"], deny: "a.x" }
                subscribe: { allow: ["a.>", "witness.*", "a.* q"], deny: "a.z" }
                allow_responses: { max: 2, expires: "1ms" }
            } }
        ]
        jetstream: enabled
        msg_trace: { dest: "a.b", sampling: 50 }
        limits: { max_conn: 3, max_subs: 20, max_payload: 5000 }
        imports: [
            { stream: { account: A, subject: "s.>" }, prefix: "from", allow_trace: true }
            { service: { account: A, subject: "a.r" }, to: "a.q" }
        ]
    }
    S { users: [ { user: s, password: s3cr3t } ] }
}
system_account: S
"""


def connect(user: str, options: str = "") -> bytes:
    """CONNECT of a user, with more options."""
    text = '"verbose":false,"headers":true,"no_responders":true,"protocol":1,"user":"%s","pass":"%s"%s'
    return b"CONNECT {%s}\r\n" % (text % (user, PASSWORD, options)).encode()


CONNECT = connect("a")


def pub(subject: bytes, payload: bytes = b"", header: bytes = b"") -> bytes:
    """A publish with a reply subject; HPUB when there is a header block."""
    if header:
        sizes = b"%d %d" % (len(header), len(header) + len(payload))
        return b"HPUB %s a.r %s\r\n%s%s\r\n" % (subject, sizes, header, payload)
    return b"PUB %s a.r %d\r\n%s\r\n" % (subject, len(payload), payload)


def traced(subject: bytes, more: bytes = b"") -> bytes:
    """A publish that asks for its trace."""
    return pub(subject, b"x", b"NATS/1.0\r\nNats-Trace-Dest: a.b\r\n" + more + b"\r\n")


PROXIED = [
    b"PROXY TCP4 192.0.2.1 198.51.100.7 40000 4222\r\n",
    V2_SIGNATURE + b"\x21\x11\x00\x0c" + b"\xc0\x00\x02\x01\xc6\x33\x64\x07\x9c\x40\x10\x7e",
    V2_SIGNATURE + b"\x20\x00\x00\x00",
]
FRAMES = [
    CONNECT,
    b'CONNECT {"verbose":true,"pedantic":true,"echo":false,"protocol":1,"user":"a","pass":"no"}\r\n',
    b"PING\r\n",
    b"PONG\r\n",
    b"+OK\r\n-ERR 'x'\r\nINFO {}\r\n",
    b"SUB a.> q 1\r\n",
    b"SUB a.* 2\r\n",
    b"SUB a.r 3\r\nUNSUB 3 1\r\n",
    b"UNSUB 1\r\n",
    b"PUB a.b 5\r\nhello\r\n",
    b"PUB a..b 0\r\n\r\n",
    b"PUB a.b 70000\r\n",
    pub(b"a.b", b"hi", b"NATS/1.0\r\nA: b\r\n\r\n"),
    pub(b"a.b", b"hi", b"NATS/1.0\r\n\r\n"),
    pub(b"s.a", b"x", b"NATS/1.0\r\nNats-Msg-Id: 1\r\nNats-Expected-Last-Sequence: 1\r\n\r\n"),
    pub(b"s.a", b"x" * 4096),
    pub(b"a.b", b"x" * 4096),
    pub(b"$JS.API.INFO"),
    pub(b"$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["s.*"],"storage":"memory","max_msgs":9}'),
    pub(b"$JS.API.STREAM.UPDATE.S", b'{"name":"S","subjects":["s.>"],"storage":"memory"}'),
    pub(b"$JS.API.CONSUMER.CREATE.S.C", b'{"stream_name":"S","config":{"name":"C","ack_wait":10000000}}'),
    pub(b"$JS.API.CONSUMER.CREATE.S", b'{"stream_name":"S","config":{"deliver_subject":"a.b"}}'),
    pub(b"$JS.API.CONSUMER.MSG.NEXT.S.C"),
    pub(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":9,"expires":100000,"no_wait":true}'),
    pub(b"$JS.ACK.S.C.1.1.1.5.0", b"-NAK"),
    pub(b"$JS.ACK.S.C.1.1.1.5.0", b"+NXT 2"),
    pub(b"$JS.API.STREAM.MSG.GET.S", b'{"seq":1}'),
    pub(b"$JS.API.STREAM.INFO.S", b'{"subjects_filter":">","deleted_details":true}'),
    pub(b"$JS.API.DIRECT.GET.S", b'{"last_by_subj":"s.a"}'),
    pub(b"$JS.API.STREAM.PURGE.S", b'{"filter":"s.a","keep":1}'),
    pub(b"$JS.API.CONSUMER.DELETE.S.C"),
    pub(b"$JS.API.STREAM.DELETE.S"),
    pub(b"$SYS.REQ.USER.INFO"),
    connect("a2", ',"echo":false'),
    connect("b"),
    connect("b2", ',"verbose":true,"pedantic":true'),
    connect("s"),
    b"SUB > 4\r\n",
    b"SUB witness.* 5\r\nSUB s.> q 6\r\nUNSUB 6 2\r\n",
    pub(b"m.a", b"mapped"),
    pub(b"w.a", b"by chance"),
    pub(b"p.x.y", b"in parts"),
    pub(b"gone") + pub(b"jump"),
    b"SUB a.r 7\r\n" + pub(b"a.b"),
    pub(b"witness.0", b"not the server's"),
    pub(b"$SYS.REQ.SERVER.PING") + pub(b"$SYS.REQ.ACCOUNT.B.CONNZ"),
    pub(b"$JS.API.STREAM.LIST", b'{"offset":1}') + pub(b"$JS.API.CONSUMER.LIST.S"),
    pub(b"$JS.API.STREAM.MSG.DELETE.S", b'{"seq":2,"no_erase":true}'),
    pub(b"$JS.API.CONSUMER.PAUSE.S.C", b'{"pause_until":"2100-01-01T00:00:00Z"}'),
    pub(
        b"$JS.API.STREAM.CREATE.F",
        b'{"name":"F","subjects":["f.*"],"retention":"workqueue","max_age":100000000}',
    )
    + pub(b"f.a", b"x", b"NATS/1.0\r\nNats-TTL: 1s\r\nNats-Rollup: sub\r\n\r\n"),
    b"SUB d 8\r\n"
    + pub(b"$JS.API.CONSUMER.CREATE.S.P", b'{"stream_name":"S","config":{"name":"P","deliver_subject":"d"}}'),
    pub(
        b"$JS.API.CONSUMER.CREATE.S.F.s.a",
        b'{"stream_name":"S","config":{"name":"F","filter_subject":"s.a"}}',
    ),
    traced(b"a.b") + traced(b"s.a") + traced(b"m.a") + traced(b"a.q"),
    traced(b"s.a", b"Nats-Trace-Only: 1\r\nNats-Expected-Last-Sequence: 3\r\n")
    + traced(b"$JS.API.INFO", b"Nats-Trace-Only: on\r\nAccept-Encoding: snappy\r\n"),
    pub(b"a.q", b"x", b"NATS/1.0\r\ntraceparent: 00-a-b-01\r\n\r\n"),
    *PROXIED,
    connect("a", f',"proxy_sig":"{"A" * 86}"'),
]
SEEDS = [
    bytes([0, 0]) + bytes(range(0, 4 * len(FRAMES), 4)),
    bytes([WITH_AUTHORIZATION, 3]) + bytes(range(0, 4 * len(FRAMES), 4)),
    bytes([NEVER_READS, 0]) + bytes([0, 4 * 5, *([4 * 16] * 90)]),
    bytes([0, 0]) + bytes(4 * n for n in (0, 6, 18, 20, 14, 15, 22, 24, 26, 27, 29, 31)),
    bytes([RAW, 1]) + b"".join(FRAMES),
    bytes([RAW | WITH_AUTHORIZATION, 0]) + CONNECT + b"SUB > 1\r\nPUB a 1\r\nx\r\n",
    *(bytes([RAW, 0]) + CONNECT + frame for frame in FRAMES),
    *(
        bytes([RAW | WITH_AUTHORIZATION | flags, step]) + header + CONNECT + b"SUB > 1\r\nPING\r\n"
        for header in PROXIED
        for step in (0, 1, 5)
        for flags in (0, ENDS_TICKS)
    ),
    # Pairs of who sends and which frame: four users log in, then each sends every frame.
    *(
        bytes([SEVERAL | flags, 0])
        + bytes(x for who, frame in enumerate((0, 33, 34, 35)) for x in (who, 4 * frame))
        + bytes(x for frame in range(len(FRAMES)) for x in (who, 4 * frame))
        for who in range(CONNECTIONS)
        for flags in (0, ENDS_TICKS, NEVER_READS)
    ),
]


class FuzzServer:
    """A server, and clients that must not notice anything. Everything runs inside the loop."""

    def __init__(self, kind: str, options: ServerOptions | None) -> None:
        self.kind = kind
        self.errors: list[str] = []
        log = logs.Log(self.log, trace=True)
        if options is not None:
            self.server = Server(options=options, log=log)
        elif kind == AUTHORIZED:
            with_proxies = {"proxy_protocol": True, "trusted_proxies": (PROXY,)}
            self.server = Server(log=log, user="a", password=PASSWORD, **LIMITS, **with_proxies)
        else:
            self.server = Server(log=log, jetstream=STREAMS, **LIMITS)
        self.waiting_max_bytes = WAITING_MAX_BYTES if self.server.jetstream is None else GROWTH_MAX_BYTES
        self.inputs = 0

    async def start(self) -> None:
        await self.server.start()
        self.witnesses = [Peer(self.server) for _ in WITNESSES[self.kind]]
        for witness, user in zip(self.witnesses, WITNESSES[self.kind], strict=True):
            witness.receive(connect(user) + b"SUB witness.* 1\r\n")
        await turns()
        for witness in self.witnesses:
            witness.take()
        self.subscriptions = self.count()

    def log(self, label: str, text: str) -> None:
        if label == "FTL":
            self.errors.append(text)

    def count(self) -> int:
        return sum(len(account.index) for account in self.server.accounts.values())

    async def run(self, sent: list[tuple[int, bytes]], flags: int) -> None:
        """What arrives, and on which connection; one that was closed is replaced."""
        self.inputs += 1
        peers: dict[int, Peer] = {}
        for number, data in sent:
            peer = peers.get(number)
            if peer is None or peer.transport.closing:
                if peer is not None:
                    peer.go()
                reads = not (flags & NEVER_READS and number == 0)
                transport = partial(FakeTransport, reads=reads, waiting_max_bytes=self.waiting_max_bytes)
                peer = peers[number] = Peer(
                    self.server, transport=transport, ends_ticks=bool(flags & ENDS_TICKS)
                )
            peer.receive(data)
            if not flags & GOES_AT_ONCE:
                await turns()
        for peer in peers.values():
            pending = peer.connection._ingress.parser.pending
            if pending > MAX_PAYLOAD + READ_AHEAD_BYTES:
                raise AssertionError(f"the parser keeps {pending} bytes of a connection")
            peer.go()
        await turns()
        await self.check()

    async def check(self) -> None:
        server = self.server
        if self.errors or server.failed:
            raise AssertionError(f"the server failed: {self.errors}")
        if len(server.sessions) != len(self.witnesses):
            raise AssertionError(
                f"{len(server.sessions)} sessions are left, {len(self.witnesses)} are witnesses"
            )
        if server.jetstream is None and self.count() != self.subscriptions:
            raise AssertionError(f"{self.count()} subscriptions are left of {self.subscriptions}")
        for witness in self.witnesses:
            # Inputs may publish what the witness listens to, and the server asks now and then.
            if b"PING\r\n" in witness.take():
                witness.receive(b"PONG\r\n")
            witness.receive(b"PUB witness.%d 2\r\nok\r\n" % self.inputs)
            await turns()
            expected = b"MSG witness.%d 1 2\r\nok\r\n" % self.inputs
            if (got := witness.take().replace(b"PING\r\n", b"")) != expected:
                raise AssertionError(f"the witness got {got!r}, expected {expected!r}")

    async def close(self) -> None:
        for witness in self.witnesses:
            witness.go()
        await self.server.stop()


class Fuzzer:
    """Inputs, one after the other, on servers that are replaced now and then."""

    def __init__(self, accounts: ServerOptions) -> None:
        self.accounts = accounts
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self.on_error)
        self.escaped: list[dict[str, Any]] = []
        self.fuzz_servers: dict[str, FuzzServer] = {}
        self.inputs = 0
        self.base_bytes = 0

    def on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.escaped.append(context)

    async def fuzz_server(self, kind: str) -> FuzzServer:
        fuzz_server = self.fuzz_servers.get(kind)
        if fuzz_server is not None and fuzz_server.inputs >= INPUTS_PER_SERVER:
            await fuzz_server.close()
            fuzz_server = None
        if fuzz_server is None:
            options = self.accounts if kind == ACCOUNTS else None
            fuzz_server = self.fuzz_servers[kind] = FuzzServer(kind, options)
            await fuzz_server.start()
        return fuzz_server

    def __call__(self, data: bytes) -> None:
        if len(data) < 3:
            return
        flags, step, rest = data[0], data[1], data[2:]
        size = step * step or READ_BYTES  # reads of 1 to 65,536 bytes
        if flags & RAW:
            sent = [(0, rest)]
        elif flags & SEVERAL:
            sent = damaged_sessions(rest)
        else:
            sent = [(0, damaged_session(rest))]
        reads = [
            (who, session[at : at + size]) for who, session in sent for at in range(0, len(session), size)
        ]
        kind = ACCOUNTS if flags & SEVERAL else AUTHORIZED if flags & WITH_AUTHORIZATION else PLAIN
        self.loop.run_until_complete(self.run(kind, reads[:READS_MAX], flags))
        if self.escaped:
            raise AssertionError(f"escaped to the loop: {self.escaped}") from self.escaped[0].get("exception")
        self.watch_memory()

    async def run(self, kind: str, reads: list[tuple[int, bytes]], flags: int) -> None:
        fuzz_server = await self.fuzz_server(kind)
        await fuzz_server.run(reads, flags)

    def watch_memory(self) -> None:
        """The most that was ever used may grow while everything is touched for the first time, not after."""
        self.inputs += 1
        used_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self.inputs <= 2 * INPUTS_PER_SERVER:
            self.base_bytes = used_bytes
        elif used_bytes - self.base_bytes > GROWTH_MAX_BYTES:
            raise AssertionError(f"memory grew by {used_bytes - self.base_bytes} bytes")


def damaged_session(recipe: bytes) -> bytes:
    """Frames by number (upper six bits), as they are or with the next bytes of the recipe put into them."""
    session = bytearray()
    at = 0
    while at < len(recipe) and len(session) < READ_AHEAD_BYTES:
        frame, at = damaged_frame(recipe, at)
        session += frame
    return bytes(session)


def damaged_sessions(recipe: bytes) -> list[tuple[int, bytes]]:
    """Frames of several connections: each has the number of who sends it before it."""
    sent = []
    at = size = 0
    while at + 1 < len(recipe) and size < READ_AHEAD_BYTES:
        who = recipe[at] % CONNECTIONS
        frame, at = damaged_frame(recipe, at + 1)
        sent.append((who, frame))
        size += len(frame)
    return sent


def damaged_frame(recipe: bytes, at: int) -> tuple[bytes, int]:
    """The frame at a place of the recipe, and the place behind it."""
    number, damage = recipe[at] >> 2, recipe[at] & 3
    frame = bytearray(FRAMES[number % len(FRAMES)])
    at += 1
    if damage and at + 1 < len(recipe):
        where = recipe[at] % len(frame)
        if damage == 1:
            frame[where] = recipe[at + 1]
        elif damage == 2:
            del frame[where : where + 1 + recipe[at + 1] % 16]
        else:
            frame[where:where] = frame[where : where + 1 + recipe[at + 1] % 64]
        at += 2
    return bytes(frame), at


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        conf = Path(folder, "nats.conf")
        conf.write_text(CONF)
        accounts = replace(load(str(conf)), port=-1, host="127.0.0.1", **LIMITS)
        fuzz(SEEDS, Fuzzer(accounts))


if __name__ == "__main__":
    main()
