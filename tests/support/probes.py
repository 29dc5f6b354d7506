"""The probes of the scanner: hostile values at every place where a server takes input.

API requests are found by reflection: each endpoint has the struct of its body here, and `test_scan` holds
this table against the endpoints and structs there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec

from penstock.protocol import api
from penstock.protocol.claims import AccountClaims, UserClaims
from penstock.protocol.jwt import encode64
from penstock.protocol.nkeys import KeyPair
from penstock.server.monitoring.pages.accounts import AccountStatzOptions, AccountzOptions
from penstock.server.monitoring.pages.connz import ConnzOptions
from penstock.server.monitoring.pages.healthz import HealthzOptions
from penstock.server.monitoring.pages.jsz import JszOptions
from penstock.server.monitoring.pages.subsz import SubszOptions
from penstock.server.monitoring.pages.varz import VarzOptions
from tests.support import hostile
from tests.support.hostile import HEADER_NAMES, SIZES, Hostile, with_field
from tests.support.keys import (
    OPERATOR,
    account_token,
    key,
    operator_token,
    signature,
    token_login,
    user_token,
)
from tests.support.rawnats import RawNats
from tests.support.scanner import LATER_S, Probe, Session, Setup, frame

MAX_PAYLOAD = 1024 * 1024
CONTROL_LINE = 4096
WIDE_SIZES = (60_000, 700_000)  # as base64 they still fit into a control line

# -- setups

CONF = """
server_name: scanned
http: "127.0.0.1:-1"
jetstream { store_dir: "%s", max_mem: 128M, max_file: 512M }
websocket { host: "127.0.0.1", port: -1, no_tls: true, compression: true }
accounts {
    A {
        users: [ { user: a, password: a } ]
        jetstream: enabled
        mappings { "m.*": "s.$1", "n.*.*": "s.{{partition(7,1,2)}}" }
        exports: [ { service: "x.>" }, { stream: "s.>" } ]
    }
    B {
        users: [ { user: b, password: b } ]
        imports: [ { service: { account: A, subject: "x.>" } }, { stream: { account: A, subject: "s.>" } } ]
    }
    S { users: [ { user: s, password: s } ] }
}
system_account: S
"""
STREAMS: tuple[dict[str, Any], ...] = (
    {"name": "S", "subjects": ["s.>"], "allow_rollup_hdrs": True, "allow_direct": True, "allow_msg_ttl": True,
     "allow_atomic": True, "allow_batched": True, "subject_delete_marker_ttl": 2_000_000_000},
    {"name": "C", "subjects": ["c.>"], "allow_msg_counter": True, "allow_direct": True},
    {"name": "D", "subjects": ["d.>"], "allow_msg_schedules": True, "allow_msg_ttl": True,
     "allow_rollup_hdrs": True},
    {"name": "U", "subjects": ["u.>"], "storage": "memory"},
    {"name": "W", "subjects": ["w.>"], "retention": "workqueue", "storage": "memory"},
)  # fmt: skip
CONSUMERS: tuple[dict[str, Any], ...] = (
    {"durable_name": "P", "ack_policy": "explicit", "filter_subject": "s.>"},
    {"durable_name": "G", "ack_policy": "explicit", "priority_groups": ["g"], "priority_policy": "overflow"},
    {"durable_name": "Q", "ack_policy": "explicit", "deliver_subject": "q.deliver"},
)
MESSAGES = 200


def request(session: Session, subject: str, body: Any, header: bytes = b"", user: str = "a") -> None:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    session.publish("$JS.API." + subject, payload, header, user=user)


def furnish(session: Session) -> None:
    """Streams with messages, and consumers."""
    for config in STREAMS:
        request(session, f"STREAM.CREATE.{config['name']}", config)
    for config in CONSUMERS:
        name = config["durable_name"]
        request(session, f"CONSUMER.DURABLE.CREATE.S.{name}", {"stream_name": "S", "config": config})
    published = (frame(f"s.{n % 50}.{n}", b"x" * 50, b"NATS/1.0\r\nA: b\r\n\r\n") for n in range(MESSAGES))
    session.send(b"".join(published))
    for n in range(3):
        session.publish(f"c.{n}", b"", b"NATS/1.0\r\nNats-Incr: 1\r\n\r\n")


def operators_conf(directory: str) -> str:
    """A server that trusts an operator, whose resolver takes new tokens."""
    tokens = {name: account_token(name) for name in ("SYS", "A", "B")}
    preload = "\n".join(f"  {key('account', name).public}: {token}" for name, token in tokens.items())
    return f"""
