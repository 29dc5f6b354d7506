"""Message traces (ADR-41): what became of one message, told to a subject that its publisher names.

A publish with `Nats-Trace-Dest` is routed step by step, and each step is an event: how it came in, mappings,
imported services and streams it went through, streams that store it, clients that get it. With
`Nats-Trace-Only` nothing is delivered or stored. A `traceparent` that is sampled asks as well, in accounts
that have a destination of their own (`msg_trace`). The events leave as one message, in the official server's
form, when the message has been routed.

Traces end where an account is left that doesn't allow them (`allow_trace`), and at streams: what goes on from
there has the header's value replaced by one that is no subject.

What a stream will do is told ahead of its turn (`jetstream.preview`), so that a trace is whole when it
leaves.
Rejected: waiting for the stream's ack, which publishers need not ask for.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.jetstream.preview import preview
from penstock.kernels.routing.traced_route import TracedRoute, nobody_took, refused_part
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from penstock.protocol.durations import format_time
from penstock.protocol.subjects import is_valid_subject

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.kernels.routing.subscription_index import SubscriptionIndex
    from penstock.kernels.wire.sinks import SinkSubscription
    from penstock.server.config.server_options import MessageTrace
    from penstock.server.session import Session

_START = b"NATS/1.0\r\n"
_ENDS = b"\r\n\r\n"
_PARENT = "traceparent"
_ENCODING = "Accept-Encoding"
_YES = frozenset({"1", "true", "on"})
_CLIENT = 0  # its kind, in events
_OWN_REPLIES = (b"$JS.ACK.", b"_R_.", b"_GR_.")


class TracedPublish(NamedTuple):
    """A message as it was published; b"" for no reply."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes

    def untraced(self) -> TracedPublish:
        """The same, for where its trace ends."""
        return self._replace(header=headers.trace_disabled(self.header))


class TraceRequest(NamedTuple):
    """What is asked for.

    fields: the message's headers, names as they came. dest: where the trace goes. only: is nothing delivered?
    """

    fields: dict[str, list[str]]
    dest: str
    only: bool


