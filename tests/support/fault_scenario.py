"""A server with a victim and bystanders, for tests that inject faults (fault_sites.py).

The victim is a user of account A with streams, consumers, sources and requests of every kind. Bystanders are
another stream of account A, account B, and two clients that talk to each other. After (and while) something
raises in the server's work for the victim, the bystanders must be served.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import wait
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.protocol import snapshot_archive
from penstock.server.config.directives import load
from penstock.server.server import Server
from penstock.server.tick import Tick
from tests.support.file_probes import archived, entry, packed

SERVED_S = 5.0  # a bystander waits so long
SYNCS_MAX = 10  # one after the other, for one step
ANSWER_ROUNDS = 20  # the victim waits so long for an answer that may follow a sync: PINGs
CONF = """
port: -1
ping_interval: "1h"
jetstream {{ store_dir: "{store}"{settings} }}
system_account: SYS
accounts {{
  A: {{ jetstream: enabled, users: [ {{user: victim, password: v}}, {{user: a, password: a}} ],
       imports: [ {{service: {{account: B, subject: "$JS.API.CONSUMER.CREATE.>"}},
                   to: "JS.B.API.CONSUMER.CREATE.>"}},
                  {{stream: {{account: B, subject: "dlv.>"}}}} ],
       mappings: {{ "mapped.*": "v.mapped.{{{{wildcard(1)}}}}" }} }}
  B: {{ jetstream: enabled,
       exports: [ {{service: "$JS.API.CONSUMER.CREATE.>"}}, {{stream: "dlv.>"}} ],
       users: [ {{user: b, password: b}}, {{user: c, password: c,
       permissions: {{ subscribe: ["talk.>", "_INBOX.>"], publish: ["talk.>", "$JS.>"] }} }} ] }}
  SYS: {{ users: [ {{user: sys, password: s}} ] }}
}}
"""


class Client:
    """A raw connection."""

    def __init__(self) -> None:
        self.received = b""
        self._ids = itertools.count(1)

    async def connect(self, port: int, user: str, password: str) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        about = {"user": user, "pass": password, "headers": True, "no_responders": True, "verbose": False}
        self.writer.write(
            b"CONNECT %s\r\nSUB _INBOX.%s.> 1\r\n" % (json.dumps(about).encode(), user.encode())
        )
        self.user = user
        await self.pass_on()

    async def read(self) -> bool:
        data = await self.reader.read(1 << 16)
        self.received += data
        return bool(data)

    async def pass_on(self) -> bool:
        """Waits until the server has worked on what was sent; False when it closed the connection."""
        self.received = b""
        self.writer.write(b"PING\r\n")
        try:
            while b"PONG\r\n" not in self.received:
                if not await self.read():
                    return False
        except ConnectionError:
            return False
        return True

    async def request(self, subject: str, body: Any = b"") -> bytes:
        """What comes to the inbox, headers and all."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = b"_INBOX.%s.%d" % (self.user.encode(), next(self._ids))
        self.writer.write(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply, len(payload), payload))
        return await self.until(reply)

    async def until(self, text: bytes) -> bytes:
        deadline = time.monotonic() + SERVED_S
        while not (found := re.search(re.escape(text) + rb" .*?\r\n.*?\r\n", self.received, re.DOTALL)):
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    if not await self.read():
                        raise ConnectionResetError(f"the server closed the connection of {self.user}")
            except TimeoutError:
                raise TimeoutError(
                    f"{self.user} waited for {text!r} and got {self.received[-400:]!r}"
                ) from None
        self.received = self.received[: found.start()] + self.received[found.end() :]
        return found[0]

    def close(self) -> None:
        self.writer.close()


def pub(subject: str, body: Any = b"", reply: str = "_INBOX.victim.x", header: str = "") -> bytes:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    if header:
        block = f"NATS/1.0\r\n{header}\r\n\r\n".encode()
        sizes = b"%d %d" % (len(block), len(block) + len(payload))
        return b"HPUB %s %s %s\r\n%s%s\r\n" % (subject.encode(), reply.encode(), sizes, block, payload)
    return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(payload), payload)


def api(subject: str, body: Any = b"") -> bytes:
    return pub("$JS.API." + subject, body)


def make(name: str, *subjects: str, **settings: Any) -> bytes:
    return api(f"STREAM.CREATE.{name}", {"name": name, "subjects": list(subjects), **settings})


def consumer(name: str, *, stream: str = "V", verb: str = "CREATE", **config: Any) -> bytes:
    config = {"durable_name": name, "name": name, "ack_policy": "explicit", **config}
    return api(f"CONSUMER.{verb}.{stream}.{name}", {"stream_name": stream, "config": config})


