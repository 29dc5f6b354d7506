# cython: auto_pickle=False
"""Routing of one message that reports every step: what `route` and `route_imported` do, for traces.

Slow and rare: every step calls Python. It is separate from `route` so that other messages have no overhead.
Invariant: without `only`, the same sinks get the same bytes as from `route`, except the trace header where tracing
ends: there its value is replaced to disable further tracing; and other servers get the number of the hop.
"""
from libc.stdint cimport uint64_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from penstock.kernels.wire.dispatch cimport (
    ClientSink, ServiceSink, answer_no_responders,
)
from penstock.kernels.wire.ingress cimport Ingress
from penstock.kernels.routing.account_imports cimport (
    ServiceImportSink, ReplySink, RouteHook, StreamImportSink, hand_over, local_name, route_imported,
)
from penstock.kernels.ingest.ingest cimport StreamSink
from penstock.kernels.wire.route_links cimport RouteSink, RouteTarget, is_served, origin_of
from penstock.kernels.wire.sinks cimport (
    Message, PeerSink, RemoteSubscription, Sink, SinkSubscription, is_closed,
)
from penstock.kernels.routing.subscription_index cimport (
    MatchResult, RemoteReceivers, SharedGroup, SubscriptionIndex,
)

from penstock.protocol.headers import trace_disabled

cdef str NO_ECHO = "Not delivered because of no echo"
cdef str DENIED = "Not delivered because subscription denies this subject"
cdef str SUB_CLOSED = "Not delivered because subscription is closed"
cdef str CLIENT_CLOSED = "Not delivered because client is closed"


cdef bytes name_of(const Message* m):
    return PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len)


cdef bytes untraced(const Message* m):
    """The body with its trace header disabled."""
    header = PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len)
    payload = PyBytes_FromStringAndSize(m.body + m.header_len, <Py_ssize_t>(m.body_len - m.header_len))
    return trace_disabled(header) + payload


cdef int set_body(Message* m, bytes body) except -1:
    m.header_len = <size_t>PyBytes_GET_SIZE(body) - (m.body_len - m.header_len)
    m.body, m.body_len = PyBytes_AS_STRING(body), <size_t>PyBytes_GET_SIZE(body)
    return 0


cdef uint64_t total_weight(list subs) except? 0:
    cdef RemoteSubscription sub
    cdef uint64_t total = 0
    for sub in subs:
        total += sub.weight
    return total


cdef RemoteSubscription member_at(list subs, uint64_t at):
    """The server whose members include number `at`."""
    cdef RemoteSubscription sub
    cdef RemoteSubscription last = None
    for sub in subs:
        if at < sub.weight:
            return sub
        at -= sub.weight
        last = sub
    return last


cdef int set_message(Message* m, bytes subject, bytes reply, bytes body) except -1:
    m.subject, m.subject_len = PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject)
    m.reply, m.reply_len = (PyBytes_AS_STRING(reply) if reply else NULL), <size_t>PyBytes_GET_SIZE(reply)
    m.body, m.body_len = PyBytes_AS_STRING(body), <size_t>PyBytes_GET_SIZE(body)
    return 0


