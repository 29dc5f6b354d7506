"""Runs one seed of the simulation of replicated streams, and checks it. See the package's docstring."""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NamedTuple

import msgspec

from penstock.protocol import headers
from penstock.protocol.acks import parse_reply
from penstock.protocol.api import ApiStreamConfig, StreamSource
from penstock.protocol.durations import format_time
from penstock.raft.raft_host import Frame
from penstock.raft.raft_options import MILLISECOND_NS, RaftOptions
from penstock.raft.raft_replica import Role
from penstock.replication.replication_node import Mail
from penstock.testing.raft_sim.raft_history import BrokenPromise
from penstock.testing.stream_sim.stream_history import ConsumerSeen, StreamHistory, TaggedPublish
from penstock.testing.stream_sim.stream_server import StreamServer

SERVERS = 3
STREAM = "S"
CONSUMERS = {"all": "", "some": "s.a.>"}
UNACKED = "unacked"
"""A consumer without acks, in some seeds."""
MIRROR, SOURCED = "M", "T"
"""Copies of the stream, in some seeds: its mirror, and a stream with a part of it as a source."""
TIMED = "A"
"""A stream in some seeds: its messages have an age and times to live, and schedules make some."""
MAX_AGE_NS = 3_000 * MILLISECOND_NS
MARKER_NS = 2_000 * MILLISECOND_NS
LATE_NS = 500 * MILLISECOND_NS  # that a timer may be late when nothing is wrong
ACK_WAIT_NS = 3_000 * MILLISECOND_NS
TICK_NS = 50 * MILLISECOND_NS
FAULTS_NS = 12_000 * MILLISECOND_NS
"""Virtual time in which faults happen."""
HEAL_NS = 8_000 * MILLISECOND_NS
"""Virtual time after the last fault in which a leader serves and all replicas are equal."""
DRAINS_MAX = 100  # clocks are up to a minute ahead, and redeliveries follow them
MESSAGES_MAX = 100_000


class StreamOutcome(NamedTuple):
    """The result of a seed. rule: "" = it passed; digest: equal runs have equal ones."""

    seed: int
    rule: str
    what: str
    digest: str
    counts: Counter[str]