def ack(name: str, seq: int, body: bytes, stream: str = "V") -> bytes:
    return pub(f"$JS.ACK.{stream}.{name}.1.{seq}.{seq}.1.0", body)


SECOND = 1_000_000_000
# Bytes to send as the victim; seconds that pass; what makes the bytes from what the victim received.
Step = bytes | int | Callable[["Scenario"], Awaitable[bytes]]

_ARCHIVE = packed(
    archived(
        b'{"messages":1,"bytes":40,"first_seq":1,"last_seq":1,"consumer_count":1}',
        entry(
            "consumers/c",
            b'{"config":{"durable_name":"c","name":"c","ack_policy":"explicit"},"state":{"delivered":'
            b'{"consumer_seq":1,"stream_seq":1},"ack_floor":{"consumer_seq":0,"stream_seq":0},'
            b'"pending":{"1":{"Sequence":1,"Timestamp":1}},"redelivered":{"1":1}}}',
        ),
        entry("r.a", b"x", 1, 1),
        snapshot_archive.END,
    )
)


async def _archive(scenario: Scenario) -> bytes:
    """Sends the archive in two parts, and its end, to where the answer to STREAM.RESTORE says."""
    for _ in range(ANSWER_ROUNDS):
        found = re.search(rb'"deliver_subject":"([^"]+)"', scenario.victim.received)
        if found is not None:
            subject, half = found[1].decode(), len(_ARCHIVE) // 2
            return b"".join(pub(subject, part) for part in (_ARCHIVE[:half], _ARCHIVE[half:], b""))
        if not await scenario.victim.pass_on():
            break
    return b""  # the fault met the request


_NEXT = {"batch": 5, "no_wait": True}
_V: dict[str, Any] = {
    "allow_direct": True, "allow_rollup_hdrs": True, "allow_msg_ttl": True, "allow_atomic": True,
    "allow_batched": True, "allow_msg_schedules": True, "duplicate_window": 2 * SECOND,
    "republish": {"src": "v.>", "dest": "again.>"}, "max_msgs_per_subject": 3, "max_age": 20 * SECOND,
}  # fmt: skip

