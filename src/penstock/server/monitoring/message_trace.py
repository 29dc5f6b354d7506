"""Message traces (ADR-41): reports the path of one message to a subject chosen by its publisher.

A publish with `Nats-Trace-Dest` is routed step by step, and each step is an event: how it came in, mappings,
imported services and streams it went through, streams that store it, clients that get it. With
`Nats-Trace-Only` nothing is delivered or stored. A `traceparent` that is sampled asks as well, in accounts
that have a destination of their own (`msg_trace`). The events leave as one message, in the official server's
form, when the message has been routed.

A message that other servers get carries the number of its hop (`Nats-Trace-Hop`: 1, 2, and from server 2 on
2.1). Each server that traces reports its own steps, also of a message that must not be delivered.

Traces end where the message enters an account without `allow_trace`, and at streams: from there on the
header's value is replaced by one that is not a valid subject.

The stream's decision is predicted (`jetstream.preview`), so that the trace is complete when it is sent.
Rejected: waiting for the stream's ack, which the publisher need not request.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.jetstream.preview import preview
from penstock.kernels.routing.traced_route import TracedRoute, refused_part, reply_no_responders
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from penstock.protocol.durations import format_time
from penstock.protocol.subjects import is_valid_subject

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.kernels.routing.subscription_index import SubscriptionIndex
    from penstock.kernels.wire.sinks import SinkSubscription
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.config.server_options import MessageTrace
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.links.link_session import LinkSession
    from penstock.server.monitoring.system_service import SystemService
    from penstock.server.server_context import ServerContext
    from penstock.server.session import Session

_START = b"NATS/1.0\r\n"
_ENDS = b"\r\n\r\n"
_PARENT = "traceparent"
_ENCODING = "Accept-Encoding"
_YES = frozenset({"1", "true", "on"})
_CLIENT = 0  # `kind` of clients in events
_INTERNAL = ("_GR_.", "$NRG.")
_OWN_REPLIES = (b"$JS.ACK.", b"_R_.", b"_GR_.")


class TracePorts(NamedTuple):
    """What a trace uses of the server. jetstream: returns JetStream of the server, None without it."""

    context: ServerContext
    accounts: AccountRegistry
    jetstream: Callable[[], JetStreamService | None]
    events: SystemService


class TracedPublish(NamedTuple):
    """A published message; `reply` is b"" for none."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes

    def untraced(self) -> TracedPublish:
        """The message with its trace header disabled."""
        return self._replace(header=headers.trace_disabled(self.header))


class TraceRequest(NamedTuple):
    """A request for a trace.

    fields: headers of the message, with original names.
    dest: destination of the trace.
    only: trace without delivery (`Nats-Trace-Only`).
    """

    fields: dict[str, list[str]]
    dest: str
    only: bool