cdef class TracedRoute(RouteHook):
    """Routes messages as `route` does, and reports every step to `trace`."""

    def __cinit__(self, trace, bint only):
        self.trace = trace
        self.only = only

    def publish(
        self, SubscriptionIndex index not None, bytes subject not None, bytes reply not None,
        bytes header not None, bytes payload not None, Sink origin,
    ):
        cdef Message m
        cdef bytes body = header + payload
        set_message(&m, subject, reply, body)
        m.header_len = <size_t>PyBytes_GET_SIZE(header)
        return self.route_all(index, &m, origin, False)

    def publish_from(
        self, SubscriptionIndex index not None, bytes subject not None, bytes reply not None,
        bytes header not None, bytes payload not None, RouteSink source not None, queues,
    ):
        cdef Message m
        cdef bytes body = header + payload
        set_message(&m, subject, reply, body)
        m.header_len = <size_t>PyBytes_GET_SIZE(header)
        return self.route_groups(index, &m, origin_of(source), source, False, queues)

    cdef int route(self, ServiceImportSink sink, const Message* m, Sink origin) except -1:
        cdef Message out
        cdef bytes body
        self.trace.service_import(sink.index, sink.requested_subject, name_of(m))
        if self.only and not sink.allow_trace:
            return 0
        out = m[0]
        body = untraced(m)      # the trace destination exists only in the importing account
        set_body(&out, body)
        if sink.allow_trace:
            return self.route_all(sink.index, &out, origin, True)
        return route_imported(sink.index, &out, &out, origin)

    cdef int route_all(self, SubscriptionIndex index, const Message* m, Sink origin, bint imported) except -1:
        return self.route_groups(index, m, origin, origin, imported, None)

    cdef int route_groups(
        self, SubscriptionIndex index, const Message* m, Sink origin, Sink source, bint imported, queues
    ) except -1:
        """source: the connection that the message comes from; `origin` is its publisher. queues: the groups that get
        it, None = all."""
        cdef MatchResult result = index.lookup(m.subject, m.subject_len)
        cdef list plain = list(result.plain)
        cdef list groups = list(result.groups if result.remote is None else result.remote.local_groups)
        cdef bint served = isinstance(source, RouteSink) and is_served(<RouteSink>source)
        cdef SinkSubscription sub
        cdef list group
        cdef int taken = 0
        for sub in plain:
            if not (served and sub.sink.for_clients):
                taken += self.hand_on(sub, m, origin, imported)
        for members in groups:
            group = list(members)
            if queues is None or (<SinkSubscription>group[0]).queue in queues:
                taken += self.to_member(
                    group, <size_t>(index.random() % <size_t>len(group)) if len(group) > 1 else 0, m, origin, imported
                )
        if result.remote is not None:
            taken += self.to_links(index, result.remote, m, origin, source, imported, queues)
        return taken

    cdef int to_member(self, list group, size_t first, const Message* m, Sink origin, bint imported) except -1:
        cdef size_t n = <size_t>len(group)
        cdef size_t k
        for k in range(n):
            if self.hand_on(<SinkSubscription>group[(first + k) % n], m, origin, imported):
                return 1
        return 0

    cdef int to_links(
        self, SubscriptionIndex index, RemoteReceivers remote, const Message* m, Sink origin, Sink source,
        bint imported, queues,
    ) except -1:
        """Delivers to other servers, and to the queue groups with members there. A server gets it without delivery
        (`only`) as well: it reports its own steps."""
        cdef SharedGroup group
        cdef RemoteSubscription sub
        cdef RouteTarget target
        cdef Message out
        cdef bytes header, body
        cdef list chosen = []
        cdef Py_ssize_t i
        cdef bint plain
        cdef int taken = 0
        for group in list(remote.shared):
            if queues is None or group.queue in queues:
                sub = self.choose(index, group, m, origin, source, imported, &taken)
                if sub is not None:
                    chosen.append(sub)
        for i in range(len(remote.targets)):
            target = <RouteTarget?>remote.targets[i]
            plain = i < remote.plain_count
            names = [sub.queue for sub in chosen if sub.sink is target]
            if not (plain or names) or not target.takes_from(source, None):
                continue
            header = PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len)
            header = <bytes?>self.trace.hop(header)
            if self.only and not target.link.traces:
                self.trace.link_egress(target.link.owner, False)
                continue
            body = header + PyBytes_FromStringAndSize(m.body + m.header_len, <Py_ssize_t>(m.body_len - m.header_len))
            out = m[0]
            set_body(&out, body)
            for name in names:
                target.choose(name)
            if target.send(&out, origin, plain):
                taken += 1
                self.trace.link_egress(target.link.owner, True)
        return taken

    cdef RemoteSubscription choose(
        self, SubscriptionIndex index, SharedGroup group, const Message* m, Sink origin, Sink source, bint imported,
        int* taken,
    ):
        """As `choose_member`: delivers to a member of this server, or returns the server of the chosen one."""
        cdef list local = list(group.local)
        cdef list open_subs = [
            sub for sub in group.remote
            if not is_closed(<SinkSubscription>sub) and (<PeerSink>(<SinkSubscription>sub).sink).takes_from(source, sub)
        ]
        cdef list near = []
        cdef list leafs = []
        cdef RemoteSubscription sub
        cdef RemoteSubscription nearest = None
        cdef uint64_t total, at
        for sub in open_subs:
            if sub.for_cluster:
                if nearest is None or (<PeerSink>sub.sink).distance() < (<PeerSink>nearest.sink).distance():
                    nearest = sub
            else:
                (leafs if sub.for_leaf else near).append(sub)
        total = <uint64_t>len(local) + total_weight(near)
        if total:
            at = index.random() % total
            if at >= <uint64_t>len(local):
                return member_at(near, at - <uint64_t>len(local))
            if self.to_member(local, <size_t>at, m, origin, imported):
                taken[0] += 1
                return None
            if near:
                return <RemoteSubscription>near[0]
        total = total_weight(leafs)
        return member_at(leafs, index.random() % total) if total else nearest

    cdef int hand_on(self, SinkSubscription sub, const Message* m, Sink origin, bint imported) except -1:
        cdef Sink sink = sub.sink
        if isinstance(sink, ClientSink):
            return self.to_client(sub, sub, m, origin)
        if isinstance(sink, StreamSink):
            return 0 if sub.closed else self.to_stream(sub, m, origin)
        if isinstance(sink, StreamImportSink):
            return 0 if imported or sub.closed else self.import_stream(sub, m, origin)
        if isinstance(sink, ServiceImportSink) or isinstance(sink, ReplySink):
            return 0 if sub.closed else self.pass_on(sub, m, origin, imported)
        if isinstance(sink, ServiceSink) and not self.trace.service(name_of(m)):
            return 0
        return hand_over(sub, m, m, origin)

    cdef int import_stream(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef StreamImportSink stream_import = <StreamImportSink>sub.sink
        cdef SinkSubscription target = stream_import.target
        cdef Message local = m[0]
        cdef bytes name = local_name(stream_import, sub, m)
        local.subject, local.subject_len = PyBytes_AS_STRING(name), <size_t>PyBytes_GET_SIZE(name)
        self.trace.stream_import(target, name)
        if stream_import.allow_trace and isinstance(target.sink, ClientSink):
            return self.to_client(sub, target, &local, origin)
        if stream_import.allow_trace and isinstance(target.sink, StreamSink):
            return 0 if target.closed else self.to_stream(target, &local, origin)
        if self.only:
            return 1
        return 0 if target.closed else target.sink.deliver(target, &local, origin)

    cdef int pass_on(self, SinkSubscription sub, const Message* m, Sink origin, bint imported) except -1:
        """Through a service import, or a reply back through one."""
        cdef ServiceImportSink sink
        cdef ReplySink reply
        cdef Message out = m[0]
        cdef bytes body
        if isinstance(sub.sink, ServiceImportSink):
            sink = <ServiceImportSink>sub.sink
            if sink.hook is not None:
                return 0                # a cycle
            sink.hook, sink.requested_subject = self, name_of(m)
            try:
                return sink.pass_on(sub, m, origin, imported)
            finally:
                sink.hook = None
        reply = <ReplySink>sub.sink
        self.trace.service_import(reply.index, name_of(m), reply.to)
        if self.only:
            return 0
        body = untraced(m)
        set_body(&out, body)
        return reply.deliver(sub, &out, origin)

    cdef int to_client(self, SinkSubscription shown, SinkSubscription sub, const Message* m, Sink origin) except -1:
        """shown: the subscription in the account in which the message was routed."""
        cdef ClientSink sink = <ClientSink>sub.sink
        cdef str error = ""
        if sink is origin and not sink.echo:
            error = NO_ECHO
        elif sink.guard is not None and not sink.guard.passes(m):
            error = DENIED
        elif sub.closed:
            error = SUB_CLOSED
        elif sink.closed:
            error = CLIENT_CLOSED
        self.trace.egress(shown, sub, error)
        if error:
            return 0
        return 1 if self.only else sink.deliver(sub, m, origin)

    cdef int to_stream(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef StreamSink sink = <StreamSink>sub.sink
        header = PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len)
        payload = PyBytes_FromStringAndSize(m.body + m.header_len, <Py_ssize_t>(m.body_len - m.header_len))
        reply = PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len) if m.reply_len else b""
        if self.trace.store(sink.stream, name_of(m), reply, header, payload):
            return sink.deliver(sub, m, origin)
        return 1


def refused_part(Ingress ingress not None, bytes subject not None, bytes reply not None):
    cdef Message m
    m.subject, m.subject_len = PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject)
    m.reply, m.reply_len = NULL, 0
    if not ingress.is_allowed(&m):
        return subject
    m.reply, m.reply_len = PyBytes_AS_STRING(reply), <size_t>PyBytes_GET_SIZE(reply)
    return b"" if ingress.is_reply_allowed(&m) else reply


def reply_no_responders(Ingress ingress not None, bytes subject not None, bytes reply not None):
    cdef Message m
    m.subject, m.subject_len = PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject)
    m.reply, m.reply_len = PyBytes_AS_STRING(reply), <size_t>PyBytes_GET_SIZE(reply)
    if m.reply_len and ingress.no_responders:
        answer_no_responders(ingress.index, ingress.sink, &m)