STEPS: list[Step] = [
    b"SUB again.> 7\r\nSUB push.here 8\r\nSUB lim.* 9\r\nUNSUB 9 1\r\n",
    make("V", "v.>", **_V),
    make("W", "w.>", retention="workqueue"),
    make("I", "i.>", retention="interest", subject_transform={"src": "i.>", "dest": "i.x.>"}),
    make("M", mirror={"name": "V"}),
    make("S", sources=[{"name": "V", "filter_subject": "v.a"}, {"name": "W"}]),
    make("E", sources=[{"name": "B", "external": {"api": "JS.B.API", "deliver": "dlv"}}]),
    consumer("pull", ack_wait=SECOND, max_deliver=2, filter_subjects=["v.a", "v.b.*"]),
    consumer("push", deliver_subject="push.here", idle_heartbeat=SECOND, flow_control=True, ack_wait=SECOND),
    consumer("all", ack_policy="all", deliver_policy="last_per_subject", filter_subject="v.>"),
    consumer("wq", stream="W") + consumer("int", stream="I"),
    consumer("int2", stream="I", filter_subject="i.x.1"),
    pub("v.a", b"one") + pub("v.b.c", b"two") + pub("v.a", b"three"),
    pub("w.1", b"x") + pub("w.2", b"y") + pub("i.1", b"z") + pub("lim.x", b"1") + pub("mapped.q", b"m"),
    pub("v.d", b"1", header="Nats-Msg-Id: 1") + pub("v.d", b"1", header="Nats-Msg-Id: 1"),
    pub("v.e", b"1", header="Nats-TTL: 3s") + pub("v.f", b"1", header="Nats-Rollup: sub"),
    pub("v.e", b"1", header="Nats-Expected-Last-Sequence: 999"),
    pub("v.g", b"1", header="Nats-Batch-Id: q\r\nNats-Batch-Sequence: 1")
    + pub("v.g", b"2", header="Nats-Batch-Id: q\r\nNats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1"),
    pub("v.sched", b"s", header="Nats-Schedule: @every 2s\r\nNats-Schedule-Target: v.made"),
    api("CONSUMER.MSG.NEXT.V.pull", _NEXT) + api("CONSUMER.MSG.NEXT.W.wq", _NEXT),
    api("CONSUMER.MSG.NEXT.I.int", _NEXT),
    api("CONSUMER.MSG.NEXT.V.all", {"batch": 2, "expires": 3 * SECOND}),
    ack("pull", 1, b"+ACK") + ack("pull", 2, b"-NAK") + ack("all", 1, b"+ACK") + ack("push", 1, b"+WPI"),
    ack("wq", 1, b"+ACK", "W") + ack("wq", 2, b"+TERM", "W") + ack("int", 1, b"+NXT", "I"),
    api("STREAM.INFO.V", {"subjects_filter": ">", "deleted_details": True}) + api("STREAM.INFO.S"),
    api("STREAM.NAMES") + api("STREAM.LIST") + api("INFO") + api("CONSUMER.LIST.V") + api("CONSUMER.NAMES.V"),
    api("CONSUMER.INFO.V.pull") + api("CONSUMER.INFO.V.push") + api("STREAM.MSG.GET.V", {"seq": 1}),
    api("DIRECT.GET.V", {"last_by_subj": "v.a"}) + api("DIRECT.GET.V", {"batch": 3, "seq": 1}),
    api("DIRECT.GET.V.v.a"),
    3,
    api("CONSUMER.MSG.NEXT.V.pull", _NEXT),
    api("STREAM.MSG.DELETE.V", {"seq": 1}) + api("STREAM.PURGE.V", {"filter": "v.b.c"}),
    consumer("pull", ack_wait=2 * SECOND, filter_subject="v.>"),
    api("CONSUMER.PAUSE.V.pull", {"pause_until": "2100-01-01T00:00:00Z"}) + api("CONSUMER.RESET.V.pull"),
    api("STREAM.UPDATE.V", {"name": "V", "subjects": ["v.>", "v2"], **_V, "max_msgs": 50}),
    api("STREAM.SNAPSHOT.V", {"deliver_subject": "_INBOX.victim.snap"}),
    api("STREAM.RESTORE.R", {"config": {"name": "R", "subjects": ["r.>"]}, "state": {}}),
    _archive,
    b"",
    api("CONSUMER.INFO.R.c") + api("STREAM.DELETE.R"),
    pub("$SYS.REQ.USER.INFO") + pub("$SYS.REQ.ACCOUNT.PING.CONNZ") + pub("$SYS.REQ.ACCOUNT.PING.STATZ"),
    pub("nobody.listens", b"x") + b"UNSUB 7\r\nSUB q.* q 10\r\n" + pub("q.x", b"1") + b"UNSUB 10\r\n",
    30,
    api("CONSUMER.DELETE.V.push") + api("STREAM.DELETE.M") + api("STREAM.DELETE.E") + api("STREAM.DELETE.S"),
    api("STREAM.DELETE.V") + api("STREAM.DELETE.W") + api("STREAM.DELETE.I"),
]  # fmt: skip