def publish_traced(session: Session, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
    """Routes a publish whose headers may ask for a trace; returns how many took it."""
    message = TracedPublish(subject, reply, header, payload)
    fields = _fields(header)
    dest = fields.get(headers.TRACE_DEST, [])
    if headers.TRACE_DISABLED in dest:
        return _route(session, message, None)
    if not dest:
        return _by_parent(session, message, fields)
    only = fields.get(headers.TRACE_ONLY, [""])[0].lower() in _YES
    if fields.get(headers.TRACE_ORIGIN_ACCOUNT):
        why = f"tracing disabled because of header {headers.TRACE_ORIGIN_ACCOUNT!r}"
        message = message.untraced()
    elif not is_valid_subject(dest[0]):
        why = f"destination {dest[0]!r} is not valid, won't be able to trace events"
    else:
        return _begin(session, message, TraceRequest(fields, dest[0], only))
    session.server.log.error(f"{session.name} - Message trace: {why}")
    return 0 if only else _route(session, message, None)


def _by_parent(session: Session, message: TracedPublish, fields: dict[str, list[str]]) -> int:
    told = trace_of(session)
    if told is not None and is_sampled(fields):
        if int.from_bytes(os.urandom(4), "little") % 100 < told.sampling:
            return _begin(session, message, TraceRequest(fields, told.dest, only=False))
        message = message.untraced()
    return _route(session, message, None)


def trace_of(session: Session) -> MessageTrace | None:
    """Where the session's account wants the traces that a `traceparent` asks for."""
    if session.identity is None:
        return None
    own = session.server.account_options(session.identity.account)
    return own.trace if own is not None else None


def is_sampled(fields: dict[str, list[str]]) -> bool:
    """Does one of the headers `traceparent`, in letters of any size, say that its trace is recorded?"""
    for name, values in fields.items():
        if name.lower() != _PARENT:
            continue
        for value in values:
            parts = value.split("-")
            try:
                flags = int(parts[3], 16) if len(parts) == 4 and len(parts[3]) == 2 else 0
            except ValueError:
                continue
            if 0 <= flags <= 0x7F and flags & 1:  # the official server reads them as a signed byte
                return True
    return False


def _fields(header: bytes) -> dict[str, list[str]]:
    """The headers of a block that is whole; {} for any other."""
    found: dict[str, list[str]] = {}
    if not header.startswith(_START) or not header.endswith(_ENDS):
        return found
    for line in header[len(_START) : -len(_ENDS)].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if colon and name and value:
            found.setdefault(name.decode("utf-8", "replace"), []).append(value.decode("utf-8", "replace"))
    return found


def _begin(session: Session, message: TracedPublish, wanted: TraceRequest) -> int:
    """Routes a publish with a trace, when its publisher may publish to the trace's destination."""
    if refused_part(session.ingress, wanted.dest.encode(), b""):
        return 0
    trace = PublishTrace(session, message, wanted)
    try:
        return _route(session, message, trace)
    finally:
        trace.send()


def _route(session: Session, message: TracedPublish, trace: PublishTrace | None) -> int:
    """What the inlet does with a publish: map, check, answer, route."""
    subject, reply, header, payload = message
    ingress = session.ingress
    assert ingress.index is not None
    if ingress.mapper is not None:
        mapped = ingress.mapper.map(subject)
        if mapped != subject and trace is not None:
            trace.mapped(mapped)
        subject = mapped
    refused = refused_part(ingress, subject, reply)
    if refused:
        if trace is not None:
            trace.refused(refused, is_reply=refused == reply and reply.startswith(_OWN_REPLIES))
        return 0
    session.ok()
    if trace is None:
        taken = publish(ingress.index, subject, reply, header, payload, session.sink)
    else:
        route = TracedRoute(trace, trace.only)
        taken = route.publish(ingress.index, subject, reply, header, payload, session.sink)
    if taken == 0:
        nobody_took(ingress, subject, reply)
    return taken


class PublishTrace:
    """The events of one message. Told by a TracedRoute.

    Args:
        session: its publisher.
        message: as it was published.
        wanted: what was asked for.
    """

    def __init__(self, session: Session, message: TracedPublish, wanted: TraceRequest) -> None:
        assert session.identity is not None
        self._server = session.server
        self._account = session.identity.account
        self._wanted = wanted
        self._size = len(message.header) + len(message.payload)
        self.only = wanted.only
        self._ingress = self._event(
            "in",
            kind=_CLIENT,
            cid=session.cid,
            **_named(session),
            acc=self._server.account_name(self._account),
            subj=_text(message.subject),
        )
        self._events = [self._ingress]

    def _event(self, step: str, **fields: Any) -> dict[str, Any]:
        return {"type": step, "ts": format_time(self._server.clock()), **fields}

    # -- steps

    def mapped(self, to: bytes) -> None:
        """A mapping of the account changed the subject."""
        self._events.append(self._event("sm", to=_text(to)))

    def refused(self, part: bytes, *, is_reply: bool) -> None:
        """The publisher may not publish to this subject, or with this reply."""
        what = "Publish with Reply of" if is_reply else "Publish to"
        self._ingress["error"] = f'Permissions Violation for {what} "{_text(part)}"'

    def egress(self, shown: SinkSubscription, sub: SinkSubscription, error: str) -> None:
        """A client got it, or did not."""
        session: Session = getattr(sub.sink, "owner")  # noqa: B009 -- only clients' sinks come here
        event = self._event("eg", kind=_CLIENT, cid=session.cid, **_named(session))
        account = session.identity.account if session.identity is not None else self._account
        if account != self._account:
            event["acc"] = self._server.account_name(account)
        event["sub"] = _text(shown.subject)
        if shown.queue:
            event["queue"] = _text(shown.queue)
        if error:
            event["error"] = error
        self._events.append(event)

    def stream_import(self, sub: SinkSubscription, to: bytes) -> None:
        """It comes to a subscription of an account that imports it as a stream."""
        session: Session | None = getattr(sub.sink, "owner", None)
        if session is not None and session.identity is not None:
            account = session.identity.account
        else:
            account = self._account_of(lambda index: sub in index.subscriptions())
        self._events.append(self._event("se", acc=self._server.account_name(account), to=_text(to)))

    def service_import(self, index: SubscriptionIndex, subject: bytes, to: bytes) -> None:
        """It is routed on in the account of this index, as an imported service's request, or an answer."""
        account = self._account_of(lambda other: other is index)
        event = self._event("si", acc=self._server.account_name(account))
        self._events.append({**event, "from": _text(subject), "to": _text(to)})

    def service(self, subject: bytes) -> bool:
        """The server itself answers: in the system account, which others import from."""
        system = self._server.options.system_account
        if self._account == system:
            return True
        event = self._event("si", acc=self._server.account_name(system))
        to = _text(subject)
        for own, its in ((".REQ.USER.INFO", f".REQ.USER.{self._account}.INFO"),
                         (".REQ.ACCOUNT.PING.", f".REQ.ACCOUNT.{self._account}.")):  # fmt: skip
            to = to.replace(own, its, 1)
        self._events.append({**event, "from": _text(subject), "to": to})
        return not self.only

    def store(
        self, stream: StreamReplica, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> bool:
        """A stream takes it, or refuses it."""
        service = self._server.jetstream
        engine = next((e for e in service.running.values() if e.streams.get(stream.name) is stream), None) \
            if service is not None else None  # fmt: skip
        if engine is not None:
            engine.may_answer()  # what came before is applied
        now = self._server.clock()
        told = preview(stream, subject, reply, header, payload, now, dry=self.only)
        event = self._event("js", stream=stream.name)
        if told.subject:
            event["subject"] = _text(told.subject)
        if not told.is_wanted:
            event["nointerest"] = True
        if told.error:
            event["error"] = told.error
        self._events.append(event)
        if not self.only:
            return True
        if told.answer and reply and engine is not None and not stream.config.no_ack:
            publish(engine.index, reply, b"", b"", told.answer)
        return False

    def _account_of(self, is_its: Callable[[SubscriptionIndex], bool]) -> str:
        accounts = self._server.accounts
        return next((name for name, account in accounts.items() if is_its(account.index)), "")

    # -- out

    def send(self) -> None:
        """Publishes what happened."""
        page = {
            "server": self._server.system.describe(),
            "request": {"header": self._wanted.fields, "msgsize": self._size},
            "events": self._events,
        }
        body, encoding = _encoded(msgspec.json.encode(page), self._wanted.fields)
        header = headers.with_value(b"", "Content-Encoding", encoding) if encoding else b""
        account = self._server.account(self._account)
        account.publish(self._wanted.dest.encode(), body, header=header)


def _named(session: Session) -> dict[str, str]:
    return {"name": session.options.name} if session.options.name else {}


def _text(word: bytes) -> str:
    return word.decode("utf-8", "replace")


def _encoded(body: bytes, fields: dict[str, list[str]]) -> tuple[bytes, str]:
    """The trace as the publisher can read it: (bytes, "snappy", "gzip" or "" for as it is)."""
    accepted = fields.get(_ENCODING, [""])[0].lower()
    if "snappy" in accepted or "s2" in accepted:
        from penstock.protocol.s2_stream import IDENTIFIERS, encode_chunks

        return IDENTIFIERS[1] + encode_chunks(body), "snappy"
    if "gzip" in accepted:
        return gzip.compress(body), "gzip"
    return body, ""