class StreamRun:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0
        self.counts: Counter[str] = Counter()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_number = 0
        self._ids = itertools.count(1)
        self.is_faulty = True
        self.loss = self.random.choice((0.0, 0.0, 0.01, 0.1))
        self.cut: set[tuple[int, int]] = set()
        self.compacts = self.random.random() < 0.7
        config = ApiStreamConfig(
            name=STREAM, subjects=["s.>"], num_replicas=SERVERS, max_consumers=-1,
            allow_atomic=True, allow_batched=True, allow_direct=True,
            max_msgs=-1, max_bytes=-1, max_msg_size=-1, max_msgs_per_subject=-1,
            duplicate_window=120_000 * MILLISECOND_NS,
        )  # fmt: skip
        self.streams = {STREAM: config}
        dimensions = Random(f"{seed} dimensions")  # of its own, so that older seeds stay what they were
        self.consumers = {**CONSUMERS, UNACKED: ""} if dimensions.random() < 0.4 else CONSUMERS
        if dimensions.random() < 0.35:
            self.streams |= copies_of(config)
        self.is_calm = dimensions.random() < 0.3
        self._dimensions = dimensions
        self._timed = Random(f"{seed} ageing")
        self._rollups = Random(f"{seed} roll-ups")
        if self._timed.random() < 0.25:
            self.streams |= {TIMED: timed(config, self._rollups.choice((-1, 8)))}
        self.histories = {name: StreamHistory(name) for name in self.streams}
        self.history = self.histories[STREAM]
        self.options = self._some_options()
        members = tuple(f"s{i}.0" for i in range(SERVERS))
        rollup_messages = self._rollups.choice((1, 1, 3, 16_384))
        self.servers = [
            StreamServer(
                i, self.streams, members, self.options, self.random, self.histories,
                self._send, self._send_mail, self.call_later, lambda: self.now, self._arrived,
                rollup_messages,
            )
            for i in range(SERVERS)
        ]  # fmt: skip
        self._known: dict[str, int] = {}  # subject -> the last sequence that a client knows of
        self._batches: dict[str, list[str]] = {}  # open ones: tags that are sent
        self._retries: list[TaggedPublish] = []
        self._reads: dict[str, int] = {}
        self._acks: list[tuple[StreamServer, int, bytes, str, int]] = []
        self._confirmations: dict[str, tuple[str, int, int]] = {}
        self._fast: list[tuple[str, str, int]] = []  # open fast batches: id, gap mode, last sequence
        self._is_purged = False
        self._is_made: set[str] = set()
        self._broken: BrokenPromise | None = None

    def _some_options(self) -> RaftOptions:
        small = self.random.random() < 0.3
        return replace(
            RaftOptions(),
            append_bytes_max=400 if small else 1 << 20,
            inflight_bytes_max=1200 if small else 16 << 20,
            uncommitted_bytes_max=6000 if small else 64 << 20,
            committed_bytes_max=600 if small else 16 << 20,
            write_first_bytes_max=self.random.choice((0, 1000, 32 << 10)),
        )

    def go(self) -> StreamOutcome:
        """Runs the seed."""
        rule = what = ""
        try:
            self._run()
        except BrokenPromise as broken:
            rule, what = broken.rule, str(broken)
        except AssertionError as error:
            rule, what = "assertion", f"assertion: {error}"
        history = self.history
        self.counts["entries"] = history.entries
        self.counts["acked"], self.counts["refused"] = history.acked, history.refused
        self.counts["deliveries"] = history.deliveries
        self.counts["confirmations"], self.counts["reads"] = history.confirmations, history.reads
        for server in self.servers:
            self.counts += server.counts
        digest = f"{self.now} {sorted(self.counts.items())}"
        return StreamOutcome(self.seed, rule, what, digest, self.counts)

    def _run(self) -> None:
        names = [one.name for one in self.servers]
        for server in self.servers:
            server.start(names, self.now)
            self._tick_later(server, server.boot)
        while self.now < FAULTS_NS:
            self._act()
            if TIMED in self.streams and self._timed.random() < 0.15:
                self._publish_timed()
            self._run_for(self.random.choice((1, 1, 5, 20, 100)) * MILLISECOND_NS)
        self._heal()
        self._drain()
        self._check_end()

    # --- time and network

    def call_later(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Calls after some virtual time."""
        self._event_number += 1
        heapq.heappush(self._events, (self.now + delay_ns, self._event_number, action))

    def _run_for(self, duration_ns: int) -> None:
        end = self.now + duration_ns
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
            if self._broken is not None:
                raise self._broken
        self.now = end

    def _tick_later(self, server: StreamServer, boot: int) -> None:
        def tick() -> None:
            if server.is_up and server.boot == boot:
                if not server.is_paused:
                    server.tick(self.now)
                self._tick_later(server, boot)

        self.call_later(TICK_NS, tick)

    def _send(self, frame: Frame) -> None:
        sender, to = int(frame.sender[1]), int(frame.to[1])
        self.counts["messages"] += len(frame.messages)
        if self.counts["messages"] > MESSAGES_MAX:
            raise BrokenPromise("storm", f"more than {MESSAGES_MAX} messages: {self._states()}")
        self._transmit(sender, to, lambda: self._deliver(to, frame))

    def _send_mail(self, name: str, mail: Mail) -> None:
        sender, to = int(name[1]), int(mail.to[1])
        # A connection loses mail, and delivers none twice.
        self._transmit(sender, to, lambda: self._deliver_mail(name, to, mail), may_repeat=False)

    def _transmit(
        self, sender: int, to: int, deliver: Callable[[], None], *, may_repeat: bool = True
    ) -> None:
        if (sender, to) in self.cut or (self.is_faulty and self.random.random() < self.loss):
            return
        copies = 2 if may_repeat and self.is_faulty and self.random.random() < 0.02 else 1
        for _ in range(copies):
            delay = self.random.randrange(100_000, 3_000_000)
            if self.is_faulty and self.random.random() < 0.02:
                delay = self.random.randrange(2000 * MILLISECOND_NS)
            self.call_later(delay, deliver)

    def _deliver_mail(self, sender: str, to: int, mail: Mail) -> None:
        server = self.servers[to]
        if server.is_paused:
            self.call_later(50 * MILLISECOND_NS, lambda: self._deliver_mail(sender, to, mail))
        elif server.is_up:
            server.receive_mail(sender, mail, self.now)

    def _deliver(self, to: int, frame: Frame) -> None:
        server = self.servers[to]
        if server.is_paused:
            self.call_later(50 * MILLISECOND_NS, lambda: self._deliver(to, frame))
        elif server.is_up and server.name == frame.to:
            server.receive(frame, self.now)

    # --- faults

    def _act(self) -> None:
        actions: tuple[tuple[float, Callable[[], object]], ...] = (
            (12, self._publish),
            (4, self._publish_expecting),
            (3, self._publish_with_id),
            (4, self._publish_in_batch),
            (5, self._pull),
            (12, self._ack),
            (3, self._read),
            (1, self._delete),
            (0.5, self._purge),
            (5, self._publish_fast),
            (3, self._make_consumer),
            (0.7, self._kill),
            (0.2, self._lose_all_power),
            (0.6, self._separate),
            (0.4, self._slow_down),
            (0.8, self._transfer),
            (1.5, self._compact),
            (0.3, self._set_clock),
            (0.6, self._pause),
        )
        [action] = self.random.choices([one for _, one in actions], [weight for weight, _ in actions])
        action()

    def _up(self) -> list[StreamServer]:
        return [one for one in self.servers if one.is_up and not one.is_paused]

    def _leader(self) -> StreamServer | None:
        """A server that serves, one that was deposed and has not heard of it among them."""
        leaders = [one for one in self._up() if one.leads(STREAM)]
        return self.random.choice(leaders) if leaders else None

    def _kill(self) -> None:
        if self.is_calm:  # no server ends: leaders change otherwise
            self._transfer()
            return
        if not self._up():
            return
        self._stop(self.random.choice(self._up()))

    def _stop(self, server: StreamServer) -> None:
        if not server.is_up:
            return
        loses_power = self.random.random() < 0.5
        self.counts["power losses" if loses_power else "crashes"] += 1
        server.stop(loses_power=loses_power)
        self.call_later(self.random.choice((1, 300, 3000)) * MILLISECOND_NS, lambda: self._start(server))

    def _start(self, server: StreamServer) -> None:
        if not server.is_up:
            server.start([one.name for one in self.servers], self.now)
            self._tick_later(server, server.boot)
            server.pump(self.now)

    def _lose_all_power(self) -> None:
        if self.is_calm:
            self._transfer()
            return
        self.counts["power losses"] += 1
        for server in self._up():
            server.stop(loses_power=True)
            delay = self.random.choice((1, 1000)) * MILLISECOND_NS
            self.call_later(delay, lambda server=server: self._start(server))  # type: ignore[misc]

    def _separate(self) -> None:
        """Cuts one server off, or one direction between two."""
        self.counts["partitions"] += 1
        one = self.random.randrange(SERVERS)
        others = [i for i in range(SERVERS) if i != one]
        if self.random.random() < 0.5:
            pairs = {(one, i) for i in others} | {(i, one) for i in others}
        else:
            pairs = {self.random.choice(((one, others[0]), (others[0], one)))}
        self.cut |= pairs
        delay = self.random.choice((500, 2000, 5000)) * MILLISECOND_NS
        self.call_later(delay, lambda: self.cut.difference_update(pairs))

    def _slow_down(self) -> None:
        server = self.random.choice(self.servers)
        server.set_sync_time(self.random.choice((2, 2, 50, 700)) * MILLISECOND_NS)

    def _pause(self) -> None:
        """A server does nothing for a while. When it goes on, a client asks before anything else happens."""
        self._run_for(200 * MILLISECOND_NS)  # what is in flight is committed: a read waits for nothing
        server = self._leader()
        if server is None:
            return
        self.counts["pauses"] += 1
        boot = server.boot
        server.pause()

        def resume() -> None:
            server.resume()
            if server.is_up and server.boot == boot and server.leads(STREAM):
                self._read_at(server)

        self.call_later(self.random.choice((500, 3000, 5000)) * MILLISECOND_NS, resume)

    def _set_clock(self) -> None:
        server = self.random.choice(self.servers)
        server.set_clock(self.random.choice((0, 0, -5_000, 2_000, 60_000)) * MILLISECOND_NS)

    def _transfer(self) -> None:
        server = self._leader()
        if server is not None and UNACKED in self._is_made and self._dimensions.random() < 0.5:
            self._depose(server)
        elif server is not None:
            others = [one.name for one in self.servers if one is not server]
            if len(self.streams) > 1:
                name = self.random.choice(list(self.streams))
                server = next((one for one in self._up() if one.leads(name)), server)
            else:
                name = STREAM
            self.counts["transfers"] += server.transfer(name, self.random.choice(others), self.now)

    def _depose(self, server: StreamServer) -> None:
        """A leader whose disk is slow delivers, and hands over what only its successor has written: it learns
        of the commit when it leads no more."""
        self.counts["depositions"] += 1
        successor, other = self._dimensions.sample([one for one in self.servers if one is not server], 2)
        pairs = {(server.number, other.number), (other.number, server.number)}

        def heal() -> None:
            self.cut.difference_update(pairs)
            server.set_sync_time(2 * MILLISECOND_NS)

        self.call_later(1_000 * MILLISECOND_NS, heal)
        server.set_sync_time(5_000 * MILLISECOND_NS)
        last_seq = server.replicas[STREAM].stream.log.last_seq
        self._pull()
        self._publish()
        for _ in range(100):
            self._run_for(MILLISECOND_NS // 5)
            if not server.leads(STREAM):
                return
            if server.replicas[STREAM].stream.log.last_seq > last_seq:
                break  # committed by the others; what it delivers of it is proposed now
        self.cut |= pairs
        self.counts["transfers"] += server.transfer(STREAM, successor.name, self.now)

    def _compact(self) -> None:
        if self._up() and self.compacts:
            self.counts["compactions"] += 1
            server = self.random.choice(self._up())
            for name in self.streams:
                server.compact(name, self.now)
            if not self.is_calm and self.random.random() < 0.2:  # while it writes a state, or the log
                self.call_later(self.random.randrange(8 * MILLISECOND_NS), lambda: self._stop(server))

    # --- clients

    def _sent(self, one: TaggedPublish, more: tuple[tuple[str, str], ...] = ()) -> None:
        """Sends a publish to a server that serves."""
        server = self._leader()
        if server is None:
            return
        self.history.publishes[one.tag] = one
        if self._is_purged and one.subject == "s.b":  # the purge may be applied after it
            self.history.removing(one.tag)
        pairs = list(more)
        if one.expected is not None:
            pairs.append((headers.EXPECTED_LAST_SUBJECT_SEQUENCE, str(one.expected)))
        if one.msg_id:
            pairs.append((headers.MSG_ID, one.msg_id))
        header = headers.build(pairs) if pairs else b""
        server.publish(one.subject, f"_IN.p.{one.tag}", header, one.tag.encode())
        if self.random.random() < 0.8:  # else the next input ends the tick
            server.pump(self.now)

    def _new_tag(self) -> str:
        return f"t{next(self._ids)}"

    def _publish(self) -> None:
        for _ in range(self.random.choice((1, 1, 4))):
            self._sent(TaggedPublish(self._new_tag(), self.random.choice(("s.a.1", "s.a.2", "s.b"))))

    def _publish_expecting(self) -> None:
        subject = self.random.choice(("s.k.1", "s.k.2"))
        expected = self._known.get(subject, 0)
        for _ in range(self.random.choice((1, 2))):  # two that expect the same: one wins
            self._sent(TaggedPublish(self._new_tag(), subject, expected=expected))

    def _publish_with_id(self) -> None:
        if self._retries and self.random.random() < 0.6:
            one = self.random.choice(self._retries)
        else:
            tag = self._new_tag()
            one = TaggedPublish(tag, "s.a.id", msg_id=f"id-{tag}")
            self._retries = [*self._retries[-4:], one]
        self._sent(one)

    def _publish_in_batch(self) -> None:
        """Sends the next message of an open batch, or begins one. Its commit may reach another leader."""
        if self._batches and self.random.random() < 0.8:
            batch = self.random.choice(list(self._batches))
        else:
            batch = f"b{next(self._ids)}"
            self._batches[batch] = []
        server = self._leader()
        if server is None:
            return
        tags = self._batches[batch]
        tag = self._new_tag()
        tags.append(tag)
        more = [(headers.BATCH_ID, batch), (headers.BATCH_SEQUENCE, str(len(tags)))]
        if len(tags) == 3:
            more.append((headers.BATCH_COMMIT, "1"))
            del self._batches[batch]
        self._sent(TaggedPublish(tag, "s.batch", batch=batch), tuple(more))

    def _publish_timed(self) -> None:
        """Sends a message that expires, a schedule, or one that replaces others."""
        leaders = [one for one in self._up() if one.leads(TIMED)]
        if not leaders:
            return
        server, draw = self._timed.choice(leaders), self._timed
        subject, pairs = f"a.{draw.randrange(4)}", list[tuple[str, str]]()
        match draw.randrange(5):
            case 0:
                pairs.append((headers.TTL, f"{draw.choice((1, 2))}s"))
            case 1:
                pairs.append((headers.ROLLUP, draw.choice(("sub", "all"))))
            case 2:
                subject = f"a.at.{draw.randrange(3)}"
                at = format_time(server.stream_clock() + draw.randrange(3_000) * MILLISECOND_NS)
                pairs += [(headers.SCHEDULE, f"@at {at}"), (headers.SCHEDULE_TARGET, "a.0")]
            case 3:
                subject = f"a.every.{draw.randrange(2)}"
                pairs += [(headers.SCHEDULE, "@every 1s"), (headers.SCHEDULE_TARGET, "a.1")]
        self.counts["timed"] += 1
        server.publish(subject, "_IN.z", headers.build(pairs) if pairs else b"", b"")
        self._publish_around_rollups(server)
        server.pump(self.now)

    def _publish_around_rollups(self, server: StreamServer) -> None:
        """Sends plain messages and roll-ups that become one entry, some of them while a state is taken."""
        draw = self._rollups
        if draw.random() < 0.5:
            return
        rollup = headers.build([(headers.ROLLUP, "all")])
        for _ in range(draw.randrange(1, 20)):
            server.publish(f"a.{draw.randrange(4)}", "_IN.z", rollup if draw.random() < 0.1 else b"", b"")
        if draw.random() < 0.5:
            draw.choice(self._up()).compact(TIMED, self.now)

    def _publish_fast(self) -> None:
        """Sends the next message of a fast batch, or begins one."""
        server = self._leader()
        if server is None:
            return
        if not self._fast or self.random.random() < 0.1:
            self._fast.append((f"f{next(self._ids)}", self.random.choice(("ok", "fail")), 0))
        at = self.random.randrange(len(self._fast))
        batch, gap, seq = self._fast[at]
        ends = seq > 0 and self.random.random() < 0.1
        operation = 2 if ends else int(seq > 0)
        if ends:
            del self._fast[at]
        else:
            self._fast[at] = (batch, gap, seq + 1)
        tag = self._new_tag()
        self.history.publishes[tag] = TaggedPublish(tag, "s.a.fast")
        reply = f"_IN.f.{batch}.10.{gap}.{seq + 1}.{operation}.$FI"
        server.publish("s.a.fast", reply, b"", tag.encode())
        server.pump(self.now)

    def _delete(self) -> None:
        server, acked = self._leader(), [one for one in self.history.publishes.values() if one.seq]
        if server is not None and acked:
            one = self.random.choice(acked)
            self.history.removing(one.tag)
            body = json.dumps({"seq": one.seq, "no_erase": self.random.random() < 0.5}).encode()
            server.publish(f"$JS.API.STREAM.MSG.DELETE.{STREAM}", f"_IN.x.{one.tag}", b"", body)
            server.pump(self.now)

    def _purge(self) -> None:
        """Removes the messages of one subject, all or all but the last ones."""
        server = self._leader()
        if server is not None:
            self._is_purged = True
            for one in self.history.publishes.values():
                if one.subject == "s.b":
                    self.history.removing(one.tag)
            body = json.dumps({"filter": "s.b", "keep": self.random.choice((0, 2))}).encode()
            server.publish(f"$JS.API.STREAM.PURGE.{STREAM}", f"_IN.y.{next(self._ids)}", b"", body)
            server.pump(self.now)

    def _make_consumer(self) -> None:
        server = self._leader()
        if server is None:
            return
        for name, filter_subject in self.consumers.items():
            if name not in self._is_made:
                policy = "none" if name == UNACKED else "explicit"
                config = {
                    "durable_name": name, "ack_policy": policy, "filter_subject": filter_subject,
                    "ack_wait": ACK_WAIT_NS, "max_ack_pending": 1000,
                }  # fmt: skip
                body = json.dumps({"stream_name": STREAM, "config": config}).encode()
                server.publish(f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{name}", f"_IN.m.{name}", b"", body)
        server.pump(self.now)

    def _pull(self) -> None:
        server = self._leader()
        if server is None:
            return
        for name in self.consumers:
            body = json.dumps({"batch": self.random.choice((1, 5, 20)), "expires": 2 * ACK_WAIT_NS})
            reply = f"_IN.d.{name}.{next(self._ids)}"
            server.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}", reply, b"", body.encode())
        server.pump(self.now)

    def _ack(self) -> None:
        """Acks deliveries: at the server that made them, or at another leader."""
        for _ in range(self.random.choice((1, 5))):
            if not self._acks:
                return
            server, boot, reply, name, seq = self._acks.pop(self.random.randrange(len(self._acks)))
            if not server.is_up or server.boot != boot:
                other = self._leader()
                if other is None:
                    continue
                server = other
            number = next(self._ids)
            self._confirmations[str(number)] = (name, seq, 0)
            double = f"_IN.c.{number}" if self.random.random() < 0.8 else ""
            server.publish(reply.decode(), double, b"", b"+ACK")
            if self.random.random() < 0.7:
                server.pump(self.now)

    def _read(self) -> None:
        if not self._up():
            return
        self._read_at(self._leader() or self.random.choice(self._up()))

    def _read_at(self, server: StreamServer) -> None:
        number = next(self._ids)
        self._reads[str(number)] = self.history.acked_seq
        server.publish(f"$JS.API.STREAM.INFO.{STREAM}", f"_IN.i.{number}", b"", b"")
        server.pump(self.now)

    def _arrived(
        self, server: StreamServer, subject: str, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """A client at a server gets a message."""
        try:
            kind, _, rest = subject[4:].partition(".")
            self._take(server, kind, rest, reply, header, payload)
        except BrokenPromise as broken:  # the engine contains what a client raises
            self._broken = self._broken or broken

    def _take(
        self, server: StreamServer, kind: str, rest: str, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        if kind == "p":
            self._answered(rest, payload)
        elif kind == "d":
            self._on_delivery(server, rest.partition(".")[0], reply, header)
        elif kind == "c":
            name, seq, _ = self._confirmations.pop(rest)
            self.history.ack_confirmed(name, seq, server.replicas[STREAM].led_term)
        elif kind == "x":
            if "error" not in json.loads(payload):
                self.history.removed(rest)
        elif kind == "i":
            answer = json.loads(payload)
            if "error" not in answer:
                self.history.read_answered(self._reads.pop(rest), answer["state"]["last_seq"])
        elif kind == "m" and "error" not in json.loads(payload):
            self._is_made.add(rest)
            self._seen(rest)

    def _answered(self, tag: str, payload: bytes) -> None:
        one = self.history.publishes[tag]
        if not payload:
            return  # a message of a batch that is not its last
        answer = json.loads(payload)
        if "error" in answer:
            self.history.publish_refused(tag)
            return
        self.history.publish_acknowledged(tag, answer["seq"], answer.get("duplicate", False))
        if not one.batch:
            self._known[one.subject] = max(self._known.get(one.subject, 0), answer["seq"])

    def _on_delivery(self, server: StreamServer, name: str, reply: bytes, header: bytes) -> None:
        about = parse_reply(reply.decode())
        if about is None:
            self.counts["409"] += b"Leadership Change" in header
            return
        self._seen(name)
        self._is_made.add(name)
        # The group may have heard of a later term, and the replica not yet, as in a server that was paused.
        self.history.delivered(name, about.stream_seq, server.replicas[STREAM].led_term)
        if name != UNACKED:
            self._acks.append((server, server.boot, reply, name, about.stream_seq))

    def _seen(self, name: str) -> None:
        seen = ConsumerSeen(self.consumers[name].rstrip(">"), is_at_most_once=name == UNACKED)
        self.history.consumers.setdefault(name, seen)

    # --- at the end

    def _heal(self) -> None:
        self.is_faulty = False
        self.cut.clear()
        for server in self.servers:
            server.resume()
            server.set_sync_time(2 * MILLISECOND_NS)
            self._start(server)
        self._run_for(HEAL_NS)

    def _drain(self) -> None:
        """Creates the consumers that are missing, and acks until everything is acked."""
        for _ in range(DRAINS_MAX):
            self._make_consumer()
            self._pull()
            self._run_for(500 * MILLISECOND_NS)
            while self._acks:
                self._ack()
            self._run_for(500 * MILLISECOND_NS)
            server = self._leader()
            if server is not None and self._is_drained(server):
                return
        raise BrokenPromise("liveness", f"not drained: {self._states()}")

    def _is_drained(self, server: StreamServer) -> bool:
        consumers = server.replicas[STREAM].stream.consumers.values()
        return len(consumers) == len(self.consumers) and not any(
            one.pump.num_pending or one.state.num_pending for one in consumers
        )

    def _check_end(self) -> None:
        self._run_for(1000 * MILLISECOND_NS)
        for name, history in self.histories.items():
            loading = [one.name for one in self.servers if name not in one.replicas]
            if loading:
                raise BrokenPromise("liveness", f"{loading} load a state of {name}: {self._states()}")
            leaders = [one for one in self._up() if one.groups[name].role is Role.LEADER]
            if len(leaders) != 1:
                raise BrokenPromise("liveness", f"{len(leaders)} leaders of {name}: {self._states()}")
            ends = self._ends(name)
            if len(ends) != 1:  # an entry of a timer may be in flight right now
                self._run_for(20 * MILLISECOND_NS)
                ends = self._ends(name)
            if name == TIMED:
                history.check_times(leaders[0].replicas[name], leaders[0].stream_clock() - LATE_NS)
            if len(ends) != 1:
                raise BrokenPromise("equality", f"{name} applied up to {sorted(ends)}: {self._states()}")
            for server in self.servers:
                history.compare_whole(server.name, server.replicas[name])
        # A server that ends, or is brought up to date, may leave out what a consumer without acks was to get.
        sure = not (self.counts["crashes"] or self.counts["power losses"] or self._restored())
        for server in self.servers:
            self.history.finish(server.replicas[STREAM], skips_nothing=sure)
            if MIRROR in self.streams:
                self.history.check_copy(server.replicas[STREAM], server.replicas[MIRROR], "", is_mirror=True)
                source = server.replicas[SOURCED]
                self.history.check_copy(server.replicas[STREAM], source, "s.a.", is_mirror=False)

    def _ends(self, name: str) -> set[int]:
        """Up to where the replicas of a stream have applied entries."""
        return {one.replicas[name].applied_index for one in self.servers}

    def _restored(self) -> int:
        return sum(one.counts["installed"] for one in self.servers)

    def _states(self) -> str:
        return " | ".join(one.state() for one in self.servers)


def copies_of(config: ApiStreamConfig) -> dict[str, ApiStreamConfig]:
    """A mirror of a stream, and one that takes a part of it as a source."""
    plain = msgspec.structs.replace(config, subjects=[], allow_atomic=False, allow_batched=False)
    source = StreamSource(name=STREAM, filter_subject="s.a.>")
    return {
        MIRROR: msgspec.structs.replace(plain, name=MIRROR, mirror=StreamSource(name=STREAM)),
        SOURCED: msgspec.structs.replace(plain, name=SOURCED, sources=[source]),
    }


def timed(config: ApiStreamConfig, max_msgs: int) -> ApiStreamConfig:
    """The stream whose messages expire, or are replaced."""
    return msgspec.structs.replace(
        config, name=TIMED, subjects=["a.>"], allow_atomic=False, allow_batched=False,
        max_msgs=max_msgs, max_age=MAX_AGE_NS, subject_delete_marker_ttl=MARKER_NS,
        duplicate_window=MAX_AGE_NS, allow_msg_ttl=True, allow_msg_schedules=True, allow_rollup_hdrs=True,
    )  # fmt: skip


def run_stream_seed(seed: int) -> StreamOutcome:
    """Runs a seed."""
    return StreamRun(seed).go()