class Scenario:
    """A server in the running loop, whose clock the test moves."""

    def __init__(self, settings: str) -> None:
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-faults-", dir=base))
        conf = self.directory / "nats.conf"
        conf.write_text(CONF.format(store=self.directory / "js", settings=settings))
        self._ahead_ns = 0
        self.server = Server(options=load(str(conf)), clock=lambda: time.time_ns() + self._ahead_ns)
        self._counts = itertools.count(1)

    async def start(self) -> None:
        await self.server.start()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)  # it logs what ends a connection
        self.a, self.b, self.c = Client(), Client(), Client()
        port = self.server.port
        for client, user in ((self.a, "a"), (self.b, "b"), (self.c, "c")):
            await client.connect(port, user, user)
        await self._victim()
        self.c.writer.write(b"SUB talk.> 2\r\n")
        await self.c.pass_on()
        for client in (self.a, self.b):
            client.writer.write(b"SUB got.it 3\r\n")
            body: dict[str, Any] = {"name": "B", "subjects": ["kept.>"]}
            assert b"error" not in await client.request("$JS.API.STREAM.CREATE.B", body)
            for name, more in (("pull", {}), ("push", {"deliver_subject": "got.it"})):
                config = {"durable_name": name, "name": name, "ack_policy": "none", **more}
                body = {"stream_name": "B", "config": config}
                assert b"error" not in await client.request(f"$JS.API.CONSUMER.CREATE.B.{name}", body)

    async def _victim(self) -> None:
        self.victim = Client()
        await self.victim.connect(self.server.port, "victim", "v")

    async def play(self, *, until: Any = None, between: Any = None) -> None:
        """The victim's steps. until() ends it early; between() is awaited after each step."""
        for step in STEPS:
            if isinstance(step, int):
                await self.let_pass(step)
            else:
                self.victim.writer.write(step if isinstance(step, bytes) else await step(self))
            if not await self.victim.pass_on():
                self.victim.close()
                await self._reconnect()
            await self._turns()
            if between is not None:
                await between()
            if until is not None and until():
                return

    async def _reconnect(self) -> None:
        """A fault may meet the new connection too."""
        for _ in range(3):
            self.victim = Client()
            try:
                await self.victim.connect(self.server.port, "victim", "v")
            except ConnectionError:
                continue
            return

    async def let_pass(self, seconds: int) -> None:
        """Time passes, with what is due on the way."""
        assert self.server._tick is not None
        for _ in range(seconds if seconds < 5 else 3):
            self._ahead_ns += SECOND * (1 if seconds < 5 else seconds // 3)
            self._fire_timer(self.server._tick)
            await self._turns()

    def _fire_timer(self, tick: Tick) -> None:
        """The loop calls what the timer is set to, now. (Its time is not the one that the test moves.)"""
        timer = tick._timer
        if timer is not None and not timer.cancelled():
            call: tuple[Any, ...] = timer._callback, *timer._args  # type: ignore[attr-defined]
            timer.cancel()
            asyncio.get_running_loop().call_soon(*call)

    async def _turns(self) -> None:
        """What was sent has its consequences.

        Syncs are waited for: otherwise the calls that follow them would depend on how busy the machine is.
        """
        assert self.server.jetstream is not None
        background = self.server.jetstream._background
        assert background is not None
        for _ in range(SYNCS_MAX):
            for _ in range(3):
                await asyncio.sleep(0)
            if not background._waiting:
                break
            wait(background._waiting, SERVED_S)

    async def clean(self) -> None:
        """Whatever is left of the victim's streams goes, also what is offline."""
        self.victim.close()
        await self._reconnect()
        for name in ("M", "E", "S", "V", "W", "I", "R"):
            self.victim.writer.write(api(f"STREAM.DELETE.{name}"))
        await self.victim.pass_on()
        await self._turns()
        left = json.loads((await self.a.request("$JS.API.STREAM.LIST")).split(b"\r\n")[1])
        names = [one["config"]["name"] for one in left["streams"]]
        assert (names, left.get("offline")) == (["B"], None), f"left: {names}, offline: {left.get('offline')}"
        made = await self.victim.request(
            "$JS.API.STREAM.CREATE.V", {"name": "V", "subjects": ["v.>", "w.>", "i.>"]}
        )
        assert b'"did_create":true' in made, made
        assert b"success" in await self.victim.request("$JS.API.STREAM.DELETE.V")

    async def serves_bystanders(self) -> None:
        """Raises when one of them is not served."""
        number = next(self._counts)
        for client in (self.a, self.b):
            ack = await client.request("kept.x", b"n%d" % number)
            assert b'"seq":' in ack and b"error" not in ack, ack
            await client.until(b"MSG kept.x 3")  # pushed
            pull = pub("$JS.API.CONSUMER.MSG.NEXT.B.pull", b"1", f"_INBOX.{client.user}.pull")
            client.writer.write(pull)
            await client.until(b"MSG kept.x 1")  # pulled
            info = await client.request("$JS.API.STREAM.INFO.B")
            assert b'"last_seq"' in info and b"error" not in info, info
        self.b.writer.write(b"PUB talk.x 2\r\nhi\r\n")
        await self.c.until(b"MSG talk.x")
        assert not self.server.failed

    async def keeps_time(self) -> None:
        """Raises when what time causes for a bystander does not come."""
        reply = b"_INBOX.a.time.%d" % next(self._counts)
        expiring = {"batch": 1, "expires": SECOND // 2}
        self.a.writer.write(pub("$JS.API.CONSUMER.MSG.NEXT.B.pull", expiring, reply.decode()))
        await self.a.pass_on()
        waiting = asyncio.create_task(self.a.until(reply))
        while not waiting.done():
            await self.let_pass(1)
            await asyncio.wait([waiting], timeout=0.01)  # a timer that failed is set again a little later
        assert b"408" in await waiting, "time passed, and a pull request did not expire"

    async def stop(self) -> None:
        for client in (self.a, self.b, self.c, self.victim):
            client.close()
        await self.server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


@asynccontextmanager
async def running(settings: str = "") -> AsyncIterator[Scenario]:
    """The scenario's server, started."""
    scenario = Scenario(settings)
    try:
        await scenario.start()
        yield scenario
    finally:
        await scenario.stop()