def publish_traced(session: Session, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
    """Routes a publish whose headers may request a trace; returns the number of receivers."""
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
    session.context.log.error(f"{session.name} - Message trace: {why}")
    return 0 if only else _route(session, message, None)


def _by_parent(session: Session, message: TracedPublish, fields: dict[str, list[str]]) -> int:
    decision = trace_of(session)
    if decision is not None and is_sampled(fields):
        if int.from_bytes(os.urandom(4), "little") % 100 < decision.sampling:
            return _begin(session, message, TraceRequest(fields, decision.dest, only=False))
        message = message.untraced()
    return _route(session, message, None)


def trace_of(session: Session) -> MessageTrace | None:
    """The `traceparent` setting of the session's account; None when it has none."""
    if session.identity is None:
        return None
    own = session.ports.accounts.options_of(session.identity.account)
    return own.trace if own is not None else None


def is_sampled(fields: dict[str, list[str]]) -> bool:
    """Whether a `traceparent` header, in any case, has the sampled flag."""
    for name, values in fields.items():
        if name.lower() != _PARENT:
            continue
        for value in values:
            parts = value.split("-")
            try:
                flags = int(parts[3], 16) if len(parts) == 4 and len(parts[3]) == 2 else 0
            except ValueError:
                continue
            if 0 <= flags <= 0x7F and flags & 1:  # the official server parses them as a signed byte
                return True
    return False


def _fields(header: bytes) -> dict[str, list[str]]:
    """The headers of a complete block; {} for any other."""
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
    """Routes a publish with a trace, if the publisher may publish to the trace's destination."""
    if refused_part(session.ingress, wanted.dest.encode(), b""):
        return 0
    ports = TracePorts(session.context, session.ports.accounts, session.ports.jetstream, session.ports.events)
    assert session.identity is not None
    came = {"kind": _CLIENT, "cid": session.cid, **_named(session)}
    trace = PublishTrace(ports, session.identity.account, came, message, wanted)
    try:
        return _route(session, message, trace)
    finally:
        trace.send()


def _route(session: Session, message: TracedPublish, trace: PublishTrace | None) -> int:
    """Routes a publish as the ingress does: map, check permissions, route, reply if there are no
    receivers."""
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
        reply_no_responders(ingress, subject, reply)
    return taken


def take_traced(
    ports: TracePorts,
    session: LinkSession,
    index: SubscriptionIndex,
    subject: bytes,
    reply: bytes,
    header: bytes,
    payload: bytes,
    queues: frozenset[bytes] | None,
) -> int | bytes | None:
    """Routes a message of another server whose headers may request a trace.

    Arguments and result as for `RouteIngress.report_traces`. With `Nats-Trace-Only`, a message that can not
    be traced is dropped.
    """
    account = next((name for name, one in ports.accounts.items() if one.index is index), None)
    fields = _fields(header)
    dest = fields.get(headers.TRACE_DEST, [])
    if account is None or headers.TRACE_DISABLED in dest:
        return None
    if dest:
        wanted = TraceRequest(fields, dest[0], fields.get(headers.TRACE_ONLY, [""])[0].lower() in _YES)
    else:
        # The server of the publisher has decided whether it is sampled.
        own = ports.accounts.options_of(account)
        if own is None or own.trace is None or not is_sampled(fields):
            return None
        wanted = TraceRequest(fields, own.trace.dest, only=False)
    message = TracedPublish(subject, reply, header, payload)
    if fields.get(headers.TRACE_ORIGIN_ACCOUNT):
        why = f"tracing disabled because of header {headers.TRACE_ORIGIN_ACCOUNT!r}"
    elif not is_valid_subject(wanted.dest):
        why = f"destination {wanted.dest!r} is not valid, won't be able to trace events"
    elif wanted.dest.startswith(_INTERNAL) or not session.may_take(wanted.dest):
        why = f"the other server may not publish to {wanted.dest!r}"
    else:
        hop = fields.get(headers.TRACE_HOP, [""])[0]
        trace = PublishTrace(ports, account, came_by(session), message, wanted, hop)
        try:
            route = TracedRoute(trace, wanted.only)
            return route.publish_from(index, subject, reply, header, payload, session.sink, queues)
        finally:
            trace.send()
    ports.context.log.error(f"{session.name} - Message trace: {why}")
    return 0 if wanted.only else message.untraced().header


def came_by(session: LinkSession) -> dict[str, Any]:
    """The connection to another server in events."""
    name = {"name": session.link.name} if session.link.name else {}
    return {"kind": session.trace_kind, "cid": session.cid, **name}


class PublishTrace:
    """Collects the events of one message; called by a TracedRoute.

    Args:
        ports: what it uses of the server.
        account: in which the message is published.
        came: fields of the event "in": the connection.
        message: the published message.
        wanted: the request.
        hop: `Nats-Trace-Hop` of a message from another server; "" = it has none.
    """

    def __init__(
        self,
        ports: TracePorts,
        account: str,
        came: dict[str, Any],
        message: TracedPublish,
        wanted: TraceRequest,
        hop: str = "",
    ) -> None:
        self._ports = ports
        self._context = ports.context
        self._accounts = ports.accounts
        self._account = account
        self._wanted = wanted
        self._hop = hop
        self._next_hop = ""
        self._hops = 0
        self._size = len(message.header) + len(message.payload)
        self.only = wanted.only
        self._ingress = self._event(
            "in", **came, acc=self._accounts.shown_name(account), subj=_text(message.subject)
        )
        self._events = [self._ingress]

    def _event(self, step: str, **fields: Any) -> dict[str, Any]:
        return {"type": step, "ts": format_time(self._context.clock()), **fields}

    # -- steps

    def mapped(self, to: bytes) -> None:
        """A subject mapping changed the subject."""
        self._events.append(self._event("sm", to=_text(to)))

    def refused(self, part: bytes, *, is_reply: bool) -> None:
        """The publisher has no permission for this subject or reply."""
        what = "Publish with Reply of" if is_reply else "Publish to"
        self._ingress["error"] = f'Permissions Violation for {what} "{_text(part)}"'

    def egress(self, shown: SinkSubscription, sub: SinkSubscription, error: str) -> None:
        """Delivery to a client, or the error that prevented it."""
        session: Session = getattr(sub.sink, "owner")  # noqa: B009 -- only client sinks come here
        event = self._event("eg", kind=_CLIENT, cid=session.cid, **_named(session))
        account = session.identity.account if session.identity is not None else self._account
        if account != self._account:
            event["acc"] = self._accounts.shown_name(account)
        event["sub"] = _text(shown.subject)
        if shown.queue:
            event["queue"] = _text(shown.queue)
        if error:
            event["error"] = error
        self._events.append(event)

    def hop(self, header: bytes) -> bytes:
        """The header for the next server that gets the message."""
        self._hops += 1
        self._next_hop = f"{self._hop}.{self._hops}" if self._hop else str(self._hops)
        return headers.with_value(header, headers.TRACE_HOP, self._next_hop)

    def link_egress(self, owner: LinkSession, is_sent: bool) -> None:
        """Delivery to another server. Not sent: it would deliver what must not be delivered."""
        event = self._event("eg", **came_by(owner), hop=self._next_hop)
        account = owner.account
        if account is not None and account != self._account:
            event["acc"] = self._accounts.shown_name(account)
        if not is_sent:
            event["error"] = "Not delivered because remote does not support message tracing"
        elif not owner.sink.traces:
            event["error"] = (
                "Message delivered but remote does not support message tracing so no trace event generated "
                "from there"
            )
        self._events.append(event)

    def stream_import(self, sub: SinkSubscription, to: bytes) -> None:
        """Delivery to a subscription of an account that imports the message as a stream."""
        session: Session | None = getattr(sub.sink, "owner", None)
        if session is not None and session.identity is not None:
            account = session.identity.account
        else:
            account = self._account_of(lambda index: sub in index.subscriptions())
        self._events.append(self._event("se", acc=self._accounts.shown_name(account), to=_text(to)))

    def service_import(self, index: SubscriptionIndex, subject: bytes, to: bytes) -> None:
        """Routing into the account of this index, as a request to an imported service, or its reply."""
        account = self._account_of(lambda other: other is index)
        event = self._event("si", acc=self._accounts.shown_name(account))
        self._events.append({**event, "from": _text(subject), "to": _text(to)})

    def service(self, subject: bytes) -> bool:
        """A service of the server itself, in the system account. Other accounts import from it."""
        system = self._context.options.system_account
        if self._account == system:
            return True
        event = self._event("si", acc=self._accounts.shown_name(system))
        to = _text(subject)
        for own, its in ((".REQ.USER.INFO", f".REQ.USER.{self._account}.INFO"),
                         (".REQ.ACCOUNT.PING.", f".REQ.ACCOUNT.{self._account}.")):  # fmt: skip
            to = to.replace(own, its, 1)
        self._events.append({**event, "from": _text(subject), "to": to})
        return not self.only

    def store(
        self, stream: StreamReplica, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> bool:
        """A stream stores or refuses the message."""
        service = self._ports.jetstream()
        engine = next((e for e in service.running.values() if e.streams.get(stream.name) is stream), None) \
            if service is not None else None  # fmt: skip
        if engine is not None:
            engine.may_answer()  # applies earlier publishes first
        now = self._context.clock()
        decision = preview(stream, subject, reply, header, payload, now, dry=self.only)
        event = self._event("js", stream=stream.name)
        if decision.subject:
            event["subject"] = _text(decision.subject)
        if not decision.is_wanted:
            event["nointerest"] = True
        if decision.error:
            event["error"] = decision.error
        self._events.append(event)
        if not self.only:
            return True
        if decision.answer and reply and engine is not None and not stream.config.no_ack:
            publish(engine.index, reply, b"", b"", decision.answer)
        return False

    def _account_of(self, is_its: Callable[[SubscriptionIndex], bool]) -> str:
        return next((name for name, account in self._accounts.items() if is_its(account.index)), "")

    # -- out

    def send(self) -> None:
        """Publishes the trace."""
        page = {
            "server": self._ports.events.describe(),
            "request": {"header": self._wanted.fields, "msgsize": self._size},
            **({"hops": self._hops} if self._hops else {}),
            "events": self._events,
        }
        body, encoding = _encoded(msgspec.json.encode(page), self._wanted.fields)
        header = headers.with_value(b"", "Content-Encoding", encoding) if encoding else b""
        account = self._accounts.open(self._account)
        account.publish(self._wanted.dest.encode(), body, header=header)


def _named(session: Session) -> dict[str, str]:
    return {"name": session.options.name} if session.options.name else {}


def _text(word: bytes) -> str:
    return word.decode("utf-8", "replace")


def _encoded(body: bytes, fields: dict[str, list[str]]) -> tuple[bytes, str]:
    """Encodes the trace as the publisher accepts it: (bytes, "snappy", "gzip" or "")."""
    accepted = fields.get(_ENCODING, [""])[0].lower()
    if "snappy" in accepted or "s2" in accepted:
        from penstock.protocol.s2_stream import IDENTIFIERS, encode_chunks

        return IDENTIFIERS[1] + encode_chunks(body), "snappy"
    if "gzip" in accepted:
        return gzip.compress(body), "gzip"
    return body, ""