operator: {operator_token()}
resolver {{ type: full, dir: "{directory}/jwt" }}
resolver_preload {{
{preload}
}}
max_control_line: 1MB
"""


def operators_login(port: int, user: str) -> RawNats:
    """ "s" is of the system account, the others of the account of their name."""
    account = "SYS" if user == "s" else user.upper()
    return token_login(port, user, user_token(account, user))


SETUPS: dict[str, Setup] = {
    "accounts": Setup(lambda directory: CONF % directory, furnish),
    "wide": Setup(lambda directory: "max_control_line: 1MB\n", lambda session: None),
    "operators": Setup(operators_conf, lambda session: None, operators_login),
}

# -- the API


class Target(NamedTuple):
    """An endpoint. subject: of a request. body: a valid one, to be damaged. before: what must be there.
    after: what lets it take effect, then what removes it."""

    struct: type[msgspec.Struct]
    subject: str
    body: dict[str, Any]
    before: Callable[[Session], None] = lambda session: None
    after: Callable[[Session], None] = lambda session: None


def _use_stream(session: Session) -> None:
    for subject in ("h.a", "h.1.b", "u.a"):
        session.publish(subject, b"x")
    request(session, "STREAM.INFO.H", {"subjects_filter": ">"})
    session.step("publish", LATER_S)
    request(session, "STREAM.DELETE.H", b"")


def _fresh_stream(session: Session) -> None:
    request(session, "STREAM.DELETE.U", b"")
    request(session, "STREAM.CREATE.U", STREAMS[3])


def _use_consumer(session: Session) -> None:
    session.send(b"SUB h.deliver 7\r\nUNSUB 7 5\r\n")
    session.publish("$JS.API.CONSUMER.MSG.NEXT.S.h", b'{"batch":5,"no_wait":true}')
    session.publish("s.1.1", b"x")
    session.step("publish", LATER_S)
    request(session, "CONSUMER.INFO.S.h", b"")
    request(session, "CONSUMER.DELETE.S.h", b"")


def _restored(session: Session) -> None:
    session.step("later", 6.0)  # a restore that gets no chunks ends
    request(session, "STREAM.DELETE.H", b"")


_CONSUMER = {"stream_name": "S", "config": {"durable_name": "h", "ack_policy": "explicit"}}
_PUSH = {
    "stream_name": "S",
    "config": {"durable_name": "h", "ack_policy": "explicit", "deliver_subject": "h.deliver"},
}
_STREAM = {"name": "H", "subjects": ["h.>"], "storage": "memory"}
_FILE_STREAM = {"name": "H", "subjects": ["h.>"]}
TARGETS: dict[str, Target] = {
    "STREAM.CREATE": Target(api.StreamConfigRequest, "H", _STREAM, after=_use_stream),
    "STREAM.UPDATE": Target(api.StreamConfigRequest, "U", STREAMS[3], _fresh_stream, _use_stream),
    "STREAM.RESTORE": Target(
        api.StreamRestoreRequest, "H", {"config": _STREAM, "state": {"messages": 1}}, after=_restored
    ),
    "STREAM.SNAPSHOT": Target(api.StreamSnapshotRequest, "S", {"deliver_subject": "h.snapshot"}),
    "STREAM.INFO": Target(api.StreamInfoRequest, "S", {"subjects_filter": "s.>"}),
    "STREAM.NAMES": Target(api.StreamNamesRequest, "", {"subject": "s.>"}),
    "STREAM.LIST": Target(api.StreamNamesRequest, "", {"offset": 0}),
    "STREAM.PURGE": Target(api.StreamPurgeRequest, "U", {"filter": "u.a"}),
    "STREAM.MSG.GET": Target(api.MsgGetRequest, "S", {"seq": 1}),
    "STREAM.MSG.DELETE": Target(api.MsgDeleteRequest, "U", {"seq": 1}),
    "DIRECT.GET": Target(api.MsgGetRequest, "S", {"seq": 1}),
    "CONSUMER.CREATE": Target(api.ConsumerCreateRequest, "S.h", _CONSUMER, after=_use_consumer),
    "CONSUMER.DURABLE.CREATE": Target(api.ConsumerCreateRequest, "S.h", _PUSH, after=_use_consumer),
    "CONSUMER.NAMES": Target(api.PagedRequest, "S", {"offset": 0}),
    "CONSUMER.LIST": Target(api.PagedRequest, "S", {"offset": 0}),
    "CONSUMER.PAUSE": Target(api.ConsumerPauseRequest, "S.P", {"pause_until": "2020-01-01T00:00:00Z"}),
    "CONSUMER.RESET": Target(api.ConsumerResetRequest, "S.P", {"seq": 1}),
    "CONSUMER.UNPIN": Target(api.ConsumerUnpinRequest, "S.G", {"group": "g"}),
    "CONSUMER.MSG.NEXT": Target(api.PullRequest, "S.P", {"batch": 2, "no_wait": True}),
}
BODILESS = {
    "INFO": "", "STREAM.DELETE": "H", "STREAM.LEADER.STEPDOWN": "S", "STREAM.PEER.REMOVE": "S",
    "STREAM.CANCEL_MOVE": "S", "CONSUMER.LEADER.STEPDOWN": "S.P", "CONSUMER.INFO": "S.P",
    "CONSUMER.DELETE": "S.h", "STREAM.PEER.EVACUATE": "S", "CONSUMER.PEER.REMOVE": "S.P",
    "CONSUMER.PEER.EVACUATE": "S.P",
}  # fmt: skip
"""Endpoints that read no body, or refuse one."""


def api_probe(verbs: str, target: Target, value: Hostile) -> Probe:
    """A request with this body."""
    subject = f"$JS.API.{verbs}.{target.subject}".removesuffix(".")

    def run(session: Session) -> None:
        target.before(session)
        session.begin()
        body = value.data
        if len(body) > MAX_PAYLOAD:
            body = body[:MAX_PAYLOAD]
        session.publish(subject, body)
        session.step("request", 0.1)
        target.after(session)

    return Probe("api", f"{verbs} {value.shape}", "accounts", run)


def api_probes() -> Iterator[Probe]:
    for verbs, target in TARGETS.items():
        for field in hostile.fields_of(target.struct):
            for value in hostile.field_values(field):
                inside = value.within(f"{field.name}: ", partial(with_field, target.body, field.path))
                yield api_probe(verbs, target, inside)
        for value in hostile.broken_bodies(target.body):
            yield api_probe(verbs, target, value)
    for verbs, args in BODILESS.items():
        target = Target(api.PagedRequest, args, {})
        for value in hostile.json_values(SIZES[-1:]):
            yield api_probe(verbs, target, value)


def recovery_probes() -> Iterator[Probe]:
    """What was accepted is there, or set aside, when the server starts again."""
    for verbs, base in (("STREAM.CREATE", _FILE_STREAM), ("CONSUMER.DURABLE.CREATE", _CONSUMER)):
        target = TARGETS[verbs]
        for field in hostile.fields_of(target.struct):
            for value in hostile.field_values(field, (SIZES[1],)):
                inside = value.within(f"{field.name}: ", partial(with_field, base, field.path))
                yield recovery_probe(f"$JS.API.{verbs}.{target.subject}", target, inside)


def recovery_probe(subject: str, target: Target, value: Hostile) -> Probe:
    def run(session: Session) -> None:
        session.publish(subject, value.data)
        session.step("request")
        session.publish("h.a", b"x")
        session.restart()
        session.step("start", LATER_S)
        target.after(session)

    return Probe("recovery", f"{subject} {value.shape}", "accounts", run)


# -- system requests

SYSTEM_STRUCTS: dict[str, type[msgspec.Struct]] = {
    "VARZ": VarzOptions, "CONNZ": ConnzOptions, "SUBSZ": SubszOptions, "JSZ": JszOptions,
    "HEALTHZ": HealthzOptions, "ACCOUNTZ": AccountzOptions, "STATSZ": AccountStatzOptions,
}  # fmt: skip
SYSTEM_SUBJECTS = (
    "USER.INFO", "SERVER.PING", "ACCOUNT.NSUBS", "ACCOUNT.A.CONNS", "ACCOUNT.A.INFO", "ACCOUNT.A.LEAFZ",
    "SERVER.PING.IDZ", "SERVER.PING.ROUTEZ", "SERVER.PING.GATEWAYZ", "SERVER.PING.LEAFZ",
)  # fmt: skip


def system_probe(subject: str, user: str, value: Hostile) -> Probe:
    def run(session: Session) -> None:
        session.publish(subject, value.data[:MAX_PAYLOAD], user=user)
        session.step("request", 0.1)

    return Probe("system", f"{subject} {value.shape}", "accounts", run)


def system_probes() -> Iterator[Probe]:
    for name, struct in SYSTEM_STRUCTS.items():
        for field in hostile.fields_of(struct):
            for value in hostile.field_values(field, SIZES[-1:]):
                inside = value.within(f"{field.name}: ", partial(with_field, {}, field.path))
                yield system_probe(f"$SYS.REQ.SERVER.PING.{name}", "s", inside)
        for value in hostile.broken_bodies({"offset": 0}, SIZES[-1:]):
            yield system_probe(f"$SYS.REQ.SERVER.PING.{name}", "s", value)
    for user, subjects in {
        "s": SYSTEM_SUBJECTS,
        "a": ("SERVER.PING.CONNZ", "ACCOUNT.PING.CONNZ", "ACCOUNT.PING.STATZ", "USER.INFO"),
    }.items():
        for subject in subjects:
            for value in hostile.broken_bodies({"accounts": ["A"]}, SIZES[-1:]):
                yield system_probe(f"$SYS.REQ.{subject}", user, value)
    for value in (*hostile.json_values(SIZES[-1:]), *hostile.header_values(SIZES[-1:])):
        yield system_probe("$SYS.DEBUG.SUBSCRIBERS", "s", value)


# -- headers

_HEADED = (
    "s.1.1",
    "c.1",
    "d.1",
    "u.1",
    "$JS.API.STREAM.INFO.S",
    "$JS.API.CONSUMER.CREATE.S.h",
    "m.1",
    "plain",
)
_BESIDE = {
    "Nats-Batch-Sequence": b"Nats-Batch-Id: h",
    "Nats-Batch-Commit": b"Nats-Batch-Id: h\r\nNats-Batch-Sequence: 1",
    "Nats-Batch-Id": b"Nats-Batch-Sequence: 1",
    "Nats-Counter-Sources": b"Nats-Incr: 1",
    "Nats-Schedule-TTL": b"Nats-Schedule: @every 1s\r\nNats-Schedule-Target: d.2",
    "Nats-Schedule-Target": b"Nats-Schedule: @every 1s",
    "Nats-Schedule-Source": b"Nats-Schedule: @every 1s\r\nNats-Schedule-Target: d.2",
    "Nats-Schedule-Rollup": b"Nats-Schedule: @every 1s\r\nNats-Schedule-Target: d.2",
    "Nats-Schedule-Time-Zone": b"Nats-Schedule: 0 0 * * * *\r\nNats-Schedule-Target: d.2",
    "Nats-Schedule": b"Nats-Schedule-Target: d.2",
    "Nats-Expected-Last-Subject-Sequence": b"Nats-Expected-Last-Subject-Sequence-Subject: s.1.1",
    "Nats-Expected-Last-Subject-Sequence-Subject": b"Nats-Expected-Last-Subject-Sequence: 1",
    "Nats-Trace-Only": b"Nats-Trace-Dest: t",
    "Nats-Trace-Hop": b"Nats-Trace-Dest: t",
}
"""Headers that mean something only beside others."""


def header_probe(subject: str, value: Hostile) -> Probe:
    def run(session: Session) -> None:
        header = value.data[:MAX_PAYLOAD]
        body = json.dumps(_CONSUMER).encode() if "CONSUMER.CREATE" in subject else b""
        if len(header) + len(body) > MAX_PAYLOAD:
            body = b""
        session.publish(subject, body, header)
        session.step("publish", LATER_S)
        session.publish("$JS.API.CONSUMER.MSG.NEXT.S.P", b'{"batch":5,"no_wait":true}')
        request(session, "STREAM.MSG.GET.S", {"last_by_subj": subject})
        session.step("read")
        request(session, "STREAM.PURGE.D", b"")
        request(session, "STREAM.PURGE.S", {"keep": 100})

    return Probe("headers", f"{subject} {value.shape}", "accounts", run)


def header_probes() -> Iterator[Probe]:
    for name in (*HEADER_NAMES, "traceparent", "Accept-Encoding"):
        beside = _BESIDE.get(name)
        more = () if beside is None else (beside,)
        for value in hostile.header_values():
            for subject in _HEADED:
                inside = value.within(
                    f"{name}: ", lambda data, name=name, more=more: hostile.with_header(name, data, *more)
                )
                yield header_probe(subject, inside)
    for value in hostile.header_blocks():
        for subject in _HEADED:
            yield header_probe(subject, value)


# -- control lines

_LINES: dict[str, Callable[[bytes], bytes]] = {
    "SUB": lambda text: b"SUB %s 5\r\nUNSUB 5\r\n" % text,
    "SUB queue": lambda text: b"SUB h %s 5\r\nUNSUB 5\r\n" % text,
    "SUB sid": lambda text: b"SUB h %s\r\nUNSUB %s\r\n" % (text, text[:1500]),
    "UNSUB max": lambda text: b"SUB h 5\r\nUNSUB 5 %s\r\nUNSUB 5\r\n" % text,
    "PUB": lambda text: b"PUB %s 0\r\n\r\n" % text,
    "PUB stream": lambda text: b"PUB s.%s 0\r\n\r\n" % text,
    "PUB mapped": lambda text: b"PUB n.1.%s 0\r\n\r\n" % text,
    "PUB reply": lambda text: b"PUB s.1 %s 0\r\n\r\n" % text,
    "PUB size": lambda text: b"PUB h %s\r\n\r\n" % text,
    "HPUB sizes": lambda text: b"HPUB h %s %s\r\n\r\n" % (text[:1500], text[:1500]),
    "verb": lambda text: b"%s\r\n" % text,
    "-ERR": lambda text: b"-ERR '%s'\r\n" % text,
    "INFO": lambda text: b"INFO %s\r\n" % text,
    "API": lambda text: b"PUB $JS.API.%s _R.x 2\r\n{}\r\n" % text,
    "direct get": lambda text: b"PUB $JS.API.DIRECT.GET.S.%s _R.x 0\r\n\r\n" % text,
    "consumer filter": lambda text: (
        b'PUB $JS.API.CONSUMER.CREATE.S.h.%s _R.x 31\r\n{"stream_name":"S","config":{}}\r\n' % text
    ),
    "ack": lambda text: b"PUB $JS.ACK.S.P.%s _R.x 0\r\n\r\n" % text,
    "ack sequence": lambda text: b"PUB $JS.ACK.S.P.1.%s.1.1.1 _R.x 0\r\n\r\n" % text,
    "fast batch": lambda text: b"PUB s.f _R.%s.$FI 0\r\n\r\n" % text,
    "fast batch sequence": lambda text: b"PUB s.f _R.id.10.ok.%s.0.$FI 0\r\n\r\n" % text,
    "flow control": lambda text: b"PUB $JS.FC.S.Q.%s _R.x 0\r\n\r\n" % text,
    "system": lambda text: b"PUB $SYS.REQ.ACCOUNT.%s.CONNZ _R.x 0\r\n\r\n" % text,
}


def line_probe(name: str, value: Hostile) -> Probe:
    def run(session: Session) -> None:
        text = value.data.replace(b"\r\n", b"")[: CONTROL_LINE - 120]
        for user in ("a", "s") if name == "system" else ("a",):
            session.send(_LINES[name](text), user)
        session.step("line", LATER_S)

    return Probe("control lines", f"{name}: {value.shape}", "accounts", run)


def line_probes() -> Iterator[Probe]:
    for name in _LINES:
        for value in hostile.header_values((CONTROL_LINE,)):
            yield line_probe(name, value)


# -- acks

_ACK = b"$JS.ACK.S.P.1.1.1.1.0"


def ack_probes() -> Iterator[Probe]:
    words = (b"-NAK ", b"+NXT ", b"+TERM ", b"+WPI ", b"+ACK ", b"")
    for word in words:
        for value in (*hostile.json_values(), *hostile.header_values(())):
            yield ack_probe(word, value)
    for field in hostile.fields_of(api.PullRequest):
        for value in hostile.field_values(field, SIZES[-1:]):
            yield ack_probe(b"+NXT ", value.within(f"{field.name}: ", partial(with_field, {}, field.path)))
    for value in hostile.json_values(SIZES[-1:]):
        yield ack_probe(b"-NAK ", value.within("delay: ", partial(with_field, {}, ("delay",))))


def ack_probe(word: bytes, value: Hostile) -> Probe:
    def run(session: Session) -> None:
        session.publish("$JS.API.CONSUMER.MSG.NEXT.S.P", b'{"batch":1,"no_wait":true}')
        session.publish(_ACK, (word + value.data)[:MAX_PAYLOAD])
        session.step("ack", LATER_S)

    return Probe("acks", f"{word.decode()}{value.shape}", "accounts", run)


# -- CONNECT and tokens


def connect_probe(
    setup: str, value: Hostile, make: Callable[[bytes, str], bytes] = lambda data, nonce: data
) -> Probe:
    """The first line of a client; `make` may sign what the server's nonce is needed for."""

    def run(session: Session) -> None:
        from tests.support.wire import Wire

        with Wire(session.port) as wire:
            line = (
                b"CONNECT " + make(value.data, wire.info.get("nonce", "")).replace(b"\r\n", b"  ") + b"\r\n"
            )
            try:
                wire.send(line + b"PING\r\nSUB h 1\r\nPUB h 1\r\nx\r\n" + line + b"PING\r\n")
                wire.sock.settimeout(0.3)
                seen = b""
                while seen.count(b"PONG") < 2 and (data := wire.sock.recv(1 << 16)):
                    seen = seen[-8:] + data
            except OSError:
                pass
            session.step("connect", LATER_S)

    return Probe("CONNECT" if setup != "operators" else "JWT", f"{setup} {value.shape}", setup, run)


def connect_probes() -> Iterator[Probe]:
    for value in hostile.connects({"verbose": False, "user": "a", "pass": "a"}, (CONTROL_LINE - 200,)):
        yield connect_probe("accounts", value)
    for value in hostile.connects({"verbose": False}, WIDE_SIZES):
        yield connect_probe("wide", value)


def signed(claims: bytes, signer: KeyPair) -> bytes:
    """A token of these claims, whatever they are."""
    head = encode64(b'{"typ":"JWT","alg":"ed25519-nkey"}')
    text = f"{head}.{encode64(claims)}".encode()
    return text + b"." + encode64(signer.sign(text)).encode()


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a valid token, as a tree."""
    from penstock.protocol.jwt import decode64

    return json.loads(decode64(token.split(".")[1]))  # type: ignore[no-any-return]


def jwt_probes() -> Iterator[Probe]:
    """Tokens of users at CONNECT, and of accounts at the resolver."""
    user = claims_of(user_token("A", "joe"))
    for field in hostile.fields_of(UserClaims):
        for value in hostile.field_values(field, WIDE_SIZES):
            inside = value.within(f"{field.name}: ", partial(with_field, user, field.path))
            yield connect_probe("operators", inside, _with_token)
    for value in hostile.broken_bodies(user, WIDE_SIZES):
        yield connect_probe("operators", value, _with_token)
    for value in (*hostile.json_values(WIDE_SIZES), *hostile.header_values(WIDE_SIZES)):
        yield connect_probe("operators", value, _with_raw_token)
    account = claims_of(account_token("H"))
    for field in hostile.fields_of(AccountClaims):
        for value in hostile.field_values(field, WIDE_SIZES):
            inside = value.within(f"{field.name}: ", partial(with_field, account, field.path))
            yield claims_probe(inside)
    for value in hostile.broken_bodies(account, WIDE_SIZES):
        yield claims_probe(value)


def _with_token(claims: bytes, nonce: str) -> bytes:
    token = signed(claims, key("account", "A")).decode()
    connect = {"verbose": False, "jwt": token, "sig": signature("joe", nonce)}
    return json.dumps(connect).encode()


def _with_raw_token(token: bytes, nonce: str) -> bytes:
    return json.dumps({"verbose": False, "jwt": token.decode("utf-8", "replace")}).encode()


def claims_probe(value: Hostile) -> Probe:
    def run(session: Session) -> None:
        token = signed(value.data, OPERATOR)[:MAX_PAYLOAD]
        session.publish("$SYS.REQ.CLAIMS.UPDATE", token, user="s")
        session.step("update", 0.1)
        account = key("account", "H").public
        session.publish(f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP", user="s")
        session.publish("$SYS.REQ.CLAIMS.LIST", user="s")
        session.step("lookup")

    return Probe("JWT", f"account {value.shape}", "operators", run)


API_PROBES: dict[str, Callable[[], Iterator[Probe]]] = {
    "api": api_probes,
    "recovery": recovery_probes,
    "system": system_probes,
    "headers": header_probes,
    "control lines": line_probes,
    "acks": ack_probes,
    "CONNECT": connect_probes,
    "JWT": jwt_probes,
}
